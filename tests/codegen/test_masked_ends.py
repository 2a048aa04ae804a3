"""The end of a sum in blocks, the last of which is not full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.test_peel import body_of, is_reduce_loop
from tests.kernel.kernels import kernel_of, leaf
from tests.kernel.test_transforms import check, contents, run
from tilewright import Context
from tilewright.backends.cpu.device import cpu_target
from tilewright.codegen.pipeline import lower
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import substitute
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.optimise import prepare_kernel

TARGET = replace(cpu_target(), vector_bytes=16, vector_registers=32, cores=1, masked_itemsizes=())


def product(rows: int, depth: int, columns: int) -> UOp:
    left = build.expand(build.reshape(leaf(0, rows, depth), (rows, depth, 1)), (rows, depth, columns))
    right = build.expand(build.reshape(leaf(1, depth, columns), (1, depth, columns)), (rows, depth, columns))
    return build.reduce_axis(Ops.ADD, left * right, (1,))


def block_opts(depth: int, block: int) -> tuple[Opt, ...]:
    opts = [
        Opt(OptOps.UPCAST, 1, 8),
        Opt(OptOps.UPCAST, 0, 2),
        Opt(OptOps.PADTO, 1, block),
        Opt(OptOps.BLOCK, 1, block),
        Opt(OptOps.SPILL, 0, 1),
        Opt(OptOps.STAGE, 1, 1),
        Opt(OptOps.UNROLL, 2, 2),
    ]
    return tuple(opt for opt in opts if opt.op is not OptOps.PADTO or depth % block)


def blocked(depth: int, *left_out: OptOps) -> tuple[UOp, ...]:
    sink = prepare_kernel(kernel_of(product(4, depth, 8)))
    for opt in block_opts(depth, 264):
        if opt.op not in left_out:
            sink = apply_opt(sink, opt, TARGET)
    return lower(sink, TARGET).body


def padded_sum(has_zeros: bool) -> tuple[UOp, ...]:
    """The loops over 16 terms, of which 10 have a left factor: the right factor is padded too where it `has_zeros`."""
    left = build.pad(leaf(0, 4, 10), ((0, 0), (0, 6)))
    right = build.pad(leaf(1, 4, 10), ((0, 0), (0, 6))) if has_zeros else leaf(1, 4, 16)
    return lower(prepare_kernel(kernel_of(build.reduce_axis(Ops.ADD, left * right, (1,)))), TARGET).body


def accumulations(body: tuple[UOp, ...]) -> list[bool]:
    """For each update inside a loop over a part of a block: whether a load of the same loop has a mask."""
    found: list[bool] = []
    loops: list[list[UOp]] = []
    for node in body:
        if node.op is Ops.RANGE:
            loops.append([])
        elif node.op is Ops.END and loops:
            inside = loops.pop()
            if any(each.op is Ops.ACCUMULATE for each in inside):
                found.append(any(each.op is Ops.LOAD and len(each.src[0].src) > 2 for each in inside))
        elif loops:
            loops[-1].append(node)
    return found


@pytest.mark.parametrize("depth", [1000, 999])
def test_all_but_the_end_is_without_masks(depth: int) -> None:
    with Context(PASS_LIMIT=0):
        assert all(accumulations(blocked(depth)))
    assert sorted(accumulations(blocked(depth))) == [False, True]


def test_blocks_without_a_tile_along_the_sum_have_no_masked_part() -> None:
    """Iterations that add products of zeros are left out."""
    assert accumulations(blocked(999, OptOps.STAGE, OptOps.UNROLL)) == [False]


def test_the_masked_part_ends_where_all_elements_of_a_tile_fail() -> None:
    """Of 999 terms in blocks of 264, in pairs: the last block has 103 pairs and one half of a pair."""
    blocks = [axis for axis in blocked(999, OptOps.STAGE) if axis.op is Ops.RANGE and axis.arg.id[0] == 2]
    block, rest, _ = blocks
    left = [substitute(rest.src[0], {block: const(rest.dtype, number)}).bounds for number in range(4)]
    assert left == [(0, 0), (0, 0), (0, 0), (1, 1)]


def test_terms_that_may_be_no_number_are_kept() -> None:
    """A zero times an unmasked factor, which may be infinite, is not left out."""
    assert len(accumulations(padded_sum(has_zeros=False))) == 2
    assert len(accumulations(padded_sum(has_zeros=True))) == 1


def test_both_parts_have_one_set_of_accumulators() -> None:
    updates = [node for node in blocked(1000) if node.op is Ops.ACCUMULATE]
    assert len(updates) == 2
    assert updates[0].src[0] is updates[1].src[0]


def test_a_full_last_block_has_one_loop() -> None:
    assert accumulations(blocked(1056)) == [False]


def test_a_border_at_both_ends_stays_a_mask() -> None:
    body = body_of(build.reduce_axis(Ops.ADD, build.pad(leaf(0, 8, 57), ((0, 0), (3, 4))), (1,)), TARGET)
    assert sum(map(is_reduce_loop, body)) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [265, 528, 529, 999, 1000, 1055])
def test_values(depth: int) -> None:
    check(kernel_of(product(4, depth, 8)), block_opts(depth, 264), ("CPU", "PYTHON"))


def test_nothing_is_multiplied_by_the_zeros_of_a_block_that_is_not_full() -> None:
    """An infinity times 0 would be NaN."""
    ast = kernel_of(product(4, 1000, 8))
    data = contents(ast, 0)
    by_size = {values.size: values for values in data.values()}
    by_size[4 * 1000][:] = np.inf
    by_size[1000 * 8][:] = 2
    for device in ("CPU", "PYTHON"):
        found = run(ast, block_opts(1000, 264), device, {node: values.copy() for node, values in data.items()})
        (result,) = (values for values in found.values() if values.size == 4 * 8)
        assert np.isposinf(result).all()
