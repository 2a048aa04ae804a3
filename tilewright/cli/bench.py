"""`tilewright bench`. In: what to run, on which device. Out: a table of its kernels against the machine's roofline and,
where asked for, a picture and a file of values. Kernel times are those of the event "kernel-run"; jitted functions are
called without jit, because a replay is one launch whose kernels have no separate times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tilewright.base.config import Context
from tilewright.base.errors import ConfigError, FileError
from tilewright.cli.peaks import Peaks, machine_peaks
from tilewright.cli.picture import check_plotting, save_roofline
from tilewright.cli.programs import Script, find_program
from tilewright.cli.roofline import Report, report_runs
from tilewright.debug.layout import TABLE_WIDTH, make_console
from tilewright.debug.watch import KernelRun, watch_runs
from tilewright.runtime.device import canonical_device, open_driver

WORKLOADS = Path(__file__).parent / "workloads"
# A built-in workload is run once to be compiled; then the round whose kernels took the least time counts.
ROUNDS = 5


@dataclass(frozen=True)
class BenchRequest:
    """The arguments of the command. `given` is the workload or script, and what the script is given."""

    given: tuple[str, ...]
    module: str = ""
    plot: Path | None = None
    device: str = ""
    top: int = 20
    json: Path | None = None
    again: bool = False


def workload_names() -> list[str]:
    return sorted(path.stem for path in WORKLOADS.glob("*.py") if path.stem != "__init__")


def run_bench(request: BenchRequest) -> int:
    """Prints the report. The exit status is that of the script."""
    work = find_work(request)
    device = canonical_device(request.device)
    open_driver(device)
    if request.plot is not None:
        check_plotting()
    with Context(JIT=0, DEVICE=device), Console(stderr=True).status("") as status:

        def peaks_of(name: str) -> Peaks:
            return machine_peaks(name, request.again, lambda what: status.update(f"measuring {name}: {what}"))

        peaks = {device: peaks_of(device)}
        if isinstance(work, Builtin):
            runs, exit_status = work.run(status.update), 0
        else:
            status.stop()  # the script has the terminal
            runs, exit_status = run_script(work)
            status.start()
        peaks |= {other: peaks_of(other) for other in dict.fromkeys(run.device for run in runs) if other != device}
    report = report_runs(runs, peaks)
    print_report(report, request.top)
    write_files(report, request)
    return exit_status


def print_report(report: Report, top: int) -> None:
    console = make_console(TABLE_WIDTH)
    for line in report.peak_lines():
        console.print(line, markup=False)
    console.print()
    console.print(report.table(top) if report.rows else "no kernel ran")


def write_files(report: Report, request: BenchRequest) -> None:
    if request.json is not None:
        with writing(request.json):
            request.json.write_text(json.dumps(report.values(), indent=1) + "\n")
    if request.plot is not None:
        with writing(request.plot):
            save_roofline(report, request.plot)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            "bench", f"{path} cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from error


# ---------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Builtin:
    """A built-in workload, by name."""

    name: str

    def run(self, note: Callable[[str], object]) -> list[KernelRun]:
        note(f"{self.name}: compiling")
        step = self.prepare()
        step()
        rounds: list[list[KernelRun]] = []
        for number in range(ROUNDS):
            note(f"{self.name}: round {number + 1} of {ROUNDS}")
            with watch_runs() as runs:
                step()
            rounds.append(runs)
        return min(rounds, key=lambda runs: sum(run.seconds for run in runs))

    def prepare(self) -> Callable[[], object]:
        """Compiled under its name and not its path in the package, so that its lines count as a user's."""
        file = f"{self.name}.py"
        namespace: dict[str, Any] = {"__name__": "__main__", "__file__": file}
        exec(compile((WORKLOADS / file).read_text(), file, "exec"), namespace)
        step: Callable[[], object] = namespace["prepare"]()
        return step


def find_work(request: BenchRequest) -> Builtin | Script:
    given, names = request.given, workload_names()
    if request.module:
        return find_program("bench", given, request.module)
    if not given:
        raise ConfigError("bench", "nothing to run", f"name a script, `-m MODULE`, or one of: {', '.join(names)}")
    name, *arguments = given
    if name in names and not arguments:
        return Builtin(name)
    if name.endswith(".py") or "/" in name or Script(name, ()).is_there():
        return find_program("bench", given, "")
    raise ConfigError("bench", f"there is no workload {name!r}", f"name a script, or one of: {', '.join(names)}")


def run_script(script: Script) -> tuple[list[KernelRun], int]:
    """The kernels of a script, and the status that it exits with. An error ends the script; what ran before is kept."""
    with watch_runs() as runs:
        outcome = script.run_to_end()
    return runs, outcome.status
