"""Initialisation of parameters, under torch's names. In: a tensor, which is overwritten. Out: the same tensor."""

from __future__ import annotations

import math

from tilewright.base.errors import ShapeError
from tilewright.tensor.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_GAINS = {"relu": math.sqrt(2), "tanh": 5 / 3, "selu": 3 / 4, "linear": 1.0, "sigmoid": 1.0}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that preserves the standard deviation of values through an activation."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS and not nonlinearity.startswith("conv"):
        known = ", ".join(("leaky_relu", *_GAINS))
        raise ShapeError("calculate_gain", f"the activation {nonlinearity!r}", f"give one of: {known}")
    return _GAINS.get(nonlinearity, 1.0)


def _set(tensor: Tensor, values: Tensor) -> Tensor:
    with Tensor.no_grad():
        return tensor.assign(values.cast(tensor.dtype).to(tensor.device))


def _fans(name: str, tensor: Tensor) -> dict[str, int]:
    """The fan in and fan out of a weight of (out, in, ...)."""
    if tensor.ndim < 2:
        raise ShapeError(name, f"shape {tensor.shape} has no inputs and outputs", "give a tensor of two or more axes")
    area = math.prod(tensor.shape[2:])
    return {"fan_in": tensor.shape[1] * area, "fan_out": tensor.shape[0] * area}


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Filled with one number."""
    return _set(tensor, tensor.detach().full_like(val))


def zeros_(tensor: Tensor) -> Tensor:
    """Filled with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Filled with 1."""
    return constant_(tensor, 1.0)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform in a..b."""
    return _set(tensor, Tensor.uniform(*tensor.shape, low=a, high=b, device=tensor.device))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with the given mean and standard deviation."""
    return _set(tensor, Tensor.normal(*tensor.shape, mean=mean, std=std, device=tensor.device))


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Normal with the given mean and standard deviation, truncated to a..b."""
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (a, b))
    share = Tensor.uniform(*tensor.shape, low=low, high=high, dtype="float64", device=tensor.device)
    return _set(tensor, (share.erfinv() * (std * math.sqrt(2)) + mean).clamp(a, b))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform with bound gain * sqrt(6 / (fan in + fan out))."""
    bound = gain * math.sqrt(6 / sum(_fans("xavier_uniform_", tensor).values()))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with deviation gain * sqrt(2 / (fan in + fan out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans("xavier_normal_", tensor).values())))


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform with bound gain * sqrt(3 / fan)."""
    bound = math.sqrt(3) * _kaiming_deviation("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal with deviation gain / sqrt(fan)."""
    return normal_(tensor, 0.0, _kaiming_deviation("kaiming_normal_", tensor, a, mode, nonlinearity))


def _kaiming_deviation(name: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fans = _fans(name, tensor)
    if mode not in fans:
        raise ShapeError(name, f"mode={mode!r}", "give 'fan_in' or 'fan_out'")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans[mode])


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Orthogonal rows (or columns where there are fewer) of length gain."""
    if tensor.ndim < 2:
        raise ShapeError("orthogonal_", f"shape {tensor.shape}", "give a tensor of two or more axes")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    start = Tensor.randn(max(rows, columns), min(rows, columns), device=tensor.device)
    q, r = start.qr()
    q = q * r.diagonal().sign()  # so that the distribution over orthogonal matrices is uniform
    return _set(tensor, (q if rows >= columns else q.transpose()).reshape(tensor.shape) * gain)
