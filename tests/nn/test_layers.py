"""Layers against NumPy written out by hand: values, how weights start, names of tensors, dtypes, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, dtypes, jit, nn
from tilewright.base.errors import ShapeError, UserError

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors_of(layer: Any) -> dict[str, Tensor]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, Tensor)}


def set_tensors(layer: Any, seed: int = 1) -> dict[str, Array]:
    """Gives every parameter random values, so that a test does not pass because weights are 1 and biases 0."""
    made = {}
    for number, (name, tensor) in enumerate(tensors_of(layer).items()):
        if tensor.requires_grad:
            made[name] = random(*tensor.shape, seed=seed + number)
            tensor.assign(Tensor(made[name]))
    return made


def same(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- references


def convolve(x: Array, weight: Array, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> Array:
    """One output element at a time."""
    outputs, inputs, *kernel = weight.shape
    space = [
        (size - gap * (length - 1) - 1) // step + 1
        for size, length, step, gap in zip(x.shape[2:], kernel, stride, dilation)
    ]
    result = np.zeros((x.shape[0], outputs, *space))
    for place in np.ndindex(*space):
        cut = tuple(
            slice(start * step, start * step + gap * (length - 1) + 1, gap)
            for start, step, gap, length in zip(place, stride, dilation, kernel)
        )
        for out in range(outputs):
            first = out // (outputs // groups) * inputs
            window = x[(slice(None), slice(first, first + inputs), *cut)]
            result[(slice(None), out, *place)] = (window * weight[out]).reshape(x.shape[0], -1).sum(-1)
    return result


def convolve_transposed(
    x: Array, weight: Array, stride: tuple[int, ...], padding: tuple[int, ...], extra: tuple[int, ...], groups: int
) -> Array:
    """Each input element adds a scaled kernel to the output."""
    inputs, outputs, *kernel = weight.shape
    space = [(size - 1) * step + length for size, step, length in zip(x.shape[2:], stride, kernel)]
    full = np.zeros((x.shape[0], outputs * groups, *(size + more for size, more in zip(space, extra))))
    for place in np.ndindex(*x.shape[2:]):
        cut = tuple(slice(p * step, p * step + length) for p, step, length in zip(place, stride, kernel))
        for channel in range(inputs):
            first = channel // (inputs // groups) * outputs
            scale = x[(slice(None), channel, *place)].reshape(-1, *(1,) * (1 + len(kernel)))
            full[(slice(None), slice(first, first + outputs), *cut)] += scale * weight[channel]
    crop = tuple(slice(pad, size - pad) for pad, size in zip(padding, full.shape[2:]))
    return full[(slice(None), slice(None), *crop)]


def normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + eps)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# ---------------------------------------------------------------- weights


def test_linear() -> None:
    layer = nn.Linear(5, 3)
    values = set_tensors(layer)
    x = random(2, 4, 5)
    same(layer(Tensor(x)), x @ values["weight"].T + values["bias"])
    assert nn.Linear(5, 3, bias=False).bias is None


@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({}, (0, 0, 0, 0)),
        ({"stride": 2, "padding": 1}, (1, 1, 1, 1)),
        ({"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)}, (2, 2, 0, 0)),
        ({"groups": 2, "bias": False}, (0, 0, 0, 0)),
        ({"padding": "same", "dilation": (1, 2)}, (1, 1, 1, 1)),
        ({"padding": "valid"}, (0, 0, 0, 0)),
    ],
)
def test_conv2d(options: dict[str, Any], padding: tuple[int, int, int, int]) -> None:
    layer = nn.Conv2d(4, 6, (3, 2), **options)
    values = set_tensors(layer)
    x = random(2, 4, 7, 8)
    top, bottom, left, right = padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    expected = convolve(padded, values["weight"], layer.stride, layer.dilation, layer.groups)
    expected = expected + values["bias"].reshape(1, -1, 1, 1) if "bias" in values else expected
    same(layer(Tensor(x)), expected)


def test_conv2d_same_puts_the_odd_element_after() -> None:
    layer = nn.Conv2d(1, 1, 4, padding="same", bias=False)
    values = set_tensors(layer)
    x = random(1, 1, 5, 5)
    same(layer(Tensor(x)), convolve(np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 2))), values["weight"], (1, 1), (1, 1), 1))


def test_conv1d() -> None:
    layer = nn.Conv1d(2, 4, 3, stride=2, padding=1)
    values = set_tensors(layer)
    x = random(3, 2, 9)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    same(layer(Tensor(x)), convolve(padded, values["weight"], (2,), (1,), 1) + values["bias"].reshape(1, -1, 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"groups": 2, "bias": False},
        {"stride": (2, 1), "padding": (0, 1)},
    ],
)
def test_conv_transpose2d(options: dict[str, Any]) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, **options)
    values = set_tensors(layer)
    x = random(2, 4, 4, 5)
    expected = convolve_transposed(x, values["weight"], layer.stride, layer.padding, layer.output_padding, layer.groups)
    expected = expected + values["bias"].reshape(1, -1, 1, 1) if "bias" in values else expected
    same(layer(Tensor(x)), expected)


def test_conv_transpose1d() -> None:
    layer = nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1)
    values = set_tensors(layer)
    x = random(2, 2, 5)
    expected = convolve_transposed(x, values["weight"], (2,), (1,), (0,), 1) + values["bias"].reshape(1, -1, 1)
    same(layer(Tensor(x)), expected)


def test_embedding() -> None:
    layer = nn.Embedding(7, 4)
    rows = np.array([[0, 6, 3], [3, 3, 1]], dtype=np.int32)
    np.testing.assert_array_equal(layer(Tensor(rows)).numpy(), layer.weight.numpy()[rows])
    with pytest.raises(UserError, match="an index of dtype"):
        layer(Tensor([0.5]))


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias: bool) -> None:
    layer = nn.LSTMCell(3, 4, bias=bias)
    values = set_tensors(layer)
    x, h, c = random(2, 3), random(2, 4, seed=8), random(2, 4, seed=9)

    def reference(h: Array, c: Array) -> tuple[Array, Array]:
        gates = x @ values["weight_ih"].T + h @ values["weight_hh"].T
        gates = gates + values["bias_ih"] + values["bias_hh"] if bias else gates
        enter, forget, candidate, leave = np.split(gates, 4, axis=1)
        c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(candidate)
        return sigmoid(leave) * np.tanh(c), c

    for found, expected in zip(layer(Tensor(x), (Tensor(h), Tensor(c))), reference(h, c)):
        same(found, expected)
    for found, expected in zip(layer(Tensor(x)), reference(h * 0, c * 0)):
        same(found, expected)


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (nn.BatchNorm, (6, 3), (0,)),
        (nn.BatchNorm2d, (4, 3, 2, 5), (0, 2, 3)),
        (nn.BatchNorm3d, (2, 3, 2, 2, 2), (0, 2, 3, 4)),
    ],
)
def test_batch_norm(layer: Callable[..., Any], shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Three passes in training, then one by the running statistics."""
    norm = layer(3, eps=1e-3)
    values = set_tensors(norm)
    aside = (1, 3, *(1,) * (len(shape) - 2))
    weight, bias = values["weight"].reshape(aside), values["bias"].reshape(aside)
    mean, variance = np.zeros(3), np.ones(3)
    for seed in range(3):
        x = random(*shape, seed=seed) * 2 + 1
        with Tensor.train():
            same(norm(Tensor(x)), normalise(x, axes, 1e-3) * weight + bias)
        mean = 0.9 * mean + 0.1 * x.mean(axes)
        variance = 0.9 * variance + 0.1 * x.var(axes, ddof=1)
    same(norm.running_mean, mean)
    same(norm.running_var, variance)
    assert norm.num_batches_tracked.item() == 3
    x = random(*shape, seed=5)
    expected = (x - mean.reshape(aside)) / np.sqrt(variance.reshape(aside) + 1e-3) * weight + bias
    same(norm(Tensor(x)), expected)
    assert norm.num_batches_tracked.item() == 3


