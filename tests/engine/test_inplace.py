"""In-place updates mean what they would mean if every line ran at once in order: who reads an old version gets the old
values, who reads the new one the new values, and what was realised before never changes.

All at the level of nodes: ASSIGN(x, view of x, value). The interpreter copies on every update and so says what is
right."""

from __future__ import annotations

import _thread
import gc
import itertools
from collections.abc import Callable

import numpy as np
import pytest

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tests.schedule.graphs import add, mul
from tilewright.base.dtype import dtypes
from tilewright.base.errors import RealizeError
from tilewright.engine.execution.realize import realize, schedule
from tilewright.engine.memory.live import register
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import buffer_of, from_host

DEVICES = ("CPU", "PYTHON")


class Memory:
    """Buffers with known contents on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.contents: dict[UOp, np.ndarray] = {}

    def make(self, *shape: int, start: int = 0) -> UOp:
        data = np.arange(start, start + int(np.prod(shape)), dtype=np.int32)
        node = from_host(data.copy(), self.device, dtypes.int32, data.size)
        self.contents[node] = data
        return build.reshape(node, shape)

    def check(self, *outputs: UOp) -> list[UOp]:
        """Realises the outputs together and compares each with the interpreter; gives their buffers."""
        expected = evaluate_all(outputs, self.contents)
        buffers = realize(outputs, self.device)
        for position, (buffer, output, value) in enumerate(zip(buffers, outputs, expected, strict=True)):
            np.testing.assert_array_equal(values(buffer, output), value, err_msg=f"output {position}")
        return buffers


class Held:
    """Someone who can still read a node, as a Tensor is."""

    def __init__(self, uop: UOp) -> None:
        self.uop = uop
        register(self)


@pytest.fixture(params=DEVICES)
def memory(request: pytest.FixtureRequest) -> Memory:
    return Memory(request.param)


def values(buffer: UOp, like: UOp) -> np.ndarray:
    return np.frombuffer(bytes(buffer_of(buffer).view()), numpy_dtype(like.dtype)).reshape(like.shape)


def number(value: int, like: UOp) -> UOp:
    return build.const(dtypes.int32, value, like.shape)


def cut(x: UOp, *pairs: tuple[int, int]) -> UOp:
    return build.shrink(x, pairs)


def address(node: UOp) -> int:
    return id(buffer_of(node).ensure())


# ---------------------------------------------------------------- one update


def test_assigning_a_function_of_itself_writes_the_same_memory(memory: Memory) -> None:
    x = memory.make(4, 5)
    before = address(build.stored_root(x))
    (buffer,) = memory.check(build.assign(x, x, add(mul(x, number(3, x)), number(1, x))))
    assert address(buffer) == before


def test_a_function_of_the_transpose_reads_everything_first(memory: Memory) -> None:
    x = memory.make(5, 5)
    before = address(build.stored_root(x))
    (buffer,) = memory.check(build.assign(x, x, add(x, build.permute(x, (1, 0)))))
    assert address(buffer) == before


def test_a_sum_of_itself_reads_everything_first(memory: Memory) -> None:
    x = memory.make(6, 4)
    total = build.expand(build.reduce_axis(Ops.ADD, x, (0, 1)), (6, 4))
    memory.check(build.assign(x, x, add(x, total)))


def test_a_gather_from_itself_reads_everything_first(memory: Memory) -> None:
    x, index = memory.make(8), memory.make(8)
    backwards = build.alu(Ops.SUB, number(7, index), index)
    memory.check(build.assign(x, x, build.gather(x, backwards)))


@pytest.mark.parametrize(("source", "target"), [((0, 90), (10, 100)), ((10, 100), (0, 90)), ((0, 50), (50, 100))])
def test_overlapping_slices(memory: Memory, source: tuple[int, int], target: tuple[int, int]) -> None:
    x = memory.make(100)
    memory.check(build.assign(x, cut(x, target), cut(x, source)))


VIEWS: dict[str, Callable[[UOp], UOp]] = {
    "all": lambda x: x,
    "rows": lambda x: cut(x, (1, 4), (0, 8), (0, 3)),
    "inner": lambda x: cut(x, (2, 3), (1, 7), (1, 3)),
    "permuted": lambda x: build.permute(x, (2, 0, 1)),
    "flipped": lambda x: build.flip(x, (0, 2)),
    "strided": lambda x: cut(build.reshape(x, (6, 4, 2, 3)), (0, 6), (0, 4), (1, 2), (0, 3)),
    "strided, flipped and permuted": lambda x: build.flip(
        build.permute(cut(build.reshape(x, (6, 4, 2, 3)), (1, 5), (0, 4), (0, 1), (0, 2)), (3, 1, 0, 2)), (1,)
    ),
    "flat": lambda x: cut(build.reshape(x, (144,)), (17, 101)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_value_through_a_view(memory: Memory, name: str) -> None:
    x = memory.make(6, 8, 3)
    view = VIEWS[name](x)
    value = build.reshape(memory.make(int(np.prod(view.shape)), start=1000), view.shape)
    memory.check(build.assign(x, view, value))


@pytest.mark.parametrize(("target", "source"), list(itertools.product(("rows", "inner", "flat"), VIEWS)))
def test_a_view_of_itself_through_a_view(memory: Memory, target: str, source: str) -> None:
    x = memory.make(6, 8, 3)
    view = VIEWS[target](x)
    count = int(np.prod(view.shape))
    read = VIEWS[source](x)
    have = int(np.prod(read.shape))
    flat = build.reshape(read, (have,))
    flat = cut(flat, (have - count, have)) if have >= count else build.pad(flat, ((count - have, 0),))
    memory.check(build.assign(x, view, add(build.reshape(flat, view.shape), view)))


def test_an_empty_view_changes_nothing(memory: Memory) -> None:
    x = memory.make(4, 5)
    nothing = cut(x, (2, 2), (0, 5))
    memory.check(build.assign(x, nothing, build.reshape(memory.make(0), (0, 5))))


# ---------------------------------------------------------------- several versions in one graph


def test_an_expression_built_before_keeps_the_old_value(memory: Memory) -> None:
    x = memory.make(4, 5)
    before = mul(x, x)
    after = build.assign(x, x, add(x, number(100, x)))
    memory.check(before, after, mul(after, after))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_in_which_results_are_asked_for_does_not_matter(memory: Memory, order: tuple[int, ...]) -> None:
    x = memory.make(4, 5)
    before = build.permute(x, (1, 0))
    after = build.assign(x, cut(x, (0, 2), (0, 5)), cut(x, (2, 4), (0, 5)))
    outputs = (add(before, before), after, mul(after, x))
    memory.check(*(outputs[k] for k in order))


def test_swapping_two_buffers(memory: Memory) -> None:
    x, y = memory.make(6), memory.make(6, start=100)
    memory.check(build.assign(x, x, y), build.assign(y, y, x))


def test_three_buffers_in_a_circle_through_views(memory: Memory) -> None:
    a, b, c = memory.make(4, 4), memory.make(4, 4, start=100), memory.make(4, 4, start=200)
    new_a = build.assign(a, cut(a, (0, 2), (0, 4)), cut(b, (2, 4), (0, 4)))
    new_b = build.assign(b, cut(b, (1, 4), (0, 4)), cut(c, (0, 3), (0, 4)))
    new_c = build.assign(c, c, build.permute(a, (1, 0)))
    memory.check(new_a, new_b, new_c)


def test_old_and_new_versions_in_an_order_no_memory_allows(memory: Memory) -> None:
    """Each update reads the new version of the other buffer and the old version of its own."""
    x, y = memory.make(6), memory.make(6, start=50)
    new_x = build.assign(x, x, add(x, y))
    new_y = build.assign(y, y, mul(new_x, y))
    both_old, both_new = mul(x, y), mul(new_x, new_y)
    memory.check(new_y, both_old, new_x, both_new, add(new_x, y), add(x, new_y))


def test_an_update_needs_what_reads_the_old_version_after_it(memory: Memory) -> None:
    """The sum needs the new version, the product the old one and the sum: the old version has to outlive its update."""
    x = memory.make(6)
    new = build.assign(x, x, build.flip(x, (0,)))
    total = build.expand(build.reduce_axis(Ops.ADD, mul(new, new), (0,)), (6,))
    memory.check(mul(build.contiguous(total), x), new)


def test_chains_of_updates(memory: Memory) -> None:
    x = memory.make(6, 6)
    versions = [x]
    for step in range(5):
        now = versions[-1]
        view = cut(now, (step, step + 1), (0, 6))
        versions.append(build.assign(now, view, add(build.reshape(cut(now, (0, 6), (step, step + 1)), (1, 6)), view)))
    memory.check(versions[-1])


def test_every_version_of_a_chain_can_be_asked_for(memory: Memory) -> None:
    x = memory.make(8)
    first = build.assign(x, cut(x, (0, 4)), cut(x, (4, 8)))
    second = build.assign(first, cut(first, (2, 8)), cut(first, (0, 6)))
    third = build.assign(second, second, mul(second, first))
    buffers = memory.check(first, third, second, add(add(x, first), add(second, third)))
    assert len({address(buffer) for buffer in buffers}) == 4


def test_two_updates_of_one_version(memory: Memory) -> None:
    """Neither sees the other: only one of them can have the memory."""
    x = memory.make(8)
    left = build.assign(x, cut(x, (0, 4)), number(-1, cut(x, (0, 4))))
    right = build.assign(x, cut(x, (4, 8)), number(-2, cut(x, (4, 8))))
    memory.check(left, right, add(left, right))


def test_updates_of_what_is_stored_on_the_way(memory: Memory) -> None:
    """CONTIGUOUS gives a value memory of its own, which can be updated; the value itself may be an output too."""
    x = memory.make(4, 4)
    stored = build.contiguous(add(x, build.permute(x, (1, 0))))
    updated = build.assign(stored, cut(stored, (1, 3), (0, 4)), cut(x, (0, 2), (0, 4)))
    memory.check(updated, mul(stored, stored), stored)


def test_random_histories() -> None:
    """Updates and readers of any version, at random, all realised at once."""
    for seed in range(60):
        numbers = np.random.default_rng(seed)
        memory = Memory(DEVICES[seed % 2])
        versions = [memory.make(12), memory.make(12, start=100)]
        readers: list[UOp] = []
        for _ in range(int(numbers.integers(2, 7))):
            target, source = (versions[int(k)] for k in numbers.integers(0, len(versions), 2))
            length = int(numbers.integers(1, 13))
            at, source_at = (int(k) for k in numbers.integers(0, 13 - length, 2))
            value = cut(source, (source_at, source_at + length))
            if numbers.random() < 0.5:
                value = add(build.flip(value, (0,)), cut(target, (at, at + length)))
            versions.append(build.assign(target, cut(target, (at, at + length)), value))
            if numbers.random() < 0.5:
                left, right = (versions[int(k)] for k in numbers.integers(0, len(versions), 2))
                readers.append(build.flip(add(left, mul(right, right)), (0,)))
        wanted = [*readers, *(v for v in versions[2:] if numbers.random() < 0.6), versions[-1]]
        outputs = [wanted[int(k)] for k in numbers.permutation(len(wanted))]
        memory.check(*dict.fromkeys(outputs))


# ---------------------------------------------------------------- one realize after another


def test_a_result_never_changes(memory: Memory) -> None:
    x = memory.make(6)
    doubled = add(x, x)
    (result,) = memory.check(doubled)
    kept = values(result, doubled).copy()
    realize([build.assign(x, x, number(9, x))], memory.device)
    np.testing.assert_array_equal(values(result, doubled), kept)


def test_the_old_node_of_updated_memory_leads_nowhere(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its contents are gone: reading it is refused, never answered with the new values."""
    monkeypatch.setattr(_thread, "_count", lambda: 0)
    x = memory.make(6)
    realize([build.assign(x, x, number(9, x))], memory.device)
    with pytest.raises(RealizeError):
        realize([mul(x, x)], memory.device)


