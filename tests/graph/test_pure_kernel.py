"""A kernel that depends on its arguments alone is written once for arguments of a kind."""

from __future__ import annotations

import pytest

from tilewright import KernelInfo, Tensor, UOp
from tilewright.graph.kernels import custom
from tilewright.graph.kernels.custom import PureKernel


def test_a_kernel_is_written_once_for_arguments_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def doubled(out: UOp, x: UOp) -> UOp:
        shapes.append(x.shape)
        row = UOp.range(x.shape[0], 0)
        return out[row].set(x[row] * 2, end=row).sink(arg=KernelInfo("doubled"))

    kernel = PureKernel(doubled)

    def run(*values: float) -> list[float]:
        x = Tensor(list(values), dtype="float32")
        return Tensor.empty(len(values), dtype="float32").custom_kernel(x, fxn=kernel)[0].tolist()

    assert [run(1, 2), run(3, 4), run(5, 6, 7), run(8, 9)] == [[2, 4], [6, 8], [10, 12, 14], [16, 18]]
    assert shapes == [(2,), (3,)]
    assert kernel.__name__ == "doubled"
    monkeypatch.setattr(custom, "MAX_WRITTEN", 2)
    assert run(1, 2, 3, 4) == [2, 4, 6, 8]
    assert run(1, 2) == [2, 4]
    assert shapes == [(2,), (3,), (4,), (2,)], "what is kept is bounded"
