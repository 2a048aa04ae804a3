"""The loops and the memory of attention in blocks. In: sizes, rows of a dense source. Out: nodes of one kernel, loops
and slots numbered as they are made. `block_attention` and its gradient compute with them."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const

# Ids of barriers. A value is then stored and loaded, where it would be recomputed by its reader otherwise.
SCORED, FOLDED, BASED, WEIGHED, SUMMED, FILLED, SLOPED = range(7)


# A number of rows that is known, or an expression of variables.
Size = int | UOp


def ceil_div(size: Size, step: int) -> Size:
    return -(-size // step) if isinstance(size, int) else (size + (step - 1)) // step


def greatest(size: Size) -> int:
    return size if isinstance(size, int) else int(size.vmax)


def is_multiple(size: Size, step: int) -> bool:
    """Whether the size is a multiple of the step for all values of its variables; no is always safe."""
    return isinstance(size, int) and size % step == 0


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

    def over(self, size: int | UOp, kind: AxisType = AxisType.LOOP) -> UOp:
        self._loops += 1
        count = index_const(size) if isinstance(size, int) else size
        return UOp(Ops.RANGE, dtypes.index, (count,), Axis((self._loops - 1,), kind))

    def tile(self, size: int) -> UOp:
        return self.over(size, AxisType.UPCAST)

    def summed(self, size: int | UOp) -> UOp:
        return self.over(size, AxisType.REDUCE)

    def scratch(self, size: int) -> UOp:
        """Memory of a core."""
        self._slots += 1
        return UOp(Ops.DEFINE_LOCAL, self.dtype, (), ParamArg(self._slots - 1, size))

    def number(self, value: float) -> UOp:
        return const(self.dtype, value)

    def fold(self, op: Op, value: UOp, *axes: UOp) -> UOp:
        return UOp(Ops.REDUCE, self.dtype, (value, *axes), op)

    def filled(self, memory: UOp, start: UOp, size: int, lanes: int, value: float, *loops: UOp) -> UOp:
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
