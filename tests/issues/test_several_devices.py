"""Several devices that are one piece of hardware. Elsewhere transfers were ordered between their queues and
computations were not, so that results turned wrong now and then; and a network left its devices after some layer.

The devices here are real queues: each runs what it is given in a thread of its own, after a random delay, and shows the
host none of its memory. Whatever is not ordered by what it reads and writes comes out wrong."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit, nn
from tilewright.backends.cpu.device import CpuDriver
from tilewright.engine.memory.parts import layout_of
from tilewright.runtime import device as devices
from tilewright.runtime.device import Address, Runner

FOUR = ("CPU", "CPU:1", "CPU:2", "CPU:3")


class QueueDriver(CpuDriver):
    """The CPU as a device that works behind the caller's back."""

    rebinds_lists = False

    def __init__(self, name: str) -> None:
        self.queue = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.last: Future[Any] | None = None
        self.random = random.Random(name)
        self.lock = threading.Lock()

    def give(self, work: Callable[[], Any]) -> Future[Any]:
        delay = self.random.choice((0.0, 0.0, 0.0, 0.0005))

        def run() -> None:
            time.sleep(delay)
            work()

        with self.lock:
            self.last = self.queue.submit(run)
            return self.last

    def synchronize(self) -> None:
        if self.last is not None:
            self.last.result()

    def host_view(self, memory: Any) -> None:  # type: ignore[override]
        return None

    def copy_in(self, memory: Any, offset: int, data: memoryview) -> None:
        taken = bytes(data)
        self.give(lambda: super(CpuDriver, self).host_view(memory)[offset:].__setitem__(slice(0, len(taken)), taken))

    def copy_out(self, memory: Any, offset: int, into: memoryview) -> None:
        def read() -> None:
            into.cast("B")[:] = super(CpuDriver, self).host_view(memory)[offset : offset + into.nbytes]

        self.give(read).result()

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        moved = bytearray(nbytes)
        self.copy_out(source[0], source[1], memoryview(moved))
        self.copy_in(target[0], target[1], memoryview(moved))

    def wrap(self, source: Any) -> None:  # type: ignore[override]
        return None

    def prepare(self, launches: Sequence[tuple[Any, Sequence[Address]]]) -> Runner:
        return QueueRunner(self, super().prepare(launches))


class QueueRunner(Runner):
    def __init__(self, driver: QueueDriver, inner: Runner) -> None:
        self.driver, self.inner = driver, inner
        self.kept: dict[tuple[int, int], Address] = {}

    def run(self) -> None:
        kept = dict(self.kept)  # memory lives as long as the work that was given
        self.driver.give(lambda: (self.inner.run(), kept))

    def wait(self) -> None:
        self.driver.synchronize()

    def set_address(self, launch: int, param: int, address: Address) -> None:
        self.driver.synchronize()
        self.kept[launch, param] = address
        self.inner.set_address(launch, param, address)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    opened: list[QueueDriver] = []

    def open_queue(name: str) -> QueueDriver:
        opened.append(QueueDriver(name))
        return opened[-1]

    monkeypatch.setitem(devices._openers, "QUEUE", open_queue)
    names = ("QUEUE", "QUEUE:1", "QUEUE:2", "QUEUE:3")
    yield names
    for driver in opened:
        driver.queue.shutdown()
    for name in names:
        devices._drivers.pop(name, None)


def train(places: tuple[str, ...], is_jitted: bool) -> list[float]:
    """Losses of a network whose batch is divided, and whose first layer's columns are."""
    rng = np.random.default_rng(0)
    up, down = (Tensor(rng.standard_normal(shape).astype(np.float32) * 0.3) for shape in ((12, 16), (16, 4)))
    up.requires_grad_().shard_(places, 1)
    down.requires_grad_().shard_(places)
    x, y = (Tensor(rng.standard_normal((8, size)).astype(np.float32)).shard(places, 0).realize() for size in (12, 4))
    optimizer = nn.optim.SGD([up, down], lr=0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((x @ up).relu() @ down - y).square().mean().backward()
        optimizer.step()
        return loss.realize()

    run = jit(step) if is_jitted else step
    return [run(x, y).item() for _ in range(4)]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")  # what delays the queues is user code
@pytest.mark.parametrize("is_jitted", [False, True])
def test_random_delays_change_nothing(queues: tuple[str, ...], is_jitted: bool) -> None:
    wanted = train(FOUR, is_jitted)
    assert wanted[-1] < wanted[0]
    for _ in range(3):
        assert train(queues, is_jitted) == wanted


# ---------------------------------------------------------------- a convolutional network


LAYERS: Sequence[Callable[[], Callable[[Tensor], Tensor]]] = (
    lambda: nn.Conv2d(1, 8, 5),
    lambda: Tensor.relu,
    lambda: nn.Conv2d(8, 8, 5),
    lambda: Tensor.relu,
    lambda: nn.BatchNorm(8),
    lambda: Tensor.max_pool2d,
    lambda: nn.Conv2d(8, 16, 3),
    lambda: Tensor.relu,
    lambda: nn.Conv2d(16, 16, 3),
    lambda: Tensor.relu,
    lambda: nn.BatchNorm(16),
    lambda: Tensor.max_pool2d,
    lambda: lambda x: x.flatten(1),
    lambda: nn.Linear(144, 10),
)


def outputs_and_gradients(places: tuple[str, ...] | None) -> tuple[list[Tensor], list[Tensor]]:
    Tensor.manual_seed(1)
    layers = [make() for make in LAYERS]
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((4, 1, 28, 28)).astype(np.float32))
    labels = Tensor(rng.integers(0, 10, 4).astype(np.int32))
    parameters = nn.state.get_parameters(layers)
    if places:
        for parameter in parameters:
            parameter.shard_(places)
        x, labels = x.shard(places, 0), labels.shard(places, 0)
    outputs = []
    for layer in layers:
        x = layer(x)
        outputs.append(x)
    loss = x.sparse_categorical_crossentropy(labels).backward()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    loss.realize(x, *gradients)
    return outputs, gradients


def test_a_network_stays_on_its_devices() -> None:
    outputs, gradients = outputs_and_gradients(FOUR)
    assert [layout_of(output.uop) for output in outputs] == [(0, (1, 1, 1, 1))] * len(LAYERS)
    alone, wanted = outputs_and_gradients(None)
    np.testing.assert_allclose(outputs[-1].numpy(), alone[-1].numpy(), rtol=1e-4, atol=1e-5)
    assert len(gradients) == 14
    for found, known in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), known.numpy(), rtol=1e-3, atol=1e-5)


def test_a_view_of_a_computed_value_in_another_shape() -> None:
    """What is computed of a repetition has its shape, and a view taken before sees it in the shape of the expansion:
    the schedule took such a graph for one of a single device."""
    x = Tensor([[1.0, 2.0]], requires_grad=True).shard(("CPU:0", "CPU:1"))
    repeated = x.repeat(2, 1)
    row = repeated.reshape(4)
    assert repeated.tolist() == [[1, 2], [1, 2]]
    assert row.tolist() == [1, 2, 1, 2]
