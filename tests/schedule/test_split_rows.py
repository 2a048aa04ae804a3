"""Sums over the rows of a large matrix on a CPU: each core takes whole rows, in parts that depend on the shape."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.preparation.reduction import LINE, ROW_PARTS, split_reduction


def leaf(*shape: int) -> UOp:
    count = int(np.prod(shape))
    return build.reshape(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, count)), shape)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8192, 768), (0,)),
        ((2000, 999), (0,)),
        ((1999, 999), (0,)),
        ((50257, 768), (0,)),
        ((1, 6000, 1000), (1,)),
        ((64, 56, 56, 128), (0, 1, 2)),
        ((3, 4096, 1024), (1,)),
    ],
    ids=str,
)
def test_rows_are_parted(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    split = split_reduction(build.reduce_axis(Ops.ADD, leaf(*shape), axes))
    assert split is not None
    assert split.shape == tuple(size for axis, size in enumerate(shape) if axis not in axes) or 1 in split.shape
    sums = partial_sums(split)
    assert 4 <= max(set(sums.shape) & set(range(ROW_PARTS + 1))) <= ROW_PARTS


def partial_sums(split: UOp) -> UOp:
    """The first kernel's results. Rows that are left over are added by the second kernel."""
    sums = (split.src[0] if split.op is Ops.ADD else split).src[0].src[0]
    assert sums.op is Ops.CONTIGUOUS
    return sums


@pytest.mark.parametrize("rows", [10999, 11000, 4099])
def test_the_parts_of_a_vector_by_a_matrix_are_stored_row_by_row(rows: int) -> None:
    """Where no number of parts divided the rows, each element was a page away from the last one: 1x10999 @ 10999x572
    took 20 times as long as 1x11000 @ 11000x572."""
    shape = (1, 572, rows)
    vector = build.expand(build.reshape(leaf(rows), (1, 1, rows)), shape)
    matrix = build.reshape(build.permute(leaf(rows, 572), (1, 0)), shape)
    split = split_reduction(build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, vector, matrix), (2,)))
    assert split is not None
    sums = partial_sums(split)
    assert 4 <= sums.shape[0] <= ROW_PARTS
    assert sums.shape[1:] == (1, 572, 1)
    assert not any(node.op is Ops.PAD for node in toposort(split)), "a mask for every row"


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((512, 512), (0,)),  # a core's cache holds it
        ((768, 8192), (1,)),  # rows are summed, not columns
        ((256, 65536), (0,)),  # a part of a row is long
        ((64, 1024, 256), (1,)),  # many matrices
        ((40, 14979), (0,)),  # fewer rows than a part has
        ((100, 8000), (0,)),
    ],
    ids=str,
)
def test_others_are_not(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert split_reduction(build.reduce_axis(Ops.ADD, leaf(*shape), axes)) is None


@pytest.mark.parametrize("rows", [16411, 16384])
def test_values(rows: int) -> None:
    x = np.random.default_rng(5).standard_normal((rows, 257), dtype=np.float32) - 9
    tensor = Tensor(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(tensor.sum(0).numpy(), exact.sum(0), rtol=3e-7)
    assert np.array_equal(tensor.max(0).numpy(), x.max(0))
    v = np.random.default_rng(6).standard_normal((1, rows), dtype=np.float32)
    np.testing.assert_allclose((Tensor(v) @ tensor).numpy(), v.astype(np.float64) @ exact, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize(
    "shape", [(1000003,), (14, 13, 1735), (20, 60013), (1001, 1001), (3, 5, 7, 11, 13, 17, 2)], ids=str
)
def test_all_of_an_array_is_parts_of_whole_vectors_and_a_rest(shape: tuple[int, ...], op: Op) -> None:
    """The least of 1000003 elements took 5 times as long as torch's: the last part was padded, and each vector of each
    part evaluated a mask. Of 14x13x1735 each of 182 rows had such a part."""
    split = split_reduction(build.reduce_axis(op, leaf(*shape), tuple(range(len(shape)))))
    assert split is not None
    nodes = toposort(split)
    assert not any(node.op is Ops.PAD for node in nodes)
    reads = [node.src[0] for node in nodes if node.op is Ops.REDUCE_AXIS and node.src[0].op is Ops.RESHAPE]
    parts, length = next(read.shape for read in reads if len(read.shape) == 2)
    assert length % LINE == 0
    assert 0 <= int(np.prod(shape)) - parts * length < parts * LINE


def test_axes_that_are_adjacent_in_memory_are_reduced_as_one() -> None:
    """The largest of each 24x77x46 took 163 us: parts had one of 77 rows, of 46 elements. As one axis 49 (torch 39)."""
    split = split_reduction(build.reduce_axis(Ops.MAX, leaf(3, 24, 77, 46), (1, 2, 3)))
    assert split is not None
    reads = [node.src[0] for node in toposort(split) if node.op is Ops.REDUCE_AXIS and len(node.src[0].shape) == 3]
    assert reads
    assert all(read.shape[0] == 3 for read in reads)
    assert max(read.shape[2] for read in reads) >= 1024


def test_a_product_of_few_results_is_parts_and_a_rest() -> None:
    """8x50021x64 took 5.5 ms, 8x50000x64 2.2."""
    rows = build.expand(build.reshape(leaf(50021, 8), (50021, 8, 1)), (50021, 8, 64))
    columns = build.expand(build.reshape(leaf(50021, 64), (50021, 1, 64)), (50021, 8, 64))
    split = split_reduction(build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, rows, columns), (0,)))
    assert split is not None
    assert not any(node.op is Ops.PAD for node in toposort(split))


def test_a_permuted_array_is_reduced_in_the_order_of_memory() -> None:
    """The sum of a permuted 101x103x107 took five times as long as that of the array itself."""
    own, doubled = leaf(101, 103, 107), build.const(dtypes.float32, 2, (107, 101, 103))
    permuted = build.alu(Ops.MUL, build.permute(own, (2, 0, 1)), doubled)
    for axes, same in (((0, 1, 2), (0, 1, 2)), ((0, 2), (1, 2))):
        found = split_reduction(build.reduce_axis(Ops.ADD, permuted, axes))
        plain = build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, own, own.const_like(2)), same)
        assert found is not None
        assert build.stored_root(found) is build.stored_root(split_reduction(plain) or plain)
    # Results by the last axis, then by the second.
    assert split_reduction(build.reduce_axis(Ops.ADD, permuted, (1,))) is None


