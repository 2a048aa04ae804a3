"""Issue 12, C: what a program costs to start may grow with its length, but not the number of its kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.devices import QUICK
from tests.effort import count_calls
from tests.engine.calls import Calls
from tilewright import Tensor, jit
from tilewright.base.config import Context
from tilewright.base.events import subscribe
from tilewright.engine.compilation.compile import compile_kernel, forget_kernels, kernel_tables
from tilewright.engine.planning import plan
from tilewright.engine.planning.plan import forget_schedules
from tilewright.engine.recent import KERNELS_PER_PLAN
from tilewright.graph import uop
from tilewright.graph.records import Schedule
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.fuse import MAX_KERNEL_NODES
from tilewright.schedule.steps import items, split


@contextmanager
def schedules() -> Iterator[list[Schedule]]:
    """The schedules that are made inside the block."""
    found: list[Any] = []
    with subscribe(lambda event: found.append(event["plan"]), ["schedule"]):
        yield found


def some(device: str, steps: range) -> Sequence[int]:
    """All steps, or two of them where a kernel takes half a second to compile."""
    return steps if device in QUICK else steps[4:6]


def distinct_kernels(program: Callable[[], object]) -> int:
    forget_schedules()  # an equal program may have been run before
    with schedules() as found:
        program()
    return len({item.ast for plan in found for item in plan.items if item.ast is not None})


# ---------------------------------------------------------------- the same step on another slice


def products_of_slices(count: int) -> list[Tensor]:
    x = Tensor.rand(8, count, 12).realize()
    w = Tensor.rand(12, 5).realize()
    return [(x[:, step] @ w).contiguous() for step in range(count)]


def test_the_same_step_on_another_slice_is_the_same_kernel() -> None:
    assert distinct_kernels(lambda: Tensor.realize(*products_of_slices(7))) == distinct_kernels(
        lambda: Tensor.realize(*products_of_slices(3))
    )


def test_slices_have_their_own_values(device: str) -> None:
    data = np.arange(5 * 9 * 7, dtype=np.float32).reshape(5, 9, 7)
    x = Tensor(data, device=device).realize()
    for step in some(device, range(9)):
        np.testing.assert_array_equal((x[:, step] * 2).numpy(), data[:, step] * 2)
        np.testing.assert_array_equal(
            (x[1:, step, 2:5] + x[:-1, step, 1:4]).numpy(), data[1:, step, 2:5] + data[:-1, step, 1:4]
        )
        np.testing.assert_array_equal((x[:, :step].flip(1).sum(1)).numpy(), data[:, :step].sum(1))


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32"])
def test_updates_of_slices_touch_nothing_else(device: str, kind: str) -> None:
    expected = np.zeros((6, 11), kind)
    x = Tensor(expected.copy(), device=device)
    for step in some(device, range(11)):
        x[1:5, step] = step + 1
        expected[1:5, step] = step + 1
        x[step % 6, 3:8] += 1
        expected[step % 6, 3:8] += 1
        np.testing.assert_array_equal(x.numpy(), expected)


def test_an_update_at_another_position_is_the_same_kernel() -> None:
    cache = Tensor.zeros(4, 32, 8).contiguous().realize()
    row = Tensor.rand(4, 1, 8).realize()

    def fill(count: int) -> None:
        for position in range(count):
            cache[:, position : position + 1] = row
            cache.realize()

    assert distinct_kernels(lambda: fill(1)) == distinct_kernels(lambda: fill(9)) == 1


def test_a_replay_has_its_slices_at_the_right_place() -> None:
    """Arguments and results are other memory at every call; a part of them begins at the same byte of it."""

    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x[2:4] * y[1:3]).contiguous(), y[3:] + 1

    for call in range(5):
        x, y = np.random.default_rng(call).random((2, 5, 3), np.float32)
        first, second = step(Tensor(x), Tensor(y))
        np.testing.assert_allclose(first.numpy(), x[2:4] * y[1:3], rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), y[3:] + 1, rtol=1e-6)


# ---------------------------------------------------------------- joins of many


JOINED = [
    ((3, 4), 0, 9),
    ((3, 4), 1, 12),
    ((5,), 0, 40),
    ((2, 3, 4), -2, 10),
    ((1,), 0, 30),
]


def test_joins_of_many(device: str) -> None:
    # Where compilers are slow, one of fewer parts.
    for shape, axis, count in JOINED if device in QUICK else [((3, 4), 1, 5)]:
        check_joined(device, shape, axis, count)


def check_joined(device: str, shape: tuple[int, ...], axis: int, count: int) -> None:
    arrays = np.random.default_rng(0).integers(-9, 9, (count, *shape)).astype(np.float32)
    tensors = [Tensor(array, device=device) for array in arrays]
    np.testing.assert_array_equal(Tensor.cat(*tensors, dim=axis).numpy(), np.concatenate(list(arrays), axis))
    np.testing.assert_array_equal(Tensor.stack(*tensors, dim=axis).numpy(), np.stack(list(arrays), axis))
    # Computed values, one of them several times, and what is computed from the whole.
    parts = [tensor * number for number, tensor in enumerate(tensors)] + [tensors[0], tensors[0].exp() * 0]
    values = [array * number for number, array in enumerate(arrays)] + [arrays[0], arrays[0] * 0]
    joined = Tensor.cat(*parts, dim=axis)
    expected = np.concatenate(values, axis)
    np.testing.assert_array_equal((joined * 2 + 1).numpy(), expected * 2 + 1)
    np.testing.assert_array_equal(joined.sum(axis).numpy(), expected.sum(axis))


def test_joins_of_other_sizes_and_none() -> None:
    sizes = [3, 0, 1, 7, 2, 0, 5, 1, 1, 4, 6, 2]
    arrays = [np.arange(size * 2, dtype=np.int32).reshape(size, 2) + size for size in sizes]
    joined = Tensor.cat(*map(Tensor, arrays))
    expected = np.concatenate(arrays)
    np.testing.assert_array_equal(joined.numpy(), expected)
    for start, stop in ((0, 3), (3, 4), (2, 9), (9, 32), (5, 5)):
        np.testing.assert_array_equal(joined[start:stop].numpy(), expected[start:stop])
    assert Tensor.cat(*[Tensor.zeros(3, 0)] * 20, dim=1).shape == (3, 0)
    assert Tensor.cat(*[Tensor.zeros(0, 3)] * 20, dim=1).numpy().shape == (0, 60)
    np.testing.assert_array_equal(Tensor.cat(*[Tensor.full((2,), 3.0)] * 20).numpy(), np.full(40, 3.0, np.float32))


def test_the_gradient_of_a_join_goes_to_its_parts() -> None:
    arrays = np.random.default_rng(1).random((20, 3, 2), np.float32)
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    weights = np.random.default_rng(2).random((3, 40), np.float32)
    (Tensor.cat(*tensors, dim=1) ** 2 * Tensor(weights)).sum().backward()
    for number, (tensor, array) in enumerate(zip(tensors, arrays, strict=True)):
        np.testing.assert_allclose(tensor.grad.numpy(), 2 * array * weights[:, 2 * number : 2 * number + 2], rtol=1e-6)


def test_a_join_is_updated_in_place_and_copied() -> None:
    arrays = [np.full((2, 2), number, np.float32) for number in range(12)]
    joined = Tensor.cat(*map(Tensor, arrays))
    kept = joined + 0
    joined[3:5] = 50
    expected = np.concatenate(arrays)
    np.testing.assert_array_equal(kept.numpy(), expected)
    expected[3:5] = 50
    np.testing.assert_array_equal(joined.numpy(), expected)
    np.testing.assert_array_equal(Tensor.cat(*map(Tensor, arrays)).to("PYTHON").numpy(), np.concatenate(arrays))


def test_joins_have_as_many_kernels_as_shapes_of_parts() -> None:
    def join(count: int) -> int:
        parts = [Tensor.rand(6).realize() for _ in range(count)]
        return distinct_kernels(lambda: Tensor.stack(*parts).realize())

    assert join(10) == join(50) == 2  # of eight parts together, and of one


# ---------------------------------------------------------------- sequences


def recurrent_loss(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """A gated cell by hand over the second axis; the loss takes all outputs."""
    state = Tensor.zeros(x.shape[0], u.shape[0])
    outputs = []
    for step in range(x.shape[1]):
        gates = x[:, step] @ w + state @ u + b
        keep, new = gates.chunk(2, dim=1)
        state = keep.sigmoid() * state + (1 - keep.sigmoid()) * new.tanh()
        outputs.append(state)
    return (Tensor.stack(*outputs, dim=1) ** 2).mean()


def recurrent_tensors(steps: int) -> list[Tensor]:
    rng = np.random.default_rng(steps)
    shapes = ((3, steps, 5), (5, 8), (4, 8), (8,))
    return [Tensor(rng.standard_normal(shape).astype(np.float32), requires_grad=True) for shape in shapes]


def test_a_training_step_over_a_sequence_has_as_many_kernels_for_any_length() -> None:
    def step(steps: int) -> None:
        tensors = recurrent_tensors(steps)
        recurrent_loss(*tensors).backward()
        Tensor.realize(*(tensor.grad for tensor in tensors))

    assert distinct_kernels(lambda: step(12)) == distinct_kernels(lambda: step(20)) < 45


def test_equal_steps_are_written_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices at other offsets and deeper in the graph are the same kernel before it is simplified."""
    written, simplified = Calls(monkeypatch, items, "canonical_kernel"), Calls(monkeypatch, split, "fold_reductions")

    def step(steps: int) -> tuple[int, int]:
        forget_schedules()
        before = written.count, simplified.count
        tensors = recurrent_tensors(steps)
        recurrent_loss(*tensors).backward()
        Tensor.realize(*(tensor.grad for tensor in tensors))
        return written.count - before[0], simplified.count - before[1]

    assert step(12) == step(20)
    assert written.count < 100


