"""`Tensor.custom_kernel`: values, laziness, gradients, jit, memory, and what is said when a kernel is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tensor.conftest import run_on
from tilewright import AddrSpace, AxisType, Context, KernelInfo, Opt, OptOps, Tensor, UOp, dtypes, jit
from tilewright.base.errors import (
    DeviceError,
    EmulatorError,
    KernelError,
    OutOfBoundsError,
    RaceError,
    ShapeError,
    UninitialisedReadError,
    UnsupportedError,
    UnwrittenOutputError,
)

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def double(out: UOp, x: UOp) -> UOp:
    i, j = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1)
    return out[i, j].set(x[i, j] * 2, end=(i, j)).sink(arg=KernelInfo("double"))


def row_sum(out: UOp, x: UOp) -> UOp:
    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)
    acc = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG).after(row)[0].set(0)
    acc = acc[0].set(acc.after(col)[0] + x[row, col], end=col)
    return out[row].set(acc[0], end=row).sink(arg=KernelInfo("row_sum"))


def add_into(out: UOp, x: UOp) -> UOp:
    """out += x, in place."""
    i = UOp.range(out.shape[0], 0)
    return out[i].set(out[i] + x[i], end=i).sink(arg=KernelInfo("add_into"))


def first_half(out: UOp, x: UOp) -> UOp:
    i = UOp.range(out.shape[0] // 2, 0)
    return out[i].set(x[i], end=i).sink(arg=KernelInfo("first_half"))


def sum_and_maximum(total: UOp, largest: UOp, x: UOp) -> UOp:
    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1)
    acc = UOp.placeholder((1,), x.dtype, 0).after(row)[0].set(0)
    top = UOp.placeholder((1,), x.dtype, 1).after(row)[0].set(-float("inf"))
    both = UOp.group(
        acc[0].store(acc.after(col)[0] + x[row, col]), top[0].store(top.after(col)[0].maximum(x[row, col]))
    ).end(col)
    stores = UOp.group(total[row].store(acc.after(both)[0]), largest[row].store(top.after(both)[0]))
    return stores.end(row).sink(arg=KernelInfo("sum_and_maximum"))


# ---------------------------------------------------------------- values


def test_a_realised_input(backend: str, device: str) -> None:
    out = Tensor.custom_kernel(Tensor.empty(4, 6, device=device), Tensor(X, device=device), fxn=double)[0]
    np.testing.assert_array_equal(run_on(backend, out), X * 2)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x + 1,
        lambda x: x.T.contiguous().T,
        lambda x: x.reshape(6, 4).T,
        lambda x: x.flip(0),
        lambda x: x[:2, 1:3],
        lambda x: x[:1].expand(4, 6),
        lambda x: x.pad((1, 1)),
        lambda x: x * 0 + Tensor.full((4, 6), 3.0, device=x.device),
        lambda x: Tensor.ones(4, 6, device=x.device) * 2,
        lambda x: Tensor.full((1, 1), 2.0, device=x.device),
        lambda x: x.sum(1, keepdim=True),
    ],
)
def test_views_and_lazy_inputs(view: Callable[[Tensor], Tensor], backend: str, device: str) -> None:
    x = view(Tensor(X, device=device))
    out = Tensor.custom_kernel(Tensor.empty(*x.shape, device=device), x, fxn=double)[0]
    np.testing.assert_allclose(run_on(backend, out), x.numpy() * 2, rtol=1e-6)


def test_what_follows_and_what_comes_before(backend: str, device: str) -> None:
    x = Tensor(X, device=device)
    out = Tensor.custom_kernel(Tensor.empty(4, device=device), x.exp(), fxn=row_sum)[0]
    result = (out.reshape(4, 1) * x).sum()
    expected = (np.exp(X).sum(1, keepdims=True) * X).sum()
    np.testing.assert_allclose(run_on(backend, result), expected, rtol=1e-5)


def test_several_outputs(backend: str, device: str) -> None:
    x = Tensor(X, device=device)
    total, largest, same = Tensor.custom_kernel(
        Tensor.empty(4, device=device), Tensor.empty(4, device=device), x, fxn=sum_and_maximum
    )
    assert same is x
    np.testing.assert_allclose(run_on(backend, total + largest), X.sum(1) + X.max(1), rtol=1e-5)
    np.testing.assert_array_equal(run_on(backend, largest), X.max(1))


def test_one_output_of_several_is_asked_for(device: str) -> None:
    outputs = [Tensor.empty(4, device=device), Tensor.empty(4, device=device)]
    largest = Tensor.custom_kernel(*outputs, Tensor(X, device=device), fxn=sum_and_maximum)[1]
    assert len(largest.schedule()) == 1
    np.testing.assert_array_equal(largest.numpy(), X.max(1))


def test_several_outputs_are_one_kernel(device: str) -> None:
    outputs = [Tensor.empty(4, device=device), Tensor.empty(4, device=device)]
    total, largest, _ = Tensor.custom_kernel(*outputs, Tensor(X, device=device), fxn=sum_and_maximum)
    assert len(total.schedule(largest)) == 1


def test_a_loop_that_has_one_iteration_at_most(backend: str, device: str) -> None:
    """`1 - i` iterations: its counter is always 0, but the loop is not always there."""

    def first_is_doubled(out: UOp, x: UOp) -> UOp:
        i = UOp.range(2, 0)
        copied = out.after(i)[i].set(x[i])
        again = UOp.range(1 - i, 1)
        return copied[i + again].set(copied[i + again] * 2, end=again).end(i).sink()

    out = Tensor.custom_kernel(Tensor.empty(2, device=device), Tensor([3.0, 4.0], device=device), fxn=first_is_doubled)
    np.testing.assert_array_equal(run_on(backend, out[0]), [6, 4])


def test_a_chain_of_kernels(backend: str, device: str) -> None:
    x = Tensor(X, device=device)
    for _ in range(3):
        x = Tensor.custom_kernel(Tensor.empty(4, 6, device=device), x, fxn=double)[0]
    np.testing.assert_array_equal(run_on(backend, x), X * 8)


def test_it_is_a_method_too(device: str) -> None:
    out = Tensor.empty(4, 6, device=device).custom_kernel(Tensor(X, device=device), fxn=double)[0]
    np.testing.assert_array_equal(out.numpy(), X * 2)


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "float64"])
def test_dtypes(dtype: str, device: str) -> None:
    x = Tensor(np.arange(24).reshape(4, 6), device=device).cast(dtype)
    out = Tensor.custom_kernel(Tensor.empty(4, device=device, dtype=dtype), x, fxn=row_sum)[0]
    np.testing.assert_array_equal(out.numpy(), np.arange(24).reshape(4, 6).sum(1).astype(dtype))


def test_an_argument_that_is_not_used(device: str) -> None:
    def fill(out: UOp, unused: UOp) -> UOp:
        i = UOp.range(out.shape[0], 0)
        return out[i].set(i, end=i).sink()

    out = Tensor.custom_kernel(Tensor.empty(5, device=device, dtype="int32"), Tensor(X, device=device) + 1, fxn=fill)[0]
    assert out.tolist() == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- memory


def test_contents_before_are_kept_where_nothing_is_written(backend: str, device: str) -> None:
    old, x = Tensor([1.0, 2.0, 3.0, 4.0], device=device), Tensor([7.0, 8.0], device=device)
    new = Tensor.custom_kernel(old, x, fxn=first_half)[0]
    np.testing.assert_array_equal(run_on(backend, new), [7, 8, 3, 4])
    assert old.tolist() == [1, 2, 3, 4]


def test_an_output_that_is_read_as_well(backend: str, device: str) -> None:
    total = Tensor([1.0, 2.0], device=device)
    after = Tensor.custom_kernel(total, Tensor([10.0, 20.0], device=device), fxn=add_into)[0]
    np.testing.assert_array_equal(run_on(backend, after), [11, 22])
    assert total.tolist() == [1, 2]


def test_one_tensor_as_output_and_input(device: str) -> None:
    def reverse(out: UOp, x: UOp) -> UOp:
        i = UOp.range(out.shape[0], 0)
        return out[i].set(x[out.shape[0] - 1 - i], end=i).sink()

    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device)
    x = Tensor.custom_kernel(x, x, fxn=reverse)[0]
    assert x.tolist() == [5, 4, 3, 2, 1]


def test_memory_that_nobody_else_sees_is_updated_in_place(device: str) -> None:
    total = Tensor([1.0, 2.0], device=device).contiguous().realize() + 0
    total.realize()
    memory = total._buffer().memory
    total = Tensor.custom_kernel(total, Tensor([10.0, 20.0], device=device), fxn=add_into)[0]
    assert len(total.schedule()) == 1
    assert total.tolist() == [11, 22]
    assert total._buffer().memory is memory


def test_two_updates_of_one_tensor(device: str) -> None:
    old = Tensor([1.0, 2.0], device=device)
    left = Tensor.custom_kernel(old, Tensor([1.0, 1.0], device=device), fxn=add_into)[0]
    right = Tensor.custom_kernel(old, Tensor([5.0, 5.0], device=device), fxn=add_into)[0]
    assert (left + right + old).tolist() == [1 + 1 + 1 + 5 + 1, 2 + 1 + 2 + 5 + 2]


def test_an_assignment_and_a_kernel(device: str) -> None:
    x = Tensor([1.0, 2.0], device=device).contiguous().realize()
    before = x * 10
    x.assign(Tensor.custom_kernel(x, Tensor([1.0, 1.0], device=device), fxn=add_into)[0])
    assert (x.tolist(), before.tolist()) == ([2, 3], [10, 20])


def test_zeros_as_an_output(device: str) -> None:
    out = Tensor.custom_kernel(Tensor.zeros(4, device=device), Tensor([7.0, 8.0], device=device), fxn=first_half)[0]
    assert out.tolist() == [7, 8, 0, 0]


# ---------------------------------------------------------------- jit


def test_jit_replays_it(device: str) -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        out = Tensor.custom_kernel(Tensor.empty(4, device=x.device), x + 1, fxn=row_sum)[0]
        return (out * 2).realize()

    for number in range(5):
        value = X + number
        found = step(Tensor(value, device=device).realize())
        np.testing.assert_allclose(found.numpy(), 2 * (value + 1).sum(1), rtol=1e-5)
    assert step.last_reason == ""


def test_jit_with_state_updated_in_place(device: str) -> None:
    state = {"total": Tensor([0.0, 0.0], device=device).contiguous().realize()}

    @jit
    def step(x: Tensor) -> Tensor:
        state["total"].assign(Tensor.custom_kernel(state["total"], x, fxn=add_into)[0])
        return state["total"].realize()

    for number in range(1, 5):
        assert step(Tensor([1.0, 2.0], device=device).realize()).tolist() == [number, 2 * number]
    assert step.last_reason == ""
    assert state["total"].tolist() == [4, 8]


def test_memory_that_a_kernel_updates_is_not_copied(device: str) -> None:
    """Assigned to what it was given, it writes there: one launch. Held by another tensor, the old value stays."""
    memory = Tensor([1.0, 2.0], device=device).contiguous().realize()
    added = Tensor([3.0, 4.0], device=device).realize()
    memory.assign(Tensor.custom_kernel(memory, added, fxn=add_into)[0])
    assert len(memory.schedule().items) == 1
    assert memory.tolist() == [4, 6]
    held = memory + 0
    memory.assign(Tensor.custom_kernel(memory, added, fxn=add_into)[0])
    assert (memory.tolist(), held.tolist()) == ([7, 10], [4, 6])


# ---------------------------------------------------------------- gradients


def row_sum_gradient(gradient: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
    return None, gradient.reshape(-1, 1).expand(*x.shape)


def test_gradient(backend: str, device: str) -> None:
    x = Tensor(X, device=device, requires_grad=True)
    out = Tensor.custom_kernel(Tensor.empty(4, device=device), x * x, fxn=row_sum, grad_fxn=row_sum_gradient)[0]
    (out * Tensor([1.0, 2.0, 3.0, 4.0], device=device)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(run_on(backend, x.grad), 2 * X * np.arange(1, 5).reshape(4, 1), rtol=1e-6)


def test_gradient_of_several_outputs(device: str) -> None:
    def gradient(gradients: list[Tensor], total: Tensor, largest: Tensor, x: Tensor) -> list[Tensor | None]:
        is_largest = (x == largest.reshape(-1, 1)).cast("float32")
        return [None, None, gradients[0].reshape(-1, 1) + gradients[1].reshape(-1, 1) * is_largest]

    x = Tensor(X, device=device, requires_grad=True)
    outputs = [Tensor.empty(4, device=device), Tensor.empty(4, device=device)]
    total, largest, _ = Tensor.custom_kernel(*outputs, x, fxn=sum_and_maximum, grad_fxn=gradient)
    (total * 2 + largest * 3).sum().backward()
    assert x.grad is not None
    expected = 2 + 3 * (X == X.max(1, keepdims=True))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_gradient_of_a_gradient(device: str) -> None:
    x = Tensor(X, device=device, requires_grad=True)
    out = Tensor.custom_kernel(Tensor.empty(4, device=device), x * x, fxn=row_sum, grad_fxn=row_sum_gradient)[0]
    first = (out * out).sum().gradient(x)[0]
    second = first.sum().gradient(x)[0]
    sums = (X * X).sum(1, keepdims=True)
    np.testing.assert_allclose(first.numpy(), 4 * sums * X, rtol=1e-4)
    np.testing.assert_allclose(second.numpy(), 4 * sums + 8 * X * X.sum(1, keepdims=True), rtol=1e-3, atol=1e-3)


def test_gradient_of_a_tensor_that_only_the_gradient_needs(device: str) -> None:
    x, scale = Tensor(X, device=device, requires_grad=True), Tensor([3.0], device=device, requires_grad=True)

    def rule(gradient: Tensor, out: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, gradient * scale, (gradient * x).sum().reshape(1)

    out = Tensor.custom_kernel(
        Tensor.empty(4, 6, device=device), x, scale, fxn=lambda o, x, _: double(o, x), grad_fxn=rule
    )
    out[0].sum().backward()
    assert x.grad is not None
    assert scale.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(X, 3))
    np.testing.assert_allclose(scale.grad.numpy(), [X.sum()], rtol=1e-5)


def test_no_gradient_is_said_so_by_name() -> None:
    x = Tensor(X, requires_grad=True)
    out = Tensor.custom_kernel(Tensor.empty(4), x, fxn=row_sum)[0]
    with pytest.raises(UnsupportedError, match="the custom kernel row_sum has no gradient") as caught:
        out.sum().backward()
    assert __file__ in str(caught.value)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda g: (None,), "returns 1 results for 2 tensors"),
        (lambda g: (None, g), r"for tensor 1 of shape \(4, 6\) is float32\[4\]"),
        (lambda g: (None, 3), "is int"),
    ],
)
def test_a_wrong_gradient(result: Callable[[Tensor], Any], message: str) -> None:
    x = Tensor(X, requires_grad=True)
    out = Tensor.custom_kernel(Tensor.empty(4), x, fxn=row_sum, grad_fxn=lambda g, *_: result(g))[0]
    with pytest.raises((UnsupportedError, ShapeError), match=message):
        out.sum().backward()


# ---------------------------------------------------------------- schedules


def test_the_schedule_declares_what_the_kernel_touches() -> None:
    x = Tensor(X)
    (item,) = Tensor.custom_kernel(Tensor.empty(4), x, fxn=row_sum)[0].schedule()
    assert [(access.start, access.stop) for access in item.reads] == [(0, 96)]
    assert [(access.start, access.stop) for access in item.writes] == [(0, 16)]
    assert item.ast is not None
    assert item.ast.arg.name == "row_sum"


def test_equal_calls_share_a_schedule(device: str) -> None:
    from tilewright.engine.planning import plan

    def call() -> None:
        function = lambda gradient, *_: (None, gradient)  # noqa: E731
        Tensor.custom_kernel(Tensor.empty(4, device=device), Tensor(X, device=device), fxn=row_sum, grad_fxn=function)[
            0
        ].realize()

    call()
    known = len(plan._schedules)
    call()
    assert len(plan._schedules) == known


# ---------------------------------------------------------------- mistakes


LINES = Path(__file__).read_text().splitlines()


def line_of(error: pytest.ExceptionInfo[Any], text: str) -> bool:
    """Whether an error names the line of this file that holds the text."""
    location = error.value.location
    return location is not None and location[0] == __file__ and text in LINES[location[1] - 1]


def realise(fxn: Callable[..., UOp], size: int = 8, device: str = "PYTHON", empty: bool = True) -> None:
    out = Tensor.empty(size, device=device) if empty else Tensor.zeros(size, device=device)
    Tensor.custom_kernel(out, Tensor(np.ones(size, np.float32), device=device), fxn=fxn)[0].realize()


def test_accesses_out_of_bounds() -> None:
    """Those that are certain are refused on every device, others are found by the emulator."""

    def kernel(out: UOp, x: UOp) -> UOp:
        i = UOp.range(8, 0)
        return out[i].set(x[i - 1], end=i).sink()  # out of bounds here

    with pytest.raises(OutOfBoundsError, match="index -1 is outside") as caught:
        realise(kernel, device="CPU")
    assert line_of(caught, "out of bounds here")

    def halved(out: UOp, x: UOp) -> UOp:
        i = UOp.range(8, 0)
        return out[i * 3 // 2].set(x[i], end=i).sink()  # beyond the end here

    with pytest.raises(OutOfBoundsError, match="index 9 is outside") as caught:
        realise(halved)
    assert line_of(caught, "beyond the end here")

    def masked(out: UOp, x: UOp) -> UOp:
        i = UOp.range(8, 0)
        return out[i].set(x[i + 1].load(mask=i < 7), end=i).sink()

    realise(masked)


def test_an_output_left_unwritten() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        i = UOp.range(4, 0)
        return out[2 * i].set(x[i], end=i).sink()  # every second one

    with pytest.raises(UnwrittenOutputError, match="leaves 4 of 8 elements of its argument 0 unwritten") as caught:
        realise(kernel)
    assert line_of(caught, "every second one")
    realise(kernel, empty=False)


def test_an_unwritten_output_is_found_by_verify_on_any_device() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        i = UOp.range(5, 0)
        return out[i].set(x[i], end=i).sink()

    with Context(VERIFY=1), pytest.raises(UnwrittenOutputError, match="leaves 3 of 8"):
        realise(kernel, device="CPU")


def test_a_race() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        i = UOp.range(8, 0, AxisType.LOCAL)
        return out[i // 2].set(x[i], end=i).sink(arg=KernelInfo("race", ()))  # two threads, one place

    with pytest.raises(RaceError, match="nothing orders the two") as caught:
        realise(kernel, empty=False)
    assert line_of(caught, "two threads, one place")


def test_a_placeholder_that_nobody_wrote() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        i, k = UOp.range(8, 0), UOp.range(3, 1)
        acc = UOp.placeholder((1,), out.dtype, 0).after(i)
        acc = acc[0].set(acc.after(k)[0] * x[i] + 1, end=k)  # read before it is set
        return out[i].set(acc[0], end=i).sink(arg=KernelInfo("unset", ()))

    with pytest.raises(UninitialisedReadError, match="nobody wrote") as caught:
        realise(kernel)
    assert line_of(caught, "read before it is set")


def test_local_memory_without_a_barrier() -> None:
    def kernel(out: UOp, x: UOp, with_barrier: bool = False) -> UOp:
        i = UOp.range(8, 0, AxisType.LOCAL)
        shared = UOp.placeholder((8,), out.dtype, 0, addrspace=AddrSpace.LOCAL)
        stored = shared[i].store(x[i] * 2)
        shared = shared.after(UOp.barrier(stored.end(i)) if with_barrier else stored.end(i))
        return out[i].set(shared[7 - i], end=i).sink(arg=KernelInfo("reverse", ()))

    with pytest.raises(EmulatorError) as caught:
        realise(kernel)
    assert caught.value.location is not None
    realise(lambda out, x: kernel(out, x, with_barrier=True))


@pytest.mark.parametrize(
    ("fxn", "message"),
    [
        (lambda out, x: out, "returns PARAM, not a kernel"),
        (lambda out, x: None, "returns NoneType, not a kernel"),
        (lambda out, x: out[0].set(1).sink(arg="name"), "is not a KernelInfo"),
        (lambda out, x: out[0].set(1).sink(arg=KernelInfo("not a name")), "cannot name a kernel"),
        (lambda out, x: UOp.placeholder((1,), "float32", 0)[0].set(1).sink(), "writes none of its arguments"),
    ],
)
def test_what_is_no_kernel(fxn: Callable[..., Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        Tensor.custom_kernel(Tensor.empty(4), Tensor(X), fxn=fxn)


def test_arguments_of_another_call() -> None:
    kept: list[UOp] = []

    def keep(out: UOp, x: UOp, y: UOp) -> UOp:
        kept.append(y)
        return out[0].set(x[0, 0] + y[0]).sink()

    Tensor.custom_kernel(Tensor.empty(4), Tensor(X), Tensor([1.0, 2.0]), fxn=keep)
    with pytest.raises(KernelError, match="none of its 2 arguments"):
        Tensor.custom_kernel(Tensor.empty(4), Tensor(X), fxn=lambda out, x: out[0].set(kept[0][0]).sink())


def test_devices_that_differ() -> None:
    with pytest.raises(DeviceError, match=r"CPU.*PYTHON"):
        Tensor.custom_kernel(Tensor.empty(4, device="CPU"), Tensor(X, device="PYTHON"), fxn=row_sum)


def test_a_tensor_without_elements() -> None:
    with pytest.raises(ShapeError, match="without elements"):
        Tensor.custom_kernel(Tensor.empty(0), Tensor(X), fxn=row_sum)


def test_opts_are_refused_at_the_call() -> None:
    def kernel(out: UOp, x: UOp) -> UOp:
        i = UOp.range(8, 0)
        return out[i].set(x[i], end=i).sink(arg=KernelInfo("copy", (Opt(OptOps.UPCAST, 0, 3),)))

    with pytest.raises(UnsupportedError.__mro__[1], match="UPCAST amount 3 does not divide size 8"):
        realise(kernel)


def test_int_index_arithmetic(device: str) -> None:
    """A loaded integer and a range are index maths together."""

    def pick(out: UOp, table: UOp, index: UOp) -> UOp:
        i = UOp.range(out.shape[0], 0)
        return out[i].set(table[index[i] * 2 + i % 2], end=i).sink()

    table = np.arange(16, dtype=np.float32)
    index = np.array([3, 0, 7, 1], np.int32)
    out = Tensor.custom_kernel(
        Tensor.empty(4, device=device), Tensor(table, device=device), Tensor(index, device=device), fxn=pick
    )[0]
    np.testing.assert_array_equal(out.numpy(), table[index * 2 + np.arange(4) % 2])
    assert dtypes.index.is_int
