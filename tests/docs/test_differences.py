"""The tables of docs/from_torch.md and docs/from_tinygrad.md: each row has a check of what is said of us, and rows of
torch's table one of what is said of torch."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.docs.examples import DOCS, first_column
from tilewright import Context, Device, KernelInfo, Tensor, UOp, dtypes, jit, nn
from tilewright.base.errors import DTypeError, IndexingError, ShapeError, UnsupportedError, UserError
from tilewright.nn.state import as_buffer, get_parameters, get_state_dict

Check = Callable[[], Any]
ROWS = [[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]


def refused(kind: type[Exception], function: Check) -> bool:
    with pytest.raises(kind):
        function()
    return True


def after_update() -> list[Any]:
    x = Tensor([1.0, 2.0])
    view, expression = x[:1], x * 2
    x += 1
    seen = [view.tolist(), expression.tolist()]
    x[:1].assign([7.0])
    return [*seen, x.tolist()]


def update_parameter(inside: bool) -> list[float]:
    w = Tensor([1.0], requires_grad=True)
    w.square().sum().backward()
    gradient: Any = w.grad
    if inside:
        with Tensor.no_grad():
            w -= 0.5 * gradient
    else:
        w -= w * gradient
    return w.tolist()  # type: ignore[no-any-return]


def from_array(make: Callable[[Any], Any]) -> float:
    array = np.ones(2, np.float32)
    made = make(array)
    array[0] = 5
    return made.tolist()[0]  # type: ignore[no-any-return]


def printed_when_computed() -> bool:
    lazy = Tensor([1.0]) * 2
    was = str(lazy)
    return "not computed yet" in was and str(lazy.realize()) == "Tensor([2.])"


def dropped() -> tuple[int, int]:
    with Tensor.train():
        inside = Tensor.ones(100).dropout(1.0).sum().item()
    return int(inside), int(Tensor.ones(100).dropout(1.0).sum().item())


def drawn(seed: int) -> list[float]:
    Tensor.manual_seed(seed)
    return Tensor.rand(2).tolist()  # type: ignore[no-any-return]


def out_of_range() -> bool:
    rows = Tensor(ROWS)[Tensor([0, 3]) * 2]
    return refused(IndexingError, rows.tolist)


def pairs_of_selections() -> bool:
    x = Tensor(ROWS)
    return all(len(found) == 2 for found in (x.sort(1), x.topk(1, 1), x.cummax(1), x.median(1)))


# ---------------------------------------------------------------- torch

FROM_TORCH: dict[str, Check] = {
    "evaluation": lambda: printed_when_computed(),
    "`print(x * 2)`": lambda: printed_when_computed(),
    "views after `x += 1`": lambda: after_update() == [[1.0], [2.0, 4.0], [7.0, 3.0]],
    "`w -= lr * w.grad` of a parameter": lambda: (
        update_parameter(True) == [0.0] and refused(UnsupportedError, lambda: update_parameter(False))
    ),
    "`torch.from_numpy(a)`, `torch.tensor(a)`": lambda: (from_array(Tensor.from_numpy), from_array(Tensor)) == (5, 1),
    "integers from Python": lambda: (
        (Tensor([1]).dtype, Tensor(2**40).dtype, Tensor([1]).sum().dtype, Tensor([1]).argmax().dtype)
        == (dtypes.int32, dtypes.int64, dtypes.int64, dtypes.int64)
    ),
    "0-d tensors, `x.half() * Tensor(2.0)`": lambda: (
        ((Tensor([1.0]).half() * Tensor(2.0)).dtype, (Tensor([1.0]).half() * 2.0).dtype)
        == (dtypes.float32, dtypes.float16)
    ),
    "`mean` of integers": lambda: (Tensor([1, 2]).mean().dtype, Tensor([1, 2]).mean().item()) == (dtypes.float32, 1.5),
    "a Python number that an integer tensor cannot hold, `x + 2**40`": lambda: refused(
        DTypeError, lambda: Tensor([1]) + 2**40
    ),
    "index out of range, computed on a device": out_of_range,
    "`max(dim)`, `min(dim)`": lambda: (
        (Tensor(ROWS).max(1).tolist(), Tensor(ROWS).min(1).tolist(), Tensor(ROWS).argmax(1).tolist())
        == ([5.0, 6.0], [1.0, 3.0], [1, 2])
    ),
    "`sort`, `topk`, `cummax`, `median(dim)`": pairs_of_selections,
    "`gelu()`": lambda: (
        Tensor([1.0]).gelu().item() == Tensor([1.0]).gelu(approximate="tanh").item() < 0.8413
        and nn.GELU()(Tensor([1.0])).item() == Tensor([1.0]).gelu(approximate="none").item() > 0.8413
    ),
    "`softmax()`": lambda: np.allclose(Tensor(ROWS).softmax().numpy(), Tensor(ROWS).softmax(-1).numpy()),
    "`pad((1, 0, 2, 0))`": lambda: (
        np.array_equal(Tensor(ROWS).pad((1, 0, 2, 0)).numpy(), np.pad(ROWS, ((2, 0), (1, 0))))
        and np.array_equal(Tensor(ROWS).pad(((2, 0), (1, 0))).numpy(), np.pad(ROWS, ((2, 0), (1, 0))))
    ),
    "`dropout(x)` as a function": lambda: dropped() == (0, 100),
    "`Tensor.size`": lambda: (Tensor(ROWS).size(), Tensor(ROWS).size(1), Tensor(ROWS).numel()) == ((2, 3), 3, 6),
    "random numbers": lambda: drawn(3) == drawn(3) != drawn(4),
}


def test_every_row_for_users_of_torch_is_checked() -> None:
    assert first_column(DOCS / "from_torch.md", "## What differs") == list(FROM_TORCH)


@pytest.mark.parametrize("row", FROM_TORCH)
def test_what_differs_from_torch(row: str) -> None:
    assert FROM_TORCH[row]()


def test_names_for_users_of_torch_exist() -> None:
    """Every name in the right column of the table of names."""
    table = (DOCS / "from_torch.md").read_text().split("## Names", 1)[1].split("```python", 1)[0]
    names = set(re.findall(r"\b(?:Tensor|nn|dtypes)(?:\.\w+)+", "".join(re.findall(r"\| ([^|]*) \|\n", table))))
    assert len(names) > 12
    for name in names:
        found: Any = {"Tensor": Tensor, "nn": nn, "dtypes": dtypes}[name.split(".")[0]]
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    for method in ("cross_entropy", "gradient", "cast", "half", "to"):
        assert callable(getattr(Tensor, method))
    assert Tensor([1.0]).to("cpu").device == "CPU"
    assert Tensor([1.0], device="PYTHON").cpu().type("float16").dtype.name == "float16"
    assert Tensor(ROWS).cross_entropy(Tensor([0, -100])).item() == Tensor(ROWS[:1]).cross_entropy(Tensor([0])).item()


@pytest.mark.torch
def test_what_the_page_says_of_torch() -> None:
    import torch

    functional = torch.nn.functional
    x = torch.tensor(ROWS)
    small = torch.tensor([1.0, 2.0])
    view = small[:1]
    small += 1
    assert view.tolist() == [2.0]
    assert (from_array(torch.from_numpy), from_array(torch.tensor)) == (5, 1)
    assert torch.tensor([1]).dtype is torch.int64
    assert (small.half() * torch.tensor(2.0)).dtype is torch.float16
    with pytest.raises(RuntimeError):
        torch.tensor([1, 2]).mean()
    assert (torch.tensor([1], dtype=torch.int32) + 2**40).tolist() == [1]
    with pytest.raises(IndexError):
        x[torch.tensor([0, 3]) * 2]
    assert len(x.max(1)) == len(x.sort(1)) == len(x.topk(1, 1)) == len(x.cummax(1)) == len(x.median(1)) == 2
    assert functional.gelu(torch.tensor([1.0])).item() > 0.8413
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        functional.softmax(x)
    assert "dim" in str(caught[0].message)
    assert functional.pad(x, (1, 0, 2, 0)).tolist() == Tensor(ROWS).pad((1, 0, 2, 0)).tolist()
    assert functional.dropout(torch.ones(10), 1.0).sum().item() == 0
    parameter = torch.tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError):
        parameter -= 1
    torch.manual_seed(3)
    Tensor.manual_seed(3)
    assert torch.rand(2).tolist() != Tensor.rand(2).tolist()
    assert Tensor(x).tolist() == torch.from_dlpack(Tensor(ROWS)).tolist() == ROWS


# ---------------------------------------------------------------- tinygrad


def replayed(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> tuple[list[Any], str]:
    jitted = jit(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [jitted(*call) for call in calls]
    return results, jitted.last_reason


def guarded_numbers() -> bool:
    results, _ = replayed(lambda x, factor: x * factor, [(Tensor([1.0]), factor) for factor in (1, 1, 1, 3)])
    return [result.item() for result in results] == [1.0, 1.0, 1.0, 3.0]


def other_shapes() -> bool:
    results, _ = replayed(lambda x: x + 1, [(Tensor.ones(count),) for count in (1, 1, 1, 2)])
    return [result.shape for result in results] == [(1,), (1,), (1,), (2,)]


def own_memory() -> bool:
    results, reason = replayed(lambda x: x + 1, [(Tensor([float(number)]),) for number in range(4)])
    return [result.item() for result in results] == [1.0, 2.0, 3.0, 4.0] and reason == ""


def values_beside_tensors() -> bool:
    results, reason = replayed(lambda x: (x + 1, "name"), [(Tensor([1.0]),)] * 3)
    return results[-1][1] == "name" and reason == ""


def reads_on_the_host() -> bool:
    results, reason = replayed(lambda x: x * x.sum().item(), [(Tensor([float(number)]),) for number in range(5)])
    return results[-1].item() == 16.0 and "on the host" in reason


def steps_outside_of_training() -> bool:
    w = Tensor([1.0])
    optimizer = nn.optim.SGD([w], lr=1.0)
    w.sum().backward()
    optimizer.step()
    return w.tolist() == [0.0] and not Tensor.training


def only_what_asks_has_a_gradient() -> bool:
    w, x = Tensor([1.0], requires_grad=True), Tensor([2.0])
    (w * x).sum().backward()
    return w.grad is not None and x.grad is None


def default_device() -> bool:
    with Context(DEVICE="CPU:1"):
        return Tensor([1.0]).device == Device.DEFAULT == "CPU:1"


def optimizer_state() -> bool:
    names = set(get_state_dict(nn.optim.AdamW(get_parameters(nn.Linear(2, 3)))))
    return "exp_avg.0" in names and not any("params" in name for name in names)


def training_mode() -> bool:
    with Tensor.train():
        inside = Tensor.training
    return inside and not Tensor.training


def undefined_gradients() -> bool:
    x, y = Tensor([-2.0]), Tensor([300.0])
    steep = y.exp() / (1 + y.exp())
    return all(math.isnan(result.sum().gradient(source)[0].item()) for result, source in ((x.acosh(), x), (steep, y)))


def gradient_of_a_kernel() -> bool:
    def double(out: UOp, x: UOp) -> UOp:
        i = UOp.range(2, 0)
        return out[i].set(x[i] * 2, end=i).sink(arg=KernelInfo(name="double"))

    x = Tensor([1.0, 2.0], requires_grad=True)
    given: list[Any] = []
    made = Tensor.custom_kernel(Tensor.empty(2), x, fxn=double, grad_fxn=lambda *args: given.extend(args) or (None, x))
    made[0].sum().backward()
    return len(given) == 3 and all(isinstance(part, Tensor) for part in given)


FROM_TINYGRAD: dict[str, Check] = {
    "`TinyJit(f)`": own_memory,
    "a Python number or attribute that the function reads": guarded_numbers,
    "a call with other shapes": other_shapes,
    "results of a jitted function": own_memory,
    "results of a jitted function may be": values_beside_tensors,
    "`.item()` inside": reads_on_the_host,
    "symbolic sizes (`Variable`)": lambda: replayed(lambda x: x + 1, [(Tensor.ones(n),) for n in range(1, 5)])[1] != "",
    "optimisers outside of training mode": steps_outside_of_training,
    "training mode": training_mode,
    "`requires_grad`": only_what_asks_has_a_gradient,
    "a tensor of a model that is not trained": lambda: refused(
        UserError, lambda: nn.optim.SGD([as_buffer(Tensor([1.0]))])
    ),
    "state dict of an optimiser": optimizer_state,
    "`Tensor(array)`": lambda: (from_array(Tensor), from_array(Tensor.from_numpy)) == (1, 5),
    "index out of range on a device": out_of_range,
    "`x[mask]`": lambda: Tensor(ROWS)[Tensor(ROWS) > 3].tolist() == [5.0, 4.0, 6.0],
    'integer and a number it cannot hold, `Tensor([300], dtype="uint8")`': lambda: (
        refused(DTypeError, lambda: Tensor([1]) * 2**40)
        and refused(DTypeError, lambda: Tensor([300], dtype="uint8"))
        and Tensor([300]).cast("uint8").tolist() == [44]
    ),
    "sums of int32, `argmax`": lambda: Tensor([1]).sum().dtype is Tensor([1]).argmax().dtype is dtypes.int64,
    "`bool(t)`, `if t:`": lambda: bool(Tensor([1.0])) and not bool(Tensor(0.0)),
    "`dim=` of `sum`, `max`, ...": lambda: Tensor(ROWS).sum(dim=1).tolist() == Tensor(ROWS).sum(axis=1).tolist(),
    "`print(t)`": printed_when_computed,
    "`x.gradient(w)`, where `w` has no part in `x`": lambda: refused(
        UnsupportedError, lambda: Tensor(ROWS).sum().gradient(Tensor.rand(3))
    ),
    "a gradient where the value is NaN: `acosh` below -1, `e / (1 + e)` of `e = x.exp()` at 300": undefined_gradients,
    "`max` of no elements": lambda: refused(ShapeError, lambda: Tensor([]).max()),
    "`allclose`": lambda: Tensor(ROWS).allclose(Tensor(ROWS)) is True,
    "`qr` of more rows than columns": lambda: [part.shape for part in Tensor.rand(6, 3).qr()] == [(6, 3), (3, 3)],
    "`numpy()` of bfloat16 and float8": lambda: Tensor([1.0], dtype="bfloat16").numpy().dtype.name == "bfloat16",
    "`grad_fxn` of a custom kernel": gradient_of_a_kernel,
    "devices": default_device,
}


def test_every_row_for_users_of_tinygrad_is_checked() -> None:
    assert first_column(DOCS / "from_tinygrad.md", "# From tinygrad") == list(FROM_TINYGRAD)


@pytest.mark.parametrize("row", FROM_TINYGRAD)
def test_what_differs_from_tinygrad(row: str) -> None:
    assert FROM_TINYGRAD[row]()
