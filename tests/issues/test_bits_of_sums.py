"""With DYNAMIC_KERNELS=1 the bits of a sum do not depend on which sizes the process has seen before. By default the
third size of an expression takes a kernel for all sizes, which adds up in another order than one for its own size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.calls import cache_in
from tilewright import Context, Tensor

WEIGHT = np.random.default_rng(1).standard_normal((24, 5)).astype(np.float32)
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "triangle": lambda x: x.tril(1).sum(0),
    "rows": lambda x: x.exp().sum(1),
    "columns": lambda x: x.T.contiguous().sum(1),
    "all": lambda x: x.sum(),
    "softmax": lambda x: x.softmax(0),
    "product": lambda x: (x.T @ x).relu(),
    "gradient": lambda x: _gradient(x),
    "factors": lambda x: x.prod(0),
}


def _gradient(x: Tensor) -> Tensor:
    weight = Tensor(WEIGHT, requires_grad=True)
    return (x @ weight).log_softmax(-1)[:, 0].mean().gradient(weight)[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with cache_in(tmp_path) as folder, Context(DYNAMIC_KERNELS=1):
        yield folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sum_has_the_same_bits_whatever_came_before(name: str) -> None:
    for length in (10, 20, 29, 50, 77):
        x = np.random.default_rng(length).standard_normal((length, 24)).astype(np.float32)
        found = PROGRAMS[name](Tensor(x)).numpy()
        with Context(DYNAMIC_KERNELS=0):
            alone = PROGRAMS[name](Tensor(x)).numpy()
        np.testing.assert_array_equal(found, alone)
