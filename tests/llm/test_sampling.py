"""The choice of a token: by the stated probabilities, the same for a seed, and told where logits are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import Tensor
from tilewright.base.errors import ConfigError, GenerationError
from tilewright.llm.sampling import RUN, Sampler, Sampling, _pick
from tilewright.llm.slots import Scores

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 3.0, 0.0], np.float32)


def frequencies(sampling: Sampling, logits: np.ndarray, count: int = 4000, seen: tuple[int, ...] = ()) -> np.ndarray:
    sampler = Sampler(sampling, seen)
    found = [sampler.choose(logits) for _ in range(count)]
    return np.bincount(found, minlength=len(logits)) / count


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    powers = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return powers / powers.sum()


def allowed_tokens(sampling: Sampling, logits: np.ndarray) -> list[int]:
    """By the definition: sorted, the lower token of equals first; top-k, then top-p of what is left, then min-p."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: sampling.top_k or len(order)]
    share = softmax(logits[order])
    by_top_p = int(np.searchsorted(np.cumsum(share), sampling.top_p - 1e-9)) + 1 if sampling.top_p < 1 else len(order)
    by_min_p = int((share >= sampling.min_p * share[0] * (1 - 1e-9)).sum())
    return order[: max(1, min(by_top_p, by_min_p))]


def test_temperature_zero_is_greedy_and_takes_the_first_of_equals() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 1
    assert Sampler(Sampling(temperature=0.7, top_k=1)).choose(LOGITS) == 1
    assert Sampler(Sampling(temperature=1e-6, seed=3)).choose(LOGITS) in (1, 4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_is_probable(temperature: float) -> None:
    found = frequencies(Sampling(temperature=temperature, seed=7), LOGITS)
    np.testing.assert_allclose(found, softmax(LOGITS, temperature), atol=0.03)


CUTS: list[tuple[dict[str, Any], set[int]]] = [
    ({"top_k": 3}, {1, 2, 4}),
    ({"top_k": 2}, {1, 4}),
    ({"top_k": 0}, {0, 1, 2, 3, 4, 5}),
    ({"top_k": None}, {0, 1, 2, 3, 4, 5}),
    ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
    ({"top_p": 0.7}, {1, 4}),
    ({"top_p": 0.01}, {1}),
    ({"min_p": 0.3}, {1, 2, 4}),
    ({"min_p": 1.0}, {1, 4}),
    ({"top_k": 3, "top_p": 0.8}, {1, 4}),
    ({"top_k": 4, "top_p": 0.99, "min_p": 0.1}, {0, 1, 2, 4}),
]


@pytest.mark.parametrize(("settings", "expected"), CUTS)
def test_what_is_left_out(settings: dict[str, Any], expected: set[int]) -> None:
    found = frequencies(Sampling(temperature=3.0, seed=1, **settings), LOGITS)
    assert set(np.flatnonzero(found)) == expected


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 5, 300, 3000]),
    st.sampled_from([0.1, 3.0, 20.0]),
    st.sampled_from([None, 0, 1, 40, 1000]),
    st.sampled_from([0.05, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_what_is_left_out_is_what_the_definition_says(
    seed: int, size: int, spread: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).round(2).astype(np.float32)
    sampling = Sampling(1.0, top_k, top_p, min_p, seed=seed)
    sampler = Sampler(sampling)
    if top_k or top_p < 1 or min_p:
        assert sampler._candidates(logits).tolist() == allowed_tokens(sampling, logits)
    assert sampler.choose(logits) in allowed_tokens(sampling, logits)


def test_a_seed_gives_the_same_tokens_and_none_gives_others() -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    samplers = [Sampler(Sampling(temperature=1.0, top_p=0.95, seed=seed)) for seed in (5, 5, 6, None, None)]
    found = [tuple(sampler.choose(logits) for _ in range(30)) for sampler in samplers]
    assert found[0] == found[1]
    assert len(set(found[1:])) == 4
    # Another request between two tokens changes nothing.
    first, other = Sampler(Sampling(temperature=1.0, top_p=0.95, seed=5)), Sampler(Sampling(temperature=1.0, seed=9))
    mixed = []
    for _ in range(30):
        mixed.append(first.choose(logits))
        other.choose(logits)
    assert tuple(mixed) == found[0]


def test_repeated_tokens_become_less_likely() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert [sampler.choose(logits) for _ in range(3)] == [0, 1, 0]
    assert Sampler(Sampling(repetition_penalty=2.0), seen=[0]).choose(logits) == 1
    assert Sampler(Sampling(repetition_penalty=2.0), seen=[0, 999]).choose(logits) == 1, "a token outside of the row"
    negative = np.array([-1.0, -1.5], np.float32)
    assert Sampler(Sampling(repetition_penalty=2.0), seen=[0]).choose(negative) == 1
    assert logits.tolist() == [2.0, 1.5, -1.0], "the row is not changed"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("values", "told"),
    [([1.0, np.nan, 2.0], "1 of 3 logits are NaN"), ([np.inf, 0.0, 0.0], "1 inf"), ([-np.inf] * 3, "-inf")],
)
def test_logits_that_are_no_numbers_are_told(values: list[float], told: str, temperature: float) -> None:
    with pytest.raises(GenerationError, match=told):
        Sampler(Sampling(temperature=temperature, seed=0)).choose(np.array(values, np.float32))


def test_a_token_that_is_ruled_out_is_never_taken() -> None:
    logits = np.array([0.0, -np.inf, 1.0], np.float32)
    assert frequencies(Sampling(temperature=2.0, seed=0), logits, 500)[1] == 0
    assert frequencies(Sampling(temperature=2.0, seed=0, top_p=0.99), logits, 500)[1] == 0


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1024, 5000])
def test_a_share_of_all_weights_is_found_by_sums_of_runs(count: int) -> None:
    """As a running sum over all weights has it; where runs are zeros, and at both ends of the chance."""
    generator = np.random.default_rng(count)
    for is_zero in (np.zeros(count, bool), generator.random(count) < 0.9, np.arange(count) >= max(1, count // 3)):
        weights = np.where(is_zero, 0, np.exp(generator.standard_normal(count) * 3)).astype(np.float32)
        weights[generator.integers(count)] = 1.0
        sums = np.cumsum(weights, dtype=np.float64)
        runs = np.add.reduceat(weights, np.arange(0, count, RUN), dtype=np.float64)
        for chance in (0.0, 1e-300, *generator.random(20), 1 - 2**-53):
            index = _pick(weights, runs, float(chance))
            assert weights[index] > 0
            rounding = 1e-9 * sums[-1]
            assert sums[index] - weights[index] - rounding <= chance * sums[-1] <= sums[index] + rounding


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": value} for value in (-1, float("nan"), float("inf"), "hot", True)),
        *({"top_p": value} for value in (0, 1.1, -0.5, None)),
        *({"min_p": value} for value in (-0.1, 2)),
        *({"top_k": value} for value in (-1, 1.5, True)),
        *({"repetition_penalty": value} for value in (0, -1)),
        *({"seed": value} for value in (-1, 0.5, "a")),
    ],
)
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Sampling(**settings)


