"""Rules as data. In: a name, a pattern that reads like algebra, a result and a condition. Out: a `RuleSet` whose rules
are compiled to Python functions, one per root op. `rewrite.py` drives them; `simplify/` and the passes write the rules.

Matching is the most executed code of the system: a pattern becomes a nest of `if` statements over local names, rules
that begin with the same tests share them, and nothing is interpreted while matching."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.uop import const as make_const

DTypeTest = DType | str | Callable[[DType], bool] | None
Matcher = Callable[[UOp, Any], "tuple[UOp, Rule] | None"]

_FIXED = (*dtypes.ints, *dtypes.uints)
# What the text of a dtype test stands for; a DType stands for itself and a function is called with the dtype.
DTYPE_KINDS: dict[str, frozenset[DType]] = {
    "bool": frozenset({dtypes.bool}),
    "fixed": frozenset(_FIXED),
    "float": frozenset(dtypes.floats),
    "index": frozenset({dtypes.index}),
    "integer": frozenset({*_FIXED, dtypes.index}),
    "integer or bool": frozenset({*_FIXED, dtypes.index, dtypes.bool}),
    "signed": frozenset({*dtypes.ints, dtypes.index}),
}
_ANY = object()


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
        arg: Any = _ANY,
        value: Any = _ANY,
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
    arg: Any = _ANY,
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
    return part.names() if isinstance(part, Pattern) else _parameters(part)


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters; read off its code where it has one, which is ten times as fast."""
    code = getattr(function, "__code__", None)
    if code is None:
        return list(inspect.signature(function).parameters)
    return list(code.co_varnames[: code.co_argcount])


class _Matchers(dict[Op, "Matcher | None"]):
    """The compiled matcher of each root op, made when the op is first asked for."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, root: Op) -> Matcher | None:
        rules = _rules_of(self._rules, root)
        matcher = _compile(root, rules)[0] if rules else None
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
        return _compile(root, _rules_of(self.rules, root))[1]


# ---------------------------------------------------------------- compiling

# A step is ("bind", "n0, n1 = n.src") or ("test", "n0.op is k0"). Steps name nodes by their path from the root, so
# rules that look at the same place share the text and thereby the step.
_Step = tuple[str, str]


class _Names:
    """The constants of the generated code: one name per object."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._by_identity: dict[int, str] = {}

    def of(self, value: Any) -> str:
        name = self._by_identity.get(id(value))
        if name is None:
            name = f"k{len(self.values)}"
            self.values[name] = value
            self._by_identity[id(value)] = name
        return name


