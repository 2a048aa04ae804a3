"""What users of torch, NumPy and tinygrad type without looking it up: other spellings of arguments and dtypes,
printing, formatting, in-place names, second names; and the names of the package itself."""

from __future__ import annotations

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright
from tilewright import Tensor, dtypes
from tilewright.base.errors import AxisError, DTypeError, ShapeError, UnsupportedError
from tilewright.cli.main import app
from tilewright.tensor.core.arguments import SPELLINGS
from tilewright.tensor.families.aliases import ALIASES

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("call", "same"),
    [
        (lambda t: t.sum(dim=1, keepdims=True), lambda t: t.sum(axis=1, keepdim=True)),
        (lambda t: t.max(dim=-1), lambda t: t.max(axis=-1)),
        (lambda t: t.mean(dim=(0, 2), keepdims=True), lambda t: t.mean((0, 2), True)),
        (lambda t: t.softmax(dim=0), lambda t: t.softmax(axis=0)),
        (lambda t: t.argmax(dim=1), lambda t: t.argmax(axis=1)),
        (lambda t: t.cumsum(dim=1), lambda t: t.cumsum(axis=1)),
        (lambda t: t.sort(axis=1)[0], lambda t: t.sort(dim=1)[0]),
        (lambda t: t.cat(t, axis=2), lambda t: t.cat(t, dim=2)),
        (lambda t: t.stack(t, axis=1), lambda t: t.stack(t, dim=1)),
        (lambda t: t.squeeze(axis=0), lambda t: t.squeeze(dim=0)),
        (lambda t: t.unsqueeze(axis=1), lambda t: t.unsqueeze(dim=1)),
        (lambda t: t.flip(dim=1), lambda t: t.flip(axis=1)),
        (lambda t: t.roll(1, dim=1), lambda t: t.roll(1, dims=1)),
        (lambda t: t.amax(axis=1), lambda t: t.amax(dim=1)),
        (lambda t: t.concat(t, axis=1), lambda t: t.cat(t, dim=1)),
    ],
)
def test_other_spellings_mean_the_same(call, same) -> None:
    np.testing.assert_array_equal(call(Tensor(VALUES)).numpy(), same(Tensor(VALUES)).numpy())


def test_every_method_with_an_axis_takes_both_spellings() -> None:
    """Of each method the wrapper knows the other names; one that has neither would raise a TypeError."""
    refused = []
    for name in dir(Tensor):
        method = None if name.startswith("_") or name == "uop" else getattr(Tensor, name)
        inner = getattr(method, "__wrapped__", method)
        code = getattr(inner, "__code__", None)
        if code is None:
            continue
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(own in taken and set(others) - set(taken) for own, others in SPELLINGS.items()) and inner is method:
            refused.append(name)
    assert refused == []


def test_both_spellings_at_once_are_refused() -> None:
    with pytest.raises(AxisError, match="axis= and dim= are one argument") as caught:
        Tensor(VALUES).sum(axis=1, dim=1)
    assert "test_conventions.py" in str(caught.value)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "std", "var", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 1])
def test_reductions_of_numpy_take_tensors(name: str, axis: int | None) -> None:
    """NumPy gives the method `out=None` and `dtype=None` too, and for a variance the number that it divides by."""
    reduce = getattr(np, name)
    found = reduce(Tensor(VALUES), axis=axis)
    np.testing.assert_allclose(np.asarray(found), reduce(VALUES, axis=axis), rtol=1e-6)


def test_what_numpy_may_also_give_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="out= is not"):
        np.sum(Tensor(VALUES), out=np.zeros(()))
    with pytest.raises(UnsupportedError, match="dtype= is not"):
        np.mean(Tensor(VALUES), dtype=np.float64)
    assert np.sum(Tensor(VALUES), dtype=np.float64).dtype is dtypes.float64
    np.testing.assert_allclose(np.std(Tensor(VALUES), ddof=1).numpy(), VALUES.std(ddof=1), rtol=1e-6)


