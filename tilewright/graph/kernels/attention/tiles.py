"""Building blocks of kernels that multiply tiles. In: a tensor core. Out: nodes that stage a tile in local memory,
multiply two tiles (TILE_DOT) and reduce the rows of a product. `attention.py` builds kernels from them.

A tile of queries, keys or values is rows by features, stored in blocks of `line` features, one after another. The same
memory can be an operand summed over its features, or over its rows.

Where the core multiplies parts, rows in memory have the features of each part one after another, padded to whole lines
(`split.py`), and a tile has a plane of each part."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import TensorCore, TileLayout
from tilewright.graph.kernels.nodes import end, load, store
from tilewright.graph.kernels.origin import Size, as_node, is_multiple
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg, TileDotArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const

VECTOR_BYTES = 16
# A warp has 16 rows of a product; a thread has two of them, 8 apart, and of every 8 columns two adjacent ones.
WARP, WARP_ROWS, QUAD = 32, 16, 4
ROW_STEP, COLUMN_STEP, PAIR = 8, 8, 2
# Summed elements per instruction.
STEP = 16
FLOAT = dtypes.float32


class Matrix(NamedTuple):
    """Rows of features in memory: the position of the first element, the stride of rows, and their number."""

    memory: UOp
    start: UOp
    step: Size
    rows: Size


class Product(NamedTuple):
    """The elements of a product in a thread's registers; `columns` are the axes along which it has several in a row."""

    value: UOp
    column: UOp
    columns: tuple[UOp, UOp]

    @property
    def own(self) -> UOp:
        """The part of a column's index that is the same for all threads."""
        return self.columns[0] * COLUMN_STEP + self.columns[1]


