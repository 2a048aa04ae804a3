"""The constructors of graph/build.py: what folds to what, and that folding keeps the value."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_tensor_graph


def counted(*shape: int) -> UOp:
    return build.reshape(build.iota(int(np.prod(shape))), shape)


X = counted(2, 3, 4)


def test_movements_that_change_nothing_are_gone() -> None:
    assert build.reshape(X, (2, 3, 4)) is X
    assert build.expand(X, (2, 3, 4)) is X
    assert build.permute(X, (0, 1, 2)) is X
    assert build.pad(X, ((0, 0),) * 3) is X
    assert build.shrink(X, ((0, 2), (0, 3), (0, 4))) is X
    assert build.flip(X, ()) is X
    assert build.flip(counted(1, 3), (0,)) == counted(1, 3)


def test_axes_of_one_element_move_without_a_copy() -> None:
    memory = build.new_buffer(dtypes.int32, 24, "CPU")
    moved = build.permute(build.reshape(memory, (6, 1, 4, 1)), (3, 0, 1, 2))
    assert moved.shape == (1, 6, 1, 4)
    assert build.contiguous(moved) is moved
    assert build.contiguous(build.permute(moved, (0, 3, 2, 1))).op is Ops.CONTIGUOUS


def test_two_of_a_kind_are_one() -> None:
    assert build.reshape(build.reshape(X, (6, 4)), (24,)) is build.iota(24)
    assert build.permute(build.permute(X, (2, 0, 1)), (1, 2, 0)) is X
    assert build.flip(build.flip(X, (0, 1)), (1, 0)) is X
    assert build.shrink(build.shrink(X, ((0, 2), (1, 3), (0, 4))), ((1, 2), (1, 2), (0, 4))).arg == (
        (1, 2),
        (2, 3),
        (0, 4),
    )
    assert build.pad(build.pad(X, ((1, 0),) * 3), ((0, 2),) * 3).arg == ((1, 2),) * 3
    one = build.const(dtypes.int32, 1, (1, 1))
    assert build.expand(build.expand(one, (1, 5)), (4, 5)).src[0].op is not Ops.EXPAND


def test_a_repeated_number_is_used_as_a_number() -> None:
    ones = build.const(dtypes.int32, 1, (2, 3, 4))
    added = build.alu(Ops.ADD, X, ones)
    assert added.src[1].op is Ops.CONST
    assert added.shape == (2, 3, 4)
    both = build.alu(Ops.ADD, ones, build.permute(ones, (0, 1, 2)))
    assert both.shape == (2, 3, 4)
    assert both.op is Ops.EXPAND
    assert build.cast(ones, dtypes.float32).op is Ops.EXPAND


def test_reduction_of_single_elements_is_gone() -> None:
    assert build.reduce_axis(Ops.ADD, counted(1, 3), (0,)) is counted(1, 3)
    assert build.reduce_axis(Ops.ADD, X, (2, 0, 2)).arg == (Ops.ADD, (0, 2))


def test_buffers_are_never_equal() -> None:
    assert build.new_buffer(dtypes.float32, 4, "CPU") is not build.new_buffer(dtypes.float32, 4, "CPU")


def test_assignment_writes_to_the_node_below_the_reshapes() -> None:
    memory = build.new_buffer(dtypes.int32, 24, "CPU")
    target = build.reshape(memory, (2, 3, 4))
    whole = build.assign(target, target, X)
    assert whole.shape == (2, 3, 4)
    assert whole.src[0].src[:2] == (memory, memory)
    view = build.shrink(build.permute(target, (2, 0, 1)), ((1, 2), (0, 2), (0, 3)))
    part = build.assign(target, view, build.const(dtypes.int32, -1, (1, 2, 3)))
    verify_tensor_graph(part)
    expected = np.arange(24).reshape(2, 3, 4)
    expected[:, :, 1] = -1
    found = evaluate(part, {memory: np.arange(24, dtype=np.int32)})
    np.testing.assert_array_equal(found, expected)


def draw_movement(data: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A random movement, as (on a node, on an array)."""
    kind = data.draw(st.sampled_from(["reshape", "expand", "permute", "pad", "shrink", "flip"]))
    if kind == "reshape":
        order = data.draw(st.permutations([*shape, 1]))
        return (lambda x: build.reshape(x, tuple(order))), (lambda a: a.reshape(order))
    if kind == "expand":
        wide = tuple(data.draw(st.integers(1, 3)) if size == 1 else size for size in shape)
        return (lambda x: build.expand(x, wide)), (lambda a: np.broadcast_to(a, wide))
    if kind == "permute":
        order = tuple(data.draw(st.permutations(range(len(shape)))))
        return (lambda x: build.permute(x, order)), (lambda a: a.transpose(order))
    if kind == "pad":
        pairs = tuple((data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2))) for _ in shape)
        return (lambda x: build.pad(x, pairs)), (lambda a: np.pad(a, pairs))
    if kind == "shrink":
        starts = [data.draw(st.integers(0, size)) for size in shape]
        bounds = tuple((start, data.draw(st.integers(start, size))) for start, size in zip(starts, shape))
        return (lambda x: build.shrink(x, bounds)), (lambda a: a[tuple(slice(*pair) for pair in bounds)])
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    return (lambda x: build.flip(x, axes)), (lambda a: np.flip(a, axes))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_chain_of_movements(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    node, array = counted(*shape), np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for _ in range(data.draw(st.integers(1, 6))):
        if array.size > 2000 or array.ndim > 6:
            break
        on_node, on_array = draw_movement(data, node.shape)
        node, array = on_node(node), on_array(array)
        assert node.shape == array.shape
    verify_tensor_graph(node)
    np.testing.assert_array_equal(evaluate(node), array)
