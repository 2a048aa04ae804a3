"""Narrow elements of lanes at a stride: bytes of several rows of a matrix. In: an INDEX, and the positions of its
elements in the tile. Out: vectors of all lanes, each lane a word of 4 bytes at one offset of its row.

No instruction gathers bytes, and inserting each takes longer than computing with them. Adjacent words of a lane are one
load; the loads of all lanes are transposed in registers (`across`)."""

from __future__ import annotations

from tilewright.backends.cpu.rendering.addresses import Addresses
from tilewright.backends.cpu.rendering.emitter import Element
from tilewright.backends.cpu.rendering.instructions import of_lanes
from tilewright.backends.cpu.rendering.shuffles import PIECE_BYTES, across
from tilewright.base.records import NamedTuple
from tilewright.codegen.tiles import Coordinates, tile_value
from tilewright.graph.affine import affine
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

WORD_BYTES = 4


class Words(NamedTuple):
    """The offsets at which lanes, `stride` elements apart, read words; in elements, relative to the base of the
    tile."""

    stride: int
    size: int  # elements of a word
    offsets: tuple[int, ...]

    def word_of(self, position: int) -> int:
        """The offset of the word that contains an element of the first lane."""
        return position - (position - self.offsets[0]) % self.size


def find_stride(memory: Addresses, index: UOp, lanes: UOp) -> int | None:
    """The stride of the lanes of a load; None where it is not constant, where the load is masked, or where the number
    of lanes is not a power of two, which a transposition needs."""
    split, count = memory.constant_position(index), size_of(lanes)
    if split is None or len(index.src) > 2 or count & (count - 1):
        return None
    stride = 0
    for part in split[1:]:
        form = affine(part)
        if any(lanes in atom.ranges and atom is not lanes for atom in form.terms):
            return None
        stride += form.terms.get(lanes, 0)
    return stride


def find_words(itemsize: int, stride: int, vectors: list[list[int]]) -> Words | None:
    """The words of some vectors, for each of which `vectors` has the positions that its first lane reads. None where
    the last word would contain elements after the last one that is read."""
    size = WORD_BYTES // itemsize
    positions = {position for read in vectors for position in read}
    first, end = min(positions), max(positions) + 1
    if size < 2 or (end - first) % size:
        return None
    words = Words(stride, size, (first,))
    return words._replace(offsets=tuple(sorted({words.word_of(position) for position in positions})))


def load_words(memory: Addresses, index: UOp, words: Words, lanes: int) -> dict[int, str]:
    """For each offset a vector of i32, one for each lane. Adjacent words are loaded at once."""
    emitter, split = memory.emitter, memory.constant_position(index)
    assert split is not None
    base, itemsize = memory.base_pointer(index, split[0]), WORD_BYTES // words.size
    found: dict[int, str] = {}
    for piece in _pieces(words, min(lanes, PIECE_BYTES // WORD_BYTES)):
        kind = of_lanes("i32", len(piece))
        rows = []
        for lane in range(lanes):
            pointer = memory.moved(base, "i8", (piece[0] + lane * words.stride) * itemsize)
            rows.append(emitter.assign(f"load {kind}, ptr {pointer.name}, align {itemsize}"))
        found.update(zip(piece, across(emitter.assign, "i32", rows, len(piece)), strict=True))
    return found


def load_narrow(memory: Addresses, node: UOp, axis: UOp) -> dict[Coordinates, Element] | None:
    """The elements of a load whose vectors lie along `axis`: of each lane's words, shifted to the element. None where
    the load reads no whole words."""
    index, itemsize, lanes = node.src[0], node.dtype.itemsize, size_of(axis)
    stride = find_stride(memory, index, axis)
    if not stride or itemsize * 2 > WORD_BYTES or not node.dtype.is_int:
        return None
    parts = (memory.constant_position(index) or ())[1:]
    positions = {
        coordinates: sum(tile_value(part, {**at, axis: 0}) for part in parts)
        for coordinates, at in memory.values.elements(node)
    }
    words = find_words(itemsize, stride, [[position] for position in positions.values()])
    if words is None:
        return None
    loaded, emitter = load_words(memory, index, words, lanes), memory.emitter
    kind, narrow = of_lanes("i32", lanes), of_lanes(f"i{node.dtype.bits}", lanes)
    found: dict[Coordinates, Element] = {}
    for coordinates, position in positions.items():
        word = words.word_of(position)
        name = loaded[word]
        if position != word:
            name = emitter.assign(f"lshr {kind} {name}, splat (i32 {(position - word) * node.dtype.bits})")
        found[coordinates] = emitter.emit(f"trunc {kind} {name} to {narrow}")
    return found


def _pieces(words: Words, most: int) -> list[list[int]]:
    """Runs of adjacent words, each a power of two of them and `most` at most."""
    runs: list[list[int]] = []
    for offset in words.offsets:
        is_next = runs and runs[-1][-1] + words.size == offset
        runs[-1].append(offset) if is_next else runs.append([offset])
    pieces = []
    for run in runs:
        while run:
            length = min(most, 1 << (len(run).bit_length() - 1))
            pieces.append(run[:length])
            run = run[length:]
    return pieces
