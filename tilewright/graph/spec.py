"""The spec record of an op: what the node may look like and what it means. In: nothing. Out: the `Op` class and the
shape and dtype rules that ops share. `ops.py` fills one record per op; every other module reads the record."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.base.dtype import DType, dtypes

if TYPE_CHECKING:
    from tilewright.graph.uop import UOp

Shape = tuple[int, ...]
Bounds = tuple[int, int] | tuple[float, float]
Devices = str | tuple[str, ...]  # one device, or the several that a value is spread over


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


class Op:
    """One op. `arity` is None where any number of sources is taken. The rules take the node:
    `shape(node)`, `bounds(node)`; `dtype(sources)` gives the result type or None where the node states it freely;
    `value(xp, *sources)` computes it with `xp` a namespace of scalar or NumPy maths (see `scalar.py`)."""

    __slots__ = (
        "arity",
        "bounds",
        "commutative",
        "dtype",
        "gradient",
        "is_elementwise",
        "kind",
        "name",
        "shape",
        "value",
    )

    def __init__(
        self,
        kind: Kind,
        arity: int | None,
        shape: Callable[[UOp], Shape],
        dtype: Callable[[tuple[UOp, ...]], DType | None],
        value: Callable[..., Any] | None = None,
        bounds: Callable[[UOp], Bounds] | None = None,
        commutative: bool = False,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.arity = arity
        self.shape = shape
        self.dtype = dtype
        self.value = value
        self.bounds = bounds
        self.commutative = commutative
        self.gradient: Callable[..., Any] | None = None
        self.is_elementwise = kind in (Kind.UNARY, Kind.BINARY, Kind.TERNARY, Kind.CAST)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return op_by_name, (self.name,)


def op_by_name(name: str) -> Op:
    """The op of that name; used by pickle and by the text parser."""
    from tilewright.graph.ops import Ops

    found = getattr(Ops, name)
    assert isinstance(found, Op)
    return found


# ---------------------------------------------------------------- dtype rules


def free_dtype(_src: tuple[UOp, ...]) -> None:
    return None


def same_dtype(src: tuple[UOp, ...]) -> DType:
    return src[0].dtype


def last_dtype(src: tuple[UOp, ...]) -> DType:
    return src[-1].dtype


def bool_dtype(_src: tuple[UOp, ...]) -> DType:
    return dtypes.bool


def void_dtype(_src: tuple[UOp, ...]) -> DType:
    return dtypes.void


# ---------------------------------------------------------------- shape rules


def scalar_shape(_node: UOp) -> Shape:
    return ()


def elementwise_shape(node: UOp) -> Shape:
    """The one shape of the sources; a 0-d source stands for any shape."""
    for src in node.src:
        if src.shape:
            return src.shape
    return ()


def source_shape(node: UOp) -> Shape:
    return node.src[0].shape


def argument_shape(node: UOp) -> Shape:
    return tuple(node.arg)


def permute_shape(node: UOp) -> Shape:
    shape = node.src[0].shape
    return tuple(shape[axis] for axis in node.arg)


def pad_shape(node: UOp) -> Shape:
    return tuple(before + size + after for size, (before, after) in zip(node.src[0].shape, node.arg, strict=True))


def shrink_shape(node: UOp) -> Shape:
    return tuple(stop - start for start, stop in node.arg)


def reduce_axis_shape(node: UOp) -> Shape:
    _, axes = node.arg
    return tuple(1 if axis in axes else size for axis, size in enumerate(node.src[0].shape))


def multi_shape(node: UOp) -> Shape:
    """The shapes of the parts joined along the axis; the parts are all alike where there is none."""
    shape = node.src[0].shape
    axis = node.arg.axis
    return shape if axis is None else (*shape[:axis], sum(src.shape[axis] for src in node.src), *shape[axis + 1 :])


def cat_shape(node: UOp) -> Shape:
    shape = node.src[0].shape
    return (*shape[: node.arg], sum(src.shape[node.arg] for src in node.src), *shape[node.arg + 1 :])


def gather_shape(node: UOp) -> Shape:
    return node.src[1].shape


def element_count(shape: Shape) -> int:
    return math.prod(shape)