class TileBuilder:
    """Builds the axes and nodes of one kernel, whose work-groups compute products of `rows` rows: 16 per warp."""

    def __init__(self, core: TensorCore, rows: int) -> None:
        assert core.staged_line_bytes
        self.operand = core.multiplied
        self.parts = core.parts
        self.rows = rows
        self.line = core.staged_line_bytes // self.operand.itemsize
        self.family = f"{core.name.partition('_')[0]}_{self.operand.name}"
        self.threads = rows // WARP_ROWS * WARP
        self._numbers: dict[object, int] = {}
        self.thread = self.axis(self.threads, AxisType.LOCAL)
        self.half = self.axis(2, AxisType.UPCAST)
        self.row = self.thread // WARP * WARP_ROWS + self.thread % WARP // QUAD + self.half * ROW_STEP

    def _number(self, kind: object) -> int:
        found = self._numbers.get(kind, 0)
        self._numbers[kind] = found + 1
        return found

    def axis(self, size: Size, kind: AxisType) -> UOp:
        return UOp(Ops.RANGE, dtypes.index, (as_node(size),), Axis((self._number(Ops.RANGE),), kind))

    # ------------------------------------------------------------ tiles in local memory

    def width(self, features: int) -> int:
        """Features of a row in local memory, rounded up to whole lines."""
        return -(-features // self.line) * self.line

    def tile(self, rows: int, features: int) -> UOp:
        size = self.parts * rows * self.width(features)
        return UOp(Ops.DEFINE_LOCAL, self.operand, (), ParamArg(self._number(Ops.DEFINE_LOCAL), size))

    def summed_features(self, rows: int) -> TileLayout:
        return TileLayout(rows, 0, self.line, 1, self.line, rows * self.line)

    def summed_rows(self, rows: int) -> TileLayout:
        return TileLayout(self.line, rows * self.line, 1, self.line)

    def stage(self, tile: UOp, matrix: Matrix, rows: int, features: int, first: UOp) -> UOp:
        """The effect that copies rows `first`, `first + 1`, ... of a matrix to a tile; zeros past its end."""
        lanes, width = VECTOR_BYTES // self.operand.itemsize, self.width(features)
        vectors, per_line = width // lanes, self.line // lanes
        across = math.gcd(vectors, self.threads)  # threads that copy a row, each a vector at a time
        together = self.threads // across
        turn, lane = self.axis(rows // together, AxisType.UPCAST), self.axis(lanes, AxisType.UPCAST)
        planes = () if self.parts == 1 else (self.axis(self.parts, AxisType.UPCAST),)
        pieces = () if across == vectors else (self.axis(vectors // across, AxisType.UPCAST),)
        vector, row = self.thread % across, self.thread // across + turn * together
        for piece in pieces:
            vector = vector + piece * across
        valid = []
        if not is_multiple(matrix.rows, rows):
            valid.append(first + row < matrix.rows)
        if self.parts == 1 and features % self.line:
            valid.append(vector < features // lanes)
        position = matrix.start + (first + row) * matrix.step + vector * lanes + lane
        to = row * self.line + vector % per_line * lanes + vector // per_line * (rows * self.line) + lane
        for plane in planes:
            position, to = position + plane * width, to + plane * (rows * width)
        stored = store(tile, to, load(matrix.memory, position, *valid))
        return end(stored, loops=(turn, lane, *planes, *pieces, self.thread))

    def vector(self) -> UOp:
        """Local memory with a number for each thread."""
        return UOp(Ops.DEFINE_LOCAL, FLOAT, (), ParamArg(self._number(Ops.DEFINE_LOCAL), self.threads))

    def stage_vector(self, vector: UOp, memory: UOp, start: UOp, size: int, *valid: UOp) -> UOp:
        """The effect that copies `size` numbers from `start`; zeros after them and where they are not valid."""
        inside = () if size == self.threads else (self.thread < size,)
        value = load(memory, start + self.thread, *inside, *valid)
        return end(store(vector, self.thread, value), loops=(self.thread,))

    # ------------------------------------------------------------ products

    def _columns(self, count: int) -> tuple[UOp, tuple[UOp, UOp]]:
        axes = (self.axis(count // COLUMN_STEP, AxisType.UPCAST), self.axis(PAIR, AxisType.UPCAST))
        return axes[0] * COLUMN_STEP + self.thread % QUAD * PAIR + axes[1], axes

    def _core(self, columns: int) -> str:
        return f"{self.family}_{self.rows}x{columns}"

    def multiply(self, left: UOp, right: UOp, columns: int, features: int, alike: Product | None = None) -> Product:
        """Rows of the left tile by rows of the right one, summed over the features. A product `alike` has the same
        axes, so that their elements can be combined."""
        column, axes = self._columns(columns) if alike is None else (alike.column, alike.columns)
        length = -(-features // STEP) * STEP
        layouts = (self.summed_features(self.rows), self.summed_features(columns))
        argument = TileDotArg(self._core(columns), length, *layouts, self.parts)
        return Product(UOp(Ops.TILE_DOT, FLOAT, (left, right, self.row, column), argument), column, axes)

    def multiply_held(self, left: UOp, held: Product, right: UOp, rows: int, features: int) -> Product:
        """The value in registers, in the layout of `held`, rounded or in parts, times the rows of a tile."""
        column, axes = self._columns(-(-features // COLUMN_STEP) * COLUMN_STEP)
        count = -(-features // COLUMN_STEP) * COLUMN_STEP
        argument = TileDotArg(self._core(count), rows, None, self.summed_rows(rows), self.parts)
        sources = (left, right, self.row, column, self.row, held.column, *held.columns)
        return Product(UOp(Ops.TILE_DOT, FLOAT, sources, argument), column, axes)

    def fold_row(self, op: Op, value: UOp, columns: tuple[UOp, ...]) -> UOp:
        """The reduction over the elements of a row in one thread."""
        return UOp(Ops.REDUCE, FLOAT, (value, *columns), op)

    def fold_quad(self, op: Op, value: UOp) -> UOp:
        """The reduction over the threads that share a row, for each of them."""
        return UOp(Ops.WARP_FOLD, FLOAT, (value,), (op, QUAD))

    # ------------------------------------------------------------ registers

    def register(self, size: int) -> UOp:
        return UOp(Ops.DEFINE_REG, FLOAT, (), ParamArg(self._number(Ops.DEFINE_REG), size))


def number(value: float) -> UOp:
    return const(FLOAT, value)
