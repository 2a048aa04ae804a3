"""Eigenvalues of tridiagonal and singular values of bidiagonal matrices by iterated rotations, as kernels. In: the
diagonals and, in rows, the vectors found so far. Out: kernels that overwrite them. Every rotation combines two rows,
which are contiguous.

A kernel has no `while`: loops have a maximum number of iterations, and after convergence the inner loops have a
computed size of 0."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.tensor.matrices.loops import MAX_KERNELS, ROUNDING, Loops, absolute, choose, position, root

LANES = 16  # elements of a row that are rotated together; rows of vectors have a multiple of them
MAX_SWEEPS = 40  # iterations per eigenvalue or singular value, on average; three are typical


def _hypotenuse(x: UOp, y: UOp) -> UOp:
    return root(x * x + y * y)


def _rotation(x: UOp, y: UOp) -> tuple[UOp, UOp, UOp]:
    """(cosine, sine, r) of the rotation that maps (x, y) to (r, 0)."""
    length = _hypotenuse(x, y)
    is_zero = length.eq(0.0)
    safe = choose(is_zero, 1.0, length, x.dtype)
    return choose(is_zero, 1.0, x / safe, x.dtype), y / safe, length


def _rotate_rows(
    loops: Loops, vectors: UOp, b: UOp, upper: UOp, lower: UOp, cosine: UOp, sine: UOp, *within: UOp
) -> UOp:
    """(upper, lower) = (cosine * upper + sine * lower, cosine * lower - sine * upper)."""
    block, lane = loops.over(vectors.shape[2] // LANES), loops.lanes(LANES)
    column = block * LANES + lane
    current = vectors.after(*within)
    above, below = current[b, upper, column].load(), current[b, lower, column].load()
    return UOp.group(
        current[b, upper, column].store(cosine * above + sine * below),
        current[b, lower, column].store(cosine * below - sine * above),
    ).end(lane, block)


def _is_negligible(diagonal: UOp, beside: UOp, b: UOp, index: UOp) -> UOp:
    """Whether the element right of diagonal[index] is negligible: below rounding compared with its neighbours or with
    the largest element, which is 1. NaN counts as negligible, since iterating would not converge."""
    rounding = ROUNDING[diagonal.dtype]
    size = absolute(diagonal[b, index].load()) + absolute(diagonal[b, (index + 1) % diagonal.shape[1]].load())
    limit = size * rounding + rounding * rounding
    return (absolute(beside[b, index].load()) > limit).logical_not()


# ---------------------------------------------------------------- eigenvalues of tridiagonal matrices


@functools.lru_cache(MAX_KERNELS)
def tridiagonal_values_kernel(diagonal: UOp, beside: UOp, *vectors: UOp) -> UOp:
    """The eigenvalues in `diagonal`, in no order: QL iterations with implicit shifts (Dubrulle, Martin and Wilkinson).
    The rows of `vectors`, where it is given, become the eigenvectors."""
    batch, size = diagonal.shape
    loops = Loops()
    b = loops.over(batch)
    top = loops.register(dtypes.int32, 0, b)
    sweeps = loops.over(MAX_SWEEPS)
    sweep = loops.over(choose(top.after(sweeps)[0] < size - 1, size, 0, dtypes.index))
    within = (b, sweeps, sweep)
    top, diagonal, beside = top.after(sweeps, sweep), diagonal.after(*within), beside.after(*within)
    first = position(top[0].load(), size)
    bottom = loops.register(dtypes.int32, size - 1, *within)
    scan = loops.over(size - 1 - first)
    index = size - 2 - scan
    ends_here = _is_negligible(diagonal, beside, b, index)
    so_far = bottom.after(scan)[0]
    scanned = so_far.store(ends_here.where(index.cast(dtypes.int32), so_far.load())).end(scan)
    last = position(bottom.after(scanned)[0].load(), size)
    is_active = first < last
    moved_on = top[0].store((first + choose(is_active, 0, 1, dtypes.index)).minimum(size - 1).cast(dtypes.int32))
    start = _wilkinson_shift(diagonal, beside, b, first, last)
    step = loops.over(choose(is_active, last - first, 0, dtypes.index))
    swept, offset, start = _ql_sweep(loops, diagonal, beside, vectors, b, last, step, start, within)
    diagonal, beside = diagonal.after(swept), beside.after(swept)
    closed = UOp.group(
        diagonal[b, first].store(diagonal[b, first] - offset, mask=is_active),
        beside[b, first].store(start, mask=is_active),
    )
    cut = beside.after(closed)[b, last].store(0.0, mask=is_active)
    done = UOp.group(closed, cut, moved_on).end(sweep).end(sweeps)
    return done.end(b).sink(arg=KernelInfo("tridiagonal_values"))


def _wilkinson_shift(diagonal: UOp, beside: UOp, b: UOp, first: UOp, last: UOp) -> UOp:
    """The start of a sweep: the last element of the block, minus the eigenvalue of its first two rows that is closer to
    the first element."""
    here, next_one = diagonal[b, first].load(), diagonal[b, (first + 1) % diagonal.shape[1]].load()
    element = beside[b, first].load()
    ratio = (next_one - here) / (element * 2.0)
    length = root(ratio * ratio + 1.0)
    towards = ratio + choose(ratio < 0.0, -length, length, ratio.dtype)
    return diagonal[b, last] - here + element / towards


def _ql_sweep(
    loops: Loops,
    diagonal: UOp,
    beside: UOp,
    vectors: tuple[UOp, ...],
    b: UOp,
    last: UOp,
    step: UOp,
    start: UOp,
    within: tuple[UOp, ...],
) -> tuple[UOp, UOp, UOp]:
    """The rotations of rows last - 1, last - 2, ... with the rows after them; the amount still to be subtracted from
    the first diagonal element, and the element beside it."""
    dtype, size = diagonal.dtype, diagonal.shape[1]
    registers = [loops.register(dtype, value, *within) for value in (1.0, 1.0, 0.0, start)]
    sine, cosine, offset, carried = (register.after(step)[0].load() for register in registers)
    row = (last - 1 - step) % size
    after = (row + 1) % size
    current, current_beside = diagonal.after(step), beside.after(step)
    element = current_beside[b, row].load()
    new_cosine, new_sine, length = _rotation(carried, sine * element)
    remaining = current[b, after] - offset
    moved = (current[b, row] - remaining) * new_sine + new_cosine * (cosine * element) * 2.0
    new_offset = new_sine * moved
    values = (new_sine, new_cosine, new_offset, new_cosine * moved - cosine * element)
    effects = [
        current[b, after].store(remaining + new_offset),
        current_beside[b, after].store(length),
        *(register.after(step)[0].store(value) for register, value in zip(registers, values)),
        *(_rotate_rows(loops, each, b, after, row, new_cosine, new_sine, *within, step) for each in vectors),
    ]
    swept = UOp.group(*effects).end(step)
    return swept, registers[2].after(swept)[0].load(), registers[3].after(swept)[0].load()


# ---------------------------------------------------------------- singular values of bidiagonal matrices


@functools.lru_cache(MAX_KERNELS)
def bidiagonal_values_kernel(diagonal: UOp, beside: UOp, *vectors: UOp) -> UOp:
    """The singular values in `diagonal`, in no order and with any sign: QR iterations with implicit shifts (Golub and
    Kahan). `vectors` are U.T and V.T, whose rows are rotated, or empty."""
    batch, size = diagonal.shape
    loops = Loops()
    b = loops.over(batch)
    bottom = loops.register(dtypes.int32, size - 1, b)
    sweeps = loops.over(MAX_SWEEPS)
    sweep = loops.over(choose(bottom.after(sweeps)[0] > 0, size, 0, dtypes.index))
    within = (b, sweeps, sweep)
    bottom, diagonal, beside = bottom.after(sweeps, sweep), diagonal.after(*within), beside.after(*within)
    last = position(bottom[0].load(), size)
    top = loops.register(dtypes.int32, 0, *within)
    scan = loops.over(last)
    ends_here = _is_negligible(diagonal, beside.after(scan), b, scan)
    so_far = top.after(scan)[0]
    scanned = UOp.group(
        so_far.store(ends_here.where((scan + 1).cast(dtypes.int32), so_far.load())),
        beside.after(scan)[b, scan].store(0.0, mask=ends_here),
    ).end(scan)
    beside = beside.after(scanned)
    first = position(top.after(scanned)[0].load(), size)
    is_active = first < last
    moved_on = bottom[0].store((last - choose(is_active, 0, 1, dtypes.index)).maximum(0).cast(dtypes.int32))
    count = choose(is_active, last - first, 0, dtypes.index)
    start = _bidiagonal_shift(loops, diagonal, beside, b, first, last, count, within)
    step = loops.over(count)
    swept, carried = _bidiagonal_sweep(loops, diagonal, beside, vectors, b, first, step, count, start, within)
    closed = beside.after(swept)[b, (last - 1) % size].store(carried, mask=is_active)
    done = UOp.group(closed, moved_on).end(sweep).end(sweeps)
    return done.end(b).sink(arg=KernelInfo("bidiagonal_values"))


def _bidiagonal_shift(
    loops: Loops, diagonal: UOp, beside: UOp, b: UOp, first: UOp, last: UOp, count: UOp, within: tuple[UOp, ...]
) -> UOp:
    """The start of a sweep: the first element of (B.T @ B - shift**2) / diagonal[first]. The shift is the smaller
    singular value of the last two rows, or 0 where an element of the diagonal is negligible: then a sweep moves the
    zero to the end."""
    dtype, size = diagonal.dtype, diagonal.shape[1]
    rounding = ROUNDING[dtype]
    smallest = loops.register(dtype, float("inf"), *within)
    row = loops.over(count + 1)
    so_far = smallest.after(row)[0]
    element = absolute(diagonal[b, (first + row) % size].load())
    smallest_element = smallest.after(so_far.store(so_far.load().minimum(element)).end(row))[0].load()
    before = (last - 1) % size
    one, other = absolute(diagonal[b, before].load()), absolute(diagonal[b, last].load())
    shift = _smaller_singular_value(one, absolute(beside[b, before].load()), other)
    head = diagonal[b, first].load()
    ratio = shift / choose(head.eq(0.0), 1.0, head, dtype)
    is_plain = (smallest_element > rounding).logical_not() | (ratio * ratio < rounding)
    plain = choose(is_plain, 0.0, shift, dtype)
    sign = choose(head < 0.0, -1.0, 1.0, dtype)
    return (absolute(head) - plain) * (sign + choose(is_plain, 0.0, ratio, dtype))


def _smaller_singular_value(one: UOp, beside: UOp, other: UOp) -> UOp:
    """Of the matrix [[one, beside], [0, other]] of absolute values: their product over the larger one."""
    low, high = one.minimum(other), one.maximum(other)
    twice_larger = _hypotenuse(high + low, beside) + _hypotenuse(high - low, beside)
    is_zero = twice_larger.eq(0.0)
    return choose(is_zero, 0.0, low * (high * 2.0 / choose(is_zero, 1.0, twice_larger, low.dtype)), low.dtype)


def _bidiagonal_sweep(
    loops: Loops,
    diagonal: UOp,
    beside: UOp,
    vectors: tuple[UOp, ...],
    b: UOp,
    first: UOp,
    step: UOp,
    count: UOp,
    start: UOp,
    within: tuple[UOp, ...],
) -> tuple[UOp, UOp]:
    """The rotations of columns and rows `first`, `first + 1`, ... with those after them; and the last element beside
    the diagonal."""
    dtype, size = diagonal.dtype, diagonal.shape[1]
    registers = [loops.register(dtype, value, *within) for value in (start, beside[b, first].load())]
    carried, bulge = (register.after(step)[0].load() for register in registers)
    row = (first + step) % size
    after = (row + 1) % size
    current, current_beside = diagonal.after(step), beside.after(step)
    here, element, following = current[b, row].load(), current_beside[b, row].load(), current[b, after].load()
    next_element = current_beside[b, after].load()
    right_cosine, right_sine, length = _rotation(carried, bulge)
    rotated = right_cosine * here + right_sine * element
    element = right_cosine * element - right_sine * here
    left_cosine, left_sine, new_here = _rotation(rotated, right_sine * following)
    following = right_cosine * following
    values = (left_cosine * element + left_sine * following, left_sine * next_element)
    effects = [
        current_beside[b, (row - 1) % size].store(length, mask=step > 0),
        current_beside[b, after].store(left_cosine * next_element, mask=step < count - 1),
        current[b, row].store(new_here),
        current[b, after].store(left_cosine * following - left_sine * element),
        *(register.after(step)[0].store(value) for register, value in zip(registers, values)),
    ]
    for each, cosine, sine in zip(vectors, (left_cosine, right_cosine), (left_sine, right_sine)):
        effects.append(_rotate_rows(loops, each, b, row, after, cosine, sine, *within, step))
    swept = UOp.group(*effects).end(step)
    return swept, registers[0].after(swept)[0].load()


# ---------------------------------------------------------------- in order


@functools.lru_cache(MAX_KERNELS)
def ordered_kernel(values: UOp, *memory: UOp) -> UOp:
    """`values` and further outputs from as many unordered inputs and their unit: eigenvalues ascending, their vectors
    in the rows in that order. `memory` is: outputs of vectors, unordered values, their vectors, the unit."""
    return _order(values, memory, is_singular=False)


@functools.lru_cache(MAX_KERNELS)
def ordered_singular_kernel(values: UOp, *memory: UOp) -> UOp:
    """The same for singular values: descending, and positive; the last vectors given change sign with them."""
    return _order(values, memory, is_singular=True)


def _order(values: UOp, memory: tuple[UOp, ...], is_singular: bool) -> UOp:
    count = (len(memory) - 2) // 2
    outputs, found, sources, unit = memory[:count], memory[count], memory[count + 1 : -1], memory[-1]
    batch, size = values.shape
    dtype = values.dtype
    loops = Loops()
    b, i = loops.over(batch), loops.over(size)

    def key(index: UOp) -> UOp:
        """The sort key: NaN is last."""
        value = found[b, index].load()
        size = absolute(value) if is_singular else value
        return choose(size.ne(size), float("inf"), size, dtype)

    def comes_before(j: UOp) -> UOp:
        one, other = key(j), key(i)
        is_less = one > other if is_singular else one < other
        return (is_less | (one.eq(other) & (j < i))).cast(dtypes.int32)

    index = loops.over(size)
    rank = loops.register(dtypes.int32, 0, b, i)
    rank = rank[0].set(rank.after(index)[0] + comes_before(index), end=index)
    row = position(rank[0].load(), size)
    value = found[b, i].load()
    stored = [values[b, row].store((absolute(value) if is_singular else value) * unit[b])]
    for number, (output, source) in enumerate(zip(outputs, sources)):
        j = loops.over(output.shape[2])
        is_signed = is_singular and number == count - 1
        element = source[b, i, j].load()
        stored.append(
            output[b, row, j].store(choose(value < 0.0, -element, element, dtype) if is_signed else element).end(j)
        )
    return UOp.group(*stored).end(i).end(b).sink(arg=KernelInfo("ordered"))
