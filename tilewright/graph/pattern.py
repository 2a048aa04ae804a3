"""Rules as data. In: a name, a pattern that reads like algebra, a result and a condition. Out: a `RuleSet` whose rules
are compiled to Python functions by `matcher.py`, one per root op. `rewrite.py` drives them; `simplify/` and the passes
write the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilewright.base.dtype import Scalar
from tilewright.base.errors import InternalError
from tilewright.graph.matcher import ANY, DTypeTest, Matcher, compile_rules, parameters_of
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp


class Pattern:
    """A shape of graph. `ops` is None where any node fits, `src` where any sources fit; `value` is a literal."""

    __slots__ = ("arg", "dtype", "name", "ops", "ordered", "src", "value")

    def __init__(
        self,
        ops: tuple[Op, ...] | None,
        src: tuple[Pattern, ...] | None = None,
        *,
        name: str = "",
        dtype: DTypeTest = None,
        arg: Any = ANY,
        value: Any = ANY,
        ordered: bool = False,
    ) -> None:
        self.ops = ops
        self.src = src
        self.name = name
        self.dtype = dtype
        self.arg = arg
        self.value = value
        self.ordered = ordered

    def names(self) -> list[str]:
        """Every name the pattern binds, from the root down, once."""
        found = [self.name] if self.name else []
        for src in self.src or ():
            found += [name for name in src.names() if name not in found]
        return found

    def exchanged(self, ops: tuple[Op, ...] | None, src: tuple[Pattern, ...] | None) -> Pattern:
        """The pattern with other ops and sources."""
        return Pattern(ops, src, name=self.name, dtype=self.dtype, arg=self.arg, value=self.value, ordered=self.ordered)

    def alu(self, op: Op, *others: Pattern | Scalar) -> Pattern:
        return Pattern((op,), (self, *(_lift(other) for other in others)))

    def __add__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.ADD, other)

    def __sub__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.SUB, other)

    def __rsub__(self, other: Scalar) -> Pattern:
        return _lift(other).alu(Ops.SUB, self)

    def __mul__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.MUL, other)

    def __floordiv__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.IDIV, other)

    def __mod__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.MOD, other)

    def __truediv__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.FDIV, other)

    def __neg__(self) -> Pattern:
        return self.alu(Ops.NEG)

    def __and__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.AND, other)

    def __or__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.OR, other)

    def __xor__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.XOR, other)

    def __invert__(self) -> Pattern:
        """Not, of a bool: how `UOp.logical_not` writes it."""
        return self.alu(Ops.XOR, True)

    def __lshift__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.SHL, other)

    def __rshift__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.SHR, other)

    def __lt__(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.CMPLT, other)

    def __gt__(self, other: Pattern | Scalar) -> Pattern:
        return _lift(other).alu(Ops.CMPLT, self)

    def eq(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.CMPEQ, other)

    def ne(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.CMPNE, other)

    def maximum(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.MAX, other)

    def minimum(self, other: Pattern | Scalar) -> Pattern:
        return self.alu(Ops.MIN, other)


def _lift(value: Pattern | Scalar) -> Pattern:
    if isinstance(value, Pattern):
        return value
    if value != value:
        raise InternalError("a NaN literal in a pattern matches nothing; use const() and a condition")
    return Pattern((Ops.CONST,), (), value=value)


def var(name: str, dtype: DTypeTest = None) -> Pattern:
    """Any node. The same name twice in a pattern stands for the identical node."""
    return Pattern(None, name=name, dtype=dtype)


def const(name: str, dtype: DTypeTest = None) -> Pattern:
    """Any CONST. The rule gets the node; its value is `node.arg`."""
    return Pattern((Ops.CONST,), (), name=name, dtype=dtype)


def where(condition: Pattern | Scalar, yes: Pattern | Scalar, no: Pattern | Scalar) -> Pattern:
    return Pattern((Ops.WHERE,), (_lift(condition), _lift(yes), _lift(no)))


def op(
    ops: Op | tuple[Op, ...],
    *src: Pattern | Scalar,
    name: str = "",
    dtype: DTypeTest = None,
    arg: Any = ANY,
    ordered: bool = False,
) -> Pattern:
    """A node of one of `ops`. Without sources any sources fit; `ordered` keeps a commutative op from being tried
    swapped; `arg` is a value to equal or a function of the argument."""
    chosen = ops if isinstance(ops, tuple) else (ops,)
    lifted = tuple(_lift(each) for each in src) if src else None
    return Pattern(chosen, lifted, name=name, dtype=dtype, arg=arg, ordered=ordered)


class Rule:
    """One rule. The result is a pattern built from the bound names, or a function of them that may return None to
    decline; a parameter named `ctx` gets what the caller of `rewrite` passed. `when` is a function of the names too."""

    __slots__ = ("name", "pattern", "result", "when")

    def __init__(
        self,
        name: str,
        pattern: Pattern,
        result: Pattern | Scalar | Callable[..., UOp | None],
        when: Callable[..., bool] | None = None,
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.result: Pattern | Callable[..., UOp | None] = result if callable(result) else _lift(result)
        self.when = when
        if pattern.ops is None:
            raise InternalError(f"rule {name!r}: the root of a pattern names its op")
        bound = pattern.names()
        for part, wanted in (("result", _wanted_names(self.result)), ("condition", _wanted_names(when))):
            for missing in wanted:
                if missing not in bound and missing != "ctx":
                    raise InternalError(
                        f"rule {name!r}: its {part} uses {missing!r}, which the pattern does not bind; "
                        f"bound are: {', '.join(bound) or 'none'}"
                    )

    def __repr__(self) -> str:
        return f"Rule({self.name!r})"


def _wanted_names(part: Pattern | Callable[..., Any] | None) -> list[str]:
    if part is None:
        return []
    return part.names() if isinstance(part, Pattern) else parameters_of(part)


class _Matchers(dict[Op, "Matcher | None"]):
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
        """What the first rule that fires on this very node makes of it, or None."""
        matcher = self.matchers[node.op]
        return None if matcher is None else matcher(node, ctx)

    def source(self, root: Op) -> str:
        """The Python text of a root op's matcher, to be read."""
        return compile_rules(root, _rules_of(self.rules, root))[1]