def test_arrays_in_two_orders_are_not_read_as_one_axis() -> None:
    """A core would divide to find each element."""
    permuted = build.permute(leaf(101, 103, 107), (2, 0, 1))
    both = build.alu(Ops.ADD, permuted, leaf(107, 101, 103))
    split = split_reduction(build.reduce_axis(Ops.ADD, both, (0, 1, 2)))
    assert split is not None
    assert not any(
        node.op is Ops.RESHAPE and node.src[0] is permuted and len(node.shape) < 3 for node in toposort(split)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(100003,), (7, 50021), (33, 7, 1013), (50021, 3), (3, 101, 113)], ids=str)
def test_values_of_parts_and_rests(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).standard_normal(shape, dtype=np.float32) + 1
    for axes in (None, (0,), (len(shape) - 1,), tuple(range(1, len(shape))) or (0,)):
        exact = x.astype(np.float64)
        np.testing.assert_allclose(Tensor(x).sum(axes).numpy(), exact.sum(axes), rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(Tensor(x).var(axes).numpy(), exact.var(axes, ddof=1), rtol=1e-5, atol=1e-5)
        assert np.array_equal(Tensor(x).max(axes).numpy(), x.max(axes))
    x.reshape(-1)[-1] = np.nan
    assert np.isnan(Tensor(x).max().numpy())
    assert np.isnan(Tensor(x).sum().numpy())


PROGRAM = """
import hashlib, numpy as np
from tilewright import Tensor
x = Tensor(np.random.default_rng(5).standard_normal((16384, 260), dtype=np.float32))
print(hashlib.sha256(x.sum(0).numpy().tobytes()).hexdigest())
"""


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "TILEWRIGHT_THREADS": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(found) == 1