def test_weights_of_all_rows_are_made_on_the_device() -> None:
    """As the definition has them, for a vocabulary that is no multiple of a run; drawn tokens follow them."""
    logits = np.random.default_rng(3).standard_normal((2, 700)).astype(np.float32) * 4
    given = Tensor(logits)
    scores = Scores(given, given.argmax(-1), given.max(-1))
    for row in range(2):
        weights, runs = scores.weights(row, 0.7)
        expected = softmax(logits[row], 0.7)
        np.testing.assert_allclose(weights / weights.sum(dtype=np.float64), expected, rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(runs, [weights[at : at + RUN].sum() for at in range(0, 700, RUN)], rtol=1e-5)
        sampler = Sampler(Sampling(temperature=0.7, seed=5))
        found = np.bincount([sampler.choose_from(scores, row) for _ in range(4000)], minlength=700) / 4000
        assert np.abs(found - expected).max() < 0.03


def test_a_seed_gives_the_token_of_its_first_number() -> None:
    """The same from a call's scores as from a row of logits."""
    given = Tensor(np.random.default_rng(4).standard_normal((1, 300)).astype(np.float32) * 3)
    scores = Scores(given, given.argmax(-1), given.max(-1))
    for seed in range(50):
        settings = Sampling(temperature=0.9, seed=seed)
        assert Sampler(settings).choose_from(scores, 0) == Sampler(settings).choose(given.numpy()[0])