@pytest.mark.parametrize("rows", [3, 4096])  # the products of many rows are each a term of the gradient
def test_gradients_over_a_sequence_are_built_in_linear_time(rows: int) -> None:
    def calls(steps: int) -> int:
        shapes = ((rows, steps, 5), (5, 128), (64, 128), (128,))
        tensors = [Tensor.zeros(*shape).contiguous().requires_grad_() for shape in shapes]
        loss = recurrent_loss(*tensors)
        return count_calls(loss.backward)[0]

    calls(4)  # what is imported and made once
    assert calls(80) < 2.3 * calls(40)


@pytest.mark.torch
@pytest.mark.parametrize("steps", [1, 2, 9, 10, 23])
def test_gradients_over_a_sequence(steps: int) -> None:
    """Of the weights, sums of a product per step, and of the input, whose slices' gradients are joined."""
    import torch

    tensors = recurrent_tensors(steps)
    loss = recurrent_loss(*tensors)
    loss.backward()
    x, w, u, b = (torch.tensor(tensor.numpy(), dtype=torch.float64, requires_grad=True) for tensor in tensors)
    state = torch.zeros(3, 4, dtype=torch.float64)
    outputs = []
    for step in range(steps):
        keep, new = (x[:, step] @ w + state @ u + b).chunk(2, dim=1)
        state = keep.sigmoid() * state + (1 - keep.sigmoid()) * new.tanh()
        outputs.append(state)
    expected = (torch.stack(outputs, dim=1) ** 2).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(tensors, (x, w, u, b), strict=True):
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=2e-4, atol=1e-6)


