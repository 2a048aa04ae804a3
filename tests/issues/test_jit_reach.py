"""What a jitted function returns and reaches that was there before the call. A replay gave another tensor in place of
the one that the function returned: while the caller held it, no call was a replay. To look through a large heap, which
is then refused, took seconds at every call."""

from __future__ import annotations

import argparse
import dis
import types
from collections.abc import Callable
from typing import Any

import pytest

from tilewright import Tensor, jit
from tilewright.engine.jit import reach as module
from tilewright.engine.jit.reach import MAX_NAME, MAX_OBJECTS, Reach

ENTRIES, OBJECTS = 1 << 12, 1000


def test_a_replay_returns_the_tensor_that_the_function_reaches() -> None:
    weight = Tensor([0.0, 10.0]).contiguous().realize()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        weight.assign(weight + x)
        return weight.realize(), (weight * 2).realize()

    jitted = jit(step)
    x = Tensor([1.0, 2.0]).realize()
    held = [jitted(x) for _ in range(6)]
    assert jitted.last_reason == ""
    assert all(result is weight for result, _ in held)
    assert weight.tolist() == [6.0, 22.0]
    assert [doubled.tolist() for _, doubled in held] == [[2.0 * n, 20.0 + 4.0 * n] for n in range(1, 7)]


@pytest.mark.parametrize("is_assigned", [True, False])
def test_a_replay_returns_the_argument_that_the_function_returns(is_assigned: bool) -> None:
    def step(first: Tensor, second: Tensor) -> dict[str, Tensor]:
        if is_assigned:
            first.assign(first + second)
        return {"sum": (first + second).realize(), "first": first.realize()}

    jitted = jit(step)
    second = Tensor([1.0]).realize()
    for start in (0.0, 5.0):
        first = Tensor([start]).contiguous().realize()
        held = [jitted(first, second) for _ in range(5)]
        assert all(result["first"] is first for result in held)
        assert first.item() == (start + 5.0 if is_assigned else start)
        assert held[-1]["sum"].item() == first.item() + 1.0
    assert jitted.last_reason == ""


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_a_view_of_what_is_updated_keeps_its_contents() -> None:
    weight = Tensor([0.0, 10.0]).contiguous().realize()

    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return weight.reshape(2, 1).realize()

    jitted = jit(step)
    x = Tensor([1.0, 2.0]).realize()
    held = [jitted(x) for _ in range(6)]
    assert [result.tolist() for result in held] == [[[float(n)], [10.0 + 2.0 * n]] for n in range(1, 7)]


def test_an_assert_does_not_lead_into_pytest() -> None:
    """Its rewritten code names `@pytest_ar`, the module that describes failures: a function that asserted something was
    compared with all of pytest before each call, and took seconds to trace."""

    def step(x: Tensor) -> Tensor:
        assert x.shape == (1,)
        return (x + 1).realize()

    assert "@pytest_ar" in step.__code__.co_names
    reach = Reach(Tensor)
    reach.walk([(step, "the function")])
    assert [function for function, *_ in reach.guards.functions] == [step]
    jitted = jit(step)
    assert [jitted(Tensor([float(n)])).item() for n in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert jitted.last_reason == ""


class Link:
    def __init__(self, following: Link | None) -> None:
        self.following = following


def chain(length: int) -> Link:
    head = None
    for _ in range(length):
        head = Link(head)
    assert head is not None
    return head


HEAPS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {number: [number] for number in range(ENTRIES + 1)},
    "list": lambda: [object()] * (ENTRIES + 1),
    "lists": lambda: [[object()] * (ENTRIES // 4) for _ in range(8)],
    "chain": lambda: chain(2 * OBJECTS),
}


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
@pytest.mark.parametrize("kind", list(HEAPS))
def test_a_large_heap_is_refused_after_a_bounded_walk(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", ENTRIES)
    monkeypatch.setattr(module, "MAX_OBJECTS", OBJECTS)
    heap = HEAPS[kind]()
    function = jit(lambda x: (x + (heap.following is not None if kind == "chain" else bool(heap))).realize())
    x = Tensor([1.0]).realize()
    assert [function(x).item() for _ in range(3)] == [2.0] * 3
    assert function.last_reason == "it reads more than can be compared before each call"
    reach = Reach(Tensor)
    reach.walk([(function.function, "the function")])
    guards = reach.guards
    assert len(guards.values) + sum(len(items) for _, items in guards.sequences) <= ENTRIES + OBJECTS
    assert len(guards.names) <= 2 * OBJECTS + 10
    assert max(map(len, guards.names.values())) <= 2 * MAX_NAME


def test_a_large_table_of_numbers_is_compared() -> None:
    table = {str(number): number for number in range(MAX_OBJECTS + 10)}
    function = jit(lambda x: (x * table["7"]).realize())
    x = Tensor([1.0]).realize()
    assert [function(x).item() for _ in range(4)] == [7.0] * 4
    assert function.last_reason == ""
    table["7"] = 8
    assert function(x).item() == 8.0


def test_a_method_that_a_user_gives_tensors_later_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of tensors' classes are looked through once, and again where one was exchanged."""
    function = jit(lambda x: x.neg().realize())
    x = Tensor([1.0]).realize()
    assert [function(x).item() for _ in range(3)] == [-1.0] * 3
    for factor in (3.0, 4.0):
        monkeypatch.setattr(Tensor, "neg", lambda self, factor=factor: self * factor)
        fresh = jit(lambda x: x.neg().realize())
        assert [fresh(x).item() for _ in range(3)] == [factor] * 3
        assert fresh.last_reason == ""
    monkeypatch.setattr(Tensor, "neg", lambda self: self * 5.0)
    assert fresh(x).item() == 5.0


def test_the_globals_and_imports_of_a_code_are_those_that_dis_shows() -> None:
    """Also where an argument needs more than a byte, in modules, class bodies and nested functions."""
    long = "\n".join(f"x{number} = y{number} + abs(z{number})" for number in range(300))
    long += "\nimport a.b, c as d\nfrom e.f import g"
    texts = [long, "def f():\n" + "\n".join(f" {line}" for line in long.splitlines()), "class C:\n  a = b(c)"]
    pending = [compile(text, "texts", "exec") for text in texts]
    pending += [value.__code__ for value in vars(argparse).values() if isinstance(value, types.FunctionType)]
    for code in pending:
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        shown = (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        assert module._globals_named(code) == tuple(dict.fromkeys(shown))
        imported = (step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")
        assert module._modules_named(code) == tuple(dict.fromkeys(imported))
