"""What a jitted call leaves behind and returns, and jit that never replayed. `.grad` showed an earlier call's values
after a replay; results that are no tensors were frozen; a tensor made in the call with `requires_grad_()` and a lazy
weight from outside made every call a trace, without a word."""

from __future__ import annotations

import collections
import copy
import ctypes
import dataclasses
import functools
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tilewright import Context, Tensor, jit
from tilewright.base.errors import JitError, UnsupportedError
from tilewright.base.warning import JitWarning
from tilewright.engine.memory import live


class Plain:
    def __init__(self) -> None:
        self.rate = 2.0


@dataclasses.dataclass
class Settings:
    rate: float = 2.0
    name: Any = "a"


class Point(NamedTuple):
    x: Any
    box: list[float]


# ---------------------------------------------------------------- results that are no tensors


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_the_clock_in_a_result_goes_on() -> None:
    call = jit(lambda x: (x * 2, [time.perf_counter()]))
    x = Tensor([1.0]).realize()
    seen = [call(x)[1][0] for _ in range(6)]
    assert len(set(seen)) == len(seen)
    assert "perf_counter" in call.last_reason


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_an_iterator_from_outside_goes_on() -> None:
    numbers = iter([1.0, 1.0, 1.0, 1.0, 5.0, 6.0])
    call = jit(lambda x: (x * next(numbers)).realize())
    x = Tensor([1.0]).realize()
    assert [call(x).item() for _ in range(6)] == [1.0, 1.0, 1.0, 1.0, 5.0, 6.0]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_an_argument_that_is_changed_is_changed_by_every_call() -> None:
    def append(x: Tensor, found: list[float]) -> Tensor:
        found.append(1.0)
        return (x * 2).realize()

    call = jit(append)
    for _ in range(5):
        found: list[float] = []
        call(Tensor([1.0]), found)
        assert found == [1.0]


def test_parts_of_a_result_keep_their_kind() -> None:
    def function(x: Tensor) -> Any:
        settings = Settings(rate=3.0)
        settings.name = (x * 3).realize()
        named = Point((x * 5).realize(), [2.0])
        more = collections.OrderedDict(b=x * 2, a=1.5), types.SimpleNamespace(y=x + 1), collections.deque([x * 4])
        return settings, named, *more, np.float32(3), np.arange(3)

    call = jit(function)
    for number in range(5):
        settings, named, ordered, namespace, queue, scalar, values = call(Tensor([float(number)]))
        assert (type(settings), settings.rate, settings.name.item()) == (Settings, 3.0, 3.0 * number)
        assert (type(named), named.x.item(), named.box) == (Point, 5.0 * number, [2.0])
        assert (type(ordered), list(ordered), ordered["b"].item()) == (
            collections.OrderedDict,
            ["b", "a"],
            2.0 * number,
        )
        assert (type(queue), queue[0].item(), namespace.y.item()) == (collections.deque, 4.0 * number, number + 1.0)
        assert (type(scalar), scalar) == (np.float32, 3.0)
        values += 1  # nobody else sees this
    assert call.last_reason == ""