def test_batch_norm_averages_over_all_batches() -> None:
    norm = nn.BatchNorm(2, momentum=None)
    batches = [random(5, 2, seed=seed) for seed in range(4)]
    with Tensor.train():
        for batch in batches:
            norm(Tensor(batch)).realize()
    same(norm.running_mean, np.mean([batch.mean(0) for batch in batches], axis=0))


def test_batch_norm_without_statistics_or_weights() -> None:
    norm = nn.BatchNorm(3, affine=False, track_running_stats=False)
    x = random(5, 3)
    same(norm(Tensor(x)), normalise(x, (0,), 1e-5))
    assert tensors_of(norm) == {}


def test_batch_norm_replays() -> None:
    """Running statistics move on when a jitted pass is replayed."""
    norm = nn.BatchNorm(2)
    step = jit(lambda x: norm(x).realize())
    mean = np.zeros(2)
    for seed in range(5):
        x = random(6, 2, seed=seed)
        with Tensor.train():
            same(step(Tensor(x)), normalise(x, (0,), 1e-5))
        mean = 0.9 * mean + 0.1 * x.mean(0)
    assert step.last_reason == ""
    same(norm.running_mean, mean)
    assert norm.num_batches_tracked.item() == 5


def test_group_norm() -> None:
    norm = nn.GroupNorm(2, 6)
    values = set_tensors(norm)
    x = random(3, 6, 4, 5)
    normal = normalise(x.reshape(3, 2, -1), (2,), 1e-5).reshape(x.shape)
    same(norm(Tensor(x)), normal * values["weight"].reshape(1, 6, 1, 1) + values["bias"].reshape(1, 6, 1, 1))


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm(affine: bool) -> None:
    norm = nn.InstanceNorm(3, affine=affine)
    values = set_tensors(norm)
    x = random(2, 3, 4, 5)
    expected = normalise(x, (2, 3), 1e-5)
    if affine:
        expected = expected * values["weight"].reshape(1, 3, 1, 1) + values["bias"].reshape(1, 3, 1, 1)
    same(norm(Tensor(x)), expected)


