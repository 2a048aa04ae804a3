"""Sizes that depend on variables. In: expressions of index maths over VARIABLE nodes, and the values that a user binds
(`variable`). Out: a `SymbolicInt`, which may stand in shapes, offsets and node arguments wherever an int does.

A bound size has an expression and the values of its variables; a free size has the expression alone. Tensor graphs
contain bound sizes. The engine makes them free (`free_sizes`) and passes the values separately, so that schedules and
kernels depend on the variables and their bounds and never on a value (docs/decisions/0036).

Two sizes are equal where that is proven: they have the same canonical expression. A comparison is decided by bounds, or
by trying all values of a variable that has few; where neither decides it, it is an error at the user's line. Cost
models take the maximum (`capacity`)."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.base.config import Context, options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError, ShapeError
from tilewright.graph.ops import Ops
from tilewright.graph.size_expressions import bounds_of_size, evaluate_size, multiple_of_one, size_text, variables_of
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const

if TYPE_CHECKING:
    _Int = int  # parameters that take an int take a size too, without another annotation
else:
    _Int = object

Bindings = tuple[tuple[str, int], ...]


class _SizeAccess(threading.local):
    """Observes, on this thread, that the host reads the value of a bound size. jit sets the listener while it records a
    call. `given` are the names of the variables that are arguments of the call."""

    listener: Callable[[str], None] | None = None
    given: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()  # variables whose bounds are being inferred


size_access = _SizeAccess()


class BoundsNarrowed(BaseException):
    """A comparison has one result for all values of a variable in narrower bounds; jit calls the function again with
    those. It is not an `Exception`, so that an `except Exception` in the function does not catch it."""

    def __init__(self, name: str, least: int, greatest: int, error: ShapeError) -> None:
        super().__init__(name)
        self.name = name
        self.least = least
        self.greatest = greatest
        self.error = error  # raised instead where the bounds cannot be narrowed


class BoundTwiceError(ShapeError):
    """A variable has two values in one graph."""


class _State:
    """Whether any variable was bound in this process. Before that, passes need not look for symbolic sizes."""

    is_used = False


state = _State()


def _operator(op: Op, is_reflected: bool = False) -> Callable[[SymbolicInt, int], int]:
    """A method that combines two sizes; a reflected one has its own as the second operand."""
    if is_reflected:
        return lambda own, other: combine_sizes(op, other, own)
    return lambda own, other: combine_sizes(op, own, other)


class SymbolicInt(_Int):
    """An integer expression over variables. `bindings` are their values, None where they are free."""

    __slots__ = ("bindings", "node")
    __match_args__ = ("node", "bindings")

    node: UOp
    bindings: Bindings | None

    def __new__(cls, node: UOp, bindings: Bindings | None) -> SymbolicInt:
        made = object.__new__(cls)
        made.node = node
        made.bindings = bindings
        return made

    def __reduce__(self) -> Any:
        return SymbolicInt, (self.node, self.bindings)

    # ------------------------------------------------------------ the value

    @property
    def value(self) -> int:
        """The value of a bound size, without a call of the listener."""
        assert self.bindings is not None
        return evaluate_size(self.node, dict(self.bindings))

    @property
    def least(self) -> int:
        return int(self.node.vmin)

    @property
    def greatest(self) -> int:
        return int(self.node.vmax)

    def __index__(self) -> int:
        if self.bindings is None:
            raise TypeError(f"{self!r} has no value here")
        _tell_reader(self)
        return self.value

    __int__ = __index__
    __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    # ------------------------------------------------------------ arithmetic

    __add__ = _operator(Ops.ADD)
    __radd__ = _operator(Ops.ADD)
    __sub__ = _operator(Ops.SUB)
    __rsub__ = _operator(Ops.SUB, is_reflected=True)
    __mul__ = _operator(Ops.MUL)
    __rmul__ = _operator(Ops.MUL)
    __floordiv__ = _operator(Ops.IDIV)
    __rfloordiv__ = _operator(Ops.IDIV, is_reflected=True)
    __mod__ = _operator(Ops.MOD)
    __rmod__ = _operator(Ops.MOD, is_reflected=True)

    def __neg__(self) -> int:
        return combine_sizes(Ops.MUL, self, -1)

    def __pos__(self) -> int:
        return self

    def __truediv__(self, other: Any) -> Any:
        return _as_float("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _as_float("/", other, self)

    # ------------------------------------------------------------ comparison

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, SymbolicInt) and self.node is other.node and self.bindings == other.bindings

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.node, self.bindings))

    def __bool__(self) -> bool:
        """Whether it is not provably 0."""
        return True

    def __lt__(self, other: int) -> bool:
        return _is_less(self, other, "<")

    def __gt__(self, other: int) -> bool:
        return _is_less(other, self, "<")

    def __le__(self, other: int) -> bool:
        return not _is_less(other, self, ">=")

    def __ge__(self, other: int) -> bool:
        return not _is_less(self, other, ">=")

    # ------------------------------------------------------------ text

    def __repr__(self) -> str:
        if self.bindings is not None:
            return f"{size_text(self.node)}={self.value}"
        bounds = ", ".join(f"{n.arg[0]} in {n.arg[1]}..{n.arg[2]}" for n in variables_of(self.node))
        return f"<{size_text(self.node)}, {bounds}>"

    def __str__(self) -> str:
        _tell_reader(self)
        return repr(self)

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


def _tell_reader(size: SymbolicInt) -> None:
    if size_access.listener is not None and size.bindings is not None:
        if not size_access.given.isdisjoint(name for name, _ in size.bindings):
            size_access.listener(f"it reads the value of {size_text(size.node)}, which differs from call to call")


# ---------------------------------------------------------------- sizes, ints or symbolic


def capacity(size: int) -> int:
    """The maximum of a size: memory is allocated for it, and costs are estimated with it."""
    return size.greatest if isinstance(size, SymbolicInt) else size


def size_node(size: int) -> UOp:
    """A size as an index."""
    return size.node if isinstance(size, SymbolicInt) else index_const(size)


# ---------------------------------------------------------------- from bound to free


def map_sizes(arg: Any, visit: Callable[[SymbolicInt], Any]) -> Any:
    """A node's argument with each symbolic size replaced by what `visit` returns for it."""
    if isinstance(arg, SymbolicInt):
        return visit(arg)
    if isinstance(arg, tuple):
        made = [map_sizes(part, visit) for part in arg]
        if all(new is old for new, old in zip(made, arg)):
            return arg
        return tuple(made) if type(arg) is tuple else type(arg)(*made)
    return arg


