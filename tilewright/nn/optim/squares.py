"""Optimisers that divide a gradient by the root of its accumulated squares. In: parameters. Out: RMSprop,
Adadelta and Adagrad with the results of torch's: the squares are a moving average, or a sum."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.nn.optim.optimizer import Optimizer, Update
from tilewright.tensor.tensor import Tensor


class RMSprop(Optimizer):
    """The gradient over the root of a moving average of its square; `centered` subtracts the square of its average."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(params, lr)
        self._check_number("alpha", alpha, below=1)
        for name, value in (("eps", eps), ("weight_decay", weight_decay), ("momentum", momentum)):
            self._check_number(name, value)
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.square_avg = self._zeros()
        self.grad_avg = self._zeros() if centered else []
        self.momentum_buffer = self._zeros() if momentum else []
        self._start(*self.square_avg, *self.grad_avg, *self.momentum_buffer)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        grad = grad + value * self.weight_decay if self.weight_decay else grad
        square = self.square_avg[index] * self.alpha + grad.square() * (1 - self.alpha)
        updates: list[Update] = [(self.square_avg[index], square)]
        if self.grad_avg:
            average = self.grad_avg[index] + (grad - self.grad_avg[index]) * (1 - self.alpha)
            updates.append((self.grad_avg[index], average))
            square = square - average.square()
        update = grad / (square.sqrt() + self.eps)
        if self.momentum:
            update = self.momentum_buffer[index] * self.momentum + update
            updates.append((self.momentum_buffer[index], update))
        return value - update * rate, updates


class Adadelta(Optimizer):
    """The gradient times the root of a moving average of squared steps, over that of squared gradients: steps have the
    unit of the parameter, and the rate is mostly 1."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-06,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr)
        self._check_number("rho", rho, below=1)
        self._check_number("eps", eps)
        self._check_number("weight_decay", weight_decay)
        self.rho = rho
        self.eps = eps
        self.weight_decay = weight_decay
        self.square_avg = self._zeros()
        self.acc_delta = self._zeros()
        self._start(*self.square_avg, *self.acc_delta)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        grad = grad + value * self.weight_decay if self.weight_decay else grad
        squares, steps = self.square_avg[index], self.acc_delta[index]
        square = squares * self.rho + grad.square() * (1 - self.rho)
        delta = (steps + self.eps).sqrt() / (square + self.eps).sqrt() * grad
        updates = [(squares, square), (steps, steps * self.rho + delta.square() * (1 - self.rho))]
        return value - delta * rate, updates


class Adagrad(Optimizer):
    """The gradient over the root of the sum of all its squares. The rate is divided by 1 + `lr_decay` times the steps
    before."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, lr)
        numbers = {"lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        for name, value in {**numbers, "initial_accumulator_value": initial_accumulator_value}.items():
            self._check_number(name, value)
        self.lr_decay = lr_decay
        self.weight_decay = weight_decay
        self.eps = eps
        # The divisor of the next step, which is incremented before it is read.
        self.divisor = self._number(1.0 - lr_decay)
        self.sum = [zeros.assign(initial_accumulator_value) for zeros in self._zeros()]
        self._start(self.divisor, *self.sum)

    def _shared_updates(self) -> list[Update]:
        return [(self.divisor, self.divisor + self.lr_decay)]

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        grad = grad + value * self.weight_decay if self.weight_decay else grad
        total = self.sum[index] + grad.square()
        rate = rate / self.divisor.to(value.device).cast(value.dtype)
        return value - grad / (total.sqrt() + self.eps) * rate, [(self.sum[index], total)]
