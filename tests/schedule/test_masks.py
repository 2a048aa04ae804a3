"""Masks and what follows from them: indices without division, sums that end early, loads without masks, holes. Each is
compared with the plain form at every point; each has a case where it must not act."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.graphs import DEVICE, Graph, add, exp
from tilewright import Tensor
from tilewright.base.dtype import DType, dtypes
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import consumers, toposort
from tilewright.schedule.fusion.facts import find_gates
from tilewright.schedule.fusion.fuse import plan_fusion
from tilewright.schedule.fusion.indexing import TRUE, Element, divide_within, within
from tilewright.schedule.fusion.masks import drop_masks, shorten_reduction
from tilewright.schedule.steps.split import KernelWriter, load_element


def loop(size: int, number: int, kind: AxisType = AxisType.LOOP) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((number,), kind))


def at_all_steps(value: UOp, first: UOp, second: UOp) -> np.ndarray:
    """The value at every step of two loops."""
    sizes = [int(each.src[0].arg) for each in (first, second)]
    steps = dict(zip((first, second), np.indices(sizes), strict=True))
    return np.broadcast_to(evaluate(value, steps), sizes)


# ---------------------------------------------------------------- division


@settings(deadline=None)
@given(st.integers(2, 9), st.data())
def test_divided_indices_are_the_same_where_they_count(divisor: int, data: st.DataObject) -> None:
    """The element is inside at the same points, and there the indices have the same values. The dividend reaches about
    as far beyond its multiples as it may."""
    start = data.draw(st.integers(0, divisor - 1))
    stop = data.draw(st.integers(start + 1, divisor))
    low = stop - divisor + data.draw(st.integers(-1, 2))
    high = max(divisor + start + data.draw(st.integers(-3, 1)), low)
    limit = divisor * data.draw(st.integers(1, 4))
    y, copy = loop(high - low + 1, 0), loop(4, 1)
    dividend = y + low + copy * (divisor * data.draw(st.integers(-2, 2)))
    element = Element((dividend % divisor, dividend // divisor), dividend < limit)
    divided = divide_within(element, 0, start, stop)
    counts, still_counts = (
        at_all_steps(within(each.indices[0], start, stop) & each.valid, y, copy) for each in (element, divided)
    )
    np.testing.assert_array_equal(still_counts, counts)
    for plain, index in zip(element.indices, divided.indices, strict=True):
        np.testing.assert_array_equal(at_all_steps(index, y, copy)[counts], at_all_steps(plain, y, copy)[counts])


def test_the_index_of_a_window_is_not_divided() -> None:
    y, copy = loop(24, 0), loop(6, 1)
    dividend = y + copy * 24
    element = divide_within(Element((dividend % 25, dividend // 25), dividend < 125), 0, 0, 20)
    assert element.indices[1] is copy
    assert element.indices[0].ranges == {y, copy}
    assert not any(node.op in (Ops.MOD, Ops.IDIV) for node in toposort(*element.indices, element.valid))


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(2, 6), st.integers(1, 4), st.integers(-1, 1))
def test_bounds_that_were_divided_are_bounds_of_the_quotient(times: int, side: int, copies: int, more: int) -> None:
    """2*i + r < 2*n has become i < n: the copies that no element of a window is in end there all the same."""
    i, repeat, copy = loop(side, 0), loop(times, 1), loop(copies + 1, 2)
    divisor = times * (side + 1)
    dividend = i * times + repeat + copy * divisor
    bound = i + copy * (side + 1) < copies * (side + 1) + more
    element = Element((dividend % divisor, dividend // divisor), bound)
    divided = divide_within(element, 0, 0, times * side)
    steps = dict(zip((i, repeat, copy), np.indices((side, times, copies + 1)), strict=True))
    for before, after in zip((element.valid, *element.indices), (divided.valid, *divided.indices), strict=True):
        np.testing.assert_array_equal(*(np.broadcast_to(evaluate(x, steps), steps[i].shape) for x in (before, after)))
    if more == 0:
        assert divided.valid is (copy < copies)


def test_an_index_that_wraps_around_stays_divided() -> None:
    """Copies of 20 in rows of 25: at y = 19 of copy 1 the row has ended, and the next has begun inside the interval."""
    y, copy = loop(20, 0), loop(6, 1)
    dividend = y + copy * 20
    element = Element((dividend % 25, dividend // 25), TRUE)
    assert divide_within(element, 0, 0, 20) == element


# ---------------------------------------------------------------- sums


def reduce_sum(value: UOp, loops: tuple[UOp, ...]) -> float:
    return float(evaluate(UOp(Ops.REDUCE, value.dtype, (value, *loops), Ops.ADD)).item())


def test_a_sum_ends_where_zeros_follow() -> None:
    c = loop(6, 0, AxisType.REDUCE)
    value = (c < 4).where(c.cast(dtypes.float32) + 1.0, 0.0)
    shorter, loops = shorten_reduction(Ops.ADD, value, (c,))
    assert [int(each.src[0].arg) for each in loops] == [4]
    assert reduce_sum(shorter, loops) == reduce_sum(value, (c,)) == 10


def test_a_sum_of_sums_is_one_sum() -> None:
    c, d = loop(6, 0, AxisType.REDUCE), loop(5, 1, AxisType.REDUCE)
    both = ((c < 4) & (d < 3)).where((c * 5 + d).cast(dtypes.float32), 0.0)
    inner = UOp(Ops.REDUCE, dtypes.float32, (both, d), Ops.ADD)
    shorter, loops = shorten_reduction(Ops.ADD, inner, (c,))
    assert [int(each.src[0].arg) for each in loops] == [4, 3]
    assert reduce_sum(shorter, loops) == reduce_sum(inner, (c,))


@pytest.mark.parametrize("outer", [Ops.MAX, Ops.MIN, Ops.MUL])
def test_other_reductions_take_in_the_zeros(outer: Any) -> None:
    c = loop(6, 0, AxisType.REDUCE)
    value = (c < 4).where(c.cast(dtypes.float32) - 7.0, 0.0)
    assert shorten_reduction(outer, value, (c,)) == (value, (c,))


def test_a_sum_of_maxima_is_no_single_reduction() -> None:
    c, d = loop(6, 0, AxisType.REDUCE), loop(5, 1, AxisType.REDUCE)
    inner = UOp(Ops.REDUCE, dtypes.float32, ((c * d).cast(dtypes.float32), d), Ops.MAX)
    assert shorten_reduction(Ops.ADD, inner, (c,)) == (inner, (c,))


# ---------------------------------------------------------------- loads


def masked_product(weight_size: int) -> tuple[UOp, UOp]:
    """where(inside, x[y - c] * w[c], 0), and the element of w."""
    y, c = loop(24, 0), loop(5, 1, AxisType.REDUCE)
    inside = within(y - c, 0, 20)
    x = load_element(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 20)), y - c, inside)
    w = load_element(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(1, weight_size)), c, inside)
    return inside.where(x * w, 0.0), w.src[0]


def masks(value: UOp) -> dict[int, bool]:
    return {node.src[0].arg.slot: len(node.src) == 3 for node in toposort(value) if node.op is Ops.INDEX}


def test_a_load_that_is_selected_and_inside_of_its_buffer_needs_no_mask() -> None:
    value, _ = masked_product(5)
    assert masks(value) == {0: True, 1: True}
    assert masks(drop_masks(value)) == {0: True, 1: False}


def test_a_load_that_may_leave_its_buffer_keeps_its_mask() -> None:
    value, _ = masked_product(4)
    assert drop_masks(value) is value


def test_a_load_that_is_used_outside_of_the_selection_keeps_its_mask() -> None:
    value, element = masked_product(5)
    used_twice = value + UOp(Ops.LOAD, dtypes.float32, (element,))
    assert drop_masks(used_twice) is used_twice


def rectified(is_loaded: bool) -> UOp:
    """max(x * w, 0) where a condition holds; its comparison with 0 is part of the selection."""
    y, c = loop(24, 0), loop(5, 1)
    inside = y - c < 20
    if is_loaded:
        inside = load_element(UOp(Ops.PARAM, dtypes.bool, (), ParamArg(2, 24)), y, TRUE)
    x = load_element(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 20)), y, inside)
    w = load_element(UOp(Ops.PARAM, dtypes.float32, (), ParamArg(1, 5)), c, inside)
    product = x * w
    return (inside & (const(dtypes.float32, 0.0) < product)).where(product, 0.0)


def test_a_selection_that_compares_what_it_selects_needs_no_mask_there() -> None:
    """A product with relu whose rows are padded: the mask would make its left operand depend on the columns."""
    assert masks(drop_masks(rectified(is_loaded=False))) == {0: True, 1: False}


def test_conditions_that_load_keep_the_masks_of_one_another() -> None:
    value = rectified(is_loaded=True)
    assert drop_masks(value) is value


# ---------------------------------------------------------------- gathers


def filled_nodes(links: int) -> int:
    """How many nodes are looked at to fill the holes of a chain of gathers."""
    graph = Graph()
    node = graph.input(64)
    for _ in range(links):
        index = build.cast(exp(graph.input(64)), dtypes.int32)
        node = build.gather(add(node, node), index)
    bound = BoundGraph([node])
    plan = plan_fusion(bound.outputs, frozenset(bound.outputs))
    slots = {each: number for number, each in enumerate((*bound.params, *plan.stored))}
    writer = KernelWriter(plan, slots, lambda root: 1)
    writer.write_values()
    return len(writer.filled)


def test_a_chain_of_gathers_takes_a_step_per_link() -> None:
    short, long = filled_nodes(8), filled_nodes(32)
    assert long < 4.5 * short


def test_a_gather_inside_of_a_sum_that_ends_early() -> None:
    """What the hole stands for has the loop of the sum in it, which is exchanged for a shorter one."""
    graph = Graph()
    rows = build.reshape(graph.input(64), (8, 8))
    column = build.reshape(graph.input(6), (1, 6))
    index = build.expand(build.cast(add(column, column), dtypes.int32), (5, 6))
    gathered = build.gather(rows, build.axis_iota((5, 6), 0), index)
    padded = build.pad(gathered, ((0, 0), (0, 3)))
    assert graph.kernels(build.reduce_axis(Ops.ADD, padded, (1,))) == 1


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_small_floats_are_rounded_between_two_sums(dtype: DType) -> None:
    c, d = loop(6, 0, AxisType.REDUCE), loop(5, 1, AxisType.REDUCE)
    inner = UOp(Ops.REDUCE, dtype, ((c * d).cast(dtype), d), Ops.ADD)
    assert shorten_reduction(Ops.ADD, inner, (c,)) == (inner, (c,))


@pytest.mark.parametrize("links", [3, 12, 40])
def test_a_long_chain_of_gathers_is_right(links: int) -> None:
    """Its mask has two parts for each link, more than are ever put in order."""
    numbers = np.random.default_rng(links)
    x = numbers.standard_normal(50).astype(np.float32)
    result = Tensor(x, device=DEVICE)
    for _ in range(links):
        index = numbers.integers(0, 50, 50).astype(np.int32)
        x = x[index]
        result = result[Tensor(index, device=DEVICE)]
    np.testing.assert_array_equal(result.numpy(), x)


def test_a_mask_of_many_parts_comes_to_rest() -> None:
    numbers = np.random.default_rng(0)
    rows = numbers.integers(0, 9, (40, 8)).astype(np.int32)
    result = Tensor(rows[0], device=DEVICE) < 7
    for row in rows[1:]:
        result = result & (Tensor(row, device=DEVICE) < 7)
    np.testing.assert_array_equal(result.numpy(), (rows < 7).all(axis=0))


# ---------------------------------------------------------------- gates


@given(st.integers(2, 14), st.data())
@settings(deadline=None)
def test_a_gate_is_the_first_node_on_every_way_to_the_end(size: int, data: st.DataObject) -> None:
    """In random graphs of elementwise nodes, compared with trying every node."""
    nodes = [UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 4))]
    for number in range(size):
        sources = [data.draw(st.sampled_from(nodes)) for _ in range(2)]
        nodes.append(UOp(Ops.ADD, dtypes.float32, (add(*sources), const(dtypes.float32, number))))
    order = toposort(nodes[-1])
    users = consumers(order)

    def reaches_end_without(start: UOp, left_out: UOp) -> bool:
        stack, seen = [start], {start, left_out}
        while stack:
            top = stack.pop()
            if top is order[-1]:
                return True
            fresh = [user for user in users[top] if user not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return False

    gates = find_gates(order, frozenset())
    for number, node in enumerate(order[:-1]):
        if node.shape:
            assert gates[node] is next(other for other in order[number + 1 :] if not reaches_end_without(node, other))


# ---------------------------------------------------------------- gathers


@pytest.mark.parametrize(("width", "is_masked"), [(57, False), (56, True)])
def test_the_bounds_of_an_index_hold_where_it_is_stored(width: int, is_masked: bool) -> None:
    """Resizing 57x57 images to 78x78 took four times as long as torch's: the indices of an axis are stored, and each
    index that was loaded was tested to be in range."""
    graph = Graph()
    index = build.expand(build.reshape(build.iota(78, dtypes.int64) * 19 // 26, (1, 78)), (2000, 78))
    first, last = graph.plan(build.gather(graph.input(2000, width), build.axis_iota((2000, 78), 0), index)).items
    assert first.ast is not None
    assert last.ast is not None
    accesses = [node for node in toposort(last.ast) if node.op is Ops.INDEX]
    assert any(len(access.src) > 2 for access in accesses) == is_masked
