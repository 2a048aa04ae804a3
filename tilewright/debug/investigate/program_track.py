"""Investigating a program. In: a script or a test that fails though each schedule is right when it is replayed alone.
Out: the guilty step: the disk cache, jit, the division among devices, a gradient rule, the order between queues. The
program is reduced to the statements that the failure needs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.in_place import RESULT
from tilewright.debug.investigate.program_reduce import reduce_program
from tilewright.debug.investigate.report import program_test
from tilewright.debug.investigate.scenarios import Verdict, text_of
from tilewright.debug.investigate.state import State
from tilewright.debug.investigate.switches import REFERENCE, SWITCHES, Switch
from tilewright.debug.investigate.target import Failure, Target
from tilewright.graph.text.repro import load_repro

RUN_SECONDS = 40.0
IN_PLACE_SECONDS = 90.0
# The parts that are switched off first, one at a time: where one of these is at fault, every other switch only changes
# the circumstances.
FIRST = ("cache", "jit")
OFF = {"jit": {"JIT": "0"}, "cache": {"CACHE": "0"}}


def investigate_program(session: State, captured: str | None) -> Finding | None:
    run = session.scenarios
    for found in session.findings:
        run.record(found.kind, f"{found.kind} {found.name}", Verdict("confirmed", found.text), "", 0.0)
    guilty = session.findings[0] if session.findings else None
    if session.failure.kind:
        first = [switch for switch in SWITCHES if switch.name in FIRST]
        verdicts = run.try_switches(first, lambda taken: try_switch(session, taken[0], {}), 1)
        confirmed = [name for name in FIRST if verdicts[name].verdict == "confirmed"]
        if guilty is None and not confirmed and captured is not None:
            guilty, captured = examine_in_program(session, captured)
        if guilty is None and not confirmed:
            verdicts = run.try_switches(
                [switch for switch in SWITCHES if switch.name not in FIRST],
                lambda taken: try_switch(session, taken[0], {"CACHE": "0"}),
                1,
            )
            confirmed = [name for name, found in verdicts.items() if found.verdict == "confirmed"]
        if guilty is None and confirmed:
            switch = next(switch for switch in SWITCHES if switch.name == confirmed[0])
            guilty = _finding_of(switch, verdicts[switch.name], captured)
    reduce_and_write(session, guilty, captured)
    return guilty


def examine_in_program(session: State, captured: str) -> tuple[Finding | None, str]:
    """The step that breaks the captured schedule in the program's own process, and the smallest graph that shows it:
    for a program that is at fault itself, as by a rule that it added."""
    run = session.scenarios
    folder = session.store.folder / "in-place"
    folder.mkdir(exist_ok=True)
    ended = run.program(session.target.observed(str(folder), "--steps"), {}, IN_PLACE_SECONDS)
    path = folder / RESULT
    question = "a step that changes what the graph means, in the program itself"
    if not path.exists():
        run.record("steps-in-place", question, Verdict("refuted", "each keeps the meaning"), "", ended.seconds)
        return None, captured
    result = json.loads(path.read_text(encoding="utf-8"))
    found = Finding.from_json(result["finding"])
    run.record("steps-in-place", question, Verdict("confirmed", found.text), "", ended.seconds)
    return found, str(result["path"])


def try_switch(session: State, switch: Switch, always: dict[str, str]) -> list[tuple[Verdict, float]]:
    ended = session.scenarios.program(session.target.command, {**always, **switch.settings}, RUN_SECONDS)
    return [(verdict_on(session.failure_of(ended), session.failure), ended.seconds)]


def verdict_on(found: Failure, failure: Failure) -> Verdict:
    """The verdict on a suspected part, from a run without it and the failure with it."""
    if not found.kind:
        return Verdict("confirmed", "without it the program is right")
    if found.kind == failure.kind:
        return Verdict("refuted", f"without it: {found.text}")
    return Verdict("inconclusive", f"without it it fails otherwise: {found.text}")


def _finding_of(switch: Switch, verdict: Verdict, captured: str | None) -> Finding:
    """The finding of a confirmed switch. A schedule that is wrong with the cache and right without it was given the
    kernel of another one."""
    before = "" if captured is None else text_of(captured)
    line = "" if captured is None else load_repro(captured).line
    text = f"{switch.question}: {verdict.evidence}{f'; first seen at {line}' if line else ''}"
    name = {"cache": "disk cache entry"}.get(switch.name, switch.name)
    return Finding(switch.name, name, text, before)


def reduce_and_write(session: State, guilty: Finding | None, captured: str | None) -> None:
    """The smallest script that still fails, its graph, and a test."""
    run, folder = session.scenarios, session.store.folder
    nodes = _nodes_of(guilty, captured)
    if session.target.kind == "script" and session.failure.kind:
        script, *arguments = session.target.words
        home = os.path.dirname(os.path.abspath(script))
        reduced = folder / "reduced.py"
        whole = text_of(script)

        def fails(text: str) -> bool:
            reduced.write_text(text, encoding="utf-8")
            target = Target("script", (str(reduced), *session.target.words[1:]))
            settings = {**_own_cache(folder, text), "PYTHONPATH": with_home(home)}
            failure = session.failure_of(run.program(target.command, settings, 20.0))
            return failure.kind == session.failure.kind

        best = reduce_program(whole, fails, min(25.0, run.left / 2)) if session.failure.kind != "timeout" else whole
        reduced.write_text(best, encoding="utf-8")
        if (
            best != whole
            and guilty is not None
            and guilty.kind in OFF
            and not _is_right_without(session, reduced, guilty)
        ):
            best = whole
            reduced.write_text(best, encoding="utf-8")
        reference = REFERENCE if session.failure.kind == "other output" else {}
        test = folder / "test_regression.py"
        found = None if guilty is None else guilty.as_json()
        test.write_text(program_test(found, best, reference, arguments, home), encoding="utf-8")
        session.store.update(regression=str(test))
    if nodes:
        path = captured or str(folder / "reduced.py")
        session.store.update(reduced={"path": path, "nodes": nodes, "from": nodes}, nodes=nodes)


def with_home(folder: str) -> str:
    """PYTHONPATH for a copy of a script in another folder: modules beside the original are still found."""
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))


def _own_cache(folder: Path, text: str) -> dict[str, str]:
    """A disk cache for each text: a stale entry must come from the program itself."""
    with contextlib.suppress(OSError):
        path = folder / "caches" / str(abs(hash(text)))
        path.mkdir(parents=True, exist_ok=True)
        return {"TILEWRIGHT_CACHE_DIR": str(path)}
    return {}


def _is_right_without(session: State, script: Path, guilty: Finding) -> bool:
    target = Target("script", (str(script), *session.target.words[1:]))
    home = os.path.dirname(os.path.abspath(session.target.words[0]))
    ended = session.scenarios.program(target.command, {**OFF[guilty.kind], "PYTHONPATH": with_home(home)}, 20.0)
    return not session.failure_of(ended).kind


def _nodes_of(guilty: Finding | None, captured: str | None) -> int:
    """Nodes of the graph that shows the failure."""
    if captured is not None:
        return load_repro(captured).nodes
    if guilty is None:
        return 0
    shown = [text for text in (guilty.before, guilty.after) if text.lstrip().startswith("%")]
    return min((len(text.strip().splitlines()) for text in shown), default=0)
