"""Copies that the card's copy engine (TMA) can make. In: a store to local memory of elements that are loaded and not
changed. Out: a `Box`: the tensor map of the memory and the start of the tile in it, or None where it is not a box.

All threads together copy the tile, each a part of it. The source and target of each element are computed here for each
thread: any parts are allowed that together are `rows` lines of each of `parts` columns of lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from tilewright.backends.cuda.tensor_map import TensorMap
from tilewright.base.records import record
from tilewright.codegen.tiles import tile_value
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

LINE_BYTES = 128
VECTOR_BYTES = 16
# Limits of a tensor map: rows of a box, and elements along an axis.
MAX_BOX_ROWS, MAX_SIZE = 256, 1 << 31
# Columns of lines of a tile: up to two for the features of a head, and as many for each of three parts of a number.
BOX_PARTS = (1, 2, 3, 4, 6)


@record
class Box:
    """`rows` rows of `parts` lines, from the row `row` on; `around` is the index along the dimension of the other
    loops."""

    map: TensorMap
    rows: int
    parts: int
    row: Affine
    around: Affine

    @property
    def nbytes(self) -> int:
        return self.rows * self.parts * LINE_BYTES


class _Threads:
    """The axis of a work-group's threads, and the values of expressions for each thread."""

    def __init__(self, axis: UOp) -> None:
        self.axis = axis
        self._known: dict[UOp, list[int]] = {}

    def values(self, atom: UOp) -> list[int]:
        found = self._known.get(atom)
        if found is None:
            found = [tile_value(atom, {self.axis: number}) for number in range(size_of(self.axis))]
            self._known[atom] = found
        return found


@record
class _Split:
    """An integer as a part that is known for each thread and element of its tile, plus a part that is the same for
    all."""

    of_threads: Affine
    alike: Affine

    def values(self, threads: _Threads, lane: UOp, others: tuple[UOp, ...]) -> list[int]:
        """The known part of the first lane of each vector, thread by thread."""
        steps = [range(size_of(axis)) for axis in others]
        terms = self.of_threads.terms
        offsets = [sum(terms.get(axis, 0) * n for axis, n in zip(others, at)) for at in itertools.product(*steps)]
        known = [
            [step * value for value in threads.values(atom)]
            for atom, step in terms.items()
            if atom is not lane and atom not in others
        ]
        starts = map(sum, zip(*known)) if known else [0] * size_of(threads.axis)
        return [start + offset for start in starts for offset in offsets]


def _split(form: Affine, thread: UOp) -> _Split | None:
    own: dict[UOp, int] = {}
    alike: dict[UOp, int] = {}
    for atom, step in form.terms.items():
        axes = atom.ranges
        if thread not in axes and not any(axis.arg.kind.is_tile for axis in axes):
            alike[atom] = step
        elif all(axis is thread for axis in axes) or atom.op is Ops.RANGE:
            own[atom] = step
        else:
            return None
    return _Split(Affine(own, 0), Affine(alike, form.constant))


