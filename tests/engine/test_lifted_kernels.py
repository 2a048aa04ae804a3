"""Lifted plans of graphs with custom kernels, which are written anew for symbolic sizes: how their numbers become
expressions of a few sizes (engine/planning/lifted_sizes.py), and what writes them (graph/kernels/origin.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tests.engine.calls import Calls
from tests.kernel.attention_cases import Case, expected
from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Context, Tensor, Variable
from tilewright.backends.cuda.device import cuda_target
from tilewright.base import events
from tilewright.engine.compilation import compile as compiling
from tilewright.engine.planning.lifted_sizes import BOUNDS, MAX_VARIABLES, MIN_SIZE, Column, Expressions
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.ops import Ops
from tilewright.graph.size_expressions import evaluate_size
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

Array = np.ndarray[Any, Any]


def forget() -> None:
    """As a process that has made a few plans of other graphs."""
    forget_schedules()
    for operation in (Tensor.exp, Tensor.sum, Tensor.sqrt, Tensor.relu):
        operation(Tensor(np.ones((2, 2), np.float32))).realize()


@pytest.fixture
def no_plans() -> Iterator[None]:
    forget()
    yield
    forget_schedules()


@pytest.fixture
def told(no_plans: None) -> Iterator[list[str]]:
    """For each lifted graph an empty string, or why it could not be planned."""
    found: list[str] = []
    with events.subscribe(lambda event: found.append(str(event["failure"])), ["lift"]):
        yield found


# ---------------------------------------------------------------- blocked attention


def case_of(length: int, shared: int, mask: str, heads: int = 2) -> Case:
    return Case((1, heads, length, 16), (1, heads // shared, length, 16), is_causal=not mask, mask=mask)


def attention(case: Case, device: str = "CPU") -> list[Array]:
    """The result, and the gradients of queries, keys and values."""
    query, key, value, slope, *mask = case.tensors(device)
    found = case.attend(query, key, value, *mask)
    gradients = found.gradient(query, key, value, gradient=slope)
    return computed(each.float() for each in (found, *gradients))


def compare(found: Sequence[Array], wanted: Sequence[Array], tolerance: float = 5e-6) -> None:
    for one, other in zip(found, wanted):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= tolerance * max(1.0, np.abs(other).max())


# Of which neither the numbers of panels nor those of blocks follow from the others but by the length.
FIRST, LATER = (300, 417, 500), (289, 350, 333, 460, 511)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("shared", "mask"), [(1, ""), (2, ""), (1, "bool"), (2, "heads")])
def test_lengths_share_a_plan(shared: int, mask: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The third length makes kernels for all later ones."""
    for length in FIRST:
        attention(case_of(length, shared, mask))
    assert told == [""]
    drafts = Calls(monkeypatch, compiling, "draft_kernel")
    results = {length: attention(case_of(length, shared, mask)) for length in LATER}
    assert (told, drafts.count) == ([""], 0)
    for length, found in results.items():
        case = case_of(length, shared, mask)
        result, gradients = expected(case, case.arrays())
        compare(found, [result, *gradients[:3]])
    with Context(LIFT_SIZES=0):
        compare(results[LATER[0]], attention(case_of(LATER[0], shared, mask)))
    assert drafts.count > 0


def test_lengths_share_a_plan_on_tensor_cores(told: list[str]) -> None:
    target = cuda_target()
    facts = {"tensor_cores": target.tensor_cores, "max_local_bytes": target.max_local_bytes, "cores": target.cores}
    with emulated_card(**facts) as card:
        card.lifted_terms = 1 << 44
        forget()
        for length in (33, 50, 70):
            attention(case_of(length, 2, ""), NAME)
        assert told == [""]
        count = len(card.programs)
        for length in (40, 64, 101):
            case = case_of(length, 2, "")
            result, gradients = expected(case, case.arrays())
            compare(attention(case, NAME), [result, *gradients])
        assert (told, len(card.programs)) == ([""], count)
        assert "attention_key_gradient" in [program.name for program in card.programs]


# ---------------------------------------------------------------- numbers as expressions


LENGTHS = (300, 417, 500)
# A length is the size of many axes, and a number of panels or blocks comes with what they lack.
OFTEN = 5


def of_lengths(function: Callable[[int], int]) -> Column:
    return tuple(function(length) for length in LENGTHS)


