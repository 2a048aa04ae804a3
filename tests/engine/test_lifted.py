"""Plans over variables for graphs that differ in their sizes alone (engine/planning/lifted.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright import Context, Tensor, nn
from tilewright.base import events
from tilewright.base.errors import IndexingError
from tilewright.engine.planning import lifted, plan
from tilewright.engine.planning.plan import forget_schedules
from tilewright.nn import functional as F
from tilewright.nn import optim
from tilewright.runtime.device import open_driver

SIZES = (5, 6, 7, 9, 12, 8, 13, 30, 31)


@pytest.fixture(autouse=True)
def _no_plans() -> Iterator[None]:
    """Each test starts as a process does that has made a few plans of other graphs."""
    forget_schedules()
    for operation in (Tensor.exp, Tensor.sum, Tensor.sqrt, Tensor.relu):
        operation(Tensor(np.ones((2, 2), np.float32))).realize()
    yield
    forget_schedules()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """For each lifted graph an empty string, or why it could not be planned."""
    found: list[str] = []
    with events.subscribe(lambda event: found.append(str(event["failure"])), ["lift"]):
        yield found


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(array(*shape, seed=seed))


WEIGHT, WIDE = array(16, 24), array(40, 16)


def causal(n: int) -> Tensor:
    q, k, v = (tensor(2, n, 4, seed=seed) for seed in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(n: int) -> Tensor:
    x, weight = tensor(n, 16), Tensor(WEIGHT, requires_grad=True)
    (x @ weight).tanh().square().mean().backward()
    assert weight.grad is not None
    return weight.grad


def updated(n: int) -> Tensor:
    """A slice of memory is written, and all of it read."""
    memory = Tensor.zeros(40, 3).contiguous().realize()
    memory[:n] = tensor(n, 3)
    return memory * 2


PROGRAMS: dict[str, Callable[[int], Tensor]] = {
    "elementwise": lambda n: tensor(n, 3).gelu() * 2,
    "rows": lambda n: tensor(n, 16).softmax(-1),
    "columns": lambda n: tensor(16, n).softmax(-1),
    "sum of all": lambda n: tensor(n, 5).sum(),
    "mean and deviation": lambda n: (
        (tensor(3, n) - tensor(3, n).mean(1, keepdim=True)) / tensor(3, n).std(1, keepdim=True)
    ),
    "product of rows": lambda n: tensor(n, 16) @ Tensor(WEIGHT),
    "product of columns": lambda n: Tensor(WIDE) @ tensor(16, n),
    "sum over the size": lambda n: tensor(4, n) @ tensor(n, 6),
    "squares": lambda n: tensor(n, n) @ tensor(n, n).T,
    "causal attention": causal,
    "two sizes": lambda n: tensor(n, 8) @ tensor(8, 3 * n + 1 if n % 2 else 2 * n),
    "batch of images": lambda n: F.conv2d(tensor(n, 3, 6, 6), tensor(4, 3, 3, 3), padding=1).relu(),
    "images of a size": lambda n: F.conv2d(tensor(2, 3, n, n), tensor(4, 3, 3, 3), padding=1),
    "maxima of windows": lambda n: F.max_pool2d(tensor(2, 3, 2 * n, 2 * n), 2),
    "joined": lambda n: tensor(n, 3).cat(tensor(4, 3), dim=0),
    "joined growing": lambda n: tensor(3, n).cat(tensor(3, n + 1, seed=1), dim=1).relu(),
    "part of a table": lambda n: Tensor(WIDE)[:n] + tensor(n, 16),
    "the last rows": lambda n: Tensor(WIDE)[40 - n :].exp(),
    "every second": lambda n: tensor(2 * n, 3)[::2] * 3,
    "flipped": lambda n: tensor(n, 3).flip(0) + 1,
    "rows by index": lambda n: Tensor(WIDE)[Tensor(np.arange(n) * 7 % 40)],
    "positions": lambda n: (Tensor.arange(n) * 2 + n).cast("float32"),
    "one hot": lambda n: Tensor(np.arange(n) % 4).one_hot(4).cast("float32") * n,
    "cumulative": lambda n: tensor(3, n).cumsum(1),
    "sorted": lambda n: tensor(3, n).sort(1)[0],
    "gradients": gradients,
    "in place": updated,
    "integers": lambda n: (Tensor(np.arange(3 * n, dtype=np.int32).reshape(3, n)) * 5 % 7).sum(1).cast("float32"),
    "half": lambda n: (tensor(n, 16).half() @ Tensor(WEIGHT).half()).float(),
    "reshaped": lambda n: tensor(2, n, 6).reshape(2 * n, 6).softmax(0),
    "heads": lambda n: tensor(2, n, 8).reshape(2, n, 4, 2).transpose(1, 2).softmax(-2),
    "divided rows": lambda n: ((tensor(40, 12)[n : n + 3] @ tensor(12, 4)).flatten() * n).reshape(-1, 6).max(0),
    "outer": lambda n: tensor(n, 1) * tensor(1, n + 2) + tensor(n + 2),
}
# Windows over sizes that are not known would be found by divisions; a sort gathers with a check against the size.
OWN_SIZES = {"images of a size", "sorted"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_do_not_depend_on_it(name: str, told: list[str]) -> None:
    program = PROGRAMS[name]
    found = {n: program(n).numpy() for n in SIZES}
    assert [reason for reason in told if reason] == []
    assert bool(told) == (name not in OWN_SIZES)
    forget_schedules()
    with Context(LIFT_SIZES=0):
        for n in SIZES:
            expected = program(n).numpy()
            assert found[n].shape == expected.shape
            tolerance = 2e-3 if name == "half" else 3e-5
            np.testing.assert_allclose(found[n], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["rows", "sum over the size", "causal attention", "joined growing", "gradients"])
def test_the_emulator_runs_lifted_graphs(name: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With its checks of bounds, of memory that nobody wrote, and of races."""
    monkeypatch.setattr(type(open_driver("PYTHON")), "lifted_terms", 1 << 22)
    with Context(DEVICE="PYTHON"):
        found = {n: PROGRAMS[name](n).numpy() for n in SIZES[:7]}
    assert set(told) == {""}
    for n, result in found.items():
        np.testing.assert_allclose(result, PROGRAMS[name](n).numpy(), rtol=3e-5, atol=3e-5)


