"""Operands of dot-product instructions. In: an expression of narrow integers, the axis of the lanes and that of the
terms. Out: vectors of all terms of all lanes, side by side.

A factor is a load, or an expression of loads in integers of one width: the nibbles of a byte, a quantised weight put
together from two fields. Its operations are those of the program on longer vectors. A load has contiguous terms,
contiguous lanes (which are interleaved), or positions in the tile that are constants and lie close together (bits that
several elements share), which are shuffled into place."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from tilewright.backends.cpu.rendering.elementwise import spell
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import constant, literal, of_lanes, scalar_type, value_type
from tilewright.backends.cpu.rendering.memory_access import MemoryAccess, span_count
from tilewright.backends.cpu.rendering.shuffles import PIECE_BYTES, across, interleave
from tilewright.base.dtype import DType
from tilewright.codegen.tiles import Coordinates, axis_size, is_tile_expression, tile_part, tile_value
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort


class Group(NamedTuple):
    """The axis whose elements are lanes, and the axis of the terms that each lane sums."""

    lanes: UOp
    terms: UOp


class GroupedValues:
    def __init__(self, memory: MemoryAccess) -> None:
        self.memory = memory
        self.values = memory.values
        self.facts = memory.facts
        self.emitter = memory.emitter
        self.made: dict[UOp, dict[Coordinates, Element]] = {}

    # ------------------------------------------------------------ matching

    def members(self, factor: UOp, group: Group) -> list[UOp] | None:
        """The nodes of a factor that are computed as vectors of terms, sources first; None where one cannot be."""
        found: list[UOp] = []
        for node in toposort(factor, stop=lambda node: node.op is Ops.LOAD or not self._varies(node, group)):
            if not self._varies(node, group) or is_tile_expression(node):
                continue
            if not (self._is_loaded(node, group) if node.op is Ops.LOAD else _is_computed(node)):
                return None
            found.append(node)
        return found

    def _varies(self, node: UOp, group: Group) -> bool:
        return not set(self.facts.axes(node)).isdisjoint(group)

    def _is_loaded(self, load: UOp, group: Group) -> bool:
        """All that is loaded at once has one bit as its mask."""
        index, axes = load.src[0], self.facts.axes
        base, steps = tile_part(index.src[1])
        masked = {axis for mask in index.src[2:] for axis in axes(mask)}
        if len(load.src) > 1 or group.lanes in masked:
            return False
        if base is not None and axes(base):
            return not masked and self._has_short_spans(load, group)
        if steps.get(group.lanes) == 1 and steps.get(group.terms) != 1:
            return True
        return group.terms not in masked and steps.get(group.terms) == 1

    def _has_short_spans(self, load: UOp, group: Group) -> bool:
        """Whether what a load reads of one vector lies close together, or in few places, which are constants."""
        if self.memory.constant_position(load.src[0]) is None:
            return False
        others = self.axes(load, group)
        for coordinates in itertools.product(*(range(axis_size(axis)) for axis in others)):
            positions = self._positions(load, group, dict(zip(others, coordinates)))
            if not span_count(positions):
                return False
        return True

    def _positions(self, load: UOp, group: Group, at: dict[UOp, int]) -> list[int]:
        """Where the elements of a vector lie, from the base of the tile on."""
        split = self.memory.constant_position(load.src[0])
        assert split is not None
        elements = self._elements(group, at, self._count(load, group))
        return [sum(tile_value(part, element) for part in split[1:]) for element in elements]

    # ------------------------------------------------------------ values

    def axes(self, node: UOp, group: Group) -> list[UOp]:
        """The tile axes whose elements are vectors of their own."""
        return [axis for axis in self.facts.axes(node) if axis not in group]

    def emit(self, node: UOp, group: Group, is_lazy: bool) -> None:
        """All vectors of a member, where the program has the node; of a lazy one each where it is used first, so that
        few of them are live at once."""
        self.made[node] = {}
        axes = self.axes(node, group)
        for coordinates in () if is_lazy else itertools.product(*(range(axis_size(axis)) for axis in axes)):
            self._vector(node, group, dict(zip(axes, coordinates)))

    def _vector(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        made, coordinates = self.made[node], tuple(at[axis] for axis in self.axes(node, group))
        if coordinates not in made:
            make = self._load if node.op is Ops.LOAD else self._compute
            made[coordinates] = make(node, group, at)
        return made[coordinates]

    def operand(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        """A factor in all lanes."""
        made = self._vector(node, group, at)
        return made if group.lanes in self.facts.axes(node) else self._broadcast(node.dtype, made, group)

    def _count(self, node: UOp, group: Group) -> int:
        """The length of a node's vectors: one group where all lanes have the same."""
        terms = axis_size(group.terms)
        return terms * axis_size(group.lanes) if group.lanes in self.facts.axes(node) else terms

    def _compute(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        count = self._count(node, group)
        operands = [self._source(source, group, at, count) for source in node.src]
        return self.emitter.emit(spell(self.emitter, node, operands, count))

    def _source(self, node: UOp, group: Group, at: dict[UOp, int], count: int) -> str:
        if node.op is Ops.CONST:
            return constant(node.dtype, node.arg, count)
        if is_tile_expression(node):
            return self._constants(node, group, at, count)
        if not self._varies(node, group):
            return self._splat(node, self.values.operand(node, at, None), count)
        made = self._vector(node, group, at)
        return made.name if self._count(node, group) == count else self._broadcast(node.dtype, made, group).name

    def _splat(self, node: UOp, name: str, count: int) -> str:
        one, many = scalar_type(node.dtype), value_type(node.dtype, count)
        first = self.emitter.assign(f"insertelement {many} poison, {one} {name}, i64 0")
        return self.emitter.assign(f"shufflevector {many} {first}, {many} poison, <{count} x i32> zeroinitializer")

    def _elements(self, group: Group, at: dict[UOp, int], count: int) -> list[dict[UOp, int]]:
        terms = axis_size(group.terms)
        return [{**at, group.lanes: number // terms, group.terms: number % terms} for number in range(count)]

    def _constants(self, node: UOp, group: Group, at: dict[UOp, int], count: int) -> str:
        kind = scalar_type(node.dtype)
        values = (tile_value(node, element) for element in self._elements(group, at, count))
        return "<" + ", ".join(f"{kind} {literal(node.dtype, value)}" for value in values) + ">"

    # ------------------------------------------------------------ loads

    def _load(self, load: UOp, group: Group, at: dict[UOp, int]) -> Element:
        index, lanes, terms = load.src[0], axis_size(group.lanes), axis_size(group.terms)
        base, steps = tile_part(index.src[1])
        if base is not None and self.facts.axes(base):
            return self.memory.load_span(index, self._positions(load, group, at))
        at = {**at, group.terms: 0}
        if group.lanes not in steps:
            return self.memory.load_contiguous(index, at, terms)
        at[group.lanes] = 0
        if steps[group.lanes] == 1 and steps.get(group.terms) != 1:
            loads = (self.memory.load_contiguous(index, {**at, group.terms: term}, lanes) for term in range(terms))
            rows = [made.name for made in loads]
            return self.emitter.here(interleave(self.emitter.assign, load.dtype.bits, rows, lanes))
        if steps[group.lanes] != terms:
            return self._load_across(load, group, at, steps)
        return self.memory.load_contiguous(index, at, lanes * terms)

    def _load_across(self, load: UOp, group: Group, at: dict[UOp, int], steps: dict[UOp, int]) -> Element:
        """Lanes at a stride: what each has of adjacent groups is loaded at once, and transposed in registers to the
        vectors of these groups."""
        index, lanes, terms = load.src[0], axis_size(group.lanes), axis_size(group.terms)
        axes, bits, emitter = self.axes(load, group), load.dtype.bits, self.emitter
        along = next((axis for axis in axes if steps.get(axis) == terms), None)
        length, wanted = 1, tuple(at[axis] for axis in axes)
        if along is not None and len(index.src) == 2:
            length = math.gcd(axis_size(along), PIECE_BYTES * 8 // (bits * terms), lanes)
            at = {**at, along: at[along] // length * length}
        have, group_type = value_type(load.dtype, length * terms), f"i{bits * terms}"
        rows = []
        for lane in range(lanes):
            loaded = self.memory.load_contiguous(index, {**at, group.lanes: lane}, length * terms).name
            rows.append(emitter.assign(f"bitcast {have} {loaded} to {of_lanes(group_type, length)}"))
        for number, name in enumerate(across(emitter.assign, group_type, rows, length)):
            text = f"bitcast {of_lanes(group_type, lanes)} {name} to {value_type(load.dtype, lanes * terms)}"
            place = tuple(at[axis] + (number if axis is along else 0) for axis in axes)
            self.made[load][place] = emitter.here(emitter.assign(text))
        return self.made[load][wanted]

    def _broadcast(self, dtype: DType, made: Element, group: Group) -> Element:
        """The same terms in every lane."""
        emitter, lanes, terms = self.emitter, axis_size(group.lanes), axis_size(group.terms)
        bits = dtype.bits * terms
        kind, key = of_lanes(f"i{bits}", lanes), (f"{made.name} in all lanes", lanes)
        if key in emitter.reused:
            return emitter.reused[key]
        one = emitter.emit(f"bitcast {value_type(dtype, terms)} {made.name} to i{bits}", made.depth).name
        first = emitter.emit(f"insertelement {kind} poison, i{bits} {one}, i64 0", made.depth).name
        order = f"<{lanes} x i32> zeroinitializer"
        all_lanes = emitter.emit(f"shufflevector {kind} {first}, {kind} poison, {order}", made.depth).name
        text = f"bitcast {kind} {all_lanes} to {value_type(dtype, lanes * terms)}"
        return emitter.once(key, text, made.depth)


def _is_computed(node: UOp) -> bool:
    """Whether the operation on a long vector is one on integers of one width, or a choice between such."""
    if not node.op.is_elementwise or not (node.dtype.is_int or node.dtype.is_bool):
        return False
    values = [source for source in node.src if not source.dtype.is_bool]
    widths = {value.dtype.bits for value in (node, *values) if not value.dtype.is_bool}
    return len(widths) <= 1 and node.op not in (Ops.IDIV, Ops.MOD)


__all__ = ["Group", "GroupedValues"]
