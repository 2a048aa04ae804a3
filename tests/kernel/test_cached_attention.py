"""Attention of one query per head to a cache, as one kernel of CPU cores: against NumPy for rows of different lengths,
on the emulator, which checks every index, in blocks of a few keys; its gradient; and where a batched step uses it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.llm.models import stories
from tilewright import Tensor, dtypes
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.backends.python.emulator import run_program
from tilewright.base.events import subscribe
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.attention.attention import LOG2_E, Steps
from tilewright.graph.kernels.attention.cached_attention import CachedAttention, cached_kernel
from tilewright.graph.kernels.nodes import param
from tilewright.kernel.optimise import optimise
from tilewright.llm.slots import Slots
from tilewright.runtime.device import open_driver

KERNEL = "attention_cached"
Array = np.ndarray[Any, Any]
generator = np.random.default_rng(31)


def expected(query: Array, key: Array, value: Array, positions: Any, window: int) -> Array:
    shared = query.shape[1] // key.shape[1]
    out = np.zeros((*query.shape[:3], value.shape[3]))
    for row, head in np.ndindex(*query.shape[:2]):
        last = int(positions[row]) + 1
        seen = slice(max(0, last - window) if window else 0, last)
        scores = key[row, head // shared, seen].astype(np.float64) @ query[row, head, 0] / math.sqrt(query.shape[3])
        weights = np.exp(scores - scores.max())
        out[row, head, 0] = weights @ value[row, head // shared, seen] / weights.sum()
    return out


SHAPES = {  # batch, heads of keys, heads that share one, keys, features of keys and of values, window
    "a query head": (2, 1, 1, 1, 4, 4, 0),
    "shared heads": (3, 3, 3, 300, 64, 64, 0),
    "more sharing heads than a task takes": (2, 1, 34, 40, 32, 16, 0),
    "a window": (4, 1, 4, 70, 256, 256, 33),
    "several blocks": (2, 1, 6, 4100, 8, 8, 0),
    "a window over several blocks": (2, 2, 1, 9000, 4, 4, 8500),
    "fewer keys than a panel": (3, 1, 1, 3, 12, 20, 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_different_lengths(name: str) -> None:
    batch, key_heads, shared, keys, features, value_features, window = SHAPES[name]
    shapes = (
        (batch, key_heads * shared, 1, features),
        *((batch, key_heads, keys, n) for n in (features, value_features)),
    )
    query, key, value = (generator.standard_normal(shape).astype(np.float32) for shape in shapes)
    asked, *held = (Tensor(each, device="CPU").realize() for each in (query, key, value))
    for positions in (np.full(batch, keys - 1), np.zeros(batch, np.int64), generator.integers(0, keys, batch)):
        found = asked._cached_attention(*held, Tensor(positions, device="CPU"), window)
        assert found is not None
        np.testing.assert_allclose(found.numpy(), expected(query, key, value, positions, window), atol=3e-6)


@pytest.mark.parametrize("window", [0, 5])
def test_on_the_emulator(window: int) -> None:
    """A block of 8 keys, of which the last begins so near the end of memory that its panel begins before it."""
    steps = (Steps(24, 4, 4), Steps(68, 68, 4), Steps(68, 68, 4), Steps(24, 4, 4))
    call = CachedAttention(
        dtypes.float32, 2, 1, 2, 3, 17, 4, 4, steps, LOG2_E / 2, window, lanes=4, panel=4, columns=8, vectors=1
    )
    query, key, value = (
        generator.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 1, 4), *((2, 1, 17, 4),) * 2)
    )
    target = replace(open_driver("CPU").target, vector_bytes=16)
    out, positions = np.zeros((2, 6, 1, 4), np.float32), np.array([16, 9], np.int32)
    arrays = [out, query, key, value, positions]
    kinds = [dtypes.float32] * 4 + [dtypes.int32]
    params = [param(slot, kind, each.size) for slot, (kind, each) in enumerate(zip(kinds, arrays))]
    program = lower(optimise(cached_kernel(call, *params), target), target)
    buffers = [each.reshape(-1) for each in arrays]
    run_program(program, [buffers[each.slot] for each in program.params])
    np.testing.assert_allclose(out, expected(query, key, value, positions, window), atol=1e-5)


def test_sums_of_scores_are_folded_together() -> None:
    """The sums of four keys become one vector by pairwise additions, where the processor adds neighbouring lanes."""
    steps = (Steps(64, 64, 64), *(Steps(4096, 4096, 64),) * 2, Steps(64, 64, 64))
    call = CachedAttention(
        dtypes.float32, 1, 1, 1, 1, 64, 64, 64, steps, LOG2_E / 8, 0, lanes=4, panel=4, columns=64, vectors=16
    )
    sizes = ((64, dtypes.float32), (64, dtypes.float32), *((4096, dtypes.float32),) * 2, (1, dtypes.int32))
    params = [param(slot, kind, size) for slot, (size, kind) in enumerate(sizes)]
    folds = []
    for has_lanes in (False, True):
        target = replace(open_driver("CPU").target, vector_bytes=16, has_lane_operands=has_lanes)
        text = render(lower(optimise(cached_kernel(call, *params), target), target), "kernel")
        folds.append(text.count("<i32 0, i32 2, i32 4, i32 6>"))
    assert folds == [0, 3]


def test_scores_of_every_size() -> None:
    """Scores far apart do not overflow; minus infinity has no weight; NaN stays in its own row and head."""
    query, key, value = (
        np.ones((2, 2, 1, 4), np.float32),
        *(generator.standard_normal((2, 1, 9, 4)).astype(np.float32) for _ in "kv"),
    )
    key[0] *= 1e4
    key[0, 0, 3] = -np.inf
    key[1, 0, 5] = np.nan
    found = Tensor(query, device="CPU")._cached_attention(
        *(Tensor(each, device="CPU") for each in (key, value)), Tensor([8, 8], device="CPU"), 0
    )
    assert found is not None
    np.testing.assert_allclose(found.numpy()[0], expected(query, key, value, [8, 4], 0)[0], atol=1e-5)
    assert np.isnan(found.numpy()[1]).all()


@pytest.mark.parametrize("window", [0, 4])
def test_gradients_are_those_of_masked_attention(window: int) -> None:
    query, key, value = (
        Tensor(generator.standard_normal(shape).astype(np.float32), device="CPU").realize()
        for shape in ((2, 4, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    )
    positions = Tensor([3, 8], dtype=dtypes.int32, device="CPU")
    places, steps = Tensor.arange(9, device="CPU"), positions.reshape(-1, 1, 1, 1)
    mask = (places <= steps) & (places > steps - (window or 9))
    found = query._cached_attention(key, value, positions, window)
    assert found is not None
    wanted = query.scaled_dot_product_attention(key, value, mask, enable_gqa=True)
    pairs = zip(*((each * each).sum().gradient(query, key, value) for each in (found, wanted)))
    for own, other in pairs:
        np.testing.assert_allclose(own.numpy(), other.numpy(), atol=2e-6)


def test_features_that_are_no_whole_vectors_are_refused() -> None:
    odd = Tensor.ones(1, 1, 2, 3, device="CPU").contiguous()
    assert odd[:, :, :1]._cached_attention(odd, odd, Tensor([1], device="CPU"), 0) is None


def test_a_step_of_several_sequences_uses_it() -> None:
    """One launch a layer, whatever the positions of the rows are."""
    model = stories("CPU")
    slots, names = Slots(model, 4, 256), list[str]()
    with subscribe(lambda event: names.append(str(event["name"])), ("kernel-run",)):
        slots.run_many([1, 2, 3, 4], [0, 200, 17, 3])
    assert names.count(KERNEL) == len(model.layers)
