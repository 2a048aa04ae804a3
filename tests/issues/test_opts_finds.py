"""What the fuzzer of opts and the tables of single opts found, and what they looked like.

* PADTO masked the places that depend on the axis. A store to one place in every iteration (`out[0] = x[i]`, a running
  update in a register) has a place that does not: its extra iterations stored what was not there.
* A loop whose length is computed goes round a different number of times in different work-groups, which the emulator,
  running many at once, took for a mistake of the kernel.
* STAGE without threads added loops in front of the reduce axes, so that the opts after it meant other axes.
* Local memory without axes of a work-group: OPENCL let the driver put several in one, which shared the memory.
* Threads of two reductions share an axis of the work-group. Which axis is the fastest was asked before and after that,
  with two answers: threads folded the values of those that were not their neighbours.
* The last of blocks that overlap stores some elements again. The loop in a block, once merged with a smaller one,
  was not seen to be inside of the block, and became the grid.
* The barrier before a copy was dropped once its loop became the grid, also where another loop repeated the copy: a
  padded loop, which stays a loop."""

from __future__ import annotations

import pytest

from tests.fuzz.opts import TARGETS, Pair, check_on_device, check_pair, compiling_devices
from tests.kernel.kernels import kernel, kernel_of, leaf
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.kernel.apply import apply_opt, describe_axes
from tilewright.kernel.axes import view_kernel


def failure_of(name: str, *opts: Opt, target: Target = TARGETS[0]) -> str | None:
    return check_pair(Pair(0, name, kernel(name), opts, target))


@pytest.mark.parametrize(("name", "axis"), [("overwritten", 0), ("polynomial", 1), ("scan", 0)])
def test_iterations_that_padding_adds_store_nothing(name: str, axis: int) -> None:
    assert failure_of(name, Opt(OptOps.PADTO, axis, 5)) is None


def test_work_groups_go_round_a_loop_as_often_as_each_of_them_must() -> None:
    assert failure_of("triangle") is None


def test_copies_do_not_renumber_the_axes() -> None:
    opts = (Opt(OptOps.UPCAST, 1, 5), Opt(OptOps.UNROLL, 2, 2), Opt(OptOps.STAGE, 1, 1))
    before = ast = kernel("product")
    for opt in opts[:2]:
        before = apply_opt(before, opt)
    ast = apply_opt(before, opts[2])
    kept = describe_axes(view_kernel(before))
    assert describe_axes(view_kernel(ast)).startswith(kept)
    assert failure_of("product", *opts, Opt(OptOps.UNROLL, 2, 2)) is None


@pytest.mark.parametrize("device", compiling_devices())
def test_local_memory_belongs_to_one_work_group(device: str) -> None:
    assert check_on_device(Pair(0, "reversed_rows", kernel("reversed_rows"), (), TARGETS[0]), device) is None


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"warps of {target.warp_size}")
def test_axes_that_became_one_keep_their_neighbours(target: Target) -> None:
    groups = (Opt(OptOps.GROUP, 2, 4), Opt(OptOps.LOCAL, 1, 2), Opt(OptOps.BLOCK, 1, 2), Opt(OptOps.BLOCK, 6, 4))
    assert failure_of("rows_less_their_greatest", *groups, Opt(OptOps.GROUPTOP, 7, 4), target=target) is None


@pytest.mark.parametrize("opts", [(), (Opt(OptOps.UPCAST, 2, 5),)])
def test_the_loop_in_a_block_that_overlaps_is_not_parallel_when_it_is_merged(opts: tuple[Opt, ...]) -> None:
    assert failure_of("elementwise", Opt(OptOps.BLOCK, 0, 7), *opts, Opt(OptOps.STAGE, 0, 2)) is None


def test_a_copy_that_another_loop_repeats_keeps_its_barrier() -> None:
    ast = kernel_of(build.reduce_axis(Ops.MAX, leaf(0, 24, 2, 3, 4), (3,)))
    opts = (Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.STAGE, 2, 0), Opt(OptOps.PADTO, 1, 5))
    assert check_pair(Pair(0, "", ast, opts, TARGETS[0])) is None
