"""Graphs that are made from functions of earlier ones (REMEMBER_GRAPHS): equal to those that the operations make."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.ops.rows import Row, listed
from tests.ops.table import TABLE
from tilewright import Context, Tensor, jit, nn
from tilewright.base.errors import IndexingError, UnsupportedError
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.functions import function_of
from tilewright.graph.uop import UOp
from tilewright.nn import functional as F
from tilewright.nn import optim
from tilewright.tensor.core import graph_memo
from tilewright.tensor.core.gradient import checkpoint
from tilewright.tensor.core.graph_memo import REMEMBERED
from tilewright.tensor.families.networks import blocked_attention

LEARNED = 4  # calls after which a graph is made from a function


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys of the calls whose graphs were made from functions."""
    found: list[Any] = []
    original = graph_memo._made

    def noting(graph: Any, operands: Any, inner: Any) -> Any:
        found.append(graph)
        return original(graph, operands, inner)

    monkeypatch.setattr(graph_memo, "_made", noting)
    return found


def structure(*nodes: UOp) -> tuple[UOp, ...]:
    """Graphs over numbered parameters: equal structures are equal."""
    return BoundGraph(nodes).outputs


def gradient_structures(output: Tensor, inputs: list[Tensor]) -> tuple[UOp, ...] | str:
    """Those of the gradients, or the error where the output does not depend on an input."""
    weights = Tensor.ones(*output.shape, dtype=output.dtype, device=output.device)
    try:
        return structure(*(each.uop for each in output.gradient(*inputs, gradient=weights)))
    except UnsupportedError as error:
        return error.message


def is_tried(row: Row) -> bool:
    return not row.creates and row.check is None


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in TABLE if is_tried(row)])
def test_every_row_makes_the_same_graph(row: Row) -> None:
    """Each call of the op table, after it was learned, beside the same call without functions."""
    dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
    arrays = row.arrays(dtype)
    for _ in range(LEARNED):
        row.call(*map(Tensor, arrays))
    (found, own), (expected, others) = call(row, arrays), call(row, arrays, REMEMBER_GRAPHS=0)
    for left, right in zip(found, expected, strict=True):
        assert (left.shape, left.dtype, left.requires_grad) == (right.shape, right.dtype, right.requires_grad)
        assert structure(left.uop) == structure(right.uop)
    if row.gradient and own and all(output.dtype.is_float for output in expected):
        for left, right in zip(found, expected, strict=True):
            assert gradient_structures(left, own) == gradient_structures(right, others)


def call(row: Row, arrays: list[np.ndarray], **options: int) -> tuple[list[Tensor], list[Tensor]]:
    """The results of a row, and the inputs that have gradients."""
    tensors = [Tensor(array) for array in arrays]
    with Context(**options):
        found = [each for each in listed(row.call(*tensors)) if isinstance(each, Tensor)]
    return found, [tensor for tensor, given in zip(tensors, row.inputs) if given.has_gradient and tensor.dtype.is_float]


def test_the_remembered_methods_exist() -> None:
    assert [name for name in sorted(REMEMBERED) if not callable(getattr(Tensor, name, None))] == []


# ---------------------------------------------------------------- calls


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_later_calls_do_not_call_the_operation(made: list[Any]) -> None:
    found = [Tensor(normal(7, 5, seed=seed)).gelu().tolist() for seed in range(6)]
    assert len(made) == 3
    with Context(REMEMBER_GRAPHS=0):
        assert found == [Tensor(normal(7, 5, seed=seed)).gelu().tolist() for seed in range(6)]
    assert len(made) == 3


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (lambda x: x.softmax(0), lambda x: x.softmax(1)),
        (lambda x: x.elu(1.0), lambda x: x.elu(2.0)),
        (lambda x: x.clamp(0.0), lambda x: x.clamp(-0.0)),
        (lambda x: x.clamp(0, 1), lambda x: x.clamp(False, True)),
        (lambda x: x.mean(0), lambda x: x.mean(0, keepdim=True)),
        (lambda x: x.softmax(1), lambda x: x.cast("float64").softmax(1)),
        (lambda x: x.softmax(1), lambda x: x.reshape(5, 7).softmax(1)),
        (lambda x: x.softmax(1), lambda x: (x + 0).T.softmax(1)),
        (lambda x: x.matmul(x.T), lambda x: x.matmul((x + 1).T)),
        (lambda x: x.mse_loss(x), lambda x: x.mse_loss(x * 2)),
    ],
)
def test_what_differs_is_another_call(first: Any, other: Any) -> None:
    x = Tensor(normal(7, 5))
    for _ in range(LEARNED):
        first(x)
    with Context(REMEMBER_GRAPHS=0):
        expected = other(x)
    found = other(x)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_modes_are_part_of_a_call() -> None:
    weight = Tensor(normal(5, 5), requires_grad=True)
    for _ in range(LEARNED):
        weight.softmax(1)
    with Tensor.no_grad():
        assert not weight.softmax(1).requires_grad
    assert weight.softmax(1).requires_grad
    assert not Tensor(normal(5, 5)).softmax(1).requires_grad


