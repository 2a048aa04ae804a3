"""Functions under torch's names and with torch's arguments: `import tilewright.nn.functional as F`, `F.relu(x)`. In:
tensors. Out: tensors. Each is a method of `Tensor`; this module has the order of torch's arguments, and the functions
whose defaults differ from those of the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from tilewright.base.dtype import dtypes
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.nn.alignment import ctc_loss
from tilewright.nn.embeddings import embedding, embedding_bag
from tilewright.nn.layers import Sizes, per_axis
from tilewright.nn.normalisation import batch_norm, group_norm, layer_norm, rms_norm
from tilewright.tensor.tensor import Tensor

__all__ = [
    "affine_grid",
    "batch_norm",
    "ctc_loss",
    "dropout",
    "embedding",
    "embedding_bag",
    "fold",
    "gelu",
    "group_norm",
    "interpolate",
    "layer_norm",
    "linear",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]
__all__ += ["gumbel_softmax", "instance_norm", "one_hot", "rms_norm", "unfold"]
_PLAIN = ("hardsigmoid", "hardswish", "logsigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "tanh")
_CONVOLUTION = "weight bias stride padding dilation groups"
_TRANSPOSED = "weight bias stride padding output_padding groups dilation"
_AVERAGE = "kernel_size stride padding ceil_mode count_include_pad"
_MAXIMUM = "kernel_size stride padding dilation ceil_mode"
_CLASSES = "target:Y weight ignore_index reduction"
_AXIS = "dim:axis dtype"
# The arguments after the tensor in torch's order; `torch:ours` where the method has another name for one.
_ARGUMENTS = {
    **dict.fromkeys(_PLAIN, ""),
    **dict.fromkeys(("celu", "elu"), "alpha"),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), _AXIS),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _CONVOLUTION),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _TRANSPOSED),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _AVERAGE),
    **dict.fromkeys(("max_pool1d", "max_pool3d"), _MAXIMUM),
    **dict.fromkeys((f"adaptive_{kind}_pool{axes}d" for kind in ("avg", "max") for axes in (1, 2, 3)), "output_size"),
    **dict.fromkeys(("l1_loss", "mse_loss"), "target reduction"),
    **dict.fromkeys(("hardshrink", "softshrink"), "lambd"),
    "binary_cross_entropy": "target:Y weight reduction",
    "binary_cross_entropy_with_logits": "target:Y weight reduction pos_weight",
    "channel_shuffle": "groups",
    "cosine_embedding_loss": "input2:x2 target margin reduction",
    "cosine_similarity": "x2 dim eps",
    "cross_entropy": f"{_CLASSES} label_smoothing",
    "gaussian_nll_loss": "target var full eps reduction",
    "glu": "dim",
    "grid_sample": "grid mode padding_mode align_corners",
    "softsign": "",
    "tanhshrink": "",
    "hardtanh": "min_val max_val",
    "hinge_embedding_loss": "target margin reduction",
    "huber_loss": "target reduction delta",
    "kl_div": "target reduction log_target",
    "leaky_relu": "negative_slope:neg_slope",
    "margin_ranking_loss": "input2:other target margin reduction",
    "max_pool2d": f"{_MAXIMUM} return_indices",
    "nll_loss": _CLASSES,
    "normalize": "p dim eps",
    "pad": "pad:padding mode value",
    "pairwise_distance": "x2 p eps keepdim",
    "pixel_shuffle": "upscale_factor",
    "pixel_unshuffle": "downscale_factor",
    "poisson_nll_loss": "target log_input full eps reduction",
    "prelu": "weight",
    "scaled_dot_product_attention": "key value attn_mask dropout_p is_causal",
    "smooth_l1_loss": "target reduction beta",
    "softplus": "beta",
    "threshold": "threshold value",
    "triplet_margin_loss": "positive negative margin p reduction",
}


def _function(name: str, arguments: str) -> Callable[..., Any]:
    """The method of that name as a function. None selects the method's default, and `inplace` has no effect, since
    memory is planned for the whole graph."""
    pairs = [argument.partition(":") for argument in arguments.split()]
    ours = {theirs: own or theirs for theirs, _, own in pairs}

    def function(input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        del inplace
        if not isinstance(input, Tensor):
            raise DTypeError(name, f"input is a {type(input).__name__}, which is not a tensor", "give a tensor first")
        given = dict(zip(ours, args))
        wrong = (kwargs.keys() - ours.keys()) | (kwargs.keys() & given.keys())
        if wrong or len(args) > len(ours):
            message = f"{len(args)} arguments after the tensor and {', '.join(sorted(wrong)) or 'no other'} by name"
            raise DTypeError(name, message, f"give {' '.join(ours) or 'the tensor alone'}, each once")
        given |= kwargs
        known = {ours[argument]: value for argument, value in given.items() if value is not None}
        return getattr(input, name)(**known)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


for _name, _names in _ARGUMENTS.items():
    globals()[_name] = _function(_name, _names)
    __all__.append(_name)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias; the method `Tensor.linear` takes the transposed weight."""
    return input.linear(weight.transpose(), bias)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the cumulative normal distribution at x; exact by default."""
    return input.gelu(approximate)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Elements become 0 with probability p and the others are scaled by 1/(1-p), unless `training=False`."""
    del inplace
    with Tensor.train(training):
        return input.dropout(p)


