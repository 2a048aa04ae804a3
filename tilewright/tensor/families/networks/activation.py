"""Activation functions. In: a tensor. Out: a tensor of its shape. Infinities and NaN give torch's results; functions of
several operations round 8- and 16-bit floats once."""

from __future__ import annotations

import functools
import math
from typing import Self

from tilewright.base.dtype import DType, promote_with_scalar
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import Axes, check_axes
from tilewright.tensor.families.base import Family
from tilewright.tensor.primitives import functions


@functools.cache
def _relu_bound(dtype: DType) -> UOp:
    """The constant 0, whose gradient at x = 0 is 0; cached, because networks use it most of all."""
    return marks.taking_ties(build.const(dtype, 0))


class ActivationMixin(Family):
    """relu, sigmoid, gelu, ..."""

    # ------------------------------------------------------------ piecewise linear

    def relu(self) -> Self:
        """max(x, 0)."""
        dtype = promote_with_scalar(self.dtype, 0)
        return self._new(build.alu(Ops.MAX, build.cast(self.uop, dtype), _relu_bound(dtype)))

    def relu6(self) -> Self:
        """x clamped to 0..6."""
        return self.hardtanh(0, 6)

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where it is positive, else x * neg_slope."""
        return (self > 0).where(self, self * neg_slope)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """x clamped to min_val..max_val."""
        # The gradient at the bounds is 0, other than that of clamp.
        return self._bounded(Ops.MAX, min_val, "hardtanh")._bounded(Ops.MIN, max_val, "hardtanh")

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """x * alpha + beta, clamped to 0..1."""
        return (self * alpha + beta).hardtanh(0, 1)

    def hardswish(self) -> Self:
        """x * relu6(x + 3) / 6."""
        return self * (self + 3).relu6() * (1 / 6)

    def softsign(self) -> Self:
        """x / (1 + |x|)."""
        return self / (1 + self.abs())

    # ------------------------------------------------------------ exponentials

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._function(functions.sigmoid)

    def logsigmoid(self) -> Self:
        """log(sigmoid(x))."""
        return self._function(lambda x: -functions.softplus(-x))

    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self._function(lambda x: x * functions.sigmoid(x))

    def swish(self) -> Self:
        """As `silu`."""
        return self.silu()

    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 * x)."""
        return self._function(lambda x: x * functions.sigmoid(x * 1.702))

    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta * x)) / beta."""
        inverse = _inverse("softplus", "beta", beta)
        return self._function(lambda x: functions.softplus(x * beta) * inverse)

    def mish(self) -> Self:
        """x * tanh(softplus(x))."""
        return self._function(lambda x: x * functions.tanh(functions.softplus(x)))

    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, else alpha * (exp(x) - 1)."""
        return self._function(lambda x: (x > 0).where(x, functions.expm1_below_zero(x) * alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, else alpha * (exp(x / alpha) - 1)."""
        inverse = _inverse("celu", "alpha", alpha)
        return self._function(lambda x: (x > 0).where(x, functions.expm1_below_zero(x * inverse) * alpha))

    def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
        """gamma * elu(x, alpha)."""
        return self._function(lambda x: (x > 0).where(x, functions.expm1_below_zero(x) * alpha) * gamma)

    def gelu(self, approximate: str = "tanh") -> Self:
        """x times the cumulative normal distribution at x; `approximate` is "tanh" or "none" (by erf)."""
        if approximate == "tanh":
            # (1 + tanh(u)) / 2 is sigmoid(2u), which takes fewer operations and loses no precision where tanh is near
            # -1.
            scale = 2 * math.sqrt(2 / math.pi)
            return self._function(lambda x: x * functions.sigmoid((x + x * x * x * 0.044715) * scale))
        if approximate == "none":
            return self._function(lambda x: x * 0.5 * (1 + functions.erf(x * math.sqrt(0.5))))
        raise DTypeError("gelu", f"approximate={approximate!r}", 'give "tanh" or "none"')

    # ------------------------------------------------------------ normalisation

    def batchnorm(
        self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: int | tuple[int, ...] = 1
    ) -> Self:
        """(x - mean) * invstd * weight + bias, each given for the elements of `axis`."""
        axes = check_axes("batchnorm", axis, self.ndim)
        shape = tuple(size if k in axes else 1 for k, size in enumerate(self.shape))

        def aligned(what: str, given: Self) -> Self:
            check_devices("batchnorm", self, given)
            if given.numel() != math.prod(shape):
                message = f"{what} of shape {given.shape} for axis {axis} of shape {self.shape}"
                raise ShapeError("batchnorm", message, f"give {math.prod(shape)} elements")
            return given.reshape(shape)

        scale = aligned("invstd", invstd)
        if weight is not None:
            scale = scale * aligned("weight", weight)
        result = (self - aligned("mean", mean)) * scale
        return (result if bias is None else result + aligned("bias", bias)).cast(self.dtype)

    def normalize(self, p: float = 2.0, dim: Axes = 1, eps: float = 1e-12) -> Self:
        """Each vector along `dim` divided by its p-norm, or by `eps` where the norm is smaller."""
        self._check_float("normalize")
        axes = check_axes("normalize", dim, self.ndim)
        if not isinstance(p, int | float) or p != p:
            raise DTypeError("normalize", f"p={p!r}", "give a number, such as 2, or math.inf")
        return self._in_float32(lambda x: x / x._norm(p, axes).maximum(eps))


def _inverse(operation: str, name: str, value: float) -> float:
    if isinstance(value, int | float) and value == 0:
        raise DTypeError(operation, f"{name}={value!r} is a divisor", f"give a {name} other than 0")
    return 1 / value
