"""Numbers of graphs that differ in their sizes as expressions over a few variables. In: the numbers of several samples.
Out: for each number an expression that has these values, and the variables with their bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import Ops
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp

MAX_VARIABLES = 3
# A size of 1 is broadcast, and one of 0 has no elements.
MIN_SIZE = 2
# Sizes from here on have kernels of their own.
LONG_SIZE = 8
# Elements of a part, where a number counts parts of another one: blocks and panels of kernels have as many.
MIN_PART, MAX_PART = 8, 1024

Bounds = Callable[[tuple[int, ...]], tuple[int, int]]


def _min_bound(numbers: tuple[int, ...]) -> int:
    """Tiles of kernels need more than two iterations."""
    return LONG_SIZE if min(numbers) >= LONG_SIZE else MIN_SIZE


def _power_above(numbers: tuple[int, ...]) -> int:
    return 1 << max(numbers).bit_length()


# Bounds of a variable that had these values, the widest first.
BOUNDS: tuple[Bounds, ...] = (
    lambda numbers: (_min_bound(numbers), _power_above(numbers)),
    lambda numbers: (_min_bound(numbers), _power_above(numbers) - 1),
    lambda numbers: (min(numbers), _power_above(numbers)),
    lambda numbers: (min(numbers), _power_above(numbers) - 1),
    lambda numbers: (min(numbers), max(numbers)),
)


Column = tuple[int, ...]  # a number of a graph in each sample


class Expressions:
    """Numbers of several samples as expressions over few variables."""

    def __init__(self, columns: Sequence[Column], bounds: Bounds) -> None:
        self.variables: list[tuple[str, int, int, int]] = []
        self._known: dict[Column, int] = {}
        often = Counter(columns)
        # The smallest numbers are sizes of axes, the others mostly their multiples and products.
        differing = sorted({c for c in columns if len(set(c)) > 1}, key=lambda column: (max(column), column))
        for column in differing:
            if column in self._known or len(self.variables) == MAX_VARIABLES:
                continue
            chosen = self._source_of(column, differing, often)
            if min(chosen) >= MIN_SIZE:
                limits = _within(bounds(chosen), chosen, differing)
                self._add_variable(chosen, limits, differing)
                self.variables.append((f"size{len(self.variables)}", *limits, columns.index(chosen)))

    def of(self, column: Column) -> int | None:
        """The expression of numbers; the number where they do not differ; None where they follow from no variables."""
        return column[0] if len(set(column)) == 1 else self._known.get(column)

    def _source_of(self, column: Column, differing: Sequence[Column], often: Mapping[Column, int]) -> Column:
        """The column itself, or the one that it follows from which occurs most often: numbers of parts, and what is
        missing to a number, are smaller than the size that they follow from."""
        everything = frozenset(differing)
        sources = [
            other
            for other in differing
            if often[other] > often[column] and other not in self._known and _follows(other, column, everything)
        ]
        return max(sources, key=lambda other: often[other], default=column)

    def _add_variable(self, column: Column, limits: tuple[int, int], differing: Sequence[Column]) -> None:
        name = f"size{len(self.variables)}"
        known = self._known
        known[column] = SymbolicInt(UOp(Ops.VARIABLE, dtypes.index, (), (name, *limits)), None)
        count, everything = 0, frozenset(differing)
        while count < len(known):
            count = len(known)
            for other in differing:
                size = None if other in known else _expression(known, other, everything)
                if size is not None:
                    known[other] = size


def _follows(source: Column, column: Column, others: frozenset[Column]) -> bool:
    """Whether a column follows from another one alone."""
    return any(form(source, 0, column, others) is not None for form in (_affine, _count_of_parts, _missing))


def _within(bounds: tuple[int, int], column: Column, others: Sequence[Column]) -> tuple[int, int]:
    """The bounds within which numbers that grow or fall with a column stay sizes: 336 - n has n up to 336."""
    least, greatest = bounds
    for other in others:
        line = _line(column, other) if min(other) >= 0 else None
        if line is None:
            continue
        factor, offset = line
        if factor < 0:
            greatest = min(greatest, offset // -factor)
        else:
            least = max(least, -(offset // factor))
    return least, greatest


def _expression(known: dict[Column, int], column: Column, others: frozenset[Column]) -> int | None:
    """A column as an expression of a known one, the first if it may be, or of two. `others` are all columns."""
    for numbers, size in known.items():
        for form in (_affine, _count_of_parts, _missing):
            found = form(numbers, size, column, others)
            if found is not None:
                return found
    return _product(known, column)


def _affine(numbers: Column, size: int, column: Column, _: frozenset[Column]) -> int | None:
    """factor * known + offset."""
    line = _line(numbers, column)
    return None if line is None else size * line[0] + line[1]


def _line(numbers: Column, column: Column) -> tuple[int, int] | None:
    """The factor and the offset that give a column from another one."""
    pairs = sorted(set(zip(numbers, column)))
    (x, y), (other_x, other_y) = pairs[0], pairs[-1]
    if other_x == x or (other_y - y) % (other_x - x):
        return None
    factor = (other_y - y) // (other_x - x)
    offset = y - factor * x
    return (factor, offset) if factor and all(factor * a + offset == b for a, b in pairs) else None


def _count_of_parts(numbers: Column, size: int, column: Column, others: frozenset[Column]) -> int | None:
    """known / part, rounded up, where what is missing to whole parts is a number of the graph too; or that times the
    part."""
    part = _part_of(numbers, column)
    if part is not None:
        missing = tuple(count * part - number for number, count in zip(numbers, column))
        if missing in others:
            return -(-size // part)
    part = _multiple_above(numbers, column)
    return None if part is None else -(-size // part) * part


def _missing(numbers: Column, size: int, column: Column, _: frozenset[Column]) -> int | None:
    """What is missing from the known one to a number of whole parts."""
    part = _multiple_above(numbers, tuple(number + value for number, value in zip(numbers, column)))
    return None if part is None else -(-size // part) * part - size


def _product(known: dict[Column, int], column: Column) -> int | None:
    """The product of two known ones, times a number."""
    pairs = list(known.items())
    for number, (first, left) in enumerate(pairs):
        for second, right in pairs[number:]:
            products = [a * b for a, b in zip(first, second)]
            if all(products) and column[0] % products[0] == 0:
                factor = column[0] // products[0]
                if factor and all(product * factor == value for product, value in zip(products, column)):
                    return left * right * factor
    return None


def _part_of(sizes: Column, counts: Column) -> int | None:
    """The number of elements of which each size has that many parts, the last of them perhaps smaller: of several the
    one with the most factors of two. None where there is none, or a part has few elements."""
    if any(not 0 < count < size for size, count in zip(sizes, counts)):
        return None
    least = max(-(-size // count) for size, count in zip(sizes, counts))
    most = min((-(-size // (count - 1)) - 1 if count > 1 else size - 1) for size, count in zip(sizes, counts))
    found = range(max(least, MIN_PART), min(most, MAX_PART) + 1)
    return max(found, key=lambda part: (part & -part, -part), default=None)


def _multiple_above(sizes: Column, multiples: Column) -> int | None:
    """The greatest number of which each multiple is the next one from a size on."""
    common = math.gcd(*multiples)
    parts = (part for part in range(min(common, MAX_PART), MIN_PART - 1, -1) if common % part == 0)
    return next((p for p in parts if all(0 <= m - size < p for size, m in zip(sizes, multiples))), None)
