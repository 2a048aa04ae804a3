"""What `backward` and `gradient` promise: parameters, history, what depends on what, higher orders."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from tests.tensor.conftest import run_on
from tests.tensor.test_gradient import numbers
from tilewright import Tensor, jit
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.graph import build
from tilewright.graph.walk import toposort

# ---------------------------------------------------------------- parameters


def test_equal_parameters_keep_separate_gradients() -> None:
    makers = (
        lambda: Tensor.zeros(3, requires_grad=True),
        lambda: Tensor.zeros(3).requires_grad_(),
        lambda: Tensor(2.5, requires_grad=True),
        lambda: Tensor([1.0, 2.0], requires_grad=True),
        lambda: Tensor.arange(3.0, requires_grad=True),
        lambda: Tensor.full((2, 2), 7.0, requires_grad=True),
    )
    for make in makers:
        first, second = make(), make()
        (first * 2 + second * 3).sum().backward()
        assert set(np.ravel(first.grad.numpy())) == {2.0}
        assert set(np.ravel(second.grad.numpy())) == {3.0}


def test_a_parameter_made_of_another_is_its_own() -> None:
    first = Tensor([1.0, 2.0], requires_grad=True)
    for second in (first.detach().requires_grad_(), Tensor(first, requires_grad=True)):
        first.grad = None
        (first * 2 + second * 3).sum().backward()
        assert first.grad.tolist() == [2.0, 2.0]
        assert second.grad.tolist() == [3.0, 3.0]
        assert second.tolist() == [1.0, 2.0]


def test_parameters_of_any_shape() -> None:
    for shape in ((), (1,), (2, 3), (1, 2, 1)):
        parameter = Tensor.ones(shape, requires_grad=True)
        (parameter.reshape(-1) * 4).sum().backward()
        assert parameter.grad.shape == shape
        assert set(np.ravel(parameter.grad.numpy())) == {4.0}
    empty = Tensor.zeros(0, 3, requires_grad=True)
    (empty.sum() * 2).backward()
    assert empty.grad.shape == (0, 3)


def test_gradients_add_up() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    held = x.grad
    loss.backward()
    assert x.grad.tolist() == [4.0, 8.0]
    assert held.tolist() == [4.0, 8.0]  # as torch, which adds in place
    x.grad = None
    loss.backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_backward_after_the_loss_was_read(is_lazy: bool) -> None:
    weight = Tensor.full((2, 2), 0.5) if is_lazy else Tensor([[0.5, 0.5], [0.5, 0.5]])
    weight.requires_grad_()
    hidden = (Tensor([[1.0, 2.0]]) @ weight).relu()
    loss = (hidden * weight.reshape(4)[1:3]).sum()
    assert loss.item() == 1.5
    loss.backward()
    assert weight.grad.tolist() == [[0.5, 2.0], [2.5, 1.0]]
    assert weight.realize().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    loss.backward()
    assert weight.grad.tolist() == [[1.0, 4.0], [5.0, 2.0]]


def test_backward_after_the_loss_was_read_sees_the_same_random_numbers() -> None:
    x = Tensor.ones(64, requires_grad=True)
    with Tensor.train():
        for _ in range(3):
            x.grad = None
            noisy = x.dropout(0.5) * Tensor.randn(64)
            loss = noisy.sum()
            loss.item()
            loss.backward()
            np.testing.assert_allclose(x.grad.numpy(), noisy.numpy(), rtol=1e-6)


def test_a_parameter_that_was_updated_still_gets_the_gradient_of_its_old_value() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum()
    with Tensor.no_grad():
        x.assign(x - 0.5)
    loss.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [1.0, 3.0]


def test_an_update_with_gradients_is_refused() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(UnsupportedError, match="no_grad"):
        x -= x * 0.1
    assert x.tolist() == [1.0, 2.0]


def test_training_converges_in_place() -> None:
    x = Tensor([3.0, -2.0], requires_grad=True)
    for _ in range(40):
        x.grad = None
        ((x - 1) ** 2).sum().backward()
        with Tensor.no_grad():
            x -= x.grad * 0.3
        x.realize()
    np.testing.assert_allclose(x.numpy(), [1.0, 1.0], atol=1e-5)
    assert x.requires_grad


def test_a_jitted_step() -> None:
    weight = Tensor([[0.5], [-0.5]], requires_grad=True)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        weight.grad = None
        loss = ((x @ weight - y) ** 2).mean()
        loss.backward()
        with Tensor.no_grad():
            weight.assign(weight - weight.grad * 0.1)
        return loss.realize(weight)

    expected = np.array([[0.5], [-0.5]])
    for number in range(5):
        x, y = numbers(4, 2, seed=number), numbers(4, 1, seed=number + 50)
        loss = step(Tensor(x, dtype="float32"), Tensor(y, dtype="float32"))
        error = x @ expected - y
        np.testing.assert_allclose(loss.item(), (error**2).mean(), rtol=1e-4)
        expected = expected - 0.1 * 2 * x.T @ error / 4
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4)


# ---------------------------------------------------------------- what depends on what


def test_no_grad_and_detach_cut() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with Tensor.no_grad():
        held = x * 2
        same = x.reshape(2)
        stored = Tensor.zeros(2).assign(x)
    assert not held.requires_grad
    (held * x + same * x + stored * x + x.detach() * x).sum().backward()
    assert x.grad.tolist() == [5.0, 10.0]


def test_requires_grad_spreads_and_is_refused_for_integers() -> None:
    x = Tensor([1.0], requires_grad=True)
    assert (x + 1).requires_grad
    assert not (x < 1).requires_grad
    assert not Tensor([1.0]).requires_grad
    target = Tensor.zeros(3)
    target[1:2] = x
    assert target.requires_grad
    with pytest.raises(DTypeError, match="int32"):
        Tensor([1], dtype="int32").requires_grad_()


def test_requires_grad_is_set_like_an_attribute() -> None:
    x, y = Tensor.ones(2), Tensor.ones(2)
    x.requires_grad = y.requires_grad = True
    (x * 2 + y * 3).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])
    x.grad = None
    x.requires_grad = False
    (x * 2 + y * 3).sum().backward()
    assert x.grad is None


def test_requires_grad_of_a_result_changes_nothing() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * 3).requires_grad_()
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert y.grad is None


def test_history_survives_realize_of_an_assigned_tensor() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    base = Tensor.zeros(2, 2)
    base[1] = x * 3
    base.realize()
    (base * base).sum().backward()
    assert x.grad.tolist() == [18.0, 36.0]


def test_gradient_of_more_than_one_element_needs_weights() -> None:
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    with pytest.raises(ShapeError, match=r"\(1, 2\)"):
        (x * x).backward()
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        (x * x).backward(Tensor([1.0, 1.0]))
    (x * x).backward(Tensor([[1.0, 10.0]]))
    assert x.grad.tolist() == [[2.0, 40.0]]
    with pytest.raises(DTypeError, match="int"):
        x.argmax().backward()


def test_a_target_without_a_part_is_named() -> None:
    x, y = Tensor([1.0], requires_grad=True), Tensor([[2.0]], requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"target 1 \(float32\[1, 1\], made at .*test_backward"):
        (x * 2).sum().gradient(x, y)
    with pytest.raises(UnsupportedError, match=r"constant 3\.0"):
        (x * 3).sum().gradient(Tensor(3.0))
    with pytest.raises(UnsupportedError, match="requires_grad=True"):
        Tensor([1.0]).sum().backward()
    with pytest.raises(UnsupportedError, match="no part"):
        x.detach().sum().gradient(x)


def test_gradient_with_respect_to_intermediates() -> None:
    x = Tensor([1.0, 2.0])
    hidden = x * x
    to_hidden, to_x = (hidden * hidden).sum().gradient(hidden, x)
    assert to_hidden.tolist() == [2.0, 8.0]
    assert to_x.tolist() == [4.0, 32.0]
    assert x.grad is None


X = numbers(2, 3, 4)
H = X * 2  # what most of the views are views of

# A result and the view that is the target; the gradient, of the view's shape. Movements of a view go past it where two
# of a kind become one, and what is used beside the view does not count.
VIEWS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], np.ndarray]] = {
    "a slice": (lambda x, h: (((v := x[:, 1:]) ** 2).sum(), v), 2 * X[:, 1:]),
    "a slice of a slice": (
        lambda x, h: (((v := x[:, 1:])[:, 1:] ** 2).sum() + (v * 3).sum(), v),
        np.pad(2 * X[:, 2:], ((0, 0), (1, 0), (0, 0))) + 3,
    ),
    "a slice beside its base": (lambda x, h: ((v := x[:, 1:]).sum() + (x * x).sum(), v), np.ones((2, 2, 4))),
    "a reshape": (lambda x, h: (((v := h.reshape(6, 4)) ** 2).sum(), v), 2 * H.reshape(6, 4)),
    "a reshape of a reshape": (lambda x, h: (((v := h.reshape(6, 4)).reshape(24) ** 2).sum(), v), 2 * H.reshape(6, 4)),
    "a reshape and back": (
        lambda x, h: (((v := h.reshape(6, 4)).reshape(2, 3, 4) ** 2).sum() + (v * 3).sum(), v),
        2 * H.reshape(6, 4) + 3,
    ),
    "a reshape beside its base": (
        lambda x, h: ((v := h.reshape(6, 4)).sum() + (h * h).sum(), v),
        np.ones((6, 4)),
    ),
    "a reshape of memory": (
        lambda x, h: (((v := x.reshape(6, 4)).reshape(4, 6) ** 2).sum() + v.sum() + x.exp().sum(), v),
        2 * X.reshape(6, 4) + 1,
    ),
    "a permutation and back": (
        lambda x, h: (((v := h.permute(2, 0, 1)).permute(1, 2, 0) ** 2).sum() + v.sum(), v),
        2 * H.transpose(2, 0, 1) + 1,
    ),
    "a permutation of a permutation": (
        lambda x, h: (((v := h.permute(2, 0, 1)).permute(1, 0, 2) ** 2).sum() + v.sum(), v),
        2 * H.transpose(2, 0, 1) + 1,
    ),
    "a flip of a flip": (
        lambda x, h: (((v := h.flip(0)).flip(0, 1) ** 2).sum() + v.sum(), v),
        2 * H[::-1] + 1,
    ),
    "a reshape of a permutation, and both back": (
        lambda x, h: (((v := h.permute(2, 0, 1).reshape(4, 6)).reshape(4, 2, 3).permute(1, 2, 0) ** 2).sum(), v),
        2 * H.transpose(2, 0, 1).reshape(4, 6),
    ),
    "a repetition of a repetition": (
        lambda x, h: (((v := h[:1, :1].expand(1, 3, 4)).expand(2, 3, 4) * x).sum() + v.sum(), v),
        X.sum(0, keepdims=True) + 1,
    ),
    "padding of padding": (
        lambda x, h: (((v := h.pad((1, 0))).pad((0, 2)) ** 2).sum() + v.sum(), v),
        2 * np.pad(H, ((0, 0), (0, 0), (1, 0))) + 1,
    ),
    "inside of a product": (
        lambda x, h: ((v := h.reshape(6, 4)).matmul(v.transpose(0, 1)).sum(), v),
        np.broadcast_to(2 * H.reshape(6, 4).sum(0), (6, 4)),
    ),
    "inside of a broadcast": (
        lambda x, h: (((v := h.reshape(1, 24)) * Tensor(numbers(5, 1, 1))).sum(), v),
        np.full((1, 24), numbers(5, 1, 1).sum()),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_gradient_with_respect_to_views(name: str) -> None:
    make, expected = VIEWS[name]
    x = Tensor(X)
    result, view = make(x, x * 2)
    (found,) = result.gradient(view)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_a_repeated_number_is_no_target() -> None:
    number = (Tensor(2.0, requires_grad=True) * 3).exp()
    repeated = number.expand(3)
    with pytest.raises(UnsupportedError, match=r"repeats one number.*\n.*\n.*contiguous"):
        (repeated * Tensor([1.0, 2.0, 3.0])).sum().gradient(repeated)
    stored = number.expand(3).contiguous()
    (found,) = (stored * Tensor([1.0, 2.0, 3.0])).sum().gradient(stored)
    assert found.tolist() == [1.0, 2.0, 3.0]


def test_notes_of_views_keep_nothing_alive() -> None:
    """Each step turns a parameter twice, which leads past a node that dies with the step."""
    weight = Tensor.ones(2, 3, requires_grad=True)
    for _ in range(5):
        (weight.T.T * 2).sum().backward()
    gc.collect()
    assert len(build.goes_past(weight.uop)) == 0


def test_second_order() -> None:
    x = Tensor([1.0, 2.0, -3.0], requires_grad=True)
    (first,) = (x**3).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    (third,) = second.sum().gradient(x)
    assert first.tolist() == [3.0, 12.0, 27.0]
    assert second.tolist() == [6.0, 12.0, -18.0]
    assert third.tolist() == [6.0, 6.0, 6.0]
    (first * first).sum().backward()
    assert x.grad.tolist() == [36.0, 288.0, -972.0]


def test_grad_is_a_value_unless_asked() -> None:
    x = Tensor([2.0], requires_grad=True)
    (x * x).sum().backward()
    (x.grad * x).sum().backward()
    assert x.grad.tolist() == [8.0]
    x.grad = None
    (x * x * x).sum().backward(create_graph=True)
    (second,) = x.grad.sum().gradient(x)
    assert second.tolist() == [12.0]


def test_hessian_vector_product_of_cross_entropy() -> None:
    logits, direction = numbers(3, 4), numbers(3, 4, seed=7)
    x, v = Tensor(logits, requires_grad=True), Tensor(direction)
    picked = x.log_softmax(-1)[Tensor([0, 1, 2]), Tensor([3, 0, 1])]
    (first,) = (-picked.sum()).gradient(x)
    (product,) = (first * v).sum().gradient(x)
    powers = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = powers * direction - powers * (powers * direction).sum(1, keepdims=True)
    np.testing.assert_allclose(run_on("evaluate", product), expected, rtol=1e-9)
    np.testing.assert_allclose(product.numpy(), expected, rtol=1e-9)


def test_gradients_cross_devices() -> None:
    x = Tensor([1.0, 2.0], device="CPU", requires_grad=True)
    y = Tensor([3.0, 4.0], device="PYTHON", requires_grad=True)
    (x.to("PYTHON") * y).sum().backward()
    assert x.grad.device == "CPU"
    assert x.grad.tolist() == [3.0, 4.0]
    assert y.grad.tolist() == [1.0, 2.0]


def test_the_graph_of_gradients_grows_with_the_graph() -> None:
    """A few nodes for each node, and no recursion however deep the graph is."""
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * 1.0001 + x
    y.sum().backward()
    assert len(toposort(x.grad.uop)) < 40000
