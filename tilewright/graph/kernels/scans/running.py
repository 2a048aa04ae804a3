"""Scans for devices whose threads are CPU cores. In: a tensor as (outer, size, inner), as a node. Out: CUSTOM_KERNEL
nodes with the cumulative sums, products or extremes along `size`. Each element is combined once with the loop's carried
value, while a masked reduction combines it with all before it. A wide `inner` axis is vectorised. With a narrow one the
loop is serial: sums and products go by blocks of groups, whose prefixes do not depend on the value carried into the
group; an extreme is replaced in a branch, and a block in which no element replaces it costs one vector comparison."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.kernels.nodes import MAX_KERNELS, call
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const

# Minimum columns for vectorised rows, columns of one vector tile, and columns per block, whose carried values stay in
# the L1 cache.
MIN_COLUMNS = 8
TILE = 32
COLUMNS = 1024
BLOCK = 16  # elements of a row after which the carried value is stored to memory and loaded again
GROUP = 2  # elements of a block that one operation on the carried value passes
COMPARED = 16  # elements that are compared with the carried extreme as one vector
MIN_COMPARED = 64  # elements of the shortest row for which they are
INDEX = dtypes.int64

Sizes = tuple[int, int, int]


def running(node: UOp, op: Op, carrier: DType, dtype: DType, is_backwards: bool = False) -> UOp:
    """The scan of (outer, size, inner) along `size`, accumulated in `carrier`, as `dtype`; from the end where it is
    backwards."""
    kernel = running_kernel(op, node.dtype, carrier, dtype, node.shape, is_backwards)
    return call(kernel, ((dtype, node.shape),), (node,))[0]


def running_extremes(node: UOp, op: Op) -> tuple[UOp, UOp]:
    """The cumulative extreme and its index along `size`: the last of equal elements, and NaN over any number."""
    kernel = extremes_kernel(op, node.dtype, node.shape)
    values, indices = call(kernel, ((node.dtype, node.shape), (INDEX, node.shape)), (node,))
    return values, indices


class Loops:
    """The ranges and registers of one kernel, numbered as they are made."""

    def __init__(self) -> None:
        self._ranges = itertools.count()
        self._slots = itertools.count()

    def over(self, size: int | UOp, kind: AxisType = AxisType.LOOP) -> UOp:
        return UOp.range(size, next(self._ranges), kind)

    def lanes(self, size: int) -> UOp:
        return self.over(size, AxisType.UPCAST)

    def memory(self, size: int, dtype: DType, *within: UOp) -> UOp:
        return UOp.placeholder((size,), dtype, next(self._slots)).after(*within)


class Part(NamedTuple):
    """The columns start .. start + blocks * width of each row, and the vector width within a block."""

    start: int
    blocks: int
    width: int
    lanes: int


def parts_of(columns: int) -> list[Part]:
    """Blocks of columns, each scanned from the first row to the last; the last block has the remaining columns."""
    if columns <= 2 * TILE:
        return [Part(0, 1, columns, columns)]
    whole, left = columns // TILE * TILE, columns % TILE
    width = min(whole, COLUMNS)
    found = [Part(0, whole // width, width, TILE)]
    rest = whole % width
    found += [Part(whole - rest, 1, rest, TILE)] if rest else []
    return found + ([Part(whole, 1, left, left)] if left else [])


def sink(name: str, effects: list[UOp], outputs: int) -> UOp:
    return UOp.group(*effects).sink(arg=KernelInfo(name, fills=tuple(range(outputs))))


# ---------------------------------------------------------------- sums and products


@functools.lru_cache(MAX_KERNELS)
def running_kernel(op: Op, given: DType, carrier: DType, dtype: DType, shape: Sizes, is_backwards: bool) -> UOp:
    size = shape[1]
    out, x = make_argument(0, dtype, shape), make_argument(1, given, shape)
    identity = reduce_identity(op, carrier)
    loops = Loops()

    def row(index: UOp) -> UOp:
        return size - 1 - index if is_backwards else index

    def walked(o: UOp, part: Part) -> UOp:
        block = loops.over(part.blocks)
        total = loops.memory(part.width, carrier, o, block)
        first = loops.over(part.width)
        total = total[first].set(identity, end=first)
        k, step, lane = loops.over(size), loops.over(part.width // part.lanes), loops.lanes(part.lanes)
        at = step * part.lanes + lane
        column = part.start + block * part.width + at
        carried = total.after(k).after(step)[at]
        value = carried.load().alu(op, x[o, row(k), column].load().cast(carrier))
        effect = UOp.group(carried.store(value), out[o, row(k), column].store(value.cast(dtype)))
        return effect.end(lane).end(step).end(k).end(block)

    def serial(o: UOp, i: UOp) -> UOp:
        blocks = [part for part in ((0, BLOCK, size // BLOCK), (size - size % BLOCK, size % BLOCK, 1)) if all(part[1:])]
        is_carried = sum(count for _, _, count in blocks) > 1
        total = loops.memory(1, carrier, o, i)[0].set(identity) if is_carried else None
        effects: list[UOp] = []
        for start, length, count in blocks:
            k = loops.over(count)
            places = [row(start + k * length + j) for j in range(length)]
            values = [x[o, place, i].load().cast(carrier) for place in places]
            carried = total.after(*effects, k)[0] if total is not None else None
            scanned = scan_block(op, values, carried.load() if carried is not None else None)
            stores = [out[o, place, i].store(value.cast(dtype)) for place, value in zip(places, scanned, strict=True)]
            stores += [carried.store(scanned[-1])] if carried is not None else []
            effects.append(UOp.group(*stores).end(k))
        return UOp.group(*effects)

    return sink(f"running_{op.name.lower()}", _for_all(loops, shape, walked, serial), 1)


def scan_block(op: Op, values: list[UOp], before: UOp | None) -> list[UOp]:
    """The scan of the elements of a block, from a carried value on where there is one: that of each group depends on
    the group before by one operation."""
    found: list[UOp] = []
    for first in range(0, len(values), GROUP):
        prefixes = list(itertools.accumulate(values[first : first + GROUP], lambda a, b: a.alu(op, b)))
        found += prefixes if before is None else [before.alu(op, prefix) for prefix in prefixes]
        before = found[-1]
    return found


def _for_all(
    loops: Loops, shape: Sizes, walked: Callable[[UOp, Part], UOp], serial: Callable[[UOp, UOp], UOp]
) -> list[UOp]:
    """The effects of a kernel for all rows: vectorised for wide rows, serial per column for narrow ones."""
    outer, _, inner = shape
    o = loops.over(outer)
    if inner < MIN_COLUMNS:
        i = loops.over(inner)
        return [serial(o, i).end(i).end(o)]
    return [UOp.group(*(walked(o, part) for part in parts_of(inner))).end(o)]


# ---------------------------------------------------------------- extremes


@functools.lru_cache(MAX_KERNELS)
def extremes_kernel(op: Op, dtype: DType, shape: Sizes) -> UOp:
    _, size, inner = shape
    values, indices = make_argument(0, dtype, shape), make_argument(1, INDEX, shape)
    x = make_argument(2, dtype, shape)
    identity = reduce_identity(op, dtype)
    loops = Loops()

    def replaces(value: UOp, best: UOp) -> UOp:
        # Not `>=`: that is the negation of `<`, and true where the extreme is NaN.
        found = (best < value if op is Ops.MAX else value < best) | value.eq(best)
        return found | value.ne(value) if dtype.is_float else found

    def walked(o: UOp, part: Part) -> UOp:
        block = loops.over(part.blocks)
        best, index = (loops.memory(part.width, kind, o, block) for kind in (dtype, INDEX))
        first, second = loops.over(part.width), loops.over(part.width)
        best, index = best[first].set(identity, end=first), index[second].set(0, end=second)
        k, step, lane = loops.over(size), loops.over(part.width // part.lanes), loops.lanes(part.lanes)
        at = step * part.lanes + lane
        column = part.start + block * part.width + at
        value, old, old_index = x[o, k, column].load(), best.after(k).after(step)[at], index.after(k).after(step)[at]
        is_new = replaces(value, old.load())
        new, new_index = is_new.where(value, old.load()), is_new.where(k.cast(INDEX), old_index.load())
        held = UOp.group(old.store(new), old_index.store(new_index))
        written = UOp.group(values[o, k, column].store(new), indices[o, k, column].store(new_index))
        return UOp.group(held, written).end(lane).end(step).end(k).end(block)

    def element(best: UOp, index: UOp, o: UOp, k: UOp, i: UOp) -> UOp:
        """The effect of one element on the registers, which are replaced in a loop of zero or one iterations, and on
        the outputs."""
        value = x[o, k, i].load()
        times = loops.over(replaces(value, best[0].load()).where(1, 0).cast(dtypes.index))
        new = UOp.group(best.after(times)[0].store(value), index.after(times)[0].store(k.cast(INDEX))).end(times)
        held = (best.after(new)[0].load(), index.after(new)[0].load())
        return UOp.group(new, values[o, k, i].store(held[0]), indices[o, k, i].store(held[1]))

    def serial(o: UOp, i: UOp) -> UOp:
        best = loops.memory(1, dtype, o, i)[0].set(identity)
        index = loops.memory(1, INDEX, o, i)[0].set(0)
        effects: list[UOp] = []
        start = 0
        if inner == 1 and size >= MIN_COMPARED:
            start = size // COMPARED * COMPARED
            effects.append(compared(best, index, o, i))
            best, index = best.after(*effects), index.after(*effects)
        if start < size:
            k = loops.over(size - start)
            effects.append(element(best.after(k), index.after(k), o, start + k, i).end(k))
        return UOp.group(*effects)

    def compared(best: UOp, index: UOp, o: UOp, i: UOp) -> UOp:
        """Blocks of a row. A block in which the extreme does not change is filled with it."""
        block, lane = loops.over(size // COMPARED), loops.lanes(COMPARED)
        start = block * COMPARED
        best, index = best.after(block), index.after(block)
        value, so_far = x[o, start + lane, i].load(), best[0].load()
        # False for NaN on either side: a NaN extreme falls back to single elements.
        is_kept = value < so_far if op is Ops.MAX else value > so_far
        kept = is_kept.where(const(dtypes.int32, 0), const(dtypes.int32, 1))
        flag = loops.memory(1, dtypes.int32, o, i, block)
        flag = flag[0].set(UOp(Ops.REDUCE, dtypes.int32, (kept, lane), Ops.MAX))
        is_changed = flag[0].load() > 0
        k = loops.over(is_changed.where(COMPARED, 0).cast(dtypes.index))
        changed = element(best.after(k), index.after(k), o, start + k % COMPARED, i).end(k)
        once, filled = loops.over(is_changed.where(0, 1).cast(dtypes.index)), loops.lanes(COMPARED)
        same, same_index = (memory.after(changed).after(once)[0].load() for memory in (best, index))
        stores = values[o, start + filled, i].store(same), indices[o, start + filled, i].store(same_index)
        return UOp.group(changed, UOp.group(*stores).end(filled).end(once)).end(block)

    return sink(f"running_{op.name.lower()}", _for_all(loops, shape, walked, serial), 2)
