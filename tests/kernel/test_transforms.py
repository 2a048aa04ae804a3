"""Kernel transforms, alone and in random rows, leave a kernel's result as it is, and what they may not do is refused
with the axis, the size and the rule.

The plain kernel, interpreted, says what is right. The emulator checks bounds, races and unwritten memory on the way;
`tests/fuzz/opts.py` goes on with more kernels and more opts."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.opts import TARGETS, Pair, check_pair, draw_opts, kernels_of_case
from tests.kernel.kernels import ORDERED, SCHEDULED, add, contents, expected, kernel, kernel_of, leaf, refusal_of
from tilewright.base.config import Context
from tilewright.base.errors import KernelOptError
from tilewright.engine.compilation.compile import compile_kernel, forget_kernels
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.apply import apply_opt, describe_axes
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.runtime.device import open_driver

UPCAST, UNROLL, THREAD, LOCAL, PADTO = OptOps.UPCAST, OptOps.UNROLL, OptOps.THREAD, OptOps.LOCAL, OptOps.PADTO
GROUP, GROUPTOP, STAGE, SWAP, NOLOCALS = OptOps.GROUP, OptOps.GROUPTOP, OptOps.STAGE, OptOps.SWAP, OptOps.NOLOCALS
BLOCK = OptOps.BLOCK
ON_THE_CPU = (UPCAST, UNROLL, THREAD, PADTO, SWAP, BLOCK, STAGE)
KERNELS = (*SCHEDULED, *ORDERED)


def run(ast: UOp, opts: tuple[Opt, ...] | None, device: str, data: dict[UOp, np.ndarray]) -> dict[int, np.ndarray]:
    """What the kernel with these opts leaves in its buffers, by slot."""
    named = ast.replace(arg=KernelInfo("test", opts_to_apply=opts))
    with Context(VERIFY_GRAPH=1, CACHE=0, BEAM=0):
        compiled = compile_kernel(named, device)
    driver = open_driver(device)
    read = {param.slot for param in compiled.program.params if param.is_read}
    memories = {}
    for node, values in data.items():
        memory = memories[node.arg.slot] = driver.allocate(max(values.nbytes, 1))
        if node.arg.slot in read or device != "PYTHON":
            driver.copy_in(memory, 0, memoryview(values.view(np.uint8)))
    driver.prepare([(compiled.handle, [(memories[slot], 0) for slot in sorted(memories)])]).run()
    driver.synchronize()
    found = {node.arg.slot: np.empty_like(values) for node, values in data.items()}
    for slot, values in found.items():
        driver.copy_out(memories[slot], 0, memoryview(values.view(np.uint8)))
    return found


def check(ast: UOp, opts: tuple[Opt, ...] | None, devices: tuple[str, ...], seed: int = 0) -> None:
    data = contents(ast, seed)
    want = expected(ast, data)
    for device in devices:
        got = run(ast, opts, device, data)
        for slot, values in want.items():
            np.testing.assert_array_equal(got[slot], values, err_msg=f"{device} {opts}")


def test_two_tiles_of_which_each_is_a_vector_somewhere() -> None:
    """The reduce tile is the vector of the loads, the output tile that of the store: its lanes are single results."""
    check(kernel("row_sums"), (Opt(UPCAST, 0, 4), Opt(UPCAST, 1, 8)), ("CPU", "PYTHON"))


def legal_opts(ast: UOp, ops: tuple[OptOps, ...]) -> list[Opt]:
    """Every single opt with a small amount that its check allows."""
    view = view_kernel(recognise_accumulators(ast))
    found = []
    for op in ops:
        for position, axis in enumerate(view.axes):
            for amount in dict.fromkeys((0, 1, 2, 3, 4, 5, 8, size_of(axis))):
                if TRANSFORMS[op].check(view, axis, amount) is None:
                    found.append(Opt(op, position, amount))
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", KERNELS)
def test_every_single_opt_on_the_emulator(name: str) -> None:
    ops = tuple(op for op in TRANSFORMS if TRANSFORMS[op].takes_axis and op is not OptOps.TC)
    for number, opt in enumerate(legal_opts(kernel(name), ops)):
        failure = check_pair(Pair(number, name, kernel(name), (opt,), TARGETS[number % len(TARGETS)]))
        assert failure is None, (opt, failure)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", KERNELS)
def test_every_single_opt_on_the_cpu(name: str) -> None:
    for opts in ((), *((opt,) for opt in legal_opts(kernel(name), ON_THE_CPU))):
        check(kernel(name), opts, ("CPU",))
    forget_kernels()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KERNELS)
def test_the_heuristic_changes_nothing(name: str) -> None:
    check(kernel(name), None, ("CPU", "PYTHON"))
    for target in TARGETS:
        busy = replace(target, cores=64)
        failure = check_pair(Pair(0, name, kernel(name), None, busy))  # type: ignore[arg-type]
        assert failure is None, failure


# ---------------------------------------------------------------- rows of random opts


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(KERNELS), target=st.sampled_from(TARGETS), chance=st.randoms(use_true_random=False))
def test_random_rows_of_opts_change_nothing(name: str, target, chance: random.Random) -> None:
    opts = draw_opts(kernel(name), chance, target)
    failure = check_pair(Pair(0, name, kernel(name), opts, target))
    assert failure is None, (opts, failure)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SCHEDULED)
def test_random_rows_of_opts_on_the_cpu(name: str) -> None:
    for seed in range(4):
        opts = draw_opts(kernel(name), random.Random(f"{name} {seed}"), TARGETS[0])
        check(kernel(name), tuple(cpu_opts(kernel(name), opts)), ("CPU",))
    forget_kernels()


def cpu_opts(ast: UOp, opts: tuple[Opt, ...]) -> list[Opt]:
    """The opts before the first that needs a work-group."""
    found = []
    for opt in opts:
        if opt.op not in ON_THE_CPU:
            break
        found.append(opt)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 240, 60))
def test_random_opts_on_random_kernels(first: int) -> None:
    tried = 0
    for seed in range(first, first + 60):
        for number, ast in enumerate(kernels_of_case(seed)):
            opts = draw_opts(ast, random.Random(f"{seed} {number}"), TARGETS[0])
            check(ast, tuple(cpu_opts(ast, opts)), ("CPU", "PYTHON"), seed)
            tried += 1
    forget_kernels()
    assert tried > 3


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "opts", "words"),
    [
        ("elementwise", (Opt(UPCAST, 0, 5),), ("UPCAST", "amount 5", "size 12", "axis 0")),
        ("elementwise", (Opt(UPCAST, 1, 3),), ("UPCAST", "amount 3", "size 10", "axis 1")),
        ("elementwise", (Opt(UPCAST, 0, 0),), ("UPCAST", "amount 0", "axis 0")),
        ("elementwise", (Opt(UPCAST, 0, "4"),), ("UPCAST", "amount '4'", "not a number")),
        ("elementwise", (Opt(UPCAST, 0, 4), Opt(UNROLL, 2, 2)), ("UNROLL", "reduce axis", "axis 2", "UPCAST")),
        ("row_sums", (Opt(UNROLL, 1, 7),), ("UNROLL", "amount 7", "size 24", "axis 1")),
        ("row_sums", (Opt(THREAD, 1, 4),), ("THREAD", "output loop", "axis 1")),
        ("row_sums", (Opt(LOCAL, 1, 4),), ("LOCAL", "output loop", "axis 1")),
        ("elementwise", (Opt(LOCAL, 0, 7),), ("LOCAL", "amount 7", "size 12", "axis 0")),
        ("elementwise", (Opt(THREAD, 0, 12), Opt(THREAD, 0, 4)), ("THREAD", "needs a loop", "axis 0 is THREAD")),
        ("elementwise", (Opt(PADTO, 0, 4),), ("PADTO", "size 12", "axis 0", "multiple")),
        ("elementwise", (Opt(PADTO, 0, 0),), ("PADTO", "0", "not positive")),
        ("elementwise", (Opt(UPCAST, 1, 10), Opt(PADTO, 1, 16)), ("PADTO", "axis 1", "UPCAST")),
        ("elementwise", (Opt(UPCAST, 1, 10), Opt(UPCAST, 1, 2)), ("UPCAST", "axis 1")),
        ("elementwise", (Opt(UPCAST, 2, 2),), ("axes 0 to 1", "LOOP(12)", "LOOP(10)")),
        ("elementwise", (Opt(UPCAST, -1, 2),), ("axes 0 to 1",)),
        ("elementwise", (Opt(GROUP, 0, 4),), ("GROUP", "reduce axis", "axis 0", "LOOP")),
        ("row_sums", (Opt(GROUPTOP, 1, 5),), ("GROUPTOP", "amount 5", "size 24", "axis 1")),
        ("row_sums", (Opt(GROUP, 1, 24), Opt(GROUP, 1, 2)), ("GROUP", "reduce loop", "axis 1", "GROUP")),
        ("elementwise", (Opt(NOLOCALS), Opt(LOCAL, 0, 4)), ("LOCAL", "NOLOCALS")),
        ("row_sums", (Opt(NOLOCALS), Opt(GROUP, 1, 4)), ("GROUP", "NOLOCALS")),
        ("elementwise", (Opt(LOCAL, 0, 4), Opt(NOLOCALS)), ("NOLOCALS", "axis 0", "LOCAL", "size 4")),
        ("elementwise", (Opt(NOLOCALS, 0),), ("NOLOCALS", "whole kernel")),
        ("elementwise", (Opt(SWAP, 0, 2),), ("SWAP", "0 to 1")),
        ("elementwise", (Opt(SWAP, 0, 0),), ("SWAP", "two axes", "axis 0")),
        ("row_sums", (Opt(SWAP, 0, 1),), ("SWAP", "axis 0 is LOOP", "axis 1 is REDUCE")),
        ("product", (Opt(BLOCK, 2, 3),), ("BLOCK", "3", "size 8", "axis 2 is reduced")),
        ("product", (Opt(BLOCK, 0, 7),), ("BLOCK", "7", "size 6", "axis 0")),
        ("updated_in_place", (Opt(BLOCK, 0, 5),), ("BLOCK", "5", "does not divide")),
        ("product", (Opt(BLOCK, 0, 4), Opt(THREAD, 0, 2)), ("THREAD", "buffer 0", "axis 0", "overlap")),
        ("product", (Opt(BLOCK, 0, 4), Opt(LOCAL, 0, 2)), ("LOCAL", "buffer 0", "axis 0", "overlap")),
        ("product", (Opt(BLOCK, 1, 10),), ("BLOCK", "10", "axis 1", "as it is")),
        ("product", (Opt(UPCAST, 0, 2), Opt(BLOCK, 3, 2)), ("BLOCK", "axis 3", "UPCAST")),
        ("product", (Opt(STAGE, 2, 2),), ("STAGE", "operand", "0 to 1")),
        ("product", (Opt(LOCAL, 1, 2), Opt(STAGE, 1, 1)), ("STAGE", "axis 1", "operand 1", "same in all of its 6")),
        ("product", (Opt(STAGE, 2, 0),), ("STAGE", "axis 2", "operand 0", "one element")),
        ("product", (Opt(UPCAST, 0, 6), Opt(STAGE, 2, 0)), ("STAGE", "UPCAST")),
        ("product", (Opt(GROUP, 2, 4), Opt(STAGE, 0, 0)), ("STAGE", "GROUP of size 4")),
        ("gathered", (Opt(UPCAST, 0, 4), Opt(STAGE, 0, 1)), ("STAGE", "operand 1", "computed from other values")),
        ("running_sums", (Opt(UPCAST, 0, 2), Opt(STAGE, 0, 0)), ("STAGE", "only read", "buffer 0")),
        ("product", (Opt(UPCAST, 1, 5), Opt(UNROLL, 2, 2), Opt(STAGE, 2, 1), Opt(UNROLL, 2, 2)), ("UNROLL", "stores")),
        # an update that is no reduction keeps its loop whole
        ("polynomial", (Opt(UNROLL, 1, 2),), ("UNROLL", "axis 1", "not proved")),
        ("polynomial", (Opt(GROUP, 1, 2),), ("GROUP", "axis 1", "not proved")),
        ("polynomial", (Opt(UPCAST, 1, 2),), ("UPCAST", "register placeholder 0", "axis 1", "same address")),
        ("polynomial", (Opt(UPCAST, 0, 2),), ("UPCAST", "register placeholder 0", "axis 0", "same address")),
        ("polynomial", (Opt(LOCAL, 1, 2),), ("LOCAL", "register placeholder 0", "axis 1", "into it or out of it")),
        ("scan", (Opt(LOCAL, 0, 2),), ("LOCAL", "register placeholder 0", "axis 0", "into it or out of it")),
        ("scan", (Opt(THREAD, 0, 2),), ("THREAD", "register placeholder 0", "axis 0")),
        ("moved_in_place", (Opt(LOCAL, 0, 11),), ("LOCAL", "buffer 0", "axis 0", "read at other addresses")),
        ("moved_in_place", (Opt(UPCAST, 0, 11),), ("UPCAST", "buffer 0", "axis 0", "read at other addresses")),
        ("overwritten", (Opt(UPCAST, 0, 2),), ("UPCAST", "buffer 0", "axis 0", "same address")),
        ("overwritten", (Opt(LOCAL, 0, 2),), ("LOCAL", "buffer 0", "axis 0", "same address")),
        ("scattered", (Opt(LOCAL, 0, 2),), ("LOCAL", "buffer 0", "axis 0", "may be equal")),
        ("reversed_rows", (Opt(LOCAL, 2, 2),), ("LOCAL", "local placeholder 0", "axis 2")),
        ("reversed_rows", (Opt(LOCAL, 0, 2),), ("LOCAL", "local placeholder 0", "axis 0")),
        ("triangle", (Opt(UPCAST, 0, 5),), ("UPCAST", "the size of axis 1 depends on axis 0")),
        ("triangle", (Opt(LOCAL, 0, 5),), ("LOCAL", "the size of axis 1 depends on axis 0")),
        ("triangle", (Opt(GROUP, 1, 2),), ("GROUP", "size of axis 1 is computed")),
        ("sums_and_scaled", (Opt(THREAD, 1, 4),), ("THREAD", "buffer 0", "does not depend on axis 1")),
    ],
)
def test_an_illegal_opt_is_refused_with_its_reason(name: str, opts: tuple[Opt, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(KernelOptError) as refusal:
        run(kernel(name), opts, "PYTHON", contents(kernel(name)))
    text = str(refusal.value)
    for word in words:
        assert word in text
    assert repr(opts[-1]) in text


def test_a_kernel_that_was_refused_can_be_run_with_other_opts() -> None:
    with pytest.raises(KernelOptError):
        run(kernel("elementwise"), (Opt(UPCAST, 0, 5),), "CPU", contents(kernel("elementwise")))
    check(kernel("elementwise"), (Opt(UPCAST, 0, 4),), ("CPU",))


@pytest.mark.parametrize(
    ("name", "opt"), [("elementwise", Opt(LOCAL, 0, 4)), ("row_sums", Opt(LOCAL, 0, 4)), ("row_sums", Opt(GROUP, 1, 4))]
)
def test_work_groups_on_a_device_without_them_are_refused(name: str, opt: Opt) -> None:
    with pytest.raises(KernelOptError, match=f"{opt.op.name} needs work-groups"):
        run(kernel(name), (opt,), "CPU", contents(kernel(name)))


def test_a_work_group_larger_than_the_device_runs_is_refused() -> None:
    ast = kernel_of(add(leaf(0, 64, 64), leaf(1, 64, 64)))
    with pytest.raises(KernelOptError, match="work-group of 2048"):
        run(ast, (Opt(LOCAL, 0, 64), Opt(LOCAL, 1, 32)), "PYTHON", contents(ast))


@pytest.mark.parametrize(("name", "axis", "is_masked"), [("product", 2, False), ("greatest_of_negatives", 1, True)])
def test_padding_masks_a_sum_only_where_what_it_adds_is_not_zero(name: str, axis: int, is_masked: bool) -> None:
    """A product of two loads that are masked off is 0; the identity of a maximum is not."""
    sink = apply_opt(kernel(name), Opt(PADTO, axis, 16))
    (reduce,) = view_kernel(sink).reduces
    assert (reduce.src[0].op is Ops.WHERE) is is_masked


def test_a_panel_larger_than_a_kernel_may_have_is_refused() -> None:
    ast = kernel_of(add(leaf(0, 2, 1 << 22), build_reversed(leaf(1, 2, 1 << 22))))
    with pytest.raises(KernelOptError, match="16777216 bytes of local memory are more than 8388608"):
        run(ast, (Opt(STAGE, 0, 0),), "CPU", contents(ast))


def build_reversed(x: UOp) -> UOp:
    from tilewright.graph import build

    return build.flip(x, (1,))


# ---------------------------------------------------------------- shapes of the result


@pytest.mark.parametrize(
    ("name", "opt", "axes"),
    [
        ("elementwise", Opt(UPCAST, 0, 4), "0:LOOP(3), 1:LOOP(10), 2:UPCAST(4)"),
        ("elementwise", Opt(UPCAST, 1, 10), "0:LOOP(12), 1:UPCAST(10)"),
        ("elementwise", Opt(LOCAL, 0, 4), "0:LOCAL(4), 1:LOOP(3), 2:LOOP(10)"),
        ("elementwise", Opt(THREAD, 0, 4), "0:THREAD(4), 1:LOOP(3), 2:LOOP(10)"),
        ("elementwise", Opt(PADTO, 1, 16), "0:LOOP(12), 1:LOOP(16)"),
        ("elementwise", Opt(SWAP, 0, 1), "0:LOOP(10), 1:LOOP(12)"),
        ("elementwise", Opt(NOLOCALS), "0:LOOP(12), 1:LOOP(10)"),
        ("row_sums", Opt(UNROLL, 1, 4), "0:LOOP(12), 1:REDUCE(6), 2:UNROLL(4)"),
        ("row_sums", Opt(GROUP, 1, 8), "0:LOOP(12), 1:GROUP(8), 2:REDUCE(3)"),
        ("row_sums", Opt(GROUPTOP, 1, 8), "0:LOOP(12), 1:GROUP(8), 2:REDUCE(3)"),
        ("product", Opt(BLOCK, 1, 5), "0:LOOP(6), 1:LOOP(2), 2:LOOP(5), 3:REDUCE(8)"),
        ("product", Opt(BLOCK, 0, 4), "0:LOOP(2), 1:LOOP(4), 2:LOOP(10), 3:REDUCE(8)"),
        ("product", Opt(BLOCK, 2, 2), "0:LOOP(6), 1:LOOP(10), 2:REDUCE(4), 3:REDUCE(2)"),
        ("row_sums", Opt(STAGE, 0, 0), "0:LOOP(12), 1:REDUCE(24), 2:UPCAST(24)"),
    ],
)
def test_the_axes_after_an_opt(name: str, opt: Opt, axes: str) -> None:
    assert describe_axes(view_kernel(apply_opt(kernel(name), opt))) == axes


@pytest.mark.parametrize(
    ("opt", "steps"),
    [
        (Opt(GROUP, 1, 8), {AxisType.GROUP: 1, AxisType.REDUCE: 8}),
        (Opt(GROUPTOP, 1, 8), {AxisType.GROUP: 3, AxisType.REDUCE: 1}),
        (Opt(UNROLL, 1, 8), {AxisType.UNROLL: 1, AxisType.REDUCE: 8}),
        (Opt(LOCAL, 0, 4), {AxisType.LOCAL: 24, AxisType.LOOP: 96}),
        (Opt(THREAD, 0, 4), {AxisType.THREAD: 72, AxisType.LOOP: 24}),
    ],
)
def test_which_part_of_an_axis_is_taken(opt: Opt, steps: dict[AxisType, int]) -> None:
    """How far apart in memory neighbours along each new axis lie."""
    from tilewright.kernel.axes import stride

    view = view_kernel(apply_opt(kernel("row_sums"), opt))
    (place,) = view.loads
    for kind, step in steps.items():
        assert stride(place, view.of_kind(kind)[0]) == step


def test_a_split_keeps_the_number_of_iterations() -> None:
    for name in SCHEDULED:
        ast = kernel(name)
        count = math.prod(size_of(axis) for axis in view_kernel(ast).axes)
        for opt in legal_opts(ast, (UPCAST, UNROLL, THREAD, LOCAL, GROUP, GROUPTOP, SWAP)):
            after = view_kernel(apply_opt(ast, opt))
            assert math.prod(size_of(axis) for axis in after.axes) == count, describe_axes(after)


def test_padding_masks_the_axis() -> None:
    after = view_kernel(apply_opt(kernel("elementwise"), Opt(PADTO, 1, 16)))
    assert all(len(access.src) == 3 for access in after.accesses)


def test_loops_are_not_swapped_where_a_barrier_orders_one_of_them() -> None:
    """A copy that threads share was made again in the inner loop, behind a barrier of the outer one: a race."""
    opts = (Opt(LOCAL, 0, 6), Opt(OptOps.BLOCK, 2, 4), Opt(STAGE, 3, 0), Opt(SWAP, 2, 3))
    check(kernel("product"), opts[:-1], ("PYTHON",))
    assert "a barrier orders the iterations of axis 2 or axis 3" in refusal_of(kernel("product"), opts)


def test_swapped_twice_is_as_before() -> None:
    once = apply_opt(kernel("product"), Opt(SWAP, 0, 1))
    assert once is not kernel("product")
    assert apply_opt(once, Opt(SWAP, 0, 1)) is kernel("product")


def test_two_copies_in_one_loop_share_their_barriers() -> None:
    ast = kernel("square_product")
    for opt in (Opt(LOCAL, 0, 4), Opt(LOCAL, 2, 4), Opt(UNROLL, 4, 4), Opt(STAGE, 4, 0), Opt(STAGE, 4, 0)):
        ast = apply_opt(ast, opt)
    assert sum(node.op is Ops.BARRIER for node in toposort(ast)) == 2
    assert sum(node.op is Ops.DEFINE_LOCAL for node in toposort(ast)) == 2


def test_the_graph_does_not_grow_with_the_unroll_factor() -> None:
    """Tiles stay axes until text is written: an UPCAST by 2 and one by 8 are graphs of one size."""
    ast = kernel("product")
    small, large = (
        toposort(apply_opt(apply_opt(ast, Opt(UPCAST, 0, a)), Opt(UNROLL, 2, b))) for a, b in ((2, 2), (3, 4))
    )
    assert len(small) == len(large)
