"""Wide stores of products in registers. In: a `TileChain`. Out: its stores in which each of the 4 threads of a
row writes 2 of every 8 columns. These threads exchange their columns, so that each stores 8 adjacent ones at once."""

from __future__ import annotations

from tilewright.backends.cuda.boxes import VECTOR_BYTES
from tilewright.backends.cuda.chain_plan import TileChain
from tilewright.backends.cuda.chain_text import operand_of
from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.codegen.tiles import tile_value
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

# Threads that share a row, and columns of which each of them has a pair.
QUAD, COLUMNS, PAIR = 4, 8, 2

STORE_WIDE = """\
__device__ inline void exchange(word& low, word& high, bool is_high, int distance) {
  const word received = __shfl_xor_sync(0xffffffffu, is_high ? low : high, distance);
  if (is_high) low = received; else high = received;
}
template <typename T> __device__ inline void store_wide(T* to, word a, word b, word c, word d, int thread, bool valid) {
  exchange(a, b, thread & 1, 1);
  exchange(c, d, thread & 1, 1);
  exchange(a, c, thread & 2, 2);
  exchange(b, d, thread & 2, 2);
  if (valid) *(uint4*)(to + thread % 4 * 6) = uint4{a, b, c, d};
}"""


class WideStore(NamedTuple):
    """The value that is rounded and stored, and the axes of groups of 8 columns and of pairs."""

    value: UOp
    group: UOp
    pair: UOp


def find_wide_stores(chain: TileChain) -> dict[UOp, WideStore]:
    body = chain.program.body
    end = next((n for n, node in enumerate(body) if node.op is Ops.END and node.src[0] is chain.loop), len(body))
    found = {node: _find_wide(chain, node) for node in body[end:] if node.op is Ops.STORE}
    return {node: wide for node, wide in found.items() if wide is not None}


def _find_wide(chain: TileChain, store: UOp) -> WideStore | None:
    index, value = store.src[:2]
    operand = operand_of(chain.dots[0])
    if value.op is Ops.BITCAST:  # memory may hold the dtype as its bits
        value = value.src[0]
    is_rounded = value.op is Ops.CAST and value.dtype is operand and value.src[0].dtype is dtypes.float32
    if store.arg is not None or memory_of(index).op is not Ops.PARAM or not is_rounded:
        return None
    form, threads = affine(index.src[1]), chain.program.local_ranges
    lanes = VECTOR_BYTES // operand.itemsize
    tiles = {atom: step for atom, step in form.terms.items() if any(axis.arg.kind.is_tile for axis in atom.ranges)}
    pair = next((axis for axis, step in tiles.items() if step == 1 and _is_axis(axis, PAIR)), None)
    group = next((axis for axis, step in tiles.items() if step == COLUMNS and _is_axis(axis, QUAD)), None)
    if pair is None or group is None or len(threads) != 1 or any(atom.op is not Ops.RANGE for atom in tiles):
        return None
    # In memory a thread's pairs follow those of the thread before it; all else is the same for the four of them.
    rest = {atom: step for atom, step in form.terms.items() if atom not in (pair, group)}
    own = [atom for atom, step in rest.items() if step == PAIR and _is_number_in_quad(atom, threads[0])]
    if len(own) != 1:
        return None
    del rest[own[0]]
    masks = [affine(number) for mask in index.src[2:] for number in _compared(mask)]
    is_shared = all(_is_shared(each, threads[0]) for each in (Affine(rest, 0), *masks))
    is_masked = any({pair, group} & set(mask.ranges) for mask in index.src[2:])
    is_aligned = not any(step % lanes for step in (*rest.values(), form.constant))
    return WideStore(value.src[0], group, pair) if is_shared and is_aligned and not is_masked else None


def _is_axis(atom: UOp, multiple: int) -> bool:
    return atom.op is Ops.RANGE and atom.arg.kind is AxisType.UPCAST and size_of(atom) % multiple == 0


def _compared(mask: UOp) -> tuple[UOp, ...]:
    """The integers that a mask compares."""
    if mask.op is Ops.AND:
        return tuple(number for part in mask.src for number in _compared(part))
    return mask.src


def _values(atom: UOp, thread: UOp) -> list[int] | None:
    """The value of an expression for each thread; None where it depends on other axes."""
    if any(axis is not thread for axis in atom.ranges):
        return None
    return [tile_value(atom, {thread: number}) for number in range(size_of(thread))]


def _is_number_in_quad(atom: UOp, thread: UOp) -> bool:
    return thread in atom.ranges and _values(atom, thread) == [n % QUAD for n in range(size_of(thread))]


def _is_shared(form: Affine, thread: UOp) -> bool:
    """Whether a number is the same for the threads of a row."""
    for atom in form.terms:
        if thread not in atom.ranges:
            continue
        values = _values(atom, thread)
        if values is None or any(value != values[n - n % QUAD] for n, value in enumerate(values)):
            return False
    return True
