"""Tensors on several devices: values, gradients, updates in place, jit, random numbers, training, custom kernels, and
what is said when something is wrong. How graphs are divided is tested in tests/schedule/test_shard.py."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tensor.test_custom import add_into, double, row_sum, sum_and_maximum
from tilewright import KernelInfo, Tensor, UOp, dtypes, jit, nn
from tilewright.base.errors import AxisError, DeviceError, EmulatorError, ShapeError
from tilewright.engine.memory.parts import layout_of
from tilewright.graph.ops import Ops
from tilewright.graph.records import Schedule

TWO = ("CPU", "CPU:1")
FOUR = ("CPU", "CPU:1", "CPU:2", "CPU:3")
EMULATED = ("PYTHON", "PYTHON:1")
LAYOUTS = (None, 0, 1)
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)


def axis_of(tensor: Tensor) -> int | None:
    return layout_of(tensor.uop)[0]


def check_devices(plan: Schedule) -> Schedule:
    """A kernel touches memory of its own device alone."""
    for item in plan.items:
        if item.ast is not None:
            assert {plan.slots[slot].device for slot in item.slots} == {item.device}
    return plan


# ---------------------------------------------------------------- what a tensor on several devices is


@pytest.mark.parametrize("axis", LAYOUTS)
@pytest.mark.parametrize("devices", [TWO, FOUR, EMULATED])
def test_it_is_the_same_value(devices: tuple[str, ...], axis: int | None) -> None:
    x = Tensor(X, device=devices[0]).shard(devices, axis)
    assert x.device == devices
    assert x.shape == (6, 4)
    assert x.tolist() == X.tolist()
    np.testing.assert_array_equal(x.realize().numpy(), X)
    np.testing.assert_array_equal(x.to("CPU").numpy(), X)
    assert axis_of(x) == axis
    parts = [part.shape for part in x.uop.src]
    rows = {2: [(3, 4)] * 2, 4: [(2, 4), (2, 4), (1, 4), (1, 4)]}[len(devices)]
    columns = {2: [(6, 2)] * 2, 4: [(6, 1)] * 4}[len(devices)]
    assert parts == {None: [(6, 4)] * len(devices), 0: rows, 1: columns}[axis]


def test_names_of_devices() -> None:
    assert Tensor(X).shard(["cpu:0", "CPU:1"], -1).device == TWO
    assert Tensor(X, device=TWO).device == TWO
    assert Tensor.zeros(3, device=("CPU:0", "CPU:1")).device == TWO


def test_it_shows_where_it_is() -> None:
    assert repr(Tensor(X).shard(TWO, 0)) == "<Tensor float32[6, 4] on CPU, CPU:1 (axis 0 as 3+3), not computed yet>"
    assert repr(Tensor(X).shard(TWO) * 2) == "<Tensor float32[6, 4] on CPU, CPU:1 (a copy on each), not computed yet>"
    assert "(axis 0 as 3+0)" in repr(Tensor(X).shard(TWO, 0)[:3] + 1)


def test_reading_one_number() -> None:
    total = Tensor(X).shard(TWO, 0).sum()
    assert total.item() == pytest.approx(float(X.sum()), rel=1e-5)
    assert bool(Tensor([1, 0]).shard(TWO, 0).any())


@pytest.mark.parametrize("axis", LAYOUTS)
def test_placing_it_like_another(axis: int | None) -> None:
    like = Tensor(X).shard(TWO, axis) + 1
    assert axis_of(Tensor(Y).shard_like(like)) == axis
    assert Tensor(Y).shard(TWO, 0).shard_like(Tensor(X)).device == "CPU"
    uneven = Tensor(X).shard(TWO, 0)[:4]
    assert layout_of(Tensor(Y[:4]).shard_like(uneven).uop) == (0, (3, 1))
    assert layout_of(uneven.empty_like().uop) == (0, (3, 1))


def test_dividing_it_anew() -> None:
    x = Tensor(X).shard(TWO, 0)
    again = x.shard(FOUR, 1)
    assert (again.device, axis_of(again)) == (FOUR, 1)
    np.testing.assert_array_equal(again.numpy(), X)
    np.testing.assert_array_equal(x.shard(TWO).numpy(), X)


def test_constants_are_divided_too() -> None:
    cache = Tensor.zeros(4, 2).shard(TWO, 0).realize()
    assert [part.shape for part in cache.uop.src] == [(2, 2)] * 2
    assert [part.src[0].arg.device for part in cache.uop.src] == list(TWO)
    free = Tensor.full((4,), 3.0, device=TWO).realize()
    assert free.tolist() == [3.0] * 4
    assert free.uop.op is Ops.MULTI
    mask = (Tensor.arange(4, device=TWO) > 1).realize()
    assert [part.arg.device for part in mask.uop.src] == list(TWO)


def test_sizes_that_do_not_divide() -> None:
    x = Tensor(X[:5]).shard(FOUR, 0)
    assert layout_of(x.uop) == (0, (2, 1, 1, 1))
    np.testing.assert_allclose(x.softmax(1).numpy(), Tensor(X[:5]).softmax(1).numpy(), rtol=1e-6)
    few = Tensor(X[:2]).shard(FOUR, 0)
    assert layout_of(few.uop) == (0, (1, 1, 0, 0))
    np.testing.assert_allclose((few * 2).sum(0).numpy(), (X[:2] * 2).sum(0), rtol=1e-6)
    assert few.max().item() == X[:2].max()
    np.testing.assert_array_equal((few + 1).realize().numpy(), X[:2] + 1)


def test_nothing_at_all() -> None:
    x = Tensor(X).shard(TWO, 0)[3:3]
    assert x.shape == (0, 4)
    assert x.tolist() == []
    assert (x + 1).sum().item() == 0


# ---------------------------------------------------------------- operations

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise": lambda x, y: (x * y).exp() - y,
    "one part": lambda x, y: x[0:3] + y[3:],
    "matmul": lambda x, y: x @ y.T,
    "contraction": lambda x, y: x.T @ y,
    "normalised": lambda x, y: (x - x.mean(0)) / (y.std(0) + 1),
    "joined": lambda x, y: x.cat(y, dim=1).reshape(48)[::-1],
    "gathered": lambda x, y: x.gather(1, (y > 0).cast(dtypes.int32)),
    "sorted": lambda x, y: (x + y).sort(0)[0],
    "attention": lambda x, y: x.reshape(1, 6, 4).scaled_dot_product_attention(y.reshape(1, 6, 4), y.reshape(1, 6, 4)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, None), (1, 0), (None, 1)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_values(name: str, left: int | None, right: int | None) -> None:
    wanted = OPERATIONS[name](Tensor(X), Tensor(Y)).numpy()
    result = OPERATIONS[name](Tensor(X).shard(TWO, left), Tensor(Y).shard(TWO, right))
    check_devices(result.schedule())
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", LAYOUTS)
def test_values_on_the_emulator(axis: int | None) -> None:
    x = Tensor(X, device="PYTHON").shard(EMULATED, axis)
    np.testing.assert_allclose(
        (x.T @ x).softmax(0).numpy(), Tensor(X).T.matmul(Tensor(X)).softmax(0).numpy(), rtol=1e-5
    )


def test_no_part_changes_where_nothing_crosses() -> None:
    """What each device computes for itself is what one device computes, to the bit."""
    x = Tensor(X)
    wanted = (x.exp().sum(1, keepdim=True) * x).numpy()
    spread = x.shard(FOUR, 0)
    np.testing.assert_array_equal((spread.exp().sum(1, keepdim=True) * spread).numpy(), wanted)


def test_copies_of_a_sum_are_equal_to_the_bit() -> None:
    x = Tensor(np.random.default_rng(2).standard_normal((64, 33)).astype(np.float32)).shard(FOUR, 0)
    total = ((x * 1.7).sum(0) * 3 + x.shard(FOUR)[5]).realize()
    parts = [Tensor._from_uop(part, device).numpy() for part, device in zip(total.uop.src, FOUR)]
    assert axis_of(total) is None
    for part in parts[1:]:
        np.testing.assert_array_equal(part, parts[0])


# ---------------------------------------------------------------- gradients


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["elementwise", "one part", "matmul", "normalised", "joined", "gathered"])
@pytest.mark.parametrize("axis", LAYOUTS)
def test_gradients(name: str, axis: int | None) -> None:
    def gradients(place: Callable[[Tensor], Tensor]) -> list[np.ndarray]:
        x, y = (place(Tensor(values, requires_grad=True)) for values in (X, Y))
        (OPERATIONS[name](x, y) ** 2).sum().backward()
        assert x.grad is not None
        assert x.grad.device == x.device
        return [np.zeros_like(X) if t.grad is None else t.grad.numpy() for t in (x, y)]

    wanted = gradients(lambda tensor: tensor)
    for found, known in zip(gradients(lambda tensor: tensor.shard_(TWO, axis)), wanted):
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", LAYOUTS)
def test_gradients_flow_through_the_division(axis: int | None) -> None:
    x = Tensor(X, requires_grad=True)
    (x.shard(TWO, axis).exp() * Tensor(Y).shard(TWO)).sum().backward()
    assert x.grad is not None
    assert x.grad.device == "CPU"
    np.testing.assert_allclose(x.grad.numpy(), np.exp(X) * Y, rtol=1e-5)
    y = Tensor(Y, requires_grad=True).shard_(TWO, axis)
    (y.to("CPU") * Tensor(X)).sum().backward()
    assert y.grad is not None
    np.testing.assert_allclose(y.grad.numpy(), X, rtol=1e-6)
    for parameter in (y, Tensor(Y, requires_grad=True).to_("CPU:1")):
        (second,) = (parameter * parameter).sum().gradient(parameter)
        np.testing.assert_allclose(second.numpy(), 2 * Y, rtol=1e-6)


# ---------------------------------------------------------------- updates in place


@pytest.mark.parametrize("axis", LAYOUTS)
def test_updates_are_done_in_place(axis: int | None) -> None:
    x = Tensor(X).shard(TWO, axis).realize()
    memory = [part.src[0].cache["buffer"] for part in x.uop.src]
    old = x * 1
    x.assign(x * 2)
    x[1:4] = 5.0
    wanted = X * 2
    wanted[1:4] = 5
    np.testing.assert_array_equal(x.numpy(), wanted)
    assert [part.src[0].cache["buffer"] for part in x.uop.src] == memory
    np.testing.assert_array_equal(old.numpy(), X)


@pytest.mark.parametrize("axis", LAYOUTS)
def test_values_from_before_an_update_are_kept(axis: int | None) -> None:
    x = Tensor(X).shard(TWO, axis).realize()
    before, view, first = x + 1, x[0:3], x[0:3].contiguous()
    moved = x.to("CPU")
    x.assign(Tensor(Y).shard(TWO))
    x.realize()
    np.testing.assert_array_equal(before.numpy(), X + 1)
    np.testing.assert_array_equal(first.numpy(), X[0:3])
    np.testing.assert_array_equal(moved.numpy(), X)
    np.testing.assert_array_equal(x.numpy(), Y)
    np.testing.assert_array_equal(view.numpy(), X[0:3])


@pytest.mark.parametrize("axis", LAYOUTS)
def test_what_is_made_from_a_part_has_memory_of_its_own(axis: int | None) -> None:
    """A slice that is one part, and a copy to where the data is: updates of them leave the tensor alone."""
    for make in (lambda x: x[0:3].contiguous(), lambda x: x.to("CPU"), lambda x: x.to("CPU:1").clone(), copy.deepcopy):
        x = Tensor(X).shard(TWO, axis).realize()
        part = make(x)
        part.assign(part * 0 + 1).realize()
        assert part.max().item() == 1
        np.testing.assert_array_equal(x.numpy(), X)


def test_an_update_keeps_the_layout() -> None:
    x = Tensor(X).shard(TWO, 0).realize()
    x.assign(Tensor(Y).shard(TWO, 1))
    assert (axis_of(x), x.tolist()) == (0, Y.tolist())
    whole = Tensor(X).shard(TWO).realize()
    whole.assign(x * 2)
    assert axis_of(whole) is None
    np.testing.assert_array_equal(whole.numpy(), Y * 2)
    whole.flip(0).assign(x)
    np.testing.assert_array_equal(whole.numpy(), Y[::-1])


def test_a_swap() -> None:
    x, y = (Tensor(values).shard(TWO, 0).realize() for values in (X, Y))
    left, right = x + 0, y + 0
    x.assign(right)
    y.assign(left)
    np.testing.assert_array_equal(x.numpy(), Y)
    np.testing.assert_array_equal(y.numpy(), X)


# ---------------------------------------------------------------- jit


@pytest.mark.parametrize("axis", LAYOUTS)
def test_jit(axis: int | None) -> None:
    weight = Tensor(Y).shard(TWO).realize()
    step = jit(lambda x: ((x * weight).realize(), x.sum(0).realize()))
    for turn in range(5):
        product, total = step(Tensor(X + turn).shard(TWO, axis).realize())
        np.testing.assert_allclose(product.numpy(), (X + turn) * Y, rtol=1e-6)
        np.testing.assert_allclose(total.numpy(), (X + turn).sum(0), rtol=1e-5)
        assert product.device == TWO
    assert step.last_reason == ""


def test_jit_tells_layouts_apart() -> None:
    step = jit(lambda x: (x * 2).realize())
    for axis in (0, 0, 0, 1, 1, None, 0):
        assert step(Tensor(X).shard(TWO, axis).realize()).tolist() == (X * 2).tolist()
    assert len(step.entries) == 3


def test_jit_updates_state_in_place() -> None:
    state = Tensor(X).shard(TWO, 0).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state.sum().realize()

    held = state + 0
    for turn in range(1, 6):
        total = step(Tensor(np.full((6, 4), turn, np.float32)).shard(TWO, 0).realize())
        np.testing.assert_allclose(state.numpy(), X + sum(range(1, turn + 1)), rtol=1e-6)
        assert total.item() == pytest.approx(float(state.numpy().sum()), rel=1e-5)
    assert step.last_reason == ""
    np.testing.assert_array_equal(held.numpy(), X)


def test_jit_with_its_result_fed_back_and_with_what_it_leaves_behind() -> None:
    kept: list[Tensor] = []

    @jit
    def step(x: Tensor) -> Tensor:
        kept[:] = [(x * 3).realize()]
        return (x + 1).realize()

    x = Tensor(X).shard(TWO, 0).realize()
    for _ in range(3):
        x = step(x)
    assert step.last_reason == ""
    np.testing.assert_allclose(x.numpy(), X + 3, rtol=1e-6)
    np.testing.assert_allclose(kept[0].numpy(), (X + 2) * 3, rtol=1e-6)


# ---------------------------------------------------------------- random numbers, copies, files


def test_random_numbers_are_those_of_one_device() -> None:
    def draw(devices: Any) -> list[np.ndarray]:
        Tensor.manual_seed(7)
        x = Tensor.ones(6, 4, device=devices).contiguous()
        with Tensor.train():
            return [Tensor.rand(5, device=devices).numpy(), x.dropout(0.5).numpy(), x.rand_like().numpy()]

    for found, wanted in zip(draw(TWO), draw("CPU:3")):
        np.testing.assert_array_equal(found, wanted)


def test_pickles_and_state_dicts(tmp_path: Any) -> None:
    x = Tensor(X).shard(TWO, 1)
    again = pickle.loads(pickle.dumps(x))
    assert (again.device, axis_of(again), again.tolist()) == (TWO, 1, X.tolist())
    nn.state.safe_save({"x": x, "y": Tensor(Y)}, str(tmp_path / "x.safetensors"))
    loaded = nn.state.safe_load(str(tmp_path / "x.safetensors"))
    assert loaded["x"].tolist() == X.tolist()

    class Model:
        def __init__(self) -> None:
            self.weight = Tensor.zeros(6, 4).contiguous().shard_(TWO, 0)

    model = Model()
    nn.state.load_state_dict(model, {"weight": Tensor(Y)})
    assert (model.weight.device, axis_of(model.weight), model.weight.tolist()) == (TWO, 0, Y.tolist())


# ---------------------------------------------------------------- training


class Network:
    def __init__(self) -> None:
        self.first, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.Linear(4 * 2 * 2, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x).relu()).max_pool2d().flatten(1))


IMAGES = np.random.default_rng(3).standard_normal((8, 1, 6, 6)).astype(np.float32)
LABELS = np.random.default_rng(4).integers(0, 10, 8).astype(np.int32)


def train(devices: tuple[str, ...] | None, is_jitted: bool, kind: str = "Adam") -> list[float]:
    Tensor.manual_seed(5)
    network = Network()
    images, labels = Tensor(IMAGES), Tensor(LABELS)
    if devices:
        for parameter in nn.state.get_parameters(network):
            parameter.shard_(devices)
        images, labels = images.shard(devices, 0).realize(), labels.shard(devices, 0).realize()
    optimizer = getattr(nn.optim, kind)(nn.state.get_parameters(network), lr=0.02)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = network(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    run = jit(step) if is_jitted else step
    losses = [run(images, labels).item() for _ in range(5)]
    assert not isinstance(run, type(jit(step))) or run.last_reason == ""
    if devices:
        assert axis_of(network.first(images)) == axis_of(network(images)) == 0
        check_devices(network(images).schedule())
    return losses


@pytest.mark.parametrize(
    ("devices", "is_jitted", "kind"),
    [(TWO, False, "SGD"), pytest.param(TWO, True, "Adam", marks=pytest.mark.slow), (FOUR, True, "Adam")],
)
def test_data_parallel_training_is_that_of_one_device(devices: tuple[str, ...], is_jitted: bool, kind: str) -> None:
    losses = train(devices, is_jitted, kind)
    np.testing.assert_allclose(losses, train(None, is_jitted, kind), rtol=1e-4)
    assert losses[-1] < losses[0]


def test_weights_may_be_divided_instead() -> None:
    """Columns of the first layer and rows of the second: one sum crosses, and each device updates its own weights."""

    def losses(place: Callable[[Tensor, int], Tensor]) -> list[float]:
        up = place(Tensor(X.T[:, :4].copy(), requires_grad=True), 1)
        down = place(Tensor(X[:4, :2].copy(), requires_grad=True), 0)
        x = Tensor(Y)
        x = x if isinstance(up.device, str) else x.shard(up.device)
        optimizer = nn.optim.AdamW([up, down], lr=0.01)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((x @ up).tanh() @ down).square().mean().backward()
            optimizer.step()
            found.append(loss.item())
        assert isinstance(up.device, str) or (axis_of(up), axis_of(down), axis_of(optimizer.exp_avg[0])) == (1, 0, 1)
        return found

    wanted = losses(lambda tensor, axis: tensor)
    np.testing.assert_allclose(losses(lambda tensor, axis: tensor.shard_(TWO, axis)), wanted, rtol=1e-5)


# ---------------------------------------------------------------- custom kernels


def scaled_rows(out: UOp, x: UOp, scale: UOp) -> UOp:
    i, j = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1)
    return out[i, j].set(x[i, j] * scale[j], end=(i, j)).sink(arg=KernelInfo("scaled_rows"))


def scaled_rows_gradient(gradient: Tensor, out: Tensor, x: Tensor, scale: Tensor) -> tuple[None, Tensor, Tensor]:
    assert isinstance(gradient.device, str)
    assert gradient.device == x.device == scale.device
    return None, gradient * scale, (gradient * x).sum(0)


@pytest.mark.parametrize("devices", [TWO, FOUR[:3], EMULATED])
def test_a_custom_kernel_runs_on_every_part(devices: tuple[str, ...]) -> None:
    x = Tensor(X, device=devices[0]).shard(devices, 0)
    out = Tensor.empty(6, device=devices[0]).shard(devices, 0)
    total = Tensor.custom_kernel(out, x * 2, fxn=row_sum)[0]
    assert (total.device, axis_of(total)) == (devices, 0)
    np.testing.assert_allclose((total + 1).numpy(), X.sum(1) * 2 + 1, rtol=1e-5)


def test_a_custom_kernel_is_one_item_per_device() -> None:
    x = Tensor(X).shard(TWO, 0).realize()
    outputs = [Tensor.empty(6).shard(TWO, 0) for _ in range(2)]
    total, largest, same = Tensor.custom_kernel(*outputs, x, fxn=sum_and_maximum)
    assert same is x
    plan = check_devices(total.schedule(largest))
    assert [item.device for item in plan if item.ast is not None] == list(TWO)
    assert len(plan) == 2
    np.testing.assert_array_equal(largest.numpy(), X.max(1))


@pytest.mark.parametrize("axis", LAYOUTS)
@pytest.mark.parametrize("realized", [False, True])
def test_a_custom_kernel_that_updates_its_argument(axis: int | None, realized: bool) -> None:
    start = Tensor(X).shard(TWO, axis)
    start = start.realize() if realized else start
    rows = start.reshape(24) if axis != 1 else start.T.reshape(24)
    other = Tensor(Y).shard(TWO, axis)
    added = other.reshape(24) if axis != 1 else other.T.reshape(24)
    result = Tensor.custom_kernel(rows.contiguous(), added, fxn=add_into)[0]
    wanted = (X + Y).reshape(24) if axis != 1 else (X + Y).T.reshape(24)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6)
    np.testing.assert_array_equal(start.numpy(), X)


@pytest.mark.parametrize("devices", [TWO, EMULATED])
@pytest.mark.parametrize("axis", [None, 0])
def test_gradients_of_a_custom_kernel(devices: tuple[str, ...], axis: int | None) -> None:
    scale = np.arange(1, 5, dtype=np.float32)

    def gradients(is_sharded: bool) -> tuple[np.ndarray, np.ndarray]:
        x, w = (Tensor(values, device=devices[0], requires_grad=True) for values in (X, scale))
        out = Tensor.empty(6, 4, device=devices[0])
        if is_sharded:
            x.shard_(devices, axis)
            w.shard_(devices)
            out = out.shard(devices, axis)
        made = Tensor.custom_kernel(out, x, w, fxn=scaled_rows, grad_fxn=scaled_rows_gradient)[0]
        made.square().sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        return x.grad.numpy(), w.grad.numpy()

    for found, wanted in zip(gradients(True), gradients(False)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_training_through_a_custom_kernel_under_jit() -> None:
    def losses(devices: tuple[str, ...] | None) -> list[float]:
        x, w = Tensor(X), Tensor(np.ones(4, np.float32), requires_grad=True)
        if devices:
            x, w = x.shard(devices, 0).realize(), w.shard_(devices)
        optimizer = nn.optim.SGD([w], lr=0.1)

        @jit
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            out = Tensor.empty(6, 4).shard(devices, 0) if devices else Tensor.empty(6, 4)
            made = Tensor.custom_kernel(out, x, w, fxn=scaled_rows, grad_fxn=scaled_rows_gradient)[0]
            loss = (made - 1).square().mean().backward()
            optimizer.step()
            return loss.realize()

        found = [step(x).item() for _ in range(5)]
        assert step.last_reason == ""
        return found

    wanted = losses(None)
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(losses(TWO), wanted, rtol=1e-5)


def test_errors_in_a_custom_kernel_name_the_line() -> None:
    def outside(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.shape[0] * 2, 0)
        return out[i // 2].set(x[i, 0], end=i).sink(arg=KernelInfo("outside", opts_to_apply=()))

    x = Tensor(X, device="PYTHON").shard(EMULATED, 0)
    with pytest.raises(EmulatorError, match=r"test_sharding\.py"):
        Tensor.custom_kernel(Tensor.empty(6, device="PYTHON").shard(EMULATED, 0), x, fxn=outside)[0].realize()


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("mistake", "kind", "words"),
    [
        (lambda: Tensor(X).shard(("CPU", "cpu:0"), 0), DeviceError, "name a device twice"),
        (lambda: Tensor(X).shard((), 0), DeviceError, "names no device"),
        (lambda: Tensor(X).shard("CPU:1", 0), DeviceError, r"tuple of devices.*to\(\) for one"),
        (lambda: Tensor(X).shard(("CPU", "TOASTER"), 0), DeviceError, "no device 'TOASTER'"),
        (lambda: Tensor(X).shard(TWO, 2), AxisError, "axis 2 is out of range"),
        (lambda: Tensor(X).shard(TWO, 0.5), AxisError, "not an integer"),
        (lambda: Tensor(1.0).shard(TWO, 0), AxisError, "0-d tensor has no axis 0"),
        (lambda: Tensor(X).shard(TWO, 0) + Tensor(X), DeviceError, r"\.shard\(\('CPU', 'CPU:1'\)\)"),
        (lambda: Tensor(X) + Tensor(X).shard(TWO, 0), DeviceError, r"different devices.*made at.*test_sharding"),
        (lambda: Tensor(X).shard(TWO, 0) @ Tensor(X).T.shard(FOUR, 0), DeviceError, "different devices"),
        (lambda: Tensor(X).contiguous().assign(Tensor(X).shard(TWO)), DeviceError, "different devices"),
        (
            lambda: Tensor.custom_kernel(Tensor.empty(6).shard(TWO), Tensor(X).shard(TWO, 0), fxn=row_sum),
            ShapeError,
            "tensor 0, which is replicated on each device",
        ),
        (
            lambda: Tensor.custom_kernel(Tensor.empty(1, 4).shard(TWO, 0), Tensor(X[:1]).shard(TWO, 0), fxn=double),
            ShapeError,
            "no elements of tensor 0.*on CPU:1",
        ),
        (
            lambda: Tensor.custom_kernel(Tensor.empty(4, 4).shard(TWO, 0), Tensor(X).shard(TWO, 0)[:4], fxn=double),
            ShapeError,
            r"\(2, 2\) and tensor 1 as \(3, 1\)",
        ),
    ],
)
def test_mistakes(mistake: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"(?s){words}"):
        mistake()


def test_one_device_is_to() -> None:
    assert Tensor(X).shard(("CPU:1",), 0).device == "CPU:1"


def test_a_row_that_one_device_has_is_written_there() -> None:
    """The other device's part of the view has no elements, and its index was sought without end."""
    expected = X.copy()
    tensor = Tensor(X).shard(TWO, 0).clone().realize()
    tensor[1] = 5
    expected[1] = 5
    np.testing.assert_array_equal(tensor.numpy(), expected)
    tensor[5].assign(tensor[5] * 2)
    expected[5] *= 2
    np.testing.assert_array_equal(tensor.numpy(), expected)