def _lp_pool(axes: int) -> Callable[..., Tensor]:
    def function(
        input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Tensor:
        """The norm of each window: the sum of its elements to the power `norm_type`, to the power 1 / `norm_type`."""
        kernel = per_axis(function.__name__, "kernel_size", kernel_size, axes)
        if math.isinf(norm_type):
            sign = math.copysign(1, norm_type)
            return cast(Tensor, (input.abs() * sign).max_pool2d(kernel, stride, ceil_mode=ceil_mode)) * sign
        mean = input.pow(norm_type).avg_pool2d(kernel, stride, ceil_mode=ceil_mode)
        return (mean * math.prod(kernel)).pow(1 / norm_type)

    function.__name__ = function.__qualname__ = f"lp_pool{axes}d"
    return function


def _max_unpool(axes: int) -> Callable[..., Tensor]:
    def function(
        input: Tensor,
        indices: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor:
        """The elements put where a pool with `return_indices` found them, with zeros elsewhere."""
        kernel = per_axis(function.__name__, "kernel_size", kernel_size, axes)
        space = None if output_size is None else tuple(output_size)
        return input.max_unpool2d(indices, kernel, stride, 1, padding, space)

    function.__name__ = function.__qualname__ = f"max_unpool{axes}d"
    return function


lp_pool1d, lp_pool2d, lp_pool3d = (_lp_pool(axes) for axes in (1, 2, 3))
max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(axes) for axes in (1, 2, 3))


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors of class numbers; -1 reads the number of classes from the values."""
    return input.one_hot(int(input.max().item()) + 1 if num_classes == -1 else num_classes)


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The last axes resized, to a size or by a factor."""
    return input.interpolate(size, mode, bool(align_corners), scale_factor)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 of each channel of each element of the batch, or by running statistics with
    `use_input_stats=False`."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        message = "running statistics are not moved towards those of single elements"
        raise UnsupportedError("instance_norm", message, "give none, or use_input_stats=False")
    return group_norm(input, input.shape[1], weight, bias, eps)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of a categorical distribution as weights of its classes, which gradients pass through; the lower `tau`,
    the nearer to one class. `hard` gives one class, with the gradient of the weights."""
    del eps  # torch takes it and has no use for it either
    wide = logits if logits.dtype.bits >= 32 else logits.float()
    waiting = -(1 - Tensor.rand_like(wide)).log()  # of an exponential distribution
    soft = ((wide - waiting.clamp_min(dtypes.finfo(wide.dtype).tiny).log()) / tau).softmax(dim).cast(logits.dtype)
    if not hard:
        return soft
    chosen = Tensor.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return soft + (chosen - soft).detach()


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The grid for `grid_sample` of an affine map of coordinates: theta of (batch, 2, 3) for images of `size` (batch,
    channels, height, width), or of (batch, 3, 4) for volumes."""
    axes = len(size) - 2
    if axes not in (2, 3) or theta.shape != (size[0], axes, axes + 1):
        message = f"theta of shape {theta.shape} for a size of {tuple(size)}"
        raise ShapeError("affine_grid", message, "give (batch, 2, 3) for 4 sizes, or (batch, 3, 4) for 5")
    grid = theta[:, :, axes].reshape((size[0], *[1] * axes, axes))
    for number, length in enumerate(reversed(size[2:])):
        reach = 0.0 if length == 1 else 1.0 if align_corners else 1 - 1 / length
        along = Tensor.linspace(-reach, reach, length, dtype=theta.dtype, device=theta.device)
        shape = (1, *[length if axis == axes - 1 - number else 1 for axis in range(axes)], 1)
        grid = grid + along.reshape(shape) * theta[:, :, number].reshape((size[0], *[1] * axes, axes))
    return grid


def unfold(
    input: Tensor,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The windows of (batch, channels, height, width) as (batch, channels * elements of a window, windows)."""
    if input.ndim != 4:
        raise ShapeError("unfold", f"shape {input.shape}", "give (batch, channels, height, width)")
    values = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    kernel, gaps, pads, steps = (
        per_axis("unfold", name, value, 2, least=0 if name == "padding" else 1) for name, value in values.items()
    )
    found = input.pad((pads[1], pads[1], pads[0], pads[0]))
    for axis in range(2):
        found = found.unfold(2 + axis, gaps[axis] * (kernel[axis] - 1) + 1, steps[axis])
    found = found[..., :: gaps[0], :: gaps[1]].permute(0, 1, 4, 5, 2, 3)
    return found.reshape((input.shape[0], input.shape[1] * kernel[0] * kernel[1], -1))


def fold(
    input: Tensor,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The sums of windows where they overlap: (batch, channels * elements of a window, windows) as (batch, channels,
    height, width). It is the gradient of `unfold`."""
    sizes, kernel = per_axis("fold", "output_size", output_size, 2), per_axis("fold", "kernel_size", kernel_size, 2)
    if input.ndim == 2:
        return fold(input.unsqueeze(0), output_size, kernel_size, dilation, padding, stride).squeeze(0)
    if input.ndim != 3 or input.shape[1] % math.prod(kernel):
        message = f"shape {input.shape} for windows of {kernel}"
        raise ShapeError("fold", message, "give (batch, channels * elements of a window, windows)")
    channels = input.shape[1] // math.prod(kernel)
    space = Tensor.empty(input.shape[0], channels, *sizes, dtype=input.dtype, device=input.device)
    windows = unfold(space, kernel_size, dilation, padding, stride)
    if windows.shape != input.shape:
        message = f"shape {input.shape}, where an output of {sizes} has windows of shape {windows.shape}"
        raise ShapeError("fold", message, "give what `unfold` returns for these arguments")
    return (windows * input).sum().gradient(space)[0]
