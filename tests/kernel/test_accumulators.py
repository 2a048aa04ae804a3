"""What is recognised as a reduction and what is not; either way the kernel computes what the interpreter says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import AxisType, DType, KernelInfo, Ops, Tensor, UOp, dtypes
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.interpreter.evaluate import evaluate_kernel
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.uop import UOp as Node
from tilewright.graph.verification.verify import verify_kernel
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.versions import are_apart, is_injective
from tilewright.kernel.prepare.accumulators import recognise_accumulators

F32 = dtypes.float32
OUT, X = make_argument(0, F32, (3,)), make_argument(1, F32, (3, 4))
WIDE = make_argument(0, F32, (3, 4))
ROW, COL = UOp.range(3, 0), UOp.range(4, 1)


def accumulate(first: float, update: Callable[[UOp, UOp], UOp], dtype: DType = F32, slot: int = 0) -> UOp:
    """A placeholder after `acc = update(acc, x)` over a row."""
    acc = UOp.placeholder((1,), dtype, slot).after(ROW)[0].set(first)
    return acc[0].set(update(acc.after(COL)[0], X[ROW, COL].cast(dtype)), end=COL)


def stored(acc: UOp) -> UOp:
    return OUT[ROW].set(acc[0].cast(F32), end=ROW).sink()


# ---------------------------------------------------------------- kernels


def output_with_contents() -> UOp:
    """Added to what the output holds already."""
    return OUT[ROW].set(OUT.after(COL)[ROW] + X[ROW, COL], end=COL).end(ROW).sink()


def two_in_one_loop() -> UOp:
    total = UOp.placeholder((1,), F32, 0).after(ROW)[0].set(0)
    top = UOp.placeholder((1,), F32, 1).after(ROW)[0].set(-1)
    both = UOp.group(
        total[0].store(total.after(COL)[0] + X[ROW, COL]), top[0].store(top.after(COL)[0].maximum(X[ROW, COL]))
    ).end(COL)
    return OUT[ROW].set(total.after(both)[0] * top.after(both)[0], end=ROW).sink()


def one_decides_the_other() -> UOp:
    """The second adds up what the first has counted so far: not two reductions."""
    count = UOp.placeholder((1,), F32, 0).after(ROW)[0].set(0)
    total = UOp.placeholder((1,), F32, 1).after(ROW)[0].set(0)
    both = UOp.group(
        count[0].store(count.after(COL)[0] + 1), total[0].store(total.after(COL)[0] + count.after(COL)[0])
    ).end(COL)
    return OUT[ROW].set(total.after(both)[0], end=ROW).sink()


def range_used_again() -> UOp:
    acc = accumulate(0, lambda acc, x: acc + x)
    return WIDE[ROW, COL].set(X[ROW, COL] - acc[0], end=(ROW, COL)).sink()


def one_inside_the_other() -> UOp:
    """Both count with the same range, one inside of the other."""
    inner = UOp.placeholder((1,), F32, 1).after(ROW)[0].set(0)
    inner = inner[0].set(inner.after(COL)[0] + X[ROW, COL], end=COL)
    acc = UOp.placeholder((1,), F32, 0).after(ROW)[0].set(0)
    acc = acc[0].set(acc.after(COL)[0] + X[ROW, COL] * inner[0], end=COL)
    return OUT[ROW].set(acc[0], end=ROW).sink()


def two_loops_deep() -> UOp:
    other = UOp.range(3, 2)
    acc = UOp.placeholder((1,), F32, 0).after(ROW)[0].set(0)
    acc = acc[0].set(acc.after(other, COL)[0] + X[other, COL] * X[ROW, COL], end=(other, COL))
    return OUT[ROW].set(acc[0], end=ROW).sink()


def a_row_of_registers() -> UOp:
    fill, add, read = UOp.range(3, 2), UOp.range(3, 3), UOp.range(3, 4)
    acc = UOp.placeholder((3,), F32, 0)[fill].set(0, end=fill)
    acc = acc[add].set(acc.after(COL)[add] + X[add, COL], end=(COL, add))
    return OUT[read].set(acc[read], end=read).sink()


def one_register_for_all_rows() -> UOp:
    """It goes on from row to row: a running total."""
    acc = UOp.placeholder((1,), F32, 0)[0].set(0)
    inside = acc.after(ROW)
    step = inside[0].store(inside[0] + X[ROW, 0])
    return OUT[ROW].set(acc.after(step)[0], end=ROW).sink()


def an_output_on_the_way() -> UOp:
    """An output that only a LOAD leads to is stored all the same."""
    scratch = make_argument(2, F32, (3,))
    step = scratch[ROW].store(X[ROW, 0] * 2)
    return OUT[ROW].set(scratch.after(step)[ROW] + 1, end=ROW).sink()


def several_elements_of_one_output() -> UOp:
    out = WIDE[ROW, 0].set(accumulate(0, lambda acc, x: acc + x)[0])
    out = out[ROW, 1].set(accumulate(1, lambda acc, x: acc * x, slot=1)[0])
    return out.end(ROW).sink()


def overwritten_elements() -> UOp:
    """The second store may hit what the first wrote."""
    out = OUT[ROW].set(1, end=ROW)
    other = UOp.range(2, 2)
    return out[other * 2].set(X[other, 0], end=other).sink()


def in_an_output_set_before() -> UOp:
    out = OUT[ROW].set(2)
    return out[ROW].set(out.after(COL)[ROW] + X[ROW, COL], end=COL).end(ROW).sink()


RECOGNISED: dict[str, Callable[[], UOp]] = {
    "sum": lambda: stored(accumulate(0, lambda acc, x: acc + x)),
    "sum, turned around": lambda: stored(accumulate(0, lambda acc, x: x + acc)),
    "sum of two": lambda: stored(accumulate(0, lambda acc, x: (acc + x) + x * x)),
    "difference": lambda: stored(accumulate(0, lambda acc, x: acc - x)),
    "difference and sum": lambda: stored(accumulate(0, lambda acc, x: (acc - x) + x * x)),
    "product": lambda: stored(accumulate(1, lambda acc, x: acc * x)),
    "maximum": lambda: stored(accumulate(-9, lambda acc, x: acc.maximum(x))),
    "minimum": lambda: stored(accumulate(9, lambda acc, x: acc.minimum(x))),
    "first value": lambda: stored(accumulate(2.5, lambda acc, x: acc + x)),
    "integers": lambda: stored(accumulate(0, lambda acc, x: acc + x, dtypes.int32)),
    "masked": lambda: stored(accumulate(0, lambda acc, x: (x < 0).where(acc + x, acc))),
    "masked, turned around": lambda: stored(accumulate(1, lambda acc, x: (x < 0).where(acc, acc * x))),
    "a count": lambda: stored(accumulate(0, lambda acc, x: acc + 1)),
    "output with contents": output_with_contents,
    "in an output": in_an_output_set_before,
    "two in one loop": two_in_one_loop,
    "range used again": range_used_again,
    "one inside the other": one_inside_the_other,
    "two loops deep": two_loops_deep,
    "a row of registers": a_row_of_registers,
    "an output on the way": an_output_on_the_way,
    "several elements": several_elements_of_one_output,
}
LEFT_ALONE: dict[str, Callable[[], UOp]] = {
    "polynomial": lambda: stored(accumulate(1, lambda acc, x: acc * x + 1)),
    "opposite difference": lambda: stored(accumulate(0, lambda acc, x: x - acc)),
    "quotient": lambda: stored(accumulate(1, lambda acc, x: acc / x)),
    "twice": lambda: stored(accumulate(1, lambda acc, x: acc + acc * x)),
    "decides for itself": lambda: stored(accumulate(0, lambda acc, x: (acc < x).where(acc + x, acc))),
    "rounded at every step": lambda: stored(
        accumulate(0, lambda acc, x: (acc.cast(F32) + x.cast(F32)).cast(acc.dtype), dtypes.float16)
    ),
    "last one": lambda: stored(accumulate(0, lambda acc, x: x)),
    "one decides the other": one_decides_the_other,
    "one register for all rows": one_register_for_all_rows,
    "overwritten elements": overwritten_elements,
}


def contents(kernel: Node) -> dict[Node, np.ndarray]:
    generator = np.random.default_rng(3)
    memories = [node for node in toposort(kernel) if node.op is Ops.PARAM]
    return {node: generator.integers(-4, 5, node.arg.size).astype(numpy_dtype(node.dtype)) for node in memories}


def is_ordered(kernel: Node) -> bool:
    return any(node.op in (Ops.AFTER, Ops.END, Ops.GROUP) for node in toposort(kernel))


@pytest.mark.parametrize("name", RECOGNISED)
@pytest.mark.parametrize("opts", [(), None], ids=["stated", "free"])
def test_recognised(name: str, opts: tuple[()] | None) -> None:
    kernel = RECOGNISED[name]()
    kernel = kernel.replace(arg=KernelInfo("test", opts))
    found = recognise_accumulators(kernel)
    verify_kernel(found)
    assert not is_ordered(found)
    assert not any(node.op is Ops.DEFINE_REG for node in toposort(found))
    arrays = contents(kernel)
    expected = run_effects(kernel, arrays)
    results = {node: array.copy() for node, array in arrays.items()}
    evaluate_kernel(found, results)
    for memory, array in expected.items():
        np.testing.assert_allclose(results[memory], array, rtol=1e-6)
    if name == "an output on the way":
        assert len(found.src) == 2


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    kernel = LEFT_ALONE[name]()
    found = recognise_accumulators(kernel)
    verify_kernel(found)
    assert is_ordered(found)
    arrays = contents(kernel)
    (expected,) = run_effects(kernel, arrays).values()
    (result,) = run_effects(found, arrays).values()
    np.testing.assert_array_equal(result, expected)


def test_a_running_total() -> None:
    kernel = one_register_for_all_rows()
    arrays = contents(kernel)
    x = next(array for node, array in arrays.items() if node.arg.slot == 1)
    (found,) = run_effects(kernel, arrays).values()
    np.testing.assert_array_equal(found, np.cumsum(x.reshape(3, 4)[:, 0]))


def test_reductions_of_one_loop_share_it() -> None:
    kernel = recognise_accumulators(two_in_one_loop())
    assert len({node.src[1] for node in toposort(kernel) if node.op is Ops.REDUCE}) == 1


def test_a_kernel_of_the_scheduler_is_left_as_it_is() -> None:
    place = Node(Ops.INDEX, F32, (OUT, ROW))
    sink = Node(Ops.SINK, dtypes.void, (Node(Ops.STORE, dtypes.void, (place, ROW.cast(F32))),))
    assert recognise_accumulators(sink) is sink


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (lambda: ROW, lambda: ROW + 3, True),
        (lambda: ROW, lambda: ROW + 2, False),
        (lambda: ROW * 2, lambda: COL * 2 + 1, True),
        (lambda: ROW * 4 + COL, lambda: ROW * 4 + 2, False),
        (lambda: ROW * 2, lambda: COL * 3 + 1, False),
    ],
)
def test_positions_apart(one: Callable[[], UOp], other: Callable[[], UOp], expected: bool) -> None:
    assert are_apart(one(), other()) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (lambda: ROW * 4 + COL, True),
        (lambda: ROW * 3 + COL, False),
        (lambda: ROW + COL * 3, True),
        (lambda: ROW, False),
        (lambda: ROW * 4 + COL // 2, False),
        (lambda: COL - ROW * 4, True),
    ],
)
def test_injective_positions(position: Callable[[], UOp], expected: bool) -> None:
    assert is_injective(position(), (ROW, COL)) == expected


def test_a_range_of_threads_is_no_reduction() -> None:
    thread = UOp.range(4, 1, AxisType.LOCAL)
    acc = UOp.placeholder((1,), F32, 0).after(ROW)[0].set(0)
    acc = acc[0].set(acc.after(thread)[0] + X[ROW, thread], end=thread)
    assert is_ordered(recognise_accumulators(stored(acc)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("opts", [(), None], ids=["no-opts", "heuristic"])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("name", [*RECOGNISED, *LEFT_ALONE])
def test_devices_compute_the_same(name: str, device: str, opts: tuple[()] | None) -> None:
    kernel = {**RECOGNISED, **LEFT_ALONE}[name]().replace(arg=KernelInfo("test", opts))
    arrays = contents(kernel)
    expected = next(array for node, array in run_effects(kernel, arrays).items() if node.arg.slot == 0)
    by_slot = {node.arg.slot: array for node, array in arrays.items()}
    out = Tensor(by_slot[0].reshape(-1, 4) if by_slot[0].size == 12 else by_slot[0], device=device)
    x = Tensor(by_slot.get(1, np.zeros(12, np.float32)).reshape(3, 4), device=device)
    found = Tensor.custom_kernel(out, x, Tensor.zeros(3, device=device), fxn=lambda *_: kernel)[0]
    np.testing.assert_allclose(found.numpy().reshape(-1), expected, rtol=1e-6)


def test_loops_beside_each_other_stay_so() -> None:
    """Two copies, each in a loop of its own: nested, they would take the product of the sizes."""
    rows, columns = UOp.range(200, 0), UOp.range(160, 1)
    first, second = make_argument(0, F32, (200,)), make_argument(1, F32, (160,))
    one, other = make_argument(2, F32, (200,)), make_argument(3, F32, (160,))
    effects = (first[rows].store(one[rows]).end(rows), second[columns].store(other[columns]).end(columns))
    found = recognise_accumulators(UOp.group(*effects).sink(arg=KernelInfo("copies")))
    closed = [node.src[1:] for node in toposort(found) if node.op is Ops.END]
    assert sorted(len(axes) for axes in closed) == [1, 1]
    assert {axis for axes in closed for axis in axes} == {rows, columns}
