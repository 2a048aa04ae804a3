"""Normalisation layers. In: tensors. Out: tensors of the same shape and dtype; statistics are computed in float32.
BatchNorm has running statistics: in training they are assigned lazily, and computed with the next update of the
parameters or the next pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.nn.buffers import as_buffer
from tilewright.nn.layers import check_sizes, in_dtype_of, optional_in_dtype_of
from tilewright.tensor.core.graph_memo import remembering
from tilewright.tensor.tensor import Tensor

__all__: list[str] = [
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LayerNorm2d",
    "RMSNorm",
]


def ones_parameter(*shape: int) -> Tensor:
    return Tensor.ones(*shape, requires_grad=True)


def zeros_parameter(*shape: int) -> Tensor:
    return Tensor.zeros(*shape, requires_grad=True)


def along_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter per channel, reshaped to broadcast along axis 1 of `x`."""
    return in_dtype_of(x, parameter).reshape(1, -1, *(1,) * (x.ndim - 2))


# ---------------------------------------------------------------- functions


@remembering
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 over the last axes, whose sizes are `normalized_shape`."""
    shape = _last_axes("layer_norm", input, normalized_shape)
    return _scaled(input, input.layernorm(tuple(range(-len(shape), 0)), eps), weight, bias)


@remembering
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Root mean square 1 over the last axes, whose sizes are `normalized_shape`."""
    shape = _last_axes("rms_norm", input, normalized_shape)
    wide = input if input.dtype.bits >= 32 else input.float()
    least = 2.0**-23 if eps is None else eps
    mean = wide.square().mean(tuple(range(-len(shape), 0)), keepdim=True)
    return _scaled(input, (wide * (mean + least).rsqrt()).cast(input.dtype), weight, None)


