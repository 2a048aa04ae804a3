"""Scenarios of one session. In: programs and experiments to run. Out: how each ended, recorded as it ends. Several run
at a time, each in its own process group; what an observation makes likely is tried first."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from tilewright.debug.investigate.process import Ended, Processes
from tilewright.debug.investigate.switches import Switch, settings_text
from tilewright.debug.memory import SessionStore

T = TypeVar("T")
_OBSERVED = re.compile(r"\b(pass(?:es)?|right|works|fails?|wrong)\b.*?\b([A-Z][A-Z_]+)=(\S+)")


class Verdict(NamedTuple):
    """`verdict` is confirmed, refuted or inconclusive."""

    verdict: str
    evidence: str


class Scenarios:
    """Runs and records. `deadline` is when the session has to be done."""

    def __init__(self, store: SessionStore, processes: Processes, jobs: int, deadline: float) -> None:
        self.store = store
        self.processes = processes
        self.jobs = jobs
        self.deadline = deadline
        self._lock = Lock()
        self._count = 0

    @property
    def left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def program(self, command: Sequence[str], settings: dict[str, str], limit: float) -> Ended:
        return self.processes.run(command, settings, min(limit, max(self.left, 1.0)))

    def experiment(self, name: str, repro: str, words: dict[str, str], limit: float) -> dict[str, Any]:
        """The result of an experiment; {"ending": how its process ended} where there is none."""
        with self._lock:
            self._count += 1
            path = self.store.folder / f"experiment-{self._count:02d}-{name}.json"
        command = [sys.executable, "-m", "tilewright.debug.investigate.experiment", str(path), name, repro]
        command += [f"{key}={value}" for key, value in words.items()]
        started = time.monotonic()
        ended = self.program(command, {"CACHE": "0"}, limit)
        if ended.is_success and path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        else:
            tail = (ended.errors or ended.output).strip().splitlines()[-1:]
            found = {"ending": f"{ended.words}{': ' + tail[0] if tail else ''}"}
        return {**found, "seconds": time.monotonic() - started}

    def record(self, name: str, question: str, found: Verdict, settings: str, seconds: float) -> None:
        with self._lock:
            self.store.add_hypothesis(
                {
                    "name": name,
                    "question": question,
                    "verdict": found.verdict,
                    "evidence": found.evidence,
                    "settings": settings,
                    "seconds": round(seconds, 2),
                }
            )

    def together(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """All of them, as many at a time as there are jobs."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda work: work(), works))

    def try_switches(
        self, switches: Sequence[Switch], trial: Callable[[Sequence[Switch]], list[tuple[Verdict, float]]], batch: int
    ) -> dict[str, Verdict]:
        """The verdict on each, those first that observations make likely. Up to `batch` of them are handed to `trial`
        at a time, and what to take next is decided again each time."""
        pending = list(switches)
        done: dict[str, Verdict] = {}

        def settle(switch: Switch, found: Verdict, seconds: float) -> None:
            done[switch.name] = found
            self.record(switch.name, switch.question, found, settings_text(switch.settings), seconds)

        def work() -> None:
            while True:
                with self._lock:
                    if not pending or self.left <= 0 or self.processes.is_cancelled:
                        return
                    taken = order_by_observations(pending, self.store.observations())[:batch]
                    for switch in taken:
                        pending.remove(switch)
                for switch, (found, seconds) in zip(taken, trial(taken), strict=True):
                    settle(switch, found, seconds)

        self.together([work] * self.jobs)
        for switch in pending:
            settle(switch, Verdict("inconclusive", "there was no time left to try it"), 0.0)
        return done


def order_by_observations(switches: Sequence[Switch], observations: Sequence[str]) -> list[Switch]:
    """'It passes with JIT=0' moves that hypothesis to the front, 'it fails with FUSE=0' to the back; a word such as
    `fusion` moves the hypothesis of that name to the front too."""
    weight = {switch.name: 0 for switch in switches}
    for text in observations:
        for switch in switches:
            for word, name, value in _OBSERVED.findall(text):
                if switch.settings.get(name) == value.strip(".,;"):
                    weight[switch.name] += 2 if word[0] in "prw" and word != "wrong" else -2
            if re.search(rf"\b{switch.name}\b", text, re.IGNORECASE):
                weight[switch.name] += 1
    return sorted(switches, key=lambda switch: -weight[switch.name])


def text_of(path: Path | str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