def test_a_later_size_makes_no_plan(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for n in SIZES[:4]:
        PROGRAMS["rows"](n).realize()
    scheduled: list[Any] = []
    monkeypatch.setattr(plan, "schedule_graph", lambda *given: scheduled.append(given))
    for n in (10, 11, 14):
        PROGRAMS["rows"](n).realize()
    assert scheduled == []
    assert len(told) == 2  # up to 8 rows, and up to 16


def test_a_size_that_comes_back_gets_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many runs as there were sizes with a lifted plan."""
    for n in SIZES[:4]:
        PROGRAMS["rows"](n).realize()
    asked = []
    original = lifted.lifted_structure

    def noting(structure: Any) -> Any:
        asked.append(original(structure))
        return asked[-1]

    monkeypatch.setattr(lifted, "lifted_structure", noting)
    results = [PROGRAMS["rows"](13).numpy() for _ in range(5)]
    count = len(SIZES[:4]) - lifted.MIN_STATIC + 1
    assert count > lifted.MAX_RUNS
    assert [each is not None for each in asked] == [True] * count + [False]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5)


def test_two_sizes_that_differ_apart() -> None:
    """A batch and a length: two variables, and products of them."""

    def program(batch: int, length: int) -> Tensor:
        x = tensor(batch, length, 8)
        return (x.softmax(1) * x).sum(2) + x.mean()

    pairs = [(2, 9), (3, 17), (5, 11), (4, 29), (7, 23), (6, 10), (3, 5)]
    found = [program(*pair).numpy() for pair in pairs]
    forget_schedules()
    with Context(LIFT_SIZES=0):
        for pair, result in zip(pairs, found, strict=True):
            np.testing.assert_allclose(result, program(*pair).numpy(), rtol=3e-5, atol=1e-5)


def test_memory_of_results_has_their_size() -> None:
    results = {n: PROGRAMS["elementwise"](n).realize() for n in SIZES}
    for n, result in results.items():
        assert (result.shape, result.nbytes()) == ((n, 3), 12 * n)
        assert len(result.data().tobytes()) == 12 * n
        assert result.reshape(3 * n)[-1].item() == result.numpy().reshape(-1)[-1]
        np.testing.assert_allclose((result + 1).numpy(), result.numpy() + 1)


def test_an_index_out_of_range_is_an_error() -> None:
    table = Tensor(WIDE).realize()
    for n in SIZES:
        table[Tensor(np.arange(n)).realize() + 0].realize()
    with pytest.raises(IndexingError):
        table[Tensor(np.arange(14) + 30).realize() + 0].realize()
    assert table[Tensor(np.arange(15)).realize() + 0].numpy().shape == (15, 16)


def test_training_on_batches_of_any_length() -> None:
    def losses() -> list[float]:
        Tensor.manual_seed(1)
        table, layer = nn.Embedding(20, 8), nn.Linear(8, 20)
        optimizer = optim.Adam([*nn.state.get_parameters(table), *nn.state.get_parameters(layer)], lr=0.01)
        found = []
        for step, n in enumerate((6, 9, 7, 11, 8, 14, 10, 9, 13, 12)):
            words = np.random.default_rng(step).integers(0, 20, (3, n + 1))
            optimizer.zero_grad()
            logits = layer(table(Tensor(words[:, :-1])).tanh())
            loss = F.cross_entropy(logits.reshape(-1, 20), Tensor(words[:, 1:].reshape(-1)))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    found = losses()
    forget_schedules()
    with Context(LIFT_SIZES=0):
        np.testing.assert_allclose(found, losses(), rtol=2e-4)


def test_a_text_that_grows_is_joined_once_for_each_token(told: list[str]) -> None:
    """`tokens = tokens.cat(new)` before anything is read: the tokens of before have no name."""
    weights = tensor(30, 8), tensor(8, 30)
    tokens, counts = Tensor([[3, 1, 4]]), []
    for _ in range(8):
        new = (weights[0][tokens].mean(1) @ weights[1]).argmax(-1)
        tokens = tokens.cat(new.reshape(1, 1), dim=1)
        counts.append(len(tokens.schedule().items))
        new.item()
    assert counts[2:] == [counts[2]] * 6
    assert set(told) == {""}
    with Context(LIFT_SIZES=0, KEEP_NAMED=0):
        expected = [3, 1, 4]
        table, out = (weight.numpy() for weight in weights)
        for _ in range(8):
            expected.append(int((table[expected].mean(0) @ out).argmax()))
    assert tokens.tolist() == [expected]


def test_what_cannot_be_planned_is_given_up(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    def refusing(structure: Any, bound: Any) -> Any:
        raise NotImplementedError("no variables today")

    monkeypatch.setattr(lifted, "plan_graph", refusing)
    found = [PROGRAMS["rows"](n).numpy().sum() for n in SIZES]
    np.testing.assert_allclose(found, SIZES, rtol=1e-5)
    assert told == ["", "NotImplementedError: no variables today"]
