"""Building blocks of the kernels of linear algebra. In: sizes, values, versions of memory. Out: ranges and registers
with unique ids, and shared arithmetic.

Loops over a trailing part of a matrix have a computed size (`n - 1 - k`). Their innermost loops are along rows, at
stride 1, so that LLVM vectorises them."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.scans import running
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const

MAX_KERNELS = 64  # shapes for which the graph of a kernel is cached

# The unit roundoff: half the distance from 1 to the next number.
ROUNDING = {dtypes.float32: 2.0**-24, dtypes.float64: 2.0**-53}


class Loops(running.Loops):
    """Ranges, and placeholders that start with a value."""

    def register(self, dtype: DType, value: UOp | Scalar, *loops: UOp) -> UOp:
        """One element of memory that starts with a value in each iteration of the loops."""
        return self.array(1, dtype).after(*loops)[0].set(value)

    def array(self, size: int, dtype: DType) -> UOp:
        return UOp.placeholder((size,), dtype, next(self._slots))

    def total(self, count: int | UOp, term: Callable[[UOp], UOp], dtype: DType, *loops: UOp) -> UOp:
        """The sum of term(0), ..., term(count - 1) in each iteration of the loops."""
        index = self.over(count)
        found = self.register(dtype, 0.0, *loops)
        return found[0].set(found.after(index)[0] + term(index), end=index)[0].load()

    def largest(self, count: int | UOp, term: Callable[[UOp], UOp], first: UOp, *loops: UOp) -> UOp:
        """The largest of `first` and the terms."""
        index = self.over(count)
        found = self.register(first.dtype, first, *loops)
        return found[0].set(found.after(index)[0].load().maximum(term(index)), end=index)[0].load()


def copy_matrix(loops: Loops, b: UOp, target: UOp, source: UOp) -> UOp:
    """The effect that copies matrix `b` of a batch. Kernels work on a copy: their inputs are not changed."""
    i, j = loops.over(source.shape[1]), loops.over(source.shape[2])
    return target[b, i, j].store(source[b, i, j]).end(j).end(i)


def absolute(value: UOp) -> UOp:
    return value.maximum(-value)


def root(value: UOp) -> UOp:
    return value.alu(Ops.SQRT)


def choose(condition: UOp, yes: UOp | Scalar, no: UOp | Scalar, dtype: DType) -> UOp:
    """`condition ? yes : no` of numbers and values."""
    return condition.where(yes if isinstance(yes, UOp) else const(dtype, yes), no)


def position(value: UOp, size: int) -> UOp:
    """A computed integer as an index with the bounds of an axis, so that accesses are known not to overlap other
    matrices of the batch."""
    return value.cast(dtypes.index) % size


def inside(index: UOp, size: int) -> UOp:
    """The index in a loop of computed size. Where all its values are out of range the loop has no iterations, and the
    index does not matter."""
    return index % size if index.bounds[0] >= size else index


# ---------------------------------------------------------------- reflections


class Reflector(NamedTuple):
    """H = 1 - scale * v @ v.T with v[0] = 1, which maps a vector to (beta, 0, ..., 0). `factor` times the vector gives
    the further elements of v."""

    beta: UOp
    scale: UOp
    factor: UOp


def reflector(loops: Loops, count: UOp | int, read: Callable[[UOp], UOp], first: UOp, *within: UOp) -> Reflector:
    """The reflection of the vector that begins with `first` and goes on with read(0), ..., read(count - 1). Its norm is
    computed from elements scaled to at most 1, so that squares do not overflow. A vector that is 0 after its first
    element is not changed, as in LAPACK."""
    dtype = first.dtype
    largest = loops.largest(count, lambda index: absolute(read(index)), absolute(first), *within)
    unit = choose(largest.eq(0.0), 1.0, largest, dtype)
    rest = loops.total(count, lambda index: (read(index) / unit) * (read(index) / unit), dtype, *within)
    norm = unit * root((first / unit) * (first / unit) + rest)
    target = choose(first < 0.0, norm, -norm, dtype)
    is_done = rest.eq(0.0)
    beta = choose(is_done, first, target, dtype)
    scale = choose(is_done, 0.0, (target - first) / choose(is_done, 1.0, target, dtype), dtype)
    factor = choose(is_done, 0.0, const(dtype, 1.0) / choose(is_done, 1.0, first - target, dtype), dtype)
    return Reflector(beta, scale, factor)
