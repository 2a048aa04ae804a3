"""Rules as data. In: a name, a pattern that reads like algebra, a result and a condition. Out: a `Rule`. `rule_set.py`
puts them together, `matcher.py` compiles them; `simplify/` and the passes write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import DType, Scalar
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op, operator
from tilewright.graph.uop import UOp

DTypeTest = DType | str | Callable[[DType], bool] | None
# The value, or the argument, of a pattern that takes any.
ANY = object()


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

    __add__ = operator(Ops.ADD)
    __sub__ = operator(Ops.SUB)
    __mul__ = operator(Ops.MUL)
    __floordiv__ = operator(Ops.IDIV)
    __mod__ = operator(Ops.MOD)
    __truediv__ = operator(Ops.FDIV)
    __and__ = operator(Ops.AND)
    __or__ = operator(Ops.OR)
    __xor__ = operator(Ops.XOR)
    __lshift__ = operator(Ops.SHL)
    __rshift__ = operator(Ops.SHR)
    __lt__ = operator(Ops.CMPLT)

    def __rsub__(self, other: Scalar) -> Pattern:
        return _lift(other).alu(Ops.SUB, self)

    def __neg__(self) -> Pattern:
        return self.alu(Ops.NEG)

    def __invert__(self) -> Pattern:
        """Not, of a bool: how `UOp.logical_not` writes it."""
        return self.alu(Ops.XOR, True)

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


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters; read off its code where it has one, which is ten times as fast."""
    code = getattr(function, "__code__", None)
    if code is None:
        import inspect  # slow to import, and rules are functions with code

        return list(inspect.signature(function).parameters)
    return list(code.co_varnames[: code.co_argcount])
