"""A grouped reduction whose input contains a folded reduction (cases.md section 2).

For each i: the sum over j of table[j] * (index[i] == arange[j]) in uint8, where arange[j] is itself a sum of ones,
masked to the first j+1 of a second axis, minus 1. Elsewhere: a variable used outside of the block that declares it."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import AxisType, Context, KernelInfo, Ops, Opt, OptOps, Tensor, UOp, dtypes
from tilewright.base.errors import KernelOptError
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.walk import toposort
from tilewright.kernel.prepare.accumulators import recognise_accumulators

FULL = (50000, 1024)
FEW = (50000, 128)  # all of the table for fewer results
SMALL = (48, 5)  # without folding the work grows with the square
GROUPTOP = (Opt(OptOps.GROUPTOP, 1, 16),)


def lookup(out: UOp, table: UOp, index: UOp, opts: tuple[Opt, ...] | None = ()) -> UOp:
    i = UOp.range(index.shape[0], 0)
    j = UOp.range(table.shape[0], 1, AxisType.REDUCE)
    k = UOp.range(table.shape[0], 2, AxisType.REDUCE)
    count = UOp.placeholder((1,), dtypes.int32, 0).after(i, j)[0].set(0)
    count = count[0].set(count.after(k)[0] + (k <= j).cast(dtypes.int32), end=k)
    total = UOp.placeholder((1,), dtypes.uint8, 1).after(i)[0].set(0)
    total = total[0].set(total.after(j)[0] + table[j] * index[i].eq(count[0] - 1).cast(dtypes.uint8), end=j)
    return out[i].set(total[0], end=i).sink(arg=KernelInfo("lookup", opts))


def arrays(sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    table = generator.integers(0, 256, sizes[0], dtype=np.uint8)
    return table, generator.integers(0, sizes[0], sizes[1], dtype=np.int32)


def run(device: str, sizes: tuple[int, int], opts: tuple[Opt, ...] | None) -> None:
    table, index = arrays(sizes)
    out = Tensor.empty(sizes[1], dtype="uint8", device=device)
    arguments = (Tensor(table, device=device), Tensor(index, device=device))
    found = Tensor.custom_kernel(out, *arguments, fxn=lambda *given: lookup(*given, opts))[0]
    np.testing.assert_array_equal(found.numpy(), table[index])


def ranges_of(opts: tuple[Opt, ...] | None) -> list[int]:
    arguments = [
        make_argument(0, dtypes.uint8, (FULL[1],)),
        make_argument(1, dtypes.uint8, (FULL[0],)),
        make_argument(2, dtypes.int32, (FULL[1],)),
    ]
    kernel = recognise_accumulators(lookup(*arguments, opts))
    return sorted(node.src[0].arg for node in toposort(kernel) if node.op is Ops.RANGE)


def test_what_is_folded() -> None:
    """Stated opts keep the loop they are for; without any even that becomes a load."""
    assert ranges_of(GROUPTOP) == [1024, 50000]
    assert ranges_of(None) == [1024]
    with Context(FOLD_REDUCE=0):
        assert ranges_of(GROUPTOP) == [1024, 50000, 50000]


def test_grouped_and_folded(device: str, has_groups: bool) -> None:
    if has_groups:
        run(device, FEW, GROUPTOP)
    else:
        with pytest.raises(KernelOptError, match="needs work-groups"):
            run(device, FEW, GROUPTOP)


@pytest.mark.parametrize("opts", [(), None], ids=["no-opts", "heuristic"])
def test_folded(opts: tuple[Opt, ...] | None, device: str) -> None:
    run(device, FULL if opts is None else SMALL, opts)


@pytest.mark.parametrize("opts", [(), None, GROUPTOP], ids=["no-opts", "heuristic", "grouped"])
def test_without_folding(opts: tuple[Opt, ...] | None, device: str, has_groups: bool) -> None:
    with Context(FOLD_REDUCE=0):
        if opts == GROUPTOP and not has_groups:
            with pytest.raises(KernelOptError, match="needs work-groups"):
                run(device, SMALL, opts)
        else:
            run(device, SMALL, opts)


@pytest.mark.parametrize("fold", [0, 1])
def test_as_a_tensor_expression(fold: int, device: str) -> None:
    sizes = FULL if fold else SMALL
    table, index = arrays(sizes)
    with Context(FOLD_REDUCE=fold):
        steps = Tensor.arange(sizes[0], device=device)
        counted = (steps.reshape(1, -1) <= steps.reshape(-1, 1)).cast("int32").sum(1) - 1
        is_there = (Tensor(index, device=device).reshape(-1, 1) == counted.reshape(1, -1)).cast("uint8")
        found = (Tensor(table, device=device) * is_there).sum(1, dtype="uint8")
        np.testing.assert_array_equal(found.numpy(), table[index])


def test_bytes_wrap(device: str) -> None:
    """A sum in uint8 wraps; 300 ones are 44."""
    ones = Tensor(np.ones((2, 300), np.uint8), device=device)

    def count(out: UOp, x: UOp) -> UOp:
        row, col = UOp.range(2, 0), UOp.range(300, 1)
        out = out[row].set(0)
        return out[row].set(out.after(col)[row] + x[row, col], end=col).end(row).sink()

    assert Tensor.custom_kernel(Tensor.empty(2, dtype="uint8", device=device), ones, fxn=count)[0].tolist() == [44, 44]