@pytest.mark.parametrize("shape", [6, (4, 6)])
def test_layer_norm(shape: int | tuple[int, ...]) -> None:
    norm = nn.LayerNorm(shape)
    values = set_tensors(norm)
    x = random(3, 4, 6)
    axes = (2,) if shape == 6 else (1, 2)
    same(norm(Tensor(x)), normalise(x, axes, 1e-5) * values["weight"] + values["bias"])


def test_layer_norm2d() -> None:
    norm = nn.LayerNorm2d(4)
    values = set_tensors(norm)
    x = random(2, 4, 3, 5)
    expected = normalise(x, (1,), 1e-5) * values["weight"].reshape(1, 4, 1, 1) + values["bias"].reshape(1, 4, 1, 1)
    same(norm(Tensor(x)), expected)


def test_rms_norm() -> None:
    norm = nn.RMSNorm(8)
    values = set_tensors(norm)
    x = random(3, 8)
    same(norm(Tensor(x)), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * values["weight"])


# ---------------------------------------------------------------- how they start


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: nn.Linear(50, 400), 1 / math.sqrt(50)),
        (lambda: nn.Conv2d(8, 64, 5, groups=2), 1 / math.sqrt(4 * 25)),
        (lambda: nn.Conv1d(16, 300, 5), 1 / math.sqrt(80)),
        (lambda: nn.ConvTranspose2d(64, 8, 5, groups=2), 1 / math.sqrt(4 * 25)),
        (lambda: nn.LSTMCell(40, 60), 1 / math.sqrt(60)),
    ],
)
def test_weights_start_uniform(make: Callable[[], Any], bound: float) -> None:
    """torch's bounds: close to them from inside, with the deviation of a uniform distribution."""
    for name, tensor in tensors_of(make()).items():
        assert tensor.requires_grad, name
        values = tensor.numpy()
        assert np.abs(values).max() <= bound
        if "weight" in name:
            assert np.abs(values).max() > 0.99 * bound
            assert abs(values.std() - bound / math.sqrt(3)) < 0.02 * bound
            assert abs(values.mean()) < 0.03 * bound


