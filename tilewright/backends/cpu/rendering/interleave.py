"""Loads with a small step. In: where the first element lies, how many there are, and how far apart. Out: their vector,
and the text that makes it: vectors of neighbours are loaded and the wanted lanes picked, which takes a few instructions
where a gather takes one per lane. A pool and a convolution of stride 2 read so."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.backends.cpu.rendering.instructions import of_lanes
from tilewright.backends.cpu.rendering.transpose import Emit, shuffle_mask

# With a longer step most of what is loaded is not wanted.
MOST_STEP = 4


def load_apart(emit: Emit, pointer_at: Callable[[int], str], element: str, itemsize: int, lanes: int, step: int) -> str:
    """`lanes` elements, each `step` after the last; `pointer_at` gives the address of one, counted from the first.

    No element after the last one is touched: the vectors start `lanes` apart, and the last ends where they end."""
    kind = of_lanes(element, lanes)
    last = (lanes - 1) * step
    starts = [min(number * lanes, last + 1 - lanes) for number in range(step)]
    parts = [emit(f"load {kind}, ptr {pointer_at(start)}, align {itemsize}") for start in starts]
    found = parts[0]
    for number in range(1, step):
        order: list[int | None] = []
        for lane in range(lanes):
            place = lane * step
            if place >= number * lanes:
                order.append(lanes + place - starts[number] if place < (number + 1) * lanes else None)
            else:
                order.append(lane if number > 1 else place)
        found = emit(f"shufflevector {kind} {found}, {kind} {parts[number]}, {shuffle_mask(order)}")
    return found
