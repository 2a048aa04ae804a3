"""A length that was never seen compiles nothing, once a few were; the results are those of kernels made for their own
sizes. Issue 12, C: a new length of a sequence. Kernels with float sums are among them (DYNAMIC_KERNELS=2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.growth import growing_cat, reinforce_program
from tests.computed import computed
from tests.engine.calls import Calls, cache_in, forget
from tilewright import Context, Tensor, jit
from tilewright.base.errors import UserError
from tilewright.base.events import GlobalCounters
from tilewright.engine.compilation import compile as compiling
from tilewright.engine.planning import dynamic, plan
from tilewright.engine.planning.dynamic import MAX_ALIKE, MIN_PLANS, BoundKernel
from tilewright.engine.planning.plan import Plan
from tilewright.graph.kernels.outline import SIZE_LIMITS
from tilewright.schedule import pipeline


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with cache_in(tmp_path) as folder, Context(DYNAMIC_KERNELS=2, LIFT_SIZES=0):
        yield folder


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often the text of a kernel is made."""
    return Calls(monkeypatch, compiling, "draft_kernel")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made."""
    made: list[Plan] = []
    new_plan = plan._new_plan

    def note(structure: plan.Structure, *rest: Any) -> Plan:
        made.append(new_plan(structure, *rest))
        return made[-1]

    monkeypatch.setattr(plan, "_new_plan", note)
    return made


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- how much is compiled


@pytest.mark.parametrize(("program", "lengths"), [(growing_cat, range(3, 16)), (reinforce_program, range(40, 56))])
def test_a_new_length_compiles_nothing(program: Callable[[int], object], lengths: range, drafts: Calls) -> None:
    """The order of operands does not depend on the length, by way of the sizes of what they are loaded from."""
    half = len(lengths) // 2
    for length in lengths[:half]:
        program(length)
    known = drafts.count
    for length in lengths[half:]:
        program(length)
    assert drafts.count == known >= 9


def test_lengths_of_one_kernel_are_compiled_once_for_all(drafts: Calls) -> None:
    for length in range(3, 40):
        np.testing.assert_allclose((Tensor(data(length, 5)) + 1).numpy(), data(length, 5) + 1)
    assert drafts.count == MIN_PLANS + 1


def test_a_few_kernels_of_one_plan_are_made_for_their_own_sizes(plans: list[Plan]) -> None:
    """The layers of a network have other sizes each, and are run often."""
    outputs = [Tensor(data(length, 5)) + 1 for length in range(3, 3 + MAX_ALIKE)]
    Tensor.realize(*outputs)
    assert len(plans) == 1
    assert plans[0].is_static


def test_many_kernels_of_one_plan_are_one(plans: list[Plan], drafts: Calls) -> None:
    outputs = [Tensor(data(length, 5)) + 1 for length in range(3, 40)]
    Tensor.realize(*outputs)
    assert drafts.count == 1
    for length, output in enumerate(outputs, 3):
        np.testing.assert_array_equal(output.numpy(), data(length, 5) + 1)


@pytest.mark.parametrize("count", [1500, 3000])
def test_the_parts_of_a_long_chain_are_one_kernel_with_other_numbers(count: int, drafts: Calls) -> None:
    x = data(33)
    chain, expected = Tensor(x), x
    for number in range(count):
        factor, summand = np.float32(1 + number * 1e-6), np.float32(number * 1e-6)
        chain = chain * float(factor) if number % 2 else chain + float(summand)
        expected = expected * factor if number % 2 else expected + summand
    np.testing.assert_allclose(chain.numpy(), expected, rtol=1e-4)
    assert drafts.count <= 3


def test_large_kernels_are_made_for_their_own_sizes(plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "MAX_WORK", 500)
    for length in (3, 4, 5, 6, 200, 300):
        (Tensor(data(length, 5)) + 1).realize()
    assert [made.is_static for made in plans] == [True, True, False, False, True, True]


def test_sizes_beyond_the_bounds_get_a_kernel_of_their_own(drafts: Calls) -> None:
    lengths = [3, 4, 5, 250, SIZE_LIMITS[0] + 1, SIZE_LIMITS[0] + 7, SIZE_LIMITS[1] + 3, SIZE_LIMITS[1] + 90, 6]
    for length in lengths:
        np.testing.assert_allclose(Tensor(data(length, 3)).sum(0).numpy(), data(length, 3).sum(0), rtol=1e-4, atol=1e-4)
    assert drafts.count <= MIN_PLANS + 4


def test_the_option_turns_it_off(plans: list[Plan]) -> None:
    with Context(DYNAMIC_KERNELS=0):
        for length in range(3, 9):
            (Tensor(data(length, 5)) + 1).realize()
    assert all(made.is_static for made in plans)


# ---------------------------------------------------------------- values

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(0),
    "rows": lambda x: x.softmax(-1).sum(1),
    "variance": lambda x: x.var(0) + x.mean(),
    "product": lambda x: x @ x.T,
    "transposed": lambda x: x.T @ x,
    "flip": lambda x: x.flip(0) * 2 + x.sum(),
    "join": lambda x: Tensor.cat(x, x * 2, x[:1]),
    "pad": lambda x: x.pad(((1, 2), (0, 3))),
    "extremes": lambda x: x.max(0) - x.min(),
    "argmax": lambda x: x.argmax(0),
    "running": lambda x: x.cumsum(0),
    "roll": lambda x: x.roll(3, 0),
    "double": lambda x: x.cast("float64").mean(0),
    "half": lambda x: x.cast("float16").max(0),
    "integers": lambda x: (x * 100).cast("int32").sum(0) // x.shape[0] % 7,
    "strided": lambda x: x[::2].sum() + x[-1],
    "functions": lambda x: (x.exp() / x.shape[0]).log().sin(),
    "triangle": lambda x: (x @ x.T).triu(1),
    "choice": lambda x: (x > 0.5).where(x, -1.0).sum(1),
    "window": lambda x: x.reshape(1, 1, *x.shape).conv2d(Tensor.ones(1, 1, 3, 2), padding=1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_kernels_for_their_own_sizes(name: str, plans: list[Plan]) -> None:
    for length in (5, 7, 2, 11, 1, 40, 300):
        x = data(length, 6)
        got = PROGRAMS[name](Tensor(x)).numpy()
        with Context(DYNAMIC_KERNELS=0):
            expected = PROGRAMS[name](Tensor(x)).numpy()
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    assert not all(made.is_static for made in plans)


def test_gradients(plans: list[Plan]) -> None:
    weight = Tensor(data(6, 4)).realize()

    def gradients(x: np.ndarray) -> list[np.ndarray]:
        inputs = Tensor(x)
        loss = ((inputs @ weight).relu().softmax(-1).log().mean(0) ** 2).sum() + inputs.std()
        return computed(loss.gradient(inputs, weight))

    for length in (5, 9, 2, 33, 12, 21):
        x = data(length, 6)
        got = gradients(x)
        with Context(DYNAMIC_KERNELS=0):
            expected = gradients(x)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not all(made.is_static for made in plans)


def test_no_rows_at_all() -> None:
    for length in (3, 4, 5, 0, 6, 0):
        x = np.ones((length, 5), np.float32)
        assert (Tensor(x) + 1).numpy().shape == (length, 5)
        np.testing.assert_array_equal(Tensor(x).sum(0).numpy(), np.full(5, length, np.float32))


def test_an_index_out_of_range_is_found() -> None:
    """Checks are the parameter behind all others; the sizes come behind that."""
    table = Tensor(data(9, 4)).realize()
    for length in range(2, 9):
        rows = np.arange(length) % 9
        np.testing.assert_array_equal(table[Tensor(rows.astype(np.int32)) * 1].numpy(), data(9, 4)[rows])
    with pytest.raises(UserError):
        table[Tensor(np.arange(12, dtype=np.int32)) * 1].numpy()


def test_updates_in_place() -> None:
    x, expected = Tensor.zeros(64, 3).contiguous().realize(), np.zeros((64, 3), np.float32)
    for length in range(2, 30):
        x[1 : 1 + length] = x[1 : 1 + length] * 2 + length
        expected[1 : 1 + length] = expected[1 : 1 + length] * 2 + length
        np.testing.assert_array_equal(x.numpy(), expected)


def test_a_plan_that_is_run_again_keeps_its_sizes() -> None:
    for _ in range(3):
        for length in range(3, 10):
            x = data(length, 5)
            np.testing.assert_allclose((Tensor(x).sum(0) / length).numpy(), x.mean(0), rtol=1e-5, atol=1e-6)


def test_work_is_counted_for_the_sizes() -> None:
    for length in (3, 4, 5, 6):
        x = Tensor(data(length, 5)).realize()
        GlobalCounters.reset()
        (x + 1).realize()
        assert (GlobalCounters.kernel_count, GlobalCounters.global_ops) == (1, length * 5)
        assert GlobalCounters.global_mem == 2 * 4 * length * 5


# ---------------------------------------------------------------- jit, and other processes


def test_what_jit_replays_is_made_for_its_own_sizes(plans: list[Plan]) -> None:
    def double(x: Tensor) -> Tensor:
        return (x * 2 + 1).contiguous()

    for length in range(3, 8):
        double(Tensor(data(length, 5)).realize()).realize()
    assert not plans[-1].is_static
    jitted = jit(double)
    for _ in range(4):
        np.testing.assert_allclose(jitted(Tensor(data(7, 5)).realize()).numpy(), data(7, 5) * 2 + 1, rtol=1e-6)
    assert jitted.last_reason == ""
    assert plans[-1].is_static


def test_another_process_finds_the_plan_and_its_sizes(plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    for length in range(3, 8):
        (Tensor(data(length, 5)).sum(0) / length).realize()
    assert not plans[-1].is_static
    forget()
    scheduled = Calls(monkeypatch, pipeline, "schedule")
    for length in (7, 6):
        x = data(length, 5)
        np.testing.assert_allclose((Tensor(x).sum(0) / length).numpy(), x.mean(0), rtol=1e-5, atol=1e-6)
        bound = [kernel for kernel in plans[-1].kernels if isinstance(kernel, BoundKernel)]
        assert bound
        assert all(kernel.operations > 0 for kernel in bound)
    assert scheduled.count == 0
