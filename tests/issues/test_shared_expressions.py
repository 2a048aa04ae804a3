"""Equal expressions are one node of the graph, and the memory of its value is remembered there. Whoever wrote the
expression first may have moved it and updated it in place since: the others compute it anew. And a tensor that can be
computed no more is an error for whoever reads it, not for all who come after."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.errors import RealizeError, UserError
from tilewright.runtime.buffer import lost_buffer
from tilewright.tensor.core.base import TensorBase

TWO = ("CPU:0", "CPU:1")
BASE = Tensor([1.0, 2.0, 3.0, 4.0]).realize()

EXPRESSIONS: dict[str, Callable[[], Tensor]] = {
    "constants, divided": lambda: Tensor.zeros(4).shard(TWO, 0),
    "constants, copied": lambda: Tensor.zeros(4).shard(TWO),
    "range, moved": lambda: Tensor.arange(4).float().to("CPU:1"),
    "range, divided": lambda: Tensor.arange(4).float().shard(TWO, 0),
    "identity, moved": lambda: Tensor.eye(2).to("PYTHON"),
    "stored": lambda: Tensor.zeros(4).contiguous(),
    "memory, divided": lambda: BASE.shard(TWO, 0),
    "memory, moved": lambda: BASE.to("CPU:1"),
    "memory, copied": lambda: BASE.clone(),
    "computed, stored": lambda: (BASE * 2).contiguous(),
    "computed, moved": lambda: (BASE * 2).to("PYTHON"),
}


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_equal_to_one_that_was_updated_has_its_own_value(name: str, is_held: bool) -> None:
    make = EXPRESSIONS[name]
    expected = np.array(make().tolist())
    first = make()
    node = first.uop if is_held else None  # someone, such as a graph for gradients, still has the expression
    first.realize()
    first += 1
    first.realize()
    second = make()
    later = second * 10
    second += 2
    second.realize(later)
    assert np.array_equal(first.numpy(), expected + 1)
    assert np.array_equal(second.numpy(), expected + 2)
    assert np.array_equal(later.numpy(), expected * 10)
    assert np.array_equal(make().numpy(), expected)
    assert node is None or node.shape == first.shape


def lost_tensor() -> Tensor:
    """As a tensor that left a jitted function otherwise than as its result, after a replay."""
    found = Tensor([1.0, 2.0]).realize()
    found.uop = lost_buffer("CPU", found.dtype, 2, "it was made inside a jitted function")
    return found


def test_a_pending_update_that_fails_holds_no_other_tensor_up() -> None:
    """Every later jitted call in the process failed: pending updates are done together."""
    lost = lost_tensor()
    with pytest.raises(RealizeError, match="jitted function"):
        lost.tolist()
    broken = Tensor([0.0, 0.0]).realize()
    broken.assign(lost * 2)
    good = Tensor([0.0, 0.0]).realize()
    good.assign(Tensor([5.0, 6.0]).realize() * 2)
    doubled = jit(lambda x: (x * 2).realize())
    for number in range(5):
        assert doubled(Tensor([float(number)]).realize()).tolist() == [number * 2.0]
    assert doubled.last_reason == ""
    assert good.tolist() == [10.0, 12.0]
    for _ in range(2):
        with pytest.raises(RealizeError, match="jitted function"):
            broken.tolist()
    broken.replace(Tensor([1.0, 1.0]))
    assert broken.tolist() == [1.0, 1.0]


def test_an_update_inside_a_jitted_function_that_fails_is_told_there() -> None:
    lost, state = lost_tensor(), Tensor([0.0, 0.0]).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        state.assign(lost + x)
        return (x * 2).realize()

    for _ in range(3):
        with pytest.raises(RealizeError, match="jitted function"):
            step(Tensor([1.0, 2.0]).realize())


def test_a_reader_that_is_lost_does_not_keep_memory_from_being_updated() -> None:
    lost, state = lost_tensor(), Tensor([1.0, 2.0]).realize()
    reader = state * lost
    state += 1
    assert state.tolist() == [2.0, 3.0]
    with pytest.raises(RealizeError):
        reader.tolist()


def test_a_reader_that_cannot_be_compiled_does_not_keep_memory_from_being_updated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads the old contents; the update goes to memory of its own."""
    from tilewright.engine.execution import realize

    state = Tensor([1.0, 2.0]).realize()
    reader = (state * 3).sin()
    state += 1
    plan = realize.plan_graph
    with monkeypatch.context() as patched:

        def refuse_two(structure: Any, *rest: Any) -> Any:
            if len(structure.outputs) > 1:
                raise UserError("compile", "the device lacks int64", "use another")
            return plan(structure, *rest)

        patched.setattr(realize, "plan_graph", refuse_two)
        assert state.tolist() == [2.0, 3.0]
    np.testing.assert_allclose(reader.numpy(), np.sin([3.0, 6.0]), rtol=1e-5)


# ---------------------------------------------------------------- one number that was computed

PLACES: list[Any] = ["CPU", "CPU:1", "PYTHON", TWO, ("CPU:2", "CPU:3")]
NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum() * 2,
    "element": lambda x: x[1],
    "repeated": lambda x: (x.sum() * 2).reshape(1, 1).expand(2, 3).permute(1, 0),
    "constant": lambda x: Tensor(3.0, device=x.device) * 2,
}


def moved(x: Tensor, place: Any, axis: int | None = None) -> Tensor:
    return x.to(place) if isinstance(place, str) else x.shard(place, axis)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_computed_number_is_moved_like_any_tensor(name: str) -> None:
    """It stayed where it was: `(x.sum() * 2).to("CPU")` handed one device's memory to another's kernel."""
    number = NUMBERS[name]
    expected = number(BASE).numpy()
    starts = [(place, None) for place in PLACES] + [(TWO, 0)]
    for (start, axis), target in itertools.product(starts, PLACES):
        found = moved(number(moved(BASE, start, axis)), target)
        other = moved(Tensor([10.0]), target)
        assert found.device == other.device
        np.testing.assert_allclose((found + other).numpy(), expected + 10)


def test_gradients_come_back_to_where_the_number_was_computed() -> None:
    for start, target in itertools.product(PLACES, PLACES):
        x = moved(Tensor([1.0, 2.0, 3.0, 4.0]), start).realize().requires_grad_()
        weight = moved(Tensor([1.5]), target).realize().reshape(())
        loss = moved(x.sum() * 2, target) * weight * weight
        loss.backward()
        assert isinstance(x.grad, TensorBase)
        assert x.grad.tolist() == [4.5] * 4