def test_embedding_starts_normal() -> None:
    values = nn.Embedding(200, 50).weight.numpy()
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: nn.Linear(2, 3), ["weight", "bias"]),
        (lambda: nn.Conv2d(2, 3, 3), ["weight", "bias"]),
        (lambda: nn.BatchNorm2d(2), ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]),
        (lambda: nn.LSTMCell(2, 3), ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]),
        (lambda: nn.LayerNorm(2), ["weight", "bias"]),
        (lambda: nn.GroupNorm(1, 2), ["weight", "bias"]),
        (lambda: nn.RMSNorm(2), ["weight"]),
        (lambda: nn.Embedding(2, 3), ["weight"]),
    ],
)
def test_names_are_those_of_torch(make: Callable[[], Any], names: list[str]) -> None:
    found = tensors_of(make())
    assert list(found) == names
    wants = {name for name, tensor in found.items() if tensor.requires_grad}
    assert wants == {name for name in names if not name.startswith(("running", "num"))}


def test_equal_layers_are_not_one() -> None:
    """Two layers that start with equal values stay two: an update of one leaves the other alone."""
    first, second = nn.LayerNorm(4), nn.LayerNorm(4)
    first.weight.assign(first.weight.detach() * 2)
    assert second.weight.tolist() == [1.0] * 4
    assert first.weight.tolist() == [2.0] * 4


# ---------------------------------------------------------------- dtypes and errors


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float64, dtypes.bfloat16])
def test_a_layer_computes_in_the_dtype_of_its_input(dtype: Any) -> None:
    x = random(2, 4, 6, 6)
    tolerance = {16: 2e-2, 64: 1e-5}[dtype.bits] * (4 if dtype is dtypes.bfloat16 else 1)
    for layer in (
        nn.Conv2d(4, 4, 3),
        nn.GroupNorm(2, 4),
        nn.BatchNorm2d(4),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
        nn.RMSNorm(6),
    ):
        found = layer(Tensor(x).cast(dtype))
        assert found.dtype is dtype
        assert layer.weight is not None
        assert layer.weight.dtype is dtypes.float32
        same(found.float(), layer(Tensor(x)).numpy(), tolerance)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: nn.Linear(0, 3), "in_features=0"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "do not split into 2 groups"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "padding='full'"),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), "with stride"),
        (lambda: nn.GroupNorm(4, 6), "do not split into 4 groups"),
        (lambda: nn.GroupNorm(2, 6)(Tensor.ones(1, 4, 2)), "for 6 channels"),
        (lambda: nn.LayerNorm(6)(Tensor.ones(2, 5)), "does not end in"),
        (lambda: nn.RMSNorm(6)(Tensor.ones(2, 5)), "does not end in .6"),
        (lambda: nn.BatchNorm(3)(Tensor.ones(3)), "no axis of channels"),
        (lambda: Tensor.train()(nn.BatchNorm(3))(Tensor.ones(1, 3)), "one value per channel"),
        (lambda: nn.Linear(3, 4)(Tensor.ones(2, 5)), "5"),
    ],
)
def test_errors_name_the_thing(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ShapeError, match="(?s).*" + complaint.replace("(", r"\(")):
        call()
