"""Takes a kernel graph of scalar nodes and a target. Gives the graph with 64-bit integers computed in 32-bit words.

It is the last pass before `linearise`, because index maths may need 64 bits; for a target with int64 and uint64 it does
nothing. What `decompose` promises about IDIV, MOD, SHL, SHR and casts of floats holds here.

A value is one of three things. *Small*: its bounds prove that it fits in an int32, and so it is computed in one; most
index maths is. *Words*: two uint32. *Whole*: a 64-bit number that is only moved: loaded, stored, carried by a
reduction. After this pass a renderer needs only the 64-bit operations in `RESIDUE`; a pair of words in memory has the
bytes of a 64-bit integer, little end first.

    before: STORE(out[i], LOAD(a[i]) + 1)                      int64
    after:  x = CAST(LOAD(a[i]), uint64)
            low = CAST(x, uint32) + 1
            high = CAST(x >> 32, uint32) + CAST(low < 1, uint32)
            STORE(out[i], CAST(CAST(low, uint64) | CAST(high, uint64) << 32, int64))"""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError, UnsupportedError
from tilewright.base.target import WIDE_INTEGERS, Target
from tilewright.codegen.emulation import word_pairs
from tilewright.codegen.emulation.word_pairs import WORD_BITS, WORD_MASK, Words
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import exchange_axis, toposort

# The elementwise ops that are left with an operand or a result of 64 bits. Shifts are those of a uint64 by 32; casts
# are between int64 and uint64, from uint32 to uint64, and from uint64 to uint32, which takes the low word.
RESIDUE = frozenset({Ops.CAST, Ops.SHL, Ops.SHR, Ops.OR})

_MEMORY = frozenset({Ops.PARAM, Ops.BUFFER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.AFTER})
_MOVED = frozenset({Ops.LOAD, Ops.REDUCE, Ops.WARP_FOLD, Ops.VARIABLE})
_BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR})
_EXTREMA = frozenset({Ops.MAX, Ops.MIN})
_COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})
# Ops that are the same in 32 bits where the bounds of operands and result fit.
_NARROWED = _BITWISE | _EXTREMA | {Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.IDIV, Ops.MOD, Ops.WHERE}


def split_wide_integers(root: UOp, target: Target) -> UOp:
    """The graph without arithmetic on the 64-bit integers that are not in `target.native`."""
    wide = WIDE_INTEGERS - target.native
    if not wide:
        return root
    nodes = toposort(root)
    if not any(node.dtype in wide for node in nodes):
        return root
    for node in nodes:
        if node.op is Ops.RANGE and not fits_int32(node):
            root = _nested_loops(root, node, target)
    splitting = Splitting(target)
    for node in toposort(root):
        splitting.visit(node)
    return splitting.done[root]


def combine_words(op: Op, x: UOp, y: UOp) -> UOp:
    """The fold `op` of a reduction on two whole 64-bit integers, for a renderer's accumulators."""
    splitting = Splitting(Target("", native=frozenset(dtypes.all) - WIDE_INTEGERS))
    folded = UOp(op, x.dtype, (x, y))
    for node in toposort(folded):
        splitting.visit(node)
    return splitting.whole(folded)


def fits_int32(node: UOp) -> bool:
    return bool(dtypes.int32.min <= node.vmin and node.vmax <= dtypes.int32.max)


