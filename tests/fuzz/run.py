"""`python -m tests.fuzz.run --seconds N [--seed S] [--jobs J]`: fresh random graphs on every device until time is up.
In: a time. Out: a line of progress, every failure made small with its seed and graph, and an exit status of 1 if any.

Each job is a process of its own, so a crash or an endless loop in compiled code is a finding like any other: the seed
that was running is named, and the job goes on with the next. `--seed S --seconds 0` runs the one case of that seed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.fuzz.execute import Strength, check_case
from tests.fuzz.generate import describe, make_case
from tests.fuzz.minimise import minimise

# A case takes a fraction of a second; making a failing one small may take a minute.
MAX_SECONDS_PER_CASE = 240.0
SECONDS_TO_MINIMISE = 60.0
MAX_FAILURES = 20


@dataclass
class Report:
    """What a job says of one seed."""

    seed: int
    text: str | None
    strength: Strength


@dataclass
class Job:
    process: BaseProcess
    pipe: Connection
    seed: int  # the seed it is at
    since: float


@dataclass
class Totals:
    cases: int = 0
    failures: int = 0
    strength: Strength = field(default_factory=Strength)


def examine(seed: int) -> Report:
    """Runs the case of a seed; the text of a failure shows it as small as it could be made."""
    strength = Strength()
    case = make_case(seed)
    failure = check_case(case, strength=strength)
    if failure is None:
        return Report(seed, None, strength)
    small = minimise(failure, SECONDS_TO_MINIMISE)
    return Report(seed, f"{small.kind}\n{describe(small.case)}\n{small.text}", strength)


def work(pipe: Connection, seed: int, step: int) -> None:
    """The body of a job: seed after seed, a report for each."""
    while True:
        pipe.send(examine(seed))
        seed += step


def start_job(seed: int, step: int) -> Job:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, seed, step), daemon=True)
    process.start()
    theirs.close()
    return Job(process, ours, seed, time.monotonic())


def fuzz(seconds: float, seed: int, jobs: int) -> Totals:
    """Runs jobs until the time is up, which begins with the first report: on an emulated processor a job may need a
    minute to start. Prints what they find."""
    begin = time.monotonic()
    running = [start_job(seed + number, jobs) for number in range(jobs)]
    totals = Totals()
    shown = 0.0
    while (not totals.cases or time.monotonic() - begin < seconds) and totals.failures < MAX_FAILURES:
        ready = wait([job.pipe for job in running], timeout=1.0)
        begin = begin if totals.cases else time.monotonic()
        for position, job in enumerate(running):
            if job.pipe in ready:
                report = _receive(job)
            elif time.monotonic() - job.since > MAX_SECONDS_PER_CASE:
                report = Report(job.seed, f"the case runs for more than {MAX_SECONDS_PER_CASE:.0f} s", Strength())
                job.process.kill()
            else:
                continue
            _add(totals, report)
            job.seed, job.since = report.seed + jobs, time.monotonic()
            if not job.process.is_alive():
                job.pipe.close()
                running[position] = start_job(report.seed + jobs, jobs)
        if time.monotonic() - shown > (1.0 if sys.stdout.isatty() else 10.0):
            shown = time.monotonic()
            _show_progress(totals, shown - begin)
    for job in running:
        job.process.kill()
        job.process.join()
    _show_progress(totals, time.monotonic() - begin)
    print()
    return totals


def _receive(job: Job) -> Report:
    try:
        report = job.pipe.recv()
    except EOFError:
        job.process.join()
        return Report(job.seed, f"the process died with exit code {job.process.exitcode}", Strength())
    assert isinstance(report, Report)
    return report


def _add(totals: Totals, report: Report) -> None:
    totals.cases += 1
    totals.strength.exact += report.strength.exact
    totals.strength.close += report.strength.close
    totals.strength.free += report.strength.free
    if report.text is not None:
        totals.failures += 1
        print(f"\n--- seed {report.seed}: {report.text}\n", flush=True)


def _show_progress(totals: Totals, seconds: float) -> None:
    strength = totals.strength
    text = (
        f"{totals.cases} cases, {totals.failures} failures, {totals.cases / max(seconds, 1e-9):.1f}/s; elements exact "
        f"{strength.exact}, within bounds {strength.close}, free {strength.free}"
    )
    print(f"\r{text}" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="random graphs on every device, compared with the interpreter")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run; 0 runs one case")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the clock's by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    arguments = parser.parse_args()
    seed = int(time.time()) * 1000 if arguments.seed is None else arguments.seed
    if arguments.seconds <= 0:
        print(describe(make_case(seed)))
        report = examine(seed)
        print("passes" if report.text is None else report.text)
        return int(report.text is not None)
    print(f"seeds from {seed} on, {arguments.jobs} jobs, {arguments.seconds:.0f} s")
    return int(fuzz(arguments.seconds, seed, arguments.jobs).failures > 0)


if __name__ == "__main__":
    sys.exit(main())
