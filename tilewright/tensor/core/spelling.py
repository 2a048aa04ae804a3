"""The spellings of one argument. In: a class. Out: its methods, which take `dim=` where they are written with `axis=`
and the other way round, `keepdims=` for `keepdim=`, and so on: users of torch, NumPy and tinygrad each find their own.
Stands at the end of `tensor`, after all families are put together."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import AxisError

# For the name that a method has, the other names it is given under.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "axis": ("dim", "dims"),
    "correction": ("unbiased",),  # True is 1
    "dim": ("axis",),
    "dims": ("dim", "axis", "axes"),
    "keepdim": ("keepdims",),
    "max_": ("max",),
    "min_": ("min",),
    "neg_slope": ("negative_slope",),
    "sizes": ("unflattened_size",),
    "sorted_": ("sorted",),
}


def accept_spellings(owner: type) -> None:
    """Gives every public method of a class the other spellings of its arguments."""
    methods = {name: member for kind in reversed(owner.__mro__) for name, member in vars(kind).items()}
    for name, method in methods.items():
        if name.startswith("_") or not isinstance(method, types.FunctionType):
            continue
        # The code object, because importing `inspect` would take a tenth of the time to the first result. That of the
        # function inside: what wraps a method takes any arguments.
        inner: Any = method
        while hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        code = inner.__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        others = {other: own for own in SPELLINGS if own in taken for other in SPELLINGS[own] if other not in taken}
        if others:
            setattr(owner, name, _with_spellings(method, others))


def _with_spellings(method: Callable[..., Any], others: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for other, own in others.items():
                if other in kwargs:
                    if own in kwargs:
                        message = f"{own}= and {other}= are one argument"
                        raise AxisError(method.__name__, message, "give one of them")
                    kwargs[own] = kwargs.pop(other)
        return method(*args, **kwargs)

    return spelled
