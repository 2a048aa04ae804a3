"""Random tensor graphs. In: one integer. Out: a `Case`: nodes to realise over PARAM leaves, and the leaves' contents.

A case grows by steps. Each picks nodes made before, the latest ones most often so that graphs get deep, brings them to
one dtype and one shape by casts and movements, and applies an op: elementwise, comparison, WHERE, cast, bitcast,
movement, reduction, gather, IOTA, CONTIGUOUS, a copy to another device and back, an in-place update through a view.
The nodes that nobody used become the outputs, so that what they share is shared in the graph as well.

The same seed gives the same case in every process: nothing but `random.Random(seed)` and a NumPy generator made from it
decides. `describe` writes a case as text that `tilewright.graph.text.parse` reads."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.graph import build, marks
from tilewright.graph.interpreter.numpy_math import bitcast_array, cast_array, numpy_dtype
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.spec import Op, Shape
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

Array = NDArray[Any]

MAX_ELEMENTS = 2400
MAX_STEPS = 20
# Stand-ins for devices in the argument of a COPY: where the case runs, and any other place.
HOME, AWAY = "HOME", "AWAY"

_FLOAT_UNARY = (Ops.NEG, Ops.SQRT, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TRUNC, Ops.ROUND)
_FLOAT_BINARY = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.MIN)
_INT_BINARY = (
    *(Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN),
    *(Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR),
)
_BOOL_BINARY = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR)
_COMPARISONS = (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)
_SPECIAL_FLOATS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 448.0, 65504.0, 1e-40, -3e-8, 3e38, 1e-310)
_DTYPE_WEIGHTS: dict[DType, int] = {
    dtypes.float32: 14,
    dtypes.int32: 7,
    dtypes.float64: 5,
    dtypes.float16: 3,
    dtypes.bfloat16: 3,
    dtypes.bool: 3,
    dtypes.int64: 3,
    dtypes.uint8: 3,
    **dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.uint16, dtypes.uint32, dtypes.uint64), 2),
    **dict.fromkeys((dtypes.float8_e4m3, dtypes.float8_e5m2), 2),
}


@dataclass(frozen=True)
class Case:
    """`bindings` gives each PARAM below `outputs` its flat contents."""

    seed: int
    outputs: tuple[UOp, ...]
    bindings: dict[UOp, Array] = field(default_factory=dict)

    @property
    def sink(self) -> UOp:
        """One node above all outputs, for walking and showing."""
        return UOp(Ops.SINK, dtypes.void, self.outputs)


def make_case(seed: int) -> Case:
    """The case of a seed."""
    return _Generator(seed).make()


def describe(case: Case) -> str:
    """The graph as text, outputs named by the SINK, and the contents of its leaves."""
    lines = [f"seed {case.seed}", show(case.sink).rstrip()]
    for node in toposort(case.sink):
        if node.op is Ops.PARAM:
            lines.append(f"slot {node.arg.slot}: {node.dtype.name} {case.bindings[node].tolist()}")
    return "\n".join(lines)


class _Generator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.pool: list[UOp] = []
        self.bindings: dict[UOp, Array] = {}
        favourites = self.random.choices(
            list(_DTYPE_WEIGHTS), list(_DTYPE_WEIGHTS.values()), k=self.random.randint(1, 3)
        )
        self.dtypes = favourites
        # Some cases are long along one axis, so that loops are padded, vectorised and split.
        self.is_long = self.random.random() < 0.2
        self.steps: list[tuple[int, Callable[[], UOp | None]]] = [
            (28, self.binary),
            (10, self.unary),
            (6, self.comparison),
            (6, self.choice),
            (8, self.convert),
            (4, self.reinterpret),
            (20, self.movement),
            (13, self.reduction),
            (8, self.idiom),
            (5, self.gather),
            (3, self.counter),
            (3, self.stored),
            (5, self.update),
            (1, self.copy),
            (1, self.random_bits),
            (3, self.leaf),
        ]

    def make(self) -> Case:
        for _ in range(self.random.randint(1, 3)):
            self.pool.append(self.leaf())
        weights = [weight for weight, _ in self.steps]
        for _ in range(self.random.randint(2, MAX_STEPS)):
            _, step = self.random.choices(self.steps, weights)[0]
            made = step()
            if made is not None and math.prod(made.shape) <= MAX_ELEMENTS:
                self.pool.append(made)
        outputs = self.choose_outputs()
        used = set(toposort(*outputs))
        return Case(self.seed, outputs, {node: data for node, data in self.bindings.items() if node in used})

    def choose_outputs(self) -> tuple[UOp, ...]:
        """Up to three nodes that nothing uses; sometimes one that others use as well."""
        usable = [node for node in dict.fromkeys(self.pool) if not _is_leaf_view(node)]
        if not usable:
            last = self.pool[-1]
            usable = [build.alu(Ops.NEG, last)]
        used = {src for node in usable for src in toposort(node) if src is not node}
        ends = [node for node in reversed(usable) if node not in used]
        # The largest graphs first: most of what was made is then asked for.
        ends.sort(key=lambda node: -len(toposort(node)))
        chosen = ends[: self.random.choice((1, 2, 2, 3))]
        if self.random.random() < 0.2:
            chosen.append(self.random.choice(usable))
        return tuple(dict.fromkeys(chosen))

    # ------------------------------------------------------------ choices

    def dtype(self) -> DType:
        if self.random.random() < 0.85:
            return self.random.choice(self.dtypes)
        return self.random.choices(list(_DTYPE_WEIGHTS), list(_DTYPE_WEIGHTS.values()))[0]

    def size(self) -> int:
        return self.random.choice((1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9))

    def shape(self) -> Shape:
        rank = self.random.choices((0, 1, 2, 3, 4), (1, 5, 8, 5, 2))[0]
        sizes = [self.size() for _ in range(rank)]
        if rank and self.is_long and self.random.random() < 0.5:
            sizes[self.random.randrange(rank)] = self.random.randint(100, 300)
        if rank and self.random.random() < 0.01:
            sizes[self.random.randrange(rank)] = 0
        while math.prod(sizes) > MAX_ELEMENTS:
            sizes[sizes.index(min(s for s in sizes if s > 1))] = 1
        return tuple(sizes)

    def pick(self) -> UOp:
        if self.random.random() < 0.75:
            return self.random.choice(self.pool[-2:])
        return self.random.choice(self.pool)

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))

    # ------------------------------------------------------------ leaves

    def number(self, dtype: DType) -> Scalar:
        if dtype.is_bool:
            return self.random.random() < 0.5
        if dtype.is_float:
            if self.random.random() < 0.2:
                return self.random.choice(_SPECIAL_FLOATS)
            return self.random.choice((self.random.gauss(0, 2), float(self.random.randint(-9, 9))))
        limits = (int(dtype.min), int(dtype.max))
        return self.random.choice((0, 1, -1, 2, 3, 5, 7, 8, 16, 100, *limits, self.random.randint(*limits)))

    def constant(self, dtype: DType, shape: Shape) -> UOp:
        return build.const(dtype, cast_scalar(self.number(dtype), dtype), shape)

    def contents(self, dtype: DType, count: int) -> Array:
        """Numbers of one of several sorts: small whole ones, ordinary ones, special ones, any bits at all."""
        sort = self.random.random()
        if dtype.is_bool:
            return self.numbers.integers(0, 2, count).astype(np.bool_)
        if sort < 0.1:
            unsigned = np.dtype(f"uint{dtype.bits}")
            bits = self.numbers.integers(0, np.iinfo(unsigned).max, count, dtype=unsigned, endpoint=True)
            return bits if dtype.is_unsigned else bitcast_array(bits, dtype)
        if not dtype.is_float:
            low, high = (0 if dtype.is_unsigned else -9, 10) if sort < 0.7 else (int(dtype.min), int(dtype.max))
            return self.numbers.integers(low, high, count, dtype=numpy_dtype(dtype), endpoint=True)
        if sort < 0.45:
            return cast_array(self.numbers.integers(-4, 5, count).astype(np.float64), dtype)
        values = self.numbers.standard_normal(count) * self.random.choice((1.0, 1.0, 1.0, 30.0, 1e4))
        if sort > 0.75:
            places = self.numbers.random(count) < 0.25
            values[places] = self.numbers.choice(np.array(_SPECIAL_FLOATS), count)[places]
        return cast_array(values, dtype)

    def leaf(self, dtype: DType | None = None, shape: Shape | None = None) -> UOp:
        dtype = self.dtype() if dtype is None else dtype
        shape = self.shape() if shape is None else shape
        count = math.prod(shape)
        node = UOp(Ops.PARAM, dtype, (), ParamArg(len(self.bindings), count))
        self.bindings[node] = self.contents(dtype, count)
        return build.reshape(node, shape)

    # ------------------------------------------------------------ one dtype, one shape

    def as_dtype(self, node: UOp, dtype: DType) -> UOp:
        if node.dtype.bits == dtype.bits and not dtype.is_bool and self.random.random() < 0.15:
            return build.bitcast(node, dtype)
        return build.cast(node, dtype)

    def fit(self, node: UOp, shape: Shape) -> UOp:
        """The node's elements in a shape: broadcast, reshaped, cut or filled up."""
        if node.shape == shape:
            return node
        missing = len(shape) - len(node.shape)
        if missing >= 0 and all(old in (1, new) for old, new in zip(node.shape, shape[missing:])):
            return build.broadcast_to(node, shape)
        have, want = math.prod(node.shape), math.prod(shape)
        flat = build.reshape(node, (have,))
        if have > want:
            start = self.random.randint(0, have - want)
            flat = build.shrink(flat, ((start, start + want),))
        elif have and want % have == 0:
            flat = build.reshape(build.expand(build.reshape(flat, (1, have)), (want // have, have)), (want,))
        elif have < want:
            before = self.random.randint(0, want - have)
            flat = build.pad(flat, ((before, want - have - before),))
        return build.reshape(flat, shape)

    def operand(self, dtype: DType, shape: Shape) -> UOp:
        chance = self.random.random()
        if chance < 0.2:
            return self.constant(dtype, shape)
        alike = [node for node in self.pool if node.dtype is dtype]
        if alike and chance < 0.75:
            return self.fit(self.random.choice(alike), shape)
        if chance < 0.82:
            return self.leaf(dtype, shape)
        return self.fit(self.as_dtype(self.pick(), dtype), shape)

    # ------------------------------------------------------------ elementwise

    def binary(self) -> UOp:
        left = self.pick()
        right = self.operand(left.dtype, left.shape)
        kinds = _FLOAT_BINARY if left.dtype.is_float else _BOOL_BINARY if left.dtype.is_bool else _INT_BINARY
        operands = [left, right]
        if self.random.random() < 0.3:
            operands.reverse()
        return build.alu(self.random.choice(kinds), *operands)

    def unary(self) -> UOp:
        node = self.pick()
        return build.alu(self.random.choice(_FLOAT_UNARY) if node.dtype.is_float else Ops.NEG, node)

    def comparison(self) -> UOp:
        left = self.pick()
        return build.alu(self.random.choice(_COMPARISONS), left, self.operand(left.dtype, left.shape))

    def choice(self) -> UOp:
        yes = self.pick()
        condition = self.operand(dtypes.bool, yes.shape)
        return build.where(condition, yes, self.operand(yes.dtype, yes.shape))

    def convert(self) -> UOp:
        return self.as_dtype(self.pick(), self.dtype())

    def reinterpret(self) -> UOp | None:
        node = self.pick()
        alike = [dtype for dtype in _DTYPE_WEIGHTS if dtype.bits == node.dtype.bits and dtype is not node.dtype]
        return build.bitcast(node, self.random.choice(alike)) if alike else None

    def random_bits(self) -> UOp:
        node = self.pick()
        counter = self.fit(build.cast(node, dtypes.uint64), node.shape)
        return build.alu(Ops.THREEFRY, counter, self.operand(dtypes.uint64, node.shape))

    # ------------------------------------------------------------ movement

    def movement(self) -> UOp:
        node = self.pick()
        for _ in range(self.random.randint(1, 3)):
            moved = self.one_movement(node, can_grow=True)
            if math.prod(moved.shape) <= MAX_ELEMENTS:
                node = moved
        return node

    def one_movement(self, node: UOp, can_grow: bool) -> UOp:
        rank = len(node.shape)
        kinds: list[Op] = [Ops.RESHAPE]
        if rank:
            kinds += [Ops.PERMUTE, Ops.SHRINK, Ops.FLIP]
            if can_grow:
                kinds += [Ops.PAD, Ops.EXPAND]
        kind = self.random.choice(kinds)
        if kind is Ops.RESHAPE:
            return build.reshape(node, self.other_shape(node.shape))
        if kind is Ops.PERMUTE:
            return build.permute(node, tuple(self.random.sample(range(rank), rank)))
        if kind is Ops.FLIP:
            return build.flip(node, self.axes(rank))
        if kind is Ops.SHRINK:
            return build.shrink(node, tuple(self.cut(size) for size in node.shape))
        if kind is Ops.PAD:
            return build.pad(node, tuple((self.few(), self.few()) for _ in node.shape))
        return build.expand(node, tuple(self.size() if size == 1 else size for size in node.shape))

    def few(self) -> int:
        return self.random.choice((0, 0, 0, 1, 2, 3))

    def cut(self, size: int) -> tuple[int, int]:
        if size < 2 or self.random.random() < 0.4:
            return 0, size
        start = self.random.randint(0, size - 1)
        return start, self.random.randint(start + 1, size)

    def other_shape(self, shape: Shape) -> Shape:
        """Another shape of as many elements: the prime factors put together anew, with ones between them."""
        count = math.prod(shape)
        if count == 0:
            return tuple(self.random.sample(shape, len(shape)))
        sizes = [1] * self.random.randint(1 if count > 1 else 0, 4)
        factor = 2
        while count > 1:
            while count % factor == 0:
                sizes[self.random.randrange(len(sizes))] *= factor
                count //= factor
            factor += 1
        return tuple(sizes)

    # ------------------------------------------------------------ tensors

    def reduction(self) -> UOp | None:
        node = self.pick()
        if not node.shape:
            return None
        op = self.random.choices((Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL), (6, 2, 2, 1))[0]
        reduced = build.reduce_axis(op, node, self.axes(len(node.shape)))
        if self.random.random() < 0.4:
            # What softmax and layernorm do: the rows against what was made of them.
            spread = build.expand(reduced, node.shape)
            kinds = _FLOAT_BINARY if node.dtype.is_float else (Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX)
            return build.alu(self.random.choice(kinds), node, spread)
        return reduced

    def idiom(self) -> UOp:
        """Something that programs are made of, and that the schedule and the simplifier know."""
        idioms = (self.product, self.concatenation, self.one_hot, self.prefix, self.windows)
        return self.random.choice(idioms)(self.pick())

    def product(self, node: UOp) -> UOp:
        """A matrix product."""
        rows, inner, columns = (self.size() for _ in range(3))
        x, y = self.fit(node, (rows, inner)), self.operand(node.dtype, (inner, columns))
        left = build.expand(build.reshape(x, (rows, inner, 1)), (rows, inner, columns))
        right = build.expand(build.reshape(y, (1, inner, columns)), (rows, inner, columns))
        total = build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, left, right), (1,))
        return build.reshape(total, (rows, columns))

    def concatenation(self, node: UOp) -> UOp:
        """Two tensors end to end: both padded and joined."""
        if not node.shape:
            node = build.reshape(node, (1,))
        axis, more = self.random.randrange(len(node.shape)), self.size()
        shape = tuple(more if k == axis else size for k, size in enumerate(node.shape))
        other = self.operand(node.dtype, shape)
        before = tuple((0, more if k == axis else 0) for k in range(len(shape)))
        after = tuple((node.shape[axis] if k == axis else 0, 0) for k in range(len(shape)))
        return build.alu(Ops.ADD, build.pad(node, before), build.pad(other, after))

    def one_hot(self, node: UOp) -> UOp:
        """A gather written as a sum over an axis that is zero in all places but one."""
        count, size = self.size(), self.size()
        table = self.fit(node, (size,))
        index = build.expand(build.reshape(self.index(size, (count,)), (count, 1)), (count, size))
        places = build.cast(build.axis_iota((count, size), 1), index.dtype)
        hit = build.alu(Ops.CMPEQ, index, places)
        row = build.expand(build.reshape(table, (1, size)), (count, size))
        kept = build.where(hit, row, build.const(node.dtype, 0, (count, size)))
        return build.reshape(build.reduce_axis(Ops.ADD, kept, (1,)), (count,))

    def prefix(self, node: UOp) -> UOp:
        """Sums, or greatest values, of all that comes before; of ones it counts."""
        size = self.random.randint(2, 12)
        shape = (size, size)
        row = self.fit(node, (size,)) if self.random.random() < 0.6 else build.const(node.dtype, 1, (size,))
        order = [build.axis_iota(shape, 1), build.axis_iota(shape, 0)]
        if self.random.random() < 0.5:
            order.reverse()
        is_before = build.alu(Ops.CMPLT, *order)
        spread = build.expand(build.reshape(row, (1, size)), shape)
        kept = build.where(is_before, spread, build.const(node.dtype, 0, shape))
        op = self.random.choice((Ops.ADD, Ops.ADD, Ops.MAX))
        return build.reshape(build.reduce_axis(op, kept, (1,)), (size,))

    def windows(self, node: UOp) -> UOp:
        """Every run of some neighbours, as a convolution sees them, reduced."""
        size, width = self.random.randint(4, 20), self.random.randint(2, 4)
        row = build.reshape(self.fit(node, (size,)), (1, size))
        repeated = build.reshape(build.expand(row, (width + 1, size)), ((width + 1) * size,))
        rows = build.reshape(build.shrink(repeated, ((0, width * (size + 1)),)), (width, size + 1))
        runs = build.shrink(rows, ((0, width), (0, size + 1 - width)))
        return build.reduce_axis(self.random.choice((Ops.ADD, Ops.MAX)), runs, (0,))

    def gather(self) -> UOp | None:
        node = self.pick()
        if not node.shape:
            return None
        shape = self.shape()
        return build.gather(node, *(self.index(size, shape) for size in node.shape))

    def index(self, size: int, shape: Shape) -> UOp:
        """Places on an axis, some of them outside."""
        dtype = self.random.choice((dtypes.int32, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.int8, dtypes.uint64))
        chance = self.random.random()
        if chance < 0.3:
            return self.fit(self.as_dtype(self.pick(), dtype), shape)
        if chance < 0.6 and shape:
            counted = build.cast(build.axis_iota(shape, self.random.randrange(len(shape))), dtype)
            return build.alu(self.random.choice((Ops.ADD, Ops.SUB, Ops.MUL)), counted, self.constant(dtype, shape))
        node = self.leaf(dtype, shape)
        low, high = (0, size + 2) if dtype.is_unsigned else (-2, size + 2)
        places = self.numbers.integers(low, min(high, 127), math.prod(shape), endpoint=True)
        self.bindings[build.stored_root(node)] = cast_array(places, dtype)
        return node

    def counter(self) -> UOp:
        shape = self.shape()
        count = self.random.randint(1, 40) if not shape else max(shape)
        counted = build.iota(count, self.random.choice((dtypes.int32, dtypes.int64, self.dtype())))
        return self.fit(counted, shape) if shape else counted

    def stored(self) -> UOp:
        node = self.pick()
        return marks.detach(node) if self.random.random() < 0.2 else build.contiguous(node)

    def copy(self) -> UOp:
        return build.copy(build.copy(self.pick(), AWAY), HOME)

    def update(self) -> UOp:
        """An in-place update of something stored, through a view of some of it."""
        stored = [node for node in self.pool if build.is_stored(node)]
        target = self.random.choice(stored) if stored else build.contiguous(self.pick())
        view = target
        for _ in range(self.random.randint(0, 3)):
            view = self.one_movement(view, can_grow=False)
        value = self.operand(target.dtype, view.shape)
        if self.random.random() < 0.4 and target.dtype.is_float:
            value = build.alu(self.random.choice((Ops.ADD, Ops.MUL, Ops.MAX)), value, self.fit(target, view.shape))
        return build.assign(target, view, value)


def _is_leaf_view(node: UOp) -> bool:
    """A leaf, or reshapes of one: nothing is computed for it."""
    while node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    return node.op is Ops.PARAM