DTYPE_SPELLINGS = [
    (np.float32, dtypes.float32),
    (np.dtype("int64"), dtypes.int64),
    (np.bool_, dtypes.bool),
    (np.uint8, dtypes.uint8),
    (ml_dtypes.bfloat16, dtypes.bfloat16),
    (ml_dtypes.float8_e4m3fn, dtypes.float8_e4m3),
    (bool, dtypes.bool),
    (int, dtypes.int64),
    (float, dtypes.float64),
    ("half", dtypes.float16),
    (dtypes.int8, dtypes.int8),
]


@pytest.mark.parametrize(("given", "wanted"), DTYPE_SPELLINGS, ids=lambda value: str(value))
def test_dtypes_of_other_libraries(given, wanted) -> None:
    assert Tensor([1], dtype=given).dtype is wanted
    assert Tensor([1.0]).cast(given).dtype is wanted
    assert Tensor.zeros(2, dtype=given).dtype is wanted
    assert Tensor([1.0]).sum(dtype=given).dtype is wanted


@pytest.mark.torch
def test_dtypes_of_torch() -> None:
    import torch

    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"):
        assert Tensor([1], dtype=getattr(torch, name)).dtype is getattr(dtypes, name)


@pytest.mark.parametrize("given", [np.complex64, "float31", object, 3, None.__class__, np.dtype("U3")])
def test_what_is_no_dtype_is_refused(given) -> None:
    with pytest.raises(DTypeError):
        Tensor([1.0]).cast(given)


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8", "int64"])
def test_mean_of_integers_is_float32(dtype: str) -> None:
    found = Tensor([1, 0, 1, 1]).cast(dtype).mean()
    assert found.dtype is dtypes.float32
    assert found.item() == 0.75


# ---------------------------------------------------------------- text

TEXTS = [
    ([1.0, 2.0], "Tensor([1., 2.])"),
    ([[1.5, 2.0], [3.0, 4.0]], "Tensor([[1.5000, 2.0000],\n        [3.0000, 4.0000]])"),
    ([1e-6, 1.0], "Tensor([1.0000e-06, 1.0000e+00])"),
    ([float("nan"), 1.0, float("-inf")], "Tensor([ nan,   1., -inf])"),
    ([True, False], "Tensor([ True, False])"),
    ([1, 2], "Tensor([1, 2])"),
    (3.0, "Tensor(3.)"),
    ([], "Tensor([])"),
    (np.zeros((3, 0)), "Tensor([], size=(3, 0), dtype=float64)"),
    (np.array([1, -2], np.int64), "Tensor([ 1, -2], dtype=int64)"),
    (np.arange(2000) % 7, "Tensor([0, 1, 2, ..., 2, 3, 4], dtype=int64)"),
    (np.array([1, 2], ml_dtypes.bfloat16), "Tensor([1., 2.], dtype=bfloat16)"),
]


@pytest.mark.parametrize(("values", "text"), TEXTS, ids=range(len(TEXTS)))
def test_a_computed_tensor_shows_its_values(values, text: str) -> None:
    assert repr(Tensor(values)) == text
    assert str(Tensor(values)) == text
    assert f"{Tensor(values)}" == text


def test_a_lazy_tensor_says_what_it_is_and_is_not_computed() -> None:
    lazy = Tensor([1.0, 2.0]) * 2
    assert repr(lazy) == "<Tensor float32[2] on CPU, not computed yet>"
    assert repr(lazy) == "<Tensor float32[2] on CPU, not computed yet>"
    assert repr(lazy.realize()) == "Tensor([2., 4.])"


def test_text_names_another_device_and_gradients() -> None:
    assert repr(Tensor([1.0], device="PYTHON").realize()) == "Tensor([1.], device=PYTHON)"
    assert repr(Tensor([1.0], requires_grad=True).realize()) == "Tensor([1.], requires_grad=True)"


@pytest.mark.torch
def test_text_is_that_of_torch() -> None:
    import torch

    rng = np.random.default_rng(0)
    for shape in ((7,), (3, 4), (2, 3, 4), (30,), ()):
        for scale in (1.0, 1e-5, 1e6, 100.0):
            values = (rng.standard_normal(shape) * scale).astype(np.float32)
            assert repr(Tensor(values)).replace("Tensor", "tensor") == repr(torch.tensor(values))


