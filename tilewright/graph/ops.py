"""Every op, one record each, with all that is known of it (`spec.py`). In: nothing. Out: `Ops`.

Meaning, before code: integer overflow wraps; IDIV floors, MOD has the divisor's sign, both give 0 for a divisor of 0;
float to integer truncates, saturates and sends NaN to 0; MAX and MIN propagate NaN; a shift by the width or more gives
0 (the sign, for SHR of a negative number); a masked-off LOAD touches no memory and yields its stated value (else 0)."""

from __future__ import annotations

import copyreg
import enum
import math
from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import DType, Scalar
from tilewright.base.records import NamedTuple, record
from tilewright.base.target import TileLayout
from tilewright.graph import bounds as b
from tilewright.graph import derivatives as d
from tilewright.graph.spec import (
    BITS,
    FLOATS,
    INTEGERS,
    WORDS,
    Kind,
    Op,
    argument_shape,
    bool_dtype,
    cat_shape,
    elementwise_shape,
    free_dtype,
    gather_shape,
    last_dtype,
    multi_shape,
    pad_shape,
    permute_shape,
    reduce_axis_shape,
    same_dtype,
    scalar_shape,
    shrink_shape,
    source_shape,
    void_dtype,
)


class AxisType(enum.Enum):
    """The role of a RANGE. GLOBAL, LOCAL, GROUP and THREAD are run side by side; LOOP and REDUCE are loops;
    UPCAST and UNROLL are tile axes, unrolled by the emitter. UPCAST on a reduce axis keeps one accumulator per element,
    combined after the loop; UNROLL feeds one accumulator element after element."""

    GLOBAL = "g"
    THREAD = "t"
    LOCAL = "l"
    LOOP = "L"
    GROUP = "G"
    REDUCE = "R"
    UPCAST = "u"
    UNROLL = "r"

    __hash__ = object.__hash__

    def __init__(self, letter: str) -> None:
        self.is_tile = letter in "ur"


class AddrSpace(enum.Enum):
    """Where a placeholder lives."""

    GLOBAL = "global"
    LOCAL = "local"
    REG = "reg"

    __hash__ = object.__hash__


class Axis(NamedTuple):
    """The argument of a RANGE: an id unique in its kernel (tuples keep split axes apart), and its role."""

    id: tuple[int, ...]
    kind: AxisType


class BufferArg(NamedTuple):
    """The argument of a BUFFER: a unique id gives it identity, so equal contents never make two buffers one node."""

    uid: int
    size: int
    device: str


class ParamArg(NamedTuple):
    """The argument of a PARAM: the n-th buffer handed to a kernel (or to a cached schedule), `size` elements long."""

    slot: int
    size: int
    device: str = ""


class MultiArg(NamedTuple):
    """The argument of a MULTI: the axis that its parts are joined along, None where each part is the whole value; and
    the device of each part."""

    axis: int | None
    devices: tuple[str, ...]


@record
class Slopes:
    """The argument of a DETACH whose gradient is stated: `rule(value, *inputs)` gives the derivative of the value with
    respect to each of the node's further sources, element by element; None where there is none. Computing looks at the
    value alone."""

    rule: Callable[..., tuple[Any, ...]]


@record
class Pullback(Slopes):
    """The same with `rule(upstream, *inputs)`, which gives the gradient with respect to each further source, of any
    shape. It is called when a gradient is taken."""


class CheckArg(NamedTuple):
    """The argument of a CHECK: values outside of 0..size-1 are reported, where it `wraps` after negative ones have been
    counted from the end. `number` tells the checks of one run apart; in a kernel it is a word, of `bits` bits, of
    parameter `slot`, which the value that failed is stored to, and nothing wraps there. For the error alone, in a
    tensor graph: the user's operation, and what the size is that of."""

    size: int
    wraps: bool = False
    number: int = 0
    slot: int = -1
    bits: int = 0
    operation: str = ""
    of_what: str = ""


class Identity:
    """The argument of a DETACH that sets a node apart from those of the same expression: equal to no other."""

    __slots__ = ()


class ViewArg(NamedTuple):
    """The argument of a VIEW: its shape, and for each axis how many elements of flat memory neighbours lie apart."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class DotArg(NamedTuple):
    """The argument of a DOT: the name of the tensor core that computes it; rows, columns and length of the product; how
    far apart neighbours lie in memory: rows and steps of the sum on the left, columns and steps on the right."""

    core: str
    rows: int
    columns: int
    length: int
    left: tuple[int, int]
    right: tuple[int, int]


class TileDotArg(NamedTuple):
    """The argument of a TILE_DOT: the name of the tensor core that computes it, the length of the sum, how the tiles of
    both operands lie in local memory (None for a left one in registers), and how many parts an operand is the sum
    of. Memory of the accumulator's dtype has the sums; any other has the parts, each in a plane, one after another."""

    core: str
    length: int
    left: TileLayout | None
    right: TileLayout
    parts: int = 1


