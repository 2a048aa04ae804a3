"""QR, tridiagonal and bidiagonal forms by Householder reflections, as kernels. In: the memory of a batch of matrices.
Out: kernels that overwrite it with the reduced form and the reflections: their vectors are stored in place of the
eliminated elements, without their first element, which is 1. In the kernels `b` counts the matrices of the batch and
`k` the reflections."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, const
from tilewright.tensor.matrices.loops import (
    MAX_KERNELS,
    Loops,
    Reflector,
    absolute,
    choose,
    copy_matrix,
    inside,
    reflector,
)

# An element of a reflection's vector, read from a given version of the matrix.
Read = Callable[[UOp, UOp], UOp]


def reflect_rows(
    loops: Loops, matrix: UOp, b: UOp, loop: UOp, top: UOp, start: UOp | int, vector: Read, scale: UOp
) -> UOp:
    """Multiplies matrix[top:, start:] by 1 - scale * v @ v.T from the left in each iteration of `loop`; v is 1 and then
    the elements that `vector` reads. The products of v with all columns are added up row by row."""
    _, rows, columns = matrix.shape
    width = columns - start
    products = loops.array(columns, matrix.dtype).after(b, loop)
    column = start + (j := loops.over(width))
    products = products[column].set(matrix[b, top, column], end=j)
    below, column = loops.over(rows - 1 - top), start + (j := loops.over(width))
    running = products.after(below)
    term = vector(matrix, below) * matrix[b, top + 1 + below, column]
    products = products.after(running[column].store(running[column] + term).end(j).end(below))
    column = start + (j := loops.over(width))
    first = matrix[b, top, column].store(matrix[b, top, column] - scale * products[column]).end(j)
    below, column = loops.over(rows - 1 - top), start + (j := loops.over(width))
    current = matrix.after(first, below)
    element = current[b, top + 1 + below, column]
    return element.store(element - (scale * vector(current, below)) * products[column]).end(j).end(below)


@functools.lru_cache(MAX_KERNELS)
def qr_kernel(factors: UOp, scales: UOp, matrix: UOp) -> UOp:
    """R on and above the diagonal, the vectors of the reflections below it, and their scales."""
    batch, rows, columns = matrix.shape
    loops = Loops()
    b = loops.over(batch)
    copied = copy_matrix(loops, b, factors, matrix)
    k = loops.over(min(rows, columns))
    current = factors.after(copied).after(b, k)
    if rows == 1:
        return UOp.group(scales[b, k].store(0.0).end(k), copied).end(b).sink(arg=KernelInfo("qr"))
    made = reflector(loops, rows - 1 - k, lambda i: current[b, k + 1 + i, k].load(), current[b, k, k].load(), b, k)
    below = loops.over(rows - 1 - k)
    element = current[b, k + 1 + below, k]
    stored = UOp.group(element.store(element * made.factor).end(below), current[b, k, k].store(made.beta))
    kept = scales[b, k].store(made.scale)
    if columns == 1:
        return UOp.group(stored, kept).end(k).end(b).sink(arg=KernelInfo("qr"))
    current = current.after(stored)
    vector = lambda matrix, i: matrix[b, k + 1 + i, k].load()  # noqa: E731
    reflected = reflect_rows(loops, current, b, k, k, k + 1, vector, made.scale)
    return UOp.group(reflected, kept).end(k).end(b).sink(arg=KernelInfo("qr"))


# ---------------------------------------------------------------- products of reflections


def _reflections(name: str, is_row: bool, offset: int) -> Callable[..., UOp]:
    """The kernel that multiplies reflections, the last one first, so that columns before it are still those of the
    identity. Their vectors are in the rows or in the columns of the factors, `offset` from the diagonal."""

    @functools.lru_cache(MAX_KERNELS)
    def product_kernel(vectors: UOp, factors: UOp, scales: UOp) -> UOp:
        batch, rows, columns = vectors.shape
        loops = Loops()
        b, i, j = loops.over(batch), loops.over(rows), loops.over(columns)
        vectors = vectors[b, i, j].set(i.eq(j).where(const(vectors.dtype, 1.0), 0.0), end=(j, i))
        count = min(scales.shape[1], rows - 1 - offset)
        if count < 1:
            return vectors.end(b).sink(arg=KernelInfo(name))
        step = loops.over(count)
        k = count - 1 - step

        def vector(_: UOp, each: UOp) -> UOp:
            index = k + (offset + 1) + each
            return (factors[b, k, index] if is_row else factors[b, index, k]).load()

        top = k + offset
        done = reflect_rows(loops, vectors.after(step), b, step, top, top, vector, scales[b, k].load())
        return done.end(step).end(b).sink(arg=KernelInfo(name))

    return product_kernel


qr_vectors_kernel = _reflections("qr_vectors", is_row=False, offset=0)
row_vectors_kernel = _reflections("row_vectors", is_row=True, offset=1)


# ---------------------------------------------------------------- bidiagonal and tridiagonal matrices


def _copy_scaled(loops: Loops, b: UOp, work: UOp, unit: UOp, element: Callable[[UOp, UOp], UOp]) -> tuple[UOp, UOp]:
    """The matrix divided by its largest element, and that element: so that squares do not overflow, and the threshold
    for negligible elements is known in advance."""
    _, rows, columns = work.shape
    cells = loops.over(rows * columns)
    size = absolute(element(cells // columns, cells % columns))
    found = loops.register(work.dtype, 0.0, b)
    found = found[0].set(found.after(cells)[0].load().maximum(size), end=cells)
    largest = choose(found[0].eq(0.0), 1.0, found[0].load(), work.dtype)
    i, j = loops.over(rows), loops.over(columns)
    copied = work[b, i, j].store(element(i, j) / largest).end(j).end(i)
    return work.after(copied), unit[b].store(largest)


def _reflect_row(loops: Loops, current: UOp, b: UOp, k: UOp, size: int) -> tuple[Reflector, UOp]:
    """The reflection that eliminates row k after its superdiagonal element, and the matrix with its vector in that row.
    The last row has no superdiagonal element and does not change."""
    following = (k + 1) % size
    is_last = k.eq(size - 1)
    first = choose(is_last, 0.0, current[b, k, following].load(), current.dtype)
    made = reflector(loops, size - 2 - k, lambda i: current[b, k, inside(k + 2 + i, size)].load(), first, b, k)
    rest = loops.over(size - 2 - k)
    element = current[b, k, inside(k + 2 + rest, size)]
    stored = UOp.group(
        current[b, k, following].store(1.0, mask=is_last.logical_not()), element.store(element * made.factor).end(rest)
    )
    return made, current.after(stored)


@functools.lru_cache(MAX_KERNELS)
def tridiagonal_kernel(work: UOp, diagonal: UOp, beside: UOp, scales: UOp, unit: UOp, matrix: UOp) -> UOp:
    """A symmetric matrix as Q @ T @ Q.T * unit; reads its lower triangle. Out:  the three diagonals of T, and in
    row k of `work` the vector of reflection k, right of the diagonal."""
    batch, size, _ = matrix.shape
    loops = Loops()
    b = loops.over(batch)
    lower = lambda i, j: matrix[b, i.maximum(j), i.minimum(j)].load()  # noqa: E731
    work, measured = _copy_scaled(loops, b, work, unit, lower)
    k = loops.over(size)
    if size == 1:
        stored = UOp.group(diagonal[b, k].store(work[b, k, k]), beside[b, k].store(0.0), scales[b, k].store(0.0))
        return UOp.group(stored.end(k), measured).end(b).sink(arg=KernelInfo("tridiagonal"))
    current = work.after(k)
    kept = diagonal[b, k].store(current[b, k, k])
    made, current = _reflect_row(loops, current, b, k, size)
    kept = UOp.group(kept, beside[b, k].store(made.beta), scales[b, k].store(made.scale))
    count = size - 1 - k

    def vector(memory: UOp, i: UOp) -> UOp:
        return memory[b, k, k + 1 + i].load()

    products = loops.array(size, work.dtype).after(b, k)
    cleared = loops.over(size)
    products = products[cleared].set(0.0, end=cleared)
    i, j = loops.over(count), loops.over(count)
    running = products.after(i)
    term = vector(current, i) * current[b, k + 1 + i, k + 1 + j]
    products = products.after(running[j].store(running[j] + term).end(j).end(i))
    overlap = loops.total(count, lambda j: products[j] * vector(current, j), work.dtype, b, k)
    j = loops.over(count)
    half = made.scale * made.scale * overlap * 0.5
    products = products[j].set(products[j] * made.scale - half * vector(current, j), end=j)
    i, j = loops.over(count), loops.over(count)
    current = current.after(i)
    element = current[b, k + 1 + i, k + 1 + j]
    change = vector(current, i) * products[j] + products[i] * vector(current, j)
    updated = element.store(element - change).end(j).end(i)
    return UOp.group(UOp.group(kept, updated).end(k), measured).end(b).sink(arg=KernelInfo("tridiagonal"))


@functools.lru_cache(MAX_KERNELS)
def bidiagonal_kernel(work: UOp, diagonal: UOp, beside: UOp, left: UOp, right: UOp, unit: UOp, matrix: UOp) -> UOp:
    """A square matrix as U @ B @ V.T * unit: the diagonal of B and the one above it. The vectors of the reflections of
    U are in the columns of `work`, below the diagonal, with scales `left`; those of V in its rows."""
    batch, size, _ = matrix.shape
    loops = Loops()
    b = loops.over(batch)
    work, measured = _copy_scaled(loops, b, work, unit, lambda i, j: matrix[b, i, j].load())
    k = loops.over(size)
    current = work.after(k)
    if size == 1:
        scales = UOp.group(*(memory[b, k].store(0.0) for memory in (beside, left, right)))
        stored = UOp.group(diagonal[b, k].store(current[b, k, k]), scales)
        return UOp.group(stored.end(k), measured).end(b).sink(arg=KernelInfo("bidiagonal"))
    made = reflector(loops, size - 1 - k, lambda i: current[b, k + 1 + i, k].load(), current[b, k, k].load(), b, k)
    rest = loops.over(size - 1 - k)
    element = current[b, k + 1 + rest, k]
    kept = UOp.group(diagonal[b, k].store(made.beta), left[b, k].store(made.scale))
    current = current.after(element.store(element * made.factor).end(rest))
    down = lambda memory, i: memory[b, k + 1 + i, k].load()  # noqa: E731
    current = current.after(reflect_rows(loops, current, b, k, k, k + 1, down, made.scale))
    made, current = _reflect_row(loops, current, b, k, size)
    kept = UOp.group(kept, beside[b, k].store(made.beta), right[b, k].store(made.scale))
    count = size - 1 - k
    row = k + 1 + (i := loops.over(count))
    current = current.after(i)
    term = lambda j: current[b, row, k + 1 + j] * current[b, k, k + 1 + j]  # noqa: E731
    factor = made.scale * loops.total(count, term, work.dtype, b, k, i)
    j = loops.over(count)
    element = current[b, row, k + 1 + j]
    updated = element.store(element - factor * current[b, k, k + 1 + j]).end(j).end(i)
    return UOp.group(UOp.group(kept, updated).end(k), measured).end(b).sink(arg=KernelInfo("bidiagonal"))
