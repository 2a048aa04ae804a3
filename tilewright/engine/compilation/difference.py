"""Where two results differ. In: what a kernel or a schedule computed, and the expected values. Out: None, or the first
element whose error is larger than a reordered sum explains."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.records import NamedTuple

# The low bits of a fraction in which reordered sums, and functions of other libraries, may differ.
LOOSE_BITS = 6


class Difference(NamedTuple):
    """`position` counts the elements row by row; `wrong` of `size` elements differ."""

    position: int
    coordinates: tuple[int, ...]
    got: Any
    want: Any
    wrong: int
    size: int

    def __str__(self) -> str:
        place = f"element {self.position}, at {self.coordinates}"
        return f"{place}: {self.got} instead of {self.want}; {self.wrong} of {self.size} elements differ"


def tolerance_of(dtype: DType) -> float:
    return 2.0 ** -(dtype.mantissa_bits - LOOSE_BITS) if dtype.is_float else 0.0


def differing(got: Any, want: Any, dtype: DType, tolerance: float | None = None) -> Any:
    """A mask of the elements that disagree. Floats agree within `tolerance` of the larger of the value and 1, that of
    their dtype where none is given."""
    import numpy as np

    got, want = np.asarray(got), np.asarray(want)
    if not dtype.is_float:
        return np.asarray(got != want)
    allowed = tolerance_of(dtype) if tolerance is None else tolerance
    with np.errstate(all="ignore"):
        found, right = got.astype(np.float64), want.astype(np.float64)
        return ~np.isclose(found, right, rtol=allowed, atol=allowed, equal_nan=True)


def find_difference(got: Any, want: Any, dtype: DType, mask: Any = None) -> Difference | None:
    """The first element of `got` that disagrees with `want`, of those that `mask` names if there is one."""
    import numpy as np

    got, want = np.asarray(got), np.asarray(want)
    wrong = differing(got, want, dtype)
    if mask is not None:
        wrong = wrong & mask
    if not wrong.any():
        return None
    position = int(np.argmax(wrong.reshape(-1)))
    coordinates = tuple(int(index) for index in np.unravel_index(position, want.shape)) if want.shape else ()
    values = [array.reshape(-1)[position].item() for array in (got, want)]
    return Difference(position, coordinates, values[0], values[1], int(wrong.sum()), want.size)
