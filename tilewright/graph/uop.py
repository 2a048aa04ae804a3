"""The node. In: op, dtype, sources, argument. Out: one immutable object per distinct four, so equality is identity.
Shape, bounds and the ranges a value depends on are worked out on first use and kept on the node."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.base.forks import call_in_child, renewed_lock
from tilewright.graph.bounds import bounds_of
from tilewright.graph.ops import AddrSpace, AxisType, Ops
from tilewright.graph.spec import Bounds, Op, Shape, operator


class _NodeRef(weakref.ref["UOp"]):
    """A weak reference that knows its key in the table; None where another reference has taken its entry."""

    __slots__ = ("key",)
    key: tuple[Any, ...] | None


_table: dict[tuple[Any, ...], _NodeRef] = {}
_lock = renewed_lock()  # re-entrant: the garbage collector may run, and free nodes, while a node is being made
_dead: list[weakref.ref[UOp]] = []
_draining = False


def _forget(reference: weakref.ref[UOp]) -> None:
    """Takes a dead node out of the table. Dropping its key may kill its sources: their calls only append."""
    global _draining
    _dead.append(reference)
    if _draining:
        return
    _draining = True
    try:
        while _dead:
            dead: Any = _dead.pop()
            with _lock:
                key, dead.key = dead.key, None
                if key is not None:
                    del _table[key]
            key = None  # its sources may die here
    finally:
        _draining = False


def _stop_draining() -> None:
    """In the child of a fork: the thread that did so is not there."""
    global _draining
    _draining = False


call_in_child(_stop_draining)


def _key_of_float(value: float) -> object:
    """Floats that compare equal or never equal need keys of their own: -0.0 and NaN."""
    if value != value:
        return "nan"
    return "-0.0" if value == 0.0 and math.copysign(1.0, value) < 0.0 else value


class UOp:
    """One node of the graph: an op, the dtype of its value, its sources and an argument. It never changes."""

    __slots__ = ("__weakref__", "_bounds", "_cache", "_ranges", "_shape", "arg", "dtype", "line", "op", "src")

    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    line: tuple[str, int] | None  # the user's line that made the node first
    _shape: Shape | None
    _bounds: Bounds | None
    _ranges: frozenset[UOp] | None
    _cache: dict[str, Any] | None  # derived facts that other modules keep on the node (affine form, ...)

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        key: tuple[Any, ...]
        if arg is None:
            key = (op, dtype, src)
        else:
            kind = arg.__class__
            # The class is part of the key because True, 1 and 1.0 are equal, and so are a tuple and a named one.
            key = (op, dtype, src, kind, arg if kind is not float else _key_of_float(arg))
        reference = _table.get(key)
        node = None if reference is None else reference()
        if node is not None:
            return node
        node = object.__new__(cls)
        node.op = op
        node.dtype = dtype
        node.src = src
        node.arg = arg
        node.line = None
        node._shape = None
        node._bounds = None
        node._ranges = None
        node._cache = None
        made = _NodeRef(node, _forget)
        made.key = key
        # One step, which no other thread divides: where the key is not in the table, as mostly, it needs no lock.
        if _table.setdefault(key, made) is made:
            return node
        with _lock:
            holder = _table.setdefault(key, made)
            if holder is made:
                return node
            found = holder()
            if found is not None:
                made.key = None
                return found
            holder.key = None
            _table[key] = made
            return node

    def __reduce__(self) -> tuple[Any, ...]:
        return UOp, (self.op, self.dtype, self.src, self.arg)

    def __copy__(self) -> UOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> UOp:
        return self

    # ------------------------------------------------------------ derived facts

    @property
    def shape(self) -> Shape:
        """The shape of the value; () in kernels."""
        if self._shape is None:
            for src in self.src:
                if src._shape is None:
                    _fill(self, "_shape", lambda node: node.op.shape(node))
                    break
            else:
                self._shape = self.op.shape(self)
        assert self._shape is not None
        return self._shape

    @property
    def bounds(self) -> Bounds:
        """(least, greatest) value; meaningful for integers and bools."""
        if self._bounds is None:
            for src in self.src:
                if src._bounds is None:
                    _fill(self, "_bounds", bounds_of)
                    break
            else:
                self._bounds = bounds_of(self)
        assert self._bounds is not None
        return self._bounds

    @property
    def vmin(self) -> Any:
        """The least value that an integer can have."""
        return self.bounds[0]

    @property
    def vmax(self) -> Any:
        """The greatest value that an integer can have."""
        return self.bounds[1]

    @property
    def ranges(self) -> frozenset[UOp]:
        """The RANGE nodes this value depends on; REDUCE, END, WARP_FOLD and TILE_DOT close their own."""
        if self._ranges is None:
            for src in self.src:
                if src._ranges is None:
                    _fill(self, "_ranges", _ranges_of)
                    break
            else:
                self._ranges = _ranges_of(self)
        assert self._ranges is not None
        return self._ranges

    @property
    def cache(self) -> dict[str, Any]:
        """Derived facts that other modules keep on the node."""
        if self._cache is None:
            with _lock:
                if self._cache is None:
                    self._cache = {}
        return self._cache

    @property
    def is_const(self) -> bool:
        """Whether this is a CONST."""
        return self.op is Ops.CONST

    def replace(self, **fields: Any) -> UOp:
        """The node with some of op, dtype, src, arg exchanged."""
        return UOp(
            fields.get("op", self.op),
            fields.get("dtype", self.dtype),
            fields.get("src", self.src),
            fields.get("arg", self.arg),
        )

    def with_src(self, src: tuple[UOp, ...]) -> UOp:
        """The node over other sources, at the same line of the user."""
        if src == self.src:
            return self
        made = UOp(self.op, self.dtype, src, self.arg)
        if made.line is None:
            made.line = self.line
        return made

    def __repr__(self) -> str:
        argument = "" if self.arg is None else f", arg={self.arg!r}"
        return f"UOp({self.op!r}, {self.dtype!r}, src={len(self.src)}{argument})"

    # ------------------------------------------------------------ operators, for index maths and kernels

    def const_like(self, value: Scalar) -> UOp:
        """A number in the dtype of this node."""
        return const(self.dtype, value)

    def _operand(self, other: UOp | Scalar) -> UOp:
        return other if isinstance(other, UOp) else self.const_like(other)

    def alu(self, op: Op, *others: UOp | Scalar) -> UOp:
        """An elementwise op of this node and others; numbers take its dtype."""
        src = (self, *(self._operand(other) for other in others))
        if len(src) == 2 and src[0].dtype is not src[1].dtype:
            src = self._agree(op, *src)
        dtype = op.dtype(src)
        return UOp(op, src[0].dtype if dtype is None else dtype, src)

    __add__ = operator(Ops.ADD)
    __radd__ = operator(Ops.ADD)
    __sub__ = operator(Ops.SUB)
    __mul__ = operator(Ops.MUL)
    __rmul__ = operator(Ops.MUL)
    __floordiv__ = operator(Ops.IDIV)
    __mod__ = operator(Ops.MOD)
    __truediv__ = operator(Ops.FDIV)
    __and__ = operator(Ops.AND)
    __or__ = operator(Ops.OR)
    __xor__ = operator(Ops.XOR)
    __lshift__ = operator(Ops.SHL)
    __rshift__ = operator(Ops.SHR)
    __lt__ = operator(Ops.CMPLT)

    def __rsub__(self, other: Scalar) -> UOp:
        return self._operand(other).alu(Ops.SUB, self)

    def __neg__(self) -> UOp:
        return self.alu(Ops.NEG)

    def __gt__(self, other: UOp | Scalar) -> UOp:
        return self._operand(other).alu(Ops.CMPLT, self)

    def __le__(self, other: UOp | Scalar) -> UOp:
        return (self > other).logical_not()

    def __ge__(self, other: UOp | Scalar) -> UOp:
        return (self < other).logical_not()

    def eq(self, other: UOp | Scalar) -> UOp:
        """x == y, as a bool."""
        return self.alu(Ops.CMPEQ, other)

    def ne(self, other: UOp | Scalar) -> UOp:
        """x != y, as a bool."""
        return self.alu(Ops.CMPNE, other)

    def logical_not(self) -> UOp:
        """The negation of a bool."""
        return self.alu(Ops.XOR, True)

    def maximum(self, other: UOp | Scalar) -> UOp:
        """The greater of two."""
        return self.alu(Ops.MAX, other)

    def minimum(self, other: UOp | Scalar) -> UOp:
        """The lesser of two."""
        return self.alu(Ops.MIN, other)

    def where(self, yes: UOp | Scalar, no: UOp | Scalar) -> UOp:
        """`yes` where this bool is true, else `no`."""
        if not isinstance(yes, UOp):
            return self._choose(yes, no)
        other = yes._operand(no)
        if yes.dtype is not other.dtype:
            yes, other = self._agree(Ops.WHERE, yes, other)
        return UOp(Ops.WHERE, yes.dtype, (self, yes, other))

    def cast(self, dtype: DType) -> UOp:
        """The value in another dtype."""
        return self if self.dtype is dtype else UOp(Ops.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        """The same bits in a dtype of the same width."""
        return self if self.dtype is dtype else UOp(Ops.BITCAST, dtype, (self,))

    def numel(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    __iter__ = None  # or Python would try the indices 0, 1, 2, ... without end

    # ------------------------------------------------------------ the language of custom kernels

    if TYPE_CHECKING:  # `kernels/language/language.py` gives the class these methods; their meaning stands there
        Axes = int | Sequence[int] | None

        @staticmethod
        def range(size: int | UOp, id: int | tuple[int, ...], axis_type: AxisType = AxisType.LOOP) -> UOp: ...
        @staticmethod
        def placeholder(
            shape: Sequence[int], dtype: DType | str, slot: int, addrspace: AddrSpace = AddrSpace.REG
        ) -> UOp: ...
        def __getitem__(self, key: Any) -> UOp: ...
        def sum(self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None) -> UOp: ...
        def prod(self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None) -> UOp: ...
        def max(self, axis: Axes = None, keepdim: bool = False) -> UOp: ...
        def min(self, axis: Axes = None, keepdim: bool = False) -> UOp: ...
        def flatten(self) -> UOp: ...
        def load(self, mask: UOp | None = None, otherwise: UOp | Scalar | None = None) -> UOp: ...
        def store(self, value: UOp | Scalar, mask: UOp | None = None) -> UOp: ...
        def set(self, value: UOp | Scalar, end: UOp | Sequence[UOp] = (), mask: UOp | None = None) -> UOp: ...
        def end(self, *ranges: UOp) -> UOp: ...
        def after(self, *earlier: UOp) -> UOp: ...
        def group(*effects: UOp) -> UOp: ...
        def barrier(*effects: UOp) -> UOp: ...
        def sink(*effects: UOp, arg: Any = None) -> UOp: ...
        @staticmethod
        def _agree(op: Op, left: UOp, right: UOp) -> tuple[UOp, UOp]: ...
        def _choose(self, yes: UOp | Scalar, no: UOp | Scalar) -> UOp: ...


def _ranges_of(node: UOp) -> frozenset[UOp]:
    op = node.op
    if op is Ops.RANGE:
        # The loop lies inside of those that its size depends on.
        return node.src[0].ranges | {node}
    sources = node.src
    if not sources:
        return _NO_RANGES
    found = sources[0].ranges
    if op is Ops.REDUCE or op is Ops.END or op is Ops.WARP_FOLD:
        return found.difference(sources[1:])
    for src in sources:
        further = src.ranges
        if further is not found and not further <= found:
            found = further if found <= further else found | further
    if op is Ops.TILE_DOT and len(sources) > TILE_DOT_CLOSED:
        return found.difference(sources[TILE_DOT_CLOSED:])
    return found


_NO_RANGES: frozenset[UOp] = frozenset()
# Where the ranges that a TILE_DOT closes begin among its sources.
TILE_DOT_CLOSED = 6


def _fill(node: UOp, slot: str, rule: Any) -> None:
    """Sets a cached slot on the node and on everything below that lacks it, sources first, without recursion."""
    stack = [node]
    while stack:
        top = stack[-1]
        if getattr(top, slot) is not None:
            stack.pop()
            continue
        missing = [src for src in top.src if getattr(src, slot) is None]
        if missing:
            stack.extend(missing)
            continue
        setattr(top, slot, rule(top))
        stack.pop()


_PLAIN = frozenset({bool, int, float})


def const(dtype: DType, value: Scalar) -> UOp:
    """A constant, as the dtype holds it; the value of a symbolic size as a number."""
    if value.__class__ in _PLAIN or not hasattr(value, "bindings"):
        return UOp(Ops.CONST, dtype, (), cast_scalar(value, dtype))
    return index_const(cast(int, value)) if dtype is dtypes.index else UOp(Ops.SIZE, dtype, (), value)


def memory_of(address: UOp) -> UOp:
    """The memory of an INDEX, or of a version of it (AFTER)."""
    while address.op is Ops.INDEX or address.op is Ops.AFTER:
        address = address.src[0]
    return address


def index_const(value: int) -> UOp:
    """A number of index maths; the expression of a symbolic size, which is an int to the type checker alone."""
    if isinstance(value, int):
        return UOp(Ops.CONST, dtypes.index, (), value)
    node: UOp = value.node
    return node
