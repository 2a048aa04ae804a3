"""Dot-product instructions. In: a program whose target has some. Out: text in which one instruction adds several
products of narrow integers to each lane of a sum, where the program's own nodes widen, multiply and add one by one.

An instruction replaces the ACCUMULATE of a product that is summed along an UNROLL axis of as many terms as the
instruction takes. A factor is made of groups of that many elements: a group for each lane, or one group for all lanes
(`grouped_values`)."""

from __future__ import annotations

import itertools

from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.grouped_values import Group, GroupedValues
from tilewright.backends.cpu.rendering.instructions import constant, scalar_type, value_type
from tilewright.backends.cpu.rendering.loads import Loads
from tilewright.backends.cpu.rendering.shuffles import shuffle_mask
from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.codegen.tiles import Coordinates
from tilewright.graph.kernels.dot_products import DotFit, find_dots, narrow_factors, usable_dtypes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import consumers, size_of

# LLVM's intrinsics, by the number of 32-bit lanes.
_PAIRS_OF_WORDS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
_NAMES = {
    "vpdpbusd": {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)},
    "pmaddubsw": {
        4: "llvm.x86.ssse3.pmadd.ub.sw.128",
        8: "llvm.x86.avx2.pmadd.ub.sw",
        16: "llvm.x86.avx512.pmaddubs.w.512",
    },
    **dict.fromkeys(("pmaddwd", "bytes as words"), _PAIRS_OF_WORDS),
    **{name: {4: f"llvm.aarch64.neon.{name}.v4i32.v16i8"} for name in ("sdot", "udot", "usdot")},
}
# Instructions whose second operand may be one group for all lanes, in any lane of a register.
_BY_LANE = frozenset({"sdot", "udot", "usdot"})
# The first coordinate of the accumulators of the corrections for an offset factor.
_OFFSET = -1


def _lanes_at_once(name: str, lanes: int) -> int:
    """The lanes of the widest instruction for this many: all of them, a half, a fourth, ...; 0 where none fits."""
    widths = _NAMES.get(name, {})
    while lanes not in widths and lanes % 2 == 0 and lanes:
        lanes //= 2
    return lanes if lanes in widths else 0


class Dot(NamedTuple):
    """A sum that an instruction computes: both factors, in the order of the instruction's operands; the axis of its
    lanes and that of the terms in a lane."""

    acc: UOp
    factors: tuple[UOp, UOp]
    group: Group
    fit: DotFit
    offset: int | None  # which of the factors is offset
    members: frozenset[UOp]  # the nodes of both factors


