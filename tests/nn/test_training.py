"""Training: small networks step by step against NumPy written by hand, jitted against not, interrupted against not,
float16 with loss scaling against float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit, nn
from tilewright.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

optim = nn.optim
Array = np.ndarray[Any, Any]
STEPS = 30


def data(rows: int = 32, features: int = 6, classes: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Points that a random linear map puts into classes."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, features)).astype(np.float32)
    return x, (x @ generator.standard_normal((features, classes))).argmax(1).astype(np.int32)


class Net:
    """Two layers."""

    def __init__(self, seed: int = 3, features: int = 6, hidden: int = 10, classes: int = 4) -> None:
        Tensor.manual_seed(seed)
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, classes)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class ConvNet:
    """Convolution, batch norm, pooling, dropout and a linear layer."""

    def __init__(self, dropout: float = 0.0, seed: int = 4) -> None:
        Tensor.manual_seed(seed)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 3 * 3, 4)
        self.dropout = dropout

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x).relu()).max_pool2d().flatten(1)
        return self.head(x.dropout(self.dropout))


def training_step(model: Any, optimizer: Any, prepare: Callable[[], object] = lambda: None) -> Callable[..., Tensor]:
    """A step as a user writes it; `prepare` is called between backward and step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        prepare()
        optimizer.step()
        return loss.realize()

    return step


# ---------------------------------------------------------------- NumPy


class NumpyNet:
    """The two layers, their gradients and the optimiser by hand, in float64."""

    def __init__(self, model: Net, optimizer: str) -> None:
        self.values = {name: tensor.numpy().astype(np.float64) for name, tensor in get_state_dict(model).items()}
        self.first = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.optimizer = optimizer
        self.steps = 0

    def step(self, x: Array, y: Array) -> float:
        w = self.values
        before = x @ w["first.weight"].T + w["first.bias"]
        hidden = np.maximum(before, 0)
        logits = hidden @ w["second.weight"].T + w["second.bias"]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        chances = powers / powers.sum(1, keepdims=True)
        loss = -np.log(chances[np.arange(len(y)), y]).mean()
        slope = (chances - np.eye(chances.shape[1])[y]) / len(y)
        back = slope @ w["second.weight"] * (before > 0)
        grads = {
            "second.weight": slope.T @ hidden,
            "second.bias": slope.sum(0),
            "first.weight": back.T @ x,
            "first.bias": back.sum(0),
        }
        self.steps += 1
        for name, grad in grads.items():
            self._update(name, grad)
        return float(loss)

    def _update(self, name: str, grad: Array) -> None:
        if self.optimizer == "sgd":
            self.first[name] = 0.9 * self.first[name] + grad
            self.values[name] = self.values[name] - 0.1 * self.first[name]
            return
        self.first[name] = 0.9 * self.first[name] + 0.1 * grad
        self.second[name] = 0.999 * self.second[name] + 0.001 * grad**2
        first = self.first[name] / (1 - 0.9**self.steps)
        second = self.second[name] / (1 - 0.999**self.steps)
        self.values[name] = self.values[name] - 0.03 * first / (np.sqrt(second) + 1e-8)


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_every_step_equals_numpy(kind: str, jitted: bool) -> None:
    model = Net()
    params = get_parameters(model)
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9) if kind == "sgd" else optim.Adam(params, lr=0.03)
    reference = NumpyNet(model, kind)
    step: Any = training_step(model, optimizer)
    step = jit(step) if jitted else step
    losses = []
    for number in range(STEPS):
        x, y = data(seed=number % 3)
        losses.append(step(Tensor(x), Tensor(y)).item())
        assert losses[-1] == pytest.approx(reference.step(x, y), rel=2e-5)
        assert not jitted or number < 2 or step.last_reason == ""
        for name, tensor in get_state_dict(model).items():
            np.testing.assert_allclose(tensor.numpy(), reference.values[name], rtol=1e-4, atol=2e-5)
    assert losses[-1] < 0.7 * losses[0]


# ---------------------------------------------------------------- jit


