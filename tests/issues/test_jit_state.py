"""jit replayed stale Python state: of fifty kinds of state that stayed the same for three calls and then changed, 29
were replayed as they had been. Each row makes a function that reads one kind, and a change. Before and after it each
call equals that of the plain function; the rows that can be guarded are replayed again afterwards."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import datetime
import enum
import functools
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tilewright import Tensor, dtypes, jit
from tilewright.engine.jit import reach

Row = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], object]]
"""(function of a tensor and more arguments, those arguments, what changes between calls)"""
ROWS: dict[str, Callable[[], Row]] = {}
TRACED: set[str] = set()  # rows whose state cannot be compared: each call is traced


def row(name: str, traced: bool = False) -> Callable[[Callable[[], Row]], Callable[[], Row]]:
    def enter(make: Callable[[], Row]) -> Callable[[], Row]:
        assert name not in ROWS
        ROWS[name] = make
        if traced:
            TRACED.add(name)
        return make

    return enter


def holding(name: str, make: Callable[[], tuple[Any, Callable[[Any], Any], Callable[[Any], object]]]) -> None:
    """A kind of object, read as a global of the closure and as an argument."""

    def closed_over() -> Row:
        held, read, change = make()
        return (lambda x: (x * read(held)).realize()), (), lambda: change(held)

    def given() -> Row:
        held, read, change = make()
        return (lambda x, held: (x * read(held)).realize()), (held,), lambda: change(held)

    ROWS[name] = closed_over
    ROWS[f"{name}, given"] = given


# ---------------------------------------------------------------- objects


class Plain:
    shared = 2.0

    def __init__(self) -> None:
        self.rate = 2.0
        self.inner: Any = None


class Base:
    rate = 2.0


class Derived(Base):
    pass


class Meta(type):
    rate = 2.0


class WithMeta(metaclass=Meta):
    pass


class Slots:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 2.0


class WithProperty:
    scale = 2.0

    def __init__(self) -> None:
        self._rate = 1.0

    @property
    def rate(self) -> float:
        return self._rate * type(self).scale

    @functools.cached_property
    def cached(self) -> float:
        return self._rate * 2

    @staticmethod
    def static() -> float:
        return GLOBALS["number"] * 2.0

    @classmethod
    def of_class(cls) -> float:
        return cls.scale * 2


class WithGetattr:
    def __init__(self) -> None:
        self.table = {"rate": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["table"][name]


class Descriptor:
    def __init__(self) -> None:
        self.value = 2.0

    def __get__(self, instance: Any, owner: type) -> float:
        return self.value


class Described:
    rate = Descriptor()


class Vector:
    def __init__(self) -> None:
        self.rate = 2.0

    def __call__(self) -> float:
        return self.rate

    def __len__(self) -> int:
        return int(self.rate)

    def __getitem__(self, key: int) -> float:
        return self.rate + key

    def __add__(self, other: float) -> float:
        return self.rate + other


class ListWithField(list[float]):
    rate = 2.0


class Kind(enum.Enum):
    SMALL = 1.0
    LARGE = 2.0


@dataclasses.dataclass
class Settings:
    rate: float = 2.0
    name: str = "a"


@dataclasses.dataclass(slots=True)
class SlottedSettings:
    rate: float = 2.0


class Point(NamedTuple):
    x: float
    box: list[float]


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    return lambda held: setattr(held, name, value)


GLOBALS = {"number": 2}
holding("a plain object", lambda: (Plain(), lambda held: held.rate, set_to("rate", 5.0)))
holding(
    "an object within an object", lambda: (_nested(), lambda h: h.inner.rate, lambda h: set_to("rate", 5.0)(h.inner))
)
holding(
    "an object exchanged", lambda: (_nested(), lambda h: h.inner.rate, set_to("inner", types.SimpleNamespace(rate=7)))
)
holding("a data class", lambda: (Settings(), lambda held: held.rate, set_to("rate", 5.0)))
holding("a data class in slots", lambda: (SlottedSettings(), lambda held: held.rate, set_to("rate", 5.0)))
holding("a namespace", lambda: (types.SimpleNamespace(rate=2.0), lambda held: held.rate, set_to("rate", 5.0)))
holding("slots", lambda: (Slots(), lambda held: held.rate, set_to("rate", 5.0)))
holding("a property", lambda: (WithProperty(), lambda held: held.rate, set_to("_rate", 5.0)))
holding("a cached property", lambda: (WithProperty(), lambda held: held.cached, set_to("cached", 5.0)))
holding("__getattr__", lambda: (WithGetattr(), lambda held: held.rate, lambda held: held.table.update(rate=5.0)))
holding("__call__", lambda: (Vector(), lambda held: held(), set_to("rate", 5.0)))
holding("__len__", lambda: (Vector(), len, set_to("rate", 5.0)))
holding("__getitem__", lambda: (Vector(), lambda held: held[1], set_to("rate", 5.0)))
holding("an operator", lambda: (Vector(), lambda held: held + 1, set_to("rate", 5.0)))
holding("getattr", lambda: (Plain(), lambda h: getattr(h, "".join(["ra", "te"])), set_to("rate", 5.0)))
holding("vars", lambda: (Plain(), lambda held: vars(held)["rate"], set_to("rate", 5.0)))
holding("hasattr", lambda: (Plain(), lambda held: 2.0 if hasattr(held, "flag") else 3.0, set_to("flag", True)))
holding("isinstance", lambda: (Plain(), lambda h: 2.0 if isinstance(h, Base) else 3.0, set_to("__class__", Derived)))
holding("a name that hides a class attribute", lambda: (Plain(), lambda held: held.shared, set_to("shared", 5.0)))
holding(
    "a method of the object's own",
    lambda: (Vector(), lambda h: h.size() if hasattr(h, "size") else 2.0, lambda h: setattr(h, "size", lambda: 9.0)),
)
holding("a list", lambda: ([2.0, 3.0], lambda held: held[0], lambda held: held.__setitem__(0, 5.0)))
holding("the length of a list", lambda: ([2.0, 3.0], len, lambda held: held.append(5.0)))
holding("a nested list", lambda: ([[2.0], [3.0]], lambda held: held[0][0], lambda held: held[0].__setitem__(0, 5.0)))
holding("a list with fields", lambda: (ListWithField(), lambda held: held.rate, set_to("rate", 5.0)))
holding("a dict", lambda: ({"rate": 2.0}, lambda held: held["rate"], lambda held: held.update(rate=5.0)))
holding("a new key", lambda: ({"rate": 2.0}, lambda h: h.get("scale", 3.0), lambda held: held.update(scale=5.0)))
holding("the length of a dict", lambda: ({"rate": 2.0}, len, lambda held: held.update(scale=5.0)))
holding(
    "the order of a dict",
    lambda: ({"a": 2.0, "b": 3.0}, lambda held: next(iter(held.values())), lambda held: held.update(a=held.pop("a"))),
)
holding("a defaultdict", lambda: (collections.defaultdict(float, a=2.0), lambda h: h["a"], lambda h: h.update(a=5.0)))
holding(
    "an OrderedDict",
    lambda: (
        collections.OrderedDict(a=2.0, b=3.0),
        lambda held: next(iter(held.values())),
        lambda held: held.move_to_end("a"),
    ),
)
holding("a Counter", lambda: (collections.Counter("aab"), lambda h: float(h["a"]), lambda h: h.update("aaa")))
holding("a ChainMap", lambda: (collections.ChainMap({}, {"a": 2.0}), lambda h: h["a"], lambda h: h.update(a=5.0)))
holding("a set", lambda: ({1.0, 2.0}, sum, lambda held: held.add(5.0)))
holding("membership of a set", lambda: ({"relu"}, lambda h: 2.0 if "tanh" in h else 3.0, lambda held: held.add("tanh")))
holding("a deque", lambda: (collections.deque([2.0, 3.0]), lambda held: held[-1], lambda held: held.append(5.0)))
holding(
    "a named tuple with a list", lambda: (Point(1.0, [2.0]), lambda h: h.box[0], lambda h: h.box.__setitem__(0, 5.0))
)
holding("a bytearray", lambda: (bytearray(b"\x02\x03"), lambda held: held[0], lambda h: h.__setitem__(0, 5)))
holding("an array of the library", lambda: (array.array("f", [2, 3]), lambda h: h[0], lambda h: h.__setitem__(0, 5)))
holding("a memoryview", lambda: (memoryview(bytearray(b"\x02")), lambda h: h[0], lambda h: h.__setitem__(0, 5)))
holding("an element of an array", lambda: (np.ones(3), lambda h: float(h[0]), lambda held: held.__setitem__(0, 5.0)))
holding("a sum of an array", lambda: (np.ones(3), lambda h: float(h.sum()), lambda held: held.__setitem__(0, 5.0)))
holding("np.mean", lambda: (np.ones(3), lambda h: float(np.mean(h)), lambda held: held.fill(4.0)))
holding(
    "an array of objects",
    lambda: (np.array([Plain()], object), lambda h: h[0].rate, lambda h: set_to("rate", 5.0)(h[0])),
)
holding("a larger array", lambda: (np.ones(5000), lambda h: float(h[-1]), lambda held: held.__setitem__(-1, 5.0)))
holding("a view of an array", lambda: (np.ones((4, 4))[1:, ::2], lambda h: float(h[0, 0]), lambda h: h.fill(4.0)))
holding(
    "a number of NumPy's", lambda: (types.SimpleNamespace(a=np.float32(2)), lambda h: h.a, set_to("a", np.float32(5)))
)
holding("an enum", lambda: (types.SimpleNamespace(kind=Kind.SMALL), lambda h: h.kind.value, set_to("kind", Kind.LARGE)))
holding(
    "a context variable", lambda: (contextvars.ContextVar("rate", default=2.0), lambda h: h.get(), lambda h: h.set(5.0))
)
holding(
    "a weak reference",
    lambda: (
        types.SimpleNamespace(to=weakref.ref(KEPT[0])),
        lambda held: held.to().rate,
        set_to("to", weakref.ref(KEPT[1])),
    ),
)
holding(
    "a partial",
    lambda: (
        functools.partial(Plain.__getattribute__, KEPT[0], "rate"),
        lambda h: h(),
        lambda held: setattr(KEPT[0], "rate", KEPT[0].rate + 1),
    ),
)
holding("a function's attribute", lambda: (_function(), lambda held: held.rate, set_to("rate", 5.0)))
holding("a function's default", lambda: (_function(), lambda held: held(), set_to("__defaults__", ([7.0],))))
holding("a mutable default", lambda: (_function(), lambda h: h(), lambda h: h.__defaults__[0].__setitem__(0, 5.0)))
holding("a function's code", lambda: (_function(), lambda h: h(), set_to("__code__", (lambda box=(): 9.0).__code__)))
holding("a keyword default", lambda: (_function(), lambda h: h.named(), lambda h: h.named.__kwdefaults__.update(a=5.0)))
holding(
    "a bound method",
    lambda: (
        WithProperty().__class__.rate.fget.__get__(THIRD),
        lambda h: h(),
        lambda _: setattr(THIRD, "_rate", THIRD._rate + 1),
    ),
)
holding("a thread-local object", lambda: (_local(), lambda held: held.rate, set_to("rate", 5.0)))
holding(
    "a mapping proxy",
    lambda: (types.MappingProxyType(PROXIED), lambda h: h["a"], lambda _: PROXIED.update(a=PROXIED["a"] + 1)),
)
holding(
    "a lru_cache", lambda: (_cached(), lambda held: held(), lambda held: (GLOBALS.update(number=7), held.cache_clear()))
)
holding(
    "an iterator of dict items", lambda: ({"a": 2.0}, lambda h: sum(v for _, v in h.items()), lambda h: h.update(a=5.0))
)
KEPT = [Plain(), Plain()]
KEPT[1].rate = 9.0
THIRD = WithProperty()
PROXIED = {"a": 2.0}


def _nested() -> Plain:
    held = Plain()
    held.inner = Plain()
    return held


def _function() -> Any:
    def inner(box: Any = None) -> float:
        return box[0]  # type: ignore[no-any-return]

    def named(*, a: float = 2.0) -> float:
        return a

    inner.__defaults__ = ([2.0],)
    inner.rate = 2.0  # type: ignore[attr-defined]
    inner.named = named  # type: ignore[attr-defined]
    return inner


def _local() -> threading.local:
    held = threading.local()
    held.rate = 2.0
    return held


def _cached() -> Any:
    GLOBALS["number"] = 2

    @functools.lru_cache
    def read() -> float:
        return float(GLOBALS["number"])

    return read


# ---------------------------------------------------------------- classes, functions, modules


@row("a class attribute")
def _() -> Row:
    class Cfg:
        lr = 2.0

    return (lambda x: (x * Cfg.lr).realize()), (), lambda: setattr(Cfg, "lr", 5.0)


@row("a class attribute through an object")
def _() -> Row:
    class Cfg:
        lr = 2.0

    held = Cfg()
    return (lambda x, c: (x * c.lr).realize()), (held,), lambda: setattr(Cfg, "lr", 5.0)


@row("an inherited attribute")
def _() -> Row:
    class Cfg(Base):
        pass

    def change() -> None:
        Cfg.rate = 5.0

    return (lambda x, c: (x * c.rate).realize()), (Cfg(),), change


@row("an attribute of the base")
def _() -> Row:
    class Root:
        rate = 2.0

    class Cfg(Root):
        pass

    return (lambda x, c: (x * c.rate).realize()), (Cfg(),), lambda: setattr(Root, "rate", 5.0)


@row("an attribute of the metaclass")
def _() -> Row:
    Meta.rate = 2.0
    return (lambda x: (x * WithMeta.rate).realize()), (), lambda: setattr(Meta, "rate", 5.0)


@row("a descriptor")
def _() -> Row:
    inner: Any = vars(Described)["rate"]
    inner.value = 2.0
    return (lambda x, held: (x * held.rate).realize()), (Described(),), lambda: setattr(inner, "value", 5.0)


@row("a property's class attribute")
def _() -> Row:
    WithProperty.scale = 2.0
    return (lambda x, held: (x * held.rate).realize()), (WithProperty(),), lambda: setattr(WithProperty, "scale", 5.0)


@row("a static method's global")
def _() -> Row:
    GLOBALS["number"] = 2
    return (lambda x, h: (x * h.static()).realize()), (WithProperty(),), lambda: GLOBALS.update(number=5)


@row("a class method")
def _() -> Row:
    WithProperty.scale = 2.0
    return (lambda x: (x * WithProperty.of_class()).realize()), (), lambda: setattr(WithProperty, "scale", 5.0)


@row("a class of a data class argument")
def _() -> Row:
    @dataclasses.dataclass
    class Cfg:
        name: str = "a"

    Cfg.rate = 2.0  # type: ignore[attr-defined]
    return (lambda x, c: (x * c.rate).realize()), (Cfg(),), lambda: setattr(Cfg, "rate", 5.0)


@row("a method exchanged")
def _() -> Row:
    class Layer:
        def scale(self) -> float:
            return 2.0

    return (lambda x, h: (x * h.scale()).realize()), (Layer(),), lambda: setattr(Layer, "scale", lambda self: 5.0)


@row("a special method exchanged")
def _() -> Row:
    class Layer:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 2

    return (lambda x, h: h(x).realize()), (Layer(),), lambda: setattr(Layer, "__call__", lambda self, x: x * 5)


@row("a method of the package exchanged")
def _() -> Row:
    def restore() -> None:
        Tensor.doubled = lambda self: self * 5  # type: ignore[attr-defined]

    Tensor.doubled = lambda self: self * 2  # type: ignore[attr-defined]
    return (lambda x: x.doubled().realize()), (), restore


@row("a global number")
def _() -> Row:
    global NUMBER
    NUMBER = 2.0

    def change() -> None:
        global NUMBER
        NUMBER = 5.0

    return (lambda x: (x * NUMBER).realize()), (), change


@row("a global function")
def _() -> Row:
    global helper
    helper = lambda: 2.0  # noqa: E731

    def change() -> None:
        global helper
        helper = lambda: 5.0  # noqa: E731

    return (lambda x: (x * helper()).realize()), (), change


@row("a global that hides a builtin")
def _() -> Row:
    globals().pop("abs", None)
    return (lambda x: (x * abs(-2.0)).realize()), (), lambda: globals().update(abs=lambda _: 5.0)


@row("a variable of the closure")
def _() -> Row:
    rate = 2.0

    def change() -> None:
        nonlocal rate
        rate = 5.0

    return (lambda x: (x * rate).realize()), (), change


@row("a variable of the closure of a helper")
def _() -> Row:
    rate = 2.0

    def inner() -> float:
        return rate

    def change() -> None:
        nonlocal rate
        rate = 5.0

    return (lambda x: (x * inner()).realize()), (), change


@row("a comprehension's global")
def _() -> Row:
    GLOBALS["number"] = 2
    return (lambda x: (x * sum(GLOBALS["number"] for _ in range(2))).realize()), (), lambda: GLOBALS.update(number=5)


@row("a function called by the package")
def _() -> Row:
    held = Plain()
    layers = [lambda x: x * held.rate, lambda x: x + 1]
    return (lambda x: x.sequential(layers).realize()), (), lambda: setattr(held, "rate", 5.0)


def new_module() -> types.ModuleType:
    module = types.ModuleType("a_module_of_the_user")
    vars(module).update(rate=2.0, items=[2.0, 3.0], held=Plain(), table={"a": 2.0})
    sys.modules["a_module_of_the_user"] = module
    return module


for _name, _read, _change in (
    ("a module's number", lambda m: m.rate, lambda m: setattr(m, "rate", 5.0)),
    ("a module's list", lambda m: m.items[0], lambda m: m.items.__setitem__(0, 5.0)),
    ("the length of a module's list", lambda m: len(m.items), lambda m: m.items.append(5.0)),
    ("a module's object", lambda m: m.held.rate, lambda m: setattr(m.held, "rate", 5.0)),
    ("a module's dict", lambda m: m.table["a"], lambda m: m.table.update(a=5.0)),
):
    holding(_name, lambda read=_read, change=_change: (new_module(), read, change))  # type: ignore[misc]


@row("a module imported inside")
def _() -> Row:
    module = new_module()

    def function(x: Tensor) -> Tensor:
        import a_module_of_the_user as inner

        return (x * inner.rate).realize()

    return function, (), lambda: setattr(module, "rate", 5.0)


@row("os.environ")
def _() -> Row:
    os.environ["TEST_JIT_STATE"] = "2"
    return (
        (lambda x: (x * float(os.environ["TEST_JIT_STATE"])).realize()),
        (),
        lambda: os.environ.update(TEST_JIT_STATE="5"),
    )


@row("os.getenv")
def _() -> Row:
    os.environ["TEST_JIT_STATE"] = "2"
    return (
        (lambda x: (x * float(os.getenv("TEST_JIT_STATE", "0"))).realize()),
        (),
        lambda: os.environ.update(TEST_JIT_STATE="5"),
    )


@row("a new environment variable")
def _() -> Row:
    os.environ.pop("TEST_JIT_STATE", None)
    return (
        (lambda x: (x * float(os.environ.get("TEST_JIT_STATE", "2"))).realize()),
        (),
        lambda: os.environ.update(TEST_JIT_STATE="5"),
    )


# ---------------------------------------------------------------- what cannot be compared


@row("os.getcwd", traced=True)
def _() -> Row:
    here = os.getcwd()
    return (lambda x: (x * len(os.getcwd())).realize()), (), lambda: os.chdir("/" if here != "/" else "/tmp")


@row("a file", traced=True)
def _() -> Row:
    path = Path(os.environ["TILEWRIGHT_CACHE_DIR"]) / "test_jit_state_factor"
    path.write_text("2")

    def function(x: Tensor) -> Tensor:
        with open(path) as opened:
            return (x * float(opened.read())).realize()

    return function, (), lambda: path.write_text("5")


@row("the random module", traced=True)
def _() -> Row:
    def function(x: Tensor) -> Tensor:
        random.seed(GLOBALS["number"])
        return (x * random.random()).realize()

    return function, (), lambda: GLOBALS.update(number=GLOBALS["number"] + 1)


@row("numpy.random", traced=True)
def _() -> Row:
    np.random.seed(0)
    state = np.random.get_state()

    def function(x: Tensor) -> Tensor:
        np.random.set_state(state)
        return (x * float(np.random.rand())).realize()

    def change() -> None:
        nonlocal state
        np.random.seed(1)
        state = np.random.get_state()

    return function, (), change


@row("an array too large to compare", traced=True)
def _() -> Row:
    data = np.ones(1 << 20)
    return (lambda x: (x * float(data[0])).realize()), (), lambda: data.__setitem__(0, 5.0)


@row("the day", traced=True)
def _() -> Row:
    held = Plain()
    return (
        (lambda x: (x * (datetime.datetime.now().year > 0) * held.rate).realize()),
        (),
        lambda: setattr(held, "rate", 5.0),
    )


# ---------------------------------------------------------------- state of the package


@row("the default float")
def _() -> Row:
    dtypes.default_float = dtypes.float32
    return (
        (lambda x: (x * Tensor.ones(3).cast("float64").sum()).realize().float() + Tensor.zeros(1).dtype.itemsize),
        (),
        (lambda: setattr(dtypes, "default_float", dtypes.float64)),
    )


@row("whether a tensor requires a gradient")
def _() -> Row:
    weight = Tensor([2.0]).realize()
    return (
        (lambda x: (x * (2.0 if weight.requires_grad else 3.0) * weight).realize()),
        (),
        lambda: weight.requires_grad_(),
    )


@row("an attribute of a tensor")
def _() -> Row:
    weight: Any = Tensor([2.0]).realize()
    weight.scale = 2.0
    return (lambda x: (x * weight.scale * weight).realize()), (), lambda: setattr(weight, "scale", 5.0)


@row("a tensor exchanged")
def _() -> Row:
    held = types.SimpleNamespace(weight=Tensor([2.0]).realize())
    return (lambda x: (x * held.weight).realize()), (), lambda: setattr(held, "weight", Tensor([5.0]).realize())


@pytest.fixture(autouse=True)
def restore_process() -> Iterator[None]:
    here, default = os.getcwd(), dtypes.default_float
    yield
    os.chdir(here)
    dtypes.default_float = default
    globals().pop("abs", None)
    os.environ.pop("TEST_JIT_STATE", None)
    if hasattr(Tensor, "doubled"):
        del Tensor.doubled


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
@pytest.mark.parametrize("name", ROWS)
def test_what_has_changed_is_never_replayed_as_it_was(name: str) -> None:
    function, args, change = ROWS[name]()
    call = jit(function)
    x = Tensor([1.0, 2.0]).realize()
    before: list[float] = []
    for number in range(4):
        before = function(x, *args).tolist()
        assert call(x, *args).tolist() == before
        assert number < 2 or bool(call.last_reason) == (name in TRACED), call.last_reason
    change()
    after = function(x, *args).tolist()
    assert after != before, "the change must show"
    for number in range(4):
        assert call(x, *args).tolist() == after, call.last_reason
        assert number < 3 or bool(call.last_reason) == (name in TRACED), call.last_reason


def test_a_walk_over_many_functions_reads_their_code_once() -> None:
    """A test case of unittest that is run by pytest leads to every other test: each call took seconds to trace."""
    assert reach.MAX_CODES > reach.MAX_OBJECTS
    functions = [eval(f"lambda x: x * K{number}", {f"K{number}": 2}) for number in range(6000)]
    for _ in range(2):
        before = reach._globals_named.cache_info().misses
        walk = reach.Reach(Tensor)
        walk.walk([(functions, "functions")])
        read = reach._globals_named.cache_info().misses - before
    assert walk.is_complete
    assert read == 0


def test_a_walk_over_many_modules_reads_the_names_of_a_code_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each module the names of all codes were united again: in a process with many modules a first call that
    defines a parameter took a minute to trace."""
    functions = []
    for number in range(50):
        module = types.ModuleType(f"module{number}")
        exec(f"def function(x): return x * K{number}", vars(module))
        functions.append(eval("lambda x: module.function(x)", {"module": module}))
    read = collections.Counter[types.CodeType]()
    monkeypatch.setattr(reach, "names_in", lambda code: read.update([code]) or code.co_names)
    walk = reach.Reach(Tensor)
    walk.walk([(functions, "functions")])
    assert len(read) >= 51  # the lambdas are alike
    assert read.total() < 2 * len(read)
