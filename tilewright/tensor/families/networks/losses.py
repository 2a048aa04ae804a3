"""Losses and normalisation. In: predictions and targets. Out: a loss for each element, their sum or their mean.
Log-probabilities come from `log_softmax` and `logsigmoid`, so nothing overflows; 8- and 16-bit floats are computed in
float32 and rounded once. A label out of range is an error when the loss is computed; on a device without checks it
makes the loss NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from tilewright.base.errors import DTypeError, ShapeError
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import broadcast_shape
from tilewright.tensor.families.networks.activation import ActivationMixin
from tilewright.tensor.primitives.index_nodes import checked_classes
from tilewright.tensor.primitives.reduce import accumulate_dtype

# The default of `ignore_index`, as in torch.
_IGNORED = -100
# Binary cross entropy clamps the logarithm of a probability to at least this, as in torch.
_MIN_LOG = -100.0
# Keeps the cosine of a row of zeros finite, as in torch.
_COSINE_EPS = 1e-12


def check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(name, f"reduction {reduction!r}", 'give "mean", "sum" or "none"')


def _check_smoothing(name: str, label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ShapeError(name, f"label_smoothing={label_smoothing}", "give a number in 0..1")


class LossesMixin(ActivationMixin):
    """cross_entropy, nll_loss, ..., batchnorm, normalize."""

    # ------------------------------------------------------------ helpers of the losses

    def _reduced(self, reduction: str) -> Self:
        if reduction == "none":
            return self
        return self.mean() if reduction == "mean" else self.sum()

    def _labels(self, name: str, labels: Self, axis: int, ignored: int | None) -> tuple[Self, Self]:
        """The labels as a one-hot mask along `axis`, and the mask of labels that are not ignored. Any other label out
        of range is an error."""
        check_devices(name, self, labels)
        wanted = (*self.shape[:axis], *self.shape[axis + 1 :])
        if labels.shape != wanted:
            message = f"labels of shape {labels.shape} for predictions of shape {self.shape}"
            raise ShapeError(name, message, f"give one class for each prediction, so shape {wanted}")
        classes = self.shape[axis]
        shape = tuple(classes if k == axis else 1 for k in range(self.ndim))
        numbers = self.arange(classes, device=self.device).reshape(shape)
        checked = labels._new(checked_classes(name, labels.uop, classes, ignored))
        return checked.unsqueeze(axis).cast("int64").eq(numbers), (checked >= 0) & (checked < classes)

    def _picked_loss(
        self,
        name: str,
        labels: Self,
        axis: int,
        weight: Self | None,
        ignored: int | None,
        reduction: str,
        smoothing: float = 0.0,
    ) -> Self:
        """Minus this tensor's log-probability of the labels' classes, mixed with the mean over all classes by label
        smoothing."""
        check_devices(name, self, labels)
        if not labels.dtype.is_int:
            raise DTypeError(name, f"labels of dtype {labels.dtype.name}", "give class numbers as integers")
        ignored = _IGNORED if ignored is None else ignored
        if not labels.dtype.min <= ignored <= labels.dtype.max:
            ignored = None  # no label has this value
        named, is_class = self._labels(name, labels, axis, ignored)
        rows = weights = None
        if weight is not None:
            rows = self._class_weights(name, weight, axis)
            weights = named.where(rows, 0.0).sum(axis)
        loss = -named.where(self if rows is None else self * rows, 0.0).sum(axis)
        if smoothing:
            even = -(self if rows is None else self * rows).sum(axis) * (smoothing / self.shape[axis])
            loss = loss * (1 - smoothing) + even
        loss = is_class.where(loss, math.nan)
        if ignored is not None:
            kept = labels.ne(ignored)
            loss = kept.where(loss, 0.0)
            weights = kept.cast(self.dtype) if weights is None else kept.where(weights, 0.0)
        if reduction != "mean" or weights is None:
            return loss._reduced(reduction)
        return loss.sum() / weights.sum()

    def _class_weights(self, name: str, weight: Self, axis: int) -> Self:
        """A weight for each class, along the axis of classes."""
        check_devices(name, self, weight)
        if weight.shape != (self.shape[axis],):
            message = f"weights of shape {weight.shape} for {self.shape[axis]} classes"
            raise ShapeError(name, message, f"give one weight for each class, so shape ({self.shape[axis]},)")
        return weight.cast(self.dtype).reshape(tuple(self.shape[axis] if k == axis else 1 for k in range(self.ndim)))

    # ------------------------------------------------------------ binary classification

    def binary_crossentropy(self, Y: Self, reduction: str = "mean", weight: Self | None = None) -> Self:
        """-(Y log p + (1 - Y) log(1 - p)) of probabilities p, times `weight`; a logarithm is at least -100."""
        check_reduction("binary_crossentropy", reduction)
        self._check_float("binary_crossentropy")
        probability, truth = self._wide(), self._truth("binary_crossentropy", Y)

        def log(p: Self) -> Self:
            # The logarithm of 0 has no finite gradient, so it is not computed.
            return p.eq(0).where(_MIN_LOG, p.eq(0).where(1.0, p).log().maximum(_MIN_LOG))

        loss = -(truth * log(probability) + (1 - truth) * log(1 - probability))
        loss = loss if weight is None else loss * weight
        return loss._reduced(reduction).cast(self.dtype)

    def binary_crossentropy_logits(
        self, Y: Self, reduction: str = "mean", pos_weight: Self | None = None, weight: Self | None = None
    ) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow; `pos_weight` scales the loss of positive targets."""
        check_reduction("binary_crossentropy_logits", reduction)
        self._check_float("binary_crossentropy_logits")
        logit, truth = self._wide(), self._truth("binary_crossentropy_logits", Y)
        positive = truth * logit.logsigmoid()
        if pos_weight is not None:
            positive = positive * pos_weight
        loss = -(positive + (1 - truth) * (-logit).logsigmoid())
        loss = loss if weight is None else loss * weight
        return loss._reduced(reduction).cast(self.dtype)

    def _truth(self, name: str, Y: Self) -> Self:
        check_devices(name, self, Y)
        if broadcast_shape(name, self.shape, Y.shape) != self.shape:
            message = f"targets of shape {Y.shape} for predictions of shape {self.shape}"
            raise ShapeError(name, message, "give a target for each prediction")
        return Y.cast(accumulate_dtype(self.dtype))

    # ------------------------------------------------------------ classification

    def nll_loss(
        self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: str = "mean"
    ) -> Self:
        """The negative log-probability of class Y, from (batch, classes, ...) log-probabilities. The mean is weighted
        by the labels' weights; labels equal to `ignore_index` (by default -100) are left out."""
        check_reduction("nll_loss", reduction)
        self._check_float("nll_loss")
        axis = self._class_axis("nll_loss")
        loss = self._wide()._picked_loss("nll_loss", Y, axis, weight, ignore_index, reduction)
        return loss.cast(self.dtype)

    def _class_axis(self, name: str) -> int:
        if self.ndim == 0:
            raise ShapeError(name, "a 0-d tensor has no classes", "give (batch, classes, ...) or (classes,)")
        return min(1, self.ndim - 1)

    def cross_entropy(
        self,
        Y: Self,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        weight: Self | None = None,
    ) -> Self:
        """The loss of (batch, classes, ...) logits against class numbers, or probabilities of the same shape.
        `label_smoothing` distributes that fraction of the target evenly over all classes; labels equal to
        `ignore_index` (by default -100) are left out; `weight` has a factor for each class."""
        check_reduction("cross_entropy", reduction)
        _check_smoothing("cross_entropy", label_smoothing)
        self._check_float("cross_entropy")
        axis = self._class_axis("cross_entropy")
        check_devices("cross_entropy", self, Y)
        logs = self._wide().log_softmax(axis)
        if Y.dtype.is_int:
            loss = logs._picked_loss("cross_entropy", Y, axis, weight, ignore_index, reduction, label_smoothing)
            return loss.cast(self.dtype)
        if Y.shape != self.shape:
            message = f"probabilities of shape {Y.shape} for logits of shape {self.shape}"
            raise ShapeError("cross_entropy", message, "give one for each class, or class numbers as integers")
        truth = Y.cast(logs.dtype)
        if label_smoothing:
            truth = truth * (1 - label_smoothing) + label_smoothing / self.shape[axis]
        if weight is not None:
            truth = truth * logs._class_weights("cross_entropy", weight, axis)
        return -(truth * logs).sum(axis)._reduced(reduction).cast(self.dtype)

    def sparse_categorical_crossentropy(
        self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """As `cross_entropy` with class numbers, with the classes in the last axis."""
        name = "sparse_categorical_crossentropy"
        check_reduction(name, reduction)
        _check_smoothing(name, label_smoothing)
        self._check_float(name)
        self._class_axis(name)
        logs = self._wide().log_softmax(-1)
        loss = logs._picked_loss(name, Y, self.ndim - 1, None, ignore_index, reduction, label_smoothing)
        return loss.cast(self.dtype)

    # ------------------------------------------------------------ numbers

    def _loss(self, name: str, target: Self, reduction: str, function: Callable[[Self, Self], Self]) -> Self:
        check_reduction(name, reduction)
        check_devices(name, self, target)
        self._check_float(name)
        return function(self._wide(), target._wide())._reduced(reduction).cast(self.dtype)

    def mse_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The squared difference."""
        return self._loss("mse_loss", target, reduction, lambda x, y: (x - y).square())

    def l1_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The absolute difference."""
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
        """`huber_loss` divided by beta, so that its slope is 1 beyond beta. A beta of 0 gives `l1_loss`."""
        if beta < 0:
            raise ShapeError("smooth_l1_loss", f"beta={beta}", "give a number of at least 0")
        if beta == 0:
            return self.l1_loss(target, reduction)

        def function(x: Self, y: Self) -> Self:
            size = (x - y).abs()
            return (size < beta).where(size.square() * (0.5 / beta), size - beta / 2)

        return self._loss("smooth_l1_loss", target, reduction, function)

    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target * (log(target) - x) for log-probabilities x; with `log_target` the target is a log-probability too.
        "batchmean" divides the sum by the size of the first axis."""

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
        """The negative log-likelihood of a Poisson distribution; `full` adds Stirling's approximation of
        log(target!)."""

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
        """The negative log-likelihood of a normal distribution with mean x and variance `var`, which is at least
        eps."""

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
        near, far = (
            (self._wide() - other._wide() + 1e-6)._norm(p, (self.ndim - 1,)).squeeze(-1)
            for other in (positive, negative)
        )
        return (near - far + margin).relu()._reduced(reduction).cast(self.dtype)
