"""Convolutions of single channels with a border, which read every element of the image behind a mask as often as there
are elements in a window: they read a copy with the border in it. A ConvNeXt and mobile networks showed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fuzz.opts import Pair, check_pair
from tests.kernel.test_products import TARGETS
from tests.schedule.graphs import DEVICE, Graph
from tilewright import Tensor
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_opts

# Shape, window, arguments; whether a copy is made: not where nothing is masked, or windows do not overlap much.
WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = {
    "rows of whole vectors": ((1, 3, 9, 16), (7, 7), {"padding": 3}, True),
    "rows that are padded": ((2, 2, 14, 14), (7, 7), {"padding": 3}, True),
    "rows shorter than a window": ((1, 4, 5, 3), (5, 5), {"padding": 2}, True),
    "3x3": ((2, 3, 12, 13), (3, 3), {"padding": 1}, True),
    "with gaps": ((1, 3, 17, 18), (3, 5), {"padding": (2, 4), "dilation": 2}, True),
    "a border of one side": ((1, 3, 16, 16), (4, 4), {"padding": (3, 0, 3, 0)}, True),
    "one axis": ((2, 3, 40), (9,), {"padding": 4}, True),
    "no border": ((1, 3, 16, 16), (4, 4), {}, False),
}


def convolved(x: Tensor, w: Tensor, options: dict[str, Any]) -> Tensor:
    return x.conv2d(w, groups=w.shape[0], **options)


def kernel_of(name: str) -> UOp:
    shape, window, options, _ = WINDOWS[name]
    graph = Graph()
    made = convolved(graph.tensor(*shape), graph.tensor(shape[1], 1, *window), options)
    return [item.ast for item in schedule([made.uop], DEVICE).items if item.ast is not None][-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WINDOWS)
def test_masked_windows_read_a_copy_without_masks(name: str, target: str) -> None:
    facts = replace(TARGETS[target], core_cache_bytes=1 << 20)
    sink = prepare_kernel(kernel_of(name))
    opts = choose_opts(view_kernel(sink, facts))
    assert any(opt.op is OptOps.STAGE for opt in opts) is WINDOWS[name][3]
    for opt in opts:
        sink = apply_opt(sink, opt, facts)
    if WINDOWS[name][3]:
        loads = [node.src[0] for node in toposort(sink) if node.op is Ops.LOAD]
        copies = [access for access in loads if memory_of(access).op is Ops.DEFINE_LOCAL]
        assert copies
        assert all(len(access.src) == 2 for access in copies)
    assert check_pair(Pair(0, name, kernel_of(name), None, facts)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WINDOWS)
def test_the_values_are_those_of_dense_channels(name: str) -> None:
    shape, window, options, _ = WINDOWS[name]
    numbers = np.random.default_rng(0)
    channels = shape[1]
    x, w = (numbers.integers(-4, 5, sizes).astype(np.float32) for sizes in (shape, (channels, 1, *window)))
    dense = np.zeros((channels, channels, *window), np.float32)
    dense[range(channels), range(channels)] = w[:, 0]
    found, expected = convolved(Tensor(x), Tensor(w), options), Tensor(x).conv2d(Tensor(dense), **options)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
