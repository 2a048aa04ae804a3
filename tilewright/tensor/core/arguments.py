"""Arguments of the wrong kind. In: a class. Out: its methods, which answer a string where a tensor should stand with an
error of ours, that names the argument. Nothing is checked before a method fails: then its annotations are compared with
what it was given. Stands at the end of `tensor`, after all families are put together."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.errors import DTypeError, TilewrightError
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import is_whole

# What Python raises where an object is not what the code takes it for.
_PYTHON_ERRORS = (TypeError, AttributeError, ValueError, IndexError, OverflowError, AssertionError, MemoryError)
# These are called most, and check what they are given.
_CHECKED_MODULES = tuple(
    f"tilewright.tensor.{name}" for name in ("core.base", "core.storage", "primitives.shape", "primitives.arithmetic")
)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "__float__") and getattr(value, "shape", None) == ())


_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "Self": ("a tensor", lambda value: isinstance(value, TensorBase)),
    "Tensor": ("a tensor", lambda value: isinstance(value, TensorBase)),
    "int": ("a whole number", is_whole),
    "float": ("a number", _is_number),
    "Scalar": ("a number", _is_number),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a string", lambda value: isinstance(value, str)),
    "None": ("None", lambda value: value is None),
    "Axes": ("axes", lambda value: value is None or is_whole(value) or isinstance(value, tuple | list)),
    "Sequence": ("a sequence", lambda value: isinstance(value, tuple | list)),
    "tuple": ("a tuple", lambda value: isinstance(value, tuple | list)),
    "list": ("a list", lambda value: isinstance(value, tuple | list)),
}


def explain_arguments(owner: type) -> None:
    """Lets every public method of a class tell which argument is of the wrong kind."""
    methods = {name: member for kind in reversed(owner.__mro__) for name, member in vars(kind).items()}
    for name, method in methods.items():
        if name.startswith("_") or not isinstance(method, types.FunctionType):
            continue
        if method.__module__ not in _CHECKED_MODULES and method.__annotations__:
            setattr(owner, name, _explaining(method))


def _explaining(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TilewrightError:
            raise
        except _PYTHON_ERRORS as error:
            given = _given(method, args, kwargs)
            _refuse_wrong_kind(method.__name__, method.__annotations__, given, error)
            raise

    return explained


def _given(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    original = method
    while hasattr(original, "__wrapped__"):
        original = original.__wrapped__
    names = original.__code__.co_varnames[: original.__code__.co_argcount]
    return {**dict(zip(names[1:], args[1:])), **kwargs}


def _refuse_wrong_kind(
    operation: str, annotations: Mapping[str, Any], given: Mapping[str, Any], error: BaseException
) -> None:
    for name, value in given.items():
        wanted = str(annotations.get(name, "Any"))
        kinds = [part.partition("[")[0].strip() for part in wanted.split("|")]
        if all(kind in _KINDS for kind in kinds) and not any(_KINDS[kind][1](value) for kind in kinds):
            words = " or ".join(dict.fromkeys(_KINDS[kind][0] for kind in kinds))
            message = f"{name}= is a {type(value).__name__} and should be {words}"
            raise DTypeError(operation, message, f"give {words}") from error
