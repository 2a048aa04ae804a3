"""Indexing and assignment in brackets: the same expression on a tensor and on an array gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]

A = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
LIST = [2, 0, -1]
GRID = np.array([[0, 1], [3, -2]], np.int64)
MASK = np.array([True, False, True, True])

BASIC: dict[str, Any] = {
    "int": 1,
    "negative int": -1,
    "two ints": (1, -2),
    "all ints": (2, 3, 4),
    "slice": slice(1, 3),
    "negative slice": slice(-2, None),
    "past the end": slice(1, 99),
    "nothing": slice(2, 2),
    "ellipsis": (Ellipsis, 2),
    "ellipsis between": (1, Ellipsis, slice(0, 2)),
    "ellipsis alone": Ellipsis,
    "none": (None, 1),
    "nones": (slice(None), None, Ellipsis, None),
    "step": (slice(None), slice(None, None, 2)),
    "step that does not divide": (Ellipsis, slice(None, None, 2)),
    "step with a start": (Ellipsis, slice(1, None, 3)),
    "step beyond": (Ellipsis, slice(None, None, 9)),
    "reverse": slice(None, None, -1),
    "reverse step": (Ellipsis, slice(None, None, -2)),
    "reverse part": (slice(None), slice(3, 0, -2), slice(-1, -4, -1)),
    "mixed": (slice(None, None, -1), None, 2, slice(0, 4, 3)),
}

ADVANCED: dict[str, Any] = {
    "list": LIST,
    "list in the middle": (slice(None), LIST),
    "list last": (Ellipsis, LIST),
    "empty list": (slice(None), []),
    "array": (slice(None), GRID),
    "two lists": ([0, 1, 2], LIST),
    "two lists that broadcast": ([[0], [2]], LIST),
    "lists apart": ([0, 1, 2], slice(None), LIST),
    "int and list": (0, LIST),
    "list and slices": (slice(None, None, 2), LIST, slice(1, 4)),
    "list and none": (None, LIST, None),
    "three": (np.array([0, 1]), np.array([3, 3]), np.array([4, 0])),
    "mask": (slice(None), MASK),
    "mask list": ([True, False, True],),
    "mask of two axes": A[:, :, 0] % 3 == 0,
    "mask of all": A % 2 == 0,
    "mask of nothing": A > 100,
    "mask and list": (MASK[:3], LIST[:2]),
}


def as_tensors(index: Any, device: str) -> Any:
    """The index with its arrays as tensors."""
    if isinstance(index, tuple):
        return tuple(as_tensors(entry, device) for entry in index)
    return Tensor(index, device=device) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("name", [*BASIC, *ADVANCED])
def test_reading(name: str, check: Check, device: str) -> None:
    index = BASIC.get(name, ADVANCED.get(name))
    check(lambda t: t[as_tensors(index, device)], lambda x: x[index], A)


@pytest.mark.parametrize("name", ADVANCED)
def test_an_array_indexes_as_a_tensor_does(name: str) -> None:
    index = ADVANCED[name]
    np.testing.assert_array_equal(Tensor(A)[index].numpy(), A[index])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*BASIC, *ADVANCED])
def test_writing(name: str, run: Any, device: str) -> None:
    index = BASIC.get(name, ADVANCED.get(name))
    expected = A.copy()
    shape = expected[index].shape
    value = np.arange(1000, 1000 + int(np.prod(shape)), dtype=np.int32).reshape(shape)
    expected[index] = value
    tensor = Tensor(A.copy(), device=device)
    tensor[as_tensors(index, device)] = Tensor(value, device=device)
    np.testing.assert_array_equal(run(tensor), expected)


def test_an_int_has_no_part_in_where_the_axes_of_lists_stand() -> None:
    """As in torch: `t[0, :, [..]]` is `t[0][:, [..]]`, where NumPy would put the list's axis in front."""
    np.testing.assert_array_equal(Tensor(A)[0, :, LIST].numpy(), A[0][:, LIST])
    np.testing.assert_array_equal(Tensor(A)[Tensor(0), :, LIST].numpy(), A[0][:, LIST])


