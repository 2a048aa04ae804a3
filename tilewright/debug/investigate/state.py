"""The state that the parts of an investigation share. In: a session's folder. Out: its target, its scenarios, how the
target fails, and earlier sessions with the same failure."""

from __future__ import annotations

import time
from pathlib import Path

from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.process import Ended, Processes
from tilewright.debug.investigate.scenarios import Scenarios, Verdict
from tilewright.debug.investigate.target import Failure, Target, failure_of, make_target
from tilewright.debug.memory import SessionStore, known_like, signature_of
from tilewright.graph.text.repro import load_repro
from tilewright.graph.walk import toposort


class State:
    """One session. `reference` is the target with everything off, `findings` what observation found."""

    def __init__(self, store: SessionStore, seconds: float, jobs: int) -> None:
        self.store = store
        self.started = time.monotonic()
        record = store.read()
        self.target: Target = make_target(record["command"])
        self.processes = Processes(store.note_processes)
        self.scenarios = Scenarios(store, self.processes, jobs, self.started + seconds)
        self.reference: Ended | None = None
        self.again: Ended | None = None  # the target once more, where what it prints is all that differs
        self.failure = Failure("", "")
        self.findings: list[Finding] = []

    def failure_of(self, ended: Ended) -> Failure:
        """How a run of the target fails, beside the reference."""
        return failure_of(ended, self.reference, self.again)

    def remember(self, repro: Path | None) -> None:
        """Records the failure, and earlier sessions with the same failure."""
        ops = [] if repro is None else [node.op.name for node in toposort(load_repro(str(repro)).graph)]
        signature = signature_of(self.failure.kind, self.failure.text, ops)
        known = known_like(self.store.folder.parent, signature, self.store.id)
        failure = {"kind": self.failure.kind, "text": self.failure.text}
        self.store.update(failure=failure, signature=signature, known=known)
        for earlier in known[:1]:
            found = earlier["guilty"]
            text = f"session {earlier['id']} named {found['kind']} {found['name']} for a failure of the same signature"
            self.scenarios.record("known", "a failure that is known", Verdict("confirmed", text), "", 0.0)
