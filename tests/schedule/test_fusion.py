"""What becomes one kernel and what does not, what items declare, and where temporary memory lies.

Graphs are built from raw nodes. Every count stands beside a check of the values, so that one kernel that is wrong is
not taken for a good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.fuzz.generate import make_case
from tests.schedule.graphs import (
    DEVICE,
    Graph,
    add,
    exp,
    layernorm,
    matmul,
    mul,
    relu,
    scalar,
    softmax,
    spread,
    stores,
    sub,
    total,
)
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.codegen.pipeline import estimate_work
from tilewright.engine.execution.realize import schedule
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_kernel
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import Access, Item, Schedule, Slot
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort
from tilewright.schedule.pipeline import schedule as make_schedule
from tilewright.schedule.steps.memory import lifetimes, place_temps


@pytest.fixture
def graph() -> Graph:
    return Graph()


# ---------------------------------------------------------------- how many kernels


def chain(g: Graph) -> UOp:
    x = g.input(40, 30)
    for step in range(12):
        x = add(mul(x, scalar(0.5, x)), scalar(float(step), x))
    return x


def reduce_with_both_sides(g: Graph) -> UOp:
    x = g.input(64, 50)
    reduced = total(mul(x, x), 1)
    return build.alu(Ops.SQRT, add(reduced, scalar(1.0, reduced)))


def product_with_bias_and_relu(g: Graph) -> UOp:
    x, y = g.input(20, 30), g.input(30, 24)
    return relu(add(matmul(x, y), build.expand(g.input(1, 24), (20, 24))))


def sum_and_sum_of_squares(g: Graph) -> UOp:
    x = g.input(64, 40)
    return sub(total(mul(x, x), 1), total(x, 1))


def residual(g: Graph) -> UOp:
    x, weights = g.input(16, 16), g.input(16, 16)
    return add(x, relu(matmul(x, weights)))


ONE_KERNEL: dict[str, Callable[[Graph], UOp]] = {
    "elementwise chain": chain,
    "softmax": lambda g: softmax(g.input(64, 50)),
    "softmax of a stack": lambda g: softmax(g.input(4, 8, 33)),
    "layernorm": lambda g: layernorm(g.input(64, 48)),
    "reduction with prologue and epilogue": reduce_with_both_sides,
    "product, bias and relu": product_with_bias_and_relu,
    "sum and sum of squares": sum_and_sum_of_squares,
    "residual": residual,
    "a constant": lambda g: add(scalar(1.0, g.input(8)), g.input(8)),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str, graph: Graph) -> None:
    assert graph.kernels(ONE_KERNEL[name](graph)) == 1


def test_views_cost_nothing(graph: Graph) -> None:
    x = graph.input(6, 8, 10)
    moved = build.flip(build.reshape(build.permute(x, (2, 0, 1)), (10, 48)), (0,))
    moved = build.shrink(build.pad(moved, ((1, 2), (0, 3))), ((0, 9), (2, 40)))
    assert graph.kernels(add(moved, moved)) == 1


def test_a_reshape_of_a_buffer_takes_no_kernel(graph: Graph) -> None:
    x = graph.input(6, 8)
    assert graph.kernels(build.reshape(x, (2, 24))) == 0


def test_a_reduction_that_is_spread_over_the_other_axis_is_computed_once(graph: Graph) -> None:
    """Column sums, spread over rows: the loop over columns goes outside, and each sum is made once."""
    x = graph.input(64, 64)
    joined = add(x, spread(total(x, 0), x))
    (item,) = schedule([joined], DEVICE).items
    assert item.ast is not None
    operations, _ = estimate_work(item.ast)
    assert operations == 2 * 64 * 64
    assert graph.kernels(joined) == 1


def test_an_outer_sum_computes_neither_side_again_and_again(graph: Graph) -> None:
    """rows[i] + columns[j]: at most one of the sums lies in the kernel that joins them."""
    x, y = graph.input(64, 300), graph.input(300, 64)
    rows, columns = total(x, 1), total(y, 0)
    joined = add(build.expand(rows, (64, 64)), build.expand(columns, (64, 64)))
    assert 2 <= graph.kernels(joined) <= 3


def test_two_consumers_of_a_reduction_share_one_computation(graph: Graph) -> None:
    """The first of them computes it and stores it for the other."""
    x = graph.input(64, 100)
    reduced = total(exp(x), 1)
    plan = graph.plan(mul(reduced, reduced), add(reduced, scalar(1.0, reduced)))
    assert stores(plan) == [2, 1]


def test_two_consumers_of_something_cheap_compute_it_twice(graph: Graph) -> None:
    x = graph.input(64, 100)
    cheap = add(x, scalar(1.0, x))
    assert graph.kernels(mul(cheap, cheap), total(cheap, 0)) == 2


def test_a_state_is_loaded_where_computing_it_again_loads_more(graph: Graph) -> None:
    """The cell of an LSTM: computed again, each step would be a kernel of its own that loads the gates of others."""
    weights, state, hidden = graph.tensor(8, 32), graph.tensor(4, 8), graph.tensor(4, 8)
    for _ in range(6):
        keep, gate, value, shown = (hidden @ weights).chunk(4, 1)
        state = keep.sigmoid() * state + gate.sigmoid() * value.tanh()
        hidden = shown.sigmoid() * state.tanh()
    hidden.sum().backward()
    assert weights.grad is not None
    plan = schedule([weights.grad.uop], DEVICE)
    assert [len(item.reads) for item in plan.items[:12]] == [2] * 12  # a product, then the gates with the last state


def test_an_output_that_is_used_is_stored_once(graph: Graph) -> None:
    x = graph.input(32, 20)
    product = matmul(x, graph.input(20, 16))
    assert stores(graph.plan(product, relu(product))) == [2]


def test_contiguous_is_a_kernel_of_its_own(graph: Graph) -> None:
    x = graph.input(32, 20)
    assert graph.kernels(mul(build.contiguous(add(x, x)), x)) == 2


def test_two_matrix_products_in_a_row_are_two_kernels(graph: Graph) -> None:
    x, first, second = graph.input(24, 20), graph.input(20, 16), graph.input(16, 12)
    assert graph.kernels(matmul(relu(matmul(x, first)), second)) == 2


def test_an_empty_output_takes_no_kernel(graph: Graph) -> None:
    x = graph.input(4, 0, 3)
    assert graph.kernels(add(x, x)) == 0


def test_a_reduction_of_nothing_is_its_identity(graph: Graph) -> None:
    assert graph.kernels(total(graph.input(4, 0), 1)) == 1


@pytest.mark.parametrize("count", [1 << 17, 100_003, (1 << 16) + 8])
def test_a_large_reduction_is_split(graph: Graph, count: int) -> None:
    """With and without a useful divisor; a prime count is padded."""
    assert graph.kernels(total(graph.input(count), 0)) == 2


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN])
def test_a_padded_split_takes_in_nothing_that_is_not_there(op: object, graph: Graph) -> None:
    x = graph.input(100_003)
    shifted = add(x, scalar(-50.0 if op is Ops.MAX else 50.0, x))
    assert graph.kernels(build.reduce_axis(op, shifted, (0,))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1 << 20, 1_000_003])
def test_both_parts_of_a_split_have_the_line_of_the_user(count: int) -> None:
    largest = Tensor.empty(count).max()
    assert [item.line for item in largest.schedule()] == [largest.uop.line] * 2


def test_a_small_reduction_is_not_split(graph: Graph) -> None:
    assert graph.kernels(total(graph.input(1000), 0)) == 1


# ---------------------------------------------------------------- the same structure again


def test_scheduling_the_same_structure_again_gives_the_same_schedule() -> None:
    first, second = Graph(1), Graph(2)
    assert schedule([softmax(first.input(32, 20))], DEVICE) == schedule([softmax(second.input(32, 20))], DEVICE)
    assert schedule([softmax(first.input(32, 20))], DEVICE) != schedule([softmax(first.input(32, 21))], DEVICE)


def test_the_roles_of_buffers_are_part_of_the_structure(graph: Graph) -> None:
    x, y = graph.input(8), graph.input(8)
    assert schedule([sub(x, y)], DEVICE) == schedule([sub(y, x)], DEVICE)
    assert schedule([sub(x, y)], DEVICE) != schedule([sub(x, x)], DEVICE)
    assert stores(graph.plan(sub(x, y), sub(y, x))) == [2]


def test_equal_kernels_are_one_node(graph: Graph) -> None:
    """Two products of equal sizes in one graph are compiled once."""
    outputs = [matmul(graph.input(8, 12), graph.input(12, 6)) for _ in range(2)]
    plan = schedule(outputs, DEVICE)
    assert len(plan.items) == 2
    assert plan.items[0].ast is plan.items[1].ast
    assert graph.kernels(*outputs) == 2


# ---------------------------------------------------------------- declared accesses


def schedule_case(seed: int) -> tuple[Schedule, list[UOp]]:
    """The schedule of a case of the fuzzer, and its PARAMs in slot order."""
    case = make_case(seed)
    params = list(case.bindings)
    exchanges = {node: node.replace(arg=ParamArg(k, node.arg.size, DEVICE)) for k, node in enumerate(params)}
    sink = substitute(case.sink, exchanges)
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        arg = DEVICE if node.op is Ops.COPY else node.arg
        done[node] = UOp(node.op, node.dtype, tuple(done[s] for s in node.src), arg) if node.src else node
    outputs = [done[node] for node in sink.src]
    renamed = [exchanges[node] for node in params]
    return make_schedule(outputs, renamed, DEVICE), renamed


def touched_bytes(item: Item) -> dict[tuple[int, bool], tuple[int, int]]:
    """The bytes that a kernel really touches, (slot, is write) -> (first, last + 1), found by interpreting it."""
    assert item.ast is not None
    params = {node for node in toposort(item.ast) if node.op is Ops.PARAM}
    stored = {store.src[0] for store in item.ast.src}
    bindings = {node: np.zeros(node.arg.size, numpy_dtype(node.dtype)) for node in params}
    found: dict[tuple[int, bool], tuple[int, int]] = {}
    for place in (node for node in toposort(item.ast) if node.op is Ops.INDEX):
        if any(node.op is Ops.LOAD for node in toposort(*place.src[1:])):
            continue  # what is read there depends on data
        valid = place.src[2] if len(place.src) > 2 else build.const(dtypes.bool, True)
        positions, mask = np.broadcast_arrays(
            *evaluate_kernel(UOp(Ops.SINK, dtypes.void, (place.src[1], valid, *_ranges(place))), bindings)[:2]
        )
        if not mask.any():
            continue
        size = place.dtype.itemsize
        start = item.starts[place.src[0].arg.slot]
        first = start + int(positions[mask].min()) * size
        stop = start + (int(positions[mask].max()) + 1) * size
        key = (item.slots[place.src[0].arg.slot], place in stored)
        known = found.get(key, (first, stop))
        found[key] = (min(first, known[0]), max(stop, known[1]))
    return found


def _ranges(place: UOp) -> tuple[UOp, ...]:
    return tuple(place.ranges)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_declared_accesses_cover_what_a_kernel_touches(first: int) -> None:
    for seed in range(first, first + 20):
        plan, _ = schedule_case(seed)
        for item in plan.items:
            if item.ast is None:
                continue
            for (slot, is_write), (start, stop) in touched_bytes(item).items():
                declared = [a for a in (item.writes if is_write else item.reads) if a.slot == slot]
                assert any(a.start <= start and stop <= a.stop for a in declared), f"seed {seed}: {item}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_every_read_of_memory_made_here_comes_after_its_write(first: int) -> None:
    for seed in range(first, first + 50):
        plan, params = schedule_case(seed)
        written: list[Access] = []
        for item in plan.items:
            for read in item.reads:
                if read.slot >= len(params):
                    assert any(read.conflicts(write) for write in written), f"seed {seed}: slot {read.slot}"
            written.extend(item.writes)


# ---------------------------------------------------------------- memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_temps_that_live_together_share_no_bytes(first: int) -> None:
    for seed in range(first, first + 50):
        plan, _ = schedule_case(seed)
        assert check_placement(plan.items, plan.slots, plan.offsets) is None, f"seed {seed}"
        placed = dict(plan.offsets)
        for number, slot in enumerate(plan.slots):
            if number in placed:
                assert slot.kind == "temp"
                assert placed[number] + slot.nbytes <= dict(plan.arenas)[slot.device]


def _pass_on(count: int, sizes: list[int]) -> tuple[list[Item], list[Slot]]:
    """Items that each read the temp before and write the next."""
    slots = [Slot(dtypes.uint8, sizes[n % len(sizes)], DEVICE, "temp") for n in range(count)]
    items = []
    for n in range(count):
        reads = (Access(n - 1, 0, slots[n - 1].nbytes),) if n else ()
        items.append(Item(None, (n,), reads, (Access(n, 0, slots[n].nbytes),), DEVICE))
    return items, slots


def test_a_chain_of_temps_takes_the_memory_of_two() -> None:
    items, slots = _pass_on(12, [1000])
    offsets, arenas = place_temps(items, slots)
    assert check_placement(items, slots, offsets) is None
    assert dict(arenas)[DEVICE] == 2 * 1024


def check_placement(items: Sequence[Item], slots: Sequence[Slot], offsets: Sequence[tuple[int, int]]) -> str | None:
    """None, or which two temps that are alive together share memory."""
    lives = lifetimes(items)
    rows = [(slots[n].device, offset, offset + slots[n].nbytes, *lives[n], n) for n, offset in offsets]
    for position, (device, start, stop, first, last, number) in enumerate(rows):
        for other_device, other_start, other_stop, other_first, other_last, other in rows[position + 1 :]:
            meets_in_time = first <= other_last and other_first <= last
            meets_in_space = start < other_stop and other_start < stop
            if device == other_device and meets_in_time and meets_in_space:
                return f"temps {number} and {other} share bytes {max(start, other_start)}..{min(stop, other_stop)}"
    return None


def test_the_checker_sees_an_overlap() -> None:
    items, slots = _pass_on(3, [1000])
    assert check_placement(items, slots, [(0, 0), (1, 512), (2, 0)]) is not None
    assert check_placement(items, slots, [(0, 0), (1, 1024), (2, 0)]) is None


def test_devices_have_arenas_of_their_own() -> None:
    items, slots = _pass_on(4, [300])
    slots[1] = Slot(dtypes.uint8, 300, "PYTHON", "temp")
    _, arenas = place_temps(items, slots)
    assert dict(arenas) == {DEVICE: 1024, "PYTHON": 512}


def test_a_long_chain_of_stored_values_reuses_its_arena(graph: Graph) -> None:
    x = graph.input(100, 100)
    for _ in range(10):
        x = build.contiguous(add(x, scalar(1.0, x)))
    plan = schedule([x], DEVICE)
    assert len(plan.items) == 10
    assert dict(plan.arenas)[DEVICE] <= 3 * 100 * 100 * 4
    assert graph.kernels(x) == 10


def test_forgotten_schedules_are_made_again(graph: Graph) -> None:
    x = graph.input(5, 7)
    before = schedule([add(x, x)], DEVICE)
    forget_schedules()
    after = schedule([add(x, x)], DEVICE)
    assert after is not before
    assert after.items[0].ast is before.items[0].ast
