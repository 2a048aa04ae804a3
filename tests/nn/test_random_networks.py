"""Networks that nobody thought of: hypothesis builds small ones of layers, activations, views, attention and losses.
Every gradient is compared with finite differences in float64.

The slope along a random direction in all of a parameter is one number, so a parameter costs a few evaluations whatever
its size. They are made by the graph interpreter, which knows nothing of schedules or kernels; the gradient of every
third network is computed on the CPU. Where the quotients of two steps differ, a kink (relu, max) lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.tensor.conftest import bindings_of, run_on
from tilewright import Tensor, nn
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.nn.state import get_parameters

Draw = Callable[[st.SearchStrategy[Any]], Any]
Layer = Callable[[Tensor], Tensor]
Shape = tuple[int, ...]

STEPS = (1e-5, 4e-6)
BATCH = 2
ACTIVATIONS = ("relu", "tanh", "sigmoid", "silu", "gelu", "softplus", "leaky_relu", "elu", "mish", "abs", "sin")


def sizes(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


# ---------------------------------------------------------------- blocks


class Residual:
    """x + tanh(layer(x))."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.layer(x).tanh()


class Gate:
    """One half of a linear layer's result weighs the other."""

    def __init__(self, features: int, out: int) -> None:
        self.linear = nn.Linear(features, 2 * out)

    def __call__(self, x: Tensor) -> Tensor:
        left, right = self.linear(x).chunk(2, dim=-1)
        return left * right.sigmoid()


class Attention:
    """Every position looks at all, or at those before it."""

    def __init__(self, features: int, heads: int, causal: bool) -> None:
        self.mix = nn.Linear(features, 3 * features, bias=False)
        self.heads, self.causal = heads, causal

    def __call__(self, x: Tensor) -> Tensor:
        batch, time, features = x.shape
        parts = [part.reshape(batch, time, self.heads, -1).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1)]
        found = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=self.causal)
        return found.transpose(1, 2).reshape(batch, time, features)


