"""LLVM is told of index maths that it does not wrap, which spares it most of the work on addresses, and is told nothing
of the kind of a user's integers, which do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.kernel.kernels import kernel_of, leaf
from tests.kernel.test_products import matrices
from tilewright import Tensor
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise

SIGNED = [dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64]


def text_of(kernel: UOp) -> str:
    target = cpu_target()
    return render(lower(optimise(kernel, target), target), KERNEL_SYMBOL)


def test_index_maths_is_exact() -> None:
    text = text_of(matrices(256, 256, 256, (256, 1, 1, 256)).replace(arg=KernelInfo("product")))
    assert re.search(r"= mul nsw i32 ", text)
    assert re.search(r"= add nsw i32 ", text)
    assert not re.search(r"= (?:mul|add|sub) i32 ", text)


@pytest.mark.parametrize("dtype", [*SIGNED, dtypes.uint32], ids=lambda d: d.name)
def test_data_may_wrap(dtype: DType) -> None:
    left, right = leaf(0, 64, dtype=dtype), leaf(1, 64, dtype=dtype)
    text = text_of(kernel_of((left + right) * left - right))
    data = re.findall(rf"= (?:mul|add|sub)( nsw)? (?:<\d+ x i{dtype.bits}>|i{dtype.bits}) %v\d+, %v\d+", text)
    assert len(data) >= 3
    assert not any(data)


@pytest.mark.parametrize("dtype", SIGNED, ids=lambda d: d.name)
def test_an_integer_past_its_largest_is_its_least(dtype: DType) -> None:
    largest = int(dtype.max)
    # Two data whose order LLVM could tell without adding, if the sum were said not to wrap.
    x = Tensor(np.array([largest, largest - 1, 5] * 7, dtype=dtype.name))
    assert ((x + 1) < x).tolist() == [True, False, False] * 7
    bounded = (x & 7) + 1  # this one cannot wrap, and may be said so
    assert bounded.tolist() == [(largest & 7) + 1, (largest - 1 & 7) + 1, 6] * 7