def convnet_run(jitted: bool, dropout: float, steps: int = 6) -> tuple[list[float], dict[str, Array]]:
    model = ConvNet(dropout)
    optimizer = optim.AdamW(get_parameters(model), lr=0.01)
    step: Any = training_step(model, optimizer, lambda: optim.clip_grad_norm_(optimizer.params, 1.0))
    step = jit(step) if jitted else step
    losses = []
    with Tensor.train():
        for number in range(steps):
            x, y = data(rows=8, features=64, seed=number)
            losses.append(step(Tensor(x.reshape(8, 1, 8, 8)), Tensor(y)).item())
            assert not jitted or number < 2 or step.last_reason == ""
    return losses, {name: tensor.numpy() for name, tensor in get_state_dict(model).items()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_jitted_training_equals_training(dropout: float) -> None:
    """Losses, weights and running statistics; with dropout, a replay draws the numbers that tracing would."""
    plain_losses, plain = convnet_run(False, dropout)
    losses, values = convnet_run(True, dropout)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    assert values["norm.num_batches_tracked"] == 6
    for name, value in values.items():
        np.testing.assert_allclose(value, plain[name], rtol=1e-4, atol=1e-5)
    assert len(set(losses)) == len(losses)


def test_gradients_of_a_replay_are_those_of_its_call() -> None:
    """A replay renews `.grad`; the gradient of an earlier call keeps its value."""
    plain, model = Net(), Net()
    steps = [training_step(net, optim.SGD(get_parameters(net), lr=0.1)) for net in (plain, model)]
    step = jit(steps[1])
    earlier: list[tuple[Any, Array]] = []
    for seed in range(5):
        x, y = map(Tensor, data(seed=seed))
        steps[0](x, y)
        step(x, y)
        expected, grad = plain.first.weight.grad, model.first.weight.grad
        assert expected is not None
        assert grad is not None
        np.testing.assert_allclose(grad.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)
        earlier.append((grad, grad.numpy()))
    assert step.last_reason == ""
    for grad, value in earlier:
        np.testing.assert_array_equal(grad.numpy(), value)


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_evaluation_between_replays_sees_the_new_weights() -> None:
    model = Net()
    optimizer = optim.SGD(get_parameters(model), lr=0.1)
    step, look = jit(training_step(model, optimizer)), jit(lambda x: model(x).realize())
    x, y = map(Tensor, data())
    for number in range(6):
        before = model(x)
        step(x, y)
        np.testing.assert_array_equal(look(x).numpy(), model(x).numpy())
        assert np.abs(before.numpy() - model(x).numpy()).max() > 0
        assert number < 2 or look.last_reason == ""


# ---------------------------------------------------------------- interrupted


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def make() -> tuple[Any, Any, Any]:
        model = ConvNet(seed=7)
        optimizer = optim.Adam(get_parameters(model), lr=0.01)
        schedule = optim.CosineAnnealingLR(optimizer, 20)
        return model, optimizer, schedule

    def run(parts: tuple[Any, Any, Any], numbers: range) -> list[float]:
        model, optimizer, schedule = parts
        step = jit(training_step(model, optimizer))
        losses = []
        with Tensor.train():
            for number in numbers:
                x, y = data(rows=8, features=64, seed=number)
                losses.append(step(Tensor(x.reshape(8, 1, 8, 8)), Tensor(y)).item())
                schedule.step()
        return losses

    whole = run(make(), range(10))
    first = make()
    run(first, range(5))
    state = {}
    for name, part in zip(("model", "optimizer", "schedule"), first):
        state.update(get_state_dict(part, name))
    safe_save(state, str(tmp_path / "checkpoint.safetensors"))

    second = make()
    second[0].head.weight.assign(second[0].head.weight.detach() * 0)
    loaded = safe_load(str(tmp_path / "checkpoint.safetensors"))
    for name, part in zip(("model", "optimizer", "schedule"), second):
        own = {key.removeprefix(name + "."): value for key, value in loaded.items() if key.startswith(name + ".")}
        load_state_dict(part, own)
    np.testing.assert_allclose(run(second, range(5, 10)), whole[5:], rtol=1e-5)


# ---------------------------------------------------------------- mixed precision


def mixed_run(scaler: Any, half: bool, steps: int, jitted: bool = True) -> tuple[list[float], list[float], list[Array]]:
    model = Net(seed=9)
    optimizer = optim.Adam(get_parameters(model), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x.half() if half else x).float().sparse_categorical_crossentropy(y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.realize()

    call: Any = jit(step) if jitted else step
    losses, scales, weights = [], [], []
    for number in range(steps):
        x, y = data(seed=number % 3)
        losses.append(call(Tensor(x), Tensor(y)).item())
        assert not jitted or number < 2 or call.last_reason == ""
        scales.append(scaler.get_scale())
        weights.append(model.first.weight.numpy())
    return losses, scales, weights


def test_half_precision_learns_what_single_does() -> None:
    half, scales, _ = mixed_run(optim.GradScaler(init_scale=1024.0, growth_interval=10), True, STEPS)
    single, _, _ = mixed_run(optim.GradScaler(enabled=False), False, STEPS)
    np.testing.assert_allclose(half, single, rtol=2e-2)
    assert scales[8:10] == [1024.0, 2048.0]


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_overflow_leaves_weights_and_lowers_the_scale(jitted: bool) -> None:
    """float16 ends at 65504: gradients of a loss scaled by 2^32 overflow, until the scale has been halved enough."""
    _, scales, weights = mixed_run(optim.GradScaler(init_scale=2.0**32), True, 24, jitted)
    skipped = sum(later < earlier for earlier, later in zip([2.0**32, *scales], scales))
    assert 10 < skipped < 24
    assert scales[skipped - 1] == scales[-1] == 2.0 ** (32 - skipped)
    for number in range(1, skipped):
        np.testing.assert_array_equal(weights[number], weights[0])
    assert np.abs(weights[-1] - weights[0]).max() > 0.01


# ---------------------------------------------------------------- torch


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "options", "torch_options"),
    [
        ("SGD", {"lr": 0.1}, {}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, {}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, {}),
        ("Adam", {"lr": 0.01, "b1": 0.8, "b2": 0.99}, {"lr": 0.01, "betas": (0.8, 0.99)}),
        ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, {}),
        ("Muon", {"lr": 0.02}, {}),
    ],
)
def test_optimisers_equal_torch(name: str, options: dict[str, Any], torch_options: dict[str, Any]) -> None:
    import torch

    generator = np.random.default_rng(0)
    starts = [generator.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (3, 5))]
    ours = [Tensor(start.copy(), requires_grad=True) for start in starts]
    theirs = [torch.nn.Parameter(torch.from_numpy(start.copy())) for start in starts]
    optimizer = getattr(optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **(torch_options or options))
    for _ in range(20):
        for tensor, parameter in zip(ours, theirs):
            grad = generator.standard_normal(tensor.shape).astype(np.float32)
            tensor.grad, parameter.grad = Tensor(grad), torch.from_numpy(grad)
        optimizer.step()
        other.step()
        for tensor, parameter in zip(ours, theirs):
            # Muon iterates in bfloat16, and sums in another order round otherwise there.
            tolerance = 2e-3 if name == "Muon" else 2e-6
            np.testing.assert_allclose(tensor.numpy(), parameter.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
        ("LinearLR", {"start_factor": 0.1, "total_iters": 7}),
        ("CosineAnnealingLR", {"T_max": 9, "eta_min": 0.01}),
        ("StepLR", {"step_size": 4, "gamma": 0.3}),
        ("ExponentialLR", {"gamma": 0.85}),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 21}),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 21, "anneal_strategy": "linear", "three_phase": True}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_schedules_equal_torch(name: str, options: dict[str, Any]) -> None:
    import torch

    optimizer = optim.SGD([Tensor([0.0], requires_grad=True)], lr=0.1)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    more = {"cycle_momentum": False} if name == "OneCycleLR" else {}
    ours = getattr(optim, name)(optimizer, **options)
    theirs = getattr(torch.optim.lr_scheduler, name)(other, **options, **more)
    for _ in range(20):
        np.testing.assert_allclose(ours.get_last_lr(), theirs.get_last_lr(), rtol=1e-4, atol=1e-8)
        other.step()
        ours.step()
        theirs.step()
