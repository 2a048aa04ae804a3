"""Gradients between `backward()` and the optimiser's step: scaled for mixed precision, and clipped. In: a loss computed
in float16, or parameters with gradients. Out: gradients that do not underflow, and a step that is skipped where one
overflowed; gradients of a bounded norm. Everything is computed on the device and nothing is read by the host, so a step
with a scaler can be jitted.

    loss = model(x.half()).float().sparse_categorical_crossentropy(y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.nn.optim.optimizer import Optimizer, norm_of
from tilewright.tensor.tensor import Tensor


class GradScaler:
    """Scales losses. The scale is multiplied by `backoff_factor` when a gradient is not finite, and by `growth_factor`
    after `growth_interval` finite steps in a row."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        device: str | None = None,
    ) -> None:
        if growth_factor <= 1 or not 0 < backoff_factor < 1 or init_scale <= 0 or growth_interval < 1:
            message = f"init_scale={init_scale}, growth_factor={growth_factor}, backoff_factor={backoff_factor}"
            raise ShapeError("GradScaler", message, "growth above 1, backoff between 0 and 1, a positive scale")
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.enabled = enabled
        self.factor = Tensor.empty((), dtype=dtypes.float32, device=device).assign(float(init_scale))
        self.good_steps = Tensor.empty((), dtype=dtypes.int32, device=device).assign(0)
        self.factor.realize(self.good_steps)
        self._overflows: dict[int, Tensor] = {}  # by optimiser, from `unscale_` to `update`

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return loss * self.factor.to(loss.device) if self.enabled else loss

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients by the scale, for example before clipping; otherwise `step` does it."""
        if not self.enabled or id(optimizer) in self._overflows:
            return
        is_finite: Tensor | None = None
        with Tensor.no_grad():
            share = 1 / self.factor
            for tensor in optimizer.params:
                if tensor.grad is None:
                    continue
                grad = tensor.grad.detach().float() * share.to(tensor.device)
                tensor.grad = grad.cast(tensor.dtype)
                good = grad.isfinite().all().to(self.factor.device)
                is_finite = good if is_finite is None else is_finite & good
        if is_finite is None:
            raise ShapeError("GradScaler", "no parameter has a gradient", "call scale(loss).backward() before")
        self._overflows[id(optimizer)] = is_finite.logical_not().contiguous()

    def step(self, optimizer: Optimizer) -> None:
        """The optimiser's step; it changes nothing where a gradient is not finite."""
        if not self.enabled:
            optimizer.step()
            return
        self.unscale_(optimizer)
        optimizer.step(skip=self._overflows[id(optimizer)])

    def update(self) -> None:
        """Updates the scale for the next step."""
        if not self.enabled:
            return
        if not self._overflows:
            raise ShapeError("GradScaler.update", "no step was made", "call step(optimizer) before")
        first, *others = self._overflows.values()
        overflow = first
        for other in others:
            overflow = overflow | other
        self._overflows.clear()
        good_steps = self.good_steps + 1
        is_due = good_steps >= self.growth_interval
        grown = is_due.where(self.factor * self.growth_factor, self.factor)
        new_factor = overflow.where(self.factor * self.backoff_factor, grown)
        new_steps = (overflow | is_due).where(0, good_steps)
        # An infinite scale would make every later step overflow.
        self.factor.assign(new_factor.isfinite().where(new_factor, self.factor))
        self.good_steps.assign(new_steps.cast(self.good_steps.dtype))
        self.factor.realize(self.good_steps)

    def get_scale(self) -> float:
        """The scale as a number; it is read from the device."""
        return float(self.factor.item()) if self.enabled else 1.0


# ---------------------------------------------------------------- clipping


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [tensor for tensor in found if tensor.grad is not None]


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scales all gradients by one factor so that their norm, taken as one vector, is at most `max_norm`. Returns the
    norm before."""
    if max_norm < 0 or norm_type <= 0:
        raise ShapeError("clip_grad_norm_", f"max_norm={max_norm}, norm_type={norm_type}", "give positive numbers")
    tensors = _with_gradients(parameters)
    grads = [tensor.grad.detach().float() for tensor in tensors if tensor.grad is not None]
    if not grads:
        return Tensor(0.0)
    if norm_type == 2.0:
        norm = norm_of(grads)
    elif norm_type == float("inf"):
        norm = grads[0].abs().max()
        for grad in grads[1:]:
            norm = norm.maximum(grad.abs().max().to(norm.device))
    else:
        powers = [grad.abs().pow(norm_type).sum() for grad in grads]
        norm = sum(powers[1:], powers[0]).pow(1 / norm_type)
    norm = norm.contiguous()
    share = (max_norm / (norm + 1e-6)).minimum(1.0)
    for tensor, grad in zip(tensors, grads):
        tensor.grad = (grad * share.to(tensor.device)).cast(tensor.dtype)
    return norm


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamps every element of every gradient to -clip_value..clip_value."""
    if clip_value < 0:
        raise ShapeError("clip_grad_value_", f"clip_value={clip_value}", "give a number of at least 0")
    for tensor in _with_gradients(parameters):
        assert tensor.grad is not None
        tensor.grad = tensor.grad.detach().clamp(-clip_value, clip_value)
