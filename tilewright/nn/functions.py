"""Layers without weights: activations, pools, losses. In: the arguments of a method of `Tensor`, under torch's names.
Out: an object that calls the method."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.nn.functional import fold, unfold
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
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Flatten",
    "Fold",
    "GaussianNLLLoss",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "Mish",
    "NLLLoss",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "ReLU",
    "ReLU6",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TripletMarginLoss",
    "Unflatten",
    "Unfold",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
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
            raise ShapeError(type(self).__name__, f"shape {x.shape} has no channels", "give (batch, channels, ...)")
        return x * Tensor.ones(*x.shape[:2], *(1,) * (x.ndim - 2), dtype=x.dtype, device=x.device).dropout(self.p)


class Dropout1d(Dropout2d):
    """As `Dropout`, for whole channels of (batch, channels, length)."""


class Dropout3d(Dropout2d):
    """As `Dropout`, for whole channels of (batch, channels, depth, height, width)."""


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

    def __repr__(self) -> str:
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{type(self).__name__}({', '.join(given)})"


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
Hardshrink = _layer("Hardshrink", "hardshrink", Activation)
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
Softmin = _layer("Softmin", "softmin", Activation)
Softplus = _layer("Softplus", "softplus", Activation)
Softshrink = _layer("Softshrink", "softshrink", Activation)
Softsign = _layer("Softsign", "softsign", Activation)
Tanh = _layer("Tanh", "tanh", Activation)
Tanhshrink = _layer("Tanhshrink", "tanhshrink", Activation)
Threshold = _layer("Threshold", "threshold", Activation)


class GELU(Function):
    """x times the cumulative normal distribution at x."""

    method = "gelu"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate)


# ---------------------------------------------------------------- sizes

AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", "adaptive_avg_pool1d")
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", "adaptive_avg_pool2d")
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", "adaptive_avg_pool3d")
AdaptiveMaxPool1d = _layer("AdaptiveMaxPool1d", "adaptive_max_pool1d")
AdaptiveMaxPool2d = _layer("AdaptiveMaxPool2d", "adaptive_max_pool2d")
AdaptiveMaxPool3d = _layer("AdaptiveMaxPool3d", "adaptive_max_pool3d")
ChannelShuffle = _layer("ChannelShuffle", "channel_shuffle")
PixelShuffle = _layer("PixelShuffle", "pixel_shuffle")
PixelUnshuffle = _layer("PixelUnshuffle", "pixel_unshuffle")
Unflatten = _layer("Unflatten", "unflatten")


class Unfold:
    """The windows of (batch, channels, height, width) as (batch, channels * elements of a window, windows)."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        self.settings = (kernel_size, dilation, padding, stride)

    def __call__(self, x: Tensor) -> Tensor:
        return unfold(x, *self.settings)


class Fold:
    """The sums of windows where they overlap, as an image of (height, width) `output_size`."""

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        self.settings = (output_size, kernel_size, dilation, padding, stride)

    def __call__(self, x: Tensor) -> Tensor:
        return fold(x, *self.settings)


class Upsample(Function):
    """The last axes resized, to a size or by a factor."""

    method = "interpolate"

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
    ) -> None:
        super().__init__(size, mode, bool(align_corners), scale_factor)


class ZeroPad2d(Function):
    """Elements added around the last axes: the same number on each side, or pairs from the last axis on, such as
    (left, right, top, bottom)."""

    method = "pad"
    axes = 2
    mode = "constant"

    def __init__(self, padding: Sizes, value: float = 0.0) -> None:
        pairs = per_axis(type(self).__name__, "padding", padding, 2 * self.axes, least=0)
        super().__init__(pairs, self.mode, value)


def _padding(name: str, axes: int, mode: str, says: str) -> type[Function]:
    """A padding layer called `name` for the last `axes` axes."""
    doc = f"{says} around the last {'axis' if axes == 1 else f'{axes} axes'}: a number, or pairs from the last axis on."
    return type(name, (ZeroPad2d,), {"axes": axes, "mode": mode, "__doc__": doc, "__module__": __name__})


_MIRRORED, _EDGES, _OTHER_END = "What a mirror at the edge shows", "The edge repeated", "What the other end has"
ZeroPad1d, ZeroPad3d = (_padding(f"ZeroPad{axes}d", axes, "constant", "Zeros") for axes in (1, 3))
ConstantPad1d, ConstantPad2d, ConstantPad3d = (
    _padding(f"ConstantPad{axes}d", axes, "constant", "A number") for axes in (1, 2, 3)
)
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (
    _padding(f"ReflectionPad{axes}d", axes, "reflect", _MIRRORED) for axes in (1, 2, 3)
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _padding(f"ReplicationPad{axes}d", axes, "replicate", _EDGES) for axes in (1, 2, 3)
)
CircularPad1d, CircularPad2d, CircularPad3d = (
    _padding(f"CircularPad{axes}d", axes, "circular", _OTHER_END) for axes in (1, 2, 3)
)


# ---------------------------------------------------------------- losses

BCELoss = _layer("BCELoss", "binary_crossentropy", Loss)
BCEWithLogitsLoss = _layer("BCEWithLogitsLoss", "binary_crossentropy_logits", Loss)
CosineEmbeddingLoss = _layer("CosineEmbeddingLoss", "cosine_embedding_loss", Loss)
CosineSimilarity = _layer("CosineSimilarity", "cosine_similarity")
GaussianNLLLoss = _layer("GaussianNLLLoss", "gaussian_nll_loss", Loss)
HingeEmbeddingLoss = _layer("HingeEmbeddingLoss", "hinge_embedding_loss", Loss)
HuberLoss = _layer("HuberLoss", "huber_loss", Loss)
KLDivLoss = _layer("KLDivLoss", "kl_div", Loss)
L1Loss = _layer("L1Loss", "l1_loss", Loss)
MarginRankingLoss = _layer("MarginRankingLoss", "margin_ranking_loss", Loss)
MSELoss = _layer("MSELoss", "mse_loss", Loss)
PairwiseDistance = _layer("PairwiseDistance", "pairwise_distance")
PoissonNLLLoss = _layer("PoissonNLLLoss", "poisson_nll_loss", Loss)
SmoothL1Loss = _layer("SmoothL1Loss", "smooth_l1_loss", Loss)
TripletMarginLoss = _layer("TripletMarginLoss", "triplet_margin_loss", Loss)


class CrossEntropyLoss(Loss):
    """The loss of (batch, classes, ...) logits against class numbers, or probabilities of the same shape."""

    method = "cross_entropy"

    def __init__(self, weight: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)


class NLLLoss(CrossEntropyLoss):
    """The negative log-probability of the class, from (batch, classes, ...) log-probabilities."""

    method = "nll_loss"
