"""Optimisers with two moments. In: parameters. Out: Adam, AdamW, Adamax, NAdam and RAdam with the results of torch's;
LAMB. 1 - b^t, the correction of moments that started at 0, is itself state: c' = c*b + (1 - b). That is accurate to
rounding from the first step on; 1 - 0.999 in float32 is not."""

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
        second = self._second(average_square, grad)
        direction = self._direction(grad, first, second)
        if self.weight_decay:
            direction = direction + value * self.weight_decay
        if not self.adam:
            direction = direction * self._trust(value, direction)
        return value - direction * rate, [(average, first), (average_square, second)]

    def _second(self, average_square: Tensor, grad: Tensor) -> Tensor:
        """The next second moment."""
        return average_square * self.b2 + grad.square() * (1 - self.b2)

    def _direction(self, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """What the learning rate multiplies, from the gradient and its moments."""
        correction1, correction2 = self._shared(grad, self.correction1, self.correction2)
        return first / correction1 / ((second / correction2).sqrt() + self.eps)

    @staticmethod
    def _shared(like: Tensor, *numbers: Tensor) -> list[Tensor]:
        """Numbers that all parameters share, where and as this tensor is."""
        return [number.to(like.device).cast(like.dtype) for number in numbers]

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


class Adamax(Adam):
    """Adam with the largest recent gradient, which decays by `b2` at each step, in place of the root of the average of
    squares."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, eps=eps, weight_decay=weight_decay, betas=betas)

    def _second(self, largest: Tensor, grad: Tensor) -> Tensor:
        return (largest * self.b2).maximum(grad.abs() + self.eps)

    def _direction(self, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        (correction1,) = self._shared(grad, self.correction1)
        return first / correction1 / second


class NAdam(Adam):
    """Adam with Nesterov momentum: a step looks ahead along the average of the gradient. `momentum_decay` is the rate
    at which the momentum grows to b1. `weight_decay` is that of Adam, or of AdamW with `decoupled_weight_decay`."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        momentum_decay: float = 0.004,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params, lr, eps=eps, weight_decay=weight_decay, betas=betas)
        self._check_number("momentum_decay", momentum_decay)
        if decoupled_weight_decay:
            self.weight_decay, self.gradient_decay = weight_decay, 0.0
        self.growth = 0.96**momentum_decay
        self.distance = self._number(1.0)  # 0.96 ** (steps * momentum_decay)
        self.mu_product = self._number(1.0)
        self.distance.realize(self.mu_product)

    def _momentum(self, distance: Tensor) -> Tensor:
        return self.b1 * (1 - 0.5 * distance)

    def _shared_updates(self) -> list[Update]:
        distance = self.distance * self.growth
        product = self.mu_product * self._momentum(distance)
        return [*super()._shared_updates(), (self.distance, distance), (self.mu_product, product)]

    def _direction(self, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        numbers = (self.correction2, self.mu_product, self.distance)
        correction2, product, distance = self._shared(grad, *numbers)
        ahead = self._momentum(distance * self.growth)
        mixed = grad * ((1 - self._momentum(distance)) / (1 - product)) + first * (ahead / (1 - product * ahead))
        return mixed / ((second / correction2).sqrt() + self.eps)


class RAdam(Adam):
    """Adam whose adaptive rate is rectified: in the first steps, where the variance of the average of squares is not
    bounded, a step follows the average of the gradient. `weight_decay` is that of Adam, or of AdamW with
    `decoupled_weight_decay`."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params, lr, eps=eps, weight_decay=weight_decay, betas=betas)
        if decoupled_weight_decay:
            self.weight_decay, self.gradient_decay = weight_decay, 0.0
        self.steps = self._number(0.0).realize()

    def _shared_updates(self) -> list[Update]:
        return [*super()._shared_updates(), (self.steps, self.steps + 1)]

    def _direction(self, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        correction1, correction2, steps = self._shared(grad, self.correction1, self.correction2, self.steps)
        most = 2 / (1 - self.b2) - 1
        length = most - 2 * steps * (1 - correction2) / correction2  # of the average of squares, in gradients
        is_bounded = length > 5
        safe = is_bounded.where(length, 6.0)
        rectified = ((safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe)).sqrt()
        factor = is_bounded.where(rectified * correction2.sqrt() / (second.sqrt() + self.eps), 1.0)
        return first / correction1 * factor
