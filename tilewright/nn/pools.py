"""Layers over windows of the last axes. In: (batch, channels, ...). Out: the same with one element for each window: its
maximum, its mean or its norm; and back, from maxima to where they were."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.nn.functional import lp_pool1d, lp_pool2d, lp_pool3d, max_unpool1d, max_unpool2d, max_unpool3d
from tilewright.nn.functions import Function
from tilewright.nn.layers import Sizes, per_axis
from tilewright.tensor.tensor import Tensor

__all__: list[str] = [
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class AvgPool2d(Function):
    """The mean of each window."""

    method = "avg_pool2d"
    axes = 2

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        kernel = per_axis(type(self).__name__, "kernel_size", kernel_size, self.axes)
        super().__init__(kernel, stride, 1, padding, ceil_mode, count_include_pad)


class AvgPool1d(AvgPool2d):
    """`AvgPool2d` over one axis."""

    axes = 1


class AvgPool3d(AvgPool2d):
    """`AvgPool2d` over three axes."""

    axes = 3


class MaxPool2d(Function):
    """The maximum of each window; with `return_indices`, also its flat position in space."""

    method = "max_pool2d"
    axes = 2

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        kernel = per_axis(type(self).__name__, "kernel_size", kernel_size, self.axes)
        super().__init__(kernel, stride, dilation, padding, ceil_mode, return_indices)


class MaxPool1d(MaxPool2d):
    """`MaxPool2d` over one axis."""

    axes = 1


class MaxPool3d(MaxPool2d):
    """`MaxPool2d` over three axes."""

    axes = 3


class MaxUnpool2d:
    """The elements put where `MaxPool2d(return_indices=True)` found them, with zeros elsewhere."""

    function = staticmethod(max_unpool2d)

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        self.settings = (kernel_size, stride, padding)

    def __call__(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return self.function(x, indices, *self.settings, output_size)


class MaxUnpool1d(MaxUnpool2d):
    """`MaxUnpool2d` over one axis."""

    function = staticmethod(max_unpool1d)


class MaxUnpool3d(MaxUnpool2d):
    """`MaxUnpool2d` over three axes."""

    function = staticmethod(max_unpool3d)


class LPPool2d:
    """The norm of each window: the sum of its elements to the power `norm_type`, to the power of 1 / `norm_type`."""

    function = staticmethod(lp_pool2d)

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        self.settings = (norm_type, kernel_size, stride, ceil_mode)

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, *self.settings)


class LPPool1d(LPPool2d):
    """`LPPool2d` over one axis."""

    function = staticmethod(lp_pool1d)


class LPPool3d(LPPool2d):
    """`LPPool2d` over three axes."""

    function = staticmethod(lp_pool3d)
