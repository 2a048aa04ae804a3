"""Sums by index that add floats atomically (ALLOW_FLOAT_ATOMICS), on the emulator with the facts of a card: values,
special values, what is copied and what is not, who ignores the option, and which stores are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tilewright import Context, Tensor, jit
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import RaceError, UnsupportedError, VerifyError
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.nodes import load, loop, param, place, store
from tilewright.graph.kernels.sums_by_index import atomics
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const
from tilewright.graph.verification.verify import verify_kernel, verify_program
from tilewright.schedule.sums_by_index import segments

ROWS, TERMS, COLUMNS = 40, 70, 3
SUMS = "add_floats_by_index"
generator = np.random.default_rng(14)


def given(array: np.ndarray) -> Tensor:
    return Tensor(array, device=NAME).realize()


def whole(*shape: int) -> np.ndarray:
    return generator.integers(-4, 5, shape).astype(np.float32)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At sizes that the emulator runs, with the estimate in favour of atomic additions."""
    monkeypatch.setattr(segments, "MIN_PASSES", 0)
    monkeypatch.setattr(segments, "float_clocks", lambda *_: -1.0)


@pytest.fixture
def card() -> Iterator[CardDriver]:
    with emulated_card(cores=1) as driver, Context(ALLOW_FLOAT_ATOMICS=1):
        yield driver


def names(card: CardDriver) -> list[str]:
    return [program.name for program in card.programs]


# What an operation makes of a tensor, an index and the terms; and NumPy of the same, given a copy of the tensor.
Made = Callable[[Tensor, Tensor, Tensor], Tensor]
Wanted = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
COLUMN = np.arange(COLUMNS)[None]


def gradient(read: Callable[[Tensor, Tensor], Tensor]) -> Made:
    return lambda x, index, terms: (read(x, index) * terms).sum().gradient(x)[0]


def added_to_zeros(x: np.ndarray, place: object, terms: np.ndarray) -> None:
    x[...] = 0
    np.add.at(x, place, terms)


OPERATIONS: dict[str, tuple[tuple[int, ...], Made, Wanted]] = {
    "scatter_add": (
        (TERMS, COLUMNS),
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda x, i, v: np.add.at(x, (i, COLUMN), v),
    ),
    "scatter_add of fewer columns": (
        (TERMS, 2),
        lambda x, i, v: x.scatter_add(0, i, v[:, :2]),
        lambda x, i, v: np.add.at(x, (i, COLUMN[:, :2]), v[:, :2]),
    ),
    "scatter_add along 1": (
        (TERMS, COLUMNS),
        lambda x, i, v: x.T.contiguous().scatter_add(1, i.T, v.T).T,
        lambda x, i, v: np.add.at(x, (i, COLUMN), v),
    ),
    "index_add": ((TERMS,), lambda x, i, v: x.index_add(0, i, v), lambda x, i, v: np.add.at(x, i, v)),
    "index_add, scaled": (
        (TERMS,),
        lambda x, i, v: x.index_add(0, i, v, alpha=2),
        lambda x, i, v: np.add.at(x, i, 2 * v),
    ),
    "index_put": (
        (TERMS,),
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda x, i, v: np.add.at(x, i, v),
    ),
    "without the tensor's own": (
        (TERMS, COLUMNS),
        lambda x, i, v: x.scatter_reduce(0, i, v, "sum", include_self=False),
        lambda x, i, v: [x.__setitem__((i, COLUMN), 0), np.add.at(x, (i, COLUMN), v)][1],
    ),
    "gradient of gather": (
        (TERMS, COLUMNS),
        gradient(lambda x, i: x.gather(0, i)),
        lambda x, i, v: added_to_zeros(x, (i, COLUMN), v),
    ),
    "gradient of rows": ((TERMS,), gradient(lambda x, i: x[i]), lambda x, i, v: added_to_zeros(x, i, v)),
}


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_term_is_one_atomic_addition(name: str, dtype: DType, card: CardDriver) -> None:
    """Indices repeat; short floats are added as float32."""
    shape, make, want = OPERATIONS[name]
    x, index, terms = whole(ROWS, COLUMNS), generator.integers(0, ROWS, shape), whole(TERMS, COLUMNS)
    wanted = x.copy()
    want(wanted, index, terms)
    tensor = given(x).cast(dtype).realize()
    found = make(tensor, given(index), given(terms).cast(dtype).realize())
    assert found.dtype is dtype
    np.testing.assert_array_equal(found.cast(dtypes.float32).numpy(), wanted)
    assert names(card).count(SUMS) == 1
    np.testing.assert_array_equal(tensor.cast(dtypes.float32).numpy(), x)  # the sums are added to a copy of it