def test_random_numbers_are_fresh() -> None:
    q = Tensor(normal(2, 2, 8, 4))
    with Tensor.train():
        found = [F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).tolist() for _ in range(6)]
    assert all(left != right for left, right in itertools.pairwise(found))


def test_equal_results_stay_two_tensors() -> None:
    for _ in range(LEARNED):
        Tensor(normal(4, 3)).tanh()
    x = Tensor(normal(4, 3), requires_grad=True)
    left, right = x.tanh(), x.tanh()
    (gradient,) = (left * 3 + right * 5).sum().gradient(left)
    assert gradient.tolist() == [[3.0] * 3] * 4


def test_a_view_of_a_tensor_is_a_target() -> None:
    """A later reshape is merged with the view, and carries its gradient."""
    for _ in range(LEARNED):
        Tensor(normal(6, 4)).reshape(4, 6).linear(Tensor(normal(6, 2)))
    view = Tensor(normal(6, 4), requires_grad=True).reshape(4, 6)
    weight = Tensor(normal(6, 2))
    with Context(REMEMBER_GRAPHS=0):
        (expected,) = view.linear(weight).sum().gradient(view)
    (found,) = view.linear(weight).sum().gradient(view)
    assert found.tolist() == expected.tolist()


def test_a_known_label_out_of_range_is_an_error_at_its_line() -> None:
    logits = Tensor(normal(4, 3))
    for number in range(LEARNED + 1):
        F.cross_entropy(logits, Tensor([0, 1, 2, number % 3])).item()
    with pytest.raises(IndexingError, match="class 3 is out of range"):
        F.cross_entropy(logits, Tensor([0, 1, 2, 3]))
    lowest = F.cross_entropy(logits, Tensor([0, 1, 2, -100])).item()
    with Context(REMEMBER_GRAPHS=0):
        assert lowest == F.cross_entropy(logits, Tensor([0, 1, 2, -100])).item()


def test_nodes_have_the_line_of_this_call() -> None:
    for _ in range(LEARNED):
        Tensor(normal(3, 3)).gelu()
    here = Tensor(normal(3, 3)).gelu()
    line = test_nodes_have_the_line_of_this_call.__code__.co_firstlineno + 3
    assert here.uop.line == (__file__, line)
    assert here.uop.src[0].line == (__file__, line)


def test_a_jitted_call_is_traced() -> None:
    for _ in range(LEARNED):
        Tensor(normal(3, 3)).gelu()
    scale = [1.0]

    @jit
    def step(x: Tensor) -> Tensor:
        return (x.gelu() * scale[0]).realize()

    for factor in (1.0, 1.0, 1.0, 2.0, 3.0):
        scale[0] = factor
        x = Tensor(normal(3, 3))
        np.testing.assert_allclose(step(x).numpy(), x.gelu().numpy() * factor, rtol=1e-6)


def test_an_operation_on_memory_of_its_own_is_no_function() -> None:
    table = Tensor(normal(3)).realize()
    x = Tensor(normal(3))
    assert function_of([(x + table).uop], [x.uop.src[0] if x.uop.src else x.uop]) is None


# ---------------------------------------------------------------- training

STEPS = 7


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).gelu())


