"""A device with the facts of a card that compiles to CUDA text and runs nothing: what a card would be given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kernel.emulated_card import registered
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.null.device import NullDriver
from tilewright.graph.records import Program

NAME = "NULLCARD"


class NullCard(NullDriver):
    """`programs` are those that were loaded, `texts` what they were rendered to."""

    def __init__(self) -> None:
        super().__init__()
        self.target = cuda_target()
        self.programs: list[Program] = []
        self.texts: dict[str, str] = {}

    def render(self, program: Program) -> str:
        self.programs.append(program)
        self.texts[program.name] = render_program(program)
        return self.texts[program.name]


@contextmanager
def null_card() -> Iterator[NullCard]:
    """The device NAME."""
    driver = NullCard()
    with registered(NAME, driver):
        yield driver
