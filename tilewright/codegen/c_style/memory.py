"""Loads and stores of tiles in C. In: LOAD and STORE nodes. Out: lines.

The elements of a tile are at constant offsets from a base. Contiguous elements are accessed as one vector where the
base is known to be a multiple of the vector's length; elements at one address are loaded once. Where its mask is false,
an access touches no memory: a load is one side of `?:`, a store stands under an `if`."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtype import dtypes, wrap_int
from tilewright.base.records import NamedTuple
from tilewright.codegen.c_style.emitter import Emitter, element_name
from tilewright.codegen.c_style.expressions import ATOM, CHOICE, OR, SUM, UNARY, Expression
from tilewright.codegen.tiles import Coordinates, memory_dtype, tile_part
from tilewright.graph.ops import AddrSpace, Ops
from tilewright.graph.uop import UOp, memory_of

_SPACES = {Ops.PARAM: AddrSpace.GLOBAL, Ops.DEFINE_LOCAL: AddrSpace.LOCAL, Ops.DEFINE_REG: AddrSpace.REG}
# In elements; no vector is longer.
MAX_ALIGNMENT = 64


def alignment(node: UOp | None, depth: int = 12) -> int:
    """A power of two that divides the integer; None for 0, which every power of two divides."""
    if node is None:
        return MAX_ALIGNMENT
    if node.op is Ops.CONST:
        value = abs(int(node.arg))
        return min(MAX_ALIGNMENT, value & -value) if value else MAX_ALIGNMENT
    if depth == 0 or not node.dtype.is_int:
        return 1
    if node.op in (Ops.ADD, Ops.SUB, Ops.OR, Ops.XOR):
        return min(alignment(source, depth - 1) for source in node.src)
    if node.op is Ops.WHERE:
        return min(alignment(source, depth - 1) for source in node.src[1:])
    if node.op is Ops.MUL:
        return min(MAX_ALIGNMENT, alignment(node.src[0], depth - 1) * alignment(node.src[1], depth - 1))
    if node.op is Ops.AND:
        return max(alignment(source, depth - 1) for source in node.src)
    if node.op is Ops.SHL and node.src[1].is_const:
        return min(MAX_ALIGNMENT, alignment(node.src[0], depth - 1) << min(int(node.src[1].arg), 6))
    if node.op is Ops.CAST and node.src[0].dtype.is_int:
        return alignment(node.src[0], depth - 1)
    return 1


class Row(NamedTuple):
    """What elements of a tile share: their base, their mask, and the value where the mask is false."""

    base: Expression | None
    mask: Expression | None
    otherwise: Expression | None


class CStyleMemory:
    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.language = emitter.language
        self.names: dict[UOp, str] = {}  # PARAM, DEFINE_LOCAL or DEFINE_REG -> name

    # ------------------------------------------------------------ tiles in rows

    def _rows(self, node: UOp) -> dict[Row, dict[int, list[Coordinates]]]:
        """The elements of an access by what they share, and by their offset from the base."""
        emitter, place = self.emitter, node.src[0]
        base, steps = tile_part(place.src[1])
        valid = place.src[2] if len(place.src) > 2 else None
        other = node.src[1] if node.op is Ops.LOAD and len(node.src) > 1 else None
        rows: dict[Row, dict[int, list[Coordinates]]] = {}
        for coordinates, at in emitter.elements(node):
            mask = otherwise = None
            if valid is not None:
                mask = emitter.operand(valid, at)
                if node.op is Ops.LOAD:
                    zero = self.language.literal(node.dtype, 0)
                    otherwise = zero if other is None else emitter.operand(other, at)
            row = Row(None if base is None else emitter.operand(base, at), mask, otherwise)
            offset = sum(step * at[tile] for tile, step in steps.items())
            rows.setdefault(row, {}).setdefault(wrap_int(offset, dtypes.int64), []).append(coordinates)
        return rows

    def _runs(self, place: UOp, offsets: list[int]) -> Iterator[tuple[int, int]]:
        """(first offset, count): a vector where contiguous elements fill one, else single elements."""
        memory = memory_of(place)
        widths = () if memory.op is Ops.DEFINE_REG else self.language.vector_widths(memory_dtype(place.dtype))
        aligned = alignment(tile_part(place.src[1])[0]) if self.language.vectors_are_aligned else MAX_ALIGNMENT
        known, done = set(offsets), set[int]()
        for offset in sorted(offsets):
            if offset in done:
                continue
            width = next((width for width in widths if self._fills(offset, width, aligned, known - done)), 1)
            done.update(range(offset, offset + width))
            yield offset, width

    def _fills(self, offset: int, width: int, aligned: int, free: set[int]) -> bool:
        if self.language.vectors_are_aligned and (aligned % width or offset % width):
            return False
        return all(offset + lane in free for lane in range(width))

    def _named(self, row: Row, count: int) -> Row:
        """Names a base and a mask that have several uses."""
        if count < 2:
            return row
        emitter = self.emitter
        base = row.base
        if base is not None and not base.text.isidentifier():
            base = emitter.declare(emitter.index_dtype, base, emitter.fresh("idx"))
        mask = row.mask
        if mask is not None and not mask.text.isidentifier():
            mask = emitter.declare(dtypes.bool, mask, emitter.fresh("valid"))
        return Row(base, mask, row.otherwise)

    # ------------------------------------------------------------ addresses

    def _position(self, base: Expression | None, offset: int) -> Expression:
        if base is None:
            return Expression(str(offset), ATOM if offset >= 0 else UNARY)
        if offset == 0:
            return base
        return Expression(f"{base.within(SUM)} {'+' if offset > 0 else '-'} {abs(offset)}", SUM)

    def _element(self, place: UOp, base: Expression | None, offset: int) -> str:
        return f"{self.names[memory_of(place)]}[{self._position(base, offset).text}]"

    def _pointer(self, place: UOp, base: Expression | None, offset: int) -> Expression:
        name = self.names[memory_of(place)]
        if base is None and offset == 0:
            return Expression(name)
        return Expression(f"{name} + {self._position(base, offset).within(SUM)}", SUM)

    # ------------------------------------------------------------ loads

    def load(self, node: UOp) -> None:
        place = node.src[0]
        name = self.emitter.fresh("val")
        values: dict[Coordinates, Expression] = {}
        for row, places in self._rows(node).items():
            runs = list(self._runs(place, list(places)))
            row = self._named(row, len(runs))
            for offset, width in runs:
                if width > 1:
                    lanes = self._load_vector(place, row, offset, width)
                else:
                    lanes = [self._load_element(place, row, offset, element_name(name, places[offset][0]))]
                for lane, value in enumerate(lanes):
                    values.update(dict.fromkeys(places[offset + lane], value))
        self.emitter.values[node] = values

    def _load_element(self, place: UOp, row: Row, offset: int, label: str) -> Expression:
        text = Expression(self._element(place, row.base, offset))
        if place.dtype.is_bool:
            text = self.language.cast(dtypes.uint8, dtypes.bool, text)
        return self.emitter.declare(place.dtype, self._chosen(row, text), label)

    def _load_vector(self, place: UOp, row: Row, offset: int, width: int) -> list[Expression]:
        dtype, language = memory_dtype(place.dtype), self.language
        pointer = self._pointer(place, row.base, offset)
        text = language.load_vector(dtype, width, pointer, _SPACES[memory_of(place).op])
        if row.mask is not None:
            assert row.otherwise is not None
            otherwise = row.otherwise
            if place.dtype.is_bool:
                otherwise = language.cast(dtypes.bool, dtypes.uint8, otherwise)
            filled = Expression(language.make_vector(dtype, [otherwise.text] * width))
            text = self._chosen(Row(row.base, row.mask, filled), text)
        name = self.emitter.fresh("vec")
        self.emitter.line(f"const {language.vector_type(dtype, width)} {name} = {text.text};")
        lanes = [Expression(language.lane(name, lane, width)) for lane in range(width)]
        return [language.cast(dtypes.uint8, dtypes.bool, lane) for lane in lanes] if place.dtype.is_bool else lanes

    def _chosen(self, row: Row, text: Expression) -> Expression:
        if row.mask is None or row.otherwise is None:
            return text
        return Expression(f"{row.mask.within(OR)} ? {text.within(OR)} : {row.otherwise.within(OR)}", CHOICE)

    # ------------------------------------------------------------ stores

    def store(self, node: UOp) -> None:
        emitter = self.emitter
        place, value = node.src[:2]
        axes = emitter.facts.axes(node)
        for row, places in self._rows(node).items():
            if node.arg is not None:
                self._combine(node, row, places)
                continue
            runs = list(self._runs(place, list(places)))
            row = self._named(row, len(runs))
            lines = []
            for offset, width in runs:
                # Elements of a tile with the same address are equal, so one of them is stored.
                firsts = [places[offset + lane][0] for lane in range(width)]
                values = [emitter.operand(value, dict(zip(axes, first, strict=True))) for first in firsts]
                if place.dtype.is_bool:
                    values = [self.language.cast(dtypes.bool, dtypes.uint8, given) for given in values]
                lines.append(self._store_line(place, row.base, offset, values))
            self.emitter.masked(row.mask, lines)

    def _combine(self, node: UOp, row: Row, places: dict[int, list[Coordinates]]) -> None:
        """Atomic updates, one for each element, also where two have the same address."""
        place, value = node.src
        axes = self.emitter.facts.axes(node)
        row = self._named(row, sum(map(len, places.values())))
        lines = []
        for offset, elements in places.items():
            pointer = self._pointer(place, row.base, offset)
            for coordinates in elements:
                given = self.emitter.operand(value, dict(zip(axes, coordinates, strict=True)))
                lines.append(self.language.atomic(node.arg, place.dtype, pointer, given))
        self.emitter.masked(row.mask, lines)

    def _store_line(self, place: UOp, base: Expression | None, offset: int, values: list[Expression]) -> str:
        """One element at an offset, or a vector of contiguous ones from there on."""
        if len(values) == 1:
            return f"{self._element(place, base, offset)} = {values[0].text};"
        pointer, space = self._pointer(place, base, offset), _SPACES[memory_of(place).op]
        return self.language.store_vector(memory_dtype(place.dtype), [value.text for value in values], pointer, space)