def _nested_loops(root: UOp, loop: UOp, target: Target) -> UOp:
    """A loop of more iterations than 32 bits count, as two."""
    size = int(loop.src[0].arg) if loop.src[0].is_const else 0
    inner = next((length for length in range(1 << 16, 1, -1) if size % length == 0), 0)
    if loop.arg.kind not in (AxisType.LOOP, AxisType.REDUCE) or not inner or size // inner > dtypes.int32.max:
        raise UnsupportedError(
            "compile",
            f"a loop of {size or int(loop.vmax) + 1} iterations needs 64-bit integers, which {target.name} lacks",
            "split the tensor, or use another device",
        )
    lengths = ((size // inner, 0), (inner, 1))
    outer_axis, inner_axis = (
        loop.replace(src=(const(loop.dtype, length),), arg=Axis((*loop.arg.id, number), loop.arg.kind))
        for length, number in lengths
    )
    return exchange_axis(root, loop, outer_axis * inner + inner_axis)


class Splitting:
    """One run. `done` maps a node to its replacement, if that is one node: memory, a whole number, or a value that is
    not a 64-bit integer. `smalls` and `pairs` hold the other forms of a value."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.done: dict[UOp, UOp] = {}
        self.smalls: dict[UOp, UOp] = {}
        self.pairs: dict[UOp, Words] = {}

    def visit(self, node: UOp) -> None:
        made = self._replacement(node)
        if made is not None:
            if made.line is None:
                made.line = node.line
            self.done[node] = made

    def _replacement(self, node: UOp) -> UOp | None:
        if node.op is Ops.RANGE:
            return self._range(node)
        if node.op is Ops.INDEX:
            return self._index(node)
        if node.op in _MEMORY:
            return node.with_src(tuple(self.whole(source) for source in node.src))
        if node.dtype in WIDE_INTEGERS:
            return self._split(node)
        if node.op.is_elementwise and any(source.dtype in WIDE_INTEGERS for source in node.src):
            return self._convert(node) if node.op is Ops.CAST else self._compare(node)
        return node.with_src(tuple(self.whole(source) for source in node.src))

    # ------------------------------------------------------------ forms of a value

    def small(self, node: UOp) -> UOp | None:
        """The value as an int32, where it is known to fit."""
        return self.smalls.get(node)

    def words(self, node: UOp) -> Words:
        found = self.pairs.get(node)
        if found is None:
            small = self.smalls.get(node)
            if small is None:
                found = _words_of(self.done[node])
            else:
                found = word_pairs.extend(small, is_positive=node.vmin >= 0)
            self.pairs[node] = found
        return found

    def whole(self, node: UOp) -> UOp:
        """The node's replacement; a value of 64 bits as one number."""
        found = self.done.get(node)
        if found is None:
            found = self.done[node] = _join(self.words(node), node.dtype)
        return found

    def narrowed(self, node: UOp) -> UOp:
        """An int32 with the same lowest 32 bits."""
        small = self.smalls.get(node)
        return self.words(node).low.cast(dtypes.int32) if small is None else small

    # ------------------------------------------------------------ loops and positions

    def _range(self, node: UOp) -> UOp:
        if node.dtype not in WIDE_INTEGERS:
            return node.with_src(tuple(self.whole(source) for source in node.src))
        made = UOp(Ops.RANGE, dtypes.int32, (self.narrowed(node.src[0]),), node.arg)
        self.smalls[node] = made
        return made

    def _index(self, node: UOp) -> UOp:
        memory, position, *mask = node.src
        if position.dtype in WIDE_INTEGERS:
            size = memory_of(memory).arg.size
            if size - 1 > dtypes.int32.max:
                raise UnsupportedError(
                    "compile",
                    f"a buffer of {size} elements needs 64-bit integers, which {self.target.name} lacks",
                    "split the tensor, or use another device",
                    location=node.line,
                )
            # Where the mask is true, the position is in range, and 32 bits suffice.
            if position.op is Ops.ADD and self.small(position) is None:
                found = self.narrowed(position.src[0]) + self.narrowed(position.src[1])
            else:
                found = self.narrowed(position)
        else:
            found = self.done[position]
        return node.with_src((self.done[memory], found, *(self.done[source] for source in mask)))

    # ------------------------------------------------------------ values of 64 bits

    def _split(self, node: UOp) -> UOp | None:
        """Records a value as small or as words; returns it where it is whole."""
        small = self._narrow(node)
        if small is not None:
            self.smalls[node] = small
            return None
        if node.op is Ops.CONST:
            self.pairs[node] = word_pairs.constant(int(node.arg))
            return node
        if node.op in _MOVED:
            return node.with_src(tuple(self.whole(source) for source in node.src))
        words = self._compute(node)
        if fits_int32(node):
            self.smalls[node] = words.low.cast(dtypes.int32)
        elif node.vmin >= 0 and node.vmax <= WORD_MASK:
            self.pairs[node] = Words(words.low, word_pairs.ZERO)
        else:
            self.pairs[node] = words
        return None

    def _narrow(self, node: UOp) -> UOp | None:
        """The value computed in int32, where bounds prove that nothing is lost."""
        if node.op is Ops.CAST:
            return self._narrow_cast(node)
        if node.op is Ops.CONST:
            return const(dtypes.int32, node.arg) if fits_int32(node) else None
        smalls = [self.smalls.get(source) for source in node.src if source.dtype in WIDE_INTEGERS]
        if any(small is None for small in smalls):
            return None
        if node.op is Ops.REDUCE:
            return self._narrow_reduce(node)
        if node.op is Ops.SHR and node.src[1].is_const:
            # The result is nearer to 0, or to -1, than the operand.
            return self.smalls[node.src[0]] >> min(int(node.src[1].arg), WORD_BITS - 1)
        if node.op in _NARROWED and fits_int32(node):
            src = tuple(self.smalls[source] if source in self.smalls else self.done[source] for source in node.src)
            return UOp(node.op, dtypes.int32, src)
        return None

    def _narrow_cast(self, node: UOp) -> UOp | None:
        source = node.src[0]
        # A negative number that becomes unsigned has other bounds, so those of the result are used.
        if source.dtype.is_float or not fits_int32(node):
            return None
        return self.smalls.get(source) if source.dtype in WIDE_INTEGERS else self.done[source].cast(dtypes.int32)

    def _narrow_reduce(self, node: UOp) -> UOp | None:
        """A reduction whose partial results all fit in an int32: extrema, and sums of few or small terms."""
        value, *ranges = node.src
        if node.arg is Ops.ADD:
            count = math.prod(int(axis.vmax) + 1 for axis in ranges)
            if max(abs(int(value.vmin)), abs(int(value.vmax))) * count > dtypes.int32.max:
                return None
        elif node.arg not in _EXTREMA or not all(axis.vmin == 0 and axis.src[0].is_const for axis in ranges):
            return None
        src = (self.smalls[value], *(self.done[axis] for axis in ranges))
        return UOp(Ops.REDUCE, dtypes.int32, src, node.arg)

    def _compute(self, node: UOp) -> Words:
        op, signed = node.op, not node.dtype.is_unsigned
        if op is Ops.CAST or op is Ops.BITCAST:
            return self._from(node.src[0], signed)
        if op is Ops.WHERE:
            return word_pairs.select(self.done[node.src[0]], self.words(node.src[1]), self.words(node.src[2]))
        if op is Ops.NEG:
            return word_pairs.negate(self.words(node.src[0]))
        x, y = (self.words(source) for source in node.src)
        if op is Ops.ADD:
            return word_pairs.add(x, y)
        if op is Ops.SUB:
            return word_pairs.subtract(x, y)
        if op is Ops.MUL:
            return word_pairs.multiply(x, y)
        if op in _BITWISE:
            return word_pairs.bitwise(op, x, y)
        if op in _EXTREMA:
            is_less = word_pairs.is_less(x, y, signed)
            return word_pairs.select(is_less, *((y, x) if op is Ops.MAX else (x, y)))
        if op is Ops.SHL:
            return word_pairs.shift_left(x, y.low)
        if op is Ops.SHR:
            return word_pairs.shift_right(x, y.low, signed)
        if op is Ops.IDIV or op is Ops.MOD:
            return self._divide(node, x, y)
        raise InternalError(f"{op.name} of {node.dtype.name} is not written for targets without 64-bit integers")

    def _divide(self, node: UOp, x: Words, y: Words) -> Words:
        dividend, divisor = node.src
        if 0 <= dividend.vmin and dividend.vmax <= WORD_MASK and 0 <= divisor.vmin and divisor.vmax <= WORD_MASK:
            quotient = x.low // y.low
            return Words(quotient if node.op is Ops.IDIV else x.low - quotient * y.low, word_pairs.ZERO)
        max_divisor = int(divisor.vmax) if divisor.vmin >= 0 else 1 << (2 * WORD_BITS)
        return word_pairs.divide(x, y, max_divisor)[0 if node.op is Ops.IDIV else 1]

    def _from(self, source: UOp, signed: bool) -> Words:
        """A value of another dtype."""
        if source.dtype in WIDE_INTEGERS:
            return self.words(source)
        value = self.done[source]
        if source.dtype.is_unsigned:
            return Words(value.cast(dtypes.uint32), word_pairs.ZERO)
        if not source.dtype.is_float:
            return word_pairs.extend(value.cast(dtypes.int32))
        if source.dtype is dtypes.float64:
            raise InternalError(f"{self.target.name} has float64 and no 64-bit integers, which nothing is written for")
        return word_pairs.from_float32(value.cast(dtypes.float32), signed)

    # ------------------------------------------------------------ values made of them

    def _convert(self, node: UOp) -> UOp:
        """A CAST to a dtype of at most 32 bits, or to a float."""
        source, dtype = node.src[0], node.dtype
        small = self.small(source)
        if small is not None:
            return small.cast(dtype)
        words = self.words(source)
        if dtype.is_bool:
            return word_pairs.is_nonzero(words)
        if dtype.is_float:
            return word_pairs.to_float32(words, not source.dtype.is_unsigned).cast(dtype)
        return words.low.cast(dtype)

    def _compare(self, node: UOp) -> UOp:
        left, right = node.src
        smalls = self.small(left), self.small(right)
        if smalls[0] is not None and smalls[1] is not None:
            return smalls[0].alu(node.op, smalls[1])
        x, y = self.words(left), self.words(right)
        if node.op is Ops.CMPLT:
            return word_pairs.is_less(x, y, not left.dtype.is_unsigned)
        if node.op in _COMPARISONS:
            equal = word_pairs.is_equal(x, y)
            return equal if node.op is Ops.CMPEQ else equal.logical_not()
        raise InternalError(f"{node.op.name} of {left.dtype.name} is not written for targets without 64-bit integers")


def _words_of(whole: UOp) -> Words:
    unsigned = whole.cast(dtypes.uint64)
    return Words(unsigned.cast(dtypes.uint32), (unsigned >> WORD_BITS).cast(dtypes.uint32))


def _join(words: Words, dtype: DType) -> UOp:
    if words.low.is_const and words.high.is_const:
        return const(dtype, int(words.low.arg) | int(words.high.arg) << WORD_BITS)
    low, high = (half.cast(dtypes.uint64) for half in words)
    if words.high is word_pairs.ZERO:
        return low.cast(dtype)
    return (low | (high << WORD_BITS)).cast(dtype)
