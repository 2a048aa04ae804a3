"""Integers that int32 does not hold. They wrapped without a word; now they get a dtype that holds them, and where the
dtype is given by another operand they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.errors import DTypeError

HELD: dict[str, tuple[Callable[[], Tensor], str, Any]] = {
    "number": (lambda: Tensor(2**40), "int64", 2**40),
    "least of int32": (lambda: Tensor(-(2**31)), "int32", -(2**31)),
    "below int32": (lambda: Tensor(-(2**31) - 1), "int64", -(2**31) - 1),
    "above int64": (lambda: Tensor(2**63), "uint64", 2**63),
    "list": (lambda: Tensor([1, 2**40]), "int64", [1, 2**40]),
    "full": (lambda: Tensor.full((2,), 2**40), "int64", [2**40, 2**40]),
    "arange": (lambda: Tensor.arange(2**31, 2**31 + 2), "int64", [2**31, 2**31 + 1]),
    "arange to the end of int32": (lambda: Tensor.arange(2**31 - 2, 2**31), "int32", [2**31 - 2, 2**31 - 1]),
    "arange down": (lambda: Tensor.arange(-(2**31), -(2**31) - 2, -1), "int64", [-(2**31), -(2**31) - 1]),
    "arange in long steps": (lambda: Tensor.arange(-(2**31), 2**31, 2**32 - 1), "int32", [-(2**31), 2**31 - 1]),
    "arange past float64": (lambda: Tensor.arange(2**53 + 1, 2**53 + 3), "int64", [2**53 + 1, 2**53 + 2]),
    "arange past int64": (lambda: Tensor.arange(2**63 + 2, 2**63, -1), "uint64", [2**63 + 2, 2**63 + 1]),
    "where": (lambda: Tensor([True, False]).where(2**40, 1), "int64", [2**40, 1]),
    "a float takes any": (lambda: Tensor([1.0]) + 2**40, "float32", [float(2**40)]),
    "a comparison takes any": (lambda: Tensor([1]) < 2**40, "bool", [True]),
    "minus one, unsigned": (lambda: Tensor([5], dtype="uint8") + -1, "uint8", [4]),
    "a dtype that is cast to": (lambda: Tensor([300]).cast("uint8"), "uint8", [44]),
}


@pytest.mark.parametrize("name", HELD)
def test_the_dtype_holds_the_number(name: str) -> None:
    make, dtype, values = HELD[name]
    found = make()
    assert (found.dtype.name, found.tolist()) == (dtype, values)


X = Tensor([1, 2], dtype="int32")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "add": (lambda: X + 2**40, "add: int32 cannot hold 1099511627776"),
    "reversed": (lambda: 2**31 - X, "sub: int32 cannot hold 2147483648"),
    "narrow": (lambda: X.cast("uint8") * 256, "mul: uint8 cannot hold 256"),
    "narrow, negative": (lambda: X.cast("uint8") * -256, "mul: uint8 cannot hold -256"),
    "maximum": (lambda: X.maximum(2**40), "maximum: int32 cannot hold"),
    "where": (lambda: (X > 1).where(X, 2**40), "where: int32 cannot hold"),
    "masked_fill": (lambda: X.masked_fill(X > 1, 2**40), "int32 cannot hold"),
    "assign": (lambda: X.clone().assign(2**40), "assign: int32 cannot hold"),
    "setitem": (lambda: X.clone().__setitem__(0, -(2**40)), "setitem: int32 cannot hold"),
    "pad": (lambda: X.pad((1, 1), value=2**40), "pad: int32 cannot hold"),
    "full_like": (lambda: X.full_like(2**40), "full_like: int32 cannot hold"),
    "base": (lambda: (2**40) ** X, "pow: int32 cannot hold"),
    "number": (lambda: Tensor(2**64), "no integer dtype holds 18446744073709551616"),
    "list": (lambda: Tensor([-1, 2**63]), r"no integer dtype holds -1\.\.9223372036854775808"),
    "arange": (lambda: Tensor.arange(2**64, 2**64 + 2), "no integer dtype holds"),
    "arange of infinity": (lambda: Tensor.arange(0, float("inf")), "finite"),
    "randint": (lambda: Tensor.randint(3, high=300, dtype="uint8"), "uint8 cannot represent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_would_wrap_is_refused(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(DTypeError if "infinity" not in name else Exception, match=words) as caught:
        call()
    assert __file__ in str(caught.value)


def test_an_integer_has_no_gradient() -> None:
    """The 'gradient' of an int32 tensor was an int32 tensor."""
    index = Tensor([1, 2])
    with pytest.raises(DTypeError, match="a target of int32 has no gradient"):
        (index.float() * 2).sum().gradient(index)


def test_the_memory_of_a_tensor_without_elements_has_its_format_and_shape() -> None:
    """It was one row of bytes."""
    for dtype, code in (("float32", "f"), ("float16", "e"), ("int64", "q"), ("bool", "?"), ("bfloat16", "H")):
        view = Tensor.zeros(0, 3, dtype=dtype).data()
        assert (view.shape, view.itemsize, view.nbytes) == ((0, 3), np.dtype(code).itemsize, 0)
        assert np.dtype(view.format) == np.dtype(code)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_a_tie_with_a_number_is_shared_as_one_with_a_tensor(name: str) -> None:
    """The number took all of it. relu and hardtanh stay flat where they bend."""
    slopes = []
    for other in (0, 0.0, Tensor([0.0, 0.0, 0.0]), Tensor(0.0), Tensor.zeros(3), np.zeros(3, dtype=np.float32)):
        x = Tensor([-1.0, 0.0, 1.0], requires_grad=True)
        getattr(x, name)(other).sum().backward()
        assert x.grad is not None
        slopes.append(x.grad.tolist())
    assert slopes == [[0.0, 0.5, 1.0] if name == "maximum" else [1.0, 0.5, 0.0]] * len(slopes)
    x = Tensor([0.0, -1.0, 1.0])
    assert x.relu().sum().gradient(x)[0].tolist() == [0.0, 0.0, 1.0]
    assert x.hardtanh().sum().gradient(x)[0].tolist() == [1.0, 0.0, 0.0]
