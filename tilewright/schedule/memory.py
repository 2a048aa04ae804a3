"""Placing temporary memory. In: how long each temp is needed and how large it is. Out: an offset per temp in one arena
per device, so that two temps share bytes only when their lives do not meet. Lives come from declared accesses alone."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.records import Item, Slot

# Of every temp. Some OpenCL drivers let a view of a buffer begin at multiples of 512 bytes only.
ALIGNMENT = 512


def lifetimes(items: Sequence[Item]) -> dict[int, tuple[int, int]]:
    """First and last item that touches each slot."""
    lives: dict[int, tuple[int, int]] = {}
    for position, item in enumerate(items):
        for access in (*item.reads, *item.writes):
            first, _ = lives.get(access.slot, (position, position))
            lives[access.slot] = (first, position)
    return lives


def place_temps(
    items: Sequence[Item], slots: Sequence[Slot]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]:
    """Offsets of the temps and the size of each device's arena. Largest first, each at the lowest free offset."""
    lives = lifetimes(items)
    temps = sorted((n for n in lives if slots[n].kind == "temp"), key=lambda n: (-slots[n].nbytes, n))
    placed: dict[str, list[tuple[int, int, int, int]]] = {}
    offsets: list[tuple[int, int]] = []
    arenas: dict[str, int] = {}
    for number in temps:
        slot = slots[number]
        first, last = lives[number]
        size = -(-max(slot.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, stop, other_first, other_last in sorted(placed.get(slot.device, ())):
            if last < other_first or other_last < first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, stop)
        placed.setdefault(slot.device, []).append((offset, offset + size, first, last))
        offsets.append((number, offset))
        arenas[slot.device] = max(arenas.get(slot.device, 0), offset + size)
    return tuple(sorted(offsets)), tuple(sorted(arenas.items()))


def check_placement(items: Sequence[Item], slots: Sequence[Slot], offsets: Sequence[tuple[int, int]]) -> str | None:
    """None, or which two temps that are alive together share memory."""
    lives = lifetimes(items)
    rows = [(slots[n].device, offset, offset + slots[n].nbytes, *lives[n], n) for n, offset in offsets]
    for position, (device, start, stop, first, last, number) in enumerate(rows):
        for other_device, other_start, other_stop, other_first, other_last, other in rows[position + 1 :]:
            meets_in_time = first <= other_last and other_first <= last
            meets_in_space = start < other_stop and other_start < stop
            if device == other_device and meets_in_time and meets_in_space:
                return f"temps {number} and {other} share bytes {max(start, other_start)}..{min(stop, other_stop)}"
    return None
