"""Shuffles of vectors in registers. In: the names of vectors, or an address. Out: instructions, and the names of
vectors of the same elements in another order.

  transpose     rows to columns: a value whose lanes are along one axis and are needed along another
  across        rows to columns, of many short rows: weights whose rows are the lanes of a dot-product instruction
  interleave    rows to groups of one element of each: panels that dot-product instructions read, results side by side
  fold_rows     the sums of the lanes of many rows: products of which each adds up to one number
  load_strided  contiguous loads of which some lanes are kept: a pool, a convolution of stride 2"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.backends.cpu.rendering.instructions import of_lanes

# Every instruction set shuffles freely inside pieces of this size; across them it moves whole pieces.
PIECE_BYTES = 16
# At a larger stride most of the loaded elements are dropped, and a gather is no slower.
MAX_STRIDE = 4

# Emits an instruction, and gives the name of its result.
Emit = Callable[[str], str]
# Given the lanes and the name of a vector, the name of the same vector after an arithmetic fence.
Fence = Callable[[int, str], str]


def transpose(
    emit: Emit,
    element: str,
    itemsize: int,
    rows: Sequence[str],
    lanes: int,
    register: int,
    fence: Fence | None = None,
) -> list[str]:
    """The `lanes` columns of a matrix whose rows are vectors of that length; `register` lanes fill a register.

    The matrix is split into squares whose side is a power of two and fits a register. Where the last square reaches
    beyond the matrix it is padded with poison, for which LLVM emits no instruction."""
    side = min(register, power_of_two(len(rows)), power_of_two(lanes))
    columns: list[str] = []
    for left in range(0, lanes, side):
        squares = []
        for top in range(0, len(rows), side):
            square = [part(emit, element, row, lanes, left, side) for row in rows[top : top + side]]
            square += ["poison"] * (side - len(square))
            squares.append(transpose_square(emit, element, itemsize, square, fence))
        for column in range(min(side, lanes - left)):
            columns.append(joined(emit, element, [square[column] for square in squares], side, len(rows)))
    return columns


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def transpose_square(
    emit: Emit, element: str, itemsize: int, rows: Sequence[str], fence: Fence | None = None
) -> list[str]:
    """A round takes two vectors whose indices differ in one bit, and exchanges that bit with a bit of the lane index.

        zip inside pieces:  a0 a1 a2 a3  b0 b1 b2 b3  ->  a0 b0 a1 b1  a2 b2 a3 b3
        pieces, by parity:  A0 A1 A2 A3  B0 B1 B2 B3  ->  A0 A2 B0 B2  A1 A3 B1 B3

    Each is one instruction on AVX, AVX-512 and NEON. A zip shifts the lane's index inside its piece left and appends
    the vector's bit, so the high bits go first; a round of pieces shifts right, so the low bits go first. LLVM tries to
    merge each shuffle with all those after it, which takes half of the time of a kernel with large transposes and
    finds nothing: a fence after each kind of round keeps it from looking further."""
    side = len(rows)
    length = min(side, max(1, PIECE_BYTES // itemsize))
    pieces = range(0, side, length)
    parities = [
        [row + piece + lane for row in (0, side) for piece in found for lane in range(length)]
        for found in (pieces[::2], pieces[1::2])
    ]
    found = zip_pieces(emit, element, list(rows), side, length)
    bit = length
    while bit < side:
        if fence is not None:
            found = [row if row == "poison" else fence(side, row) for row in found]
        found = exchange(emit, element, found, side, bit, parities)
        bit *= 2
    return found


def zip_pieces(emit: Emit, element: str, rows: list[str], lanes: int, length: int) -> list[str]:
    """The rounds that zip inside pieces of `length` lanes: the pieces at one position of `length` rows are the rows of
    a square, and become its columns."""
    halves = [range(length // 2), range(length // 2, length)]
    pieces = range(0, lanes, length)
    zips = [[piece + lane + row for piece in pieces for lane in half for row in (0, lanes)] for half in halves]
    bit = length // 2
    while bit:
        rows = exchange(emit, element, rows, lanes, bit, zips)
        bit //= 2
    return rows


def across(emit: Emit, element: str, rows: Sequence[str], length: int) -> list[str]:
    """The `length` columns of a matrix of more rows, of a power of two each: rows at a distance of `length` are joined
    to a vector of as many lanes as there are rows, whose pieces are then zipped.

        a0 a1  b0 b1  c0 c1  d0 d1  ->  a0 a1 c0 c1, b0 b1 d0 d1  ->  a0 b0 c0 d0, a1 b1 c1 d1"""
    vectors = [joined(emit, element, list(rows[first::length]), length, len(rows)) for first in range(length)]
    return zip_pieces(emit, element, vectors, len(rows), length)


def exchange(emit: Emit, element: str, rows: list[str], lanes: int, bit: int, orders: list[list[int]]) -> list[str]:
    """Each pair of rows whose indices differ in `bit`, shuffled into two vectors by the two orders."""
    kind = of_lanes(element, lanes)
    done = list(rows)
    for number in range(len(rows)):
        if number & bit == 0 and (rows[number] != "poison" or rows[number | bit] != "poison"):
            pair = f"{kind} {rows[number]}, {kind} {rows[number | bit]}"
            for target, order in zip((number, number | bit), orders, strict=True):
                done[target] = emit(f"shufflevector {pair}, {shuffle_mask(order)}")
    return done


def part(emit: Emit, element: str, vector: str, lanes: int, first: int, count: int) -> str:
    """`count` lanes of a vector from lane `first` on; lanes past its end are poison."""
    if first == 0 and count == lanes:
        return vector
    kind = of_lanes(element, lanes)
    order = [lane if lane < lanes else None for lane in range(first, first + count)]
    return emit(f"shufflevector {kind} {vector}, {kind} poison, {shuffle_mask(order)}")


def joined(emit: Emit, element: str, vectors: list[str], lanes: int, count: int) -> str:
    """The first `count` lanes of the concatenated vectors."""
    while len(vectors) > 1:
        kind = of_lanes(element, lanes)
        if len(vectors) % 2:
            vectors = [*vectors, "poison"]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        order = shuffle_mask(range(2 * lanes))
        vectors = [emit(f"shufflevector {kind} {left}, {kind} {right}, {order}") for left, right in pairs]
        lanes *= 2
    return part(emit, element, vectors[0], lanes, 0, count)


def fold_rows(emit: Emit, element: str, rows: Sequence[str], lanes: int) -> str:
    """The sum of the lanes of each row, as one vector; the number of rows is a multiple of `lanes`. A round
    adds neighbouring lanes of two rows, which is one instruction where there is a pairwise addition:

        a0 a1 a2 a3, b0 b1 b2 b3, ...  ->  a01 a23 b01 b23, ...  ->  a0123 b0123 c0123 d0123"""
    kind, evens, odds = of_lanes(element, lanes), range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
    found, left, add = list(rows), lanes, "fadd" if element in ("float", "double") else "add"
    while left > 1:
        pairs = [f"shufflevector {kind} {a}, {kind} {b}" for a, b in zip(found[::2], found[1::2], strict=True)]
        halves = [(emit(f"{pair}, {shuffle_mask(evens)}"), emit(f"{pair}, {shuffle_mask(odds)}")) for pair in pairs]
        found = [emit(f"{add} {kind} {even}, {odd}") for even, odd in halves]
        left //= 2
    return joined(emit, element, found, lanes, len(rows))


def shuffle_mask(order: Sequence[int | None]) -> str:
    """The mask operand of a shuffle; None is poison."""
    return f"<{len(order)} x i32> <{', '.join('i32 poison' if lane is None else f'i32 {lane}' for lane in order)}>"


def interleave(emit: Emit, bits: int, rows: Sequence[str], lanes: int) -> str:
    """
    rows:    a0 a1 a2 a3   b0 b1 b2 b3   c0 c1 c2 c3   d0 d1 d2 d3
    result:  a0 b0 c0 d0   a1 b1 c1 d1   a2 b2 c2 d2   a3 b3 c3 d3

    A round zips pairs of rows; the pairs of elements are the elements of the next round, of twice as many bits. Another
    number of rows is one shuffle: of three it is an instruction of NEON. Rows that fill no registers are padded: LLVM
    22 does not come to an end with bytes of 17 to 20 lanes."""
    if len(rows) & (len(rows) - 1):
        return interleave_any(emit, f"i{bits}", rows, lanes)
    wide = power_of_two(lanes)
    if wide > lanes and lanes * bits % (8 * PIECE_BYTES):
        padded = [part(emit, f"i{bits}", row, lanes, 0, wide) for row in rows]
        whole = interleave(emit, bits, padded, wide)
        return part(emit, f"i{bits}", whole, wide * len(rows), 0, lanes * len(rows))
    found, width = list(rows), bits
    while len(found) > 1:
        kind, pairs = of_lanes(f"i{width}", lanes), of_lanes(f"i{width}", 2 * lanes)
        order = shuffle_mask([source for lane in range(lanes) for source in (lane, lanes + lane)])
        zipped = [
            emit(f"shufflevector {kind} {left}, {kind} {right}, {order}")
            for left, right in zip(found[::2], found[1::2], strict=True)
        ]
        width *= 2
        found = [emit(f"bitcast {pairs} {name} to {of_lanes(f'i{width}', lanes)}") for name in zipped]
    result = of_lanes(f"i{bits}", lanes * len(rows))
    return emit(f"bitcast {of_lanes(f'i{width}', lanes)} {found[0]} to {result}")


def interleave_any(emit: Emit, element: str, rows: Sequence[str], lanes: int) -> str:
    half = power_of_two(len(rows)) // 2
    halves = [
        joined(emit, element, [*part, *["poison"] * half][:half], lanes, half * lanes)
        for part in (rows[:half], rows[half:])
    ]
    order = shuffle_mask([row * lanes + lane for lane in range(lanes) for row in range(len(rows))])
    kind = of_lanes(element, half * lanes)
    return emit(f"shufflevector {kind} {halves[0]}, {kind} {halves[1]}, {order}")


def load_strided(emit: Emit, load_at: Callable[[int], str], element: str, lanes: int, step: int) -> str:
    """`lanes` elements at a stride of `step`; `load_at(n)` loads as many contiguous ones from n elements after the
    first.

    The vectors start `lanes` apart, but the last ends with the last element: nothing after it is loaded."""
    kind = of_lanes(element, lanes)
    last = (lanes - 1) * step
    starts = [min(number * lanes, last + 1 - lanes) for number in range(step)]
    parts = [load_at(start) for start in starts]
    found = parts[0]
    for number in range(1, step):
        order: list[int | None] = []
        for lane in range(lanes):
            position = lane * step
            if position >= number * lanes:
                order.append(lanes + position - starts[number] if position < (number + 1) * lanes else None)
            else:
                order.append(lane if number > 1 else position)
        found = emit(f"shufflevector {kind} {found}, {kind} {parts[number]}, {shuffle_mask(order)}")
    return found
