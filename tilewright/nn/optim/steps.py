"""Optimisers whose step sizes change by themselves. In: parameters. Out: Rprop and ASGD with the results of torch's: a
step size for each element, which follows the signs of its gradients; or one for all, which decays."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.errors import ShapeError
from tilewright.nn.optim.optimizer import Optimizer, Update
from tilewright.tensor.tensor import Tensor


class Rprop(Optimizer):
    """Each element moves against the sign of its gradient by a step of its own, first `lr`: times `etas[1]` where the
    sign is that of the step before, times `etas[0]` and without a move where it has changed. For gradients of all data
    at once."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.01,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-06, 50.0),
    ) -> None:
        super().__init__(params, lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ShapeError("Rprop", f"etas={etas}", "give a factor below 1 and one above it")
        self.etas = etas
        self.limits = step_sizes
        self.prev = self._zeros()
        self.step_size = [zeros.assign(self.lr.to(zeros.device).cast(zeros.dtype)) for zeros in self._zeros()]
        self._start(*self.prev, *self.step_size)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        before, size = self.prev[index], self.step_size[index]
        agreement = grad * before
        factor = (agreement > 0).where(self.etas[1], (agreement < 0).where(self.etas[0], 1.0)).cast(value.dtype)
        grown = (size * factor).clamp(*self.limits)
        moved = (agreement < 0).where(0.0, grad).cast(value.dtype)
        return value - moved.sign() * grown, [(before, moved), (size, grown)]


class ASGD(Optimizer):
    """Gradient descent with a rate that decays by `lambd` and `alpha`. `ax` are averages of each parameter over the
    steps after `t0`, and copies before it."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.01,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr)
        for name, number in (("lambd", lambd), ("alpha", alpha), ("t0", t0), ("weight_decay", weight_decay)):
            self._check_number(name, number)
        self.lambd = lambd
        self.alpha = alpha
        self.t0 = t0
        self.weight_decay = weight_decay
        self.steps = self._number(0.0)
        self.ax = self._zeros()
        self._start(self.steps, *self.ax)

    def _shared_updates(self) -> list[Update]:
        return [(self.steps, self.steps + 1)]

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        grad = grad + value * self.weight_decay if self.weight_decay else grad
        before = self.steps.to(value.device).cast(value.dtype) - 1
        eta = rate / (rate * before * self.lambd + 1).pow(self.alpha)
        moved = value * (1 - eta * self.lambd) - grad * eta
        average = self.ax[index]
        share = 1 / (before - self.t0).maximum(1.0)
        return moved, [(average, share.eq(1).where(moved, average + (moved - average) * share))]
