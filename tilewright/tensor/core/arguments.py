"""Arguments of methods. In: a class, after all families are put together. Out: its methods, which raise an error of
ours that names the argument where it is of the wrong kind, and which take an argument under the names that torch, NumPy
and tinygrad have for it: `dim=` for `axis=`, `keepdims=` for `keepdim=`. Kinds are checked only after a method failed:
then its annotations are compared with what it was given."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tilewright.base.errors import AxisError, DTypeError, TilewrightError, UnsupportedError
from tilewright.graph.sizes import is_symbolic
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


def _public_methods(owner: type, names: Collection[str]) -> Iterator[tuple[str, types.FunctionType]]:
    """Those of the names that are public methods."""
    methods = {name: member for kind in reversed(owner.__mro__) for name, member in vars(kind).items()}
    for name, method in methods.items():
        if name in names and not name.startswith("_") and isinstance(method, types.FunctionType):
            yield name, method


def _innermost(method: Any) -> Any:
    """The function inside all wrappers: a wrapper takes any arguments."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


def explain_arguments(owner: type, names: Collection[str]) -> None:
    """Makes public methods of a class name the argument that is of the wrong kind."""
    for name, method in _public_methods(owner, names):
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
            _refuse_symbolic(method.__name__, args, given, error)
            raise

    return explained


def _given(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    code = _innermost(method).__code__
    names = code.co_varnames[: code.co_argcount]
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


def _refuse_symbolic(operation: str, args: Sequence[Any], given: Mapping[str, Any], error: BaseException) -> None:
    """An operation that counts with its sizes in a way that variables do not have."""
    values = [*args[:1], *given.values()]
    shapes = [value.shape for value in values if isinstance(value, TensorBase)]
    if any(map(is_symbolic, shapes)) or is_symbolic(values):
        message = f"sizes that are variables are not supported here ({', '.join(map(repr, shapes))}): {error}"
        raise UnsupportedError(operation, message, "use int(...) of the sizes, which makes kernels for each") from error


# ---------------------------------------------------------------- spellings


# For the name that a method has, the other names it is given under.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "axis": ("dim", "dims"),
    "correction": ("unbiased", "ddof"),  # True is 1
    "dim": ("axis",),
    "dims": ("dim", "axis", "axes"),
    "keepdim": ("keepdims",),
    "max_": ("max",),
    "min_": ("min",),
    "neg_slope": ("negative_slope",),
    "sizes": ("unflattened_size",),
    "sorted_": ("sorted",),
}


# Functions of NumPy, as `numpy.sum(tensor)`, give these to the method of a reduction, None where the user gave nothing.
_GIVEN_BY_NUMPY = ("dtype", "out")


def accept_spellings(owner: type, names: Collection[str]) -> None:
    """Gives public methods of a class the other spellings of their arguments."""
    for name, method in _public_methods(owner, names):
        # The code object, because importing `inspect` would take a tenth of the time to the first result.
        code = _innermost(method).__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        others = {other: own for own in SPELLINGS if own in taken for other in SPELLINGS[own] if other not in taken}
        unknown = [given for given in _GIVEN_BY_NUMPY if "keepdim" in taken and given not in taken]
        if others:
            setattr(owner, name, _with_spellings(method, others, unknown))


def _with_spellings(method: Callable[..., Any], others: dict[str, str], unknown: list[str]) -> Callable[..., Any]:
    """Takes arguments under other names as well; `unknown` ones are left out where they are None."""

    @functools.wraps(method)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for given in unknown:
                if kwargs.pop(given, None) is not None:
                    message = f"{given}= is not an argument of this operation"
                    remedy = "leave it out and use what is returned" if given == "out" else "cast() the tensor before"
                    raise UnsupportedError(method.__name__, message, remedy)
            for other, own in others.items():
                if other in kwargs:
                    if own in kwargs:
                        message = f"{own}= and {other}= are one argument"
                        raise AxisError(method.__name__, message, "give one of them")
                    kwargs[own] = kwargs.pop(other)
        return method(*args, **kwargs)

    return spelled
