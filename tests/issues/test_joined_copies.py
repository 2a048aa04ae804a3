"""Many results of a custom kernel joined: each was copied by a launch of its own, which took longer than the rest."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import KernelInfo, Tensor, UOp
from tilewright.base.events import subscribe


def double(out: UOp, x: UOp) -> UOp:
    i = UOp.range(x.shape[0], 0)
    return out[i].set(x[i] * 2, end=i).sink(arg=KernelInfo("double"))


def launches(tensor: Tensor) -> list[str]:
    seen: list[str] = []
    with subscribe(lambda event: seen.append(str(event["name"])), ("kernel-run",)):
        tensor.realize()
    return seen


@pytest.mark.parametrize("count", [9, 16, 37, 64])
def test_results_of_custom_kernels_are_copied_together(count: int) -> None:
    rows = np.arange(count * 12, dtype=np.float32).reshape(count, 12)
    parts = [Tensor(row).realize() for row in rows]
    joined = Tensor.stack(*(Tensor.custom_kernel(Tensor.empty(12), part, fxn=double)[0] for part in parts))
    seen = launches(joined)
    assert seen.count("double") == count
    assert len(seen) - count == count // 8 + count % 8
    np.testing.assert_array_equal(joined.numpy(), rows * 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_small_buffers_are_copied_together(axis: int) -> None:
    arrays = [np.full((2, 3, k % 5 + 1 if axis == -1 else 4), k, np.float32) for k in range(30)]
    joined = Tensor.cat(*(Tensor(array).realize() for array in arrays), dim=axis)
    assert len(launches(joined)) == 3 + 6
    np.testing.assert_array_equal(joined.numpy(), np.concatenate(arrays, axis))


def test_large_and_computed_values_are_stored_by_themselves() -> None:
    large = [Tensor.full((1 << 15,), float(k)).contiguous().realize() for k in range(10)]
    assert len(launches(Tensor.cat(*large))) == 10
    computed = [Tensor.full((4,), float(k)).contiguous().realize() * 2 for k in range(10)]
    assert len(launches(Tensor.cat(*computed))) == 10


def test_a_tensor_that_is_multiplied_by_a_padded_one_in_place() -> None:
    """Its loop was cut at the edges of the padding, and no order of the parts reads the tensor before it is written."""
    x, y = np.arange(2061, dtype=np.float32), np.arange(316, dtype=np.float32)
    found = Tensor(x).realize()
    found *= Tensor(y).pad((996, 749))
    np.testing.assert_array_equal(found.numpy(), x * np.pad(y, (996, 749)))
