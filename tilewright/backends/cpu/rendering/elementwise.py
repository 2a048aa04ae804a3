"""Elementwise operations. In: a node. Out: its elements.

A WHERE that `graph/kernels/slow_path` marks has a slow path: a value that few elements need and that is expensive. It
is computed in a separate basic block, entered for a vector when any of its lanes needs it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.cpu.rendering.emitter import Element, Emitter
from tilewright.backends.cpu.rendering.instructions import constant, is_exact, of_lanes, operand_dtype, value_type
from tilewright.backends.cpu.rendering.shuffles import shuffle_mask
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.kernels.slow_path import find_slow_paths
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

_BYTES = frozenset({dtypes.int8, dtypes.uint8})
# The first float whose last bit counts 1, and its highest byte; the others are 0.
_WHOLE, _WHOLE_BYTES = float(1 << 23), (None, 0, 0, 0x4B)
_BASE, _BASE_BYTES = 128.0, (0, 0, None, 0x43)


class Elementwise:
    def __init__(self, values: Values, body: Sequence[UOp]) -> None:
        self.values = values
        found = find_slow_paths(body)
        # Values whose lanes lie along different axes are transposed tile by tile, not in a block of one element: such a
        # path is computed like any other value, with all that it shares with others.
        axes = {where: {*map(values.facts.vector_axis, (where, *nodes))} - {None} for where, nodes in found.items()}
        mixed = {where for where in found if len(axes[where]) > 1}
        computed = {node for where in mixed for node in found[where]}
        # By the WHERE, the nodes of its slow path in order.
        self.slow = {
            where: [node for node in nodes if node not in computed]
            for where, nodes in found.items()
            if where not in mixed and where not in computed
        }
        self.postponed = {node for nodes in self.slow.values() for node in nodes}  # nodes of slow paths alone

    def emit(self, node: UOp) -> None:
        values, facts = self.values, self.values.facts
        axis, lanes = facts.vector_axis(node), facts.lanes(node)
        if node.op is Ops.WHERE or is_byte_cast(node, lanes) or is_based_cast(node, lanes):
            values[node] = {coordinates: self._element(node, at) for coordinates, at in values.elements(node)}
            return
        values[node] = {coordinates: self._plain(node, at, axis, lanes) for coordinates, at in values.elements(node)}

    def _plain(self, node: UOp, at: dict[UOp, int], axis: UOp | None, lanes: int) -> Element:
        """An element that is one instruction of its operands."""
        values = self.values
        operands = [values.operand(src, at, axis) for src in node.src]
        return values.emitter.emit(spell(values.emitter, node, operands, lanes))

    def _element(self, node: UOp, at: dict[UOp, int]) -> Element:
        values = self.values
        axis = values.facts.vector_axis(node)
        holds = holds_at(node.src[0], at) if node.op is Ops.WHERE else None
        if holds is not None:
            return values.emitter.here(values.operand(node.src[1 if holds else 2], at, axis))
        if node in self.slow:
            return self._choose(node, at)
        lanes, has_slow_conversions = values.facts.lanes(node), "SLOW_CONVERSIONS" in values.target.native_ops
        if has_slow_conversions and is_based_cast(node, lanes):
            operand = values.operand(node.src[0].src[0], at, axis)
            return values.emitter.here(float_among(values.emitter, operand, _BASE_BYTES, lanes))
        if has_slow_conversions and is_byte_cast(node, lanes):
            return float_of_bytes(values.emitter, node.src[0], values.operand(node.src[0], at, axis), lanes)
        return self._plain(node, at, axis, lanes)

    def _choose(self, where: UOp, at: dict[UOp, int]) -> Element:
        values, emitter, facts = self.values, self.values.emitter, self.values.facts
        axis, lanes = facts.vector_axis(where), facts.lanes(where)
        varies = lanes > 0 and facts.vector_axis(where.src[0]) is not None
        condition, fast = (
            values.operand(where.src[0], at, axis if varies else None),
            values.operand(where.src[1], at, axis),
        )
        every = emitter.assign(emitter.fold_lanes(Ops.AND, dtypes.bool, lanes, condition)) if varies else condition
        label = emitter.fresh("slow")
        before = emitter.label
        emitter.line(f"  br i1 {every}, label %{label}.done, label %{label}.taken")
        emitter.begin_block(f"{label}.taken")
        reused = dict(emitter.reused)
        for node in self.slow[where]:
            values.setdefault(node, {})[facts.coordinates(node, at)] = self._element(node, at)
        slow = values.operand(where.src[2], at, axis)
        chosen = emitter.assign(emitter.select(where.dtype, lanes, condition, fast, slow)) if varies else slow
        # Results of the slow path are undefined on the path that does not take it.
        emitter.reused = reused
        taken = emitter.label
        emitter.line(f"  br label %{label}.done")
        emitter.begin_block(f"{label}.done")
        kind = value_type(where.dtype, lanes)
        return emitter.emit(f"phi {kind} [ {fast}, %{before} ], [ {chosen}, %{taken} ]")


def is_byte_cast(node: UOp, lanes: int) -> bool:
    """Whether a node converts a register of bytes, or half of one, to floats."""
    return node.op is Ops.CAST and node.dtype is dtypes.float32 and node.src[0].dtype in _BYTES and lanes in (8, 16)


def is_short(byte: UOp) -> bool:
    """Whether a byte has 7 bits, as many as the mantissa of a float32 has in its third byte."""
    return bool(byte.vmin >= 0 and byte.vmax < _BASE)


def is_based_cast(node: UOp, lanes: int) -> bool:
    """Whether a node adds 128 to bytes of 7 bits."""
    is_sum = node.op is Ops.ADD and node.src[1].is_const and node.src[1].arg == _BASE
    return is_sum and is_byte_cast(node.src[0], lanes) and is_short(node.src[0].src[0])


def float_of_bytes(emitter: Emitter, source: UOp, operand: str, lanes: int) -> Element:
    """Bytes as floats, without a conversion instruction. A byte that replaces the lowest byte of the float 2**23 makes
    the float 2**23 + byte; one of 7 bits that replaces the third byte of 128.0 makes 128 + byte. The constant is then
    subtracted. A signed byte is offset by 128 first."""
    whole = _BASE if is_short(source) else _WHOLE
    if not is_short(source) and not source.dtype.is_unsigned:
        whole, operand = _WHOLE + 128, emitter.assign(f"xor {of_lanes('i8', lanes)} {operand}, splat (i8 -128)")
    others = _BASE_BYTES if is_short(source) else _WHOLE_BYTES
    floats, number = of_lanes("float", lanes), float_among(emitter, operand, others, lanes)
    return emitter.emit(f"fsub {floats} {number}, {constant(dtypes.float32, whole, lanes)}")


def float_among(emitter: Emitter, operand: str, others: tuple[int | None, ...], lanes: int) -> str:
    """Floats whose bytes are `others`, with a byte of the operand in place of the None."""
    kind = of_lanes("i8", lanes)
    highest = ", ".join(f"i8 {others[-1] if lane == 1 else 0}" for lane in range(lanes))
    order = [lane if byte is None else lanes + (byte != 0) for lane in range(lanes) for byte in others]
    wide = emitter.assign(f"shufflevector {kind} {operand}, {kind} <{highest}>, {shuffle_mask(order)}")
    return emitter.assign(f"bitcast {of_lanes('i8', 4 * lanes)} {wide} to {of_lanes('float', lanes)}")


def spell(emitter: Emitter, node: UOp, operands: list[str], lanes: int) -> str:
    """The instruction of an elementwise node on vectors of `lanes`."""
    if node.op is Ops.CAST:
        return emitter.cast(node.src[0].dtype, node.dtype, lanes, operands[0])
    if node.op is Ops.BITCAST:
        return emitter.bitcast(node.src[0].dtype, node.dtype, lanes, operands[0])
    if node.op is Ops.WHERE:
        return emitter.select(node.dtype, lanes, *operands)
    if len(operands) == 1:
        return emitter.unary(node.op, node.dtype, lanes, operands[0])
    left, right = operands
    return emitter.binary(node.op, operand_dtype(node), lanes, left, right, is_exact(node))
