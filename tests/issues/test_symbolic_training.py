"""Training with symbolic sizes: small networks that are jitted over a variable, beside the same steps over plain ints.
Thresholds of gradients, scans and scatters once compared a size that had bounds and no value, and raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Context, Tensor, Variable, jit, nn
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.errors import UnsupportedError
from tilewright.graph.ops import Ops
from tilewright.nn.state import get_parameters

GREATEST = 48
# The second call is captured, the third is a replay, the fourth takes the fast path.
SIZES = (9, 7, GREATEST, 9)
WORDS, CLASSES = 50, 5


class Sentences:
    """A block of a language model: embeddings, causal attention, a layer of two products and the logits."""

    def __init__(self) -> None:
        self.words, self.positions = nn.Embedding(WORDS, 32), nn.Embedding(GREATEST, 32)
        # A bias of keys has no gradient, of whose rounding AdamW would make steps.
        self.parts, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norms = [nn.LayerNorm(32), nn.LayerNorm(32)]
        self.head = nn.Linear(32, WORDS)

    def __call__(self, words: Tensor) -> Tensor:
        batch, time = words.shape
        x = self.words(words) + self.positions(Tensor.arange(time, device=words.device))
        parts = self.parts(self.norms[0](x)).reshape(batch, time, 3, 2, 16).permute(2, 0, 3, 1, 4)
        found = Tensor.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, time, 32))
        return self.head(x + self.narrow(self.wide(self.norms[1](x)).gelu()))


class Images:
    def __init__(self) -> None:
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Linear(16, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu().max_pool2d(2)
        return self.head(self.second(x).relu().mean((2, 3)))


class Rows:
    def __init__(self) -> None:
        self.first, self.second, self.norm = nn.Linear(20, 64), nn.Linear(64, CLASSES), nn.LayerNorm(64)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).silu())


class Points:
    """The largest feature of a set of points."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 32), nn.Linear(32, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu().max(1))


class Series:
    """A recurrent layer of four steps."""

    def __init__(self) -> None:
        self.given, self.held, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        state = Tensor.zeros(x.shape[0], 16, device=x.device)
        for step in range(4):
            state = (self.given(x[:, step]) + self.held(state)).tanh()
        return self.out(state)


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def labels(*shape: int, count: int = CLASSES) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, count, shape)


def next_words(model: Any, n: Any, words: Tensor) -> Tensor:
    given = words[:, :n]
    return model(given[:, :-1]).reshape(-1, WORDS).cross_entropy(given[:, 1:].reshape(-1))


def same_groups(model: Any, n: Any, x: Tensor) -> Tensor:
    """Rows that are their own classes: n classes of n rows."""
    rows = model(x[:n])
    return (rows @ rows.T).cross_entropy(Tensor.arange(n, device=x.device))


def normalised_groups(model: Any, n: Any, x: Tensor) -> Tensor:
    return model.first(x[:n]).reshape(n, 8, -1).layernorm().square().mean()


def adamw(parameters: list[Tensor]) -> Any:
    return nn.optim.AdamW(parameters, lr=1e-3)


