"""What the heuristic chooses on a target with work-groups, by the facts of the target alone: one row per kind of
kernel. That the choice is right is tested in test_transforms.py, that it is fast in bench/gpu.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.kernels import Builder, add, kernel, kernel_of, leaf, matrix_product, mul
from tilewright.backends.python.device import python_target
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.kernels.threads import local_bytes, threads_of
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel import optimise as optimise_module
from tilewright.kernel.apply import apply_opt, describe_axes
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.heuristics.default import choose_opts
from tilewright.kernel.optimise import prepare_kernel
from tilewright.kernel.prepare.accumulators import recognise_accumulators

LARGE = replace(python_target(), cores=132, warp_size=32, max_local_bytes=1 << 17)
SMALL = replace(python_target(), cores=1, max_group_size=64)


def softmax(rows: int, columns: int) -> UOp:
    shape = (rows, columns)
    x = leaf(0, *shape)
    powers = build.alu(Ops.EXP2, build.alu(Ops.SUB, x, build.expand(build.reduce_axis(Ops.MAX, x, (1,)), shape)))
    return build.alu(Ops.FDIV, powers, build.expand(build.reduce_axis(Ops.ADD, powers, (1,)), shape))


def matrix_times_vector(rows: int, columns: int) -> UOp:
    matrix, vector = leaf(0, rows, columns, dtype=dtypes.float16), leaf(1, columns, dtype=dtypes.float16)
    spread = build.expand(build.reshape(vector, (1, columns)), (rows, columns))
    return build.reduce_axis(Ops.ADD, mul(matrix, spread), (1,))


CASES: dict[str, tuple[Builder, str]] = {
    "elementwise: vectors, and threads along memory": (
        lambda: add(leaf(0, 1 << 20), leaf(1, 1 << 20)),
        "0:LOCAL(256), 1:LOOP(1024), 2:UPCAST(4)",
    ),
    "an odd size is padded": (
        lambda: add(leaf(0, 100003), leaf(1, 100003)),
        "0:LOCAL(256), 1:LOOP(391)",
    ),
    "few elements, few threads": (lambda: add(leaf(0, 3), leaf(1, 3)), "0:LOCAL(3)"),
    "rows: threads share each": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 16384, 8192), (1,)),
        "0:LOOP(16384), 1:GROUP(256), 2:REDUCE(8), 3:UPCAST(4)",
    ),
    "few rows, more threads for each": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 256, 1 << 20), (1,)),
        "0:LOOP(256), 1:GROUP(1024), 2:REDUCE(256), 3:UPCAST(4)",
    ),
    "short rows, several to a group": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 16384, 256), (1,)),
        "0:LOCAL(4), 1:LOOP(4096), 2:GROUP(32), 3:REDUCE(2), 4:UPCAST(4)",
    ),
    "softmax: both reductions and the output on the same threads": (
        lambda: softmax(16384, 8192),
        "0:LOCAL(256), 1:LOOP(16384), 2:LOOP(8), 3:GROUP(256), 4:GROUP(256), 5:REDUCE(8), 6:REDUCE(8), "
        "7:UPCAST(4), 8:UPCAST(4), 9:UPCAST(4)",
    ),
    "matrix times vector: 16 bytes at a time": (
        lambda: matrix_times_vector(28672, 8192),
        "0:LOOP(28672), 1:GROUP(256), 2:REDUCE(4), 3:UPCAST(8)",
    ),
    "columns: threads along memory, which share the few": (
        lambda: build.reduce_axis(Ops.ADD, leaf(0, 8192, 8192), (0,)),
        "0:LOCAL(32), 1:LOOP(256), 2:GROUP(32), 3:REDUCE(256)",
    ),
    "product: tiles of threads, of registers, of local memory": (
        lambda: matrix_product(2048, 2048, 2048),
        "0:LOCAL(16), 1:LOCAL(16), 2:LOOP(16), 3:LOOP(16), 4:REDUCE(128), 5:UPCAST(8), 6:UPCAST(8), 7:UNROLL(16), "
        "8:UPCAST(2), 9:UPCAST(4), 10:UPCAST(2), 11:UPCAST(4)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axes_of_a_kernel(name: str) -> None:
    graph, axes = CASES[name]
    sink = prepare_kernel(kernel_of(graph()))
    for opt in choose_opts(view_kernel(sink, LARGE)):
        sink = apply_opt(sink, opt)
    assert describe_axes(view_kernel(sink)) == axes


def test_operands_of_a_product_are_copied_and_only_those() -> None:
    sink = prepare_kernel(kernel_of(matrix_product(256, 256, 256)))
    staged = [opt for opt in choose_opts(view_kernel(sink, LARGE)) if opt.op is OptOps.STAGE]
    assert len(staged) == 2
    rows = prepare_kernel(kernel_of(softmax(64, 256)))
    assert not any(opt.op is OptOps.STAGE for opt in choose_opts(view_kernel(rows, LARGE)))


def test_the_limits_of_the_target_are_kept() -> None:
    tight = replace(SMALL, max_local_bytes=4096)
    for graph in (matrix_product(128, 128, 128), softmax(64, 4096), leaf(0, 4096)):
        sink = prepare_kernel(kernel_of(build.alu(Ops.NEG, graph)))
        for opt in choose_opts(view_kernel(sink, tight)):
            sink = apply_opt(sink, opt)
        assert threads_of(sink).count <= 64
        assert local_bytes(sink, tight.warp_size) <= 4096


def test_an_accumulator_is_no_load() -> None:
    """A running update keeps its register and its loop; threads take the rows."""
    sink = recognise_accumulators(kernel("polynomial"))
    view = view_kernel(sink, LARGE)
    assert len(view.accesses) == 2
    chosen = choose_opts(view)
    assert all(opt.op is OptOps.LOCAL and opt.axis == 0 for opt in chosen)


@pytest.mark.parametrize("target", [LARGE, replace(python_target(), has_local=False, cores=2, vector_bytes=64)])
@pytest.mark.parametrize("make", [lambda: softmax(64, 256), lambda: matrix_product(96, 128, 64)])
def test_what_was_chosen_is_applied_once_and_where_graphs_are_verified_again(
    make: Builder, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Opt] = []
    monkeypatch.setattr(optimise_module, "apply_opt", lambda *given: applied.append(given[1]) or apply_opt(*given))
    with Context(VERIFY_GRAPH=0):
        made = optimise_module.optimise(kernel_of(make()), target)
    assert not applied
    with Context(VERIFY_GRAPH=1):
        assert optimise_module.optimise(kernel_of(make()), target) is made
    assert tuple(applied) == made.arg.applied != ()