SLICED = {
    "disjoint": lambda x: sum(((k + 1) * x[:, k : k + 1] ** 2).sum() for k in range(16)),
    "gaps": lambda x: sum(((k + 1) * x[:, k] ** 2).sum() for k in range(1, 15) if k != 7),
    "overlapping": lambda x: sum(((k + 1) * x[:, k : k + 3] ** 2).sum() for k in range(14)),
    "prefixes": lambda x: sum(((k + 1) * x[:, :k] ** 2).sum() for k in range(1, 17)),
    "blocks of two axes": lambda x: sum(((k + 1) * x[1:3, k : k + 1] ** 2).sum() for k in range(16)),
    "several kinds": lambda x: (x**2).sum() + sum(((k + 1) * x[:, k] ** 3).sum() + x[k % 4].sum() for k in range(16)),
    "of a product": lambda x: sum(((k + 1) * (x * x)[:, k]).sum() for k in range(16)),
    "one slice many times": lambda x: sum((k * x[:, 3] ** 2).sum() for k in range(20)),
}


@pytest.mark.parametrize("name", SLICED)
def test_gradients_of_many_slices(name: str) -> None:
    data = np.random.default_rng(3).standard_normal((4, 16))
    x = Tensor(data, requires_grad=True)
    SLICED[name](x).backward()
    expected = np.zeros_like(data)
    for place in np.ndindex(*data.shape):
        step = np.zeros_like(data)
        step[place] = 1e-6
        high, low = (SLICED[name](data + sign * step) for sign in (1, -1))
        expected[place] = (high - low) / 2e-6
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_weight_of_many_products(kind: str) -> None:
    rng = np.random.default_rng(4)
    xs, w = rng.standard_normal((12, 6, 3)).astype(kind), rng.standard_normal((3, 2)).astype(kind)
    weight = Tensor(w, requires_grad=True)
    total = sum((Tensor(x) @ weight).sin().sum() for x in xs) + (weight**2).sum()
    total.backward()
    wide = w.astype(np.float64)
    expected = 2 * wide + sum(x.astype(np.float64).T @ np.cos(x.astype(np.float64) @ wide) for x in xs)
    np.testing.assert_allclose(
        weight.grad.numpy(),
        expected,
        rtol=3e-2 if kind == "float16" else 1e-5,
        atol=1e-2 if kind == "float16" else 1e-5,
    )


