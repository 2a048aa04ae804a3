"""Losses between numbers: mse_loss, l1_loss, huber_loss, kl_div, ... In: predictions and targets that broadcast. Out: a
loss per element, their sum or their mean; short floats are carried in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from tilewright.base.errors import ShapeError
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.networks.losses import check_reduction

# As torch's: what keeps the cosine of a row of zeros finite.
_COSINE_EPS = 1e-12


class RegressionMixin(Family):
    """mse_loss, l1_loss, smooth_l1_loss, huber_loss, kl_div, ..."""

    def _loss(self, name: str, target: Self, reduction: str, function: Callable[[Self, Self], Self]) -> Self:
        check_reduction(name, reduction)
        check_devices(name, self, target)
        self._check_float(name)
        return function(self._wide(), target._wide())._reduced(reduction).cast(self.dtype)

    def mse_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The squared difference."""
        return self._loss("mse_loss", target, reduction, lambda x, y: (x - y).square())

    def l1_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The size of the difference."""
        return self._loss("l1_loss", target, reduction, lambda x, y: (x - y).abs())

    def huber_loss(self, target: Self, reduction: str = "mean", delta: float = 1.0) -> Self:
        """Half the squared difference up to delta, and delta * (difference - delta/2) beyond."""
        if not delta > 0:
            raise ShapeError("huber_loss", f"delta={delta}", "give a number above 0")

        def function(x: Self, y: Self) -> Self:
            size = (x - y).abs()
            return (size < delta).where(size.square() * 0.5, (size - delta / 2) * delta)

        return self._loss("huber_loss", target, reduction, function)

    def smooth_l1_loss(self, target: Self, reduction: str = "mean", beta: float = 1.0) -> Self:
        """`huber_loss` over beta: its slope is 1 beyond beta. A beta of 0 is `l1_loss`."""
        if beta < 0:
            raise ShapeError("smooth_l1_loss", f"beta={beta}", "give a number of at least 0")
        if beta == 0:
            return self.l1_loss(target, reduction)

        def function(x: Self, y: Self) -> Self:
            size = (x - y).abs()
            return (size < beta).where(size.square() * (0.5 / beta), size - beta / 2)

        return self._loss("smooth_l1_loss", target, reduction, function)

    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target * (log(target) - x) of logarithms x of probabilities; `log_target` says that the target is one too.
        "batchmean" is the sum over the size of the first axis."""

        def function(x: Self, y: Self) -> Self:
            if log_target:
                return y.exp() * (y - x)
            own = y.eq(0).where(0.0, y * y.eq(0).where(1.0, y).log())  # the limit of y log(y) at 0 is 0
            return own - y * x

        if reduction == "batchmean":
            total = self._loss("kl_div", target, "sum", function)
            return total / (self.shape[0] if self.ndim else 1)
        return self._loss("kl_div", target, reduction, function)

    def poisson_nll_loss(
        self, target: Self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> Self:
        """Minus the logarithm of a Poisson probability; `full` adds Stirling's approximation of log(target!)."""

        def function(x: Self, y: Self) -> Self:
            loss = x.exp() - y * x if log_input else x - y * (x + eps).log()
            if not full:
                return loss
            safe = (y > 1).where(y, 1.0)
            stirling = safe * safe.log() - safe + (safe * (2 * math.pi)).log() * 0.5
            return loss + (y > 1).where(stirling, 0.0)

        return self._loss("poisson_nll_loss", target, reduction, function)

    def gaussian_nll_loss(
        self, target: Self, var: Self, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Self:
        """Minus the logarithm of a normal density with mean x and variance `var`, which counts no less than eps."""

        def function(x: Self, y: Self) -> Self:
            spread = var._wide().maximum(eps)
            loss = (spread.log() + (x - y).square() / spread) * 0.5
            return loss + 0.5 * math.log(2 * math.pi) if full else loss

        return self._loss("gaussian_nll_loss", target, reduction, function)

    def margin_ranking_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """max(0, -target * (x - other) + margin), for targets 1 and -1."""
        return self._loss(
            "margin_ranking_loss", other, reduction, lambda x, y: (-target._wide() * (x - y) + margin).relu()
        )

    def hinge_embedding_loss(self, target: Self, margin: float = 1.0, reduction: str = "mean") -> Self:
        """x where the target is 1, max(0, margin - x) where it is -1."""
        return self._loss("hinge_embedding_loss", target, reduction, lambda x, y: y.eq(1).where(x, (margin - x).relu()))

    def cosine_embedding_loss(self, x2: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """1 - cos of the angle between rows where the target is 1, max(0, cos - margin) where it is -1."""
        check_reduction("cosine_embedding_loss", reduction)
        left, right = self._wide(), x2._wide()
        lengths = [(rows.square().sum(-1) + _COSINE_EPS).sqrt() for rows in (left, right)]
        angle = (left * right).sum(-1) / (lengths[0] * lengths[1])
        loss = target.eq(1).where(1 - angle, (angle - margin).relu())
        return loss._reduced(reduction).cast(self.dtype)

    def triplet_margin_loss(
        self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0, reduction: str = "mean"
    ) -> Self:
        """max(0, distance to the positive - distance to the negative + margin)."""
        check_reduction("triplet_margin_loss", reduction)
        near, far = (self._wide()._distance(other._wide(), p) for other in (positive, negative))
        return (near - far + margin).relu()._reduced(reduction).cast(self.dtype)

    def _distance(self, other: Self, p: float) -> Self:
        return (self - other + 1e-6)._norm(p, (self.ndim - 1,)).squeeze(-1)