class DotProducts:
    def __init__(self, memory: Loads) -> None:
        self.values = memory.values
        self.facts = memory.facts
        self.emitter = memory.emitter
        self.target = memory.program.target
        self.memory = memory
        self.grouped = GroupedValues(memory)
        self.dots: dict[UOp, Dot] = {}  # by the ACCUMULATE
        self.members: dict[UOp, Group] = {}
        self.replaced: set[UOp] = set()  # nodes that nothing else uses
        body = memory.program.body if self.target.dot_products else ()
        self.stored: dict[UOp, list[UOp]] = {}  # by the memory
        for node in body:
            if node.op is Ops.STORE:
                self.stored.setdefault(memory_of(node.src[0]), []).append(node.src[1])
        for node in body:
            dot = self._match(node) if node.op is Ops.ACCUMULATE and node.arg is Ops.ADD else None
            # Every other sum of a factor takes it in the same groups.
            if dot is not None and all(self.members.get(each, dot.group) == dot.group for each in dot.members):
                self.dots[node] = dot
                self.members.update(dict.fromkeys(dot.members, dot.group))
        for node, dot in self.dots.items():
            if dot.fit.instruction.name in _BY_LANE:
                self.dots[node] = self._by_lane(dot)
        self.lazy: set[UOp] = set()  # members that are computed where the sum is
        if self.dots:
            self._find_replaced(consumers(body))
            self._find_lazy(memory.program)

    # ------------------------------------------------------------ matching

    def _match(self, node: UOp) -> Dot | None:
        acc, value = node.src
        factors, lanes = narrow_factors(value), self.facts.vector_axis(acc)
        if factors is None or lanes is None:
            return None
        summed = [axis for axis in self.facts.axes(value) if axis not in self.facts.axes(acc)]
        found = [(dots, axis) for axis in summed if (dots := self._find_dots(factors, acc, axis, lanes))]
        for dots, axis in sorted(found, key=lambda each: each[0][0].instruction.effort):
            group = Group(lanes, axis)
            members = [self.grouped.members(factor, group) for factor in factors]
            if members[0] and members[1]:
                return self._arrange(acc, factors, group, dots, frozenset([*members[0], *members[1]]))
        return None

    def _find_dots(self, factors: tuple[UOp, UOp], acc: UOp, axis: UOp, lanes: UOp) -> list[DotFit]:
        """A factor whose values fit both the signed and the unsigned dtype may be either; the fewest instructions are
        preferred, and then a match without an offset."""
        if axis.arg.kind is not AxisType.UNROLL:
            return []
        greatest = self._greatest(factors[0]), self._greatest(factors[1])
        pairs = itertools.product(usable_dtypes(factors[0]), usable_dtypes(factors[1]))
        matches = (find_dots(left, right, acc.dtype, self.target, greatest, size_of(axis)) for left, right in pairs)
        found = [dots for dots in matches if dots and _lanes_at_once(dots[0].instruction.name, size_of(lanes))]
        return min(found, key=lambda dots: (dots[0].instruction.count, dots[0].offset is not None), default=[])

    def _greatest(self, factor: UOp) -> int:
        """The greatest value of a factor. What is loaded from memory of the kernel is what was stored there."""
        memory = memory_of(factor.src[0]) if factor.op is Ops.LOAD else factor
        stored = self.stored.get(memory, []) if memory.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_REG) else []
        return max((int(each.vmax) for each in stored), default=int(factor.vmax))

    def _arrange(
        self, acc: UOp, factors: tuple[UOp, UOp], group: Group, dots: list[DotFit], members: frozenset[UOp]
    ) -> Dot:
        """Where both factors can be offset, the larger one is: the correction is computed from the other."""

        def corrections(fit: DotFit) -> int:
            return 0 if fit.offset is None else len(self.facts.all_coordinates(factors[1 - fit.offset]))

        fit = min(dots, key=corrections)
        left, right = fit.order
        offset = None if fit.offset is None else fit.order.index(fit.offset)
        return Dot(acc, (factors[left], factors[right]), group, fit, offset, members)

    def _by_lane(self, dot: Dot) -> Dot:
        """The factor that is the same in all lanes comes second, where the operands may be exchanged."""
        for factor in dot.factors:
            self.grouped.join_groups(factor, dot.group)
        instruction, (left, right) = dot.fit.instruction, dot.factors
        if left not in self.grouped.rows or instruction.left is not instruction.right:
            return dot
        return dot._replace(factors=(right, left), offset=None if dot.offset is None else 1 - dot.offset)

    def _find_replaced(self, users: dict[UOp, list[UOp]]) -> None:
        products = [node.src[1] for node in self.dots]
        members = [node for node in reversed(list(users)) if node in self.members]
        for nodes in (products, [cast for product in products for cast in product.src], members):
            for node in nodes:
                if all(user in self.dots or user in self.replaced for user in users[node]):
                    self.replaced.add(node)

    def _find_lazy(self, program: Program) -> None:
        """Finds the members that are in the same loops as all their sums, of memory that is not written between the
        two."""
        loops: list[UOp] = []
        around: dict[UOp, tuple[UOp, ...]] = {}
        for node in program.body:
            if node.op is Ops.RANGE and not node.arg.kind.is_tile:
                loops.append(node)
            elif node.op is Ops.END:
                loops.pop()
            elif node in self.members or node in self.dots:
                around[node] = tuple(loops)
        order = {node: number for number, node in enumerate(program.body)}
        stores = [(order[node], memory_of(node.src[0])) for node in program.body if node.op is Ops.STORE]
        for node, dot in self.dots.items():
            for member in dot.members:
                memory = memory_of(member.src[0]) if member.op is Ops.LOAD else None
                is_kept = not any(order[member] < at < order[node] and memory is written for at, written in stores)
                if is_kept and around[member] == around[node]:
                    self.lazy.add(member)
        shared = {member for node, dot in self.dots.items() for member in dot.members if around[member] != around[node]}
        self.lazy -= shared

    # ------------------------------------------------------------ sums

    def starts(self, acc: UOp) -> list[Coordinates]:
        """The coordinates of a sum's further accumulators: those of the corrections for an offset factor."""
        return [
            self._offset_coordinates(dot, coordinates)
            for dot in self.dots.values()
            if dot.acc is acc and dot.offset is not None
            for coordinates in self.facts.all_coordinates(acc)
        ]

    def _offset_coordinates(self, dot: Dot, coordinates: Coordinates) -> Coordinates:
        """The coordinates of a correction: it is the same along every axis that the other factor does not have."""
        assert dot.offset is not None
        facts, other = self.facts, dot.factors[1 - dot.offset]
        kept = (at if axis in facts.axes(other) else 0 for axis, at in zip(facts.outer_axes(dot.acc), coordinates))
        return (_OFFSET, *kept)

    def accumulate(self, node: UOp) -> None:
        dot, facts = self.dots[node], self.facts
        sums, first = self.values[dot.acc], dot.acc.src[0].arg
        is_loaded = dot.fit.instruction.name in _BY_LANE and first
        start = constant(dot.acc.dtype, first, facts.lanes(dot.acc)) if is_loaded else ""
        others = [a for a in facts.axes(node.src[1]) if a not in facts.axes(dot.acc) and a is not dot.group.terms]
        steps = [dict(zip(others, step)) for step in itertools.product(*(range(size_of(axis)) for axis in others))]
        offsets: set[tuple[int, Coordinates]] = set()
        for group in self._sharing(dot, steps):
            for (number, step), coordinates in itertools.product(enumerate(steps), group):
                at = {**dict(zip(facts.outer_axes(dot.acc), coordinates)), **step}
                operands = [self._operand(dot, side, at) for side in range(2)]
                total = self._loaded_start(dot) if sums[coordinates].name == start else sums[coordinates]
                sums[coordinates] = self._emit(dot, total, operands[0], operands[1])
                if dot.offset is None or (number, added := self._offset_coordinates(dot, coordinates)) in offsets:
                    continue
                offsets.add((number, added))
                operands[dot.offset] = self._half_range(dot)
                sums[added] = self._emit(dot, sums[added], operands[0], operands[1])

    def _loaded_start(self, dot: Dot) -> Element:
        """The initial value of a sum, where it is not 0. It is loaded, because a copy from register to register
        occupies a multiplication unit and a load does not. The load is volatile, so that LLVM neither merges nor moves
        it."""
        kind, first = value_type(dot.acc.dtype, self.facts.lanes(dot.acc)), dot.acc.src[0].arg
        name = f"%start{first}.{self.facts.lanes(dot.acc)}"
        value = constant(dot.acc.dtype, first, self.facts.lanes(dot.acc))
        lines = [f"  {name} = alloca {kind}, align 16", f"  store {kind} {value}, ptr {name}, align 16"]
        self.memory.entry.extend(line for line in lines if line not in self.memory.entry)
        return self.emitter.emit(f"load volatile {kind}, ptr {name}, align 16")

    def _sharing(self, dot: Dot, steps: list[dict[UOp, int]]) -> list[list[Coordinates]]:
        """The coordinates of the sums in groups, such that sums of different groups load no vector in common. The
        groups are computed one after the other, so that few sums and operands are live at a time."""
        axes, groups = self.facts.outer_axes(dot.acc), list[tuple[list[Coordinates], set[object]]]()
        everywhere = list(self.facts.all_coordinates(dot.acc))
        for coordinates in everywhere:
            at = dict(zip(axes, coordinates))
            own = {key for step in steps for key in self.grouped.loaded(dot.factors, dot.group, {**at, **step})}
            shared = [group for group in groups if not own.isdisjoint(group[1])]
            groups = [group for group in groups if own.isdisjoint(group[1])]
            members = [member for group in shared for member in group[0]]
            groups.append(([*members, coordinates], own.union(*(group[1] for group in shared))))
        place = {coordinates: number for number, coordinates in enumerate(everywhere)}
        return [sorted(members, key=place.__getitem__) for members, _ in groups]

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
        """One instruction, or one for each register of the lanes."""
        instruction, lanes = dot.fit.instruction, size_of(dot.group.lanes)
        width = _lanes_at_once(instruction.name, lanes)
        if width == lanes:
            return self._emit_one(dot, lanes, total.name, left, right)
        terms = instruction.terms
        given = ((dot.acc.dtype, 1, total.name), (instruction.left, terms, left), (instruction.right, terms, right))
        parts = []
        for start in range(0, lanes, width):
            own = [self._part(value_type(t, n * lanes), name, n * start, n * width) for t, n, name in given]
            parts.append(self._emit_one(dot, width, *own).name)
        while len(parts) > 1:
            kind = value_type(dot.acc.dtype, width)
            order = shuffle_mask(range(2 * width))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.emitter.assign(f"shufflevector {kind} {a}, {kind} {b}, {order}") for a, b in pairs]
            width *= 2
        return self.emitter.here(parts[0])

    def _part(self, kind: str, name: str, start: int, count: int) -> str:
        order = shuffle_mask(range(start, start + count))
        return self.emitter.assign(f"shufflevector {kind} {name}, {kind} poison, {order}")

    def _emit_one(self, dot: Dot, lanes: int, total: str, left: str, right: str) -> Element:
        emitter, instruction = self.emitter, dot.fit.instruction
        sums = value_type(dot.acc.dtype, lanes)
        kinds = [value_type(dtype, lanes * instruction.terms) for dtype in (instruction.left, instruction.right)]
        name, operands = _NAMES[instruction.name][lanes], ((kinds[0], left), (kinds[1], right))
        if instruction.name == "pmaddubsw":
            words = value_type(dtypes.int16, 2 * lanes)
            pairs = emitter.assign(emitter.call(name, words, *operands))
            products = [self._pairs_of_words(lanes, pairs, "splat (i16 1)")]
        elif instruction.name == "bytes as words":
            products = self._bytes_as_words(lanes, left, right)
        elif instruction.name == "pmaddwd":
            products = [self._pairs_of_words(lanes, left, right)]
        else:
            return emitter.emit(emitter.call(name, sums, (sums, total), *operands))
        for product in products[:-1]:
            total = emitter.assign(emitter.binary(Ops.ADD, dot.acc.dtype, lanes, total, product))
        return emitter.emit(emitter.binary(Ops.ADD, dot.acc.dtype, lanes, total, products[-1]))

    def _pairs_of_words(self, lanes: int, left: str, right: str) -> str:
        words, sums = value_type(dtypes.int16, 2 * lanes), value_type(dtypes.int32, lanes)
        return self.emitter.assign(self.emitter.call(_PAIRS_OF_WORDS[lanes], sums, (words, left), (words, right)))

    def _bytes_as_words(self, lanes: int, left: str, right: str) -> list[str]:
        """Products of the lower and of the upper bytes of words: unsigned on the left, signed on the right."""
        bytes_, words = value_type(dtypes.int8, 4 * lanes), value_type(dtypes.int16, 2 * lanes)
        lefts, rights = (self.emitter.assign(f"bitcast {bytes_} {each} to {words}") for each in (left, right))
        lower = self.emitter.assign(f"and {words} {lefts}, splat (i16 255)")
        upper = self.emitter.assign(f"lshr {words} {lefts}, splat (i16 8)")
        raised = self.emitter.assign(f"shl {words} {rights}, splat (i16 8)")
        signed = [self.emitter.assign(f"ashr {words} {each}, splat (i16 8)") for each in (raised, rights)]
        return [self._pairs_of_words(lanes, *each) for each in zip((lower, upper), signed, strict=True)]

    # ------------------------------------------------------------ factors

    def emit_member(self, node: UOp) -> None:
        """A node of a factor, where the program has it."""
        self.grouped.emit(node, self.members[node], node in self.lazy)

    def _operand(self, dot: Dot, side: int, at: dict[UOp, int]) -> str:
        """A factor as the instruction takes it: widened, or offset."""
        factor = dot.factors[side]
        want = (dot.fit.instruction.left, dot.fit.instruction.right)[side]
        made = self.grouped.operand(factor, dot.group, at)
        count, emitter = size_of(dot.group.lanes) * dot.fit.instruction.terms, self.emitter
        if side == dot.offset:
            text = f"xor {value_type(want, count)} {made.name}, {self._half_range(dot)}"
        elif want.bits == factor.dtype.bits:
            return made.name
        else:
            text = emitter.cast(factor.dtype, want, count, made.name)
        return emitter.once((text, 0), text, made.depth).name

    def _half_range(self, dot: Dot) -> str:
        assert dot.offset is not None
        dtype = dot.factors[dot.offset].dtype
        return f"splat ({scalar_type(dtype)} {-1 << (dtype.bits - 1)})"
