"""docs/sharding.md: its picture of the layouts is that of the parts, and each row of the table of what is sent between
devices has a check."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.docs.examples import DOCS, first_column
from tilewright import Tensor

PAGE = DOCS / "sharding.md"


def test_its_table_of_layouts_is_that_of_the_parts() -> None:
    x = Tensor.arange(24).reshape(6, 4).contiguous()
    text = PAGE.read_text()
    for device, (row, column) in {"CPU": ("0:3", "0:2"), "CPU:1": ("3:6", "2:4")}.items():
        assert re.search(rf"^{device} +x\[{row}, :\] +x\[:, {column}\] +x$", text, flags=re.MULTILINE)
    for axis, pick in ((0, lambda n: x[3 * n : 3 * n + 3]), (1, lambda n: x[:, 2 * n : 2 * n + 2])):
        parts = x.shard(("CPU", "CPU:1"), axis).realize().uop.src
        for number, device in enumerate(("CPU", "CPU:1")):
            assert Tensor._from_uop(parts[number], device).tolist() == pick(number).tolist()


# ---------------------------------------------------------------- what is moved

DEVICES = ("CPU", "CPU:1")
VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)
ELEMENT = 4  # bytes


def sharded(axis: int | None) -> Tensor:
    return Tensor(VALUES).shard(DEVICES, axis).realize()


def assigned() -> Tensor:
    target = sharded(0)
    target.assign(sharded(1) * 2)
    return target


# Each row of the table: an expression, the axis of its result (None: a copy on each device), and the elements it sends.
MOVED: dict[str, list[tuple[Callable[[], Tensor], int | None, int]]] = {
    "elementwise, all sharded alike": [(lambda: sharded(0) + sharded(0) * 2, 0, 0)],
    "elementwise, sharded with replicated": [(lambda: sharded(0) + sharded(None), 0, 0)],
    "elementwise, sharded differently": [(lambda: sharded(0) + sharded(1), 0, 12)],
    "constants, `arange`, masks": [(lambda: (sharded(0) + Tensor.arange(4, device=DEVICES)).tril(), 0, 0)],
    "reduction over other axes": [(lambda: sharded(0).sum(1), 0, 0)],
    "reduction over the sharded axis": [(lambda: sharded(0).sum(0), None, 8)],
    "`permute`, `expand`, `reshape` that keeps the shards' bounds": [
        (lambda: sharded(0).T + 0, 1, 0),
        (lambda: sharded(0).reshape(6, 1, 4).expand(6, 2, 4) + 0, 0, 0),
        (lambda: sharded(0).reshape(2, 3, 4) + 0, 0, 0),
    ],
    "`reshape` across the shards' bounds": [(lambda: sharded(0).reshape(3, 2, 4) + 0, None, 24)],
    "slice": [(lambda: sharded(0)[1:4] * 2, 0, 0)],
    "`pad`, `cat` along the sharded axis": [
        (lambda: sharded(0).pad(((1, 1), (0, 0))) + 0, 0, 0),
        (lambda: sharded(0).cat(sharded(0), dim=0) + 0, 0, 24),
    ],
    "`flip` along the sharded axis": [(lambda: sharded(0).flip(0) + 0, 0, 24)],
    "`a @ b`, rows of `a` sharded, `b` replicated": [(lambda: sharded(0) @ sharded(None).T, 0, 0)],
    "`a @ b`, the summed axis of both sharded": [(lambda: sharded(1) @ sharded(1).T, None, 2 * 36)],
    "gather": [
        (lambda: sharded(0)[Tensor([5, 0, 3, 3, 1, 2]).shard(DEVICES, 0).realize()], 0, 24),
        (lambda: sharded(1)[Tensor([5, 0, 3, 3, 1, 2]).shard(DEVICES).realize()], 1, 0),
    ],
    "`assign`": [(assigned, 0, 12)],
}


def test_every_row_of_what_is_moved_is_checked() -> None:
    assert first_column(PAGE, "## Communication") == list(MOVED)


@pytest.mark.parametrize("row", MOVED)
def test_what_is_moved(row: str) -> None:
    for make, axis, elements in MOVED[row]:
        result = make()
        schedule = result.schedule()
        copied = [schedule.slots[item.slots[0]].nbytes for item in schedule if item.ast is None]
        assert sum(copied) == elements * ELEMENT
        result.realize()
        assert result.uop.arg.axis == axis
