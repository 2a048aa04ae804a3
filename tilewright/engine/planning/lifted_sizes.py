"""Numbers of graphs that differ in their sizes as expressions over a few variables. In: the numbers of several samples.
Out: for each number an expression that has these values, and the variables with their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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


def _least(numbers: tuple[int, ...]) -> int:
    """Tiles of kernels need more than two iterations."""
    return LONG_SIZE if min(numbers) >= LONG_SIZE else MIN_SIZE


def _power_above(numbers: tuple[int, ...]) -> int:
    return 1 << max(numbers).bit_length()


# Bounds of a variable that had these values, the widest first.
BOUNDS: tuple[Bounds, ...] = (
    lambda numbers: (_least(numbers), _power_above(numbers)),
    lambda numbers: (_least(numbers), _power_above(numbers) - 1),
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
        differing = sorted({c for c in columns if len(set(c)) > 1}, key=lambda column: (max(column), column))
        while len(self.variables) < MAX_VARIABLES:
            candidates = [column for column in differing if column not in self._known and min(column) >= MIN_SIZE]
            if not candidates:
                break
            # The number that most others follow from; of several the smallest, which is the size of an axis.
            name = f"size{len(self.variables)}"
            found = [self._with_variable(column, name, bounds(column), differing) for column in candidates]
            self._known = max(found, key=len)
            column = candidates[found.index(self._known)]
            self.variables.append((name, *bounds(column), columns.index(column)))

    def of(self, column: Column) -> int | None:
        """The expression of numbers; the number where they do not differ; None where they follow from no variables."""
        return column[0] if len(set(column)) == 1 else self._known.get(column)

    def _with_variable(
        self, column: Column, name: str, bounds: tuple[int, int], differing: Sequence[Column]
    ) -> dict[Column, int]:
        """What is known with one more variable, which has the values of a column."""
        known = {**self._known, column: SymbolicInt(UOp(Ops.VARIABLE, dtypes.index, (), (name, *bounds)), None)}
        count = 0
        while count < len(known):
            count = len(known)
            for other in differing:
                size = None if other in known else _expression(known, other)
                if size is not None:
                    known[other] = size
        return known


def _expression(known: dict[Column, int], column: Column) -> int | None:
    """A column as an expression of known ones."""
    for form in (_affine, _product, _count_of_parts, _missing):
        size = form(known, column)
        if size is not None:
            return size
    return None


def _affine(known: dict[Column, int], column: Column) -> int | None:
    """factor * known + offset."""
    for numbers, size in known.items():
        pairs = sorted(set(zip(numbers, column)))
        (x, y), (other_x, other_y) = pairs[0], pairs[-1]
        if other_x == x or (other_y - y) % (other_x - x):
            continue
        factor = (other_y - y) // (other_x - x)
        offset = y - factor * x
        if factor and all(factor * a + offset == b for a, b in pairs):
            return size * factor + offset
    return None


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


def _count_of_parts(known: dict[Column, int], column: Column) -> int | None:
    """known / part, rounded up; or that times the part."""
    for numbers, size in known.items():
        part = _part_of(numbers, column)
        if part is not None:
            return -(-size // part)
        part = _multiple_above(numbers, column)
        if part is not None:
            return -(-size // part) * part
    return None


def _missing(known: dict[Column, int], column: Column) -> int | None:
    """What is missing from a known one to a number of whole parts."""
    for numbers, size in known.items():
        whole = tuple(number + value for number, value in zip(numbers, column))
        total = known[whole] if whole in known else _count_of_parts({numbers: size}, whole)
        if total is not None:
            return total - size
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
