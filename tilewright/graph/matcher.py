"""Rules as Python functions. In: the rules of one root op. Out: a function of a node that tries them in order, and its
text. `rule_set.py` asks for it when the op is first seen.

Matching is the most executed code of the system: a pattern becomes a nest of `if` statements over local names, rules
that begin with the same tests share them, and nothing is interpreted while matching."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.pattern import ANY, DTypeTest, Pattern, Rule, parameters_of
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.uop import const as make_const

Matcher = Callable[[UOp, Any], tuple[UOp, Rule] | None]

_FIXED = dtypes.ints
# What the text of a dtype test stands for; a DType stands for itself and a function is called with the dtype.
DTYPE_KINDS: dict[str, frozenset[DType]] = {
    "bool": frozenset({dtypes.bool}),
    "fixed": frozenset(_FIXED),
    "float": frozenset(dtypes.floats),
    "index": frozenset({dtypes.index}),
    "integer": frozenset({*_FIXED, dtypes.index}),
    "integer or bool": frozenset({*_FIXED, dtypes.index, dtypes.bool}),
    "signed": frozenset({*dtypes.sints, dtypes.index}),
}

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
        if part.value is not ANY:
            steps.append(("test", _literal_test(local, part.value, names)))
        if part.dtype is not None:
            steps.append(("test", _dtype_test(local, part.dtype, names)))
        if part.arg is not ANY:
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
            if any(each.arity != (len(part.src), len(part.src)) for each in part.ops):
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
    if result.value is not ANY:
        return f"{names.of(make_const)}({like}.dtype, {result.value!r})"
    if not result.src or result.ops is None or len(result.ops) != 1:
        raise InternalError("a result pattern is made of bound names, literals and single ops")
    typed = [each for each in result.src if each.value is ANY]
    sibling = f"({_result_text(typed[-1], bound, names, like)})" if typed else like
    parts = [_result_text(each, bound, names, sibling) for each in result.src]
    return f"{names.of(build)}({names.of(result.ops[0])}, ({', '.join(parts)},))"


def _call(function: Callable[..., Any], bound: dict[str, str], names: _Names) -> str:
    arguments = [bound.get(name, "ctx") for name in parameters_of(function)]
    return f"{names.of(function)}({', '.join(arguments)})"


def _action(rule: Rule, bound: dict[str, str], names: _Names) -> list[str]:
    condition = f"if {_call(rule.when, bound, names)}:" if rule.when is not None else ""
    indent = "    " if condition else ""
    lines = [condition] if condition else []
    if not callable(rule.result):
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


def compile_rules(root: Op, rules: list[Rule]) -> tuple[Matcher, str]:
    """The function that tries these rules, in order, on nodes of one op; and its text."""
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
