"""The modes of a thread: whether results need gradients, and whether layers behave as in training. `Tensor.no_grad` and
`Tensor.train` set them for a block or for the calls of a function."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Modes(threading.local):
    """Flags of `Tensor.no_grad` and `Tensor.train`; each thread has its own. Both are one attribute, because a jitted
    call asks for them every time."""

    both = (True, False)

    @property
    def grad_enabled(self) -> bool:
        return self.both[0]

    @grad_enabled.setter
    def grad_enabled(self, value: bool) -> None:
        self.both = (value, self.both[1])

    @property
    def training(self) -> bool:
        return self.both[1]

    @training.setter
    def training(self, value: bool) -> None:
        self.both = (self.both[0], value)


modes = _Modes()


class Mode:
    """A flag of this thread set for a block or for the calls of a function."""

    def __init__(self, name: str, value: bool) -> None:
        self._name = name
        self._value = value
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(getattr(modes, self._name))
        setattr(modes, self._name, self._value)

    def __exit__(self, *exception: object) -> None:
        setattr(modes, self._name, self._before.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def in_mode(*args: P.args, **kwargs: P.kwargs) -> R:
            with Mode(self._name, self._value):
                return function(*args, **kwargs)

        return in_mode
