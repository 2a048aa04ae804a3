"""CUT: a loop whose masks change at constant iterations becomes a loop for each part, without masks; and the template
that does so for joins and paddings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.test_cpu_cliffs import kernels_of
from tests.kernel.kernels import kernel, refusal_of
from tests.kernel.test_transforms import check
from tests.machines import target_of
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.records import replace
from tilewright.codegen.pipeline import lower
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise, prepare_kernel
from tilewright.kernel.templates.choose import choose_plan

CUT, UPCAST, THREAD, SWAP = OptOps.CUT, OptOps.UPCAST, OptOps.THREAD, OptOps.SWAP
ONE_CORE = replace(cpu_target(), cores=1)


@pytest.mark.parametrize(
    "opts",
    [(), (Opt(UPCAST, 1, 3),), (Opt(UPCAST, 1, 3), Opt(UPCAST, 1, 6)), (Opt(THREAD, 0, 4), Opt(UPCAST, 2, 3))],
)
def test_parts_hold_what_the_loop_did(opts: tuple[Opt, ...]) -> None:
    check(kernel("joined"), (Opt(CUT, 1), *opts), ("PYTHON", "CPU"))


def test_each_part_is_a_contiguous_loop_without_masks() -> None:
    after = view_kernel(apply_opt(kernel("joined"), Opt(CUT, 1)))
    assert [size_of(axis) for axis in after.axes] == [4, 3, 6, 9, 12]
    assert len(after.stores) == 4
    assert not any(len(access.src) > 2 for access in after.accesses)


def test_the_loops_of_parts_follow_one_another_in_the_order_of_memory() -> None:
    program = lower(optimise(apply_opt(kernel("joined"), Opt(CUT, 1)).replace(arg=None), ONE_CORE), ONE_CORE)
    depth, deepest, stored = 0, 0, []
    for node in program.body:
        depth += (node.op is Ops.RANGE) - (node.op is Ops.END)
        deepest = max(deepest, depth)
        stored += [node.src[0].src[1].vmin] if node.op is Ops.STORE else []
    assert deepest <= 2
    assert len(stored) == 4
    assert stored == sorted(stored)


def test_a_part_and_the_loops_inside_it_are_split() -> None:
    """Halves of a part had the ids of the loops inside it."""
    opts = (Opt(OptOps.PADTO, 0, 8), Opt(CUT, 0), Opt(OptOps.BLOCK, 0, 7))
    check(kernel("counted"), opts, ("PYTHON", "CPU"))


@pytest.mark.parametrize(
    ("name", "opts", "reason"),
    [
        ("elementwise", (Opt(CUT, 1),), "no mask changes"),
        ("joined", (Opt(CUT, 1, 3),), "takes no argument"),
        ("joined", (Opt(CUT, 0),), "no mask changes"),
        ("row_sums", (Opt(CUT, 0),), "a reduction depends on axis 0"),
        ("row_sums", (Opt(CUT, 1),), "needs an output loop"),
        ("joined", (Opt(UPCAST, 1, 10), Opt(CUT, 2)), "axis 2 is UPCAST"),
    ],
)
def test_why_it_is_refused(name: str, opts: tuple[Opt, ...], reason: str) -> None:
    assert reason in refusal_of(kernel(name), opts)


# ---------------------------------------------------------------- the template


@pytest.mark.parametrize(("shape", "axis"), [((90, 179), 1), ((70, 64), 1), ((9, 50, 24), 1), ((40, 3, 100), 1)])
def test_no_vector_of_a_join_selects_by_masks(shape: tuple[int, ...], axis: int) -> None:
    """On a processor whose vectors have no masks."""
    target = target_of("neoverse-n1", cores=1)
    x = Tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape)).realize()
    for made in (x.cat(x * 2, x, dim=axis), x.roll(5, -1), Tensor.stack(x, x + 1, dim=axis)):
        (ast,) = kernels_of(made.contiguous())
        choice = choose_plan(view_kernel(prepare_kernel(ast), target))
        assert choice.opts[0].op is CUT
        masks = [mask for access in view_kernel(optimise(ast, target)).accesses for mask in access.src[2:]]
        assert all(loop.arg.kind is AxisType.UPCAST for mask in masks for loop in mask.ranges)  # of a single tile
    np.testing.assert_array_equal(
        x.cat(x * 2, x, dim=axis).numpy(), np.concatenate([x.numpy(), x.numpy() * 2, x.numpy()], axis)
    )


@pytest.mark.parametrize(("shape", "shift"), [((33_333, 3), 5), ((20_000, 37), 7000), ((3, 500, 40), -20)], ids=str)
def test_a_roll_of_rows_is_two_contiguous_copies(shape: tuple[int, ...], shift: int) -> None:
    """Of 333333x3 it took twice as long as torch's: each row, of three elements, divided to find its source."""
    axis = len(shape) - 2
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rolled = Tensor(x).realize().roll(shift, axis).contiguous()
    (ast,) = kernels_of(rolled)
    assert choose_plan(view_kernel(prepare_kernel(ast), ONE_CORE)).opts[0].op is CUT
    assert not any(node.op is Ops.MOD for node in view_kernel(optimise(ast, ONE_CORE)).nodes)
    np.testing.assert_array_equal(rolled.numpy(), np.roll(x, shift, axis))


def test_a_loop_over_many_remainders_is_not_cut() -> None:
    (ast,) = kernels_of(Tensor.empty(9).repeat(1000).contiguous())
    assert all(opt.op is not CUT for opt in choose_plan(view_kernel(prepare_kernel(ast), ONE_CORE)).opts)


@pytest.mark.parametrize("last", [2, 3, 5])
def test_rows_of_few_elements_are_no_phases(last: int) -> None:
    """A join of 2x2x24576x2 along 2 took 263 us, cut into parts 105 (torch 97): its two columns were vectors of their
    own, as if loads had interleaved them."""
    x = Tensor.empty(2, 2, 2048, last)
    (ast,) = kernels_of(x.cat(x, dim=2).contiguous())
    assert choose_plan(view_kernel(prepare_kernel(ast), ONE_CORE)).opts[0].op is CUT


def test_masks_of_one_tile_are_constants_and_stay() -> None:
    """Rows of 12 elements, of which 7 are copied: three vectors, whose masks cost nothing."""
    (ast,) = kernels_of(Tensor.empty(20_000, 7).pad(((0, 0), (3, 2))).contiguous())
    assert all(opt.op is not CUT for opt in choose_plan(view_kernel(prepare_kernel(ast), ONE_CORE)).opts)


def test_a_loop_that_cores_share_is_not_cut() -> None:
    """A roll of one long row: parts would be one core's each, at most."""
    (ast,) = kernels_of(Tensor.empty(1 << 20).roll(5, 0).contiguous())
    for cores, is_cut in ((1, True), (8, False)):
        target = replace(cpu_target(), cores=cores)
        opts = choose_plan(view_kernel(prepare_kernel(ast), target)).opts
        assert any(opt.op is CUT for opt in opts) == is_cut
