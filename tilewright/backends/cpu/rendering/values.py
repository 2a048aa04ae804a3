"""The values of a program as LLVM names. In: a node, coordinates in its tile, the axis of its lanes. Out:
the operand's name, made by a splat, an extracted lane or a transposition where the value has another form.

A value is a set of elements, one for each coordinate of its tile axes but its vector axis, along which the elements are
the lanes of an LLVM vector."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tilewright.backends.cpu.rendering.emitter import Element, Emitter
from tilewright.backends.cpu.rendering.instructions import constant, scalar_type, value_type
from tilewright.backends.cpu.rendering.shuffles import fold_rows, power_of_two, transpose
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.codegen.tiles import Coordinates, TileFacts, is_tile_expression, tile_value
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

FENCED = frozenset({dtypes.float32, dtypes.float64})


class Values(dict[UOp, dict[Coordinates, Element]]):
    def __init__(self, emitter: Emitter, facts: TileFacts, target: Target) -> None:
        super().__init__()
        self.emitter = emitter
        self.facts = facts
        self.target = target
        # For integer sums over the lanes of vectors, the vectors before they are folded: where the sums become the
        # lanes of another vector, several are folded at once.
        self.unfolded: dict[UOp, dict[Coordinates, Element]] = {}
        # The vector and the number of a lane, of scalars that were loaded as lanes.
        self._lanes: dict[str, tuple[Element, int]] = {}
        self._known: dict[UOp, bool] = {}

    def elements(self, node: UOp) -> Iterator[tuple[Coordinates, dict[UOp, int]]]:
        """The coordinates of a node's elements, also by axis."""
        axes = self.facts.outer_axes(node)
        if not axes:
            yield (), {}
            return
        for coordinates in self.facts.all_coordinates(node):
            yield coordinates, dict(zip(axes, coordinates, strict=True))

    def operand(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> str:
        """The element of `node` at the coordinates `at`, as a vector along `axis` where that is given."""
        made, facts = self.get(node), self.facts
        if made is not None and facts.vector_axis(node) is axis and not (node.dtype.is_int and self._is_known(node)):
            return made[facts.coordinates(node, at)].name
        lanes = size_of(axis) if axis is not None else 0
        if node.op is Ops.CONST:
            return constant(node.dtype, node.arg, lanes)
        if node.op is Ops.RANGE and node.arg.kind.is_tile:
            if node is axis:
                kind = scalar_type(node.dtype)
                return "<" + ", ".join(f"{kind} {lane}" for lane in range(lanes)) + ">"
            return constant(node.dtype, at[node], lanes)
        if node.dtype.is_int and self._is_known(node):
            return self._constants(node, at, axis)
        own_axis = facts.vector_axis(node)
        if axis is not None and axis in facts.axes(node):
            return self._vector_across(node, at, axis)
        element = self[node][facts.coordinates(node, at)]
        if own_axis is not None:
            element = self._lane(element, node, own_axis, at[own_axis])
        return self._splat(element, node, lanes).name if lanes else element.name

    def _is_known(self, node: UOp) -> bool:
        """Whether the value is known for each element of the tile: a shift by a constant is one instruction."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = is_tile_expression(node)
        return found

    def _constants(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> str:
        lanes = size_of(axis) if axis is not None else 0
        if axis is None or axis not in node.ranges:
            return constant(node.dtype, tile_value(node, at), lanes)
        kind = scalar_type(node.dtype)
        return "<" + ", ".join(f"{kind} {tile_value(node, {**at, axis: lane})}" for lane in range(lanes)) + ">"

    def _lane(self, element: Element, node: UOp, axis: UOp, lane: int) -> Element:
        key = (f"{element.name}[{lane}]", 0)
        text = f"extractelement {value_type(node.dtype, size_of(axis))} {element.name}, i64 {lane}"
        return self.emitter.once(key, text, element.depth)

    def lane_of(self, vector: Element, dtype: DType, lane: int) -> Element:
        """A lane of a loaded vector; a splat takes it from the vector."""
        kind = value_type(dtype, self.target.lanes(dtype))
        made = self.emitter.emit(f"extractelement {kind} {vector.name}, i64 {lane}")
        self._lanes[made.name] = (vector, lane)
        return made

    def _splat(self, element: Element, node: UOp, lanes: int) -> Element:
        key = (element.name, lanes)
        made = self.emitter.reused.get(key)
        if made is None and element.name in self._lanes:
            (vector, lane), many = self._lanes[element.name], value_type(node.dtype, self.target.lanes(node.dtype))
            order = ", ".join([f"i32 {lane}"] * lanes)
            text = f"shufflevector {many} {vector.name}, {many} poison, <{lanes} x i32> <{order}>"
            return self.emitter.once(key, text, element.depth)
        if made is None:
            one, many, name = scalar_type(node.dtype), value_type(node.dtype, lanes), element.name
            is_scalar = node.op is Ops.LOAD and self.facts.vector_axis(node) is None
            if self.target.has_lane_operands and is_scalar and node.dtype in FENCED:
                # The fence keeps LLVM from merging the load and the splat into a broadcasting load, which occupies a
                # multiplication unit. A scalar load does not, and products use its result as a lane operand. A lane of
                # a vector needs no fence, which would move it to a register of its own.
                name = self.emitter.fence(node.dtype, 0, name, element.depth)
            first = self.emitter.emit(f"insertelement {many} poison, {one} {name}, i64 0", element.depth)
            text = f"shufflevector {many} {first.name}, {many} poison, <{lanes} x i32> zeroinitializer"
            made = self.emitter.once(key, text, element.depth)
        return made

    def _vector_across(self, node: UOp, at: dict[UOp, int], axis: UOp) -> str:
        """A vector along `axis` of a value whose elements are scalars, or vectors along another axis."""
        emitter, own_axis, lanes = self.emitter, self.facts.vector_axis(node), size_of(axis)
        summed = self.facts.lanes(node.src[0])
        is_folded = node in self.unfolded and summed == power_of_two(summed) and lanes % summed == 0
        held = self.unfolded[node] if is_folded else self[node]
        rows = [held[self.facts.coordinates(node, {**at, axis: lane})].name for lane in range(lanes)]
        if is_folded:
            return self._folded(node, rows)
        if own_axis is None:
            many, single = value_type(node.dtype, lanes), scalar_type(node.dtype)
            result = "poison"
            for lane, row in enumerate(rows):
                result = emitter.assign(f"insertelement {many} {result}, {single} {row}, i64 {lane}")
            return result
        # The whole tile is transposed where its first vector is needed.
        key = " ".join(rows)
        if (key, 0) not in emitter.reused:
            register, element = self.target.lanes(node.dtype), scalar_type(node.dtype)
            fence = functools.partial(emitter.fence, node.dtype) if node.dtype in FENCED else None
            size, own_lanes = node.dtype.itemsize, size_of(own_axis)
            names = transpose(emitter.assign, element, size, rows, own_lanes, register, fence)
            emitter.reused.update({(key, lane): emitter.here(name) for lane, name in enumerate(names)})
        return emitter.reused[key, at[own_axis]].name

    def _folded(self, node: UOp, rows: list[str]) -> str:
        key = (f"sums of {' '.join(rows)}", 0)
        if key not in self.emitter.reused:
            lanes = self.facts.lanes(node.src[0])
            name = fold_rows(self.emitter.assign, scalar_type(node.dtype), rows, lanes)
            self.emitter.reused[key] = self.emitter.here(name)
        return self.emitter.reused[key].name
