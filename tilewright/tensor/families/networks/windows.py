"""Windows of convolution and pooling over the last axes. In: sizes as the user wrote them. Out: kernel, stride,
dilation and padding for each axis, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.base.records import NamedTuple
from tilewright.graph.spec import Shape
from tilewright.tensor.core.checks import is_whole

Sizes = int | Sequence[int]
Pads = tuple[tuple[int, int], ...]


class Windows(NamedTuple):
    """Kernel, stride and dilation of the last axes, and the padding of all."""

    kernel: Shape
    steps: Shape
    gaps: Shape
    pads: Pads

    @property
    def is_padded(self) -> bool:
        return any(before or after for before, after in self.pads)

    def divide(self, shape: Shape) -> bool:
        """Whether each element of a tensor of this shape is in one window."""
        is_adjacent = not self.is_padded and self.steps == self.kernel and set(self.gaps) == {1}
        sizes = shape[len(shape) - len(self.kernel) :]
        return is_adjacent and all(isinstance(n, int) and n % k == 0 for n, k in zip(sizes, self.kernel))


def sizes_of(operation: str, name: str, value: Sizes, count: int, least: int = 1) -> Shape:
    """One number for every axis."""
    sizes: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(sizes) != count or not all(is_whole(size) and size >= least for size in sizes):
        message = f"{name}={value!r} for {count} axes"
        raise ShapeError(operation, message, f"give one number or {count}, each at least {least}")
    return sizes


def pads_of(operation: str, padding: Sizes, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of every axis, from one number, a number for each axis, or torch's flat pairs."""
    if isinstance(padding, tuple | list) and len(padding) == 2 * count and count > 0:
        flat = sizes_of(operation, "padding", padding, 2 * count, least=0)
        return tuple(reversed([(flat[k], flat[k + 1]) for k in range(0, 2 * count, 2)]))
    return tuple((size, size) for size in sizes_of(operation, "padding", padding, count, least=0))


def check_windows(name: str, sizes: Shape, kernel: Shape, dilation: Shape) -> None:
    for size, length, gap in zip(sizes, kernel, dilation):
        if size < gap * (length - 1) + 1:
            message = f"a kernel of {gap * (length - 1) + 1} is larger than the padded input of {size}"
            raise ShapeError(name, message, "use a smaller kernel or dilation, or more padding")