def sgd(parameters: list[Tensor]) -> Any:
    return nn.optim.SGD(parameters, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Program:
    """A network, its loss over the first `n` of some arrays, and how it is trained."""

    network: Callable[[], Any]
    loss: Callable[..., Tensor]
    arrays: list[np.ndarray] = field(default_factory=lambda: [data(GREATEST, 20)])
    optimizer: Callable[[list[Tensor]], Any] = sgd
    sizes: tuple[int, ...] = SIZES


def classified(model: Any, n: Any, x: Tensor, classes: Tensor) -> Tensor:
    return model(x[:n]).cross_entropy(classes[:n])


PROGRAMS = {
    "sentences, SGD": Program(Sentences, next_words, [labels(2, GREATEST, count=WORDS)], sizes=(9, 7, 9, 7)),
    "sentences, AdamW": Program(Sentences, next_words, [labels(2, GREATEST, count=WORDS)], adamw),
    "images": Program(Images, classified, [data(GREATEST, 3, 8, 8), labels(GREATEST)]),
    "rows": Program(Rows, classified, [data(GREATEST, 20), labels(GREATEST)], adamw),
    "rows, squares": Program(Rows, lambda model, n, x: ((model(x[:n]) - 1) ** 2).mean()),
    "points": Program(Points, lambda m, n, x, y: m(x[:, :n]).cross_entropy(y), [data(4, GREATEST, 3), labels(4)]),
    "series": Program(Series, classified, [data(GREATEST, 4, 8), labels(GREATEST)]),
    "two classes": Program(
        Rows, lambda m, n, x: m(x[:n]).binary_cross_entropy_with_logits((x[:n, :CLASSES] > 0).float())
    ),
    "deviations": Program(Rows, lambda m, n, x: (m(x[:n]).std(0) + m(x[:n]).var()).sum()),
    "largest two": Program(Rows, lambda m, n, x: m(x[:n]).softmax(-1).topk(2)[0].sum()),
    "smooth distance": Program(Rows, lambda m, n, x: m(x[:n]).smooth_l1_loss(x[:n, :CLASSES])),
    "pairs": Program(Rows, lambda m, n, x: ((m(x[:n]) @ m(x[:n]).T).softmax(-1) * 0.1).square().sum()),
    "rows as classes": Program(Rows, same_groups),
    "running sums": Program(Rows, lambda m, n, x: (m(x[:n]).cumsum(0) * 0.01).square().mean(), optimizer=adamw),
    "groups of channels": Program(Images, normalised_groups, [data(GREATEST, 3, 8, 8)]),
}


def trained(program: Program, device: str, is_symbolic: bool) -> list[np.ndarray]:
    """The losses of the steps, and what the parameters are after them."""
    with Context(DEVICE=device):
        Tensor.manual_seed(1)
        model = program.network()
        parameters = get_parameters(model)
        optimizer = program.optimizer(parameters)
        arrays = [Tensor(each, device=device) for each in program.arrays]

        def step(n: Any, *given: Tensor) -> Tensor:
            with Tensor.train():
                optimizer.zero_grad()
                loss = program.loss(model, n, *given)
                loss.backward()
                optimizer.step()
                return loss.realize()

        run = jit(step, symbolic={"n": (3, GREATEST)}) if is_symbolic else step
        losses = [run(n, *arrays).numpy() for n in program.sizes]
        return [*losses, *(each.numpy() for each in parameters)]


def compare(program: Program, device: str = "CPU") -> None:
    """A JitWarning, which says that calls are traced anew, is an error in tests."""
    found = trained(program, device, is_symbolic=True)
    with Context(LIFT_SIZES=0):
        wanted = trained(program, "CPU", is_symbolic=False)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_over_a_variable_are_those_of_plain_ints(name: str) -> None:
    compare(PROGRAMS[name])


class Wide:
    """Layers whose products, and those of their gradients, are as large as tiles."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).gelu())


CARD_PROGRAMS = {
    "wide": Program(Wide, lambda m, n, x: (m(x[:, :n]) ** 2).mean(), [data(2, GREATEST, 64)], sizes=(9, GREATEST, 9)),
    "images": PROGRAMS["images"],
    "sentences": PROGRAMS["sentences, SGD"],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CARD_PROGRAMS)
def test_steps_on_a_card(name: str) -> None:
    """On the emulator, which has the tensor cores of one."""
    target = cuda_target()
    facts = {"tensor_cores": target.tensor_cores, "max_local_bytes": target.max_local_bytes, "cores": target.cores}
    with emulated_card(**facts) as card:
        compare(CARD_PROGRAMS[name], NAME)
        programs = list(card.programs)
    products = [node for program in programs for node in program.body if node.op is Ops.TILE_DOT]
    # Of two layers, the gradients of both weights, and that of what the first layer made.
    assert name != "wide" or len(products) == 5


# ---------------------------------------------------------------- classes


SCORES = data(12, 12)
CLASSES_OF_N: dict[str, Callable[[Any], Tensor]] = {
    "counted": lambda n: Tensor.arange(n),
    "counted in 32 bits": lambda n: Tensor.arange(n, dtype="int32"),
    "counted, as rows": lambda n: Tensor.arange(n).reshape(n, 1).reshape(n),
    "the first": lambda n: Tensor.zeros(n, dtype="int32"),
    "as many as there are always": lambda n: Tensor.arange(3),
}


@pytest.mark.parametrize("name", CLASSES_OF_N)
def test_classes_that_are_below_a_variable(name: str) -> None:
    for value in (3, 7, 12):
        n = Variable("n", 3, 12).bind(value)
        classes = CLASSES_OF_N[name]
        rows = 3 if name == "as many as there are always" else n
        scores = Tensor(SCORES, requires_grad=True)
        loss = scores[:rows, :n].cross_entropy(classes(n))
        (gradient,) = loss.gradient(scores)
        numbers = np.asarray(classes(value).numpy())
        given = SCORES[: len(numbers), :value].astype(np.float64)
        weights = np.exp(given) / np.exp(given).sum(1, keepdims=True)
        taken = np.eye(value)[numbers]
        wanted = np.zeros((12, 12))
        wanted[: len(numbers), :value] = (weights - taken) / len(numbers)
        np.testing.assert_allclose(loss.item(), -np.log((weights * taken).sum(1)).mean(), rtol=1e-5)
        np.testing.assert_allclose(gradient.numpy(), wanted, atol=1e-6)


UNKNOWN_CLASSES: dict[str, tuple[str, Callable[[Any], Tensor]]] = {
    "read from memory": ("cross_entropy", lambda n: Tensor(np.zeros(12, np.int64))[:n]),
    "counted and moved": ("cross_entropy", lambda n: Tensor.arange(n) + 1),
    "counted from one": ("cross_entropy", lambda n: Tensor.arange(1, n + 1)),
    "counted down": ("cross_entropy", lambda n: Tensor.arange(n).flip(0)),
    "of logarithms": ("nll_loss", lambda n: Tensor(np.zeros(12, np.int64))[:n]),
    "by its other name": ("sparse_categorical_crossentropy", lambda n: Tensor(np.zeros(12, np.int64))[:n]),
}


@pytest.mark.parametrize("name", UNKNOWN_CLASSES)
def test_classes_that_a_variable_cannot_check(name: str) -> None:
    """The error names the operation, this file and what to do."""
    n, (operation, classes) = Variable("n", 3, 12).bind(7), UNKNOWN_CLASSES[name]
    message = rf"{operation}: classes of n=7[\s\S]*test_symbolic_training.py[\s\S]*constant number of classes"
    with pytest.raises(UnsupportedError, match=message):
        getattr(Tensor(SCORES)[:n, :n], operation)(classes(n))


def test_one_class_more_than_a_variable_has_at_least() -> None:
    n = Variable("n", 3, 12).bind(7)
    with pytest.raises(UnsupportedError, match="a number that is a variable"):
        Tensor(SCORES)[:4, :n].cross_entropy(Tensor.arange(4))


# ---------------------------------------------------------------- batch norm


def test_batch_norm_is_captured() -> None:
    """It once divided one size by another as numbers: each call read the value, was traced, and warned of it. A
    warning is an error here."""
    norm, images = nn.BatchNorm2d(3), data(GREATEST, 3, 2, 2)
    traces = []

    def step(n: Any, x: Tensor) -> Tensor:
        traces.append(n)
        with Tensor.train():
            return norm(x[:n]).realize()

    run = jit(step, symbolic={"n": (2, GREATEST)})
    mean, variance = np.zeros(3), np.ones(3)
    for n in (9, 7, GREATEST, 2, 30):
        given = images[:n].astype(np.float64)
        of_batch = given.mean((0, 2, 3)), given.var((0, 2, 3))
        mean = 0.9 * mean + 0.1 * of_batch[0]
        variance = 0.9 * variance + 0.1 * of_batch[1] * 4 * n / (4 * n - 1)
        wanted = (given - of_batch[0][:, None, None]) / np.sqrt(of_batch[1][:, None, None] + 1e-5)
        np.testing.assert_allclose(run(n, Tensor(images)).numpy(), wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(norm.running_var.numpy(), variance, rtol=1e-4)
    assert len(traces) == 2
