"""The engine: order, reuse, depth, loops, events, bisection, lines and what is kept between calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.base import events
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Ops
from tilewright.graph.pattern import Rule, const, op, var
from tilewright.graph.rewrite import reset_rewrite_count, rewrite, rewrites_applied
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import toposort


def variable(name: str) -> UOp:
    return UOp(Ops.VARIABLE, dtypes.index, (), (name, 0, 9))


X, Y = variable("x"), variable("y")
x, y, c, d = var("x"), var("y"), const("c"), const("d")
ADD_ZERO = Rule("add-zero", x + 0, x)
JOIN = Rule("join", op(Ops.ADD, op(Ops.ADD, x, c, ordered=True), d, ordered=True), lambda x, c, d: x + (c.arg + d.arg))


@pytest.fixture(autouse=True)
def count_from_zero() -> Iterator[None]:
    reset_rewrite_count()
    yield
    reset_rewrite_count()


def test_bottom_up_until_nothing_fires() -> None:
    rules = RuleSet("sum", [ADD_ZERO, JOIN])
    assert rewrite(((X + 1) + 2) + -3, rules) is X
    assert rewrite((X + 0) * (Y + 0), rules) is X * Y
    unchanged = X * Y
    assert rewrite(unchanged, rules) is unchanged


def test_what_a_rule_makes_is_rewritten_down_to_its_leaves() -> None:
    rules = RuleSet("twice", [ADD_ZERO, Rule("double", x * 2, lambda x: (x + 0) + (x + 0))])
    assert rewrite((X * 2) * 2, rules) is (X + X) + (X + X)


def test_a_shared_node_is_visited_once() -> None:
    visits: list[UOp] = []
    rules = RuleSet("watch", [Rule("watch", op(Ops.ADD, name="node"), lambda node: visits.append(node))])
    node = X + 1
    for _ in range(60):
        node = node + node
    rewrite(node, rules)
    assert len(visits) == len(set(visits)) == 61


def test_depth_is_bounded_by_memory_alone() -> None:
    rules = RuleSet("deep", [ADD_ZERO])
    node = X
    for _ in range(30_000):
        node = (node + 0) * Y
    result = rewrite(node, rules)
    assert len(toposort(result)) == 30_000 + 2


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ([Rule("there", x + y, x * y), Rule("back", x * y, x + y)], ("there", "back")),
        ([Rule("grow", x + c, lambda x, c: x + (c.arg + 1))], ("grow",)),
        ([Rule("wrap", op(Ops.ADD, name="x"), lambda x: x * 2)], ("wrap",)),
        ([Rule("inside", op(Ops.ADD, x, y), lambda x, y: (x + (y + 1)) * 2)], ("inside",)),
    ],
)
def test_loops_are_errors_that_name_the_rules(rules: list[Rule], names: tuple[str, ...]) -> None:
    with pytest.raises(InternalError) as caught:
        rewrite(X + 1, RuleSet("endless", rules))
    message = str(caught.value)
    assert "'endless' never come to rest" in message
    for name in names:
        assert name in message


def test_context_is_passed() -> None:
    rules = RuleSet("ctx", [Rule("look-up", op(Ops.VARIABLE, name="v"), lambda v, ctx: ctx.get(v))])
    assert rewrite(X + Y, rules, {X: index_const(3)}) is UOp(Ops.ADD, dtypes.index, (index_const(3), Y))


def test_every_rewrite_is_told() -> None:
    seen: list[events.Event] = []
    rules = RuleSet("told", [ADD_ZERO, JOIN])
    with events.subscribe(seen.append, kinds=("rule-fired",)):
        rewrite((X + 1) + -1, rules)
    assert [(event["rule"], event["ruleset"]) for event in seen] == [("join", "told"), ("add-zero", "told")]
    assert seen[0]["before"] is (X + 1) + -1
    assert seen[1]["after"] is X


def test_only_the_first_rewrites_are_applied() -> None:
    rules = RuleSet("limited", [ADD_ZERO, JOIN], pure=True)
    node = ((X + 1) + 2) + 3
    results = []
    for limit in range(4):
        reset_rewrite_count()
        with Context(REWRITE_LIMIT=limit):
            results.append(rewrite(node, rules))
            assert rewrites_applied() == min(limit, 2)
    assert results == [node, (X + 3) + 3, X + 6, X + 6]
    # The limit is one for the process, not for each call.
    reset_rewrite_count()
    with Context(REWRITE_LIMIT=1):
        assert rewrite(X + 0, rules) is X
        assert rewrite(Y + 0, rules) is Y + 0


def test_the_users_line_stays() -> None:
    rules = RuleSet("line", [Rule("double", x * 2, lambda x: x + x)])
    inner = variable("line_inner") * 2
    outer = inner * 5
    inner.line = ("model.py", 7)
    outer.line = ("model.py", 8)
    result = rewrite(outer, rules)
    assert result.line == ("model.py", 8)
    assert result.src[0].line == ("model.py", 7)


def test_pure_results_are_kept_on_the_node() -> None:
    calls: list[UOp] = []
    watch = Rule("watch", op(Ops.ADD, name="node"), lambda node: calls.append(node))
    pure = RuleSet("kept", [watch, ADD_ZERO], pure=True)
    node = variable("kept") + 0
    other = (node + 5) * node
    assert rewrite(node, pure) is variable("kept")
    assert rewrite(node, pure) is variable("kept")
    rewrite(other, pure)
    rewrite(other, pure)
    assert calls == [node, variable("kept") + 5]
    assert node.cache["kept"] is variable("kept")
    # A node that stays does not hold itself, so counting references frees it.
    assert (variable("kept") + 5).cache["kept"] is True
    with Context(REWRITE_LIMIT=0):
        assert rewrite(node, pure) is node
    rewrite(node, RuleSet("not-kept", [ADD_ZERO]))
    assert "not-kept" not in node.cache
