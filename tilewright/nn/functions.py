"""Layers without weights: activations, pools, losses. In: the arguments of a method of `Tensor`, under torch's names.
Out: an object that calls the method."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.nn.layers import Sizes, per_axis
from tilewright.tensor.tensor import Tensor

__all__: list[str] = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "Flatten",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "NLLLoss",
    "PixelShuffle",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
]


class Dropout:
    """In training (`Tensor.train()`), elements become 0 with probability p and the others are scaled by 1/(1-p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        del inplace  # memory is planned for the whole graph
        if not 0 <= p <= 1:
            raise ShapeError(type(self).__name__, f"p={p} is not a probability", "give p in 0..1")
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return x.dropout(self.p)


class Dropout2d(Dropout):
    """As `Dropout`, for whole channels of (batch, channels, ...)."""

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2:
            raise ShapeError("Dropout2d", f"shape {x.shape} has no channels", "give (batch, channels, ...)")
        return x * Tensor.ones(*x.shape[:2], *(1,) * (x.ndim - 2), dtype=x.dtype, device=x.device).dropout(self.p)


class Identity:
    """Returns its input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accepts and ignores the arguments of the layer that it replaces."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Flatten:
    """Axes from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)


class Function:
    """A method of a tensor as a layer; the arguments are those of the method."""

    method = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __call__(self, x: Tensor, *others: Tensor) -> Any:
        return getattr(x, self.method)(*others, *self.args, **self.kwargs)


class Activation(Function):
    """A function of each element. `inplace`, the last argument, has no effect: memory is planned for the whole
    graph."""

    def __init__(self, *args: Any, inplace: bool = False, **kwargs: Any) -> None:
        del inplace
        super().__init__(*(args[:-1] if args and isinstance(args[-1], bool) else args), **kwargs)


class Loss(Function):
    """A loss of a tensor and its target; the arguments of the method are given by name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


def _layer(name: str, method: str, base: type[Function] = Function) -> type[Function]:
    """The class of that name, which calls that method."""
    doc = getattr(Tensor, method).__doc__ or f"`Tensor.{method}` as a layer."
    return type(name, (base,), {"method": method, "__doc__": doc, "__module__": __name__, "__qualname__": name})


# ---------------------------------------------------------------- activations

CELU = _layer("CELU", "celu", Activation)
ELU = _layer("ELU", "elu", Activation)
GLU = _layer("GLU", "glu", Activation)
Hardsigmoid = _layer("Hardsigmoid", "hardsigmoid", Activation)
Hardswish = _layer("Hardswish", "hardswish", Activation)
Hardtanh = _layer("Hardtanh", "hardtanh", Activation)
LeakyReLU = _layer("LeakyReLU", "leaky_relu", Activation)
LogSigmoid = _layer("LogSigmoid", "logsigmoid", Activation)
LogSoftmax = _layer("LogSoftmax", "log_softmax", Activation)
Mish = _layer("Mish", "mish", Activation)
ReLU = _layer("ReLU", "relu", Activation)
ReLU6 = _layer("ReLU6", "relu6", Activation)
SELU = _layer("SELU", "selu", Activation)
Sigmoid = _layer("Sigmoid", "sigmoid", Activation)
SiLU = _layer("SiLU", "silu", Activation)
Softmax = _layer("Softmax", "softmax", Activation)
Softplus = _layer("Softplus", "softplus", Activation)
Softsign = _layer("Softsign", "softsign", Activation)
Tanh = _layer("Tanh", "tanh", Activation)


class GELU(Function):
    """x times the cumulative normal distribution at x."""

    method = "gelu"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate)


# ---------------------------------------------------------------- sizes

AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", "adaptive_avg_pool1d")
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", "adaptive_avg_pool2d")
AdaptiveMaxPool2d = _layer("AdaptiveMaxPool2d", "adaptive_max_pool2d")
AvgPool1d = _layer("AvgPool1d", "avg_pool1d")
AvgPool3d = _layer("AvgPool3d", "avg_pool3d")
MaxPool1d = _layer("MaxPool1d", "max_pool1d")
MaxPool3d = _layer("MaxPool3d", "max_pool3d")
PixelShuffle = _layer("PixelShuffle", "pixel_shuffle")
Unflatten = _layer("Unflatten", "unflatten")


class MaxPool2d(Function):
    """The maximum of each window."""

    method = "max_pool2d"

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> None:
        super().__init__(kernel_size, stride, dilation, padding, ceil_mode)


class AvgPool2d(Function):
    """The mean of each window."""

    method = "avg_pool2d"

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, 1, padding, ceil_mode, count_include_pad)


class Upsample(Function):
    """The last axes resized, to a size or by a factor."""

    method = "interpolate"

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
    ) -> None:
        super().__init__(size, mode, bool(align_corners), scale_factor)


class ZeroPad2d(Function):
    """Zeros around the last two axes: the same number on each side, or (left, right, top, bottom)."""

    method = "pad"

    def __init__(self, padding: Sizes) -> None:
        super().__init__(per_axis("ZeroPad2d", "padding", padding, 4, least=0))


# ---------------------------------------------------------------- losses

BCELoss = _layer("BCELoss", "binary_crossentropy", Loss)
BCEWithLogitsLoss = _layer("BCEWithLogitsLoss", "binary_crossentropy_logits", Loss)
HuberLoss = _layer("HuberLoss", "huber_loss", Loss)
KLDivLoss = _layer("KLDivLoss", "kl_div", Loss)
L1Loss = _layer("L1Loss", "l1_loss", Loss)
MSELoss = _layer("MSELoss", "mse_loss", Loss)
SmoothL1Loss = _layer("SmoothL1Loss", "smooth_l1_loss", Loss)


class CrossEntropyLoss(Loss):
    """The loss of (batch, classes, ...) logits against class numbers, or probabilities of the same shape."""

    method = "cross_entropy"

    def __init__(self, weight: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)


class NLLLoss(CrossEntropyLoss):
    """The negative log-probability of the class, from (batch, classes, ...) log-probabilities."""

    method = "nll_loss"