# ---------------------------------------------------------------- large expressions


def chain(x: Any, count: int) -> Any:
    for number in range(count):
        x = x * (1 + number * 1e-6) if number % 2 else x + number * 1e-6
    return x


def tree(leaves: list[Any]) -> Any:
    while len(leaves) > 1:
        leaves = [left + right * 0.5 for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


LARGE: dict[str, Callable[[Any], Any]] = {
    "chain": lambda x: chain(x, 800),
    "chain of a sum": lambda x: chain(x.sum(1), 700),
    "chain of a broadcast product": lambda x: (chain(x.reshape(4, 5, 1), 700) * x.reshape(4, 1, 5)).sum(1),
    "tree": lambda x: tree([x * number for number in range(512)]),
    "sum of slices": lambda x: sum(x[number % 4] * number for number in range(700)),
    "sum of sums": lambda x: sum((x * number).sum() for number in range(150)),
    "two chains that meet": lambda x: chain(x, 300) * chain(x + 1, 300) + chain(x, 150),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_expressions_are_several_kernels_of_limited_size(name: str) -> None:
    data = np.random.default_rng(5).random((4, 5))
    with schedules() as found:
        ours = LARGE[name](Tensor(data)).numpy()
    np.testing.assert_allclose(ours, LARGE[name](data), rtol=1e-9)
    kernels = [item.ast for plan in found for item in plan.items if item.ast is not None]
    computed = [sum(node.op.is_elementwise for node in toposort(kernel)) for kernel in kernels]
    assert len(kernels) > 1
    assert max(computed) < 3 * MAX_KERNEL_NODES


# ---------------------------------------------------------------- what a process remembers


def use_length(length: int) -> None:
    x = Tensor(np.arange(length, dtype=np.float32))
    assert (x * 2 + 1).sum().item() == float(length * length)


def test_what_is_remembered_of_many_lengths_is_limited() -> None:
    """Nodes, schedules, kernels and prepared lists: nothing grows with the number of lengths."""
    tables = [*kernel_tables, plan._schedules]

    def sizes() -> list[int]:
        gc.collect()
        return [len(uop._table), *map(len, tables)]

    forget_schedules()
    forget_kernels()
    with Context(PLAN_CACHE=2):
        for length in range(1, 21):
            use_length(length)
        known = sizes()
        for length in range(21, 61):
            use_length(length)
        grown = sizes()
    assert max(map(len, tables)) <= 2 * KERNELS_PER_PLAN
    assert len(plan._plans) == len(plan._schedules) == 2
    assert all(after <= before * 1.25 for before, after in zip(known, grown, strict=True)), (known, grown)


def test_what_is_used_again_stays_and_what_is_not_comes_back() -> None:
    forget_schedules()
    forget_kernels()
    with Context(PLAN_CACHE=4, LIFT_SIZES=0):
        use_length(5)
        kept = next(plan._plans.values())
        for length in range(100, 120):
            use_length(length)
            use_length(5)
        assert any(found is kept for found in plan._plans.values())
        use_length(100)
    with Context(PLAN_CACHE=0, LIFT_SIZES=0):
        for length in range(10, 20):
            use_length(length)
        assert len(plan._plans) >= 10


def test_a_kernel_whose_text_was_let_go_shows_it_again() -> None:
    """The text and the graphs of a kernel are made again for whoever asks."""
    forget_kernels()
    item = next(item for item in (Tensor.rand(7) + 1).schedule().items if item.ast is not None)
    kernel = compile_kernel(item.ast, item.device)
    assert "define void" in kernel.source
    assert kernel.program.name == kernel.name == kernel.optimised.arg.name
