"""Keys of grouped queries, repeated for each of their queries, from memory that was updated in the same schedule: the
kernel of the update was taken for one that reads the memory."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import Tensor


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_repeats_of_memory_that_is_updated(device: str, start: int) -> None:
    rng = np.random.default_rng(start)
    keys, new = rng.standard_normal((1, 2, 40, 8)).astype("f4"), rng.standard_normal((1, 2, 17, 8)).astype("f4")
    queries, end = rng.standard_normal((1, 8, 17, 8)).astype("f4"), start + 17
    memory = Tensor(keys, device=device).realize()
    memory[:, :, start:end] = Tensor(new, device=device)
    repeated = memory[:, :, :end].reshape(1, 2, 1, end, 8).expand(1, 2, 4, end, 8).reshape(1, 8, end, 8)
    found = (Tensor(queries, device=device) @ repeated.transpose(-1, -2)).numpy()
    keys[:, :, start:end] = new
    expected = queries @ np.repeat(keys[:, :, :end], 4, 1).swapaxes(-1, -2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
