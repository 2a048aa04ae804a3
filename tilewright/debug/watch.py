"""Listening to kernels as they run. In: the code that runs them. Out: a record per run: its time and its work.
While there is a listener, kernels are run one by one to be timed, which takes some microseconds each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.base.events import Event, subscribe
from tilewright.debug import describe


@dataclass(frozen=True)
class KernelRun:
    """One run of one kernel."""

    name: str
    device: str
    seconds: float
    operations: int
    bytes_moved: int
    line: tuple[str, int] | None

    @property
    def location(self) -> str:
        return describe.show_location(self.line)

    @property
    def speed(self) -> str:
        """`12.3 GB/s, 45.6 GFLOP/s`."""
        memory = describe.giga_per_second(self.bytes_moved, self.seconds)
        return f"{memory} GB/s, {describe.giga_per_second(self.operations, self.seconds)} GFLOP/s"


@contextmanager
def watch_runs() -> Iterator[list[KernelRun]]:
    """Collect what runs inside the block, in every thread.

    with watch_runs() as runs:
        y.realize()
    """
    runs: list[KernelRun] = []

    def note(event: Event) -> None:
        fields: dict[str, Any] = event.fields
        runs.append(
            KernelRun(
                fields["name"],
                fields["device"],
                fields["seconds"],
                fields["operations"],
                fields["bytes"],
                fields["location"],
            )
        )

    with subscribe(note, kinds=("kernel-run",)):
        yield runs