FOLLOWS: dict[str, Callable[[int], int]] = {
    "a multiple": lambda n: 3 * n,
    "an offset": lambda n: 2 * n - 7,
    "what is left of a number": lambda n: 512 - n,
    "a square": lambda n: n * n,
    "a multiple of a square": lambda n: 6 * n * n,
    "panels": lambda n: -(-n // 48),
    "whole panels": lambda n: -(-n // 48) * 48,
    "what panels lack": lambda n: -n % 48,
    "blocks": lambda n: -(-n // 192),
    "rows of blocks": lambda n: -(-n // 192) * 192,
}
# Of numbers that follow from a length.
FOLLOWS_FROM_OTHERS: tuple[Callable[[int], int], ...] = (
    lambda n: 2 * n * n + 1,
    lambda n: -(-n // 48) * 48 * 16,
    lambda n: -(-n // 48) * n,
    lambda n: -(-n // 192) * 192 * n,
)
# Lengths that none of the samples has: of other numbers of panels and blocks, and multiples of these.
CHECKED = (2, 47, 48, 49, 192, 193, 301, 333, 336, 384, 511)


def value_of(size: int | None, values: dict[str, int]) -> int:
    assert size is not None
    return evaluate_size(size.node, values) if isinstance(size, SymbolicInt) else size


@pytest.mark.parametrize("name", FOLLOWS)
def test_numbers_follow_from_a_length(name: str) -> None:
    """What is found from three lengths has the values of others too."""
    column = of_lengths(FOLLOWS[name])
    lacking = [of_lengths(lambda n: -n % 48), of_lengths(lambda n: -n % 192)]
    found = Expressions([*[LENGTHS] * OFTEN, column, *lacking], BOUNDS[0])
    ((_, _, _, position),) = found.variables
    assert position == 0
    for length in CHECKED:
        values = {"size0": length}
        assert value_of(found.of(LENGTHS), values) == length
        assert value_of(found.of(column), values) == FOLLOWS[name](length)


def test_numbers_follow_from_each_other() -> None:
    functions = [*[lambda n: n] * OFTEN, *FOLLOWS.values(), *FOLLOWS_FROM_OTHERS, lambda n: -n % 192]
    found = Expressions(list(map(of_lengths, functions)), BOUNDS[0])
    ((_, _, _, position),) = found.variables
    for length in CHECKED:
        values = {"size0": functions[position](length)}
        for function in functions:
            assert value_of(found.of(of_lengths(function)), values) == function(length)


def test_a_column_that_does_not_differ_is_a_number() -> None:
    found = Expressions([LENGTHS, (4, 4, 4)], BOUNDS[0])
    assert found.of((4, 4, 4)) == 4
    assert not isinstance(found.of((4, 4, 4)), SymbolicInt)
    assert Expressions([(4, 4, 4)], BOUNDS[0]).variables == []


BATCHES = (20, 50, 31)
# Of a batch and a length.
OF_BOTH: tuple[Callable[[int, int], int], ...] = (
    lambda batch, length: batch,
    *[lambda batch, length: length] * OFTEN,
    lambda batch, length: -length % 48,
    lambda batch, length: batch * length,
    lambda batch, length: 4 * batch * length,
    lambda batch, length: -(-length // 48),
    lambda batch, length: -(-length // 48) * batch,
    lambda batch, length: -(-length // 48) * 48 * 16,
    lambda batch, length: batch * batch,
    lambda batch, length: 3 * length + 1,
)


def test_two_sizes_that_differ_apart() -> None:
    columns = [tuple(map(function, BATCHES, LENGTHS)) for function in OF_BOTH]
    found = Expressions(columns, BOUNDS[0])
    assert len(found.variables) == 2
    for batch, length in ((20, 300), (7, 480), (63, 49), (3, 511)):
        values = {name: OF_BOTH[position](batch, length) for name, _, _, position in found.variables}
        for column, function in zip(columns, OF_BOTH, strict=True):
            assert value_of(found.of(column), values) == function(batch, length)


# Numbers that follow from nothing: below the least size, or in the wrong order for parts of the lengths.
@pytest.mark.parametrize("column", [(1, 8, 9), (1, 0, 1), (-5, 3, 7)])
def test_a_column_that_follows_from_nothing(column: Column) -> None:
    found = Expressions([LENGTHS, column], BOUNDS[0])
    assert found.of(column) is None
    assert [position for *_, position in found.variables] == [0]


def test_more_sizes_than_there_are_variables() -> None:
    columns = [(5, 17, 9), (12, 11, 31), (6, 5, 17), (18, 30, 4), (7, 3, 29)]
    found = Expressions(columns, BOUNDS[0])
    assert len(found.variables) == MAX_VARIABLES
    assert sum(found.of(column) is None for column in columns) == len(columns) - MAX_VARIABLES


@pytest.mark.parametrize("column", [(300, 417, 512), (2, 9, 5), (7, 8, 64)])
def test_bounds_hold_the_values(column: Column) -> None:
    """From wide to narrow; the last ones are those of the values."""
    found = []
    for bounds in BOUNDS:
        ((name, least, greatest, position),) = Expressions([column], bounds).variables
        assert (name, position) == ("size0", 0)
        assert MIN_SIZE <= least <= min(column) < max(column) <= greatest <= 2 * max(column)
        found.append((least, greatest))
    assert found[-1] == (min(column), max(column))
    widths = [greatest - least for least, greatest in found]
    assert widths[0] == max(widths) > min(widths) == widths[-1]


def test_parts_are_of_several_elements() -> None:
    """Counts of parts of less than 8, or of more than 1024, are no parts."""
    for part in (2, 3, 7):
        column = tuple(-(-n // part) for n in LENGTHS)
        assert Expressions([LENGTHS, column], BOUNDS[0]).of(column) is not None  # as a size of its own
        assert len(Expressions([LENGTHS, column], BOUNDS[0]).variables) == 2
    lengths = (5000, 9001, 13000)
    for part in (8, 1024):
        column, lacking = tuple(-(-n // part) for n in lengths), tuple(-n % part for n in lengths)
        assert len(Expressions([*[lengths] * OFTEN, column, lacking], BOUNDS[0]).variables) == 1


# ---------------------------------------------------------------- kernels written for other sizes


def custom_kernels(*values: Tensor) -> list[Any]:
    """The arguments of custom kernels, each call once."""
    nodes = toposort(*(value.uop for value in values))
    return list({node.arg.ast: node.arg for node in nodes if node.op is Ops.CUSTOM_KERNEL}.values())


def called(length: Any, device: str) -> list[Any]:
    """Of attention and its gradients."""
    query, key, value = (Tensor.empty(1, 2, 512, 16, device=device)[:, :, :length].contiguous() for _ in range(3))
    found = query.scaled_dot_product_attention(key, value, is_causal=True)
    return custom_kernels(found, *found.gradient(query, key, value, gradient=found.detach()))


def check_origins(device: str, count: int) -> None:
    """A kernel over a variable, with its value, is the kernel for that value."""
    n = Variable("n", 200, 512)
    over, fixed = called(n.bind(333), device), called(333, device)
    assert len(over) == len(fixed) == count
    by_name = {kernel.ast.arg.name: kernel for kernel in fixed}
    assert len(by_name) == count
    for kernel in over:
        wanted = by_name[kernel.ast.arg.name]
        assert kernel.ast is not wanted.ast
        made = kernel.origin.fixed({"n": 333})
        assert made == wanted.origin
        memories = tuple(zip(wanted.dtypes, wanted.shapes))
        assert made.kernel(memories, len(wanted.written)) is wanted.ast
        # What is replaced by itself is what it was.
        same = kernel.origin.with_numbers(lambda size: size)
        assert same == kernel.origin
        assert same.kernel(tuple(zip(kernel.dtypes, kernel.shapes)), len(kernel.written)) is kernel.ast


def test_kernels_in_blocks_are_written_for_other_sizes() -> None:
    check_origins("CPU", 2)


def test_numbers_of_an_origin_are_given_in_their_order() -> None:
    """Bools, dtypes and floats are no numbers; nested tuples keep their types."""
    origin = called(333, "CPU")[0].origin
    seen: list[Any] = []

    def collect(size: Any) -> int:
        seen.append(size)
        return len(seen)

    numbered = origin.with_numbers(collect)
    assert 333 in seen
    assert not any(isinstance(size, bool | float) for size in seen)
    again: list[Any] = []
    numbered.with_numbers(lambda size: again.append(size) or size)
    assert again == [*range(1, len(seen) + 1)]
    assert numbered.call.is_causal is origin.call.is_causal
    assert type(numbered.call.score_tile) is type(origin.call.score_tile)


def test_a_size_in_an_origin_is_an_expression() -> None:
    n = Variable("n", 200, 512).bind(333)
    origin = called(333, "CPU")[0].origin
    lifted_origin = origin.with_numbers(lambda size: n if size == 333 else size)
    assert isinstance(lifted_origin.call.queries, UOp)
    assert lifted_origin.fixed({"n": 333}) == origin
    assert lifted_origin.fixed({"n": 400}).call.keys == 400
