"""Devices by name: what is usable and why not, copies in and out, timing, and a driver that opens nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tilewright.runtime.device as runtime
from tests.devices import Setting, settings, summary
from tilewright import Device, Tensor, jit
from tilewright.base.errors import DeviceError, UnsupportedError
from tilewright.runtime.buffer import transfer
from tilewright.runtime.device import Driver, Unavailable, open_driver

HERE = [setting for setting in settings() if not setting.compiler]


@pytest.fixture
def missing() -> Iterator[str]:
    """The name of a device whose hardware is not there."""

    def refuse(_: str) -> Driver:
        raise Unavailable("there is no abacus", "buy one")

    runtime.register_backend("ABACUS", refuse)
    yield "ABACUS"
    del runtime._openers["ABACUS"]


def test_a_device_that_is_missing_says_what_to_do_and_what_there_is(missing: str) -> None:
    with pytest.raises(DeviceError, match="there is no abacus") as raised:
        Tensor([1.0], device=missing)
    assert "buy one" in str(raised.value)
    assert "CPU" in str(raised.value)


def test_availability(missing: str) -> None:
    found = Device.availability()
    assert found["CPU"] is None
    assert found["PYTHON"] is None
    assert found[missing] == "there is no abacus; buy one"
    assert list(found) == list(Device)
    assert "ABACUS (there is no abacus; buy one)" in summary()


@pytest.mark.parametrize("setting", HERE, ids=lambda setting: setting.label)
def test_bytes_go_in_across_and_out(setting: Setting) -> None:
    driver = open_driver(setting.device)
    first, second = driver.allocate(64), driver.allocate(64)
    driver.copy_in(first, 0, memoryview(bytes(range(64))))
    driver.copy_in(second, 0, memoryview(bytes(64)))
    driver.copy((second, 4), (first, 32), 8)
    found = bytearray(12)
    driver.copy_out(second, 0, memoryview(found))
    assert found == bytes(4) + bytes(range(32, 40))


@pytest.mark.parametrize("target", HERE, ids=lambda setting: setting.label)
@pytest.mark.parametrize("source", HERE, ids=lambda setting: setting.label)
def test_bytes_go_from_one_device_to_another(source: Setting, target: Setting) -> None:
    reader, writer = open_driver(source.device), open_driver(target.device)
    origin, place = reader.allocate(32), writer.allocate(32)
    reader.copy_in(origin, 0, memoryview(bytes(range(32))))
    writer.copy_in(place, 0, memoryview(bytes(32)))
    transfer((place, 8), target.device, (origin, 16), source.device, 8)
    found = bytearray(24)
    writer.copy_out(place, 0, memoryview(found))
    assert found == bytes(8) + bytes(range(16, 24)) + bytes(8)


@pytest.mark.parametrize("setting", HERE, ids=lambda setting: setting.label)
def test_a_replayed_function_gets_new_buffers(setting: Setting) -> None:
    """`set_address` of the device's runner: arguments and results are others at every call."""

    @jit
    def double(x: Tensor) -> Tensor:
        return (x * 2 + 1).contiguous()

    results = [double(Tensor(np.full(5, number, np.float32), device=setting.device)) for number in range(5)]
    assert [result.tolist() for result in results] == [[2.0 * number + 1] * 5 for number in range(5)]


@pytest.mark.parametrize("setting", HERE, ids=lambda setting: setting.label)
def test_a_result_survives_the_tensors_it_came_from(setting: Setting) -> None:
    x = Tensor(np.arange(1000, dtype=np.float32), device=setting.device)
    for _ in range(20):
        x = (x + 1).realize()
    assert x.tolist() == [number + 20.0 for number in range(1000)]


def test_host_memory_is_borrowed_and_other_memory_is_not() -> None:
    numbers = np.arange(8, dtype=np.float32)
    shared = Tensor.from_numpy(numbers)
    numbers[0] = 5
    assert shared.tolist()[0] == 5
    view = shared.data()
    numbers[1] = 7
    assert view[1] == 7
    copied = shared.numpy()
    numbers[2] = 9
    assert copied[2] == 2


def test_a_runner_without_a_clock_is_timed_by_the_host_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = iter([2.0, 2.25])

    class Queued(runtime.Runner):
        def run(self) -> None:
            calls.append("run")

        def wait(self) -> None:
            calls.append("wait")

        def set_address(self, launch: int, param: int, address: runtime.Address) -> None:
            calls.append(f"set {launch} {param} {address}")

    monkeypatch.setattr(runtime.time, "perf_counter", lambda: next(clock))
    runner = Queued()
    assert runner.run_timed() == 0.25
    runner.bind([(1, 0, 2, 16), (0, 3, 1, 0)])(["first", "second"])
    assert calls == ["run", "wait", "set 0 2 ('second', 16)", "set 3 1 ('first', 0)", "run"]


def test_null_compiles_and_has_no_values() -> None:
    x = (Tensor.ones(1 << 20, 1 << 20, device="NULL") + 1).contiguous().realize()
    with pytest.raises(UnsupportedError, match="runs none"):
        x[0, :4].numpy()