def test_a_generator_is_refused_where_it_is_jitted() -> None:
    def items(x: Tensor) -> Iterator[Tensor]:
        yield x

    async def later(x: Tensor) -> Tensor:
        return x

    for function in (items, functools.partial(items), later):
        with pytest.raises(JitError, match="runs only after the call") as caught:
            jit(function)
        assert caught.value.location is not None
        assert caught.value.location[0] == __file__
    for lazy in (lambda x: (x * n for n in range(2)), lambda x: map(x.__mul__, range(2))):
        with pytest.raises(JitError, match="return a list"):
            jit(lazy)(Tensor([1.0]))
    with pytest.raises(JitError, match="cannot be called"):
        jit(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- tensors that are left behind


def both(make: Callable[[], tuple[Callable[..., Any], Callable[[], Any]]], count: int = 6) -> Any:
    """Runs a function plainly and jitted and compares results and what `look` shows after each call."""
    (plain, look_plain), (function, look) = make(), make()
    call = jit(function)
    for number in range(count):
        x = Tensor([1.0 + number, 2.0]).realize()
        expected, found = plain(x).tolist(), call(x).tolist()
        assert found == expected
        assert look() == look_plain()
    return call


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the argument": lambda w, x: (w * x).sum(),
    "a view of the argument": lambda w, x: (w.reshape(1, 2) * x.reshape(1, 2)).sum(),
    "a flipped argument": lambda w, x: (w * x.flip(0)).sum(),
    "computed": lambda w, x: (w * w * x).sum(),
    "a constant": lambda w, x: (w + x).sum(),
    "the weight": lambda w, x: (w * w.detach() + x).sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_that_of_the_last_call(name: str) -> None:
    def make() -> tuple[Callable[..., Any], Callable[[], Any]]:
        w = Tensor([3.0, 4.0], requires_grad=True).realize()

        def step(x: Tensor) -> Tensor:
            w.grad = None
            loss = GRADIENTS[name](w, x)
            loss.backward()
            return loss.realize()

        return step, lambda: w.grad.tolist()  # type: ignore[union-attr]

    assert both(make).last_reason == ""


def test_a_gradient_that_is_held_keeps_its_value() -> None:
    w = Tensor([3.0, 4.0], requires_grad=True).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss.realize()

    held = []
    for number in range(6):
        step(Tensor([1.0 + number, 2.0]))
        held.append(w.grad)
    assert step.last_reason == ""
    assert [grad.tolist() for grad in held if grad is not None] == [[1.0 + number, 2.0] for number in range(6)]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_gradients_add_up_where_nobody_forgets_them() -> None:
    def make() -> tuple[Callable[..., Any], Callable[[], Any]]:
        w = Tensor([3.0, 4.0], requires_grad=True).realize()

        def step(x: Tensor) -> Tensor:
            loss = (w * w * x).sum()
            loss.backward()
            return loss.realize()

        return step, lambda: w.grad.tolist()  # type: ignore[union-attr]

    both(make)


def test_forgetting_a_gradient_outside_is_seen() -> None:
    w = Tensor([3.0, 4.0], requires_grad=True).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss.realize()

    for number in range(4):
        w.grad = None
        step(Tensor([1.0 + number, 2.0]))
        assert w.grad is not None
        assert w.grad.tolist() == [1.0 + number, 2.0]
    assert step.last_reason == ""
    step(Tensor([1.0, 2.0]))  # it was not forgotten, so the new one is added
    assert w.grad is not None
    assert w.grad.tolist() == [5.0, 4.0]


def test_a_gradient_of_an_argument() -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss.realize()

    for number in range(5):
        x = Tensor([1.0 + number, 2.0], requires_grad=True).realize()
        step(x)
        assert x.grad is not None
        assert x.grad.tolist() == [2.0 + 2 * number, 4.0]
    assert step.last_reason == ""


PLACES: dict[str, Callable[[Any, Tensor], None]] = {
    "an attribute": lambda held, y: setattr(held, "last", y),
    "an entry": lambda held, y: held.table.__setitem__("last", y),
    "an item": lambda held, y: held.items.__setitem__(0, y),
    "a class attribute": lambda held, y: setattr(type(held), "shared_last", y),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_tensor_left_in_a_place_is_that_of_the_last_call(name: str) -> None:
    def make() -> tuple[Callable[..., Any], Callable[[], Any]]:
        class Holder:
            shared_last: Any = None

        held: Any = Holder()
        held.last, held.table, held.items = None, {"last": None}, [None]

        def step(x: Tensor) -> Tensor:
            PLACES[name](held, x * 3)
            return (x + 1).realize()

        def look() -> Any:
            places = (held.last, held.table["last"], held.items[0], type(held).shared_last)
            return [place.tolist() for place in places if place is not None]

        return step, look

    assert both(make).last_reason == ""


def test_a_tensor_left_in_a_variable_is_that_of_the_last_call() -> None:
    def make() -> tuple[Callable[..., Any], Callable[[], Any]]:
        last: Any = None

        def step(x: Tensor) -> Tensor:
            nonlocal last
            last = x * 3
            return (x + 1).realize()

        return step, lambda: last.tolist()

    assert both(make).last_reason == ""


# ---------------------------------------------------------------- jit that never replayed


def test_a_parameter_made_inside_is_replayed() -> None:
    @jit
    def slope(x: Tensor) -> Tensor:
        point = x.detach().requires_grad_()
        (point * point * point).sum().backward()
        assert point.grad is not None
        return point.grad.realize()

    for number in range(5):
        assert slope(Tensor([float(number), 2.0])).tolist() == [3.0 * number * number, 12.0]
        assert number < 2 or slope.last_reason == ""


def test_a_parameter_made_inside_and_returned_has_memory_of_its_own() -> None:
    call = jit(lambda x: (x * 2).requires_grad_())
    found = [call(Tensor([float(number)]).realize()) for number in range(6)]
    assert call.last_reason == ""
    assert [value.item() for value in found] == [2.0 * number for number in range(6)]


@pytest.mark.parametrize("is_state", [False, True])
def test_a_lazy_weight_from_outside_is_replayed(is_state: bool) -> None:
    lazy = Tensor.rand(3) * 0.02
    holder = types.SimpleNamespace(weight=lazy)
    call = jit((lambda x: (x * holder.weight).realize()) if is_state else (lambda x: (x * lazy).realize()))
    expected = lazy.tolist()
    for number in range(5):
        assert call(Tensor([1.0, 1.0, 1.0])).tolist() == expected
        assert number < 2 or call.last_reason == ""


def test_a_broken_tensor_that_is_only_reached_does_no_harm() -> None:
    holder = types.SimpleNamespace(weight=Tensor([2.0]).realize(), broken=Tensor([1.0, 2.0]).realize())
    holder.broken.assign(holder.broken + 1)
    holder.broken.uop = holder.broken.uop.replace(src=(holder.broken.uop.src[0], *holder.broken.uop.src[1:]))
    call = jit(lambda x: (x * holder.weight).realize())
    for number in range(4):
        assert call(Tensor([3.0])).tolist() == [6.0]
        assert number < 2 or call.last_reason == ""


def test_never_replayed_is_said_once_at_the_users_line() -> None:
    @jit
    def read(x: Tensor) -> Tensor:
        return (x * (x.sum().item() > 0)).realize()

    x = Tensor([1.0]).realize()
    read(x)
    read(x)
    with pytest.warns(JitWarning, match="read is traced at every call.*reads the contents of a tensor") as caught:
        read(x)
    assert caught[0].filename == __file__
    for _ in range(5):
        read(x)  # a second warning would be an error here


def test_what_changes_at_every_call_is_named() -> None:
    held = Plain()
    call = jit(lambda x: (x * held.rate).realize())
    x = Tensor([1.0]).realize()

    def run() -> None:
        for number in range(8):
            held.rate = float(number // 2)  # two calls agree, the third finds another number
            assert call(x).item() == held.rate

    with pytest.warns(JitWarning) as caught:
        run()
    assert len(caught) == 1
    for _ in range(3):
        call(x)
    held.rate = 50.0
    call(x)
    assert "held.rate has changed" in call.last_reason


def test_new_objects_at_every_call_are_said_and_forgotten() -> None:
    call = jit(lambda x, held: (x * held.rate).realize())
    x = Tensor([1.0]).realize()
    with pytest.warns(JitWarning, match="other arguments"):
        assert [call(x, Plain()).item() for _ in range(300)] == [2.0] * 300
    assert len(call.entries) <= 256


def test_a_data_class_of_tensors_is_replayed_with_new_ones() -> None:
    call = jit(lambda batch: (batch.x * batch.scale).realize())
    for number in range(5):
        batch = types.SimpleNamespace(x=Tensor([float(number)]), scale=2.0)
        assert call(batch).item() == 2.0 * number
        assert number < 2 or call.last_reason == ""


def test_a_model_that_is_given_is_replayed() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = Tensor([2.0]).realize()

    def step(model: Model, x: Tensor) -> Tensor:
        model.weight.assign(model.weight + x)
        return (model.weight * 1).realize()

    call, model = jit(step), Model()
    assert [call(model, Tensor([1.0])).item() for _ in range(6)] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert call.last_reason == ""


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")  # from Python 3.12 on, calls are traced then
def test_a_profiler_of_the_users_goes_on() -> None:
    import cProfile

    profiler = cProfile.Profile()
    call = jit(lambda x: (x * 2).realize())
    profiler.enable()
    try:
        for number in range(4):
            call(Tensor([1.0]))
            sum([number])
    finally:
        profiler.disable()
    seen = {entry.code: entry.callcount for entry in profiler.getstats()}
    assert seen["<built-in method builtins.sum>"] >= 4


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_a_native_profiler_that_python_cannot_call_goes_on() -> None:
    """Calls under pyinstrument failed: `sys.setprofile` took what `sys.getprofile` had given, and cannot call it."""
    events: list[int] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    note = kind(lambda state, frame, event, argument: events.append(event) or 0)
    state = [0]
    recorded, call = jit(lambda x: (x * 3).realize()), jit(lambda x: (x * 2).realize())
    for _ in range(3):
        recorded(Tensor([1.0]))
    ctypes.pythonapi.PyEval_SetProfile(note, ctypes.py_object(state))
    try:
        assert sys.getprofile() is state
        assert [call(Tensor([value])).item() for value in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
        assert sys.getprofile() is state
        assert recorded(Tensor([5.0])).item() == 15.0
        assert recorded.last_reason == ""
    finally:
        sys.setprofile(None)
    assert events
    assert "a profiler is active" in call.last_reason


@pytest.mark.parametrize("option", [{"DEVICE": "PYTHON"}])
def test_the_default_device_is_guarded(option: dict[str, str]) -> None:
    call = jit(lambda x: Tensor.ones(2).realize())
    x = Tensor([1.0]).realize()
    for _ in range(4):
        assert call(x).device == "CPU"
    with Context(**option):
        for _ in range(4):
            assert call(x).device == "PYTHON"


# ---------------------------------------------------------------- many tensors, copies


def test_an_update_does_not_look_through_all_that_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 60 microseconds took 787 ms beside 100,000 tensors."""
    weight, other = Tensor([1.0, 2.0]).realize(), Tensor([[1.0], [2.0]]).contiguous().realize()

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        other.assign(other * 2)
        return (weight.sum() + other.sum()).realize()

    x = Tensor([1.0, 1.0]).realize()
    for _ in range(4):
        step(x)
    held = weight * 10  # reads the contents: these are kept, and the step is done without a replay
    step(x)
    assert "still reads" in step.last_reason
    assert held.tolist() == [50.0, 60.0]
    del held
    step(x)

    def fail() -> list[Any]:
        raise AssertionError("every live tensor was looked at")

    monkeypatch.setattr(live, "holders", fail)
    for _ in range(3):
        step(x)
        assert step.last_reason == ""
    assert weight.tolist() == [10.0, 11.0]


@jit
def decorated(x: Tensor) -> Tensor:
    return (x * 2).realize()


def plain(x: Tensor) -> Tensor:
    return (x * 3).realize()


class Model:
    def __init__(self) -> None:
        self.rate = 4.0

    @jit
    def step(self, x: Tensor) -> Tensor:
        return (x * self.rate).realize()


class Slotted:
    __slots__ = ("__weakref__", "rate")

    def __init__(self) -> None:
        self.rate = 4.0

    @jit
    def step(self, x: Tensor) -> Tensor:
        return (x * self.rate).realize()


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy])
def test_jitted_functions_are_pickled_and_copied(again: Callable[[Any], Any]) -> None:
    x = Tensor([1.0]).realize()
    model, jitted = Model(), jit(plain)
    for _ in range(3):
        decorated(x)
        jitted(x)
        model.step(x)
    assert again(decorated) is decorated
    copied = again(jitted)
    assert copied is not jitted
    assert [copied(x).item() for _ in range(4)] == [3.0] * 4
    assert copied.last_reason == ""
    other = again(model)
    other.rate = 7.0
    assert [other.step(x).item() for _ in range(4)] == [7.0] * 4
    assert other.step.last_reason == ""
    assert model.step(x).item() == 4.0


def test_a_jitted_method_of_slots_is_replayed() -> None:
    held = Slotted()
    assert [held.step(Tensor([1.0])).item() for _ in range(4)] == [4.0] * 4
    assert held.step.last_reason == ""
    held.rate = 5.0
    assert held.step(Tensor([1.0])).item() == 5.0


def test_gradients_through_a_replayed_result_are_refused() -> None:
    """A replay makes no graph: the gradient of `(h * w).sum()` lost the part that flows through h, from the third call
    on."""
    w = Tensor([1.0, 1.0], requires_grad=True)

    @jit
    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, (x + w).detach()

    for _ in range(4):
        through, cut = scaled(Tensor([1.0, 2.0]))
    assert scaled.last_reason == ""
    with pytest.raises(UnsupportedError, match="a replay makes no graph"):
        (through * w).sum().backward()
    with pytest.raises(UnsupportedError, match="a replay makes no graph"):
        (through * w).sum().gradient(w)
    assert ((through.detach() + cut) * w).sum().gradient(w)[0].tolist() == [3.0, 5.0]
    assert (through * w).sum().gradient(through)[0].tolist() == [1.0, 1.0]
