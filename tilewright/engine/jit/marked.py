"""Arguments of a jitted function that are variables. In: what `jit(f, symbolic=...)` says, and the arguments of a call.
Out: the arguments with each marked int bound to a variable of its name, so that one record serves all its values.

Bounds are given (`symbolic={"position": (0, 4095)}`), or found (`symbolic=("position",)`): the first call begins with
wide ones, and where an operation needs narrower ones, such as a slice that has to lie in its axis, the call begins
again with those. A later value outside of them is a call of another kind, with bounds of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from tilewright.base.errors import JitError
from tilewright.base.records import NamedTuple
from tilewright.engine.jit.arguments import Bound, bind_call
from tilewright.graph.symbolic import BoundsNarrowed, SymbolicInt, free_sizes
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.graph.variable import Variable

Symbolic = str | Iterable[str] | Mapping[str, tuple[int, int] | None]

# The bounds of an int of which nothing is known yet.
WIDEST = (0, (1 << 31) - 1)
WIDEST_SIGNED = (-(1 << 31), (1 << 31) - 1)
# Ranges that are kept for each argument; the oldest goes first.
MAX_RANGES = 16
_REMEDY = "name arguments of the function, as in symbolic=('position',) or symbolic={'position': (0, 4095)}"


class _Marked(NamedTuple):
    """An argument that is marked: its position, None where it is given by name alone; and its variables, of which the
    first that holds a value is taken."""

    name: str
    position: int | None
    is_open: bool  # whether its bounds are found
    variables: list[Variable]


class _Parameter(NamedTuple):
    name: str
    is_by_name: bool  # whether it is given by name alone
    takes_others: bool = False  # whether it stands for all other names


class MarkedArguments:
    """The marked arguments of one function."""

    def __init__(self, function: Callable[..., Any], symbolic: Symbolic) -> None:
        self.symbolic = symbolic
        if isinstance(symbolic, str):
            symbolic = (symbolic,)
        bounds = dict(symbolic) if isinstance(symbolic, Mapping) else dict.fromkeys(symbolic)
        parameters = _parameters_of(function)
        marked = [_marked(name, limits, parameters) for name, limits in bounds.items()]
        self.marked = sorted(marked, key=lambda each: -1 if each.position is None else each.position)
        self.open = frozenset(each.name for each in self.marked if each.is_open)

    def bind_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """As `arguments.bind_call` of the call with the marked ints bound: those are not part of the structure, which a
        replay would have to compare, but of the signature and of the values."""
        chosen: list[UOp] = []
        values: dict[str, int] = {}
        for each in reversed(self.marked):
            position = each.position
            if position is not None and position < len(args):
                given = args[position]
                if given.__class__ is not SymbolicInt:
                    args = (*args[:position], *args[position + 1 :])
            elif each.name in kwargs:
                given = kwargs[each.name]
                if given.__class__ is not SymbolicInt:
                    kwargs = {name: value for name, value in kwargs.items() if name != each.name}
            else:
                continue
            if given.__class__ is not SymbolicInt:
                variable, values[each.name] = _variable_for(each, given)
                chosen.append(variable.node)
        bound = bind_call(args, kwargs)
        if bound is None or not chosen:
            return bound
        tensors, buffers, signature, others = bound
        if not values.keys().isdisjoint(others):
            free_sizes(tuple(SymbolicInt(node, ((node.arg[0], values[node.arg[0]]),)) for node in chosen), dict(others))
        symbolic.is_used = True
        return tensors, buffers, (*signature, *chosen), {**others, **values} if others else values

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with the marked ints bound."""
        changed: list[Any] | None = None
        for each in self.marked:
            if each.position is not None and each.position < len(args):
                changed = list(args) if changed is None else changed
                changed[each.position] = _bound(each, args[each.position])
            elif each.name in kwargs:
                kwargs = {**kwargs, each.name: _bound(each, kwargs[each.name])}
        return (args if changed is None else tuple(changed)), kwargs

    def narrow(self, found: BoundsNarrowed) -> None:
        """Puts a variable with narrower bounds before the others of its name."""
        each = next(each for each in self.marked if each.name == found.name)
        each.variables.insert(0, Variable(found.name, found.least, found.greatest))
        del each.variables[MAX_RANGES:]


_CO_VARARGS, _CO_VARKEYWORDS = 4, 8  # flags of a code object: it has *args, **kwargs


def _parameters_of(function: Callable[..., Any]) -> list[_Parameter]:
    """Of a plain function they are read from its code: `inspect` takes a megabyte of memory."""
    if type(function) is not FunctionType or function.__dict__:
        import inspect

        found = inspect.signature(function).parameters.values()
        return [_Parameter(each.name, each.kind is each.KEYWORD_ONLY, each.kind is each.VAR_KEYWORD) for each in found]
    code = function.__code__
    names, first, end = code.co_varnames, code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    rest = end + bool(code.co_flags & _CO_VARARGS)
    return [
        *(_Parameter(name, False) for name in names[:first] + names[end:rest]),
        *(_Parameter(name, True) for name in names[first:end]),
        *(_Parameter(name, False, True) for name in names[rest : rest + bool(code.co_flags & _CO_VARKEYWORDS)]),
    ]


def _marked(name: Any, limits: tuple[int, int] | None, parameters: list[_Parameter]) -> _Marked:
    names = [parameter.name for parameter in parameters]
    if name not in names:
        if any(parameter.takes_others for parameter in parameters):
            return _Marked(name, None, limits is None, _variables(name, limits))
        raise JitError("jit", f"symbolic names {name!r}, and the arguments are {', '.join(names) or 'none'}", _REMEDY)
    found = parameters[names.index(name)]
    position = None if found.is_by_name else names.index(name)
    return _Marked(name, position, limits is None, _variables(name, limits))


def _variables(name: str, limits: Any) -> list[Variable]:
    if limits is None:
        return []
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise JitError("jit", f"the bounds of {name} are {limits!r}, not two ints", _REMEDY)
    return [Variable(name, *limits)]


def _bound(each: _Marked, value: Any) -> Any:
    if isinstance(value, SymbolicInt):
        return value  # bound by the caller, with bounds of its own
    variable, number = _variable_for(each, value)
    return variable.bind(number)


def _variable_for(each: _Marked, value: Any) -> tuple[Variable, int]:
    """The variable that an argument is bound to, and its value."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or hasattr(value, "uop"):
        message = f"{each.name} is marked as symbolic and is a {type(value).__name__}"
        raise JitError("jit", message, "give an int, or a bound Variable")
    number = int(value)
    for variable in each.variables:
        if variable.least <= number <= variable.greatest:
            return variable, number
    if not each.is_open:
        each.variables[0].bind(number)  # says what is wrong
    return Variable(each.name, *(WIDEST if number >= 0 else WIDEST_SIGNED)), number
