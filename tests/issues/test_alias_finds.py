"""What the test suite of another library reached for in vain, run against an alias of it: None as a size of `reshape`,
a value for `pad_to` (their values are rows of the op table), images of uint8 in `interpolate`, the ellipsis character
in `rearrange`; `linspace` of bool, which gave values that mean nothing; `print` of memory without values, and copies
between NULL devices, which were errors; values that nobody asks for and that need more memory than there is, which were
computed along with an update of what they read."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

from tilewright import Tensor, dtypes, nn
from tilewright.base.errors import DTypeError, OutOfMemoryError, RealizeError, ShapeError, UnsupportedError
from tilewright.engine.memory.parts import layout_of


def test_none_keeps_a_size_of_reshape() -> None:
    x = Tensor.ones(4, 3, 6, 6)
    assert x.reshape((None, None, 36)).shape == (4, 3, 36)
    assert x.reshape([None, -1]).shape == (4, 108)
    assert x.reshape(2, None, -1).shape == (2, 3, 72)
    with pytest.raises(ShapeError, match="reshape"):
        x.reshape(None, 5)
    with pytest.raises(ShapeError, match="no axis at the last None"):
        x.reshape(4, 3, 6, 6, None)
    with pytest.raises(ShapeError, match="no axis at the last None"):
        Tensor(1.0).reshape(None)


def test_the_ellipsis_character() -> None:
    x = Tensor.arange(24).reshape(2, 3, 4)
    assert x.rearrange("a b … -> (a b) …").tolist() == x.rearrange("a b ... -> (a b) ...").tolist()
    assert x.rearrange("a … -> (…) a").tolist() == x.rearrange("a ... -> (...) a").tolist()


@pytest.mark.parametrize("size", [(10, 7), (64, 3), (1, 1), (5, 9)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_a_resized_image_of_bytes_is_rounded(size: tuple[int, int], align_corners: bool) -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 9)).astype(np.uint8)
    exact = Tensor(image.astype(np.float64)).interpolate(size, "bilinear", align_corners).numpy()
    found = Tensor(image).interpolate(size, "bilinear", align_corners)
    assert found.dtype.name == "uint8"
    assert np.abs(found.numpy() - exact).max() < 0.501
    with pytest.raises(DTypeError, match="interpolate"):
        Tensor(image.astype(np.int32)).interpolate(size, "bilinear")


@pytest.mark.torch
def test_a_resized_image_of_bytes_is_near_that_of_torch() -> None:
    import torch

    image = np.random.default_rng(1).integers(0, 256, (1, 3, 33, 17)).astype(np.uint8)
    expected = torch.nn.functional.interpolate(torch.tensor(image), size=(64, 40), mode="bilinear").numpy()
    found = Tensor(image).interpolate((64, 40), "bilinear").numpy()
    assert np.abs(found.astype(int) - expected).max() <= 1  # torch rounds each axis, and so twice


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_linspace_of_bool_is_refused(steps: int) -> None:
    with pytest.raises(DTypeError, match="linspace"):
        Tensor.linspace(0, 1, steps, dtype="bool")


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "NULL"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_memory_that_was_never_written_is_printed_as_such(device: str, shape: tuple[int, ...]) -> None:
    tensor = Tensor.empty(*shape, device=device)
    for text in (repr(tensor), str(tensor.realize()), f"{tensor}"):
        assert f"on {device}, the buffer was never written" in text
    with pytest.raises(RealizeError, match="never written"):
        tensor.numpy()
    tensor.assign(Tensor.zeros(*shape, device=device)).realize()
    assert "never written" not in repr(tensor)


def test_a_tensor_of_null_is_printed_without_values() -> None:
    assert "on NULL, the NULL device compiles kernels" in repr((Tensor.ones(4, device="NULL") + 1).realize())


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_programs_over_several_null_devices(axis: int | None) -> None:
    devices = ("NULL:1", "NULL:2")
    x = Tensor.empty(8, 6, device="NULL:1").shard(devices, axis=axis)
    y = (x.sum(0) * 2).realize()
    assert y.device == devices
    assert "NULL:1, NULL:2" in repr(y)
    moved = Tensor.ones(3, device="CPU").to("NULL").realize()
    with pytest.raises(UnsupportedError, match="no value is there"):
        moved.to("CPU").numpy()


@pytest.mark.parametrize("size", [(1 << 22, 1 << 22), (1 << 44,)])
def test_numbers_that_nobody_asks_for_need_no_memory(size: tuple[int, ...]) -> None:
    """Random numbers read the state of the generator, which the next draw updates: they were computed along with it."""
    Tensor.manual_seed(3)
    before, huge, between, also_huge, after = (Tensor.rand(*shape) for shape in ((4,), size, (4,), size, (4,)))
    found = [after.tolist(), between.tolist(), before.tolist()]
    Tensor.manual_seed(3)
    lazy = [Tensor.rand(*shape, contiguous=False) for shape in ((4,), size, (4,), size, (4,))]
    assert found == [lazy[4].tolist(), lazy[2].tolist(), lazy[0].tolist()]
    for tensor in (huge, also_huge):
        with pytest.raises(OutOfMemoryError):
            tensor.realize()


def test_a_sum_that_nobody_asks_for_needs_no_memory() -> None:
    """An update of what it is computed from keeps the old contents for it."""
    x = Tensor([1.0, 2.0]).realize()
    huge = x.reshape(2, 1).expand(2, 1 << 44) + 1
    x += 1
    middle = x.reshape(2, 1).expand(2, 1 << 44) + 1
    x += 1
    assert x.tolist() == [3.0, 4.0]
    assert huge[:, :2].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert middle[:, 5].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("axis", [None, 0])
def test_a_tensor_of_a_node_is_where_the_node_is(axis: int | None) -> None:
    """It said the default device, and reading it was an error."""
    devices = ("CPU", "CPU:1")
    sharded = Tensor.arange(8).reshape(4, 2).float().shard(devices, axis)
    for tensor in (sharded, sharded + 1, (sharded + 1).realize()):
        again = Tensor(tensor.uop)
        assert again.device == devices
        assert again.tolist() == tensor.tolist()
        moved = Tensor(tensor.uop, device="CPU:1")
        assert moved.device == "CPU:1"
        assert moved.tolist() == tensor.tolist()
    assert Tensor((Tensor([1.0], device="CPU:1") + 1).uop).device == "CPU:1"
    assert Tensor(Tensor(2.5).uop).item() == 2.5


@pytest.mark.parametrize(
    "formula", ["_a b -> b _a", "a_ b -> b a_", "...a b -> b ...a", "a...b -> b...a", "a.b -> b.a"]
)
def test_names_of_axes_that_einops_refuses(formula: str) -> None:
    with pytest.raises(ShapeError, match=r"rearrange: '.+' in "):
        Tensor.ones(2, 3).rearrange(formula)
    assert Tensor.ones(2, 3).rearrange("(a)row_2->row_2(a)").shape == (3, 2)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (0, 4)])
def test_windows_without_elements_have_a_gradient(shape: tuple[int, ...]) -> None:
    """The result did not depend on the tensor."""
    x = Tensor.rand(*shape)
    windows = x.unfold(-1, 0, 8)
    assert windows.shape == (*shape[:-1], 1, 0)
    assert windows.sum().gradient(x)[0].tolist() == x.zeros_like().tolist()


def test_elements_are_not_deleted() -> None:
    """Python's own error names a method that no user has heard of."""
    x = Tensor([1, 2, 3])
    with pytest.raises(UnsupportedError, match="size of a tensor does not change"):
        del x[0]
    assert x.tolist() == [1, 2, 3]


