"""Optimisers with one momentum. In: parameters. Out: SGD and Muon with the results of torch's, and LARS. The momentum
buffer starts at 0, so that the first step uses the gradient itself, as in torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.nn.optim.optimizer import Optimizer, Update, norm_of
from tilewright.tensor.tensor import Tensor

NEWTON_SCHULZ_STEPS = 5
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.775, 2.0315)


class LARS(Optimizer):
    """Momentum with a learning rate per parameter: `tcoef` times the norm of the parameter over that of its gradient.
    `classic` multiplies by the learning rate before the momentum, not after; `pre_wd` adds the weight decay to the
    gradient instead of scaling the parameter; `ns_steps` orthogonalises the update, as Muon does."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        ns_steps: int = 0,
        ns_coefficients: Sequence[float] | None = None,
        nesterov: bool = False,
        classic: bool = True,
        pre_wd: bool = True,
        tcoef: float = 0.001,
    ) -> None:
        super().__init__(params, lr)
        for name, value in (("momentum", momentum), ("weight_decay", weight_decay), ("tcoef", tcoef)):
            self._check_number(name, value)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.classic = classic
        self.pre_wd = pre_wd
        self.tcoef = tcoef
        self.ns_steps = ns_steps
        self.ns_coefficients = tuple(ns_coefficients or NEWTON_SCHULZ_COEFFICIENTS)
        self.momentum_buffer = self._zeros() if momentum else []
        self._start(*self.momentum_buffer)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        trust = self._trust(value, grad) if self.tcoef else 1.0
        if self.pre_wd and self.weight_decay:
            grad = grad + value * self.weight_decay
        if self.classic:
            grad = grad * (rate * trust)
        updates: list[Update] = []
        if self.momentum:
            buffer = self.momentum_buffer[index]
            velocity = buffer * self.momentum + grad
            updates.append((buffer, velocity))
            grad = grad + velocity * self.momentum if self.nesterov else velocity
        if self.ns_steps:
            grad = orthogonal(grad, self.ns_steps, self.ns_coefficients)
        if not self.classic:
            grad = grad * (rate * trust)
        if not self.pre_wd and self.weight_decay:
            value = value * (1 - rate * self.weight_decay)
        return value - grad, updates

    def _trust(self, value: Tensor, grad: Tensor) -> Tensor:
        own, slope = norm_of([value]), norm_of([grad])
        ratio = own * self.tcoef / (slope + own * self.weight_decay)
        return ((own > 0) & (slope > 0)).where(ratio, 1.0)


class SGD(LARS):
    """Stochastic gradient descent, optionally with momentum."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and not momentum:
            raise ShapeError("SGD", "nesterov without momentum", "give a momentum above 0")
        super().__init__(params, lr, momentum, weight_decay, nesterov=nesterov, classic=False, pre_wd=True, tcoef=0.0)


class Muon(Optimizer):
    """Momentum with an orthogonalised update; for weights of hidden layers. Axes after the first are merged into one.
    Give biases, norms and embeddings to AdamW, and join both in an OptimizerGroup."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        ns_steps: int = NEWTON_SCHULZ_STEPS,
        ns_coefficients: Sequence[float] = NEWTON_SCHULZ_COEFFICIENTS,
        nesterov: bool = True,
    ) -> None:
        super().__init__(params, lr)
        self._check_number("momentum", momentum)
        self._check_number("ns_steps", ns_steps)
        if len(ns_coefficients) != 3:
            raise ShapeError("Muon", f"ns_coefficients={ns_coefficients}", "give three numbers")
        self._check_number("weight_decay", weight_decay)
        for tensor in self.params:
            if tensor.ndim < 2:
                message = f"a parameter of shape {tensor.shape} is not a matrix"
                raise ShapeError("Muon", message, "give it to AdamW, and both to an OptimizerGroup")
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.ns_steps = ns_steps
        self.ns_coefficients = tuple(ns_coefficients)
        self.nesterov = nesterov
        self.momentum_buffer = self._zeros()
        self._start(*self.momentum_buffer)

    def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> tuple[Tensor, list[Update]]:
        buffer = self.momentum_buffer[index]
        velocity = buffer + (grad - buffer) * (1 - self.momentum)
        ahead = grad + (velocity - grad) * self.momentum if self.nesterov else velocity
        update = orthogonal(ahead, self.ns_steps, self.ns_coefficients)
        rows, columns = value.shape[0], math.prod(value.shape[1:])
        reach = rate * math.sqrt(max(1.0, rows / columns))
        return value * (1 - rate * self.weight_decay) - update * reach, [(buffer, velocity)]


def orthogonal(tensor: Tensor, steps: int, coefficients: Sequence[float]) -> Tensor:
    """An approximation of the nearest matrix with orthogonal rows: a few steps of the Newton-Schulz iteration bring
    singular values close to 1. In bfloat16, which is accurate enough and used by torch."""
    a, b, c = coefficients
    matrix = tensor.reshape(tensor.shape[0], -1).cast(dtypes.bfloat16)
    is_tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.transpose() if is_tall else matrix
    norm = norm_of([matrix.float()]).cast(dtypes.bfloat16).maximum(1e-7)
    matrix = (matrix / norm).contiguous()
    for _ in range(steps):
        gram = (matrix @ matrix.transpose()).contiguous()
        mixed = (gram.float() * b + gram.dot(gram, dtype=dtypes.float32) * c).cast(dtypes.bfloat16).contiguous()
        matrix = (matrix.float() * a + mixed.dot(matrix, dtype=dtypes.float32)).cast(dtypes.bfloat16).contiguous()
    matrix = matrix.transpose() if is_tall else matrix
    return matrix.cast(tensor.dtype).reshape(tensor.shape)
