"""Operands of dot-product instructions. In: an expression of narrow integers, the axis of the lanes and that of the
terms. Out: vectors of all terms of all lanes, side by side.

A factor is a load, or an expression of loads in integers of one width: the nibbles of a byte, a quantised weight made
from two fields. Its operations are those of the program on longer vectors. A load has contiguous terms, contiguous
lanes (which are interleaved), or constant positions close together in the tile (bits that several elements share),
which are shuffled."""

from __future__ import annotations

import itertools

from tilewright.backends.cpu.rendering.elementwise import spell
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.inserted_bits import find_insertion
from tilewright.backends.cpu.rendering.instructions import constant, literal, of_lanes, scalar_type, value_type
from tilewright.backends.cpu.rendering.loads import Loads, span_count
from tilewright.backends.cpu.rendering.shuffles import interleave, shuffle_mask
from tilewright.backends.cpu.rendering.strided_words import Words, find_stride, find_words, load_words
from tilewright.base.records import NamedTuple
from tilewright.codegen.tiles import Coordinates, is_tile_expression, tile_part, tile_values
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort


class Group(NamedTuple):
    """The axis whose elements are lanes, and the axis of the terms that each lane sums."""

    lanes: UOp
    terms: UOp


class Row(NamedTuple):
    """Groups that are computed as one vector: as many along an axis whose neighbours are contiguous."""

    axis: UOp
    groups: int


# Bytes of a vector from which an instruction takes the group of all lanes.
ROW_BYTES = 16