def test_beside_other_threads_the_old_node_keeps_its_contents(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever refers to it may be an operation of another thread that has not come to enter its result."""
    monkeypatch.setattr(_thread, "_count", lambda: 1)
    x = memory.make(6)
    (buffer,) = realize([build.assign(x, x, number(9, x))], memory.device)
    (squared,) = realize([mul(x, x)], memory.device)
    np.testing.assert_array_equal(values(squared, x), np.arange(6) ** 2)
    np.testing.assert_array_equal(values(buffer, x), np.full(6, 9))


def test_updates_one_realize_at_a_time(memory: Memory) -> None:
    x = memory.make(6)
    node: UOp = x
    expected = np.arange(6, dtype=np.int32)
    for step in range(4):
        node = build.assign(node, cut(node, (step, step + 2)), add(cut(node, (0, 2)), number(10, cut(node, (0, 2)))))
        (buffer,) = realize([node], memory.device)
        expected[step : step + 2] = expected[0:2] + 10
        np.testing.assert_array_equal(values(buffer, node), expected)
        node = build.reshape(buffer, (6,))


def test_contents_that_someone_views_are_kept_and_the_update_goes_elsewhere(memory: Memory) -> None:
    x = memory.make(4, 5)
    holder = Held(build.permute(x, (1, 0)))
    before = address(build.stored_root(x))
    (buffer,) = memory.check(build.assign(x, cut(x, (0, 1), (0, 5)), number(-1, cut(x, (0, 1), (0, 5)))))
    assert address(buffer) != before
    memory.check(add(holder.uop, holder.uop))


def test_a_value_that_someone_computes_from_old_contents_is_right_afterwards(memory: Memory) -> None:
    x = memory.make(4, 5)
    holder = Held(mul(x, x))
    memory.check(build.assign(x, x, add(x, number(1, x))))
    np.testing.assert_array_equal(
        values(realize([holder.uop], memory.device)[0], holder.uop), np.arange(20, dtype=np.int32).reshape(4, 5) ** 2
    )


def test_an_update_that_nobody_watches_is_made_in_place(memory: Memory) -> None:
    x = memory.make(4, 5)
    holder = Held(build.permute(x, (1, 0)))
    before = address(build.stored_root(x))
    del holder
    gc.collect()
    (buffer,) = memory.check(build.assign(x, cut(x, (0, 1), (0, 5)), number(-1, cut(x, (0, 1), (0, 5)))))
    assert address(buffer) == before


def test_a_holder_of_a_version_between_gets_that_version(memory: Memory) -> None:
    x = memory.make(8)
    first = build.assign(x, cut(x, (0, 4)), cut(x, (4, 8)))
    second = build.assign(first, first, mul(first, first))
    holder = Held(add(first, number(1, first)))
    expected = np.array([5, 6, 7, 8, 5, 6, 7, 8], np.int32)
    memory.check(second)
    np.testing.assert_array_equal(values(realize([holder.uop], memory.device)[0], first), expected)


# ---------------------------------------------------------------- how it is done


def items_of(*outputs: UOp) -> int:
    return len(schedule(outputs, "CPU").items)


def test_how_many_kernels_an_update_takes() -> None:
    """One where each element is read only where it is written; two through a temp; a copy first where memory is new."""
    memory = Memory("CPU")
    x = memory.make(6, 6)
    assert items_of(build.assign(x, x, add(x, x))) == 1
    assert items_of(build.assign(x, x, add(x, build.permute(x, (1, 0))))) == 2
    assert items_of(build.assign(x, cut(x, (0, 3), (0, 6)), cut(x, (3, 6), (0, 6)))) == 2
    y = memory.make(3, 6)
    assert items_of(build.assign(x, cut(x, (0, 3), (0, 6)), y)) == 1
    holder = Held(x)
    assert items_of(build.assign(x, cut(x, (0, 3), (0, 6)), y)) == 2
    assert holder.uop is x
