"""DETACH nodes: what gradients alone see. In: a node. Out: a node of the same value, whose argument says what becomes
of a gradient that reaches it: it ends there, is rounded, takes other derivatives, or belongs to this use alone. Stands
beside `build.py`; schedules remove these nodes (`is_seen_by_gradients_alone`)."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import DType, to_dtype
from tilewright.graph.build import scalar_of
from tilewright.graph.ops import Identity, Ops, Pullback, Slopes
from tilewright.graph.uop import UOp

_TAKES_TIES = "takes ties"
_ROUNDS_TO = "rounds to "


def with_slopes(value: UOp, rule: Callable[..., tuple[UOp | None, ...]], *inputs: UOp) -> UOp:
    """`value`, whose derivatives with respect to `inputs` are those of `rule(value, *inputs)` instead of those of its
    formula, which may select among cases."""
    return UOp(Ops.DETACH, value.dtype, (value, *inputs), Slopes(rule))


def with_gradient(value: UOp, rule: Callable[..., tuple[UOp | None, ...]], *inputs: UOp) -> UOp:
    """`value`, whose gradients with respect to `inputs` are `rule(upstream, *inputs)`."""
    return UOp(Ops.DETACH, value.dtype, (value, *inputs), Pullback(rule))


def round_gradient(x: UOp, dtype: DType) -> UOp:
    """`x`, whose gradient is rounded to a short float, the dtype of what it is multiplied with."""
    return x if x.dtype is dtype else UOp(Ops.DETACH, x.dtype, (x,), f"{_ROUNDS_TO}{dtype.name}")


def rounded_to(x: UOp) -> DType | None:
    """The dtype that the gradient of a node is rounded to."""
    is_rounding = x.op is Ops.DETACH and isinstance(x.arg, str) and x.arg.startswith(_ROUNDS_TO)
    return to_dtype(x.arg.removeprefix(_ROUNDS_TO)) if is_rounding else None


def identical(x: UOp) -> UOp:
    """`x` under a node that is equal to no other."""
    return UOp(Ops.DETACH, x.dtype, (x,), Identity())


# What has an identity already (memory, updates of it), or is not a result of anything.
_NOT_SET_APART = (Ops.BUFFER, Ops.PARAM, Ops.ASSIGN, Ops.CUSTOM_KERNEL)


def set_apart(x: UOp) -> UOp:
    """The same expression as a distinct node, so that a gradient with respect to it does not count uses of equal
    expressions. A constant has no identity."""
    if not x.src or x.op in _NOT_SET_APART:
        return x
    scalar = scalar_of(x)
    if scalar is not None and not scalar.src:
        return x
    first, *rest = x.src
    first = set_apart(first) if x.op is Ops.MULTI else identical(first)
    return UOp(x.op, x.dtype, (first, *rest), x.arg)


def is_seen_by_gradients_alone(x: UOp) -> bool:
    """Whether the node equals its first source in every computation, so that schedules drop it."""
    if x.op is not Ops.DETACH:
        return False
    is_plain = x.arg is None or isinstance(x.arg, Slopes | Identity)
    return is_plain or x.arg == _TAKES_TIES or rounded_to(x) is not None


def taking_ties(x: UOp) -> UOp:
    """An operand that gets the whole gradient of a tie: MAX(x, 0) then has slope 0 at 0, like relu."""
    return UOp(Ops.DETACH, x.dtype, (x,), _TAKES_TIES)


def takes_ties(x: UOp) -> bool:
    return x.op is Ops.DETACH and x.arg == _TAKES_TIES


def detach(x: UOp) -> UOp:
    """`x` without gradient. A constant has none anyway; a buffer may be a parameter."""
    is_cut = x.op in (Ops.CONST, Ops.SIZE, Ops.IOTA) or (x.op is Ops.DETACH and x.arg is None)
    return x if is_cut else UOp(Ops.DETACH, x.dtype, (x,))
