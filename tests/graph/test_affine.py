"""Affine forms: what they hold, that they are exact, and that going back gives one node for equal sums."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.affine import TERM_LIMIT, Affine, affine, coefficient, from_affine, order_key, ring_form
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import substitute


def variable(name: str, low: int = 0, high: int = 9, dtype: DType = dtypes.index) -> UOp:
    return UOp(Ops.VARIABLE, dtype, (), (name, low, high))


def axis(number: int, size: int) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), AxisType.LOOP))


X, Y, Z = variable("x"), variable("y"), variable("z")
SMALL = variable("small", 0, 9, dtypes.int32)
WIDE = variable("wide", -(2**31), 2**31 - 1, dtypes.int32)
BYTE = variable("byte", 0, 9, dtypes.uint8)


@pytest.mark.parametrize(
    ("node", "terms", "constant"),
    [
        (index_const(7), {}, 7),
        (X, {X: 1}, 0),
        (X + 3, {X: 1}, 3),
        (X - Y, {X: 1, Y: -1}, 0),
        (-(X - 4), {X: -1}, 4),
        ((X * 4 + Y) * 3 - 5, {X: 12, Y: 3}, -5),
        (X - X, {}, 0),
        (X << 3, {X: 8}, 0),
        (X * Y, {X * Y: 1}, 0),
        (X * Y * 2 + X * Y, {X * Y: 3}, 0),
        (X // 4 * 4 + X % 4, {X // 4: 4, X % 4: 1}, 0),
        (X * 0 + 2, {}, 2),
        (X.maximum(Y) + 1, {X.maximum(Y): 1}, 1),
        # Fixed width: only where no value wraps.
        (SMALL * 4 + 3, {SMALL: 4}, 3),
        (WIDE + 1, {WIDE + 1: 1}, 0),
        (BYTE + 200, {BYTE: 1}, 200),
        (BYTE + 250, {BYTE + 250: 1}, 0),
        (BYTE - 1, {BYTE - 1: 1}, 0),
        # A multiple of a sum is distributed for indices alone.
        ((SMALL + 1) * 3, {(SMALL + 1) * 3: 1}, 0),
    ],
)
def test_form(node: UOp, terms: dict[UOp, int], constant: int) -> None:
    form = affine(node)
    assert (form.terms, form.constant) == (terms, constant)
    assert affine(node) == form


def test_wrapping_sums_have_a_form_modulo_the_width() -> None:
    assert ring_form(WIDE + 1 + 2 - WIDE) == Affine({}, 3)
    assert ring_form(BYTE * 255 + BYTE) == Affine({}, 0)
    assert ring_form(BYTE + 200 + 100).constant == 44


def test_going_back_orders_terms() -> None:
    a, b, c = axis(0, 4), axis(1, 4), axis(2, 4)
    parts = [a * 16, b * 4, c, index_const(7)]
    made = {from_affine(affine(sum(order[1:], order[0]))) for order in itertools.permutations(parts)}
    assert made == {((a * 16 + b * 4) + c) + 7}
    # What an inner axis does not change comes first, whatever its coefficient.
    assert from_affine(affine(c * 64 + a)) is a + c * 64
    assert from_affine(affine(c // 2 * 64 + b)) is b + c // 2 * 64
    assert from_affine(Affine({}, 3)) is index_const(3)
    assert from_affine(Affine({X: -1}, 0)) is X * -1
    assert from_affine(Affine({SMALL: 2}, 1), dtypes.int32) is SMALL * 2 + 1


def test_helpers() -> None:
    a, b = axis(0, 4), axis(1, 8)
    address = a * 8 + b + X * 2 + 5
    assert coefficient(address, a) == 8
    assert coefficient(address, Y) == 0
    assert affine(substitute(address, {a: Y + 1})) == Affine({Y: 8, b: 1, X: 2}, 13)
    assert affine(address).bounds == (5, 24 + 7 + 18 + 5)
    assert Affine({a: -2, b: 1}, 0).bounds == (-6, 7)


def test_a_deep_chain_costs_no_recursion_and_stays_short() -> None:
    node = X
    for position in range(20_000):
        node = node + variable(f"v{position % 100}")
    form = affine(node)
    assert len(form.terms) <= TERM_LIMIT


def test_no_form_keeps_its_node_alive() -> None:
    node = variable("own") * variable("other")
    affine(node)
    affine(node + 1)
    assert node.cache["affine"] is None


def test_the_order_is_the_same_in_every_process() -> None:
    program = (
        "from tilewright.graph.ops import Ops; from tilewright.graph.uop import UOp;"
        "from tilewright.base.dtype import dtypes; from tilewright.graph.affine import order_key;"
        "v = [UOp(Ops.VARIABLE, dtypes.index, (), (n, 0, 9)) for n in 'abcdefgh'];"
        "v += [x // 3 for x in v];"
        "print([v.index(x) for x in sorted(v, key=order_key)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert order_key(X) != order_key(Y)


@st.composite
def sums(draw: st.DrawFn, depth: int = 4) -> UOp:
    """A random integer expression, linear for the most part."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([X, Y, Z, index_const(3), index_const(-2), X // 2, Y % 3]))
    left = draw(sums(depth - 1))
    kind = draw(st.sampled_from(["add", "sub", "neg", "scale", "shift"]))
    if kind == "neg":
        return -left
    if kind == "scale":
        return left * draw(st.integers(-4, 4))
    if kind == "shift":
        return left << draw(st.integers(0, 3))
    right = draw(sums(depth - 1))
    return left + right if kind == "add" else left - right


def value_of(node: UOp, point: dict[UOp, int]) -> int:
    """The integer that a node is at a point, from the ops' own meaning."""
    if node in point:
        return point[node]
    if node.op is Ops.CONST:
        return int(node.arg)
    left = value_of(node.src[0], point)
    right = value_of(node.src[1], point) if len(node.src) > 1 else 0
    table = {
        Ops.ADD: left + right,
        Ops.SUB: left - right,
        Ops.NEG: -left,
        Ops.MUL: left * right,
        Ops.SHL: left << max(right, 0),
        Ops.IDIV: left // (right or 1),
        Ops.MOD: left % (right or 1),
    }
    return table[node.op]


@settings(max_examples=150, deadline=None)
@given(sums(), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_forms_are_exact(node: UOp, first: int, second: int, third: int) -> None:
    point = {X: first, Y: second, Z: third}
    form = affine(node)
    total = form.constant + sum(count * value_of(atom, point) for atom, count in form.terms.items())
    assert total == value_of(node, point) == value_of(from_affine(form), point)
    assert form.bounds[0] <= total <= form.bounds[1]
    assert affine(from_affine(form)) == form
    assert const(dtypes.index, total) is index_const(total)