def test_a_pickle_hands_out_its_bytes() -> None:
    """Protocol 5 with `buffer_callback` collected a copy of every tensor."""
    count, size = 8, 100_000
    tensors = [Tensor.rand(size).realize() for _ in range(count)]
    expected = [tensor.numpy() for tensor in tensors]
    tracemalloc.start()
    text = pickle.dumps(tensors, protocol=5, buffer_callback=lambda buffer: buffer.release())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size * 4
    own = [bytearray(array.tobytes()) for array in expected]
    found = pickle.loads(text, buffers=own)
    for buffer in own:
        buffer[:] = bytes(len(buffer))  # whoever owns them may use them again
    for tensor, array in zip(found, expected):
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_of_every_protocol(protocol: int) -> None:
    tensors = {"a": Tensor([[1.5, 2.5]], requires_grad=True), "b": Tensor.zeros(0, 3), "c": Tensor(3, dtype="bfloat16")}
    buffers: list[pickle.PickleBuffer] = []
    found = pickle.loads(pickle.dumps(tensors, protocol))
    if protocol == 5:
        found |= pickle.loads(pickle.dumps({"d": Tensor([7])}, 5, buffer_callback=buffers.append), buffers=buffers)
        assert found.pop("d").tolist() == [7]
        assert len(buffers) == 1
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [[1.5, 2.5]], "b": [], "c": 3.0}
    assert [tensor.requires_grad for tensor in found.values()] == [True, False, False]
    found["a"].assign(found["a"].detach() * 2)
    assert found["a"].tolist() == [[3.0, 5.0]]
    assert tensors["a"].tolist() == [[1.5, 2.5]]


