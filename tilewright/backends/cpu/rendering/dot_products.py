"""Dot-product instructions. In: a program whose target has some, and the renderer that writes it. Out: text that adds
several products of narrow integers to each lane of a sum at once, where the program's own nodes would widen, multiply
and add them one after the other.

It stands in for an ACCUMULATE of a product that feeds its sum along an UNROLL axis of as many terms as the instruction
takes. A factor is loaded as groups of that many neighbours: one group for every lane, or one for all of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from tilewright.backends.cpu.rendering.groups import interleaved
from tilewright.backends.cpu.rendering.instructions import of_lanes, scalar_type, value_type
from tilewright.base.dtype import DType
from tilewright.codegen.tiles import Coordinates, axis_size, tile_part
from tilewright.graph.kernels.dot_products import DotFit, find_dots, narrow_factors
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Element, Renderer

# How LLVM names an instruction for so many lanes of 32 bits.
_NAMES = {
    "vpdpbusd": {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)},
    "pmaddwd": {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"},
    **{name: {4: f"llvm.aarch64.neon.{name}.v4i32.v16i8"} for name in ("sdot", "udot", "usdot")},
}
# Those that only multiply, and leave it to an addition to add.
_ONLY_PRODUCTS = frozenset({"pmaddwd"})
# What marks the accumulators of what an offset adds to a sum, among those of the sum itself.
_OFFSET = -1


class Dot(NamedTuple):
    """A sum that an instruction computes: the loads of both factors, in the order of the instruction's operands; the
    axis of its lanes and that of the terms in a lane."""

    acc: UOp
    loads: tuple[UOp, UOp]
    lanes: UOp
    terms: UOp
    fit: DotFit
    offset: int | None  # which of the loads is offset


class DotProducts:
    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.dots: dict[UOp, Dot] = {}  # by the ACCUMULATE
        self.loads: dict[UOp, Dot] = {}
        self.unwritten: set[UOp] = set()  # nodes that nothing but such a sum needs
        self.groups: dict[UOp, dict[Coordinates, Element]] = {}
        body = renderer.program.body if renderer.program.target.dot_products else ()
        for node in body:
            dot = self._match(node) if node.op is Ops.ACCUMULATE and node.arg is Ops.ADD else None
            if dot is not None and all(self._is_loaded_alike(load, dot) for load in dot.loads):
                self.dots[node] = dot
                self.loads.update(dict.fromkeys(dot.loads, dot))
        if self.dots:
            self._drop_elements(consumers(body))

    # ------------------------------------------------------------ what is one

    def _match(self, node: UOp) -> Dot | None:
        acc, value = node.src
        factors, lanes = narrow_factors(value), self.renderer.facts.vector_axis(acc)
        if factors is None or lanes is None or any(factor.op is not Ops.LOAD for factor in factors):
            return None
        for axis in self.renderer.facts.axes(value):
            if axis.arg.kind is AxisType.UNROLL and axis not in self.renderer.facts.axes(acc):
                dots = find_dots(factors[0].dtype, factors[1].dtype, acc.dtype, self.renderer.program.target)
                is_fitting = dots and dots[0].instruction.terms == axis_size(axis)
                if is_fitting and all(self._is_grouped(factor, lanes, axis) for factor in factors):
                    names = _NAMES.get(dots[0].instruction.name, {})
                    return self._arrange(acc, factors, lanes, axis, dots) if axis_size(lanes) in names else None
        return None

    def _is_grouped(self, load: UOp, lanes: UOp, terms: UOp) -> bool:
        """Whether groups of terms are neighbours, or lanes are and groups can be made of them. What is loaded at once
        is masked off at once."""
        place, axes = load.src[0], self.renderer.facts.axes
        base, steps = tile_part(place.src[1])
        masked = {axis for mask in place.src[2:] for axis in axes(mask)}
        if len(load.src) > 1 or (base is not None and axes(base)) or lanes in masked:
            return False
        if steps.get(lanes) == 1 and steps.get(terms) != 1:
            return True
        return terms not in masked and steps.get(terms) == 1 and steps.get(lanes, axis_size(terms)) == axis_size(terms)

    def _arrange(self, acc: UOp, factors: tuple[UOp, UOp], lanes: UOp, terms: UOp, dots: list[DotFit]) -> Dot:
        """Of two factors that can be offset, the one with more elements is: what it adds follows from the other."""

        def corrections(fit: DotFit) -> int:
            return 0 if fit.offset is None else len(self.renderer.facts.all_coordinates(factors[1 - fit.offset]))

        fit = min(dots, key=corrections)
        left, right = fit.order
        return Dot(
            acc,
            (factors[left], factors[right]),
            lanes,
            terms,
            fit,
            None if fit.offset is None else fit.order.index(fit.offset),
        )

    def _is_loaded_alike(self, load: UOp, dot: Dot) -> bool:
        """Whether another sum, if there is one, takes the same groups of a factor."""
        known = self.loads.get(load, dot)
        return (known.lanes, known.terms) == (dot.lanes, dot.terms)

    def _drop_elements(self, users: dict[UOp, list[UOp]]) -> None:
        products = [node.src[1] for node in self.dots]
        for nodes in (products, [cast for product in products for cast in product.src], self.loads):
            for node in nodes:
                if all(user in self.dots or user in self.unwritten for user in users[node]):
                    self.unwritten.add(node)

    # ------------------------------------------------------------ sums

    def starts(self, acc: UOp) -> list[Coordinates]:
        """The further accumulators of a sum: of what an offset adds to it."""
        return [
            self._offset_place(dot, coordinates)
            for dot in self.dots.values()
            if dot.acc is acc and dot.offset is not None
            for coordinates in self.renderer.facts.all_coordinates(acc)
        ]

    def _offset_place(self, dot: Dot, coordinates: Coordinates) -> Coordinates:
        """It is the same along every axis that the factor that is not offset does not have."""
        assert dot.offset is not None
        facts, other = self.renderer.facts, dot.loads[1 - dot.offset]
        kept = (at if axis in facts.axes(other) else 0 for axis, at in zip(facts.outer_axes(dot.acc), coordinates))
        return (_OFFSET, *kept)

    def accumulate(self, node: UOp) -> None:
        dot, renderer = self.dots[node], self.renderer
        facts, sums = renderer.facts, renderer.values[dot.acc]
        others = [a for a in facts.axes(node.src[1]) if a not in facts.axes(dot.acc) and a is not dot.terms]
        for step in itertools.product(*(range(axis_size(axis)) for axis in others)):
            offsets: set[Coordinates] = set()
            for coordinates in facts.all_coordinates(dot.acc):
                at = {**dict(zip(facts.outer_axes(dot.acc), coordinates)), **dict(zip(others, step))}
                operands = [self._operand(dot, side, at) for side in range(2)]
                sums[coordinates] = self._emit(dot, sums[coordinates], operands[0], operands[1])
                if dot.offset is not None and (place := self._offset_place(dot, coordinates)) not in offsets:
                    offsets.add(place)
                    operands[dot.offset] = self._half_range(dot)
                    sums[place] = self._emit(dot, sums[place], operands[0], operands[1])

    def settle(self, acc: UOp) -> None:
        """Takes off what offsets have added."""
        renderer = self.renderer
        sums = renderer.values[acc]
        for dot in self.dots.values():
            if dot.acc is not acc or dot.offset is None:
                continue
            for coordinates in renderer.facts.all_coordinates(acc):
                added = sums[self._offset_place(dot, coordinates)].name
                lanes = renderer.facts.lanes(acc)
                text = renderer.instructions.binary(Ops.SUB, acc.dtype, lanes, sums[coordinates].name, added)
                sums[coordinates] = renderer.emit(text)

    def _emit(self, dot: Dot, total: Element, left: str, right: str) -> Element:
        renderer, instruction, lanes = self.renderer, dot.fit.instruction, axis_size(dot.lanes)
        sums = value_type(dot.acc.dtype, lanes)
        kinds = [value_type(dtype, lanes * instruction.terms) for dtype in (instruction.left, instruction.right)]
        name, operands = _NAMES[instruction.name][lanes], ((kinds[0], left), (kinds[1], right))
        if instruction.name not in _ONLY_PRODUCTS:
            return renderer.emit(renderer.instructions.call(name, sums, (sums, total.name), *operands))
        product = renderer.emit(renderer.instructions.call(name, sums, *operands))
        return renderer.emit(renderer.instructions.binary(Ops.ADD, dot.acc.dtype, lanes, total.name, product.name))

    # ------------------------------------------------------------ factors

    def _operand(self, dot: Dot, side: int, at: dict[UOp, int]) -> str:
        """A factor as the instruction takes it: widened, or offset."""
        load = dot.loads[side]
        want = (dot.fit.instruction.left, dot.fit.instruction.right)[side]
        group = self.groups[load][self._group_place(dot, load, at)]
        count, renderer = axis_size(dot.lanes) * dot.fit.instruction.terms, self.renderer
        if side == dot.offset:
            kind = value_type(want, count)
            return self._once(f"{group.name} offset", f"xor {kind} {group.name}, {self._half_range(dot)}", group)
        if want.bits == load.dtype.bits:
            return group.name
        return self._once(f"{group.name} wide", renderer.instructions.cast(load.dtype, want, count, group.name), group)

    def _once(self, key: str, text: str, source: Element) -> str:
        """What is made of a factor is made once, where the factor is."""
        made = self.renderer.splats.get((key, 0))
        if made is None:
            made = self.renderer.splats[key, 0] = self.renderer.emit(text, source.depth)
        return made.name

    def _half_range(self, dot: Dot) -> str:
        assert dot.offset is not None
        dtype = dot.loads[dot.offset].dtype
        return f"splat ({scalar_type(dtype)} {-1 << (dtype.bits - 1)})"

    def _group_axes(self, dot: Dot, load: UOp) -> list[UOp]:
        return [axis for axis in self.renderer.facts.axes(load) if axis not in (dot.lanes, dot.terms)]

    def _group_place(self, dot: Dot, load: UOp, at: dict[UOp, int]) -> Coordinates:
        return tuple(at[axis] for axis in self._group_axes(dot, load))

    def load(self, load: UOp) -> None:
        """All groups of a factor, loaded where the program loads its elements."""
        dot = self.loads[load]
        axes = self._group_axes(dot, load)
        self.groups[load] = {
            coordinates: self._load_group(dot, load, dict(zip(axes, coordinates)))
            for coordinates in itertools.product(*(range(axis_size(axis)) for axis in axes))
        }

    def _load_group(self, dot: Dot, load: UOp, at: dict[UOp, int]) -> Element:
        renderer, dtype, place = self.renderer, load.dtype, load.src[0]
        lanes, terms = axis_size(dot.lanes), axis_size(dot.terms)
        steps = tile_part(place.src[1])[1]
        if dot.lanes not in steps:
            return self._spread(
                dtype, renderer.memory.load_neighbours(place, {**at, dot.terms: 0}, terms), lanes, terms
            )
        if steps[dot.lanes] == 1 and steps.get(dot.terms) != 1:
            rows = [
                renderer.memory.load_neighbours(place, {**at, dot.lanes: 0, dot.terms: term}, lanes).name
                for term in range(terms)
            ]
            return renderer.here(interleaved(lambda text: renderer.emit(text).name, dtype.bits, rows, lanes))
        return renderer.memory.load_neighbours(place, {**at, dot.lanes: 0, dot.terms: 0}, lanes * terms)

    def _spread(self, dtype: DType, group: Element, lanes: int, terms: int) -> Element:
        """One group for every lane."""
        renderer, bits = self.renderer, dtype.bits * terms
        kind = of_lanes(f"i{bits}", lanes)
        one = renderer.emit(f"bitcast {value_type(dtype, terms)} {group.name} to i{bits}", group.depth).name
        first = renderer.emit(f"insertelement {kind} poison, i{bits} {one}, i64 0", group.depth).name
        order = f"<{lanes} x i32> zeroinitializer"
        all_lanes = renderer.emit(f"shufflevector {kind} {first}, {kind} poison, {order}", group.depth).name
        return renderer.emit(f"bitcast {kind} {all_lanes} to {value_type(dtype, lanes * terms)}", group.depth)