def _orders(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern with the operands of its commutative nodes in every order."""
    if not pattern.src:
        yield pattern
        return
    swappable = (
        len(pattern.src) == 2
        and not pattern.ordered
        and pattern.ops is not None
        and all(each.commutative for each in pattern.ops)
    )
    for sources in itertools.product(*(list(_orders(src)) for src in pattern.src)):
        yield pattern.exchanged(pattern.ops, sources)
        if swappable:
            yield pattern.exchanged(pattern.ops, sources[::-1])


def _steps(pattern: Pattern, names: _Names) -> tuple[list[_Step], dict[str, str]]:
    """The tests of one ordered pattern, those near the root first, and the local name of each bound name."""
    steps: list[_Step] = []
    bound: dict[str, str] = {}
    queue = deque([("n", pattern)])
    while queue:
        local, part = queue.popleft()
        if part.ops is not None and local != "n":
            steps.append(("test", _op_test(local, part.ops, names)))
        if part.value is not _ANY:
            steps.append(("test", _literal_test(local, part.value, names)))
        if part.dtype is not None:
            steps.append(("test", _dtype_test(local, part.dtype, names)))
        if part.arg is not _ANY:
            test = f"{names.of(part.arg)}({local}.arg)" if callable(part.arg) else f"{local}.arg == {part.arg!r}"
            if not callable(part.arg) and not isinstance(part.arg, Scalar | str):
                test = f"{local}.arg == {names.of(part.arg)}"
            steps.append(("test", test))
        if part.name:
            if part.name in bound:
                steps.append(("test", f"{local} is {bound[part.name]}"))
            else:
                bound[part.name] = local
        if part.src and part.ops is not None:
            if any(each.arity != len(part.src) for each in part.ops):
                steps.append(("test", f"len({local}.src) == {len(part.src)}"))
            below = [f"{local}{position}" for position in range(len(part.src))]
            steps.append(("bind", f"{', '.join(below)}{',' if len(below) == 1 else ''} = {local}.src"))
            queue.extend(zip(below, part.src, strict=True))
    return steps, bound


def _op_test(local: str, ops: tuple[Op, ...], names: _Names) -> str:
    if len(ops) == 1:
        return f"{local}.op is {names.of(ops[0])}"
    return "(" + " or ".join(f"{local}.op is {names.of(each)}" for each in ops) + ")"


def _literal_test(local: str, value: Scalar, names: _Names) -> str:
    """A literal matches by type and value: 0, 0.0, -0.0 and False are four things."""
    test = f"{local}.arg.__class__ is {type(value).__name__} and {local}.arg == {value!r}"
    if isinstance(value, float) and math.isinf(value):
        test = f"{local}.arg.__class__ is float and {local}.arg == {names.of(value)}"
    if isinstance(value, float) and value == 0.0:
        test += f" and {names.of(math.copysign)}(1.0, {local}.arg) == {math.copysign(1.0, value)!r}"
    return test


def _dtype_test(local: str, test: DTypeTest, names: _Names) -> str:
    if isinstance(test, DType):
        return f"{local}.dtype is {names.of(test)}"
    if isinstance(test, str):
        return f"{local}.dtype in {names.of(DTYPE_KINDS[test])}"
    return f"{names.of(test)}({local}.dtype)"


def build(op: Op, src: tuple[UOp, ...]) -> UOp:
    """The node of an op whose dtype follows from its sources."""
    dtype = op.dtype(src)
    return UOp(op, src[0].dtype if dtype is None else dtype, src)


def _result_text(result: Pattern, bound: dict[str, str], names: _Names, like: str) -> str:
    """The expression that builds a result pattern. `like` is the local whose dtype a literal takes."""
    if result.name:
        return bound[result.name]
    if result.value is not _ANY:
        return f"{names.of(make_const)}({like}.dtype, {result.value!r})"
    if not result.src or result.ops is None or len(result.ops) != 1:
        raise InternalError("a result pattern is made of bound names, literals and single ops")
    typed = [each for each in result.src if each.value is _ANY]
    sibling = f"({_result_text(typed[-1], bound, names, like)})" if typed else like
    parts = [_result_text(each, bound, names, sibling) for each in result.src]
    return f"{names.of(build)}({names.of(result.ops[0])}, ({', '.join(parts)},))"


def _call(function: Callable[..., Any], bound: dict[str, str], names: _Names) -> str:
    arguments = [bound.get(name, "ctx") for name in _parameters(function)]
    return f"{names.of(function)}({', '.join(arguments)})"


def _action(rule: Rule, bound: dict[str, str], names: _Names) -> list[str]:
    condition = f"if {_call(rule.when, bound, names)}:" if rule.when is not None else ""
    indent = "    " if condition else ""
    lines = [condition] if condition else []
    if isinstance(rule.result, Pattern):
        lines.append(f"{indent}return {_result_text(rule.result, bound, names, 'n')}, {names.of(rule)}")
    else:
        lines.append(f"{indent}r = {_call(rule.result, bound, names)}")
        lines.append(f"{indent}if r is not None and r is not n:")
        lines.append(f"{indent}    return r, {names.of(rule)}")
    return lines


def _emit(variants: list[tuple[list[_Step], list[str]]], depth: int, indent: str, lines: list[str]) -> None:
    """Writes the variants in order; neighbours that share their next step share its text."""
    position = 0
    while position < len(variants):
        steps, action = variants[position]
        if depth == len(steps):
            lines.extend(indent + line for line in action)
            position += 1
            continue
        stop = position + 1
        while stop < len(variants) and len(variants[stop][0]) > depth and variants[stop][0][depth] == steps[depth]:
            stop += 1
        kind, text = steps[depth]
        if kind == "bind":
            lines.append(indent + text)
            _emit(variants[position:stop], depth + 1, indent, lines)
        else:
            lines.append(f"{indent}if {text}:")
            _emit(variants[position:stop], depth + 1, indent + "    ", lines)
        position = stop


def _compile(root: Op, rules: list[Rule]) -> tuple[Matcher, str]:
    names = _Names()
    variants: list[tuple[list[_Step], list[str]]] = []
    for rule in rules:
        for ordered in _orders(rule.pattern.exchanged((root,), rule.pattern.src)):
            steps, bound = _steps(ordered, names)
            variants.append((steps, _action(rule, bound, names)))
    lines = [f"def match_{root.name}(n, ctx):"]
    _emit(variants, 0, "    ", lines)
    source = "\n".join([*lines, "    return None"]) + "\n"
    space: dict[str, Any] = dict(names.values)
    exec(compile(source, f"<rules of {root.name}>", "exec"), space)
    matcher: Matcher = space[f"match_{root.name}"]
    return matcher, source
