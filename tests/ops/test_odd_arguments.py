"""Every public method of `Tensor` with arguments nobody should give: it works, or raises an error of ours. Python's own
TypeError is for calls that have too many or too few arguments. The same calls every time; each row's method is called a
few times, so a whole sweep is a few seconds."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright import Tensor
from tilewright.base.errors import UserError

CALLS = 2
# They run code or read files that they are given, or change the process.
LEFT_OUT = {"from_url", "custom_kernel", "sequential", "train", "no_grad", "manual_seed", "synchronize", "mro"}
SIGNATURE = ("positional argument", "unexpected keyword", "multiple values", "keyword-only")
ODD: list[Any] = [-1, 0, 1, 2, 7, -5, 2.5, float("nan"), float("inf"), "a", "", None, True, (), [], (1, 2), [0, 1]]
ODD += [(0, 0), (-1,), (2, 3), ((1, 1), (0, 0)), 2**40, -(2**40), b"x", {}, object(), 1j, slice(None)]


def tensors() -> list[Tensor]:
    nan = float("nan")
    return [
        Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        Tensor([[1, 2, 3], [4, 5, 6]]),
        Tensor([[True, False, True], [False, False, True]]),
        Tensor(2.5),
        Tensor(3),
        Tensor.zeros(0, 3),
        Tensor([1.0, -2.0, nan]),
        Tensor.ones(1, 1, 4, 4),
        Tensor([1.0, 2.0], dtype="float16"),
    ]


def methods() -> list[str]:
    found = [name for name in dir(Tensor) if not name.startswith("_") and name not in LEFT_OUT]
    return [name for name in found if callable(getattr(Tensor, name))]


def odd_calls(name: str, draw: int) -> Iterator[tuple[Tensor, list[Any]]]:
    chosen = random.Random(f"{name} {draw}")
    member = getattr(Tensor, name)
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    taken = [found for found in inspect.signature(member).parameters.values() if found.kind in plain]
    wanted = taken if inspect.ismethod(member) else taken[1:]
    least = sum(parameter.default is parameter.empty for parameter in wanted)
    for _ in range(CALLS):
        found = tensors()
        count = chosen.randint(least, max(least, min(len(wanted), least + 1)))
        args = [chosen.choice(ODD) if chosen.random() < 0.6 else chosen.choice(found) for _ in range(count)]
        yield chosen.choice(found), args


def call(receiver: Tensor, name: str, args: list[Any]) -> None:
    result = getattr(receiver, name)(*args)
    for part in result if isinstance(result, tuple | list) else (result,):
        if isinstance(part, Tensor) and part.numel() < 1000:
            part.tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", range(2))
@pytest.mark.parametrize("first", sorted({name[0] for name in methods()}))
def test_odd_arguments_are_refused_or_mean_something(first: str, draw: int) -> None:
    for name in methods():
        if not name.startswith(first):
            continue
        for receiver, args in odd_calls(name, draw):
            try:
                call(receiver, name, args)
            except UserError:
                continue
            except TypeError as error:
                if not any(words in str(error) for words in SIGNATURE):
                    raise AssertionError(f"{receiver!r}.{name}({args})") from error
            except Exception as error:
                raise AssertionError(f"{receiver!r}.{name}({args})") from error


def test_adaptive_windows_take_no_time_for_each_of_their_outputs() -> None:
    assert Tensor.ones(1, 1, 3).adaptive_max_pool1d(2**30).shape == (1, 1, 2**30)
    assert Tensor([[[1.0, 5.0, 2.0, 4.0, 3.0]]]).adaptive_max_pool1d(3).tolist() == [[[5.0, 5.0, 4.0]]]


def test_the_argument_of_the_wrong_kind_is_named() -> None:
    x = Tensor([[1.0, 2.0]])
    with pytest.raises(UserError, match=r"a list .*tensor"):
        x.masked_scatter(x > 0, [1.0])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="p= is a list and should be a number"):
        x.dropout([0.5])  # type: ignore[arg-type]
    for activation in (x.celu, x.softplus):
        with pytest.raises(UserError, match="is a divisor"):
            activation(0)
    with pytest.raises(UserError, match="indices="):
        x.tensor_split([0.5])  # type: ignore[list-item]
    with pytest.raises(UserError, match="q= is a"):
        x.quantile(object())  # type: ignore[arg-type]
