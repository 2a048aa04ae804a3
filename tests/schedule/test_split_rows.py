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
from tilewright.graph.uop import UOp
from tilewright.schedule.reduction import ROW_PARTS, split_reduction


def leaf(*shape: int) -> UOp:
    count = int(np.prod(shape))
    return build.reshape(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, count)), shape)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8192, 768), (0,)),
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
    sums = split.src[0].src[0]
    assert sums.op is Ops.CONTIGUOUS
    assert ROW_PARTS in sums.shape


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1024, 768), (0,)),  # a cache holds it
        ((768, 8192), (1,)),  # rows are summed, not columns
        ((256, 65536), (0,)),  # a part of a row is long
        ((64, 1024, 256), (1,)),  # many matrices
    ],
    ids=str,
)
def test_others_are_not(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert split_reduction(build.reduce_axis(Ops.ADD, leaf(*shape), axes)) is None


def test_values() -> None:
    x = np.random.default_rng(5).standard_normal((16411, 257), dtype=np.float32) - 9
    tensor = Tensor(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(tensor.sum(0).numpy(), exact.sum(0), rtol=3e-7)
    assert np.array_equal(tensor.max(0).numpy(), x.max(0))
    v = np.random.default_rng(6).standard_normal((1, 16411), dtype=np.float32)
    np.testing.assert_allclose((Tensor(v) @ tensor).numpy(), v.astype(np.float64) @ exact, rtol=1e-5, atol=2e-3)


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
