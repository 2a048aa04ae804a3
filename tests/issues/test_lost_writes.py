"""Assignments to what shows the memory of another tensor reach it. `x.detach()[0] = 5`, a write to the diagonal and one
to `x.bitcast(...)` changed a temporary that nobody could read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.errors import UnsupportedError

Array = np.ndarray[Any, Any]


def bits(value: float) -> int:
    return int(struct.unpack("i", struct.pack("f", value))[0])


def put(target: Any, index: Any, value: Any) -> None:
    target[index] = value


WRITES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Array], Any]]] = {
    "detach": (lambda x: put(x.detach(), 0, 5.0), lambda x: put(x, 0, 5.0)),
    "detach, assigned": (lambda x: x.detach().assign(5.0), lambda x: put(x, ..., 5.0)),
    "a view of a detached view": (lambda x: put(x.T.detach()[1:], 0, 5.0), lambda x: put(x.T[1:], 0, 5.0)),
    "detach, added": (lambda x: x.detach().__iadd__(1), lambda x: put(x, ..., x + 1)),
    "bitcast": (lambda x: put(x.bitcast("int32"), (1, 2), bits(9.0)), lambda x: put(x, (1, 2), 9.0)),
    "bitcast of a view": (lambda x: x[1:].bitcast("int32").assign(bits(3.0)), lambda x: put(x, slice(1, None), 3.0)),
    "bitcast twice": (
        lambda x: put(x.bitcast("int32").T.bitcast("float32"), 0, 7.0),
        lambda x: put(x.T, 0, 7.0),
    ),
    "bytes": (lambda x: put(x[:, 1:].bitcast("uint8"), (1, 3), 0), lambda x: put(x.view("u1"), (1, 7), 0)),
    "halves": (lambda x: put(x.bitcast("int16"), (0, 1), 0x4000), lambda x: put(x, (0, 0), 2.0)),
    "bytes of halves": (
        lambda x: put(x.bitcast("int16").bitcast("uint8"), (1, 0), 0),
        lambda x: put(x.view("u1"), (1, 0), 0),
    ),
    "wider": (lambda x: put(x.bitcast("int64"), (0, 1), 0), lambda x: put(x, (0, slice(2, 4)), 0.0)),
    "diagonal": (lambda x: x.diagonal().assign(-1.0), lambda x: np.fill_diagonal(x, -1.0)),
    "diagonal to the right": (lambda x: put(x.diagonal(1), 1, -1.0), lambda x: put(x, (1, 2), -1.0)),
}


@pytest.mark.parametrize("is_realized", [True, False])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_reaches_the_tensor(name: str, is_realized: bool) -> None:
    write, reference = WRITES[name]
    start = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(start) + 0
    if is_realized:
        x.realize()
    before = x * 1
    write(x)
    expected = start.copy()
    reference(expected)
    assert x.tolist() == expected.tolist()
    assert before.tolist() == start.tolist()


def test_the_view_that_was_written_shows_it_too() -> None:
    x = Tensor([1.0, 2.0]).realize()
    detached, integers = x.detach(), x.bitcast("int32")
    detached[0] = 8.0
    assert (x.tolist(), detached.tolist()) == ([8.0, 2.0], [8.0, 2.0])
    integers = x.bitcast("int32")
    integers[1] = bits(-4.0)
    assert (x.tolist(), integers.tolist()) == ([8.0, -4.0], [bits(8.0), bits(-4.0)])


def test_a_parameter_is_written_through_its_detached_view() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    weight.detach()[0] = 5.0
    (weight * weight).sum().backward()
    assert weight.grad is not None
    assert (weight.tolist(), weight.grad.tolist()) == ([5.0, 2.0], [10.0, 4.0])


def test_values_with_gradients_are_not_hidden_in_a_detached_view() -> None:
    weight, x = Tensor([1.0], requires_grad=True), Tensor([1.0, 2.0]).realize()
    with pytest.raises(UnsupportedError, match=r"(?s)detached view.*clone"):
        x.detach()[0] = weight[0] * 2
    x.detach()[0] = weight[0].detach() * 2
    assert x.tolist() == [2.0, 2.0]


def test_a_jitted_function_writes_through_views() -> None:
    state = Tensor([0.0, 0.0]).realize()

    @jit
    def step(value: Tensor) -> Tensor:
        state.detach()[1] = value[0]
        return (state * 1).realize()

    for number in range(5):
        assert step(Tensor([float(number)]).realize()).tolist() == [0.0, number]
    assert state.tolist() == [0.0, 4.0]


def test_a_tensor_that_moved_is_no_view_any_more() -> None:
    x = Tensor([1.0, 2.0]).realize()
    part = x[:1]
    part.to_("CPU:1")
    part.assign(7.0)
    assert (x.tolist(), part.tolist(), part.device) == ([1.0, 2.0], [7.0], "CPU:1")