@pytest.mark.parametrize("name", ["scatter_add", "index_add", "gradient of gather"])
def test_two_kernels_begin_the_outputs_and_add_to_them(name: str, card: CardDriver) -> None:
    shape, make, _ = OPERATIONS[name]
    x, index, terms = (given(a) for a in (whole(ROWS, COLUMNS), np.zeros(shape, np.int32), whole(TERMS, COLUMNS)))
    make(x, index, terms).realize()
    assert len(card.programs) == 2


def test_outputs_may_be_computed(card: CardDriver) -> None:
    x, index, terms = whole(ROWS), generator.integers(0, ROWS, TERMS), whole(TERMS)
    wanted = x * 2 + 1
    np.add.at(wanted, index, terms)
    found = (given(x) * 2 + 1).scatter_add(0, given(index), given(terms))
    np.testing.assert_array_equal((found * 3).numpy(), wanted * 3)
    zeros = Tensor.zeros(ROWS, device=NAME).scatter_add(0, given(index), given(terms))
    np.testing.assert_array_equal(zeros.numpy(), wanted - (x * 2 + 1))


def test_sums_may_be_added_to_and_stored_in_place(card: CardDriver) -> None:
    x, index, terms = whole(ROWS), generator.integers(0, ROWS, TERMS), whole(TERMS)
    wanted = x.copy()
    tensor = given(x)
    for _ in range(2):
        np.add.at(wanted, index, terms)
    found = tensor.scatter_add(0, given(index), given(terms)).scatter_add(0, given(index), given(terms))
    np.testing.assert_array_equal(found.numpy(), wanted)
    tensor.assign(tensor.scatter_add(0, given(index), given(terms))).realize()
    np.add.at(wanted, index, terms)
    tensor.assign(tensor.index_add(0, given(index), given(2 * terms))).realize()
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_infinities_nan_and_zeros_are_those_of_additions_in_order(card: CardDriver) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([1, 1, 1, nan, -inf, 3e38, -0.0, -0.0, -0.0, 1e-45], np.float32)
    index = np.array([0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 7])
    terms = np.array([inf, 1, -inf, nan, 1, inf, -inf, 3e38, 3e38, -0.0, 0.0], np.float32)
    wanted = x.copy()
    with np.errstate(all="ignore"):
        np.add.at(wanted, index, terms)
        found = given(x).scatter_add(0, given(index), given(terms)).numpy()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[:9]), np.signbit(wanted[:9]))
    assert SUMS in names(card)


def test_indices_that_name_no_output_are_left_out(card: CardDriver) -> None:
    numbers = np.array([-1, 0, 7, 2, -(2**31), 2**31 - 1, 2], np.int32)
    values = np.arange(1, 8, dtype=np.float32).reshape(1, 7, 1)
    made = atomics.add_floats_by_number(given(numbers).uop, given(values).uop, 3, 256, 2)
    np.testing.assert_array_equal(Tensor(made).numpy()[0, :, 0], [2, 0, 11])


def test_negative_indices_count_from_the_end(card: CardDriver) -> None:
    x, index, terms = whole(ROWS, 2), generator.integers(-ROWS, ROWS, TERMS), whole(TERMS, 2)
    wanted = np.zeros_like(x)
    np.add.at(wanted, index, terms)
    np.testing.assert_array_equal(gradient(lambda x, i: x[i])(given(x), given(index), given(terms)).numpy(), wanted)
    assert SUMS in names(card)


@pytest.mark.parametrize(("rows", "terms"), [(5, 0), (0, 0), (5, 1)], ids=str)
def test_of_no_or_one_term(rows: int, terms: int, card: CardDriver) -> None:
    x, values, index = whole(rows, 2), whole(terms, 2), np.full((terms, 2), 3)
    wanted = x.copy()
    np.add.at(wanted, (index, np.arange(2)[None]), values)
    tensor = Tensor(x, device=NAME)
    found = tensor.scatter_add(0, Tensor(index, device=NAME), Tensor(values, device=NAME))
    np.testing.assert_array_equal(found.numpy(), wanted)
    row = Tensor(index[:, 0].copy(), device=NAME)
    np.testing.assert_array_equal(tensor.index_add(0, row, Tensor(values, device=NAME)).numpy(), wanted)


