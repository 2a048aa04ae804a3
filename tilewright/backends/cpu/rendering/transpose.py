"""Transposition in registers. In: the names of vectors that are the rows of a matrix. Out: the names of its columns, as
vectors, and the text that makes them. The renderer asks for it where a value lies along one axis and is needed along
another: a matrix is read row by row and written column by column, also while a panel is packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.backends.cpu.rendering.instructions import of_lanes, scalar_type, value_type
from tilewright.codegen.tiles import axis_size
from tilewright.graph.uop import UOp

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Renderer

# Every instruction set shuffles inside pieces of this size at will; across them it moves whole pieces.
PIECE_BYTES = 16

# Writes an instruction, and gives the name of its result.
Emit = Callable[[str], str]


def vector_across(renderer: Renderer, node: UOp, at: dict[UOp, int], axis: UOp) -> str:
    """A vector along `axis` of a value whose elements are single, or lie in vectors along another axis."""
    own_axis, lanes = renderer.facts.vector_axis(node), axis_size(axis)
    places = (renderer.facts.coordinates(node, {**at, axis: lane}) for lane in range(lanes))
    rows = [renderer.values[node][place].name for place in places]
    if own_axis is None:
        many, single = value_type(node.dtype, lanes), scalar_type(node.dtype)
        result = "poison"
        for lane, row in enumerate(rows):
            result = renderer.emit(f"insertelement {many} {result}, {single} {row}, i64 {lane}").name
        return result
    # All vectors of the tile are made at the first that is asked for; the renderer forgets them as its loops close.
    key = " ".join(rows)
    if (key, 0) not in renderer.splats:
        register = renderer.program.target.lanes(node.dtype)
        element, itemsize = scalar_type(node.dtype), node.dtype.itemsize
        names = transpose(lambda t: renderer.emit(t).name, element, itemsize, rows, axis_size(own_axis), register)
        renderer.splats.update({(key, lane): renderer.here(name) for lane, name in enumerate(names)})
    return renderer.splats[key, at[own_axis]].name


def transpose(emit: Emit, element: str, itemsize: int, rows: Sequence[str], lanes: int, register: int) -> list[str]:
    """The `lanes` columns of a matrix whose rows are vectors of that length; `register` lanes fill a register.

    The matrix is taken apart into squares of a power of two that registers hold. Where the last square reaches beyond
    the matrix it has poison, from which LLVM makes no instruction."""
    side = min(register, power_of_two(len(rows)), power_of_two(lanes))
    columns: list[str] = []
    for left in range(0, lanes, side):
        squares = []
        for top in range(0, len(rows), side):
            square = [part(emit, element, row, lanes, left, side) for row in rows[top : top + side]]
            square += ["poison"] * (side - len(square))
            squares.append(transpose_square(emit, element, itemsize, square))
        for column in range(min(side, lanes - left)):
            columns.append(joined(emit, element, [square[column] for square in squares], side, len(rows)))
    return columns


def power_of_two(count: int) -> int:
    """The least one that is not below `count`."""
    return 1 << (count - 1).bit_length()


def transpose_square(emit: Emit, element: str, itemsize: int, rows: Sequence[str]) -> list[str]:
    """A round takes two vectors whose numbers differ in one bit, and exchanges that bit with one of the lanes' numbers.

        zip inside pieces:  a0 a1 a2 a3  b0 b1 b2 b3  ->  a0 b0 a1 b1  a2 b2 a3 b3
        pieces, by parity:  A0 A1 A2 A3  B0 B1 B2 B3  ->  A0 A2 B0 B2  A1 A3 B1 B3

    Each is one instruction on AVX, AVX-512 and NEON. Zipping shifts the bits of a lane inside its piece up and appends
    the vector's, so the high bits go first; pieces shift theirs down, so the low ones do."""
    side = len(rows)
    length = min(side, max(1, PIECE_BYTES // itemsize))
    pieces = range(0, side, length)
    halves = [range(length // 2), range(length // 2, length)]
    zips = [[piece + lane + row for piece in pieces for lane in half for row in (0, side)] for half in halves]
    parities = [
        [row + piece + lane for row in (0, side) for piece in found for lane in range(length)]
        for found in (pieces[::2], pieces[1::2])
    ]
    found = list(rows)
    bit = length // 2
    while bit:
        found = exchange(emit, element, found, bit, zips)
        bit //= 2
    bit = length
    while bit < side:
        found = exchange(emit, element, found, bit, parities)
        bit *= 2
    return found


def exchange(emit: Emit, element: str, rows: list[str], bit: int, orders: list[list[int]]) -> list[str]:
    """Pairs of rows whose numbers differ in `bit`, each shuffled into two by the orders."""
    kind = of_lanes(element, len(rows))
    done = list(rows)
    for number in range(len(rows)):
        if number & bit == 0:
            pair = f"{kind} {rows[number]}, {kind} {rows[number | bit]}"
            for place, order in zip((number, number | bit), orders, strict=True):
                done[place] = emit(f"shufflevector {pair}, {shuffle_mask(order)}")
    return done


def part(emit: Emit, element: str, vector: str, lanes: int, first: int, count: int) -> str:
    """`count` lanes of a vector from the first on; those that it does not have are poison."""
    if first == 0 and count == lanes:
        return vector
    kind = of_lanes(element, lanes)
    order = [lane if lane < lanes else None for lane in range(first, first + count)]
    return emit(f"shufflevector {kind} {vector}, {kind} poison, {shuffle_mask(order)}")


def joined(emit: Emit, element: str, vectors: list[str], lanes: int, count: int) -> str:
    """The first `count` lanes of vectors put end to end."""
    while len(vectors) > 1:
        kind = of_lanes(element, lanes)
        if len(vectors) % 2:
            vectors = [*vectors, "poison"]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        order = shuffle_mask(list(range(2 * lanes)))
        vectors = [emit(f"shufflevector {kind} {left}, {kind} {right}, {order}") for left, right in pairs]
        lanes *= 2
    return part(emit, element, vectors[0], lanes, 0, count)


def shuffle_mask(order: Sequence[int | None]) -> str:
    """The order of a shuffle; None is any lane."""
    return f"<{len(order)} x i32> <{', '.join('i32 poison' if lane is None else f'i32 {lane}' for lane in order)}>"
