"""Dot-product instructions. In: a program whose target has some. Out: text in which one instruction adds several
products of narrow integers to each lane of a sum, where the program's own nodes widen, multiply and add one by one.

An instruction replaces the ACCUMULATE of a product that is summed along an UNROLL axis of as many terms as the
instruction takes. A factor is loaded as groups of that many contiguous elements: a group for each lane, or one group
for all lanes."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import of_lanes, scalar_type, value_type
from tilewright.backends.cpu.rendering.memory_access import MemoryAccess
from tilewright.backends.cpu.rendering.shuffles import interleave
from tilewright.base.dtype import DType
from tilewright.codegen.tiles import Coordinates, axis_size, tile_part
from tilewright.graph.kernels.dot_products import DotFit, find_dots, narrow_factors
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers

# LLVM's intrinsics, by the number of 32-bit lanes.
_NAMES = {
    "vpdpbusd": {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)},
    "pmaddwd": {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"},
    **{name: {4: f"llvm.aarch64.neon.{name}.v4i32.v16i8"} for name in ("sdot", "udot", "usdot")},
}
# Those that return the sum of products without adding it to an accumulator.
_ONLY_PRODUCTS = frozenset({"pmaddwd"})
# The first coordinate of the accumulators of what an offset factor adds to a sum.
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
    def __init__(self, memory: MemoryAccess) -> None:
        self.memory = memory
        self.values = memory.values
        self.facts = memory.facts
        self.emitter = memory.emitter
        self.target = memory.program.target
        self.dots: dict[UOp, Dot] = {}  # by the ACCUMULATE
        self.loads: dict[UOp, Dot] = {}
        self.replaced: set[UOp] = set()  # nodes that nothing else uses
        self.groups: dict[UOp, dict[Coordinates, Element]] = {}
        body = memory.program.body if self.target.dot_products else ()
        for node in body:
            dot = self._match(node) if node.op is Ops.ACCUMULATE and node.arg is Ops.ADD else None
            if dot is not None and all(self._is_loaded_alike(load, dot) for load in dot.loads):
                self.dots[node] = dot
                self.loads.update(dict.fromkeys(dot.loads, dot))
        if self.dots:
            self._find_replaced(consumers(body))

    # ------------------------------------------------------------ matching

    def _match(self, node: UOp) -> Dot | None:
        acc, value = node.src
        factors, lanes = narrow_factors(value), self.facts.vector_axis(acc)
        if factors is None or lanes is None or any(factor.op is not Ops.LOAD for factor in factors):
            return None
        for axis in self.facts.axes(value):
            if axis.arg.kind is AxisType.UNROLL and axis not in self.facts.axes(acc):
                dots = find_dots(factors[0].dtype, factors[1].dtype, acc.dtype, self.target)
                is_fitting = dots and dots[0].instruction.terms == axis_size(axis)
                if is_fitting and all(self._is_grouped(factor, lanes, axis) for factor in factors):
                    names = _NAMES.get(dots[0].instruction.name, {})
                    return self._arrange(acc, factors, lanes, axis, dots) if axis_size(lanes) in names else None
        return None

    def _is_grouped(self, load: UOp, lanes: UOp, terms: UOp) -> bool:
        """Whether the terms of a group are contiguous, or lanes are and can be interleaved into groups. All that is
        loaded at once has one bit as its mask."""
        index, axes = load.src[0], self.facts.axes
        base, steps = tile_part(index.src[1])
        masked = {axis for mask in index.src[2:] for axis in axes(mask)}
        if len(load.src) > 1 or (base is not None and axes(base)) or lanes in masked:
            return False
        if steps.get(lanes) == 1 and steps.get(terms) != 1:
            return True
        return terms not in masked and steps.get(terms) == 1 and steps.get(lanes, axis_size(terms)) == axis_size(terms)

    def _arrange(self, acc: UOp, factors: tuple[UOp, UOp], lanes: UOp, terms: UOp, dots: list[DotFit]) -> Dot:
        """Of two factors that can be offset, the larger one is: the correction is computed from the other."""

        def corrections(fit: DotFit) -> int:
            return 0 if fit.offset is None else len(self.facts.all_coordinates(factors[1 - fit.offset]))

        fit = min(dots, key=corrections)
        left, right = fit.order
        offset = None if fit.offset is None else fit.order.index(fit.offset)
        return Dot(acc, (factors[left], factors[right]), lanes, terms, fit, offset)

    def _is_loaded_alike(self, load: UOp, dot: Dot) -> bool:
        """Whether every other sum of this load takes it in the same groups."""
        known = self.loads.get(load, dot)
        return (known.lanes, known.terms) == (dot.lanes, dot.terms)

    def _find_replaced(self, users: dict[UOp, list[UOp]]) -> None:
        products = [node.src[1] for node in self.dots]
        for nodes in (products, [cast for product in products for cast in product.src], self.loads):
            for node in nodes:
                if all(user in self.dots or user in self.replaced for user in users[node]):
                    self.replaced.add(node)

    # ------------------------------------------------------------ sums

    def starts(self, acc: UOp) -> list[Coordinates]:
        """The coordinates of a sum's further accumulators: of what an offset factor adds to it."""
        return [
            self._offset_coordinates(dot, coordinates)
            for dot in self.dots.values()
            if dot.acc is acc and dot.offset is not None
            for coordinates in self.facts.all_coordinates(acc)
        ]

    def _offset_coordinates(self, dot: Dot, coordinates: Coordinates) -> Coordinates:
        """What the offset adds is the same along every axis that the other factor does not have."""
        assert dot.offset is not None
        facts, other = self.facts, dot.loads[1 - dot.offset]
        kept = (at if axis in facts.axes(other) else 0 for axis, at in zip(facts.outer_axes(dot.acc), coordinates))
        return (_OFFSET, *kept)

    def accumulate(self, node: UOp) -> None:
        dot, facts = self.dots[node], self.facts
        sums = self.values[dot.acc]
        others = [a for a in facts.axes(node.src[1]) if a not in facts.axes(dot.acc) and a is not dot.terms]
        for step in itertools.product(*(range(axis_size(axis)) for axis in others)):
            offsets: set[Coordinates] = set()
            for coordinates in facts.all_coordinates(dot.acc):
                at = {**dict(zip(facts.outer_axes(dot.acc), coordinates)), **dict(zip(others, step))}
                operands = [self._operand(dot, side, at) for side in range(2)]
                sums[coordinates] = self._emit(dot, sums[coordinates], operands[0], operands[1])
                if dot.offset is not None and (added := self._offset_coordinates(dot, coordinates)) not in offsets:
                    offsets.add(added)
                    operands[dot.offset] = self._half_range(dot)
                    sums[added] = self._emit(dot, sums[added], operands[0], operands[1])

    def subtract_offsets(self, acc: UOp) -> None:
        """Subtracts what offset factors have added."""
        emitter, sums = self.emitter, self.values[acc]
        for dot in self.dots.values():
            if dot.acc is not acc or dot.offset is None:
                continue
            for coordinates in self.facts.all_coordinates(acc):
                total, added = (sums[at].name for at in (coordinates, self._offset_coordinates(dot, coordinates)))
                sums[coordinates] = emitter.emit(
                    emitter.binary(Ops.SUB, acc.dtype, self.facts.lanes(acc), total, added)
                )

    def _emit(self, dot: Dot, total: Element, left: str, right: str) -> Element:
        emitter, instruction, lanes = self.emitter, dot.fit.instruction, axis_size(dot.lanes)
        sums = value_type(dot.acc.dtype, lanes)
        kinds = [value_type(dtype, lanes * instruction.terms) for dtype in (instruction.left, instruction.right)]
        name, operands = _NAMES[instruction.name][lanes], ((kinds[0], left), (kinds[1], right))
        if instruction.name not in _ONLY_PRODUCTS:
            return emitter.emit(emitter.call(name, sums, (sums, total.name), *operands))
        product = emitter.assign(emitter.call(name, sums, *operands))
        return emitter.emit(emitter.binary(Ops.ADD, dot.acc.dtype, lanes, total.name, product))

    # ------------------------------------------------------------ factors

    def _operand(self, dot: Dot, side: int, at: dict[UOp, int]) -> str:
        """A factor as the instruction takes it: widened, or offset."""
        load = dot.loads[side]
        want = (dot.fit.instruction.left, dot.fit.instruction.right)[side]
        group = self.groups[load][tuple(at[axis] for axis in self._group_axes(dot, load))]
        count, emitter = axis_size(dot.lanes) * dot.fit.instruction.terms, self.emitter
        if side == dot.offset:
            text = f"xor {value_type(want, count)} {group.name}, {self._half_range(dot)}"
        elif want.bits == load.dtype.bits:
            return group.name
        else:
            text = emitter.cast(load.dtype, want, count, group.name)
        return emitter.once((text, 0), text, group.depth).name

    def _half_range(self, dot: Dot) -> str:
        assert dot.offset is not None
        dtype = dot.loads[dot.offset].dtype
        return f"splat ({scalar_type(dtype)} {-1 << (dtype.bits - 1)})"

    def _group_axes(self, dot: Dot, load: UOp) -> list[UOp]:
        return [axis for axis in self.facts.axes(load) if axis not in (dot.lanes, dot.terms)]

    def load(self, load: UOp) -> None:
        """Loads all groups of a factor, where the program loads its elements."""
        dot = self.loads[load]
        axes = self._group_axes(dot, load)
        self.groups[load] = {
            coordinates: self._load_group(dot, load, dict(zip(axes, coordinates)))
            for coordinates in itertools.product(*(range(axis_size(axis)) for axis in axes))
        }

    def _load_group(self, dot: Dot, load: UOp, at: dict[UOp, int]) -> Element:
        index, lanes, terms = load.src[0], axis_size(dot.lanes), axis_size(dot.terms)
        steps, at = tile_part(index.src[1])[1], {**at, dot.terms: 0}
        if dot.lanes not in steps:
            return self._broadcast(load.dtype, self.memory.load_contiguous(index, at, terms), lanes, terms)
        at[dot.lanes] = 0
        if steps[dot.lanes] == 1 and steps.get(dot.terms) != 1:
            loads = (self.memory.load_contiguous(index, {**at, dot.terms: term}, lanes) for term in range(terms))
            rows = [made.name for made in loads]
            return self.emitter.here(interleave(self.emitter.assign, load.dtype.bits, rows, lanes))
        return self.memory.load_contiguous(index, at, lanes * terms)

    def _broadcast(self, dtype: DType, group: Element, lanes: int, terms: int) -> Element:
        """The same group in every lane."""
        emitter, bits = self.emitter, dtype.bits * terms
        kind = of_lanes(f"i{bits}", lanes)
        one = emitter.emit(f"bitcast {value_type(dtype, terms)} {group.name} to i{bits}", group.depth).name
        first = emitter.emit(f"insertelement {kind} poison, i{bits} {one}, i64 0", group.depth).name
        order = f"<{lanes} x i32> zeroinitializer"
        all_lanes = emitter.emit(f"shufflevector {kind} {first}, {kind} poison, {order}", group.depth).name
        return emitter.emit(f"bitcast {kind} {all_lanes} to {value_type(dtype, lanes * terms)}", group.depth)
