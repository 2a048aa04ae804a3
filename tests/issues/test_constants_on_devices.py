"""A value of constants alone, such as `arange(16).contiguous()`, was stored on the device of the result. A kernel of
another device then read memory of a card through a host's pointer, which ended the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.records import Schedule
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import schedule


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    with emulated_card(is_reference=False):
        yield


def plan(*results: Tensor) -> Schedule:
    bound = BoundGraph([each.uop for each in results])
    return schedule(bound.outputs, bound.params, NAME, target_of=lambda device: open_driver(device).target)


def table(device: str = "CPU") -> Tensor:
    return Tensor.arange(16, device=device).reshape(4, 4).float().contiguous()


ONES = np.ones((4, 4), np.float32)


def ones(device: str = "CPU") -> Tensor:
    return Tensor(ONES, device=device).realize()


NUMBERS = np.arange(16, dtype=np.float32).reshape(4, 4)


def many_uses() -> list[Tensor]:
    """A value that is stored because it costs more than a load."""
    waves = (Tensor.arange(16).float() * 0.1).sin().reshape(4, 4)
    sums = sum(((ones() * waves).sum(0) for _ in range(12)), Tensor.zeros(4))
    return [sums.to(NAME) + waves.to(NAME).sum(0)]


CASES: dict[str, tuple[Callable[[], list[Tensor]], list[np.ndarray]]] = {
    "an operand": (lambda: [(ones() + table()).to(NAME) + 1], [NUMBERS + 2]),
    "of a product": (lambda: [(ones() @ table()).to(NAME)], [ONES @ NUMBERS]),
    "of products on two devices": (
        lambda: [(ones() @ table()).to(NAME) + ones(NAME) @ table(NAME)],
        [2 * (ONES @ NUMBERS)],
    ),
    "copied too": (lambda: [(ones() @ table()).to(NAME) + table().to(NAME)], [ONES @ NUMBERS + NUMBERS]),
    "a result too": (lambda: [(ones() @ table()).to(NAME), table(NAME)], [ONES @ NUMBERS, NUMBERS]),
    "an index": (lambda: [ones()[Tensor.arange(4).flip(0).contiguous()].to(NAME) * 3], [3 * ONES]),
    "a custom kernel's": (
        lambda: [table().cat(ones(), dim=0).contiguous().to(NAME)[:4].sort(1)[0]],
        [NUMBERS],
    ),
    "used often": (many_uses, [13 * np.sin(np.arange(16, dtype=np.float32) * np.float32(0.1)).reshape(4, 4).sum(0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kernel_reads_memory_of_its_device(name: str) -> None:
    make, expected = CASES[name]
    results = make()
    made = plan(*results)
    for item in made.items:
        if item.ast is not None:
            assert {made.slots[access.slot].device for access in (*item.reads, *item.writes)} == {item.device}
    for result, wanted in zip(results, expected, strict=True):
        assert result.device == NAME
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)


def test_one_device_makes_a_value_once() -> None:
    x = table()
    made = plan((ones() @ x).to(NAME) + (ones() + x).to(NAME))
    assert sum(item.ast is not None and item.ast.arg.name.startswith("map") for item in made.items) <= 3
