"""Rule sets. In: rules, tried in order. Out: a `RuleSet`, whose rules are compiled to one Python function per root op
when the op is first seen. `rewrite.py` drives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tilewright.graph.matcher import Matcher, compile_rules
from tilewright.graph.pattern import Rule
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp


class _Matchers(dict[Op, Matcher | None]):
    """The compiled matcher of each root op, made when the op is first asked for."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, root: Op) -> Matcher | None:
        rules = _rules_of(self._rules, root)
        matcher = compile_rules(root, rules)[0] if rules else None
        self[root] = matcher
        return matcher


def _rules_of(rules: Iterable[Rule], root: Op) -> list[Rule]:
    return [rule for rule in rules if rule.pattern.ops and root in rule.pattern.ops]


class RuleSet:
    """Rules tried in order. `pure`: the result depends on the node alone, so `rewrite` may keep it on the node."""

    __slots__ = ("matchers", "name", "pure", "rules")

    def __init__(self, name: str, rules: Iterable[Rule], pure: bool = False) -> None:
        self.name = name
        self.rules = tuple(rules)
        self.pure = pure
        self.matchers = _Matchers(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __repr__(self) -> str:
        return f"RuleSet({self.name!r}, {len(self.rules)} rules)"

    def match(self, node: UOp, ctx: Any = None) -> tuple[UOp, Rule] | None:
        """The result of the first rule that fires on this node, or None."""
        matcher = self.matchers[node.op]
        return None if matcher is None else matcher(node, ctx)

    def source(self, root: Op) -> str:
        """The Python text of a root op's matcher, to be read."""
        return compile_rules(root, _rules_of(self.rules, root))[1]
