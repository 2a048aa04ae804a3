"""The last iteration of a padded reduction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.kernels import axis, kernel_of, leaf, load, param, store
from tests.kernel.test_products import kernel
from tilewright import Context, Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.templates.choose import choose_opts

WITHOUT = replace(cpu_target(), vector_bytes=16, vector_registers=32, cores=1, masked_itemsizes=())
WITH = replace(WITHOUT, masked_itemsizes=(4, 8))


def body_of(graph: UOp, target: Target) -> tuple[UOp, ...]:
    sink = prepare_kernel(kernel_of(graph))
    for opt in choose_opts(view_kernel(sink, target)):
        sink = apply_opt(sink, opt, target)
    return lower(sink, target).body


def is_reduce_loop(node: UOp) -> bool:
    return node.op is Ops.RANGE and node.arg.kind is AxisType.REDUCE


def masked_in_loops(body: tuple[UOp, ...]) -> int:
    """Loads with a mask inside a loop of a reduction."""
    depth = found = 0
    for node in body:
        if is_reduce_loop(node):
            depth += 1
        elif node.op is Ops.END:
            depth = max(0, depth - 1)
        found += node.op is Ops.LOAD and len(node.src[0].src) > 2 and depth > 0
    return found


@pytest.mark.parametrize("target", [WITH, WITHOUT], ids=["masked vectors", "no masked vectors"])
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_only_the_last_iteration_has_a_mask(op: Ops, target: Target) -> None:
    rows = build.reduce_axis(op, leaf(0, 8, 1003), (1,))
    with Context(PASS_LIMIT=0):  # no optional pass
        assert masked_in_loops(body_of(rows, target)) > 0
    body = body_of(rows, target)
    assert masked_in_loops(body) == 0
    assert any(node.op is Ops.LOAD and len(node.src[0].src) > 2 for node in body)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_both_parts_have_one_set_of_accumulators(op: Ops) -> None:
    """Their lanes are folded once, after the loop; the masked part is accumulated before it."""
    body = body_of(build.reduce_axis(op, leaf(0, 8, 1003), (1,)), WITHOUT)
    (folded,) = (node for node in body if node.op is Ops.COMBINE and len(node.src) > 1)
    updates = [node for node in body if node.op is Ops.ACCUMULATE and node.src[0] is folded.src[0]]
    assert len(updates) == 2
    assert (
        body.index(updates[0]) < next(n for n, node in enumerate(body) if is_reduce_loop(node)) < body.index(updates[1])
    )


def test_a_peeled_part_that_the_outputs_share_is_accumulated_for_each() -> None:
    """Its sum depends on no output loop, and its accumulators are those of the loop inside one."""
    i, k, u = axis(3, 0), axis(4, 1, AxisType.REDUCE), axis(4, 2, AxisType.UPCAST)
    whole, part = load(param(1, 48), i * 16 + k * 4 + u), load(param(2, 4), u)
    sums = [UOp(Ops.REDUCE, whole.dtype, src, Ops.ADD) for src in ((whole, k, u), (part, u))]
    body = lower(kernel(store(param(0, 3), i, sums[0] + sums[1])), WITHOUT).body
    (outer,) = (n for n, node in enumerate(body) if node.op is Ops.RANGE and node.arg.id == i.arg.id)
    assert [node.op for node in body[outer:] if node.op in (Ops.ACC, Ops.ACCUMULATE, Ops.COMBINE, Ops.STORE)] == [
        Ops.ACC,
        Ops.ACCUMULATE,
        Ops.ACCUMULATE,
        Ops.COMBINE,
        Ops.STORE,
    ]


def test_a_loop_that_fills_its_axis_stays_as_it_is() -> None:
    body = body_of(build.reduce_axis(Ops.MAX, leaf(0, 8, 1024), (1,)), WITHOUT)
    assert sum(node.op is Ops.ACCUMULATE for node in body) == 1


# The emulator, which checks each kernel, computes a few rows; those of 1003 elements have the opts of longer ones.
@pytest.mark.parametrize(("rows", "size"), [(6, 5), (6, 17), (6, 63), (6, 130), (2, 1003)])
def test_values(rows: int, size: int) -> None:
    """Sums, extremes, a softmax, which has several reductions over one row, and a product with odd k."""
    x = np.random.default_rng(size).standard_normal((rows, size)).astype(np.float32)
    given = Tensor(x, device="CPU").realize()
    with Context(VERIFY=1):
        np.testing.assert_allclose(given.sum(1).numpy(), x.sum(1), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(given.max(1).numpy(), x.max(1))
        np.testing.assert_array_equal(given.argmax(1).numpy(), x.argmax(1))
        np.testing.assert_allclose(given.softmax(1).sum(1).numpy(), np.ones(rows), rtol=1e-5)
        np.testing.assert_allclose((given @ given.T).numpy(), x @ x.T, rtol=1e-3, atol=1e-3)


def test_a_long_product() -> None:
    """Its tile is one of rows and columns."""
    x = np.random.default_rng(1).standard_normal((6, 4097)).astype(np.float32)
    given = Tensor(x, device="CPU").realize()
    with Context(VERIFY=1):
        np.testing.assert_allclose((given @ given.T).numpy(), x @ x.T, rtol=1e-3, atol=1e-3)
