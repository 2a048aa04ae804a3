"""What a reading of a day's changes found."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.kernel.kernels import kernel_of, leaf
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.search import Limits, Search, Trial, planned_opts, search_opts


def test_the_names_of_nn_can_be_listed_twice() -> None:
    program = "from tilewright import nn; nn.Linear; assert dir(nn) == dir(nn); assert 'Linear' in dir(nn); help(nn)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("keys", [256, 512])
def test_a_row_that_sees_no_key_leaves_the_gradients_of_others_alone(keys: int) -> None:
    random = np.random.default_rng(keys)
    q, k, v = (random.standard_normal((1, 1, size, 8)).astype(np.float32) for size in (64, keys, keys))
    rows = np.arange(64) != 3

    def gradients(queries: np.ndarray, seen: np.ndarray) -> list[np.ndarray]:
        given = [Tensor(each, device="CPU") for each in (queries, k, v)]
        out = given[0].scaled_dot_product_attention(given[1], given[2], Tensor(seen, device="CPU"))
        held = out[:, :, : int(seen.any(1).sum())] if seen.all() else out[:, :, 4:].cat(out[:, :, :3], dim=2)
        return [each.numpy() for each in (held * held).sum().gradient(*given[:2])]

    found = gradients(q, np.broadcast_to(rows[:, None], (64, keys)).copy())
    expected = gradients(q[:, :, rows], np.ones((63, keys), bool))
    np.testing.assert_array_equal(found[0][:, :, 3], 0.0)
    np.testing.assert_allclose(found[0][:, :, rows], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [256, 512])
def test_the_least_number_of_a_wider_mask_gives_equal_weights(keys: int) -> None:
    random = np.random.default_rng(keys)
    q, k, v = (Tensor(random.standard_normal((1, 1, n, 8)).astype(np.float32), device="CPU") for n in (64, keys, keys))
    mask = np.zeros((64, keys))
    mask[3] = np.finfo(np.float64).min
    out = q.scaled_dot_product_attention(k, v, Tensor(mask, device="CPU")).numpy()
    np.testing.assert_allclose(out[0, 0, 3], v.numpy()[0, 0].mean(0), atol=1e-5)


def test_a_search_measures_the_plan_that_would_be_chosen() -> None:
    """The copy into a packed panel has a tile of its own, which is not one of registers."""
    x, y = leaf(0, 256, 1, 256), leaf(1, 1, 256, 256)
    product = build.alu(Ops.MUL, build.expand(x, (256, 256, 256)), build.expand(y, (256, 256, 256)))
    sink = kernel_of(build.reduce_axis(Ops.ADD, product, (2,)))
    target, seen = cpu_target(), set()

    def measure(candidates: list[tuple], best: float | None) -> list[Trial]:
        seen.update(candidates)
        return [Trial(opts, 1.0 + len(opts), "") for opts in candidates]

    search = Search()
    search_opts(sink, target, measure, Limits(width=1, candidates=8, seconds=60.0), search, lambda _: None)
    chosen = next(iter(planned_opts(view_kernel(prepare_kernel(sink), target))))
    assert chosen in seen
