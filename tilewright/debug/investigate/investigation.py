"""An investigation from beginning to end. In: a target that fails. Out: a session's folder with the verdict on each
hypothesis, the guilty step, the smallest graph or program that fails, and a regression test.

1. The target is run as it is, under observation, and with everything off: does it fail, and is the compiler at fault?
2. Observation names the schedule whose results are not what its graph means: from here on a repro is investigated. It
   is reduced; then its steps are checked one by one, and hypotheses are tried by switching and bisecting.
3. Where no schedule is wrong in itself the program is investigated: the disk cache, jit, gradients, sharding.
4. What was named is switched off in the target, where a switch exists."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.program_track import investigate_program
from tilewright.debug.investigate.report import summary
from tilewright.debug.investigate.repro_track import investigate_repro
from tilewright.debug.investigate.scenarios import Verdict
from tilewright.debug.investigate.state import State
from tilewright.debug.investigate.switches import REFERENCE, settings_text
from tilewright.debug.investigate.target import Failure, failure_of
from tilewright.debug.memory import SUMMARY
from tilewright.graph.text.repro import load_repro

RUN_SECONDS = 40.0


class Investigation(State):
    """One session at work."""

    def run(self) -> None:
        """All of it; whatever happens, the folder says how it ended."""
        status = "failed"
        try:
            self._investigate()
            status = "cancelled" if self.processes.is_cancelled else "done"
        finally:
            self.processes.cancel()
            used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            record = self.store.update(status=status, seconds=time.monotonic() - self.started, cpu_seconds=used)
            (self.store.folder / SUMMARY).write_text(summary(record), encoding="utf-8")

    def _investigate(self) -> None:
        if self.target.kind == "repro":
            self._conclude(investigate_repro(self, os.path.abspath(self.target.words[0])))
            return
        captured = self._look()
        if not self.failure.kind and captured is None and not self.findings:
            printed = "prints the same with everything off" if self.again is None else "what it prints varies by itself"
            text = f"no failure was seen: it ends well, {printed}, and each schedule is right"
            self.store.update(conclusion=text)
            return
        if self._is_of_the_program(captured):
            text = f"the program itself: with everything off it fails in the same way ({self.failure.text})"
            self.store.update(conclusion=f"{text}, and no schedule of it is wrong")
            return
        found = None if captured is None else investigate_repro(self, captured)
        if found is None and not self.processes.is_cancelled:
            found = investigate_program(self, captured)
        self._conclude(found)

    # ------------------------------------------------------------ does it fail?

    def _look(self) -> str | None:
        """Runs the target in three ways; the path of the schedule that is wrong, if one is."""
        folder = self.store.folder
        command = self.target.command
        works = [
            lambda: self.scenarios.program(command, {}, RUN_SECONDS),
            lambda: self.scenarios.program(self.target.observed(str(folder)), {}, RUN_SECONDS),
            lambda: self.scenarios.program(command, REFERENCE, RUN_SECONDS),
        ]
        plain, observed, self.reference = self.scenarios.together(works)
        self.failure = self.failure_of(plain)
        if self.failure.kind == "other output":
            self.again = self.scenarios.program(command, {}, RUN_SECONDS)
            self.failure = self.failure_of(plain)
        self.findings = read_findings(folder)
        captured = next((path for name in ("captured", "current") if (path := folder / f"{name}.repro").exists()), None)
        if captured is not None and captured.stem == "current" and observed.is_success:
            captured = None
        if not self.failure.kind and captured is not None:
            self.failure = Failure("differs", load_repro(str(captured)).note)
        if self.failure.kind:
            self._compare_without_compiler(captured)
        self.remember(captured)
        return None if captured is None else str(captured)

    def _compare_without_compiler(self, captured: Path | None) -> None:
        assert self.reference is not None
        words = "right" if self.reference.is_success else failure_of(self.reference, None).text
        verdict = "confirmed" if self.reference.is_success else "inconclusive"
        if self._is_of_the_program(captured):
            verdict = "refuted"
        found = Verdict(verdict, f"with everything off it is {words}")
        question = "the compiler, not the program"
        self.scenarios.record("compiler", question, found, settings_text(REFERENCE), self.reference.seconds)

    def _is_of_the_program(self, captured: object) -> bool:
        """Whether nothing points to the compiler: it fails in the same way with everything off, every schedule that ran
        is right, and so is every replay, division among devices and gradient."""
        if captured is not None or self.findings or self.reference is None or not self.failure.kind:
            return False
        found = failure_of(self.reference, None)
        return found.kind == self.failure.kind and (self.reference.ending != "finished" or found == self.failure)

    # ------------------------------------------------------------ the end

    def _conclude(self, found: Finding | None) -> None:
        if found is not None:
            self.store.update(guilty=found.as_json())
        elif not self.store.read().get("conclusion"):
            self.store.update(conclusion="no hypothesis was confirmed; the summary has what was tried")


def read_findings(folder: Path) -> list[Finding]:
    """What observation found besides schedules."""
    path = folder / "findings.json"
    if not path.exists():
        return []
    return [Finding.from_json(found) for found in json.loads(path.read_text(encoding="utf-8"))]
