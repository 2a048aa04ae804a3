"""Arrays on the stack whose vectors stay in registers."""

from __future__ import annotations

import pytest

from tilewright.backends.cpu.rendering.forwarded import forward_stores

ARRAY = "  %register0 = alloca [8 x float], align 64"
NEXT = "  %p = getelementptr i8, ptr %register0, i64 16"
VECTOR = "<4 x float>"


def stored(value: str, pointer: str = "%register0", kind: str = VECTOR) -> str:
    return f"  store {kind} {value}, ptr {pointer}, align 4"


def loaded(name: str, pointer: str = "%register0", kind: str = VECTOR) -> str:
    return f"  {name} = load {kind}, ptr {pointer}, align 4"


def test_a_vector_is_taken_from_the_register_that_was_stored() -> None:
    lines = [ARRAY, NEXT, stored("%a"), stored("%b", "%p"), loaded("%c"), loaded("%d", "%p")]
    assert forward_stores([*lines, "  %e = fadd <4 x float> %c, %d"]) == ["  %e = fadd <4 x float> %a, %b"]


def test_a_phi_before_the_load_takes_the_stored_vector() -> None:
    phi = "  %x = phi <4 x float> [ zeroinitializer, %entry ], [ {}, %loop ]"
    lines = [ARRAY, "loop:", phi.format("%c"), stored("%x"), stored("%a"), loaded("%c")]
    assert forward_stores(lines) == ["loop:", phi.format("%a")]


def test_stores_of_loaded_vectors_follow_the_chain() -> None:
    lines = [ARRAY, NEXT, stored("%a"), loaded("%b"), stored("%b", "%p"), loaded("%c", "%p"), stored("%c", "%out")]
    assert forward_stores(lines) == [stored("%a", "%out")]


@pytest.mark.parametrize(
    "between",
    [
        ["next:"],
        [stored("%z", "%p", "<8 x float>"), stored("%y", "%half")],
        ["  call void @f(ptr %register0)"],
        ["  %w = getelementptr float, ptr %register0, i64 %i", stored("%z", "%w", "float")],
        ["  %w = phi ptr [ %register0, %entry ], [ %p, %loop ]", stored("%z", "%w")],
    ],
    ids=["another-block", "overlap", "call", "computed-index", "phi"],
)
def test_what_may_have_changed_is_loaded(between: list[str]) -> None:
    half = "  %half = getelementptr i8, ptr %register0, i64 8"
    lines = [ARRAY, NEXT, half, stored("%a"), *between, loaded("%c"), stored("%c", "%out")]
    assert forward_stores(lines) == lines


def test_a_load_of_another_type_is_kept() -> None:
    lines = [ARRAY, stored("%a"), loaded("%c", kind="<4 x i32>"), stored("%c", "%out", "<4 x i32>")]
    assert forward_stores(lines) == lines


def test_a_load_of_some_lanes_takes_them_from_the_register() -> None:
    lines = [ARRAY, NEXT, stored("%a", kind="<8 x float>"), loaded("%c", "%p"), stored("%c", "%out")]
    taken = "  %c = shufflevector <8 x float> %a, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>"
    assert forward_stores(lines) == [taken, stored("%c", "%out")]


@pytest.mark.parametrize(
    ("offset", "kind"), [(14, "<4 x float>"), (24, "<4 x float>"), (16, "<2 x double>"), (16, "float")]
)
def test_lanes_that_a_vector_does_not_have_are_loaded(offset: int, kind: str) -> None:
    lines = [ARRAY, f"  %p = getelementptr i8, ptr %register0, i64 {offset}", stored("%a", kind="<8 x float>")]
    lines += [loaded("%c", "%p", kind), stored("%c", "%out", kind)]
    assert forward_stores(lines) == lines
