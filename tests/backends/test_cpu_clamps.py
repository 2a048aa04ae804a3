"""The clamps of an exponential: one MAX on processors whose instruction keeps NaN, and none from above in a softmax."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.llvm_texts import record_texts
from tilewright import Context, Tensor
from tilewright.backends.cpu.host.processors import processor


def test_a_softmax_has_no_comparison_where_one_instruction_clamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exponent is at most 0, so that it is clamped from below alone."""
    x = np.random.default_rng(3).standard_normal((64, 1024)).astype(np.float32) * 50
    texts = record_texts(monkeypatch)
    with Context(CACHE=0):
        found = Tensor(x).softmax(-1).numpy()
    exact = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(found, exact / exact.sum(-1, keepdims=True), rtol=2e-5, atol=1e-38)
    comparisons = {text.count("fcmp olt") for text in texts}
    assert comparisons == ({0} if processor("").has_nan_maximum() else {1})


@pytest.mark.parametrize(
    "row", [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3, [np.inf, np.nan, -np.inf], [3e38, -3e38, 0]]
)
def test_a_softmax_of_special_numbers(row: list[float]) -> None:
    x = np.tile(np.array(row, np.float32), 40)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64) - x.max())
        exact /= exact.sum()
    np.testing.assert_allclose(Tensor(x).softmax(-1).numpy(), exact.astype(np.float32), rtol=1e-5)
