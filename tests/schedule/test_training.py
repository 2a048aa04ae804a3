"""What becomes one kernel in graphs with gradients and updates: what is stored and by whom, which kernels are joined,
and what the gradient of a window looks like. Every count stands beside a check of the values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.graphs import (
    DEVICE,
    Graph,
    add,
    exp,
    matmul,
    mul,
    nodes_of,
    relu,
    scalar,
    softmax,
    spread,
    stores,
    total,
)
from tilewright import Tensor, nn
from tilewright.base.config import Context
from tilewright.engine.execution.realize import realize, schedule
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of
from tilewright.schedule.fusion.facts import find_gates, gather_facts


@pytest.fixture
def graph() -> Graph:
    return Graph()


# ---------------------------------------------------------------- gates


def test_the_gate_is_where_all_ways_meet(graph: Graph) -> None:
    x = graph.input(8, 8)
    left, right = exp(x), add(x, x)
    met = mul(left, right)
    after = add(met, scalar(1.0, met))
    gates = find_gates(toposort(after), frozenset())
    assert gates[left] is met
    assert gates[met] is after
    assert gates[x] is met
    assert gates[after] is None


def test_a_node_that_is_reduced_too_has_no_gate(graph: Graph) -> None:
    x = graph.input(8, 8)
    raised = exp(x)
    joined = add(raised, spread(total(raised, 1), raised))
    assert find_gates(toposort(joined), frozenset())[raised] is None


def test_work_is_counted_once_and_only_where_nobody_else_needs_it(graph: Graph) -> None:
    x = graph.input(8, 8)
    shared = exp(x)  # one product and one power
    first, second = add(shared, shared), mul(shared, shared)
    both = add(first, second)
    facts = gather_facts(toposort(both), frozenset())
    assert facts[shared].cost == 11
    assert facts[first].cost == facts[second].cost == 1
    assert facts[both].cost == 1 + 1 + 1 + 11


# ---------------------------------------------------------------- forward and backward together


def gelu_layer(g: Graph) -> list[Tensor]:
    x, weight = g.tensor(64, 32, requires_grad=False), g.tensor(32, 48)
    hidden = (x @ weight).gelu()
    loss = (hidden * hidden).mean()
    loss.backward()
    assert weight.grad is not None
    return [loss, weight.grad]


def relu_layers(g: Graph) -> list[Tensor]:
    x, first, second = g.tensor(64, 32, requires_grad=False), g.tensor(32, 48), g.tensor(48, 8)
    loss = ((x @ first).relu() @ second).square().sum()
    loss.backward()
    assert first.grad is not None
    assert second.grad is not None
    return [loss, first.grad, second.grad]


def layernorm_layer(g: Graph) -> list[Tensor]:
    x, weight = g.tensor(64, 32), g.tensor(32)
    loss = (x.layernorm() * weight).square().sum()
    loss.backward()
    assert x.grad is not None
    assert weight.grad is not None
    return [loss, x.grad, weight.grad]


TRAINING: dict[str, tuple[Callable[[Graph], list[Tensor]], int]] = {
    # the product, the loss, the gradient of the product, that of the weight
    "gelu layer": (gelu_layer, 4),
    # both products, each with its activation; loss; three gradients
    "relu layers": (relu_layers, 7),
    # statistics and result; loss; the gradients of the input and of the weight
    "layernorm": (layernorm_layer, 4),
}


@pytest.mark.parametrize("name", TRAINING)
def test_kernels_of_a_training_step(name: str, graph: Graph) -> None:
    make, count = TRAINING[name]
    assert graph.kernels(*make(graph)) <= count


def test_a_row_kernel_stores_what_its_rows_reduce_to(graph: Graph) -> None:
    """The statistics of a layernorm that others need are stored by the kernel that normalises."""
    x = graph.input(64, 32)
    mean = total(x, 1)
    centred = add(x, spread(mul(mean, scalar(-1 / 32, mean)), x))
    plan = graph.plan(centred, mean)
    assert stores(plan) == [2]
    (item,) = plan.items
    assert item.ast is not None
    assert sorted(len(store.src[0].ranges) for store in item.ast.src) == [1, 2]


def test_a_value_that_is_stored_in_another_order_has_a_kernel_of_its_own(graph: Graph) -> None:
    product = matmul(graph.input(20, 30), graph.input(30, 24))
    turned = exp(build.permute(product, (1, 0)))
    assert stores(graph.plan(product, turned)) == [1, 1]


def test_what_a_sum_takes_in_is_not_stored_inside_of_its_loop(graph: Graph) -> None:
    rows = total(graph.input(2, 1, 8), 2)
    assert stores(graph.plan(total(build.reshape(rows, (1, 2, 1)), 1), rows)) == [1, 1]


def test_an_update_between_two_draws_is_done_in_place(graph: Graph) -> None:
    """The second draw reads the new state. If it stored the first as well, the old state would have to be kept. The
    first draw and the update read the same elements."""
    state = graph.input(64)
    first = exp(state)
    after = assign(state, add(state, scalar(1.0, state)))
    plan = schedule([mul(first, exp(after)), first, after], DEVICE)
    assert stores(plan) == [2, 1]
    assert plan.outputs[2] == 0


def test_matrix_products_do_not_share_a_kernel(graph: Graph) -> None:
    """Nor does a sum per row go into one: it would be done once per tile of the product."""
    x, y = graph.input(32, 64), graph.input(64, 48)
    assert graph.kernels(add(matmul(x, y), matmul(graph.input(32, 40), graph.input(40, 48)))) == 2
    rows = total(mul(x, x), 1)
    product = matmul(x, y)
    assert graph.kernels(mul(product, spread(rows, product))) == 2


def test_softmax_after_a_product_is_one_kernel(graph: Graph) -> None:
    product = matmul(graph.input(64, 32), graph.input(32, 48))
    assert graph.kernels(softmax(mul(product, scalar(0.125, product)))) == 2


def test_what_is_cut_out_of_a_reduction_is_computed_alone(graph: Graph) -> None:
    x = graph.input(64, 50)
    plan = graph.plan(add(build.shrink(total(x, 1), ((8, 40), (0, 1))), graph.input(32, 1)))
    assert len(plan.items) == 1
    assert {int(node.src[0].arg) for node in nodes_of(plan, Ops.RANGE)} == {32, 50}


def test_without_fusion_every_operation_is_a_kernel(graph: Graph) -> None:
    x = graph.input(8, 8)
    with Context(FUSE=0):
        assert stores(schedule([add(exp(x), x), mul(x, x)], DEVICE)) == [1, 1, 1, 1]


# ---------------------------------------------------------------- kernels with several stores


def test_an_optimiser_updates_all_its_state_in_one_kernel(graph: Graph) -> None:
    parameter = graph.tensor(48, 40)
    parameter.grad = graph.tensor(48, 40, requires_grad=False)
    before, slope = parameter.numpy(), parameter.grad.numpy()
    optimizer = nn.optim.Adam([parameter], lr=0.1)
    updated = optimizer.schedule_step()
    plan = updated[0].schedule(*updated[1:])
    assert sorted(stores(plan)) == [1, 1, 3]  # the two corrections for the start are numbers
    Tensor.realize(*updated)
    np.testing.assert_allclose(parameter.numpy(), before - 0.1 * np.sign(slope), rtol=1e-3, atol=1e-3)


def test_two_sums_of_one_matrix_are_one_pass(graph: Graph) -> None:
    x, y = graph.input(300, 64), graph.input(300, 64)
    plan = graph.plan(total(x, 0), total(mul(x, y), 0))
    assert stores(plan) == [2]
    reductions = {node for node in nodes_of(plan, Ops.RANGE) if node.arg.kind is AxisType.REDUCE}
    assert len(reductions) == 1


def two_of(x: UOp, first: Callable[[UOp], UOp], second: Callable[[UOp], UOp]) -> list[UOp]:
    return [first(x), second(x)]


def share_a_row(g: Graph) -> list[UOp]:
    row = build.expand(g.input(1, 64), (64, 64))
    return [add(g.input(64, 64), row), mul(g.input(64, 64), row)]


def sum_some(x: UOp) -> UOp:
    return total(build.shrink(x, ((0, 64), (0, 64), (0, 8))), 2)


JOINED_OR_NOT: dict[str, tuple[Callable[[Graph], list[UOp]], list[int]]] = {
    "the same memory": (lambda g: two_of(g.input(64, 64), exp, lambda x: add(x, x)), [2]),
    "other memory": (lambda g: [exp(g.input(64, 64)), exp(g.input(64, 64))], [1, 1]),
    "a small part of it": (share_a_row, [1, 1]),
    "other elements of it": (lambda g: two_of(g.input(64, 64), exp, lambda x: exp(build.permute(x, (1, 0)))), [1, 1]),
    "sums over other sizes": (lambda g: two_of(g.input(64, 64, 9), lambda x: total(x, 2), sum_some), [1, 1]),
}


@pytest.mark.parametrize("name", JOINED_OR_NOT)
def test_kernels_that_load_the_same_elements_are_joined(name: str, graph: Graph) -> None:
    make, expected = JOINED_OR_NOT[name]
    assert stores(graph.plan(*make(graph))) == expected


def assign(x: UOp, value: UOp) -> UOp:
    return build.assign(x, x, value)


def check_updates(graph: Graph, *outputs: UOp) -> list[int]:
    """Runs updates, compares every value with the interpreter, and tells the stores of each kernel."""
    expected = evaluate_all(outputs, graph.contents)
    found = stores(schedule(outputs, DEVICE))
    for buffer, output, value in zip(realize(outputs, DEVICE), outputs, expected, strict=True):
        got = np.frombuffer(bytes(buffer_of(buffer).view()), np.float32).reshape(output.shape)
        np.testing.assert_allclose(got, value, rtol=1e-5)
    return found


def test_an_update_joins_a_reader_of_the_element_it_overwrites(graph: Graph) -> None:
    x, y = graph.input(1000), graph.input(1000)
    updated = assign(x, add(mul(x, scalar(0.5, x)), y))
    assert check_updates(graph, updated, mul(x, y)) == [2]


def test_an_update_does_not_join_a_reader_of_other_elements(graph: Graph) -> None:
    """Joined, one thread would overwrite what another has still to read."""
    x, y = graph.input(1000), graph.input(1000)
    updated = assign(x, add(x, y))
    turned = add(build.flip(x, (0,)), x)
    assert check_updates(graph, updated, mul(turned, y)) == [1, 1]


def test_an_update_that_does_not_read_what_it_overwrites_comes_after_its_readers(graph: Graph) -> None:
    """In one kernel nothing would put the load before the store."""
    x, y = graph.input(1000), graph.input(1000)
    assert check_updates(graph, assign(x, exp(y)), mul(x, y)) == [1, 1]


def test_two_updates_of_memory_that_the_other_reads(graph: Graph) -> None:
    """Neither may come first: both values go to temps, in one kernel, and are copied from there."""
    x, y = graph.input(1000), graph.input(1000)
    assert check_updates(graph, assign(x, add(x, y)), assign(y, mul(x, y))) == [2, 1, 1]


# ---------------------------------------------------------------- windows


def test_the_gradient_of_a_convolution_is_one_kernel_without_division(graph: Graph) -> None:
    x, weight = graph.tensor(2, 3, 10, 9), graph.tensor(4, 3, 3, 3)
    upstream = graph.tensor(2, 4, 10, 9, requires_grad=False)
    gradient = (x.conv2d(weight, padding=1) * upstream).sum().gradient(x)[0]
    plan = graph.plan(gradient)
    assert len(plan.items) == 1
    assert nodes_of(plan, Ops.IDIV, Ops.MOD) == []
    sizes = [int(node.src[0].arg) for node in nodes_of(plan, Ops.RANGE) if node.arg.kind is AxisType.REDUCE]
    assert sorted(sizes) == [3, 3, 4]  # the window, no step longer, and the channels


def test_a_weight_is_loaded_without_the_mask_of_its_window(graph: Graph) -> None:
    x, weight = graph.tensor(2, 3, 10, 9), graph.tensor(4, 3, 3, 3)
    upstream = graph.tensor(2, 4, 8, 7, requires_grad=False)
    plan = graph.plan((x.conv2d(weight) * upstream).sum().gradient(x)[0])
    masked = {place.src[0].arg.size for place in nodes_of(plan, Ops.INDEX) if len(place.src) == 3}
    assert masked == {2 * 4 * 8 * 7}


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "count"),
    [((3, 3), 2, 1, 3), ((2, 2), 2, 0, 2), ((3, 2), 1, 0, 2), ((5, 5), 3, 2, 3)],
)
def test_the_gradient_of_a_pool_is_one_kernel_after_its_places(
    kernel: tuple[int, int], stride: int, padding: int, count: int, graph: Graph
) -> None:
    """One finds the place of each maximum, one gives each element its share; with padding there may be no maximum, and
    what arrives is cleared of that in between."""
    x = graph.tensor(2, 3, 12, 11)
    pooled = x.max_pool2d(kernel, stride=stride, padding=padding)
    assert isinstance(pooled, Tensor)
    assert graph.kernels(pooled.sum().gradient(x)[0]) == count


def test_windows_that_barely_overlap_are_still_right(graph: Graph) -> None:
    x, weight = graph.tensor(2, 3, 23), graph.tensor(4, 3, 5)
    for stride, dilation in ((1, 1), (2, 1), (3, 2), (4, 3), (1, 4)):
        result = x.conv2d(weight, stride=stride, dilation=dilation)
        graph.plan(*(result * result).sum().gradient(x, weight))


# ---------------------------------------------------------------- names


def test_different_kernels_have_different_names_and_equal_ones_the_same(graph: Graph) -> None:
    x, y = graph.input(32, 20), graph.input(20, 32)
    plan = schedule([build.contiguous(exp(exp(x))), relu(build.permute(y, (1, 0))), softmax(x)], DEVICE)
    names = [item.ast.arg.name for item in plan.items if item.ast is not None]
    assert len(set(names)) == 3
    other = Graph(5)
    (item,) = schedule([softmax(other.input(32, 20))], DEVICE).items
    assert item.ast is not None
    assert item.ast.arg.name in names
    assert item.ast in [each.ast for each in plan.items]