def free_sizes(arg: Any, values: dict[str, int]) -> Any:
    """A node's argument with each bound size made free; the values are added to `values`."""

    def free(size: SymbolicInt) -> SymbolicInt:
        for name, value in size.bindings or ():
            known = values.setdefault(name, value)
            if known != value:
                message = f"{name} is bound to {known} and to {value}"
                raise BoundTwiceError("bind", message, "give a variable one value in each computation")
        return SymbolicInt(size.node, None)

    return map_sizes(arg, free)


# ---------------------------------------------------------------- expressions


def bindings_of(*sizes: int) -> Bindings | None:
    found: dict[str, int] = {}
    is_free = False
    for size in sizes:
        if isinstance(size, SymbolicInt):
            is_free |= size.bindings is None
            free_sizes(size, found)
    return None if is_free else tuple(found.items())


def combine_sizes(op: Op, first: int, second: int) -> int:
    """The canonical expression of an operation on sizes; an int where the result is constant."""
    if not (_is_whole(first) and _is_whole(second)):
        return NotImplemented  # type: ignore[no-any-return]
    operands = tuple(size_node(size if isinstance(size, SymbolicInt) else int(size)) for size in (first, second))
    node = _product(*operands) if op is Ops.MUL else UOp(op, dtypes.index, operands)
    return as_size(node, bindings_of(first, second))


