"""Checkpoints: the same gradients from less memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.tensor.test_gradient import A, B, check_slopes, numbers
from tilewright import Tensor
from tilewright.tensor.core.gradient import checkpoint


def blocks(keep: Callable[..., Tensor], depth: int = 6, width: int = 16) -> tuple[Tensor, list[Tensor]]:
    """A network of residual blocks, each called through `keep`."""
    weights = [Tensor(numbers(width, width, seed=k) / 4, dtype="float32", requires_grad=True) for k in range(depth)]
    x = Tensor(numbers(64, width, seed=77), dtype="float32", requires_grad=True)
    hidden = x
    for weight in weights:
        hidden = keep(lambda h, w=weight: h + ((h @ w).exp() + 1).log().sin() @ w, hidden)
    loss = (hidden * hidden).mean()
    loss.backward()
    return loss, [x, *weights]


def test_checkpoint_gives_equal_gradients_from_less_memory() -> None:
    plain_loss, plain = blocks(lambda function, x: function(x))
    saving_loss, saving = blocks(checkpoint)
    plans = [
        loss.schedule(*(source.grad for source in sources))
        for loss, sources in ((plain_loss, plain), (saving_loss, saving))
    ]
    stored = [sum(size for _, size in plan.arenas) for plan in plans]
    assert stored[1] < stored[0] / 2, stored
    assert len(plans[1].items) > len(plans[0].items)
    for first, second in zip(plain, saving):
        np.testing.assert_allclose(second.grad.numpy(), first.grad.numpy(), rtol=1e-5, atol=1e-7)
    assert saving_loss.item() == plain_loss.item()


def test_checkpoint_inside_a_checkpoint() -> None:
    def inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() * y, x * y

    def outer(x: Tensor, y: Tensor) -> Tensor:
        first, second = checkpoint(inner, x * 2, y)
        third, _ = checkpoint(inner, first + x, second)
        return third * y.exp()

    check_slopes(lambda x, y: checkpoint(outer, x * y, y) * x, A, B)
    check_slopes(lambda x, y: checkpoint(lambda h: h.exp() * y + x, x * y), A, B)  # what it closes over counts
    check_slopes(lambda x, y: checkpoint(lambda h: y * 3, x) * x, A, B)  # the input is not used


def test_checkpoint_is_the_same_graph_at_every_step() -> None:
    """Schedules are found again by the graph, so its marks may not count up."""
    x = Tensor(A, requires_grad=True)
    found = [checkpoint(lambda h: h.exp() * h, x).sum().gradient(x)[0].uop for _ in range(2)]
    assert found[0] is found[1]


def test_checkpoint_and_intermediate_targets() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    inside = []

    def function(h: Tensor) -> Tensor:
        inside.append(h * h)
        return inside[0] * h

    to_inside, to_x = checkpoint(function, x).sum().gradient(inside[0], x)
    assert to_inside.tolist() == [1.0, 2.0]
    assert to_x.tolist() == [3.0, 12.0]
    (second,) = to_x.sum().gradient(x)
    assert second.tolist() == [6.0, 12.0]
