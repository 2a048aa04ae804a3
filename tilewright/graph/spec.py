"""The spec record of an op: what the node may look like and what it means. In: nothing. Out: the `Op` class and the
shape and dtype rules that ops share. `ops.py` fills one record per op; every other module reads the record."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tilewright.base.dtype import DType, Scalar, dtypes

T = TypeVar("T")
Shape = tuple[int, ...]
Bounds = tuple[int, int] | tuple[float, float]
Devices = str | tuple[str, ...]  # one device, or the several that a value is sharded over

# The dtypes that an op is defined on.
ANY, FLOATS, INTEGERS, BITS, WORDS = "any", "floats", "integers", "integers and bool", "uint64"


class Kind(enum.Enum):
    """The family of an op."""

    LEAF = "leaf"
    UNARY = "unary"
    BINARY = "binary"
    TERNARY = "ternary"
    CAST = "cast"
    MOVEMENT = "movement"
    TENSOR = "tensor"
    MEMORY = "memory"
    CONTROL = "control"

    __hash__ = object.__hash__  # identity: an op's kind is looked up in hot loops


class Node(Protocol):
    """What the rules of an op may ask of a node."""

    @property
    def op(self) -> Op: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def src(self) -> tuple[Node, ...]: ...
    @property
    def arg(self) -> Any: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def is_const(self) -> bool: ...


class Op:
    """One op: everything that is known of it.

    arity        the number of sources, or the least and the most, which is None where any number is taken
    shape        from the node
    dtype        from the sources; None where the node states it freely
    value        `value(xp, *sources)` computes it, with `xp` a namespace of scalar or NumPy maths (`interpreter/`)
    bounds       the least and greatest value of an integer node
    gradient     `gradient(m, g, y, *sources)` (`derivatives.py`), or text: why there is none; None where
                 `gradients/rules.py` has a rule of tensors
    cost         per element, in units of one addition
    operands     the dtypes that it is defined on: FLOATS, INTEGERS, BITS (integers and bool), WORDS (uint64), or ANY
    symbol       between two operands, as in C
    function     of one operand, in the maths libraries of C, OpenCL, Metal and WGSL and among LLVM's intrinsics
    has_argument whether the node has one"""

    __slots__ = (
        "arity",
        "bounds",
        "commutative",
        "cost",
        "dtype",
        "function",
        "gradient",
        "has_argument",
        "is_elementwise",
        "kind",
        "name",
        "operands",
        "shape",
        "symbol",
        "value",
    )

    def __init__(
        self,
        kind: Kind,
        arity: int | tuple[int, int | None],
        shape: Callable[[Node], Shape],
        dtype: Callable[[tuple[Node, ...]], DType | None],
        value: Callable[..., Any] | None = None,
        bounds: Callable[[Node], Bounds] | None = None,
        commutative: bool = False,
        *,
        gradient: Callable[..., tuple[Any, ...]] | str | None = None,
        cost: float | None = None,
        operands: str = ANY,
        symbol: str = "",
        function: str = "",
        has_argument: bool = True,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.arity = (arity, arity) if isinstance(arity, int) else arity
        self.shape = shape
        self.dtype = dtype
        self.value = value
        self.bounds = bounds
        self.commutative = commutative
        self.is_elementwise = kind in (Kind.UNARY, Kind.BINARY, Kind.TERNARY, Kind.CAST)
        self.gradient = gradient
        self.cost = cost if cost is not None else 1.0 if self.is_elementwise else 0.0
        self.operands = operands
        self.symbol = symbol
        self.function = function
        self.has_argument = has_argument

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name  # its first: it may be the default of a field of another class

    def __repr__(self) -> str:
        return f"Ops.{self.name}"


# ---------------------------------------------------------------- dtype rules


def free_dtype(_src: tuple[Node, ...]) -> None:
    return None


def same_dtype(src: tuple[Node, ...]) -> DType:
    return src[0].dtype


def last_dtype(src: tuple[Node, ...]) -> DType:
    return src[-1].dtype


def bool_dtype(_src: tuple[Node, ...]) -> DType:
    return dtypes.bool


def void_dtype(_src: tuple[Node, ...]) -> DType:
    return dtypes.void


# ---------------------------------------------------------------- shape rules


def scalar_shape(_node: Node) -> Shape:
    return ()


def elementwise_shape(node: Node) -> Shape:
    """The common shape of the sources; a 0-d source is broadcast."""
    for src in node.src:
        if src.shape:
            return src.shape
    return ()


def source_shape(node: Node) -> Shape:
    return node.src[0].shape


def argument_shape(node: Node) -> Shape:
    return tuple(node.arg)


def permute_shape(node: Node) -> Shape:
    shape = node.src[0].shape
    return tuple(shape[axis] for axis in node.arg)


def pad_shape(node: Node) -> Shape:
    return tuple(before + size + after for size, (before, after) in zip(node.src[0].shape, node.arg, strict=True))


def shrink_shape(node: Node) -> Shape:
    return tuple(stop - start for start, stop in node.arg)


def reduce_axis_shape(node: Node) -> Shape:
    _, axes = node.arg
    return tuple(1 if axis in axes else size for axis, size in enumerate(node.src[0].shape))


def multi_shape(node: Node) -> Shape:
    """The shapes of the parts joined along the axis; the parts are all alike where there is none."""
    shape = node.src[0].shape
    axis = node.arg.axis
    return shape if axis is None else (*shape[:axis], sum(src.shape[axis] for src in node.src), *shape[axis + 1 :])


def cat_shape(node: Node) -> Shape:
    shape = node.src[0].shape
    return (*shape[: node.arg], sum(src.shape[node.arg] for src in node.src), *shape[node.arg + 1 :])


def gather_shape(node: Node) -> Shape:
    return node.src[1].shape


def element_count(shape: Shape) -> int:
    return math.prod(shape)


def max_count(shape: Shape) -> int:
    """The greatest number of elements: a variable size counts with its greatest value."""
    count = math.prod(shape)
    return count if type(count) is int else math.prod([s if isinstance(s, int) else s.greatest for s in shape])


def operator(op: Op) -> Callable[[T, T | Scalar], T]:
    """Python's operator of a class with `alu`, for a binary op."""

    def apply(self: T, other: T | Scalar) -> T:
        return self.alu(op, other)  # type: ignore[attr-defined, no-any-return]

    return apply
