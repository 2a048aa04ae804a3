"""What people write in custom kernels elsewhere, and had no place here: slices, rows, sums of them, and choices between
numbers, which ended in an AttributeError. Each kernel is compared with NumPy, on the CPU and on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import AddrSpace, AxisType, KernelInfo, Ops, Opt, OptOps, Tensor, UOp, dtypes, jit
from tilewright.base.errors import DTypeError
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.walk import toposort

Array = np.ndarray[Any, Any]
A = (np.arange(60, dtype=np.float32).reshape(6, 10) * 37 % 17 - 6) / 8
B = (np.arange(50, dtype=np.float32).reshape(10, 5) * 23 % 11 - 4) / 8
I, J = UOp.range(6, 0), UOp.range(10, 1)


def gemm(out: UOp, a: UOp, b: UOp) -> UOp:
    j = UOp.range(5, 1)
    return out[I, j].set((a[I, :] * b[:, j]).sum(), end=(I, j)).sink()


def row_sum_by_hand(out: UOp, a: UOp) -> UOp:
    row = a[I, :]
    acc = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG)
    acc = acc.after(I)[0].set(0)
    col = UOp.range(10, 1, axis_type=AxisType.REDUCE)
    acc = acc[0].set(acc.after(col)[0] + row[col], end=col)
    return out[I].set(acc[0], end=I).sink()


def written_by_rows(out: UOp, a: UOp) -> UOp:
    row = out[I]
    row = row[J].set(a[I, J] * 2, end=J)
    return row.end(I).sink()


def softmax(out: UOp, a: UOp) -> UOp:
    powers = (a[I] - a[I].max()).alu(Ops.EXP2)
    return out[I, J].set(powers[J] / powers.sum(), end=(I, J)).sink()


def moments(mean: UOp, a: UOp) -> UOp:
    first = a[I].sum() / 10
    return mean[I].set((a[I] * a[I]).sum() / 10 - first * first, end=I).sink()


def thirds(out: UOp, a: UOp) -> UOp:
    k = UOp.range(3, 0)
    return out[k].set(a.flatten()[k * 20 : k * 20 + 20].sum(), end=k).sink()


def each(value: Callable[[UOp], UOp]) -> Callable[..., UOp]:
    return lambda out, a: out[I, J].set(value(a), end=(I, J)).sink()


def row(value: Callable[[UOp], UOp]) -> Callable[..., UOp]:
    return lambda out, a: out[I].set(value(a), end=I).sink()


KERNELS: dict[str, tuple[Callable[..., UOp], tuple[Array, ...], Array]] = {
    "sum": (row(lambda a: a[I].sum()), (A,), A.sum(1)),
    "max": (row(lambda a: a[I].max()), (A,), A.max(1)),
    "min": (row(lambda a: a[I].min()), (A,), A.min(1)),
    "prod": (row(lambda a: (a[I] / 4 + 1).prod()), (A,), (A / 4 + 1).prod(1)),
    "all": (lambda out, a: out[0].set(a.sum()).sink(), (A,), A.sum().reshape(1)),
    "axis": (lambda out, a: out[J].set(a.sum(axis=0)[J], end=J).sink(), (A,), A.sum(0)),
    "keepdim": (row(lambda a: a.max(axis=1, keepdim=True)[I, 0]), (A,), A.max(1)),
    "nested": (lambda out, a: out[0].set(a.max(axis=1).sum()).sink(), (A,), A.max(1).sum().reshape(1)),
    "slice": (row(lambda a: a[I, 2:9:3].sum()), (A,), A[:, 2:9:3].sum(1)),
    "backwards": (row(lambda a: a[5 - I, ::-1][3]), (A,), A[::-1, ::-1][:, 3]),
    "ellipsis": (row(lambda a: a[..., 4][I]), (A,), A[:, 4]),
    "of-a-slice": (row(lambda a: a[:, 1:][I][2:][0]), (A,), A[:, 3]),
    "columns": (lambda out, a: out[J].set(a[:, J].max(), end=J).sink(), (A,), A.max(0)),
    "computed-ends": (thirds, (A,), A.reshape(3, 20).sum(1)),
    "gemm": (gemm, (A, B), A @ B),
    "softmax": (softmax, (A,), 2**A / (2**A).sum(1, keepdims=True)),
    "two-sums": (moments, (A,), A.var(1)),
    "by-hand": (row_sum_by_hand, (A,), A.sum(1)),
    "written": (written_by_rows, (A,), A * 2),
    "where-numbers": (each(lambda a: (a[I, J] > 0).where(1, 0)), (A,), (A > 0).astype(np.float32)),
    "where-factor": (each(lambda a: (a[I, J] > 0).where(1.5, -1) * a[I, J]), (A,), np.where(A > 0, 1.5, -1) * A),
    "where-first": (each(lambda a: (a[I, J] > 0).where(2, a[I, J])), (A,), np.where(A > 0, 2, A)),
    "where-nested": (
        each(lambda a: (a[I, J] > 0).where((a[I, J] > 0.5).where(2, 1), 0)),
        (A,),
        np.where(A > 0, np.where(A > 0.5, 2, 1), 0).astype(np.float32),
    ),
}


def run(kernel: Callable[..., UOp], inputs: tuple[Array, ...], like: Array, device: str = "CPU") -> Array:
    out = Tensor.empty(*like.shape, dtype=str(like.dtype), device=device)
    given = [Tensor(each, device=device) for each in inputs]
    found: Array = Tensor.custom_kernel(out, *given, fxn=kernel)[0].numpy()
    return found


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_over_parts(name: str, device: str) -> None:
    kernel, inputs, expected = KERNELS[name]
    wanted = expected.astype(np.float32)
    np.testing.assert_allclose(run(kernel, inputs, wanted, device), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "opt"),
    [("PYTHON", Opt(OptOps.GROUPTOP, 1, 16)), ("CPU", Opt(OptOps.UPCAST, 1, 16)), ("CPU", Opt(OptOps.UNROLL, 0, 4))],
)
def test_opts_apply_to_its_loops(device: str, opt: Opt) -> None:
    x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    i = UOp.range(8, 0)

    def kernel(out: UOp, a: UOp) -> UOp:
        return out[i].set(a[i].sum(), end=i).sink(arg=KernelInfo("sums", (opt,)))

    np.testing.assert_array_equal(run(kernel, (x,), x[:, 0], device), x.sum(1))


def test_a_kernel_written_twice_is_one() -> None:
    out, a = make_argument(0, dtypes.float32, (6,)), make_argument(1, dtypes.float32, (6, 10))
    first, second = (out[I].set(a[I].sum() + a[I].max(), end=I).sink() for _ in range(2))
    assert first is second
    assert not any(node.op is Ops.VIEW for node in toposort(first))


def test_the_dtype_of_a_sum_and_of_numbers() -> None:
    small = np.full((6, 10), 100, np.int8)
    kernel = row(lambda a: a[I].sum(dtype="int32"))
    np.testing.assert_array_equal(run(kernel, (small,), np.zeros(6, np.int32)), [1000] * 6)
    for number, dtype in ((1, dtypes.int32), (1.5, dtypes.float32), (True, dtypes.bool)):
        assert (I < 3).where(number, number * 0).dtype is (dtypes.int32 if number is True else dtype)
    assert (I < 3).where(True, False).dtype is dtypes.bool
    with pytest.raises(DTypeError, match="float32 into memory of int32"):
        make_argument(0, dtypes.int32, (6,))[I].store((I < 3).where(0.5, 0))


def test_the_same_on_nodes_of_a_tensor() -> None:
    node = Tensor(A).realize().uop

    def value(made: UOp) -> Array:
        return Tensor._from_uop(made, "CPU").numpy()

    np.testing.assert_allclose(value(node.sum(axis=-1)), A.sum(1), rtol=1e-5)
    np.testing.assert_allclose(value(node.sum()), A.sum(), rtol=1e-5)
    np.testing.assert_allclose(value(node.max(axis=0, keepdim=True)), A.max(0, keepdims=True))
    np.testing.assert_allclose(value(node.prod(axis=(0, 1))), A.prod(), rtol=1e-4)
    np.testing.assert_array_equal(value((node > 0).where(1, 0)), (A > 0).astype(np.int32))


def test_it_is_replayed() -> None:
    total = jit(lambda x: Tensor.custom_kernel(Tensor.empty(6), x, fxn=row(lambda a: a[I].sum()))[0])
    for number in range(4):
        given = Tensor(A + number).realize()
        np.testing.assert_allclose(total(given).numpy(), (A + number).sum(1), rtol=1e-5)
