"""Tiles of attention that the threads of a work-group share. In: the facts of a call, matrices in memory. Out: nodes of
one kernel: matrices staged through local memory, their products in registers. `group_attention` and its gradients
compute with them.

A work-group has `rows` rows of one operand of one head, and loops over tiles of `columns` rows of the other. Thread
(y, x) has the scores of some adjacent rows, and of columns x, x + column_threads, ... Both products stage a part of
their operands at a time, so that local memory does not depend on the number of features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.records import NamedTuple, record
from tilewright.graph.kernels.attention.block_builder import AttentionCall, Builder
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, ceil_div, is_multiple
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp

# The id of the barrier after rows to be weighed are staged; those before tiles are overwritten have higher ones.
WEIGHTS, BEFORE = 1, 16
# Steps of a sum that are unrolled.
UNROLLED = 8
# Copies of a thread that are unrolled.
MAX_UNROLLED = 8
# Columns of a result that a work-group accumulates in registers; work-groups of further columns recompute the scores.
MAX_WIDTH = 256


@record
class GroupAttention(AttentionCall):
    """Facts of a call, and its tiles."""

    row_threads: int
    column_threads: int
    own_rows: int  # of the scores of a thread
    own_columns: int
    depth: int  # features that are staged at a time
    staged: int  # rows that are staged at a time to be multiplied by weights

    @property
    def rows(self) -> int:
        return self.row_threads * self.own_rows

    @property
    def columns(self) -> int:
        return self.column_threads * self.own_columns

    def width(self, features: int) -> int:
        """Columns of a result that a work-group computes, in whole vectors of threads."""
        return min(MAX_WIDTH, -(-features // self.column_threads) * self.column_threads)

    def parts(self, *features: int) -> int:
        """The number of work-groups that share the columns of a result."""
        return max(-(-each // self.width(each)) for each in features)

    def tile_sizes(self, *features: int) -> tuple[int, ...]:
        """Elements of the two staged tiles. Rows that are multiplied by weights, of these features, are in the second
        one, and in the first one where there are two kinds of them."""
        widths = [self.staged * self.width(each) for each in features] + [0]
        return max(self.depth * (self.rows + 1), widths[1]), max(self.depth * (self.columns + 1), widths[0])

    def local_bytes(self) -> int:
        """Local memory of the kernel that needs the most, the one for the gradients of keys and values."""
        tiles = sum(self.tile_sizes(self.features, self.value_features))
        sums = self.rows * self.column_threads
        return (tiles + max(2 * self.rows * self.columns, self.rows * self.columns + sums)) * self.dtype.itemsize


class Matrix(NamedTuple):
    """Dense rows of features: the memory, the index of the first element, and the number of rows."""

    memory: UOp
    start: UOp
    rows: Size
    features: int

    def valid(self, row: UOp, tile: int) -> tuple[UOp, ...]:
        """The mask of rows, which are taken in tiles."""
        return () if is_multiple(self.rows, tile) else (row < self.rows,)


class Products(NamedTuple):
    """The products in a thread's registers: their columns in the tile, and the axes of these columns."""

    value: UOp
    column: UOp
    columns: UOp