class Recurrence:
    """An LSTM over the positions; its last state."""

    def __init__(self, features: int, hidden: int) -> None:
        self.cell = nn.LSTMCell(features, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        state = self.cell(x[:, 0])
        for place in range(1, x.shape[1]):
            state = self.cell(x[:, place], state)
        return state[0]


class Network:
    """Layers one after another, and a loss."""

    def __init__(self, layers: list[Any], loss: Layer) -> None:
        self.layers = layers
        self.loss = loss

    def __call__(self, x: Tensor) -> Tensor:
        return self.loss(x.sequential(self.layers))


# ---------------------------------------------------------------- strategies


def row_layer(draw: Draw, shape: Shape) -> tuple[Any, Shape]:
    """A layer of (batch, features)."""
    (features,) = shape
    out = draw(sizes(2, 4))
    picked = draw(st.lists(sizes(-features, features - 1), min_size=2, max_size=4))
    return draw(
        st.sampled_from(
            [
                (nn.Linear(features, out), (out,)),
                (Gate(features, out), (out,)),
                (Residual(nn.Linear(features, features)), shape),
                (nn.LayerNorm(features, eps=0.1), shape),
                (nn.RMSNorm(features, eps=0.1), shape),
                (nn.BatchNorm(features, eps=0.1), shape),
                (lambda x: x.softmax(-1), shape),
                (lambda x: x.logsumexp(0, keepdim=True) * x, shape),
                (lambda x: x.cumsum(-1), shape),
                (lambda x: x.sort(descending=True)[0], shape),
                (lambda x: x[:, picked] * 1.5, (len(picked),)),
                (lambda x: x.gather(1, Tensor([[place % features for place in picked]] * BATCH)), (len(picked),)),
                (lambda x: x.flip(1) + x.roll(1, 1) * x.pad((1, 0))[:, :-1], shape),
                (lambda x: Tensor.cat(x, x.square(), dim=1), (2 * features,)),
                (lambda x: Tensor.einsum("bi,bj->bij", x, x).sum(1), shape),
                (lambda x: x - x.max(1, keepdim=True) + x.std(1, keepdim=True), shape),
                (lambda x: (x > 0.1).where(x * x, x.exp()), shape),
            ]
        )
    )


def image_layer(draw: Draw, shape: Shape) -> tuple[Any, Shape]:
    """A layer of (batch, channels, height, width)."""
    channels, height, width = shape
    out, kernel, stride = draw(sizes(1, 3)), draw(sizes(1, 2)), draw(sizes(1, 2))
    options = [
        (nn.Conv2d(channels, out, kernel, stride=stride, padding=1), None),
        (nn.Conv2d(channels, channels * out, 2, groups=channels, padding=1, dilation=stride), None),
        (nn.ConvTranspose2d(channels, out, kernel + 1, stride=stride, padding=1), None),
        (nn.BatchNorm2d(channels, eps=0.1), shape),
        (nn.GroupNorm(1, channels, eps=0.1), shape),
        (nn.InstanceNorm(channels, eps=0.1), shape),
        (nn.LayerNorm2d(channels, eps=0.1), shape),
        (lambda x: x.flatten(1), (channels * height * width,)),
        (lambda x: x.mean((2, 3)), (channels,)),
        (lambda x: x.interpolate((3, 4), mode="linear", align_corners=bool(stride - 1)), (channels, 3, 4)),
    ]
    if min(height, width) > 1:
        options.append((lambda x: x.max_pool2d((2, 2), stride, padding=kernel - 1, ceil_mode=True), None))
        options.append((lambda x: x.avg_pool2d((2, 2), stride, padding=kernel - 1), None))
    layer, result = draw(st.sampled_from(options))
    return layer, layer(Tensor.zeros(BATCH, *shape)).shape[1:] if result is None else result


def sequence_layer(draw: Draw, shape: Shape) -> tuple[Any, Shape]:
    """A layer of (batch, time, features)."""
    time, features = shape
    out = draw(sizes(2, 4))
    heads = draw(st.sampled_from([count for count in (1, 2, 3) if features % count == 0]))
    causal = draw(st.booleans())
    return draw(
        st.sampled_from(
            [
                (Residual(Attention(features, heads, causal)), shape),
                (Residual(nn.Linear(features, features)), shape),
                (nn.LayerNorm((time, features), eps=0.1), shape),
                (nn.Linear(features, out), (time, out)),
                (nn.Conv1d(time, out, 2, padding=1), (out, features + 1)),
                (Recurrence(features, out), (out,)),
                (lambda x: x.cumsum(1) * x.logcumsumexp(2), shape),
                (lambda x: x.transpose(1, 2), (features, time)),
                (lambda x: x[:, -1], (features,)),
                (lambda x: x.mean(1), (features,)),
                (lambda x: x.rearrange("b t f -> b (t f)"), (time * features,)),
            ]
        )
    )


LAYERS = {1: row_layer, 2: sequence_layer, 3: image_layer}


def loss_layer(draw: Draw, classes: int) -> Layer:
    labels = Tensor(draw(st.lists(sizes(0, classes - 1), min_size=BATCH, max_size=BATCH)))
    smoothing = draw(st.sampled_from([0.0, 0.2]))
    kinds: list[Layer] = [
        lambda x: x.cross_entropy(labels, label_smoothing=smoothing),
        lambda x: x.log_softmax().nll_loss(labels),
        lambda x: x.binary_crossentropy_logits(labels.one_hot(classes).cast(x.dtype)),
        lambda x: (x - labels.unsqueeze(1)).square().mean(),
        lambda x: (x.normalize() * x.cos()).sum(),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def networks(draw: Draw) -> tuple[Network, np.ndarray]:
    """A network and its input: rows, images, sequences, or words for an embedding."""
    Tensor.manual_seed(0)
    seed = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    rank = draw(st.sampled_from([0, 1, 2, 3]))
    layers: list[Any] = []
    if rank == 0:
        array = seed.integers(0, 5, (BATCH, draw(sizes(2, 3))))
        shape: Shape = (array.shape[1], draw(sizes(2, 4)))
        layers.append(nn.Embedding(5, shape[1]))
    else:
        shape = tuple(draw(sizes(2, 4)) for _ in range(rank))
        array = seed.uniform(-1, 1, (BATCH, *shape))
    for _ in range(draw(sizes(1, 4))):
        layer, shape = LAYERS[len(shape)](draw, shape)
        layers.append(layer)
        if draw(st.booleans()):
            name = draw(st.sampled_from(ACTIVATIONS))
            layers.append(lambda x, name=name: getattr(x, name)())
        assume(0 < int(np.prod(shape)) <= 64)
    if len(shape) > 1:
        layers.append(lambda x: x.flatten(1))
    network = Network(layers, loss_layer(draw, int(np.prod(shape))))
    for parameter in get_parameters(network):
        if parameter.requires_grad:
            parameter.replace(Tensor(seed.uniform(-1, 1, parameter.shape)))
    return network, array


# ---------------------------------------------------------------- the property


def slopes_along(loss: Tensor, source: Tensor, direction: np.ndarray) -> Iterator[float]:
    """The slope of the loss along a direction in a source, by central differences of each step."""
    bindings = bindings_of(loss)
    node = build.stored_root(source.uop)
    start = source.numpy().reshape(-1)
    for step in STEPS:
        ends = (start + sign * step * direction.reshape(-1) for sign in (1, -1))
        above, below = (evaluate(loss.uop, {**bindings, node: end}).item() for end in ends)
        yield (above - below) / (2 * step)


def check(network: Network, array: np.ndarray, backend: str) -> int:
    """How many gradients were compared."""
    given_input = Tensor(array)
    with Tensor.train():
        loss = network(given_input)
    sources = [parameter for parameter in get_parameters(network) if parameter.requires_grad]
    sources += [given_input] if given_input.dtype.is_float else []
    gradients = loss.gradient(*sources)
    seed = np.random.default_rng(0)
    compared = 0
    for source, gradient in zip(sources, gradients, strict=True):
        assert (gradient.shape, gradient.dtype) == (source.shape, source.dtype)
        direction = seed.standard_normal(source.shape)
        wide, narrow = slopes_along(loss, source, direction)
        scale = max(1.0, abs(wide), abs(narrow))
        if abs(wide - narrow) > 2e-6 * scale:
            continue
        found = float((run_on(backend, gradient) * direction).sum())
        assert found == pytest.approx(narrow, abs=2e-5 * scale)
        compared += 1
    return compared


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(["evaluate", "evaluate", "CPU"]))
def test_gradients_of_random_networks(made: tuple[Network, np.ndarray], backend: str) -> None:
    check(*made, backend)


def test_the_check_sees_a_wrong_gradient() -> None:
    class Doubled:
        """Its gradient is twice what it should be."""

        def __init__(self) -> None:
            self.weight = Tensor([1.0, 2.0, 3.0], dtype="float64", requires_grad=True)

        def __call__(self, x: Tensor) -> Tensor:
            value = x * self.weight
            return value * 2 - value.detach()

    wrong = Network([Doubled()], lambda x: x.sin().mean())
    with pytest.raises(AssertionError):
        check(wrong, np.ones((BATCH, 3)), "evaluate")
    right = Network([nn.Linear(3, 2)], lambda x: x.sin().mean())
    for parameter in get_parameters(right):
        parameter.replace(Tensor(parameter.numpy().astype(np.float64)))
    assert check(right, np.ones((BATCH, 3)), "evaluate") == 3
