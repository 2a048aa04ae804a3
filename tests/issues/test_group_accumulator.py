"""GROUP on a hand-written accumulator (cases.md section 1): every cell of the matrix, on every device that is here.

Elsewhere the grouped kernel kept one thread's partial sum, shared a register slot with the compiler's accumulator,
crashed on a vector in registers, or upcast the register itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.issues.accumulator_kernels import CASES, Case
from tilewright import AxisType, Context, Ops, Opt, OptOps
from tilewright.base.dtype import dtypes
from tilewright.base.errors import KernelOptError
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.prepare.accumulators import recognise_accumulators

AMOUNTS = (2, 8, 32)
GROUPED = [
    pytest.param(case, op, amount, id=f"{case.name}-{op.name}-{amount}")
    for case in CASES
    for op in (OptOps.GROUP, OptOps.GROUPTOP)
    for amount in AMOUNTS
]


def assert_right(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_opts(case: Case, device: str) -> None:
    assert_right(*case.run(device, ()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "op", "amount"), GROUPED)
def test_grouped(case: Case, op: OptOps, amount: int, device: str, has_groups: bool) -> None:
    opts = (Opt(op, case.axis, amount),)
    if not case.is_reduction:
        with pytest.raises(KernelOptError, match=f"{op.name}.*axis 1"):
            case.run(device, opts)
    elif not has_groups:
        with pytest.raises(KernelOptError, match="needs work-groups"):
            case.run(device, opts)
    else:
        assert_right(*case.run(device, opts))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_heuristic(case: Case, device: str) -> None:
    assert_right(*case.run(device, None))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_search(case: Case) -> None:
    search(case, "CPU")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_search_on_every_device(case: Case, device: str) -> None:
    search(case, device)


def search(case: Case, device: str) -> None:
    """Few candidates: what counts here is that none of them is wrong."""
    with Context(BEAM=2, BEAM_CANDIDATES=4, BEAM_SECONDS=4):
        assert_right(*case.run(device, None))


@pytest.mark.parametrize("amount", [5, 48, 0, -4])
def test_an_amount_that_does_not_divide_is_refused(amount: int, device: str) -> None:
    with pytest.raises(KernelOptError, match="64"):
        CASES[0].run(device, (Opt(OptOps.GROUPTOP, 1, amount),))


@pytest.mark.parametrize("op", [OptOps.UPCAST, OptOps.UNROLL, OptOps.GROUP, OptOps.GROUPTOP, OptOps.LOCAL])
def test_the_loop_of_a_polynomial_is_not_split(op: OptOps, device: str) -> None:
    with pytest.raises(KernelOptError, match=op.name):
        CASES[-1].run(device, (Opt(op, 1, 4),))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_recognised(case: Case) -> None:
    """Reductions leave nothing of the registers they were written with; anything else stays as it is."""
    arguments = [make_argument(slot, dtypes.float32, shape) for slot, shape in enumerate(case.shapes)]
    ops = {node.op for node in toposort(recognise_accumulators(case.kernel(*arguments, ())))}
    assert (Ops.REDUCE in ops) == case.is_reduction
    assert ops.isdisjoint({Ops.DEFINE_REG, Ops.AFTER, Ops.END}) == case.is_reduction


def test_an_upcast_register_is_never_a_wide_pointer(device: str) -> None:
    """The heuristic sees a reduction over a row of 48 and no register: there is nothing of the user's to widen."""
    wide = Case("wide", CASES[0].kernel, ((48,), (48, 48)), lambda x: x.sum(1), 1)
    assert_right(*wide.run(device, None))


def test_slots_of_users_and_of_the_compiler_are_apart(device: str, has_groups: bool) -> None:
    """A placeholder that stays (the polynomial) beside a sum that the compiler accumulates, both with slot 0."""

    def kernel(out: UOp, x: UOp, opts: object = ()) -> UOp:
        row, col, other = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1), UOp.range(x.shape[1], 2)
        power = UOp.placeholder((1,), out.dtype, 0).after(row)[0].set(1)
        power = power[0].set(power.after(col)[0] * x[row, col] + 0.5, end=col)
        total = UOp.placeholder((1,), out.dtype, 1).after(row)[0].set(0)
        total = total[0].set(total.after(other)[0] + x[row, other], end=other)
        from tilewright import KernelInfo

        return out[row].set(power[0] + total[0], end=row).sink(arg=KernelInfo("both", ()))

    case = CASES[-1]
    both = Case("both", kernel, case.shapes, lambda x: case.expected(x) + x.sum(1), 1)
    assert_right(*both.run(device, ()))


def test_reduce_axes_are_reduce_axes() -> None:
    """A user who counts with a plain range gets the same axes."""

    def plain(out: UOp, x: UOp) -> UOp:
        row, col = UOp.range(6, 0), UOp.range(64, 1)
        out = out[row].set(0)
        out = out[row].set(out.after(col)[row] + x[row, col], end=col)
        return out.end(row).sink()

    arguments = (make_argument(0, dtypes.float32, (6,)), make_argument(1, dtypes.float32, (6, 64)))
    axes = {node.arg for node in toposort(recognise_accumulators(plain(*arguments))) if node.op is Ops.RANGE}
    assert {(axis.id, axis.kind) for axis in axes} == {((0,), AxisType.LOOP), ((1,), AxisType.REDUCE)}
