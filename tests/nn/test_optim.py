"""Optimisers, schedules, clipping and loss scaling against formulas written out in NumPy; jitted and not; in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, dtypes, jit, nn
from tilewright.base.errors import UserError
from tilewright.engine.jit.guards import memory_of

optim = nn.optim

Array = np.ndarray[Any, Any]
SHAPES = [(4, 3), (3,), (2, 3, 2)]
STEPS = 20


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def starts() -> list[Array]:
    return [random(*shape, seed=number) for number, shape in enumerate(SHAPES)]


def gradients(step: int) -> list[Array]:
    return [random(*shape, seed=100 * (step + 1) + number) for number, shape in enumerate(SHAPES)]


# ---------------------------------------------------------------- references: from one parameter's steps to its values


def sgd(
    w: Array,
    grads: list[Array],
    lr: float = 0.001,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Iterator[Array]:
    heap = np.zeros_like(w)
    for g in grads:
        g = g + weight_decay * w
        heap = momentum * heap + g
        w = w - lr * (g + momentum * heap if nesterov else heap)
        yield w


def adam(
    w: Array,
    grads: list[Array],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    trust: bool = False,
    coupled: float = 0.0,
) -> Iterator[Array]:
    first, second = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        g = g + coupled * w
        first = b1 * first + (1 - b1) * g
        second = b2 * second + (1 - b2) * g * g
        update = first / (1 - b1**t) / (np.sqrt(second / (1 - b2**t)) + eps) + weight_decay * w
        if trust:
            update = update * np.linalg.norm(w) / np.linalg.norm(update)
        w = w - lr * update
        yield w


def rmsprop(
    w: Array,
    grads: list[Array],
    lr: float = 0.01,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> Iterator[Array]:
    square, average, heap = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for g in grads:
        g = g + weight_decay * w
        square = alpha * square + (1 - alpha) * g * g
        average = alpha * average + (1 - alpha) * g
        heap = momentum * heap + g / (np.sqrt(square - centered * average**2) + eps)
        w = w - lr * heap
        yield w


def adagrad(
    w: Array,
    grads: list[Array],
    lr: float = 0.01,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
) -> Iterator[Array]:
    total = np.full_like(w, initial_accumulator_value)
    for t, g in enumerate(grads):
        g = g + weight_decay * w
        total = total + g * g
        w = w - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
        yield w


def lars(
    w: Array,
    grads: list[Array],
    lr: float = 0.001,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    classic: bool = True,
    tcoef: float = 0.001,
) -> Iterator[Array]:
    heap = np.zeros_like(w)
    for g in grads:
        own, slope = np.linalg.norm(w), np.linalg.norm(g)
        rate = lr * tcoef * own / (slope + weight_decay * own)
        g = g + weight_decay * w
        heap = momentum * heap + (rate * g if classic else g)
        w = w - (heap if classic else rate * heap)
        yield w


def muon(w: Array, grads: list[Array], lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> Iterator[Array]:
    heap = np.zeros_like(w)
    for g in grads:
        heap = momentum * heap + (1 - momentum) * g
        ahead = (1 - momentum) * g + momentum * heap
        update = newton_schulz(ahead.reshape(w.shape[0], -1))
        w = w * (1 - lr * weight_decay) - lr * math.sqrt(max(1, update.shape[0] / update.shape[1])) * update.reshape(
            w.shape
        )
        yield w


def newton_schulz(matrix: Array) -> Array:
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if is_tall else x


CASES: list[tuple[str, Callable[..., Any], Callable[..., Iterator[Array]], dict[str, Any], dict[str, Any]]] = [
    ("sgd", optim.SGD, sgd, {"lr": 0.1}, {}),
    ("sgd-momentum", optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, {}),
    ("sgd-nesterov", optim.SGD, sgd, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True}, {}),
    ("adam", optim.Adam, adam, {"lr": 0.01}, {}),
    ("adam-betas", optim.Adam, adam, {"lr": 0.02, "b1": 0.5, "b2": 0.9, "eps": 1e-3}, {}),
    ("adam-decay", optim.Adam, adam, {"lr": 0.01, "weight_decay": 0.2}, {"weight_decay": 0.0, "coupled": 0.2}),
    ("rmsprop", optim.RMSprop, rmsprop, {"lr": 0.02, "weight_decay": 0.1}, {}),
    ("rmsprop-centered", optim.RMSprop, rmsprop, {"alpha": 0.9, "momentum": 0.8, "centered": True}, {}),
    ("adagrad", optim.Adagrad, adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}, {}),
    ("adagrad-decay", optim.Adagrad, adagrad, {"lr": 0.1, "lr_decay": 0.3, "weight_decay": 0.1}, {}),
    ("adamw", optim.AdamW, adam, {"lr": 0.01, "weight_decay": 0.2}, {}),
    ("adamw-defaults", optim.AdamW, adam, {}, {"weight_decay": 0.01}),
    ("lamb", optim.LAMB, adam, {"lr": 0.01, "weight_decay": 0.1}, {"eps": 1e-6, "trust": True}),
    ("lamb-adam", optim.LAMB, adam, {"lr": 0.01, "weight_decay": 0.1, "adam": True}, {"eps": 1e-6}),
    ("lars", optim.LARS, lars, {"lr": 0.5}, {}),
    ("lars-popular", optim.LARS, lars, {"lr": 0.5, "classic": False, "tcoef": 0.01}, {}),
]


def train(optimizer: Any, params: list[Tensor], steps: int = STEPS, jitted: bool = False) -> list[list[Array]]:
    """The values of the parameters after each step."""

    def step(*grads: Tensor) -> Tensor:
        optimizer.zero_grad()
        for tensor, grad in zip(params, grads):
            tensor.grad = grad * 1.0
        optimizer.step()
        return grads[0].sum().realize()

    call: Any = jit(step) if jitted else step
    history = []
    for number in range(steps):
        call(*[Tensor(grad) for grad in gradients(number)[: len(params)]])
        assert not jitted or number < 2 or call.last_reason == ""
        history.append([tensor.numpy() for tensor in params])
    return history


def parameters(dtype: Any = dtypes.float32) -> list[Tensor]:
    return [Tensor(start).cast(dtype).requires_grad_() for start in starts()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
@pytest.mark.parametrize(
    ("make", "reference", "options", "more"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_values(make: Any, reference: Any, options: dict[str, Any], more: dict[str, Any], jitted: bool) -> None:
    params = parameters()
    history = train(make(params, **options), params, jitted=jitted)
    asked = {name: value for name, value in options.items() if name != "adam"}
    for number, start in enumerate(starts()):
        grads = [gradients(step)[number].astype(np.float64) for step in range(STEPS)]
        for step, expected in enumerate(reference(start.astype(np.float64), grads, **{**asked, **more})):
            np.testing.assert_allclose(history[step][number], expected, rtol=2e-5, atol=2e-6)


def test_muon() -> None:
    """The iteration runs in bfloat16, so its values are good to two digits."""
    params = [parameters()[0], parameters()[2]]
    optimizer = optim.Muon(params, lr=0.02)
    history = []
    for step in range(STEPS):
        grads = gradients(step)
        params[0].grad, params[1].grad = Tensor(grads[0]), Tensor(grads[2])
        optimizer.step()
        history.append([tensor.numpy() for tensor in params])
    for number, place in enumerate((0, 2)):
        grads = [gradients(step)[place].astype(np.float64) for step in range(STEPS)]
        for step, expected in enumerate(muon(starts()[place].astype(np.float64), grads, lr=0.02)):
            np.testing.assert_allclose(history[step][number], expected, atol=0.02 * 0.02 * (step + 1))


def test_muon_update_is_orthogonal() -> None:
    for shape in ((8, 5), (5, 8)):
        weight = Tensor.zeros(*shape, requires_grad=True)
        optimizer = optim.Muon([weight], lr=1.0, momentum=0.0, weight_decay=0.0)
        weight.grad = Tensor(random(*shape))
        optimizer.step()
        values = np.linalg.svd(weight.numpy() / math.sqrt(max(1, shape[0] / shape[1])), compute_uv=False)
        assert 0.6 < values.min() <= values.max() < 1.3


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_other_dtypes(dtype: Any) -> None:
    """State of short floats is kept in float32, and that of float64 in float64."""
    params = parameters(dtype)
    before = [tensor.double().numpy() for tensor in params]
    optimizer = optim.Adam(params, lr=0.01)
    train(optimizer, params, steps=3)
    assert all(tensor.dtype is dtype for tensor in params)
    assert {tensor.dtype for tensor in optimizer.exp_avg} == {
        dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    }
    tolerance = {dtypes.float16: 2e-3, dtypes.bfloat16: 3e-2, dtypes.float64: 1e-12}[dtype]
    for number, tensor in enumerate(params):
        grads = [gradients(step)[number].astype(np.float64) for step in range(3)]
        *_, expected = adam(before[number], grads, lr=0.01)
        np.testing.assert_allclose(tensor.double().numpy(), expected, atol=tolerance)


# ---------------------------------------------------------------- behaviour


def test_memory_is_updated_in_place() -> None:
    params = parameters()
    optimizer = optim.Adam(params)
    state = [*params, *optimizer.exp_avg, *optimizer.exp_avg_sq, optimizer.lr, optimizer.correction1]
    before = [memory_of(tensor.uop) for tensor in state]
    assert None not in before
    train(optimizer, params, steps=3)
    assert [memory_of(tensor.uop) for tensor in state] == before


def test_one_realise_per_step() -> None:
    """All updates of a step are one schedule: nothing is left to be computed afterwards."""
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9)
    for tensor, grad in zip(params, gradients(0)):
        tensor.grad = Tensor(grad) * 2
    optimizer.step()
    assert all(memory_of(tensor.uop) is not None for tensor in [*params, *optimizer.momentum_buffer])
    assert all(tensor.grad is not None and memory_of(tensor.grad.uop) is not None for tensor in params)


def test_gradients_stay_until_zero_grad() -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1)
    train(optimizer, params, steps=1)
    for tensor, grad in zip(params, gradients(0)):
        assert tensor.grad is not None
        np.testing.assert_array_equal(tensor.grad.numpy(), grad)
    optimizer.zero_grad()
    assert all(tensor.grad is None for tensor in params)


def test_arrays_that_parameters_came_from_are_left_alone() -> None:
    array = random(4, 3)
    before = array.copy()
    weight = Tensor(array, requires_grad=True)
    optimizer = optim.SGD([weight], lr=1.0)
    weight.grad = Tensor.ones(4, 3)
    optimizer.step()
    np.testing.assert_array_equal(array, before)
    np.testing.assert_allclose(weight.numpy(), before - 1, rtol=1e-6)


def test_parameters_without_gradient_stay() -> None:
    params = parameters()
    optimizer = optim.Adam(params, lr=0.1)
    optimizer.step()
    params[1].grad = Tensor(gradients(0)[1])
    optimizer.step()
    np.testing.assert_array_equal(params[0].numpy(), starts()[0])
    assert np.abs(params[1].numpy() - starts()[1]).min() > 0.09


def test_what_wants_no_gradient_is_not_changed() -> None:
    statistic = nn.state.as_buffer(Tensor.empty(3).assign(5.0))
    params = parameters()
    optimizer = optim.SGD([*params, statistic, params[0]], lr=0.1, momentum=0.5)
    assert len(optimizer.params) == 3
    train(optimizer, params, steps=2)
    assert statistic.tolist() == [5.0] * 3


def test_rate_is_a_tensor() -> None:
    """A new rate counts at the next step, also where the step is replayed."""
    weight = Tensor([0.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=1.0)

    def step(grad: Tensor) -> Tensor:
        weight.grad = grad * 1.0
        optimizer.step()
        return (grad + 0).realize()

    call = jit(step)
    grad = Tensor([1.0])
    seen = []
    for rate in (1.0, 1.0, 1.0, 0.5, 0.25, 4.0):
        optimizer.lr.assign(rate)
        call(grad)
        seen.append(weight.item())
    assert seen == [-1.0, -2.0, -3.0, -3.5, -3.75, -7.75]
    assert call.last_reason == ""


def test_group() -> None:
    params = parameters()
    group = optim.OptimizerGroup(optim.SGD(params[:1], lr=0.1), optim.Adam(params[1:], lr=0.01))
    history = train(group, params, jitted=True)
    for number, (start, reference, options) in enumerate(
        zip(starts(), (sgd, adam, adam), ({"lr": 0.1}, {"lr": 0.01}, {"lr": 0.01}))
    ):
        grads = [gradients(step)[number].astype(np.float64) for step in range(STEPS)]
        *_, expected = reference(start.astype(np.float64), grads, **options)  # type: ignore[operator]
        np.testing.assert_allclose(history[-1][number], expected, rtol=2e-5, atol=2e-6)
    group.zero_grad()
    assert all(tensor.grad is None for tensor in params)
    assert len(group) == 2
    assert isinstance(group[1], optim.Adam)


# ---------------------------------------------------------------- schedules


def cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


SCHEDULES: list[tuple[str, Callable[[Any], Any], Callable[[int], float]]] = [
    ("constant", lambda o: optim.ConstantLR(o, 0.5, 4), lambda t: 0.05 if t < 4 else 0.1),
    ("linear", lambda o: optim.LinearLR(o, 0.1, 1.0, 5), lambda t: 0.1 * (0.1 + 0.9 * min(t, 5) / 5)),
    ("cosine", lambda o: optim.CosineAnnealingLR(o, 8, 0.01), lambda t: 0.01 + 0.09 * cosine(t / 8)),
    ("step", lambda o: optim.StepLR(o, 3, 0.5), lambda t: 0.1 * 0.5 ** (t // 3)),
    ("milestones", lambda o: optim.MultiStepLR(o, [5, 2], 0.5), lambda t: 0.1 * 0.5 ** ((t >= 2) + (t >= 5))),
    ("polynomial", lambda o: optim.PolynomialLR(o, 5, 2.0), lambda t: 0.1 * (1 - min(t, 5) / 5) ** 2),
    ("lambda", lambda o: optim.LambdaLR(o, lambda count: 0.9**count), lambda t: 0.1 * 0.9**t),
    ("exponential", lambda o: optim.ExponentialLR(o, 0.9), lambda t: 0.1 * 0.9**t),
    (
        "one-cycle",
        lambda o: optim.OneCycleLR(o, 1.0, 10, pct_start=0.4),
        lambda t: 0.04 + 0.96 * (1 - cosine(t / 3)) if t <= 3 else 4e-6 + (1 - 4e-6) * cosine(min(t - 3, 6) / 6),
    ),
    (
        "warmup-then-cosine",
        lambda o: optim.SequentialLR(o, [optim.LinearLR(o, 0.25, 1.0, 4), optim.CosineAnnealingLR(o, 6)], [4]),
        lambda t: 0.1 * (0.25 + 0.75 * t / 4) if t < 4 else 0.1 * cosine((t - 4) / 6),
    ),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inside", [True, False], ids=["inside-jit", "outside"])
@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in SCHEDULES], ids=[case[0] for case in SCHEDULES])
def test_schedules(make: Callable[[Any], Any], expected: Callable[[int], float], inside: bool) -> None:
    """The rate that each step takes, seen by how far it moves a weight; the jitted step replays from the third."""
    weight = Tensor([0.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.1)
    schedule = make(optimizer)

    def step(grad: Tensor) -> Tensor:
        weight.grad = grad * 1.0
        optimizer.step()
        if inside:
            schedule.step()
        return (grad + 0).realize()

    call = jit(step)
    grad = Tensor([-1.0])
    place = 0.0
    for count in range(10):
        call(grad)
        assert count < 2 or call.last_reason == ""
        if not inside:
            schedule.step()
        place += expected(count)
        np.testing.assert_allclose(weight.item(), place, rtol=1e-5)
        np.testing.assert_allclose(schedule.get_last_lr(), [expected(count + 1)], rtol=1e-4, atol=1e-8)


def test_one_cycle_with_three_phases() -> None:
    weight = Tensor([0.0], requires_grad=True)
    schedule = optim.OneCycleLR(
        optim.SGD([weight]), 1.0, 10, pct_start=0.4, anneal_strategy="linear", final_div_factor=10.0, three_phase=True
    )
    seen = []
    for _ in range(10):
        seen += schedule.get_last_lr()
        schedule.step()
    up, down = [0.04 + 0.32 * k for k in range(4)], [1 - 0.32 * k for k in range(1, 4)]
    expected = [*up, *down, *[0.04 - 0.012 * k for k in range(1, 4)]]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


@pytest.mark.parametrize("cooldown", [0, 2])
def test_plateau(cooldown: int) -> None:
    """The rate falls after more than two steps without a better value, by a plain Python model of the rule."""
    weight = Tensor([0.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=1.0)
    schedule = optim.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, cooldown=cooldown, min_lr=0.2)
    best, bad, cooling, rate = math.inf, 0, 0, 1.0
    for metric in [5, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3.0]:
        schedule.step(Tensor(metric))
        is_better = metric < best * (1 - 1e-4)
        best, bad = (metric, 0) if is_better else (best, bad + 1)
        if cooling:
            cooling, bad = cooling - 1, 0
        if bad > 2:
            rate, cooling, bad = max(rate * 0.5, 0.2), cooldown, 0
        assert optimizer.lr.item() == pytest.approx(rate)
    assert rate == 0.2


# ---------------------------------------------------------------- clipping


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_clip_norm(kind: float, limit: float) -> None:
    params = parameters()
    for tensor, grad in zip(params, gradients(0)):
        tensor.grad = Tensor(grad)
    norm = optim.clip_grad_norm_(params, limit, kind)
    flat = np.concatenate([grad.reshape(-1) for grad in gradients(0)]).astype(np.float64)
    expected = np.linalg.norm(flat, kind)
    assert norm.item() == pytest.approx(expected, rel=1e-5)
    for tensor, grad in zip(params, gradients(0)):
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy(), grad * min(1, limit / (expected + 1e-6)), rtol=1e-5)


def test_clip_value() -> None:
    params = parameters()
    params[0].grad = Tensor(gradients(0)[0])
    optim.clip_grad_value_(params, 0.3)
    assert params[0].grad is not None
    np.testing.assert_allclose(params[0].grad.numpy(), np.clip(gradients(0)[0], -0.3, 0.3))
    assert params[1].grad is None


# ---------------------------------------------------------------- loss scaling


def scaled_run(scales: list[float], jitted: bool) -> tuple[list[list[float]], list[float]]:
    """Parameters, moment and scale after each step; a gradient times 0 below is what an overflow left: NaN."""
    weight = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.Adam([weight], lr=0.1)
    scaler = optim.GradScaler(init_scale=8.0, growth_interval=3)

    def step(grad: Tensor) -> Tensor:
        optimizer.zero_grad()
        weight.grad = grad * scaler.factor
        scaler.step(optimizer)
        scaler.update()
        return grad.sum().realize()

    call: Any = jit(step) if jitted else step
    seen, factors = [], []
    for number, scale in enumerate(scales):
        call(Tensor([1.0 * scale, -2.0]))
        assert not jitted or number < 2 or call.last_reason == ""
        seen.append([*weight.tolist(), *optimizer.exp_avg[0].tolist()])
        factors.append(scaler.get_scale())
    return seen, factors


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_overflow_skips_the_step(jitted: bool) -> None:
    good, bad = 1.0, math.inf
    seen, factors = scaled_run([good, bad, good, good, good, bad, math.nan, good], jitted)
    plain, _ = scaled_run([good] * 5, jitted)
    assert factors == [8.0, 4.0, 4.0, 4.0, 8.0, 4.0, 2.0, 2.0]
    for number, same in {0: 0, 1: 0, 2: 1, 3: 2, 4: 3, 5: 3, 6: 3, 7: 4}.items():
        np.testing.assert_allclose(seen[number], plain[same], rtol=1e-6)


def test_disabled_scaler_is_nothing() -> None:
    scaler = optim.GradScaler(enabled=False)
    weight = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=1.0)
    weight.grad = scaler.scale(Tensor([0.5]))
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.5]
    assert scaler.get_scale() == 1.0


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: optim.SGD([]), "no parameter"),
        (lambda: optim.SGD([Tensor([1])]), "no parameter"),
        (lambda: optim.SGD([1.0]), "a float among the parameters"),
        (lambda: optim.SGD(parameters(), lr=-1.0), "lr=-1.0"),
        (lambda: optim.SGD(parameters(), nesterov=True), "nesterov without momentum"),
        (lambda: optim.Adam(parameters(), b1=1.0), "b1=1.0"),
        (lambda: optim.Muon(parameters()), "is not a matrix"),
        (lambda: optim.OptimizerGroup(), "no optimiser"),
        (lambda: optim.StepLR(optim.SGD(parameters()), 0), "step_size=0"),
        (lambda: optim.clip_grad_norm_(parameters(), -1.0), "max_norm=-1.0"),
        (lambda: optim.GradScaler().update(), "no step was made"),
        (lambda: optim.GradScaler(backoff_factor=2.0), "backoff_factor=2.0"),
    ],
)
def test_errors_name_the_thing(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        call()


def test_a_gradient_of_another_shape_is_refused() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.SGD([weight])
    weight.grad = Tensor([1.0])
    with pytest.raises(UserError, match="gradient of shape"):
        optimizer.step()
