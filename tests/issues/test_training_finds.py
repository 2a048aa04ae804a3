"""What the first training of networks found in the engine. Each test tells what went wrong before it was fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, jit, nn

Array = np.ndarray[Any, Any]


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, dtype=np.float32))


def test_a_jitted_function_may_have_the_name_of_a_method_it_calls() -> None:
    """`step` calls `optimizer.step()`, so the guards took the global `step`, the jitted function itself, for something
    it reaches; its own records changed at every call, and it was never replayed."""
    weight = Tensor([1.0], requires_grad=True)
    namespace: dict[str, Any] = {"weight": weight, "optimizer": nn.optim.SGD([weight], lr=0.5)}
    source = "def step(x):\n    weight.grad = x * 1.0\n    optimizer.step()\n    return (x + 1).realize()"
    exec(source, namespace)
    namespace["step"] = jit(namespace["step"])
    for _ in range(4):
        namespace["step"](ones(1))
    assert namespace["step"].last_reason == ""
    assert weight.tolist() == [-1.0]


def test_an_inner_jitted_function_is_still_guarded() -> None:
    """Looking past what a jitted function has recorded, its own constants still count."""
    box = {"scale": 2.0}
    inner = jit(lambda x: (x * box["scale"]).realize())
    outer = jit(lambda x: (inner(x) + 1).realize())
    for _ in range(4):
        assert outer(ones(1)).tolist() == [3.0]
    box["scale"] = 5.0
    assert outer(ones(1)).tolist() == [6.0]


def test_weights_that_were_computed_with_something_else_can_be_reshaped() -> None:
    """A weight that was still to be computed when the first result was asked for is computed along with it. Only the
    reshape that the tensor held was marked as computed: another reshape of the weight led past it to memory that had
    a newer version, and failed."""
    weight = Tensor.rand(12, 3, requires_grad=True)
    weight.assign(ones(12, 3))
    x = ones(2, 3)
    np.testing.assert_array_equal(x.linear(weight.transpose()).numpy(), np.full((2, 12), 3.0))
    np.testing.assert_array_equal(x.linear(weight.transpose()).numpy(), np.full((2, 12), 3.0))
    assert weight.reshape(36).sum().item() == 36.0


def test_tensors_alive_during_an_update_do_not_change_the_schedule() -> None:
    """Tensors in local variables that read what is updated are computed with the update. They came in the order of a
    set, another one in each call, so that no two records agreed and nothing was replayed."""
    state = Tensor.empty(3).assign(1.0).realize()

    def step(x: Tensor) -> Tensor:
        readers = [state * number + x for number in range(12)]
        state.assign(state + readers[0])
        state.realize()
        return readers[-1].realize()

    call = jit(step)
    for number in range(6):
        call(ones(3))
        assert number < 2 or call.last_reason == ""
    assert state.tolist() == [7.0] * 3


def test_a_function_with_dropout_is_replayed() -> None:
    """The state of the random generator is written by every draw. jit knew nobody that owned it, took it for a tensor
    that still reads the old contents, and traced every call."""
    call = jit(lambda x: x.dropout(0.5).realize())
    x = ones(64)
    with Tensor.train():
        Tensor.manual_seed(3)
        seen = [call(x).numpy().tobytes() for _ in range(6)]
        assert call.last_reason == ""
        Tensor.manual_seed(3)
        again = [x.dropout(0.5).numpy().tobytes() for _ in range(6)]
        assert seen == again
        Tensor.manual_seed(3)
        assert call(x).numpy().tobytes() == again[0]
    assert len(set(seen)) == 6


def test_numbers_drawn_between_replays_move_the_generator_on() -> None:
    call = jit(lambda x: (x + Tensor.rand(4)).realize())
    x = Tensor([0.0] * 4)
    Tensor.manual_seed(5)
    seen = []
    for _ in range(4):
        seen += [call(x).tolist(), Tensor.rand(4).tolist()]
    Tensor.manual_seed(5)
    assert seen == [Tensor.rand(4).tolist() for _ in range(8)]


def test_an_update_between_calls_is_no_part_of_the_record() -> None:
    """A new learning rate that was assigned, not computed, before each of the first two calls became part of what was
    recorded, and every replay set the rate back."""
    rate = Tensor.empty(1).assign(0.0)
    call = jit(lambda x: (x * rate).realize())
    for wanted in (2.0, 2.0, 2.0, 3.0, 3.0):
        rate.assign(wanted)
        assert call(ones(1)).tolist() == [wanted]
    assert call.last_reason == ""
    rate.assign(7.0).realize()
    assert call(ones(1)).tolist() == [7.0]
    assert call.last_reason == ""


@pytest.mark.parametrize(
    "shapes",
    [[(97, 96), (64, 96)], [(5, 7, 3), (9, 7, 3), (7, 3)], [(206, 96), (64, 96), (96,), (288, 96), (96, 96)]],
)
def test_sums_of_different_sizes_in_one_kernel(shapes: list[tuple[int, ...]]) -> None:
    """The norm of all gradients is one kernel of many sums. Axes of equal size at equal places were one loop for all of
    them, which then lay inside two loops at once: the module did not compile."""
    arrays = [
        np.random.default_rng(number).standard_normal(shape).astype(np.float32) for number, shape in enumerate(shapes)
    ]
    total = sum((Tensor(array).square().sum() for array in arrays[1:]), Tensor(arrays[0]).square().sum())
    expected = sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays)
    assert total.sqrt().item() == pytest.approx(expected**0.5, rel=1e-5)


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
@pytest.mark.parametrize("keeps_results", [False, True])
@pytest.mark.parametrize("reaches", ["argument", "state"])
def test_a_result_that_is_still_held_is_not_replayed(reaches: str, keeps_results: bool) -> None:
    """A result with a gradient keeps its graph. The second call with equal inputs found the value of the first there,
    launched nothing, and later calls replayed nothing: they gave the first result whatever their inputs were."""
    weight = Tensor(np.full((3, 3), 2.0, dtype=np.float32), requires_grad=True)
    state = Tensor.empty(2, 3).assign(1.0).realize()
    by_argument, by_state = jit(lambda x: (x @ weight).realize()), jit(lambda: (state @ weight).realize())
    kept = []
    for value in (1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 7.0):
        state.assign(value) if value != 1.0 else None
        state.realize()
        found = by_argument(state) if reaches == "argument" else by_state()
        assert found.tolist() == [[6.0 * value] * 3] * 2
        if keeps_results:
            kept.append(found)
    call: Any = by_argument if reaches == "argument" else by_state
    assert keeps_results or call.last_reason == ""


def test_tensors_out_of_the_way_are_found() -> None:
    """What the guards do not find cannot be told from a value of an earlier call, and stops replays: slots, class
    attributes, sets, partial functions."""

    class Slotted:
        __slots__ = ("weight",)
        shared = Tensor([3.0]).realize()

        def __init__(self) -> None:
            self.weight = Tensor([2.0]).realize()

        @jit
        def method(self, x: Tensor) -> Tensor:
            return (x * self.weight * self.shared).realize()

    class Plain:
        def __init__(self) -> None:
            self.inner = Slotted()

        @jit
        def method(self, x: Tensor) -> Tensor:
            (extra,) = extras
            return (x * self.inner.weight * self.inner.shared + extra.detach()).realize()

    extras = {Tensor([1.0]).realize()}
    plain = Plain()
    for number in range(4):
        assert plain.method(Tensor([float(number)])).tolist() == [6.0 * number + 1]
    assert plain.method.last_reason == ""
