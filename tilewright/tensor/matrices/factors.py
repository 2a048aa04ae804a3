"""Cholesky, LU and triangular systems as kernels. In: the memory of a batch of matrices. Out: kernels that overwrite it
with the factors or the solution. Rows are updated by multiples of other rows, so that all inner loops are contiguous.
In the kernels `b` counts the matrices of the batch, `k` the steps, and `i` and `j` rows and columns."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.tensor.matrices.loops import MAX_KERNELS, Loops, absolute, choose, copy_matrix, position, root


@functools.lru_cache(MAX_KERNELS)
def cholesky_kernel(factor: UOp, matrix: UOp) -> UOp:
    """The upper factor R with R.T @ R = matrix; reads the upper triangle of the matrix. The root of a negative pivot is
    NaN, and so are all values that depend on it."""
    batch, size, _ = matrix.shape
    loops = Loops()
    b = loops.over(batch)
    copied = copy_matrix(loops, b, factor, matrix)
    k = loops.over(size)
    current = factor.after(copied).after(b, k)
    pivot = current[b, k, k].load()
    divisor = root(choose(pivot > 0.0, pivot, float("nan"), matrix.dtype))
    # Whole rows, of a size that is known, so that they are vectors. What is changed below the diagonal is cleared when
    # its row is scaled.
    column = loops.over(size)
    own = choose(column < k, 0.0, current[b, k, column] / divisor, matrix.dtype)
    scaled = current[b, k, column].store(own).end(column)
    if size == 1:
        return scaled.end(k).end(b).sink(arg=KernelInfo("cholesky"))
    current = current.after(scaled)
    row = k + 1 + (below := loops.over(size - 1 - k))
    column = loops.over(size)
    current = current.after(below)
    change = current[b, k, row] * current[b, k, column]
    updated = current[b, row, column].store(current[b, row, column] - change).end(column).end(below)
    return updated.end(k).end(b).sink(arg=KernelInfo("cholesky"))


@functools.lru_cache(MAX_KERNELS)
def lu_kernel(factors: UOp, order: UOp, sign: UOp, matrix: UOp) -> UOp:
    """L below the diagonal (its diagonal is 1) and U on and above it, for the matrix with its rows permuted by `order`;
    `sign` is that of the permutation. The pivot is the largest element of the column; where it is 0, the column is 0
    and is not changed."""
    loops = Loops()
    b = loops.over(matrix.shape[0])
    return _lu_steps(loops, b, factors, order, sign, matrix).end(b).sink(arg=KernelInfo("lu_factor"))


def _lu_steps(loops: Loops, b: UOp, factors: UOp, order: UOp, sign: UOp, matrix: UOp) -> UOp:
    """The factorisation of matrix `b` of the batch, as one effect."""
    _, rows, columns = matrix.shape
    copied = copy_matrix(loops, b, factors, matrix)
    i = loops.over(rows)
    numbered = order[b, i].store(i.cast(dtypes.int32)).end(i)
    positive = sign[b].store(1.0)
    k = loops.over(min(rows, columns))
    current, order, sign = factors.after(copied, k), order.after(numbered, k), sign.after(positive, k)
    pivot_row = _find_pivot(loops, current, b, k)
    j = loops.over(columns)
    upper, lower = current[b, k, j].load(), current[b, pivot_row, j].load()
    swapped = UOp.group(current[b, k, j].store(lower), current[b, pivot_row, j].store(upper)).end(j)
    here, there = order[b, k].load(), order[b, pivot_row].load()
    reordered = UOp.group(order[b, k].store(there), order[b, pivot_row].store(here))
    signed = sign[b].store(choose(pivot_row.ne(k), -sign[b], sign[b].load(), sign.dtype))
    if rows == 1:
        return UOp.group(swapped, reordered, signed).end(k)
    current = current.after(swapped)
    pivot = current[b, k, k].load()
    row = k + 1 + (below := loops.over(rows - 1 - k))
    current = current.after(below)
    factor = choose(
        pivot.eq(0.0), 0.0, current[b, row, k] / choose(pivot.eq(0.0), 1.0, pivot, pivot.dtype), pivot.dtype
    )
    kept = current[b, row, k].store(factor)
    if columns == 1:
        return UOp.group(kept.end(below), reordered, signed).end(k)
    # Whole rows, of a size that is known, so that they are vectors.
    column = loops.over(columns)
    current = current.after(kept)
    value = current[b, row, column].load()
    changed = choose(column > k, value - factor * current[b, k, column], value, value.dtype)
    updated = current[b, row, column].store(changed).end(column)
    return UOp.group(updated.end(below), reordered, signed).end(k)


def _find_pivot(loops: Loops, current: UOp, b: UOp, k: UOp) -> UOp:
    """The first row from k on with the largest element in column k."""
    rows = current.shape[1]
    largest = loops.register(current.dtype, -1.0, b, k)
    pivot = loops.register(dtypes.int32, k.cast(dtypes.int32), b, k)
    row = k + (below := loops.over(rows - k))
    size = absolute(current[b, row, k].load())
    so_far, pivot_so_far = largest.after(below), pivot.after(below)
    is_larger = size > so_far[0]
    found = UOp.group(
        so_far[0].store(is_larger.where(size, so_far[0].load())),
        pivot_so_far[0].store(is_larger.where(row.cast(dtypes.int32), pivot_so_far[0].load())),
    ).end(below)
    return position(pivot.after(found)[0].load(), rows)


@functools.lru_cache(MAX_KERNELS)
def determinant_kernel(product: UOp, factors: UOp, order: UOp, sign: UOp, matrix: UOp) -> UOp:
    """The factors of `lu_kernel`, and the product of the diagonal with its sign."""
    loops = Loops()
    b = loops.over(matrix.shape[0])
    done = _lu_steps(loops, b, factors, order, sign, matrix)
    first = product[b].set(sign.after(done)[b])
    k = loops.over(min(matrix.shape[1:]))
    current = first.after(k)
    return current[b].set(current[b] * factors.after(done)[b, k, k], end=k).end(b).sink(arg=KernelInfo("determinant"))


@functools.lru_cache(MAX_KERNELS)
def solve_kernel(solution: UOp, factors: UOp, order: UOp, sign: UOp, matrix: UOp, right: UOp) -> UOp:
    """The solution of matrix @ solution = right; the factors are those of `lu_kernel`."""
    loops = Loops()
    b = loops.over(matrix.shape[0])
    done = _lu_steps(loops, b, factors, order, sign, matrix)
    order, factors = order.after(done), factors.after(done)
    i, j = loops.over(right.shape[1]), loops.over(right.shape[2])
    row = position(order[b, i].load(), right.shape[1])
    solution = solution[b, i, j].set(right[b, row, j], end=(j, i))
    solution = solution.after(_substitute(loops, b, solution, factors, is_upper=False, is_unit=True))
    return _substitute(loops, b, solution, factors, True, False).end(b).sink(arg=KernelInfo("solve"))


def _substitute(loops: Loops, b: UOp, solution: UOp, matrix: UOp, is_upper: bool, is_unit: bool) -> UOp:
    """Overwrites the right-hand side with the solution, by forward or backward substitution."""
    _, size, columns = solution.shape
    k = loops.over(size)
    row = size - 1 - k if is_upper else k
    current = solution.after(k)
    before = loops.over(k)
    other = size - 1 - before if is_upper else before
    column = loops.over(columns)
    running = current.after(before)
    change = matrix[b, row, other] * running[b, other, column]
    reduced = running[b, row, column].store(running[b, row, column] - change).end(column).end(before)
    if is_unit:
        return reduced.end(k)
    current = current.after(reduced)
    column = loops.over(columns)
    return current[b, row, column].store(current[b, row, column] / matrix[b, row, row]).end(column).end(k)


def _triangular(name: str, is_upper: bool, is_unit: bool) -> functools._lru_cache_wrapper[UOp]:
    @functools.lru_cache(MAX_KERNELS)
    def triangular_kernel(solution: UOp, matrix: UOp, right: UOp) -> UOp:
        loops = Loops()
        b = loops.over(matrix.shape[0])
        solution = solution.after(copy_matrix(loops, b, solution, right))
        return _substitute(loops, b, solution, matrix, is_upper, is_unit).end(b).sink(arg=KernelInfo(name))

    return triangular_kernel


# (is_upper, is_unit) -> the kernel that solves matrix @ solution = right, reading one triangle of the matrix. With
# is_unit its diagonal is taken as 1 and not read.
TRIANGULAR_KERNELS = {
    (is_upper, is_unit): _triangular(f"solve_{'upper' if is_upper else 'lower'}", is_upper, is_unit)
    for is_upper in (False, True)
    for is_unit in (False, True)
}
