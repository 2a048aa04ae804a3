"""A device with the facts of a card that runs on the emulator: the templates choose as they do for the card, and the
emulator reports races, accesses out of bounds and reads of memory that nothing wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tilewright.backends.python.device import python_target
from tilewright.backends.python.driver import PythonDriver
from tilewright.base.config import Context
from tilewright.base.target import Target
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.records import Program
from tilewright.runtime import device as runtime
from tilewright.runtime.device import Driver
from tilewright.tensor.families import random

NAME = "CARD"
CARD = replace(python_target(), cores=132, warp_size=32, max_local_bytes=1 << 17, cache_bytes=60 << 20)


class CardDriver(PythonDriver):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.programs: list[Program] = []

    def load(self, binary: bytes, program: Program) -> Program:
        self.programs.append(program)
        return program


@contextmanager
def registered(name: str, driver: Driver) -> Iterator[None]:
    """A device of this name while the block runs, for which nothing is compiled or scheduled yet."""
    runtime.register_backend(name, lambda _: driver)
    forget_kernels()
    forget_schedules()
    try:
        with Context(CACHE=0):
            yield
    finally:
        del runtime._openers[name]
        runtime._drivers.pop(name, None)
        random._generators.pop(name, None)
        forget_kernels()
        forget_schedules()


@contextmanager
def emulated_card(**facts: Any) -> Iterator[CardDriver]:
    """The device NAME, with the facts of CARD and those given."""
    driver = CardDriver(replace(CARD, **facts))
    with registered(NAME, driver):
        yield driver