@remembering
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
) -> Tensor:
    """Mean 0 and variance 1 of each group of channels, for each element of the batch."""
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        message = f"{num_groups} groups of the channels of shape {input.shape}"
        raise ShapeError("group_norm", message, "give (batch, channels, ...) and a number that divides the channels")
    normal = input.reshape(input.shape[0], num_groups, -1).layernorm(-1, eps).reshape(input.shape)
    return _scaled(input, normal, *(None if part is None else along_channels(part, input) for part in (weight, bias)))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Mean 0 and variance 1 of each channel (axis 1): over the batch with `training`, which also moves the running
    statistics that are given towards those of the batch; by the running statistics otherwise."""
    if input.ndim < 2:
        raise ShapeError("batch_norm", f"shape {input.shape} has no axis of channels", "give (batch, channels, ...)")
    wide = input if input.dtype.bits >= 32 else input.float()
    if training:
        mean, variance = _batch_statistics(wide, running_mean, running_var, momentum)
    elif running_mean is not None and running_var is not None:
        mean, variance = running_mean, running_var
    else:
        raise ShapeError("batch_norm", "no running statistics", "give both, or training=True for those of the batch")
    return wide.batchnorm(weight, bias, mean, (variance + eps).rsqrt()).cast(input.dtype)


def _batch_statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float | Tensor
) -> tuple[Tensor, Tensor]:
    axes = (0, *range(2, x.ndim))
    count = math.prod(x.shape[axis] for axis in axes)
    if count < 2:
        message = f"shape {x.shape} has one value per channel"
        raise ShapeError("batch_norm", message, "train with more than one value, or use LayerNorm")
    variance, mean = x.var_mean(axes, correction=0)
    unbiased = variance.detach() * count / (count - 1)
    moved = [(running_mean, mean.detach()), (running_var, unbiased)]
    pending = [running for running, _ in moved if running is not None]
    if pending:
        pending[0].realize(*pending[1:])  # updates of earlier passes would accumulate
    for running, now in moved:
        if running is not None:
            running.assign((running * (1 - momentum) + now * momentum).cast(running.dtype))
    return mean, variance


def _last_axes(operation: str, input: Tensor, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        message = f"shape {input.shape} does not end in {shape}"
        raise ShapeError(operation, message, "give a tensor whose last axes are normalized_shape")
    return shape


def _scaled(input: Tensor, normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = normal if weight is None else normal * in_dtype_of(input, weight)
    offset = optional_in_dtype_of(input, bias)
    return scaled if offset is None else scaled + offset


# ---------------------------------------------------------------- layers


class BatchNorm:
    """Mean 0 and variance 1 of each channel (axis 1): over the batch in training (`with Tensor.train():`), by running
    statistics otherwise. `momentum=None` averages over all batches."""

    def __init__(
        self,
        sz: int,
        eps: float = 1e-05,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float | None = 0.1,
    ) -> None:
        check_sizes(type(self).__name__, sz=sz)
        if not isinstance(affine, bool) or not isinstance(track_running_stats, bool):
            message = f"affine={affine!r} and track_running_stats={track_running_stats!r}"
            raise ShapeError(type(self).__name__, message, "give True or False; give the momentum by name")
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.weight = ones_parameter(sz) if affine else None
        self.bias = zeros_parameter(sz) if affine else None
        # Allocated from the start, so that every pass of a jitted function updates the same memory.
        self.running_mean = as_buffer(Tensor.empty(sz).assign(0.0)) if track_running_stats else None
        self.running_var = as_buffer(Tensor.empty(sz).assign(1.0)) if track_running_stats else None
        self.num_batches_tracked = Tensor.empty((), dtype=dtypes.int64).assign(0) if track_running_stats else None

    def __call__(self, x: Tensor) -> Tensor:
        share: float | Tensor = self.momentum or 0.0
        if Tensor.training and self.num_batches_tracked is not None:
            statistics = (self.running_mean, self.running_var)
            # Pending updates of earlier passes would accumulate.
            self.num_batches_tracked.realize(*(each for each in statistics if each is not None))
            self.num_batches_tracked.assign(self.num_batches_tracked + 1)
            share = 1 / self.num_batches_tracked.float() if self.momentum is None else self.momentum
        is_training = Tensor.training or self.running_mean is None
        return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, is_training, share, self.eps)


class BatchNorm1d(BatchNorm):
    """Mean 0 and variance 1 of each channel, for (batch, channels) or (batch, channels, length)."""


class BatchNorm2d(BatchNorm):
    """BatchNorm of (batch, channels, height, width)."""


class BatchNorm3d(BatchNorm):
    """BatchNorm of (batch, channels, depth, height, width)."""


class GroupNorm:
    """Mean 0 and variance 1 of each group of channels, for each element of the batch."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-05, affine: bool = True) -> None:
        check_sizes(type(self).__name__, num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            message = f"{num_channels} channels do not split into {num_groups} groups"
            raise ShapeError(type(self).__name__, message, "give a multiple of num_groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = ones_parameter(num_channels) if affine else None
        self.bias = zeros_parameter(num_channels) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            message = f"shape {x.shape} for {self.num_channels} channels"
            raise ShapeError(type(self).__name__, message, f"give (batch, {self.num_channels}, ...)")
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(GroupNorm):
    """Mean 0 and variance 1 of each channel of each element of the batch."""

    def __init__(self, num_features: int, eps: float = 1e-05, affine: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine)
        self.num_features = num_features


class InstanceNorm1d(InstanceNorm):
    """InstanceNorm of (batch, channels, length), without weights unless asked for."""

    def __init__(self, num_features: int, eps: float = 1e-05, *, affine: bool = False) -> None:
        super().__init__(num_features, eps, affine)


class InstanceNorm2d(InstanceNorm1d):
    """InstanceNorm of (batch, channels, height, width), without weights unless asked for."""


class InstanceNorm3d(InstanceNorm1d):
    """InstanceNorm of (batch, channels, depth, height, width), without weights unless asked for."""


class LayerNorm:
    """Mean 0 and variance 1 over the last axes, whose sizes are `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-05,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        check_sizes(type(self).__name__, **{f"normalized_shape[{axis}]": size for axis, size in enumerate(shape)})
        if not shape:
            raise ShapeError(type(self).__name__, "normalized_shape is empty", "give the size of at least one axis")
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight = ones_parameter(*shape) if elementwise_affine else None
        self.bias = zeros_parameter(*shape) if elementwise_affine and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """LayerNorm over the channels of (batch, channels, height, width)."""

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ShapeError("LayerNorm2d", f"shape {x.shape}", "give (batch, channels, height, width)")
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm:
    """Root mean square 1 over the last axis, then scaled by the weight."""

    def __init__(self, dim: int, eps: float = 1e-06, elementwise_affine: bool = True) -> None:
        check_sizes("RMSNorm", dim=dim)
        self.dim = dim
        self.eps = eps
        self.weight = ones_parameter(dim) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.dim, self.weight, self.eps)