class GroupedValues:
    def __init__(self, memory: Loads) -> None:
        self.memory = memory
        self.values = memory.values
        self.facts = memory.facts
        self.emitter = memory.emitter
        self.has_insertions = "SHIFT_INSERT" in memory.program.target.native_ops
        self.made: dict[UOp, dict[Coordinates, Element]] = {}
        self.rows: dict[UOp, Row] = {}  # of members that are the same in all lanes
        # For loads whose lanes have a stride: the words that they read, and the loaded vectors.
        self._known_words: dict[tuple[UOp, Group], Words | None] = {}
        self._words: dict[UOp, dict[int, str]] = {}

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
        """Whether a load can give vectors of terms; each of its contiguous loads has one bit as its mask."""
        index, axes = load.src[0], self.facts.axes
        base, steps = tile_part(index.src[1])
        masked = {axis for mask in index.src[2:] for axis in axes(mask)}
        if len(load.src) > 1 or group.lanes in masked:
            return False
        if base is not None and axes(base):
            return not masked and (self._has_short_spans(load, group) or self._find_words(load, group) is not None)
        if steps.get(group.lanes) == 1 and steps.get(group.terms) != 1:
            return True
        size = size_of(group.terms)
        if steps.get(group.lanes, size) != size:
            return not masked and self._find_words(load, group) is not None
        return group.terms not in masked and steps.get(group.terms) == 1

    def _find_words(self, load: UOp, group: Group) -> Words | None:
        """The words that a load reads, where each lane of a vector has all its terms in one of them."""
        if (load, group) not in self._known_words:
            self._known_words[load, group] = self._words_of(load, group)
        return self._known_words[load, group]

    def _words_of(self, load: UOp, group: Group) -> Words | None:
        stride = find_stride(self.memory, load.src[0], group.lanes)
        if stride is None or group.lanes not in self.facts.axes(load):
            return None
        others = self.axes(load, group)
        elements = itertools.product(*(range(size_of(axis)) for axis in others))
        vectors = [self._terms_of(load, group, dict(zip(others, coordinates))) for coordinates in elements]
        words = find_words(load.dtype.itemsize, stride, vectors)
        if words is None or words.size != size_of(group.terms):
            return None
        is_whole = all(len({words.word_of(position) for position in read}) == 1 for read in vectors)
        return words if is_whole else None

    def _terms_of(self, load: UOp, group: Group, at: dict[UOp, int]) -> list[int]:
        """The positions of the terms of the first lane of a vector."""
        return self._positions(load, group, at, size_of(group.terms))

    def _has_short_spans(self, load: UOp, group: Group) -> bool:
        """Whether the elements of each vector are at constant positions, close together or in a few spans."""
        if self.memory.constant_position(load.src[0]) is None:
            return False
        others = self.axes(load, group)
        for coordinates in itertools.product(*(range(size_of(axis)) for axis in others)):
            positions = self._positions(load, group, dict(zip(others, coordinates)), self._count(load, group))
            if not span_count(positions):
                return False
        return True

    def _positions(self, load: UOp, group: Group, at: dict[UOp, int], count: int) -> list[int]:
        """The positions of the first elements of a vector, relative to the base of the tile."""
        split = self.memory.constant_position(load.src[0])
        assert split is not None
        elements = self._elements(group, at, count)
        columns = [tile_values(part, elements) for part in split[1:]]
        return [sum(parts) for parts in zip([0] * count, *columns)]

    def join_groups(self, factor: UOp, group: Group) -> None:
        """Computes neighbouring groups of a factor as one vector, where all lanes take the same group: for instructions
        whose operand for all lanes is any lane of a register. Loads of single groups would be duplicated first."""
        members = self.members(factor, group)
        if members is None or group.lanes in self.facts.axes(factor) or any(node in self.rows for node in members):
            return
        nodes = toposort(factor, stop=lambda node: node.op is Ops.LOAD)
        for axis in self.axes(factor, group):
            count = ROW_BYTES // (size_of(group.terms) * factor.dtype.itemsize)
            if count < 2 or size_of(axis) % count:
                continue
            loads = [node for node in members if node.op is Ops.LOAD]
            others = [node for node in nodes if node not in members and not is_tile_expression(node)]
            if all(self._is_contiguous(load, group, axis) for load in loads) and not any(
                axis in self.facts.axes(node) for node in others
            ):
                self.rows.update(dict.fromkeys(members, Row(axis, count)))
                return

    def _is_contiguous(self, load: UOp, group: Group, axis: UOp) -> bool:
        """Whether the groups of a load along an axis follow each other in memory."""
        base, steps = tile_part(load.src[0].src[1])
        if len(load.src) > 1 or len(load.src[0].src) > 2 or (base is not None and self.facts.axes(base)):
            return False
        return steps.get(group.terms) == 1 and steps.get(axis) == size_of(group.terms)

    # ------------------------------------------------------------ values

    def axes(self, node: UOp, group: Group) -> list[UOp]:
        """The tile axes whose elements are vectors of their own."""
        return [axis for axis in self.facts.axes(node) if axis not in group]

    def emit(self, node: UOp, group: Group, is_lazy: bool) -> None:
        """Emits all vectors of a member; those of a lazy one are emitted where each is first used, so that few are live
        at once."""
        self.made[node] = {}
        self._words.pop(node, None)
        axes = self.axes(node, group)
        for coordinates in () if is_lazy else itertools.product(*(range(size_of(axis)) for axis in axes)):
            self._vector(node, group, dict(zip(axes, coordinates)))

    def _vector(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        if node in self.rows:
            axis, count = self.rows[node]
            at = {**at, axis: at[axis] // count * count}
        made, coordinates = self.made[node], tuple(at[axis] for axis in self.axes(node, group))
        if coordinates not in made:
            make = self._load if node.op is Ops.LOAD else self._compute
            made[coordinates] = make(node, group, at)
        return made[coordinates]

    def operand(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        """A factor in all lanes."""
        made = self._vector(node, group, at)
        return made if group.lanes in self.facts.axes(node) else self._broadcast(node, made, group, at)

    def _count(self, node: UOp, group: Group) -> int:
        """The length of a node's vectors: one group where all lanes have the same, or a row of them."""
        terms = size_of(group.terms)
        if node in self.rows:
            return terms * self.rows[node].groups
        return terms * size_of(group.lanes) if group.lanes in self.facts.axes(node) else terms

    def _compute(self, node: UOp, group: Group, at: dict[UOp, int]) -> Element:
        count = self._count(node, group)
        outer = {axis: step for axis, step in at.items() if axis not in group}
        inserted = (
            find_insertion(node, outer)
            if self.has_insertions and count == self.memory.program.target.vector_bytes
            else None
        )
        if inserted is not None:
            kind = value_type(node.dtype, count)
            names = [self._source(part, group, at, count, self.rows.get(node)) for part in inserted[:2]]
            given = ((kind, names[0]), (kind, names[1]), ("i32", str(inserted.amount)))
            return self.emitter.emit(self.emitter.call(f"llvm.aarch64.neon.vsri.v{count}i8", kind, *given))
        operands = [self._source(source, group, at, count, self.rows.get(node)) for source in node.src]
        return self.emitter.emit(spell(self.emitter, node, operands, count))

    def _source(self, node: UOp, group: Group, at: dict[UOp, int], count: int, row: Row | None) -> str:
        if node.op is Ops.CONST:
            return constant(node.dtype, node.arg, count)
        if is_tile_expression(node):
            return self._constants(node, group, at, count, row)
        if not self._varies(node, group):
            return self._splat(node, self.values.operand(node, at, None), count)
        made = self._vector(node, group, at)
        return made.name if self._count(node, group) == count else self._broadcast(node, made, group, at).name

    def _splat(self, node: UOp, name: str, count: int) -> str:
        one, many = scalar_type(node.dtype), value_type(node.dtype, count)
        first = self.emitter.assign(f"insertelement {many} poison, {one} {name}, i64 0")
        return self.emitter.assign(f"shufflevector {many} {first}, {many} poison, <{count} x i32> zeroinitializer")

    def _elements(self, group: Group, at: dict[UOp, int], count: int, row: Row | None = None) -> list[dict[UOp, int]]:
        terms = size_of(group.terms)
        if row is not None:
            first = at[row.axis]
            return [{**at, row.axis: first + number // terms, group.terms: number % terms} for number in range(count)]
        return [{**at, group.lanes: number // terms, group.terms: number % terms} for number in range(count)]

    def _constants(self, node: UOp, group: Group, at: dict[UOp, int], count: int, row: Row | None) -> str:
        kind = scalar_type(node.dtype)
        values = tile_values(node, self._elements(group, at, count, row))
        return "<" + ", ".join(f"{kind} {literal(node.dtype, value)}" for value in values) + ">"

    # ------------------------------------------------------------ loads

    def loaded(self, factors: tuple[UOp, ...], group: Group, at: dict[UOp, int]) -> set[object]:
        """What identifies the vectors that factors load for an element."""
        found: set[object] = set()
        for node in toposort(*factors, stop=lambda node: node.op is Ops.LOAD):
            if node.op is not Ops.LOAD or not self._varies(node, group):
                continue
            split = self.memory.constant_position(node.src[0])
            if split is None:
                found.add((node, *(at[axis] for axis in self.axes(node, group))))
            else:
                found.add((memory_of(node), split[0], *self._positions(node, group, at, 1)))
        return found

    def _load(self, load: UOp, group: Group, at: dict[UOp, int]) -> Element:
        index, lanes, terms = load.src[0], size_of(group.lanes), size_of(group.terms)
        base, steps = tile_part(index.src[1])
        size = steps.get(group.lanes, terms)
        if base is not None and self.facts.axes(base):
            if self._has_short_spans(load, group):
                return self.memory.load_span(index, self._positions(load, group, at, self._count(load, group)))
            return self._load_words(load, group, at)
        if size not in (1, terms):
            return self._load_words(load, group, at)
        at = {**at, group.terms: 0}
        if group.lanes not in steps:
            return self.memory.load_contiguous(index, at, self._count(load, group))
        at[group.lanes] = 0
        if size == 1 and steps.get(group.terms) != 1:
            loads = (self.memory.load_contiguous(index, {**at, group.terms: term}, lanes) for term in range(terms))
            rows = [made.name for made in loads]
            return self.emitter.here(interleave(self.emitter.assign, load.dtype.bits, rows, lanes))
        return self.memory.load_contiguous(index, at, lanes * terms)

    def _load_words(self, load: UOp, group: Group, at: dict[UOp, int]) -> Element:
        """Loads lanes at a stride as words. Terms in another order than in their word, or repeated ones, are shuffled
        inside of it."""
        words, lanes, terms = self._find_words(load, group), size_of(group.lanes), size_of(group.terms)
        assert words is not None
        if load not in self._words:
            self._words[load] = load_words(self.memory, load.src[0], words, lanes)
        positions = self._terms_of(load, group, at)
        word, kind = words.word_of(positions[0]), value_type(load.dtype, lanes * terms)
        made = self.emitter.assign(f"bitcast {of_lanes('i32', lanes)} {self._words[load][word]} to {kind}")
        inside = [position - word for position in positions]
        if inside != list(range(terms)):
            order = shuffle_mask([lane * terms + term for lane in range(lanes) for term in inside])
            made = self.emitter.assign(f"shufflevector {kind} {made}, {kind} poison, {order}")
        return self.emitter.here(made)

    def _broadcast(self, node: UOp, made: Element, group: Group, at: dict[UOp, int]) -> Element:
        """The same terms in every lane."""
        emitter, lanes, terms, dtype = self.emitter, size_of(group.lanes), size_of(group.terms), node.dtype
        if node in self.rows:
            axis, count = self.rows[node]
            number, kind = at[axis] % count, value_type(dtype, terms * count)
            order = shuffle_mask([number * terms + term for _ in range(lanes) for term in range(terms)])
            text = f"shufflevector {kind} {made.name}, {kind} poison, {order}"
            return emitter.once((text, 0), text, made.depth)
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