def test_format_of_one_element() -> None:
    assert f"{Tensor([1.0, 2.0]).mean():.3f}" == "1.500"
    assert f"{Tensor([[7]]):>5d}" == "    7"
    with pytest.raises(ShapeError, match="format"):
        f"{Tensor([1.0, 2.0]):.3f}"


# ---------------------------------------------------------------- in place


def test_in_place_names_write_through_views_and_keep_old_expressions() -> None:
    base = Tensor([[1.0, 2.0], [3.0, 4.0]]).contiguous()
    before = base + 0
    row = base[1]
    assert row.add_(10) is row
    row.mul_(2).clamp_(max_=27.0)
    np.testing.assert_array_equal(base.numpy(), [[1, 2], [26, 27]])
    np.testing.assert_array_equal(before.numpy(), [[1, 2], [3, 4]])
    base.zero_()
    np.testing.assert_array_equal(row.numpy(), [26, 27])  # an expression from before the update
    base.fill_(3).copy_([1, 2])
    np.testing.assert_array_equal(base.numpy(), [[1, 2], [1, 2]])


@pytest.mark.parametrize(
    ("name", "args"),
    [("add", (1.5,)), ("sub", (1.5,)), ("div", (2.0,)), ("pow", (2,)), ("neg", ()), ("sqrt", ()), ("exp", ())],
)
def test_in_place_is_the_operation(name: str, args: tuple) -> None:
    values = np.array([1.0, 4.0, 9.0], np.float32)
    expected = getattr(Tensor(values), name)(*args).numpy()
    changed = Tensor(values).contiguous()
    getattr(changed, f"{name}_")(*args)
    np.testing.assert_array_equal(changed.numpy(), expected)


def test_in_place_keeps_shape_and_dtype() -> None:
    with pytest.raises(ShapeError, match="does not fit into shape"):
        Tensor([1.0, 2.0]).add_(Tensor([[1.0], [2.0]]))
    with pytest.raises(DTypeError, match="does not fit into int32"):
        Tensor([1, 2]).add_(0.5)
    short = Tensor([1.0, 2.0]).half()
    assert short.add_(Tensor([1.0, 1.0])).dtype is dtypes.float16


def test_random_numbers_in_place() -> None:
    Tensor.manual_seed(0)
    filled = Tensor.empty(2000).uniform_(2.0, 3.0).numpy()
    assert filled.min() >= 2
    assert filled.max() < 3
    drawn = Tensor.empty(4000).normal_(5.0, 0.5).numpy()
    assert abs(drawn.mean() - 5) < 0.05
    assert abs(drawn.std() - 0.5) < 0.05


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("alias", "original"), sorted(ALIASES.items()))
def test_aliases_are_the_operation(alias: str, original: str) -> None:
    found, wanted = getattr(Tensor, alias), getattr(Tensor, original)
    assert inspect.unwrap(found) is inspect.unwrap(wanted)


def test_names_of_the_package() -> None:
    assert {"jit", "nn", "Tensor", "__version__"} <= set(dir(tilewright))
    assert re.fullmatch(r"\d+\.\d+\.\d+", tilewright.__version__)


def test_the_command_line_tells_version_and_devices() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"tilewright {tilewright.__version__}\n"
    listed = CliRunner().invoke(app, ["devices"])
    assert listed.exit_code == 0
    rows = {line.split()[0]: line for line in listed.stdout.splitlines() if line.strip()}
    assert "yes" in rows["CPU"]
    assert "default" in rows["CPU"]
    assert "yes" in rows["PYTHON"]


def test_the_command_line_names_extras_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are markup to the library that prints the table."""
    reasons = {"CPU": None, "WEBGPU": "wgpu is not installed; pip install 'tilewright[webgpu]'"}
    monkeypatch.setattr(type(tilewright.Device), "availability", lambda self: reasons)
    assert "'tilewright[webgpu]'" in CliRunner().invoke(app, ["devices"]).stdout
