"""Families that few programs use are loaded by whoever first asks for one of their operations, and by nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tilewright import Tensor

USES = {
    "a method": "print(x.reshape(1, 1, 2).conv1d(x.reshape(1, 1, 2)).shape)",
    "an alias": "print(x.binary_cross_entropy(x).shape)",
    "a class method": "print(Tensor.einsum)",
    "a private one": "print(x._pooled)",
    "the names of a tensor": "assert 'conv2d' in dir(x)",
    "the names of the class": "assert 'conv2d' in dir(Tensor)",
    "a subclass": "class Own(Tensor):\n def sort(self): return super().sort()\nprint(Own([2.0, 1.0]).sort()[0].shape)",
}


def run(program: str) -> list[object]:
    start = (
        "import json, sys\n"
        "from tilewright import Tensor\n"
        "x = Tensor([1.0, 2.0])\n"
        "y = (x * 2).sum() + x.softmax(-1).max()\n"
        "kinds = hasattr(x, '__array_interface__'), hasattr(Tensor, '__fspath__')\n"
        "before = 'tilewright.tensor.rare' in sys.modules\n"
    )
    end = "\nprint(json.dumps([kinds, before, 'tilewright.tensor.rare' in sys.modules]))"
    finished = subprocess.run([sys.executable, "-c", start + program + end], capture_output=True, text=True, check=True)
    return list(json.loads(finished.stdout.splitlines()[-1]))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_first_use_loads_them(use: str) -> None:
    assert run(use) == [[False, False], False, True]


def test_a_name_that_nothing_has() -> None:
    x = Tensor([1.0])
    assert not hasattr(x, "no_such_operation")
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'no_such_operation'"):
        x.no_such_operation  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="type object 'Tensor' has no attribute 'no_such_operation'"):
        Tensor.no_such_operation  # type: ignore[attr-defined]  # noqa: B018


def test_they_are_like_all_others() -> None:
    """Arguments have other spellings, each wrapper stands once, and aliases are the operation itself."""
    x = Tensor([[1.0, 2.0], [3.0, 5.0]])
    assert x.sort(axis=0)[0].shape == x.sort(dim=0)[0].shape == (2, 2)
    assert depth(Tensor.conv1d) == depth(Tensor.matmul) == 2
    assert (depth(Tensor.sort), depth(Tensor.softmax)) == (2, 3)
    assert Tensor.conv3d.__doc__ == Tensor.conv1d.__doc__


def depth(method: Any) -> int:
    """How often it is wrapped: to remember its graph, to explain wrong arguments, to take other spellings."""
    return 1 + depth(method.__wrapped__) if hasattr(method, "__wrapped__") else 0


def test_threads_that_ask_at_once() -> None:
    program = (
        "import threading\n"
        "found = []\n"
        "start = threading.Barrier(8)\n"
        "def ask(name):\n"
        "    start.wait()\n"
        "    found.append(getattr(Tensor, name).__name__)\n"
        "names = ['conv2d', 'einsum', 'sort', 'median'] * 2\n"
        "threads = [threading.Thread(target=ask, args=(name,)) for name in names]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
        "assert sorted(found) == sorted(names), found"
    )
    assert run(program) == [[False, False], False, True]
