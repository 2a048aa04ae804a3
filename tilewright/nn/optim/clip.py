"""Gradients kept small. In: parameters with gradients, after `backward()`. Out: their gradients replaced, lazily: what
is computed is part of the optimiser's step."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.errors import ShapeError
from tilewright.nn.optim.optimizer import norm_of
from tilewright.tensor.tensor import Tensor


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [tensor for tensor in found if tensor.grad is not None]


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scales all gradients down together so that their norm, taken as one vector, is at most `max_norm`. The norm
    that they had."""
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
    """Brings every element of every gradient into -clip_value..clip_value."""
    if clip_value < 0:
        raise ShapeError("clip_grad_value_", f"clip_value={clip_value}", "give a number of at least 0")
    for tensor in _with_gradients(parameters):
        assert tensor.grad is not None
        tensor.grad = tensor.grad.detach().clamp(-clip_value, clip_value)
