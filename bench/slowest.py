"""The kernels of a step that take the most time, as lines of a table.

In: a function that runs one step. Out: for each kernel its time by the device's clock where it has one, the operations
and bytes of all its launches, its grid and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import Context
from tilewright.base.events import Event, subscribe
from tilewright.debug.watch import KernelRun, watch_runs
from tilewright.engine.compilation.compile import forget_kernels


def launch_of(program: Any) -> str:
    """`[blocks] x [threads]` of a program, outermost first."""
    grid, group = ([str(node.vmax + 1) for node in nodes] for nodes in (program.global_ranges, program.local_ranges))
    return f"{'x'.join(grid) or '1'} by {'x'.join(group) or '1'}"


def slowest_kernels(step: Callable[[], Any], count: int) -> list[str]:
    """A table of the kernels that take the most of a step, all launches of one taken together. Each launch counts with
    the least time of three steps that run one kernel after the other."""
    launches: dict[str, str] = {}

    def note(event: Event) -> None:
        kernel: Any = event["kernel"]
        launches[kernel.name] = launch_of(kernel.program)

    rounds = []
    forget_kernels()  # what an earlier call has compiled is reported again
    with subscribe(note, ("kernel-compiled",)):
        with Context(JIT=0):  # a replay compiles nothing
            step()
        for _ in range(3):
            with watch_runs() as runs:
                step()
            rounds.append(runs)
    alike = [runs for runs in rounds if [run.name for run in runs] == [run.name for run in rounds[-1]]]
    found: dict[str, list[tuple[float, KernelRun]]] = {}
    for launch in zip(*alike):
        found.setdefault(launch[0].name, []).append((min(run.seconds for run in launch), launch[0]))
    total = sum(seconds for runs in found.values() for seconds, _ in runs)
    ordered = sorted(found.values(), key=lambda runs: -sum(seconds for seconds, _ in runs))
    lines = [f"{len(alike[0])} launches of {len(found)} kernels, {total * 1e3:.3f} ms one after the other"]
    lines.append(
        f"{'ms':>9} {'share':>6} {'runs':>5} {'GFLOP':>9} {'MB':>9} {'GFLOP/s':>9} {'GB/s':>8}  kernel, launch, line"
    )
    for runs in ordered[:count]:
        seconds = sum(seconds for seconds, _ in runs)
        operations, moved = (sum(getattr(run, name) for _, run in runs) for name in ("operations", "bytes_moved"))
        first = runs[0][1]
        amounts = (
            f"{operations / 1e9:9.3f} {moved / 1e6:9.2f} {operations / seconds / 1e9:9.1f} {moved / seconds / 1e9:8.1f}"
        )
        where = f"{first.name}, {launches.get(first.name, 'unknown launch')}, {first.location}"
        lines.append(f"{seconds * 1e3:9.3f} {seconds / total:6.1%} {len(runs):5d} {amounts}  {where}")
    return lines
