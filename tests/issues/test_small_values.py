"""Found by the fuzzer: values that were kept wider or more exact than their dtype."""

from __future__ import annotations

import pytest

from tilewright import Tensor, dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops

DEVICES = ["CPU", "PYTHON"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16, dtypes.float8_e5m2])
def test_result_of_a_small_float_reduction_is_rounded_before_it_is_used(device: str, dtype: object) -> None:
    """The accumulator is float32; a consumer in the same kernel used to see it before rounding."""
    x = Tensor([[-0.2734375], [-0.90234375]], device=device).cast(dtype).realize()  # type: ignore[arg-type]
    total = build.reduce_axis(Ops.ADD, x.uop, (0,))
    fused = Tensor._from_uop(build.cast(total, dtypes.float32), device).tolist()
    stored = Tensor._from_uop(total, device).realize().cast(dtypes.float32).tolist()
    assert fused == stored


@pytest.mark.parametrize("device", DEVICES)
def test_bits_through_bool_are_forgotten(device: str) -> None:
    """uint8 60 seen as bool is True, whose bits are 1."""
    x = Tensor([60, 0, 1], device=device, dtype=dtypes.uint8).realize()
    assert x.bitcast(dtypes.bool).bitcast(dtypes.uint8).tolist() == [1, 0, 1]


def test_memory_of_float16_can_be_viewed() -> None:
    """Python 3.11's memoryview cannot be cast to float16."""
    view = Tensor([[1.5, 2.0], [3.0, 4.0]], dtype=dtypes.float16).data()
    assert (view.format, view.shape, view.nbytes) == ("e", (2, 2), 8)