def trained(make: Any, change: Any = lambda optimizer, number: None) -> list[list[float]]:
    """The losses of some steps, and the parameters after them."""
    Tensor.manual_seed(3)
    model = Network()
    optimizer = make(model.parameters())
    losses = []
    for number in range(STEPS):
        change(optimizer, number)
        optimizer.zero_grad()
        labels = np.random.default_rng(number).integers(0, 3, 9)
        loss = F.cross_entropy(model(Tensor(normal(9, 6, seed=number))), Tensor(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, *(parameter.flatten().tolist() for parameter in model.parameters())]


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "LAMB": lambda p: optim.LAMB(p, lr=0.01),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "Muon": lambda p: optim.Muon([each for each in p if each.ndim == 2], lr=0.01),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_the_same(name: str) -> None:
    found = trained(OPTIMIZERS[name])
    with Context(REMEMBER_GRAPHS=0):
        assert found == trained(OPTIMIZERS[name])


def set_decay(optimizer: Any, number: int) -> None:
    if number == 5:
        optimizer.weight_decay = 0.5
        optimizer.lr.assign(0.2)


def test_settings_may_change_between_steps() -> None:
    def make(parameters: Any) -> Any:
        return optim.AdamW(parameters, lr=0.01)

    found = trained(make, set_decay)
    with Context(REMEMBER_GRAPHS=0):
        assert found == trained(make, set_decay)
    assert found != trained(make)


def test_an_optimiser_of_ones_own_may_keep_state_as_it_likes() -> None:
    class Doubling(optim.Optimizer):
        """Each step is twice the one before: a Python number of each parameter, in a dictionary."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, lr)
            self.factors: dict[int, float] = {}

        def _new_value(self, index: int, value: Tensor, grad: Tensor, rate: Tensor) -> Any:
            self.factors[index] = 2 * self.factors.get(index, 0.5)
            return value - grad * rate * self.factors[index], []

    found = trained(lambda p: Doubling(p, 0.001))
    with Context(REMEMBER_GRAPHS=0):
        assert found == trained(lambda p: Doubling(p, 0.001))


def test_a_gradient_is_derived_anew_where_another_parameter_is_asked_for() -> None:
    x = Tensor(normal(4, 4))
    frozen, free = Tensor(normal(4, 4, seed=1)), Tensor(normal(4, 4, seed=2), requires_grad=True)

    def gradients() -> list[Any]:
        for tensor in (frozen, free):
            tensor.grad = None
        (x @ frozen @ free).sum().backward()
        return [None if tensor.grad is None else tensor.grad.tolist() for tensor in (frozen, free)]

    for _ in range(LEARNED):
        assert gradients()[0] is None
    frozen.requires_grad_()
    expected = np.outer(x.numpy().sum(0), free.numpy().sum(1))
    np.testing.assert_allclose(gradients()[0], expected, rtol=1e-5)


def test_gradients_of_gradients_see_views() -> None:
    def second(values: np.ndarray) -> Any:
        x = Tensor(values, requires_grad=True)
        view = x.reshape(2, 6)
        x.grad = None
        (view.reshape(12) ** 3).sum().backward(create_graph=True)
        assert x.grad is not None
        return x.grad.sum().gradient(x)[0].tolist()

    for seed in range(LEARNED + 2):
        values = normal(3, 4, seed=seed)
        np.testing.assert_allclose(second(values), 6 * values, rtol=1e-5)


def test_gradients_of_a_checkpoint_are_the_same() -> None:
    def run() -> list[Any]:
        weight = Tensor(normal(4, 4, seed=1), requires_grad=True)
        found = []
        for seed in range(5):
            weight.grad = None
            checkpoint(lambda x: (x @ weight).tanh(), Tensor(normal(4, 4, seed=seed))).sum().backward()
            found.append(weight.grad.tolist())
        return found

    found = run()
    with Context(REMEMBER_GRAPHS=0):
        assert found == run()


def test_gradients_through_attention_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its custom kernels are steps of a function of the graph, and so are those of its gradients."""
    weight = Tensor.randn(32, 96).realize().requires_grad_()
    derived = []
    original = blocked_attention._Gradient.__call__

    def counted(self: Any, *given: Any) -> Any:
        derived.append(self)
        return original(self, *given)

    monkeypatch.setattr(blocked_attention._Gradient, "__call__", counted)

    def slope(x: Tensor) -> Any:
        parts = (x @ weight).reshape(1, 200, 3, 2, 16).permute(2, 0, 3, 1, 4)
        found = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
        weight.grad = None
        found.square().sum().backward()
        assert weight.grad is not None
        return weight.grad.numpy()

    inputs = [Tensor.randn(1, 200, 32).realize() for _ in range(5)]
    found = [slope(x) for x in inputs]
    assert 0 < len(derived) <= 3
    with Context(REMEMBER_GRAPHS=0):
        for x, remembered in zip(inputs, found, strict=True):
            np.testing.assert_array_equal(slope(x), remembered)
