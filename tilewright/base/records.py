"""Records: classes of named fields. In: a class whose annotations are its fields. Out: the class with slots, an
`__init__`, a repr and, where it is frozen, equality and a hash by value.

They are used like `dataclasses`, which take 0.8 ms per class and 10 ms to import: a fifth of the time that a process
needs for its first result (docs/measurements/own_past.md). Here the text of `__init__` is compiled when the first
instance is made, so that defining a record costs no more than a plain class. Modules that a first result imports use
these, which tests/base/test_records.py checks; others may use either kind."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

R = TypeVar("R")

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    class _Tuple(tuple):
        """The methods of named tuples, which `collections.namedtuple` makes again for each class (5 kB)."""

        __slots__ = ()

        def __new__(cls, *values, **named):
            """Called for the first instance: compiles the class's own `__new__`."""
            made = next(kind for kind in cls.__mro__ if "_fields" in vars(kind))
            made.__new__ = staticmethod(_new_of(made))
            return made.__new__(cls, *values, **named)

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        __replace__ = _replace

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __repr__(self):
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
            return f"{type(self).__name__}({shown})"

        def __getnewargs__(self):
            return tuple(self)

    class _NamedTupleType(type):
        """A replacement for that of `typing.NamedTuple`, which compiles the annotation of each field (unused here, and
        the first `compile` of a process also makes the classes of syntax trees) and makes methods for each class.
        Without both, a class takes a third of the time."""

        def __new__(cls, name, bases, members):
            fields = tuple(members["__annotations__"])
            defaults = {field: members.pop(field) for field in fields if field in members}
            if len(defaults) and tuple(defaults) != fields[-len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one with a default")
            getters = {field: _tuplegetter(index, f"Field {index}.") for index, field in enumerate(fields)}
            given = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields, "__slots__": ()}
            given["__doc__"], given["__signature__"] = f"{name}({', '.join(fields)})", _Signature()
            return type(name, (_Tuple, *bases[1:]), {**given, **getters, **members})

    NamedTuple = type.__new__(_NamedTupleType, "NamedTuple", (), {})


def _new_of(made: Any) -> Callable[..., Any]:
    """The `__new__` of a named tuple, as `collections.namedtuple` has it."""
    names = ", ".join(made._fields)
    known = {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": f"namedtuple_{made.__name__}"}
    function = eval(f"lambda _cls, {names}: _tuple_new(_cls, ({names},))", known)
    function.__name__, function.__qualname__ = "__new__", f"{made.__qualname__}.__new__"
    function.__defaults__ = tuple(made._field_defaults.values())
    return function  # type: ignore[no-any-return]


class _Signature:
    """What `help` and `inspect.signature` show of a class: the parameters of its `__init__` or `__new__`."""

    def __get__(self, instance: object, made: Any) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")  # that of an instance is the one of its __call__
        import inspect

        found = inspect.signature(_new_of(made) if hasattr(made, "_fields") else _make_init(made))
        return found.replace(parameters=list(found.parameters.values())[1:])


class _Field(NamedTuple):
    default_factory: Callable[[], Any] | None
    init: bool
    compare: bool


def field(
    *, default_factory: Callable[[], Any] | None = None, init: bool = True, compare: bool = True
) -> Any:  # Any: it stands where a value of the field's own type is expected
    """A field with more than a default: with a value made for each instance, without an argument, or excluded from
    comparisons."""
    return _Field(default_factory, init, compare)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[R]) -> type[R]:
    """A class with immutable instances, which are equal if they have the same class and equal fields."""
    made: type[R] = _with_slots(cls)
    names = [name for name in field_names(made) if name not in _uncompared(made)]
    values = _values_of(names)

    def equals(self: Any, other: object) -> Any:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return self is other or values(self) == values(other)

    def refuse_change(self: Any, name: str, value: object = None) -> None:
        raise AttributeError(f"cannot change {name!r}: a {type(self).__name__} is immutable; `replace` makes another")

    for name, method in (("__eq__", equals), ("__hash__", lambda self: hash(values(self)))):
        if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
            setattr(made, name, method)
    setattr(made, "__setattr__", refuse_change)  # noqa: B010 (mypy refuses to assign to a method)
    setattr(made, "__delattr__", refuse_change)  # noqa: B010
    return made


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def mutable_record(cls: type[R]) -> type[R]:
    """A class whose fields may be assigned. Instances are compared by identity."""
    made: type[R] = _with_slots(cls)
    return made