def _find_box(store: UOp, threads: _Threads) -> Box | None:
    place, load = store.src[:2]
    if len(place.src) != 2 or load.op is not Ops.LOAD or len(load.src) != 1:
        return None
    source, thread, itemsize = load.src[0], threads.axis, place.dtype.itemsize
    if memory_of(source).op is not Ops.PARAM or load.dtype.itemsize != itemsize:
        return None
    near, far = (_split(affine(each.src[1]), thread) for each in (place, source))
    if near is None or far is None or near.alike.terms:
        return None
    lanes = VECTOR_BYTES // itemsize
    axes = tuple(axis for axis in near.of_threads.terms if axis.arg and axis.op is Ops.RANGE and axis is not thread)
    steps = (near.of_threads.terms, far.of_threads.terms)
    lane = next((axis for axis in axes if size_of(axis) == lanes and all(each.get(axis) == 1 for each in steps)), None)
    if lane is None or any(axis.arg.kind is AxisType.LOCAL for axis in axes):
        return None
    others = tuple(axis for axis in axes if axis is not lane)
    to = [near.alike.constant + value for value in near.values(threads, lane, others)]
    origin = far.values(threads, lane, others)
    size, line = int(memory_of(place).arg.size), LINE_BYTES // itemsize
    if sorted(to) != list(range(0, size, lanes)):
        return None
    for parts in BOX_PARTS:
        rows = size // (line * parts)
        places = [(number // line % rows, number // (line * rows) * line + number % line) for number in to]
        found = dict(zip(places, origin))
        if rows * line * parts != size or rows < 2 or rows > MAX_BOX_ROWS:
            continue
        step = found[1, 0] - found[0, 0]
        if all(value == found[0, 0] + row * step + column for (row, column), value in found.items()):
            limits = _limits(source, threads, lane, others, places, line * parts)
            return None if limits is None else _box(source, far.alike, found[0, 0], step, (rows, parts), limits)
    return None


def _limits(
    source: UOp,
    threads: _Threads,
    lane: UOp,
    others: tuple[UOp, ...],
    places: list[tuple[int, int]],
    width: int,
) -> tuple[Affine | None, int] | None:
    """The limits that the mask of a load sets: the first row that is masked off, negated, and the number of columns.
    None where the mask has another form."""
    row_limit, columns, masks = None, width, list(source.src[2:])
    while masks:
        mask = masks.pop()
        if mask.op is Ops.AND:
            masks += mask.src
            continue
        if mask.op is not Ops.CMPLT or not mask.src[0].dtype.is_int:
            return None
        split = _split(affine(mask.src[0]).plus(affine(mask.src[1]), -1), threads.axis)
        if split is None or lane in split.of_threads.terms:
            return None
        values = split.values(threads, lane, others)
        rest = {value - row for value, (row, _) in zip(values, places)}
        if len(rest) == 1 and row_limit is None:
            row_limit = split.alike.plus(Affine({}, rest.pop()))
            continue
        if split.alike.terms:
            return None
        lanes = width // len({column for _, column in places})
        kept = {column for value, (_, column) in zip(values, places) if value + split.alike.constant < 0}
        columns = min(columns, max(kept, default=-lanes) + lanes)
        known = [value + split.alike.constant < 0 for value in values]
        if known != [column < columns for _, column in places]:
            return None
    return row_limit, columns


def _box(
    source: UOp,
    alike: Affine,
    start: int,
    step: int,
    shape: tuple[int, int],
    limits: tuple[Affine | None, int],
) -> Box | None:
    """The map of rows of stride `step` that begin at `alike + start`."""
    (rows, parts), (row_limit, columns) = shape, limits
    if row_limit is not None:
        size = -row_limit.bounds[0]
        row = row_limit.plus(Affine({}, size))
    else:
        row = Affine({atom: each // step for atom, each in alike.terms.items() if each % step == 0}, 0)
        row = row.plus(Affine({}, -row.bounds[0]))
        size = row.bounds[1] + rows
    rest = alike.plus(Affine({}, start)).plus(row, -step)
    unit = math.gcd(*rest.terms.values()) if rest.terms else VECTOR_BYTES
    around = Affine({atom: each // unit for atom, each in rest.terms.items()}, 0)
    low, high = around.bounds
    itemsize = source.dtype.itemsize
    strides = (step * itemsize, unit * itemsize)
    is_aligned = not any(number % VECTOR_BYTES for number in (*strides, rest.constant * itemsize))
    if not is_aligned or step <= 0 or size <= 0 or low < 0 or rest.constant < 0 or max(size, high) >= MAX_SIZE:
        return None
    tensor_map = TensorMap(
        memory_of(source).arg.slot,
        rest.constant * itemsize,
        itemsize,
        (columns, size, high + 1),
        strides,
        (LINE_BYTES // itemsize, rows, 1),
    )
    return Box(tensor_map, rows, parts, row, around)


def find_boxes(stores: Mapping[UOp, list[UOp]], local_ranges: tuple[UOp, ...]) -> dict[UOp, Box] | None:
    """The box of each tile, from the stores that fill it; None where the engine cannot fetch all of them."""
    if len(local_ranges) != 1 or any(len(found) != 1 for found in stores.values()):
        return None
    threads = _Threads(local_ranges[0])
    boxes = {}
    for memory, (store,) in stores.items():
        box = _find_box(store, threads)
        if box is None:
            return None
        boxes[memory] = box
    return boxes
