"""What attention in blocks and in work-groups share. In: the facts of a call, sizes, rows of a dense source. Out: nodes
of one kernel, loops and slots numbered as they are made. `block_attention`, `group_attention` and their gradients
compute with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple, record
from tilewright.graph.kernels.attention.attention import MINUS_INFINITY, base_two
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, as_node, ceil_div, is_multiple
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const

# Ids of barriers. A value is then stored and loaded, where it would be recomputed by its reader otherwise.
SCORED, FOLDED, BASED, WEIGHED, SUMMED, FILLED, SLOPED = range(7)


@record
class AttentionCall:
    """Facts of a call. Queries, keys, values and results are dense, (batch, heads, time, features). `shared` heads of
    queries have the same keys; `mask` are the strides of a mask along batch, head, query and key, None where it is
    broadcast; `dropout` is the probability to drop a weight."""

    dtype: DType  # of sums
    batch: int
    heads: int
    shared: int
    queries: Size
    keys: Size
    features: int  # of queries and keys
    value_features: int
    scale: float  # times a dot product gives a score
    is_causal: bool
    mask: tuple[Size | None, ...] | None
    dropout: float

    @property
    def key_heads(self) -> int:
        return self.heads // self.shared

    def extra_arguments(self, others: Sequence[UOp]) -> tuple[UOp | None, UOp | None]:
        """The mask and the state of the random numbers, where the call has them."""
        rest = list(others)
        return rest.pop(0) if self.mask is not None else None, rest.pop(0) if self.dropout else None

    def masked(self, score: UOp, mask: UOp, indices: Sequence[UOp], valid: Sequence[UOp]) -> UOp:
        """The score to base 2 with the mask's element at (batch, head, query, key), which is read where `valid`."""
        assert self.mask is not None
        position = sum((index * step for index, step in zip(indices, self.mask) if step is not None), index_const(0))
        found = load(mask, position, *valid)
        if mask.dtype.is_bool:
            return found.where(score, const(self.dtype, MINUS_INFINITY))
        return score + base_two(found.cast(self.dtype))

    def kept(self, state: UOp, head: UOp, query: UOp, key: UOp) -> UOp:
        """0 for a dropped weight; for others the factor that keeps the mean. The random bits of a weight depend on its
        index among the scores of all heads, as in `Tensor.rand`; the state is that after all of them."""
        scores = index_const(self.batch * self.heads) * self.queries * self.keys
        index, count = (each.cast(dtypes.uint64) for each in ((head * self.queries + query) * self.keys + key, scores))
        counter = index + load(state, index_const(1)) - count
        bits = counter.alu(Ops.THREEFRY, load(state, index_const(0)))
        digits = dtypes.float32.mantissa_bits + 1
        uniform = bits.alu(Ops.SHR, const(dtypes.uint64, 64 - digits)).cast(dtypes.int32).cast(dtypes.float32)
        is_dropped = uniform * 2.0**-digits < self.dropout
        return is_dropped.where(const(self.dtype, 0.0), const(self.dtype, 1 / (1 - self.dropout)))


def query_steps(call: Any, before: UOp, head: UOp, loop: Callable[[UOp], UOp]) -> tuple[UOp, UOp, UOp]:
    """The loop over tiles of queries of all heads that share the keys of `head`; the head and the first query of a
    step. In a causal call, tiles `before` the first key of a work-group are skipped."""
    count, skipped = as_node(ceil_div(call.queries, call.columns)), index_const(0)
    if call.is_causal:
        skipped = before.minimum(count)
        count = count - skipped
    step = loop(count * call.shared)
    if call.shared == 1:
        return step, head, (step + skipped) * call.columns
    # Where the count is 0 the loop does not run; the divisor must not be 0 even then.
    count = count.maximum(index_const(1))
    return step, head * call.shared + step // count, (step % count + skipped) * call.columns


class Rows(NamedTuple):
    """The queries of a block: the first, how many, how many there are in all, and the loops around the block."""

    first: UOp
    size: int
    all: Size
    loops: tuple[UOp, ...]

    def valid(self, row: UOp) -> tuple[UOp, ...]:
        return () if is_multiple(self.all, self.size) else (self.first + row < self.all,)


class Builder:
    """The loops and the memory of one kernel, numbered as they are made."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self._loops = 0
        self._slots = 0

    def over(self, size: Size, kind: AxisType = AxisType.LOOP) -> UOp:
        self._loops += 1
        return UOp(Ops.RANGE, dtypes.index, (as_node(size),), Axis((self._loops - 1,), kind))

    def tile(self, size: int) -> UOp:
        return self.over(size, AxisType.UPCAST)

    def summed(self, size: Size) -> UOp:
        return self.over(size, AxisType.REDUCE)

    def scratch(self, size: int) -> UOp:
        """Memory of a core."""
        self._slots += 1
        return UOp(Ops.DEFINE_LOCAL, self.dtype, (), ParamArg(self._slots - 1, size))

    def number(self, value: float) -> UOp:
        return const(self.dtype, value)

    def fold(self, op: Op, value: UOp, *axes: UOp) -> UOp:
        return UOp(Ops.REDUCE, self.dtype, (value, *axes), op)

    def filled(self, memory: UOp, start: UOp, size: Size, lanes: int, value: float, *loops: UOp) -> UOp:
        """The memory in an iteration of the loops, with `size` elements from `start` on equal to the value."""
        step, lane = self.over(size // lanes), self.tile(lanes)
        effect = store(after(memory, *loops), start + step * lanes + lane, self.number(value))
        return after(memory, barrier(FILLED, end(effect, loops=(step, lane))))

    def copied(
        self,
        memory: UOp,
        source: UOp,
        start: UOp,
        rows: Rows,
        width: int,
        lanes: int,
        scale: float = 1.0,
        last: float = 0.0,
        factors: UOp | None = None,
    ) -> UOp:
        """The memory with the rows of a dense source, scaled, each by its own of the `factors`; `last` after the last
        row."""
        row, step, lane = self.over(rows.size), self.over(width // lanes), self.tile(lanes)
        column = step * lanes + lane
        value = load(source, (start + rows.first + row) * width + column, *rows.valid(row))
        scaled = value if scale == 1 else value * self.number(scale)
        scaled = scaled if factors is None else scaled * load(factors, row)
        for is_row in rows.valid(row) if last else ():
            scaled = is_row.where(scaled, self.number(last))
        effect = store(after(memory, *rows.loops), row * width + column, scaled)
        return after(memory, barrier(FILLED, end(effect, loops=(row, step, lane))))