_LN2 = math.log(2)


def _unary(value: Any, bounds: Any = None, **facts: Any) -> Op:
    return Op(Kind.UNARY, 1, elementwise_shape, same_dtype, value, bounds, has_argument=False, **facts)


def _binary(value: Any, bounds: Any = None, commutative: bool = False, **facts: Any) -> Op:
    return Op(Kind.BINARY, 2, elementwise_shape, same_dtype, value, bounds, commutative, has_argument=False, **facts)


def _compare(symbol: str, value: Any, bounds: Any, commutative: bool = False) -> Op:
    facts: Any = {"symbol": symbol, "gradient": d.flat, "has_argument": False}
    return Op(Kind.BINARY, 2, elementwise_shape, bool_dtype, value, bounds, commutative, **facts)


def _movement(shape: Any) -> Op:
    return Op(Kind.MOVEMENT, 1, shape, same_dtype, None, lambda node: node.src[0].bounds)


class Ops:
    """The namespace of ops. Users write `Ops.ADD`."""

    # leaves
    CONST = Op(Kind.LEAF, 0, scalar_shape, free_dtype, None, b.const_bounds)  # arg: bool, int or float
    VARIABLE = Op(Kind.LEAF, 0, scalar_shape, free_dtype, None, b.variable_bounds)  # arg: (name, least, greatest)
    SIZE = Op(Kind.LEAF, 0, scalar_shape, free_dtype, None, b.size_bounds)  # arg: SymbolicInt; its value as a number
    BUFFER = Op(Kind.LEAF, 0, lambda node: (node.arg.size,), free_dtype)  # arg: BufferArg
    PARAM = Op(Kind.LEAF, 0, lambda node: (node.arg.size,), free_dtype)  # arg: ParamArg
    IOTA = Op(Kind.LEAF, 0, argument_shape, free_dtype, None, b.iota_bounds)  # arg: (n,); 0, 1, ..., n-1

    # one operand
    NEG = _unary(lambda xp, x: -x, b.neg_bounds, gradient=lambda m, g, y, x: (m.negate(g),))
    SQRT = _unary(
        lambda xp, x: xp.sqrt(x),
        gradient=lambda m, g, y, x: (m.divide(g, m.add(y, y)),),
        cost=4,
        operands=FLOATS,
        function="sqrt",
    )
    EXP2 = _unary(
        lambda xp, x: xp.exp2(x),
        gradient=lambda m, g, y, x: (m.multiply(g, m.multiply(y, m.number(y, _LN2))),),
        cost=10,
        operands=FLOATS,
        function="exp2",
    )
    LOG2 = _unary(
        lambda xp, x: xp.log2(x),
        gradient=lambda m, g, y, x: (m.divide(g, m.multiply(x, m.number(y, _LN2))),),
        cost=10,
        operands=FLOATS,
        function="log2",
    )
    SIN = _unary(
        lambda xp, x: xp.sin(x),
        gradient=lambda m, g, y, x: (m.multiply(g, m.cosine(x)),),
        cost=16,
        operands=FLOATS,
        function="sin",
    )
    TRUNC = _unary(lambda xp, x: xp.trunc(x), gradient=d.flat, operands=FLOATS, function="trunc")
    ROUND = _unary(lambda xp, x: xp.rint(x), gradient=d.flat, operands=FLOATS, function="rint")  # halves to even

    # two operands
    ADD = _binary(lambda xp, x, y: x + y, b.add_bounds, True, symbol="+", gradient=lambda m, g, y, *xs: (g, g))
    SUB = _binary(lambda xp, x, y: x - y, b.sub_bounds, symbol="-", gradient=d.difference)
    MUL = _binary(lambda xp, x, y: xp.multiply(x, y), b.mul_bounds, True, symbol="*", gradient=d.product)
    FDIV = _binary(lambda xp, x, y: xp.divide(x, y), symbol="/", gradient=d.quotient, cost=4, operands=FLOATS)
    IDIV = _binary(
        lambda xp, x, y: xp.floor_divide(x, y),
        b.idiv_bounds,
        symbol="/",
        gradient="a floored quotient is a step function, and used for integers only",
        cost=6,
        operands=INTEGERS,
    )
    MOD = _binary(
        lambda xp, x, y: xp.floor_modulo(x, y),
        b.mod_bounds,
        symbol="%",
        gradient="it is used for integers only; float remainders are made of TRUNC",
        cost=6,
        operands=INTEGERS,
    )
    MAX = _binary(lambda xp, x, y: xp.maximum(x, y), b.max_bounds, True, gradient=d.greater)
    MIN = _binary(lambda xp, x, y: xp.minimum(x, y), b.min_bounds, True, gradient=d.smaller)
    AND = _binary(lambda xp, x, y: x & y, b.and_bounds, True, symbol="&", gradient=d.flat, operands=BITS)
    OR = _binary(lambda xp, x, y: x | y, b.or_bounds, True, symbol="|", gradient=d.flat, operands=BITS)
    XOR = _binary(lambda xp, x, y: x ^ y, b.xor_bounds, True, symbol="^", gradient=d.flat, operands=BITS)
    SHL = _binary(lambda xp, x, y: xp.shift_left(x, y), b.shl_bounds, symbol="<<", gradient=d.flat, operands=INTEGERS)
    SHR = _binary(lambda xp, x, y: xp.shift_right(x, y), b.shr_bounds, symbol=">>", gradient=d.flat, operands=INTEGERS)
    CMPLT = _compare("<", lambda xp, x, y: x < y, b.lt_bounds)
    CMPEQ = _compare("==", lambda xp, x, y: x == y, b.eq_bounds, True)
    CMPNE = _compare("!=", lambda xp, x, y: x != y, b.ne_bounds, True)
    THREEFRY = _binary(  # uint64 counter, uint64 key -> uint64
        lambda xp, x, y: xp.threefry(x, y),
        gradient="random bits follow from their counter without slope",
        cost=80,
        operands=WORDS,
    )

    # three operands: condition, value if true, value if false
    WHERE = Op(
        Kind.TERNARY,
        3,
        elementwise_shape,
        last_dtype,
        lambda xp, c, x, y: xp.where(c, x, y),
        b.where_bounds,
        gradient=d.selection,
    )

    # (index, valid): the index, from the end where it is negative and wraps; one that is valid and out of range is
    # noted (docs/decisions/0024); arg: CheckArg
    CHECK = Op(
        Kind.BINARY,
        2,
        elementwise_shape,
        same_dtype,
        lambda xp, x, valid: x,
        b.check_bounds,
        gradient=d.flat,
        cost=0,
        operands=INTEGERS,
    )

    # the node's dtype is the target
    CAST = Op(  # which rides along with the load it follows
        Kind.CAST, 1, elementwise_shape, free_dtype, None, b.cast_bounds, cost=0.5, has_argument=False
    )
    BITCAST = Op(
        Kind.CAST, 1, elementwise_shape, free_dtype, has_argument=False
    )  # same width; a Tensor changes the last axis otherwise

    # movement: views, which cost nothing
    RESHAPE = _movement(argument_shape)  # arg: shape
    EXPAND = _movement(argument_shape)  # arg: shape; sources of size 1 are repeated
    PERMUTE = _movement(permute_shape)  # arg: order
    PAD = Op(Kind.MOVEMENT, 1, pad_shape, same_dtype, cost=1)  # arg: ((before, after), ...); with zeros
    SHRINK = _movement(shrink_shape)  # arg: ((start, stop), ...)
    FLIP = _movement(source_shape)  # arg: the axes that run backwards

    # tensors
    GATHER = Op(
        Kind.TENSOR, (2, None), gather_shape, same_dtype, cost=2
    )  # (x, index per axis of x); outside x it gives 0
    REDUCE_AXIS = Op(Kind.TENSOR, 1, reduce_axis_shape, same_dtype)  # arg: (op, axes); keeps axes as size 1
    # (values...): many values joined along an axis, each stored in its place (docs/decisions/0021); arg: the axis
    CAT = Op(Kind.TENSOR, (1, None), cat_shape, same_dtype, None, b.cat_bounds)
    CONTIGUOUS = Op(Kind.TENSOR, 1, source_shape, same_dtype)  # stored in a buffer of its own
    COPY = Op(Kind.TENSOR, 1, source_shape, same_dtype)  # arg: device name
    # (parts...): one value on several devices (docs/decisions/0014); arg: MultiArg
    MULTI = Op(Kind.TENSOR, (2, None), multi_shape, same_dtype)
    # its source, of which only gradients see more: none goes through, or arg says what happens to it; a second source
    # is not an operand, but what is computed before (docs/decisions/0008)
    DETACH = Op(Kind.TENSOR, (1, None), source_shape, same_dtype)
    ASSIGN = Op(
        Kind.TENSOR, 3, source_shape, same_dtype, has_argument=False
    )  # (x, view of x, value): x with value stored in the view
    # (what a user's kernel is given...): what it leaves in one of its arguments; arg: CustomKernel
    CUSTOM_KERNEL = Op(Kind.TENSOR, (0, None), lambda node: node.arg.shape, free_dtype)

    # kernels
    RANGE = Op(Kind.CONTROL, 1, scalar_shape, free_dtype, None, b.range_bounds)  # src: size; arg: Axis
    # (memory, position of the first element): a part of memory, while a custom kernel is being written; arg: ViewArg
    VIEW = Op(Kind.MEMORY, 2, lambda node: node.arg.shape, same_dtype)
    INDEX = Op(Kind.MEMORY, (2, 3), scalar_shape, same_dtype)  # (buffer, index[, valid])
    LOAD = Op(Kind.MEMORY, (1, 2), scalar_shape, same_dtype, has_argument=False)  # (INDEX[, value where masked off])
    # (INDEX, value); arg: None, or one of ATOMICS, which combines the value with what is there in one step
    STORE = Op(Kind.MEMORY, 2, scalar_shape, void_dtype)
    # (value, ranges...); arg: op
    REDUCE = Op(Kind.CONTROL, (1, None), scalar_shape, same_dtype, None, b.reduce_bounds)
    # (left memory, right memory, start in left, start in right, row, column[, rows, columns]): the sum over k of
    # left[start + row, k] * right[start + k, column], 0 for a row or column outside; arg: DotArg, which has the most
    # rows and columns where their numbers are sources
    DOT = Op(Kind.CONTROL, (6, 8), scalar_shape, free_dtype)
    # (left, right, row, column), tiles in local memory: sum over k of left[row, k] * right[column, k]; arg: TileDotArg.
    # (value, right, row, column, row of the value, its k, ranges...): the threads hold left, which is rounded to the
    # dtype of right; the ranges, which number the elements of one thread, are closed
    TILE_DOT = Op(Kind.CONTROL, (4, None), scalar_shape, free_dtype)
    SINK = Op(Kind.CONTROL, (0, None), scalar_shape, void_dtype)  # arg: KernelInfo or None
    DEFINE_LOCAL = Op(Kind.MEMORY, 0, lambda node: (node.arg.size,), free_dtype)  # arg: ParamArg
    DEFINE_REG = Op(Kind.MEMORY, 0, lambda node: (node.arg.size,), free_dtype)  # arg: ParamArg
    # order between effects (docs/decisions/0009): an effect is a STORE, or what is made of effects here
    AFTER = Op(Kind.MEMORY, (2, None), source_shape, same_dtype)  # (memory, ...): the memory as it is after the others
    GROUP = Op(Kind.CONTROL, (0, None), scalar_shape, void_dtype)  # (effects...): all of them
    BARRIER = Op(Kind.CONTROL, (0, None), scalar_shape, void_dtype)  # (what precedes...); arg: tells two apart
    # (value, ranges...); arg: (op, n): the fold over n neighbouring threads, for each of them. It closes its ranges:
    # those along which all threads have the same result
    WARP_FOLD = Op(Kind.CONTROL, (1, None), scalar_shape, same_dtype)

    # linear programs: one accumulator form
    ACC = Op(Kind.CONTROL, (1, None), scalar_shape, same_dtype)  # (identity, tile ranges...); arg: slot
    ACCUMULATE = Op(Kind.CONTROL, 2, scalar_shape, void_dtype)  # (ACC, value); arg: op
    COMBINE = Op(Kind.CONTROL, (1, None), scalar_shape, same_dtype)  # (ACC, tile ranges to fold...); arg: op
    # in a kernel (effect, ranges...): the effect in every iteration; in a program (RANGE): where its loop closes
    END = Op(Kind.CONTROL, (1, None), scalar_shape, void_dtype, has_argument=False)


ALL_OPS: tuple[Op, ...] = tuple(op for op in vars(Ops).values() if isinstance(op, Op))
ELEMENTWISE = frozenset(op for op in ALL_OPS if op.is_elementwise)
REDUCTIONS = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN})
ATOMICS = frozenset({Ops.ADD, Ops.MAX, Ops.MIN})  # what a STORE may combine with what is there


def reduce_identity(op: Op, dtype: DType) -> Scalar:
    """The value that a reduction of nothing gives."""
    if op is Ops.MAX:
        return dtype.min
    if op is Ops.MIN:
        return dtype.max
    return 1 if op is Ops.MUL else 0


def op_by_name(name: str) -> Op:
    """The op of that name, for pickle and the text parser."""
    found = getattr(Ops, name)
    assert isinstance(found, Op)
    return found


def _reduce_op(op: Op) -> tuple[Callable[[str], Op], tuple[str]]:
    return op_by_name, (op.name,)


copyreg.pickle(Op, _reduce_op)