def test_outputs_beyond_the_cache_are_taken_in_parts() -> None:
    x, index, terms = whole(333), generator.integers(0, 333, 900), whole(900)
    wanted = x.copy()
    np.add.at(wanted, index, terms)
    with emulated_card(cores=1, cache_bytes=500) as card, Context(ALLOW_FLOAT_ATOMICS=1):
        np.testing.assert_array_equal(given(x).scatter_add(0, given(index), given(terms)).numpy(), wanted)
        (program,) = (program for program in card.programs if program.name == SUMS)
        assert [axis.src[0].arg for axis in program.global_ranges] == [6, 4]


# ---------------------------------------------------------------- the option


def program_of(setting: int, **facts: object) -> list[tuple[str, str]]:
    """Names and bodies of what `scatter_add`, `index_add` and the gradient of a gather are on a card."""
    order = np.random.default_rng(3)
    index, terms = order.integers(0, ROWS, (TERMS, COLUMNS)), order.integers(0, 9, (TERMS, COLUMNS)).astype(np.float32)
    with emulated_card(**{"cores": 1, **facts}) as card, Context(ALLOW_FLOAT_ATOMICS=setting):
        tensor = given(np.ones((ROWS, COLUMNS), np.float32))
        for name in ("scatter_add", "index_add", "gradient of gather"):
            shape, make, _ = OPERATIONS[name]
            make(tensor, given(index.reshape(-1)[:TERMS] if len(shape) == 1 else index), given(terms)).realize()
        return [(program.name, str(program.body)) for program in card.programs]


def test_without_the_option_or_the_device_sums_are_those_of_integers() -> None:
    default = program_of(0)
    assert not any(name == SUMS for name, _ in default)
    assert program_of(0, float_atomics=frozenset()) == default
    assert program_of(1, float_atomics=frozenset()) == default
    # A gradient has the kernel of `scatter_add`, after zeros in place of a copy.
    assert sum(name == SUMS for name, _ in program_of(1)) == 2


def test_the_way_with_the_least_estimate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "float_clocks", lambda *_: 1e18)
    assert not any(name == SUMS for name, _ in program_of(1))


def test_a_recorded_call_follows_the_option(card: CardDriver) -> None:
    x, index, terms = given(whole(ROWS)), given(generator.integers(0, ROWS, TERMS)), given(whole(TERMS))
    summed = jit(lambda x, i, v: x.scatter_add(0, i, v))
    for setting in (0, 1):
        with Context(ALLOW_FLOAT_ATOMICS=setting):
            for _ in range(3):
                summed(x, index, terms).realize()
        assert (SUMS in names(card)) == bool(setting)


# ---------------------------------------------------------------- the store itself


def adding_kernel(op: Op = Ops.ADD, dtype: DType = dtypes.float32, reads: bool = False) -> UOp:
    """Each of ten threads combines 1 with cell thread % 4, and may copy the cell."""
    thread = loop(10, 0, AxisType.LOCAL)
    cells, copy = param(0, dtype, 4), param(1, dtype, 10)
    effects = [UOp(Ops.STORE, dtypes.void, (place(cells, thread % 4), const(dtype, 1)), op)]
    if reads:
        effects.append(store(copy, thread, load(cells, thread % 4)))
    return UOp(Ops.SINK, dtypes.void, tuple(effects), KernelInfo("add", ()))


def test_the_emulator_adds_floats_and_reports_other_accesses(card: CardDriver) -> None:
    cells = np.full(4, 0.5, np.float32)
    run_program(lower(adding_kernel(), card.target), [cells], [True])
    np.testing.assert_array_equal(cells, [3.5, 3.5, 2.5, 2.5])
    with pytest.raises(RaceError, match="nothing orders the two"):
        run_program(lower(adding_kernel(reads=True), card.target), [cells, np.zeros(10, np.float32)], [True, False])


@pytest.mark.parametrize(("op", "dtype"), [(Ops.MAX, dtypes.float32), (Ops.ADD, dtypes.float16)], ids=str)
def test_other_atomic_updates_of_floats_are_no_kernels(op: Op, dtype: DType) -> None:
    with pytest.raises(VerifyError, match="atomically"):
        verify_kernel(adding_kernel(op, dtype))


def test_a_target_without_float_atomics_refuses_them(card: CardDriver) -> None:
    program = lower(adding_kernel(), card.target)
    verify_program(program)
    with pytest.raises(VerifyError, match="updates float32 by ADD atomically"):
        verify_program(replace(program, target=replace(card.target, float_atomics=frozenset())))
    with pytest.raises(UnsupportedError, match="updates float32 atomically"):
        lower(adding_kernel(), replace(card.target, float_atomics=frozenset()))
