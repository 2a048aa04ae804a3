"""The nonlinear functions of networks. In: a tensor. Out: a tensor of its shape.
They have torch's meaning at infinities and NaN, and stay finite in the branch that is not taken."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.errors import DTypeError
from tilewright.tensor.elementwise import ElementwiseMixin

# erf and erfc of Cephes (S. L. Moshier), highest power first: x*T(x^2)/U(x^2) up to 1, exp(-x^2)*P(x)/Q(x) above.
_ERF_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_ERFC_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_ERFC_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)


class ActivationMixin(ElementwiseMixin):
    """relu, sigmoid, gelu, ..."""

    # ------------------------------------------------------------ pieces of lines

    def relu(self) -> Self:
        return self.maximum(0)

    def relu6(self) -> Self:
        return self.clamp(0, 6)

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        return (self < 0).where(self * neg_slope, self)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        return self.clamp(min_val, max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        return (self * alpha + beta).clamp(0, 1)

    def hardswish(self) -> Self:
        return self * (self + 3).relu6() * (1 / 6)

    def softsign(self) -> Self:
        return self / (1 + self.abs())

    # ------------------------------------------------------------ exponentials

    def sigmoid(self) -> Self:
        def function(x: Self) -> Self:
            shrunk = x._minus_abs().exp()  # at most 1, so nothing overflows on either side
            return (x < 0).where(shrunk, 1.0) / (1 + shrunk)

        return self._in_float32(function)

    def logsigmoid(self) -> Self:
        return self._in_float32(lambda x: -(-x).softplus())

    def silu(self) -> Self:
        return self._in_float32(lambda x: x * x.sigmoid())

    def swish(self) -> Self:
        """As `silu`."""
        return self.silu()

    def quick_gelu(self) -> Self:
        return self._in_float32(lambda x: x * (x * 1.702).sigmoid())

    def softplus(self, beta: float = 1.0) -> Self:
        def function(x: Self) -> Self:
            scaled = x * beta
            positive = (scaled < 0).where(0.0, scaled)
            return (positive + scaled._minus_abs().exp()._log1p()) * (1 / beta)

        return self._in_float32(function)

    def mish(self) -> Self:
        return self._in_float32(lambda x: x * x.softplus().tanh())

    def _expm1_below_zero(self) -> Self:
        """exp(x) - 1 where x < 0, accurate near 0; 0 elsewhere."""
        half = ((self < 0).where(self, 0.0) * 0.5).tanh()
        return 2 * half / (1 - half)

    def elu(self, alpha: float = 1.0) -> Self:
        return self._in_float32(lambda x: (x < 0).where(x._expm1_below_zero() * alpha, x))

    def celu(self, alpha: float = 1.0) -> Self:
        return self._in_float32(lambda x: (x < 0).where((x * (1 / alpha))._expm1_below_zero() * alpha, x))

    def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
        return self._in_float32(lambda x: x.elu(alpha) * gamma)

    # ------------------------------------------------------------ the normal distribution

    def erf(self) -> Self:
        return self._in_float32(lambda x: x._erf())

    def _erf(self) -> Self:
        size = -self._minus_abs()
        is_small = size < 1
        near_zero = is_small.where(self, 0.0)
        square = near_zero.square()
        small = near_zero * square._polynomial(_ERF_T) / square._polynomial(_ERF_U)
        # Beyond 6 the result is 1 in every dtype; the limit keeps the powers finite.
        limited = size.clamp(1.0, 6.0)
        tail = (-limited.square()).exp() * limited._polynomial(_ERFC_P) / limited._polynomial(_ERFC_Q)
        large = 1 - tail
        return is_small.where(small, (self < 0).where(-large, large))

    def gelu(self, approximate: str = "tanh") -> Self:
        """x times the normal distribution's probability below x; `approximate` is "tanh" or "none" (by erf)."""
        if approximate == "tanh":
            scale = math.sqrt(2 / math.pi)
            return self._in_float32(lambda x: 0.5 * x * (1 + (scale * (x + 0.044715 * x * x * x)).tanh()))
        if approximate == "none":
            return self._in_float32(lambda x: 0.5 * x * (1 + (x * math.sqrt(0.5)).erf()))
        raise DTypeError("gelu", f"approximate={approximate!r}", 'give "tanh" or "none"')
