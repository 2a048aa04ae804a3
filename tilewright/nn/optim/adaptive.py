"""Optimisers with two moments. In: parameters. Out: Adam and AdamW with the results of torch's, and LAMB. 1 - b^t, the
correction of moments that started at 0, is itself state: c' = c*b + (1 - b). That is accurate to rounding from the
first step on; 1 - 0.999 in float32 is not."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.nn.optim.optimizer import Optimizer, Update, norm_of
from tilewright.tensor.tensor import Tensor


class LAMB(Optimizer):
    """Adam with a learning rate per parameter: the norm of the parameter over that of its update. `adam=True` leaves
    that factor out, which gives AdamW. `betas=(b1, b2)` is torch's spelling."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-06,
        weight_decay: float = 0.0,
        adam: bool = False,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr)
        b1, b2 = (b1, b2) if betas is None else betas
        self._check_number("b1", b1, below=1)
        self._check_number("b2", b2, below=1)
        self._check_number("eps", eps)
        self._check_number("weight_decay", weight_decay)
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.weight_decay = weight_decay
        self.adam = adam
        self.correction1 = self._number(0.0)
        self.correction2 = self._number(0.0)
        self.exp_avg = self._zeros()
        self.exp_avg_sq = self._zeros()
        self._start(self.correction1, self.correction2, *self.exp_avg, *self.exp_avg_sq)

    def _shared_updates(self) -> list[Update]:
        return [
            (self.correction1, self.correction1 * self.b1 + (1 - self.b1)),
            (self.correction2, self.correction2 * self.b2 + (1 - self.b2)),
        ]

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        average, average_square = self.exp_avg[index], self.exp_avg_sq[index]
        first = average + (grad - average) * (1 - self.b1)
        second = average_square * self.b2 + grad.square() * (1 - self.b2)
        correction1 = self.correction1.to(value.device).cast(value.dtype)
        correction2 = self.correction2.to(value.device).cast(value.dtype)
        direction = first / correction1 / ((second / correction2).sqrt() + self.eps)
        if self.weight_decay:
            direction = direction + value * self.weight_decay
        if not self.adam:
            direction = direction * self._trust(value, direction)
        return value - direction * rate, [(average, first), (average_square, second)]

    @staticmethod
    def _trust(value: Tensor, direction: Tensor) -> Tensor:
        own, step = norm_of([value]), norm_of([direction])
        return ((own > 0) & (step > 0)).where(own / step, 1.0)


class Adam(LAMB):
    """Moving averages of the gradient and of its square, with bias correction. `weight_decay` is added to the gradient,
    as in torch; in AdamW it is decoupled."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, 0.0, adam=True, betas=betas)
        self._check_number("weight_decay", weight_decay)
        self.gradient_decay = weight_decay

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        grad = grad + value * self.gradient_decay if self.gradient_decay else grad
        return super()._new_value(index, value, grad, rate)


class AdamW(LAMB):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam=True, betas=betas)
