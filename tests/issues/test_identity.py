"""Tensors have identity: equal expressions are one node of the graph, and a gradient with respect to one of two tensors
counted the uses of both. And a detached parameter that was read became the parameter's own memory: gradients went
through it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn

TWO = ("CPU:0", "CPU:1")
Make = Callable[[Tensor], Tensor]

EXPRESSIONS: dict[str, Make] = {
    "product": lambda x: x * 2,
    "function": lambda x: x.exp(),
    "sum": lambda x: x.sum(keepdim=True) + 0,
    "constants, stored": lambda x: Tensor.zeros(2).contiguous(),
    "constants, computed": lambda x: Tensor.eye(2)[0],
    "copy": lambda x: x.clone(),
    "moved": lambda x: x.to("CPU:1"),
    "divided": lambda x: x.shard(TWO, 0),
    "copied to two": lambda x: x.shard(TWO),
    "detached": lambda x: x.detach(),
    "detached result": lambda x: (x * 2).detach(),
    "power": lambda x: x**-0.5,
    "relu": lambda x: x.relu(),
    "selected": lambda x: (x > 0).where(x, 1),
    "gathered": lambda x: x[Tensor([1, 0])],
    "reshaped": lambda x: (x * 2).reshape(1, 2),
    "a slice": lambda x: (x * 2)[1:],
    "softmax": lambda x: x.softmax(),
    "view of memory": lambda x: x.reshape(2, 1),
}


def used(u: Tensor, v: Tensor) -> Tensor:
    return (u * 3).sum() + (v * 5).sum()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_equal_expressions_have_gradients_of_their_own(name: str) -> None:
    make = EXPRESSIONS[name]
    x = Tensor([1.0, 2.0]).realize()
    u, v = make(x), make(x)
    found = used(u, v).gradient(u, v)
    assert [set(part.flatten().tolist()) for part in found] == [{3.0}, {5.0}]
    assert u.tolist() == v.tolist()


@pytest.mark.parametrize("name", ["product", "function", "constants, stored", "copy", "softmax", "detached result"])
@pytest.mark.parametrize("how", ["apart", "together", "first", "second"])
def test_so_they_have_when_they_were_computed(name: str, how: str) -> None:
    make = EXPRESSIONS[name]
    x = Tensor([1.0, 2.0]).realize()
    u, v = make(x), make(x)
    if how == "together":
        u.realize(v)
    for tensor in {"apart": (u, v), "first": (u,), "second": (v,)}.get(how, ()):
        tensor.realize()
    found = used(u, v).gradient(u, v)
    assert [set(part.flatten().tolist()) for part in found] == [{3.0}, {5.0}]
    v += 1
    assert (v - u).tolist() == pytest.approx([1.0, 1.0])


def test_a_target_does_not_count_what_operations_compute_inside() -> None:
    x = Tensor([1.0, 2.0, 6.0])
    mean = x.mean()
    assert (x.var() + mean * 3).gradient(mean)[0].item() == 3.0
    later = x.mean()
    assert (x.var() + later * 3).gradient(later)[0].item() == 3.0


def test_what_both_are_made_of_gets_the_gradients_of_both() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    u, v = weight * 2, weight * 2
    loss = used(u, v)
    assert loss.gradient(weight)[0].tolist() == [16.0, 16.0]
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [16.0, 16.0]


def test_an_operation_that_changes_nothing_is_no_copy() -> None:
    x = Tensor([1.0, 2.0]) * 1
    for same in (x.reshape(2), x.reshape(1, 2).reshape(2), x.unsqueeze(0).T.T.squeeze(0), x.flip(0).flip(0)):
        assert used(x, same).gradient(x)[0].tolist() == [8.0, 8.0]


DETACHED: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda w: w.detach(),
    "detach, reshaped": lambda w: w.reshape(1, 2).detach().reshape(2),
    "detach, copied": lambda w: w.detach().clone(),
    "Tensor(w)": lambda w: Tensor(w),
    "no_grad, stored": Tensor.no_grad()(lambda w: w.contiguous()),
    "no_grad, view": Tensor.no_grad()(lambda w: w.reshape(2)),
    "no_grad, copied": Tensor.no_grad()(lambda w: w.clone()),
}


@pytest.mark.parametrize("read", ["numpy", "tolist", "realize", "with the parameter", "not at all"])
@pytest.mark.parametrize("is_pending", [True, False], ids=["new", "realised"])
@pytest.mark.parametrize("name", DETACHED)
def test_gradients_stop_at_a_detached_parameter_that_was_read(name: str, is_pending: bool, read: str) -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    if is_pending:
        weight.assign(Tensor([3.0, 4.0]) * 2)
    else:
        weight.realize()
    fixed = DETACHED[name](weight)
    if read == "with the parameter":
        fixed.realize(weight)
    elif read != "not at all":
        getattr(fixed, read)()
    loss = (fixed * 3).sum() + weight.sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]
    assert fixed.tolist() == weight.tolist()


def test_a_target_network_that_is_read_stays_fixed() -> None:
    """As in reinforcement learning: the loss pulls towards values that must not move."""
    Tensor.manual_seed(3)
    network = nn.Linear(2, 1)
    fixed = network.weight.detach()
    before = fixed.numpy()
    optimizer = nn.optim.SGD([network.weight], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (network.weight - fixed - 1).square().sum().backward()
        optimizer.step()
        assert fixed.numpy().tolist() == before.tolist()
    np.testing.assert_allclose(network.weight.numpy(), before + 1, rtol=1e-6)


def test_equal_expressions_are_still_computed_once() -> None:
    """Identity is for gradients: a schedule does not know it."""
    x = Tensor([1.0, 2.0]).realize()
    once: Any = (x * 2).exp().schedule()
    u, v = (x * 2).exp(), (x * 2).exp()
    assert len(u.schedule(v).items) == len(once.items)
    assert (u + v).schedule() == (u + u).schedule()