class GroupBuilder(Builder):
    """The axes of one kernel. A work-group has a tile of the `count` rows of a head; tiles are numbered from the last
    one where `is_reversed`."""

    def __init__(self, call: GroupAttention, heads: int, count: Size, parts: int, is_reversed: bool) -> None:
        super().__init__(call.dtype)
        self.call = call
        self.parts = parts
        self._registers = 0
        tiles = ceil_div(count, call.rows)
        grid = [self.over(size, AxisType.GLOBAL) for size in (call.batch * heads, tiles, parts)]
        head, number, self.part = grid
        self.batch, self.head = head // heads, head % heads
        self.first = ((tiles - 1) - number if is_reversed else number) * call.rows
        self.y, self.x = (self.over(size, AxisType.LOCAL) for size in (call.row_threads, call.column_threads))
        self.own = self.tile(call.own_rows)
        self.tile_row = self.y * call.own_rows + self.own
        self.row = self.first + self.tile_row
        self.threads = (self.y, self.x)
        self.axes = (*self.threads, *grid)

    def register(self, size: int) -> UOp:
        self._registers += 1
        return UOp(Ops.DEFINE_REG, self.dtype, (), ParamArg(self._registers - 1, size))

    def tiles(self, *features: int) -> tuple[UOp, UOp]:
        """Local memory of the two staged tiles."""
        left, right = (self.scratch(size) for size in self.call.tile_sizes(*features))
        return left, right

    def closed(self, effect: UOp, *axes: UOp) -> UOp:
        """The effect of all threads."""
        return end(effect, loops=(*axes, *self.threads))

    # ------------------------------------------------------------ staging

    def _shares(self, count: int) -> tuple[UOp, UOp, tuple[UOp, ...]]:
        """The index of an element that a thread copies, the loop over them, and the mask of the last ones."""
        threads = self.call.row_threads * self.call.column_threads
        rounds = -(-count // threads)
        turn = self.tile(rounds) if rounds <= MAX_UNROLLED else self.over(rounds)
        index = turn * threads + self.y * self.call.column_threads + self.x
        return index, turn, () if count % threads == 0 else (index < count,)

    def stage_transposed(self, tile: UOp, matrix: Matrix, first: UOp, rows: int, chunk: UOp) -> UOp:
        """The effect tile[feature, row] = matrix[first + row, chunk * depth + feature]; zeros past its ends. Lines of
        the tile are padded by one element: threads store to different banks."""
        depth = self.call.depth
        index, turn, inside = self._shares(rows * depth)
        inner, row = index % depth, index // depth
        feature = chunk * depth + inner
        valid = [*inside, *matrix.valid(first + row, rows)]
        if matrix.features % depth:
            valid.append(feature < matrix.features)
        value = load(matrix.memory, matrix.start + (first + row) * matrix.features + feature, *valid)
        return self.closed(store(tile, inner * (rows + 1) + row, value.cast(self.dtype), *inside), turn)

    def stage_rows(self, tile: UOp, matrix: Matrix, first: UOp) -> UOp:
        """The effect tile[row, column] = matrix[first + row, part * width + column]; zeros past its ends."""
        width = self.call.width(matrix.features)
        index, turn, inside = self._shares(self.call.staged * width)
        row, inner = index // width, index % width
        column = self.part * width + inner
        valid = [*inside, *matrix.valid(first + row, self.call.columns)]
        valid += self._valid_columns(matrix, column)
        value = load(matrix.memory, matrix.start + (first + row) * matrix.features + column, *valid)
        return self.closed(store(tile, index, value.cast(self.dtype), *inside), turn)

    def _valid_columns(self, matrix: Matrix, column: UOp) -> tuple[UOp, ...]:
        is_whole = matrix.features == self.call.width(matrix.features) * self.parts
        return () if is_whole else (column < matrix.features,)

    # ------------------------------------------------------------ products

    def _steps(self, count: int) -> tuple[UOp, tuple[UOp, UOp]]:
        """The index of a summed element and its loops: an accumulator is updated several times in an iteration."""
        unrolled = math.gcd(count, UNROLLED)
        outer, inner = self.summed(count // unrolled), self.over(unrolled, AxisType.UNROLL)
        return outer * unrolled + inner, (outer, inner)

    def multiply(
        self,
        tiles: Sequence[UOp],
        left: Matrix,
        right: Matrix,
        first: UOp,
        number: int,
        earlier: tuple[UOp, ...],
        alike: Products | None = None,
    ) -> Products:
        """The own rows of `left` times the rows of `right` from `first` on. `tiles` may be overwritten after `earlier`,
        `number` is that of the barrier after they are staged. A product `alike` has the same axis, so that elements can
        be combined."""
        call = self.call
        chunk, (step, steps) = self.summed(-(-left.features // call.depth)), self._steps(call.depth)
        free = barrier(number + BEFORE, *earlier, chunk)
        fresh = [after(tile, free) for tile in tiles]
        ready = barrier(
            number,
            self.stage_transposed(fresh[0], left, self.first, call.rows, chunk),
            self.stage_transposed(fresh[1], right, first, call.columns, chunk),
        )
        columns = self.tile(call.own_columns) if alike is None else alike.columns
        column = columns * call.column_threads + self.x
        own = load(after(fresh[0], ready), step * (call.rows + 1) + self.tile_row)
        other = load(after(fresh[1], ready), step * (call.columns + 1) + column)
        return Products(self.fold(Ops.ADD, own * other, chunk, *steps), column, columns)

    def weigh(
        self,
        weights: Sequence[UOp],
        tiles: Sequence[UOp],
        matrices: Sequence[Matrix],
        first: UOp,
        earlier: UOp,
        sums: tuple[UOp, ...] = (),
    ) -> list[Products]:
        """For each matrix the sum over the rows from `first` on of a weight in local memory times the row, also over
        the loops `sums`. The tiles may be overwritten after `earlier`."""
        call = self.call
        chunk, (step, steps) = self.summed(call.columns // call.staged), self._steps(call.staged)
        free = barrier(WEIGHTS + BEFORE, earlier, chunk)
        widths = [call.width(each.features) for each in matrices]
        fresh = [after(tile, free) for tile in tiles]
        start = first + chunk * call.staged
        copies = [self.stage_rows(*each, start) for each in zip(fresh, matrices)]
        ready = barrier(WEIGHTS, *copies)
        found = []
        for memory, tile, width in zip(weights, fresh, widths):
            columns = self.tile(width // call.column_threads)
            column = columns * call.column_threads + self.x
            weight = load(memory, self.tile_row * call.columns + chunk * call.staged + step)
            value = weight * load(after(tile, ready), step * width + column)
            total = self.fold(Ops.ADD, value, *sums, chunk, *steps)
            found.append(Products(total, self.part * width + column, columns))
        return found

    def store_result(self, out: Matrix, found: Products, value: UOp) -> UOp:
        """The effect that writes the own rows of a result."""
        valid = (*out.valid(self.row, self.call.rows), *self._valid_columns(out, found.column))
        position = out.start + self.row * out.features + found.column
        effect = store(out.memory, position, value.cast(out.memory.dtype), *valid)
        return end(effect, loops=(self.own, found.columns, *self.axes))
