"""The language of custom kernels: the graph that it makes, and what it says to mistakes, at the line they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import AddrSpace, AxisType, KernelInfo, Ops, UOp, dtypes
from tilewright.base.errors import AxisError, DTypeError, IndexingError, KernelError, ShapeError, UserError
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show, show_expression
from tilewright.graph.uop import const
from tilewright.graph.verification.verify import verify_kernel
from tilewright.graph.walk import toposort

F32, I32 = dtypes.float32, dtypes.int32
LINES = Path(__file__).read_text().splitlines()


def argument(slot: int, *shape: int, dtype: Any = F32) -> UOp:
    return make_argument(slot, dtype, shape)


X = argument(1, 4, 6)
OUT = argument(0, 4)
ROW, COL = UOp.range(4, 0), UOp.range(6, 1, AxisType.REDUCE)
REG = UOp.placeholder((1,), F32, 0)


# ---------------------------------------------------------------- what is made


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (lambda: X[ROW, COL], "L0*6 + R1"),
        (lambda: X[2, 3], "2*6 + 3"),
        (lambda: X[ROW, 0], "L0*6 + 0"),
        (lambda: argument(0, 1, 5)[0, COL], "R1"),
        (lambda: argument(0)[()], "0"),
        (lambda: argument(0, 2, 3, 4)[1, ROW % 3, ROW], "(1*3 + L0 % 3)*4 + L0"),
        (lambda: OUT[np.int64(2)], "2"),
    ],
)
def test_positions_are_row_major(place: Callable[[], UOp], text: str) -> None:
    assert show_expression(place().src[1]) == text


def test_a_kernel_is_closed() -> None:
    """Memory is flat, and what is read is a LOAD."""
    kernel = OUT[ROW].set(X[ROW, 2] + X[ROW, 3], end=ROW).sink(arg=KernelInfo("pair"))
    verify_kernel(kernel)
    ops = [node.op for node in toposort(kernel)]
    assert Ops.RESHAPE not in ops
    assert ops.count(Ops.LOAD) == 2
    assert parse(show(kernel)) is kernel


def test_an_index_that_is_loaded() -> None:
    picks = argument(2, 4, dtype=I32)
    kernel = OUT[ROW].set(X[ROW, picks[ROW]], end=ROW).sink()
    verify_kernel(kernel)
    array = np.arange(24, dtype=np.float32)
    index = np.array([5, 0, 3, 3], np.int32)
    memories = {node.arg.slot: node for node in toposort(kernel) if node.op is Ops.PARAM}
    found = run_effects(kernel, {memories[1]: array, memories[2]: index})
    np.testing.assert_array_equal(found[memories[0]], array.reshape(4, 6)[np.arange(4), index])


def test_set_is_the_memory_after_the_store() -> None:
    after = OUT[ROW].set(1, end=ROW)
    assert after.op is Ops.AFTER
    assert after.src[0] is OUT
    assert after.shape == (4,)
    assert after.src[1].op is Ops.END
    assert argument(0, 2, 3)[0, 0].set(1).shape == (2, 3)


def test_a_sink_takes_memory_effects_and_several() -> None:
    one = OUT[ROW].set(1, end=ROW)
    other = argument(2, 4)[ROW].store(2).end(ROW)
    assert [source.op for source in UOp.sink(one, other).src] == [Ops.END, Ops.END]
    assert len(UOp.sink(UOp.group(OUT[0].store(1), OUT[1].store(2))).src[0].src) == 2


def test_a_chain_of_sets_needs_no_repetition() -> None:
    chain = OUT[0].set(1)[1].set(2)
    kernel = chain.sink()
    assert len(kernel.src) == 1
    assert kernel.src[0].op is Ops.STORE


def test_numbers_and_counts_fit_the_memory() -> None:
    whole = argument(0, 4, dtype=I32)
    assert whole[ROW].store(2.0).src[1] is const(I32, 2)
    assert whole[ROW].store(ROW + 1).src[1].dtype is I32
    assert (X[ROW, COL] + 1).dtype is F32
    assert (argument(0, 4, dtype=I32)[ROW] + ROW).dtype is dtypes.index


def test_masks() -> None:
    masked = X[ROW, COL].load(mask=COL < 3, otherwise=7)
    assert len(masked.src[0].src) == 3
    stored = OUT[ROW].store(masked, mask=ROW < 2)
    assert len(stored.src[0].src) == 3
    kernel = stored.end(ROW).sink()
    assert any(node.op is Ops.LOAD and len(node.src) == 2 for node in toposort(kernel))


def test_a_barrier_and_local_memory() -> None:
    thread = UOp.range(4, 0, AxisType.LOCAL)
    shared = UOp.placeholder((4,), F32, 0, addrspace=AddrSpace.LOCAL)
    shared = shared.after(UOp.barrier(shared[thread].store(X[thread, 0]).end(thread)))
    kernel = OUT[thread].set(shared[3 - thread], end=thread).sink()
    verify_kernel(kernel)
    memories = {node.arg.slot: node for node in toposort(kernel) if node.op is Ops.PARAM}
    found = run_effects(kernel, {memories[1]: np.arange(24, dtype=np.float32)})
    np.testing.assert_array_equal(found[memories[0]], [18, 12, 6, 0])


def test_every_node_knows_its_line() -> None:
    kernel = OUT[ROW].set(X[ROW, 5], end=ROW).sink()  # this line
    made = {node.op: node for node in toposort(kernel)}
    for op in (Ops.STORE, Ops.LOAD, Ops.INDEX, Ops.END, Ops.SINK):
        line = made[op].line
        assert line is not None
        assert line[0] == __file__
        assert "this line" in LINES[line[1] - 1]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda: X[ROW, 0, 0], IndexingError, r"3 indices for shape \(4, 6\), which has 2 axes"),
        (lambda: X[..., 0, ...], IndexingError, r"1 indices for shape \(4, 6\), which has 2 axes"),
        (lambda: X[0, 3:3], IndexingError, "of axis 1 of shape .* is empty"),
        (lambda: X[0, ::0], IndexingError, "step"),
        (lambda: X[0, ROW : ROW * 2], IndexingError, "sliced by expressions"),
        (lambda: X[:, ::2].flatten(), KernelError, "has gaps"),
        (lambda: OUT[0].store(X[0]), ShapeError, r"values of shape \(6,\)"),
        (lambda: X[0].store(1.0), KernelError, r"a part of shape \(6,\) is not indexed memory"),
        (lambda: (X[0] * X[:, 0]).sum(), ShapeError, r"MUL of shapes \(6,\) and \(4,\)"),
        (lambda: X.sum(axis=2), AxisError, r"axis 2 of shape \(4, 6\)"),
        (lambda: X.sum(axis=1)[0, 0], IndexingError, r"2 indices for values of shape \(4,\)"),
        (lambda: X[0, 0].where(1, 0), DTypeError, "the condition is float32"),
        (lambda: (X[0, 0] > 1).where(0.5, ROW), DTypeError, "0.5 beside a value of index"),
        (lambda: X[ROW, COL, 0], IndexingError, "3 indices"),
        (lambda: X[ROW, 6], IndexingError, r"index 6 is out of range for axis 1 of shape \(4, 6\)"),
        (lambda: X[ROW, -1], IndexingError, "index -1 is out of range"),
        (lambda: X[ROW + 4, COL], IndexingError, r"index 4\.\.7 is out of range for axis 0"),
        (lambda: X[ROW, 1.0], IndexingError, "float"),
        (lambda: X[ROW, True], IndexingError, "bool"),
        (lambda: X[ROW, const(F32, 1.0)], IndexingError, "indexed with float32"),
        (lambda: ROW[0], IndexingError, "RANGE is one value"),
        (lambda: ROW.store(1), KernelError, "RANGE is not indexed memory"),
        (lambda: OUT[ROW].store(ROW + 1), DTypeError, "index into memory of float32"),
        (lambda: argument(0, 4, dtype=I32)[ROW].store(1.5), DTypeError, "1.5 into memory of int32"),
        (lambda: OUT[ROW].store(X), ShapeError, r"shape \(4, 6\) are stored into one element"),
        (lambda: OUT[ROW].store(1, mask=ROW), DTypeError, "the mask is index"),
        (lambda: X[ROW, COL] + ROW, DTypeError, "float32 and index"),
        (lambda: X[ROW, COL] + const(I32, 1), DTypeError, "float32 and int32"),
        (lambda: (ROW < 2).where(X[ROW, COL], const(I32, 1)), DTypeError, "float32 and int32"),
        (lambda: OUT[ROW].set(1, end=OUT), KernelError, "PARAM is not a range"),
        (lambda: OUT[ROW].store(1).end(ROW, ROW), KernelError, "given twice"),
        (lambda: OUT[ROW].store(1).end(3), KernelError, "3 is not a range"),
        (lambda: (ROW + 1).end(ROW), KernelError, "ADD has no effect"),
        (lambda: ROW.after(COL), KernelError, "RANGE is not memory"),
        (lambda: OUT.after(X[ROW, COL]), KernelError, "INDEX has no effect"),
        (lambda: UOp.group(), KernelError, "there is no effect"),
        (lambda: UOp.sink(), KernelError, "writes nothing"),
        (lambda: OUT.sink(), KernelError, "PARAM has no effect"),
        (lambda: UOp.range(0, 0), ShapeError, "not a positive integer"),
        (lambda: UOp.range(4, "row"), KernelError, "'row' is not an integer"),  # type: ignore[arg-type]
        (lambda: UOp.range(4, 0, 1), KernelError, "1 is not an AxisType"),  # type: ignore[arg-type]
        (lambda: UOp.range(const(F32, 4.0), 0), DTypeError, "the size is float32"),
        (lambda: UOp.placeholder((1,), F32, 0, AddrSpace.GLOBAL), KernelError, "cannot be in AddrSpace.GLOBAL"),
        (lambda: UOp.placeholder((0,), F32, 0), ShapeError, "positive"),
        (lambda: UOp.placeholder((1,), F32, -1), KernelError, "the slot -1"),
        (lambda: UOp.placeholder((1,), "float33", 0), DTypeError, "float33"),
        (lambda: OUT[ROW].set((X + 1), end=ROW).sink(), ShapeError, r"values of shape \(4, 6\) are stored"),
        (lambda: REG[0].set(X[ROW, COL], end=COL).sink(), KernelError, r"range 0.*\.after\(range\)"),
        (
            lambda: OUT[ROW].set(REG[0] + UOp.placeholder((2,), F32, 0)[0], end=ROW).sink(),
            KernelError,
            r"slot 0 is float32\[",
        ),
    ],
)
def test_mistakes(mistake: Callable[[], UOp], error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message.replace(".*", "(?s:.*)")) as caught:
        mistake()
    assert caught.value.location is not None
    assert caught.value.location[0] == __file__


def test_a_place_is_not_walked_through() -> None:
    with pytest.raises(TypeError):
        list(OUT)  # type: ignore[call-overload]