def test_axes_of_one_in_front_of_an_assigned_value_are_dropped() -> None:
    """Schedules of learning rates assign a row of one number; an item assignment took it."""
    rate = nn.optim.SGD([Tensor([1.0])], lr=0.1).lr
    assert rate.assign(Tensor([0.25])).item() == 0.25
    assert Tensor.zeros(2).contiguous().assign(Tensor([[[1.0, 2.0]]])).tolist() == [1.0, 2.0]
    with pytest.raises(ShapeError, match="does not fit into"):
        Tensor.zeros(2).contiguous().assign(Tensor.ones(3, 2))
    with pytest.raises(ShapeError, match="does not fit into"):
        rate.assign(Tensor([1.0, 2.0]))


def test_questions_about_dtypes() -> None:
    assert dtypes.ints == dtypes.sints + dtypes.uints
    assert [dtype.name for dtype in dtypes.all if dtypes.is_float(dtype)] == [dtype.name for dtype in dtypes.floats]
    assert [dtype for dtype in dtypes.all if dtypes.is_int(dtype)] == list(dtypes.ints)
    assert [dtype for dtype in dtypes.all if dtypes.is_unsigned(dtype)] == list(dtypes.uints)
    assert [dtype for dtype in dtypes.all if dtypes.is_bool(dtype)] == [dtypes.bool]
    assert (dtypes.min("int8"), dtypes.max(dtypes.uint8), dtypes.max("bool")) == (-128, 255, True)
    assert [dtypes.from_py(value).name for value in (True, 1, 2**40, 0.5)] == ["bool", "int32", "int64", "float32"]
    assert set(dtypes.fp8s) == {dtypes.float8_e4m3, dtypes.float8_e5m2}
    assert Tensor.invalids(2, 3, dtype="int8").shape == (2, 3)


def test_a_tensor_that_could_not_be_made_does_not_break_others() -> None:
    """A traceback keeps it alive, and a debugger shows it."""
    with pytest.raises(DTypeError) as caught:
        Tensor(None)
    trace = caught.value.__traceback__
    made = []
    while trace is not None:
        made += [value for value in trace.tb_frame.f_locals.values() if type(value) is Tensor]
        trace = trace.tb_next
    assert made
    for _ in range(2):
        with pytest.raises(AttributeError, match="construction failed"):
            repr(made[0])
    row = Tensor.zeros(3).contiguous().realize()
    assert row.assign(row + 1).tolist() == [1, 1, 1]


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(9,), (12, 7), (4, 6, 5)])
@pytest.mark.parametrize("factor", [0.4, 1.0, 1.7])
def test_area_resizing_is_that_of_torch(shape: tuple[int, ...], factor: float) -> None:
    import torch

    image = np.random.default_rng(0).standard_normal((2, 3, *shape)).astype(np.float32)
    wanted = tuple(max(1, int(size * factor)) for size in shape)
    expected = torch.nn.functional.interpolate(torch.tensor(image), wanted, mode="area").numpy()
    np.testing.assert_allclose(Tensor(image).interpolate(wanted, "area").numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="align_corners"):
        Tensor(image).interpolate(wanted, "area", align_corners=True)


def test_numpy_moves_the_axes_of_a_tensor() -> None:
    x = Tensor.arange(24).reshape(2, 3, 4)
    assert isinstance(np.transpose(x), Tensor)
    assert np.array_equal(np.transpose(x, (1, 2, 0)).numpy(), x.numpy().transpose(1, 2, 0))
    assert np.transpose(Tensor(1.0)).shape == ()
    with pytest.raises(ShapeError, match="permute"):
        np.transpose(x, (0, 1))


@pytest.mark.parametrize("name", ["rand_like", "randn_like"])
def test_random_numbers_are_divided_among_devices_as_the_tensor_is(name: str) -> None:
    devices = ("CPU:0", "CPU:1", "CPU:2")
    divided = Tensor.empty(7, 5).shard(devices, axis=0)
    Tensor.manual_seed(4)
    found = getattr(divided, name)(requires_grad=True)
    assert layout_of(found.uop) == (0, (3, 2, 2))
    (found * found).sum().backward()
    Tensor.manual_seed(4)
    expected = getattr(Tensor, name.removesuffix("_like"))(7, 5, device=devices)
    assert np.array_equal(found.numpy(), expected.numpy())
    assert np.allclose(found.grad.numpy(), 2 * expected.numpy())
    assert layout_of(getattr(divided, name)(device=devices).uop)[0] is None