def test_writing_broadcasts_and_casts(run: Any, device: str) -> None:
    tensor = Tensor(A.copy(), device=device)
    expected = A.copy()
    tensor[1] = 7
    expected[1] = 7
    tensor[:, ::2] = Tensor([[1], [2]], dtype="int8", device=device)
    expected[:, ::2] = [[1], [2]]
    tensor[0, 1:3] = [[5, 4, 3, 2, 1]]
    expected[0, 1:3] = [[5, 4, 3, 2, 1]]
    np.testing.assert_array_equal(run(tensor), expected)


def test_the_last_of_several_values_stays(run: Any, device: str) -> None:
    tensor = Tensor.zeros(4, device=device)
    tensor[Tensor([1, 3, 1], device=device)] = Tensor([10.0, 20.0, 30.0], device=device)
    np.testing.assert_array_equal(run(tensor), [0, 30, 0, 20])


def test_in_place_on_an_index(run: Any, device: str) -> None:
    tensor, expected = Tensor(A.copy(), device=device), A.copy()
    tensor[1:, ::2] += 5
    expected[1:, ::2] += 5
    tensor[0][2] *= 3
    expected[0][2] *= 3
    tensor[[0, 2], 1] -= 1
    expected[[0, 2], 1] -= 1
    np.testing.assert_array_equal(run(tensor), expected)


def test_gather(check: Check) -> None:
    index = np.array([[[0, 2, 1]], [[1, 1, -1]]])
    check(lambda t, i: t.gather(1, i), lambda x, i: np.take_along_axis(x[:2, :, :3], i, 1), A, index)
    check(lambda t, i: t.gather(-1, i), lambda x, i: np.take_along_axis(x, i, -1), A, A % 5)


def test_one_hot_and_lookup_are_no_sums(check: Check) -> None:
    labels = np.array([2, 0, 1, 1])
    check(lambda t: t.one_hot(3), lambda x: np.eye(3, dtype=np.int64)[x], labels)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    check(lambda t, i: t[i], lambda x, i: x[i], table, labels)
    found = Tensor(table)[Tensor(labels)]
    assert not [node for node in toposort(found.uop) if node.op is Ops.REDUCE_AXIS]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_basic_index(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    node = Tensor.arange(array.size).reshape(shape)[index].uop
    expected = array[index]
    np.testing.assert_array_equal(np.broadcast_to(evaluate(node), node.shape), expected)
    assert node.shape == expected.shape


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_integer_index(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    count = data.draw(st.integers(1, len(shape)))
    result = data.draw(hnp.broadcastable_shapes((3, 2), max_dims=2))
    index: list[Any] = []
    for size in shape[:count]:
        elements = st.integers(-size, size - 1)
        index.append(data.draw(hnp.arrays(np.int64, data.draw(st.sampled_from([result, ()])), elements=elements)))
    place = data.draw(st.integers(0, count))
    if data.draw(st.booleans()) and count < len(shape):
        index.insert(place, slice(None))
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    if not all(
        -array.shape[k] <= np.min(i) and np.max(i) < array.shape[k]
        for k, i in enumerate(index)
        if not isinstance(i, slice)
    ):
        return
    tensors = tuple(i if isinstance(i, slice) else i.tolist() for i in index)
    # As in torch single numbers are taken first; NumPy counts them among the index arrays, which then may lie apart.
    is_number = [not isinstance(i, slice) and i.ndim == 0 for i in index]
    rows = array[tuple(int(i) if single else slice(None) for i, single in zip(index, is_number, strict=True))]
    expected = rows[tuple(i for i, single in zip(index, is_number, strict=True) if not single)]
    np.testing.assert_array_equal(Tensor(array)[tensors].numpy(), expected)