def _product(first: UOp, second: UOp) -> UOp:
    """The product of two expressions. A number that divides all terms of a sum is a factor of its own: n * (4*m + 8) is
    4 * n * (m + 2)."""
    if first.is_const or second.is_const:
        return UOp(Ops.MUL, dtypes.index, (first, second))
    from tilewright.graph.affine import Affine, affine, from_affine

    common = 1
    operands = []
    for operand in (first, second):
        terms, constant = affine(operand)
        divisor = math.gcd(constant, *terms.values())
        if divisor > 1:
            common *= divisor
            form = Affine({atom: number // divisor for atom, number in terms.items()}, constant // divisor)
            operand = from_affine(form)
        operands.append(operand)
    node = UOp(Ops.MUL, dtypes.index, tuple(operands))
    return node if common == 1 else UOp(Ops.MUL, dtypes.index, (node, index_const(common)))


def as_size(expression: UOp, bindings: Bindings | None) -> int:
    """An expression as a size."""
    node = _canonical(expression) if not options.DISABLE_RULES else _canonical.__wrapped__(expression)
    if node.vmin == node.vmax:
        return int(node.vmin)
    if bindings is not None:
        names = {variable.arg[0] for variable in variables_of(node)}
        bindings = tuple(sorted(pair for pair in bindings if pair[0] in names))
    return SymbolicInt(node, bindings)


@functools.lru_cache(maxsize=1024)
def _canonical(expression: UOp) -> UOp:
    """The canonical expression: sizes are equal where theirs is the same. REWRITE_LIMIT has no effect on it, since it
    defines equality and is not a pass to bisect. Cached, because the layers of a network have the same few sizes."""
    found = None if options.DISABLE_RULES else multiple_of_one(expression)
    if found is not None:
        return found
    from tilewright.graph.simplify import simplify  # loaded only by programs with sizes of several variables

    if options.REWRITE_LIMIT < 0:
        return simplify(expression)
    with Context(REWRITE_LIMIT=-1):
        return simplify(expression)


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, or a size. A tensor is not: its own operator is called
    instead."""
    return isinstance(value, int | SymbolicInt) or (hasattr(value, "__index__") and not hasattr(value, "uop"))


def _as_float(symbol: str, first: Any, second: Any) -> Any:
    """The quotient of the values: a float, since a shape has no fractions."""
    if any(hasattr(each, "uop") or not hasattr(each, "__float__") for each in (first, second)):
        return NotImplemented
    return float(first) / float(second)


def _is_less(first: int, second: int, symbol: str) -> bool:
    """Whether first < second for all values in bounds."""
    difference = combine_sizes(Ops.SUB, first, second)
    if difference is NotImplemented:
        return NotImplemented  # type: ignore[no-any-return]
    low, high = bounds_of_size(size_node(difference))
    if high < 0:
        return True
    if low >= 0:
        return False
    if any(isinstance(size, SymbolicInt) and size.bindings is None for size in (first, second)):
        raise InternalError(f"a stage compares {first!r} < {second!r}, whose result is not the same for all values")
    names = variables_of(size_node(first)) + variables_of(size_node(second))
    bounds = " and ".join(f"{n.arg[0]} in {n.arg[1]}..{n.arg[2]}" for n in dict.fromkeys(names))
    texts = [size_text(size_node(size)) for size in (first, second)]
    message = f"whether {texts[0]} {symbol} {texts[1]} is not the same for all values, or cannot be told, for {bounds}"
    remedy = "give the variable narrower bounds, or use int(...) where the result may depend on the value"
    error = ShapeError("symbolic size", message, remedy)
    if size_access.open and isinstance(difference, SymbolicInt):
        _narrow(difference, error)
    raise error


def _narrow(difference: SymbolicInt, error: ShapeError) -> None:
    """Raises `BoundsNarrowed` with the bounds of an open variable in which a difference keeps its present sign, if
    there are any."""
    from tilewright.graph.affine import Affine, affine

    form = affine(difference.node)
    loose = [atom for atom in form.terms if atom.op is Ops.VARIABLE and atom.arg[0] in size_access.open]
    if len(loose) != 1:
        return
    (variable,) = loose
    step = form.terms[variable]
    low, high = form.plus(Affine({variable: 1}, 0), -step).bounds
    name, least, greatest = variable.arg
    # step * variable + rest >= 0 for all values of the rest, or < 0.
    slack, sign = (low, 1) if difference.value >= 0 else (-1 - high, -1)
    if step * sign > 0:
        least = max(least, -(slack // abs(step)))
    else:
        greatest = min(greatest, slack // abs(step))
    now = dict(difference.bindings or ())[name]
    if least <= now <= greatest and (least, greatest) != variable.arg[1:]:
        raise BoundsNarrowed(name, least, greatest, error)