def field_names(made: Any) -> tuple[str, ...]:
    """The fields of a record or a NamedTuple, or of its class, in order."""
    names: tuple[str, ...] = made.__match_args__
    return names


def replace(made: R, **changes: Any) -> R:
    """A record with some fields changed."""
    return type(made)(**{name: getattr(made, name) for name in _arguments(made)} | changes)


class _DataclassFields:
    """The attributes of a class that the functions of `dataclasses` (`fields`, `replace`, `asdict`) read, made at their
    first use."""

    def __get__(self, instance: object, made: Any) -> Any:
        import dataclasses

        described = []
        for name in field_names(made):
            default = made.__field_defaults__.get(name, dataclasses.MISSING)
            if isinstance(default, _Field):
                known = {"default_factory": default.default_factory} if default.default_factory else {"default": None}
                default = dataclasses.field(**known, init=default.init, compare=default.compare, repr=default.compare)
            else:
                default = dataclasses.field(default=default)
            described.append((name, Any, default))
        made.__dataclass_fields__ = vars(dataclasses.make_dataclass(made.__name__, described))["__dataclass_fields__"]
        return made.__dataclass_fields__


class _Absent:
    """The default of a parameter whose value is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


def _with_slots(cls: Any) -> Any:
    """A new class with a slot for each field: slots cannot be added to an existing class."""
    own = [name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar")]
    inherited: tuple[str, ...] = getattr(cls, "__match_args__", ())
    defaults = {**getattr(cls, "__field_defaults__", {})}
    members = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    defaults.update({name: members.pop(name) for name in own if name in members})
    members["__slots__"] = (*own, "__weakref__") if not inherited else tuple(own)
    members["__match_args__"] = (*inherited, *own)
    members["__field_defaults__"] = defaults
    members["__dataclass_fields__"], members["__signature__"] = _DataclassFields(), _Signature()
    made = type(cls)(cls.__name__, cls.__bases__, members)

    def first_init(self: Any, *arguments: Any, **keywords: Any) -> None:
        made.__init__ = _make_init(made)
        made.__init__(self, *arguments, **keywords)

    made.__init__ = first_init
    if "__repr__" not in members:
        made.__repr__ = _show
    if "__reduce__" not in members:
        made.__reduce__ = _reduce
    return made


def _make_init(made: Any) -> Callable[..., None]:
    """The `__init__` of a record, compiled from text: as fast as one written by hand."""
    names, defaults = made.__match_args__, made.__field_defaults__
    parameters, lines = [], []
    known: dict[str, Any] = {"_absent": _Absent()}
    for name in names:
        known[f"_set_{name}"] = getattr(made, name).__set__
        default = defaults.get(name, known["_absent"])
        value = name
        if isinstance(default, _Field):
            known[f"_make_{name}"] = default.default_factory
            if not default.init:
                value = "" if default.default_factory is None else f"_make_{name}()"
            elif default.default_factory is None:
                parameters.append(name)
            else:
                parameters.append(f"{name}=_absent")
                value = f"_make_{name}() if {name} is _absent else {name}"
        elif name in defaults:
            known[f"_default_{name}"] = default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        if value:
            lines.append(f"    _set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(['self', *parameters])}):\n" + "\n".join(lines or ["    pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _arguments(made: Any) -> list[str]:
    """The fields that are arguments of `__init__`; all fields for a class of `dataclasses`."""
    defaults = getattr(made, "__field_defaults__", {})
    unset = {name for name, value in defaults.items() if isinstance(value, _Field) and not value.init}
    return [name for name in field_names(made) if name not in unset]


def _uncompared(made: Any) -> list[str]:
    defaults = made.__field_defaults__
    return [name for name, value in defaults.items() if isinstance(value, _Field) and not value.compare]


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda made: ()


def _show(self: Any) -> str:
    hidden = _uncompared(type(self))
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(self) if name not in hidden)
    return f"{type(self).__qualname__}({shown})"


def _reduce(self: Any) -> tuple[Any, tuple[Any, ...]]:
    return type(self), tuple(getattr(self, name) for name in _arguments(self))
