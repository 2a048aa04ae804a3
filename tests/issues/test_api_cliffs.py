"""Operations outside the families of `bench/sweep.py` that took far longer than torch's on the CPU: what their kernels
look like, and their values beside NumPy."""

from __future__ import annotations

from tilewright import GlobalCounters, Tensor


def test_a_stored_constant_is_written_once() -> None:
    """`full(...).contiguous()` had been stored in a temporary and copied."""
    constant = Tensor.full((40, 25), 3.5).contiguous()
    before = GlobalCounters.kernel_count
    assert constant.tolist() == [[3.5] * 25] * 40
    assert GlobalCounters.kernel_count == before + 1
