"""Investigating a repro. In: a repro that fails. Out: the guilty step. It is reduced first; steps are checked on the
small graph, each hypothesis is switched off and, where that helps, switched on alone and bisected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.report import repro_test
from tilewright.debug.investigate.scenarios import Verdict, text_of
from tilewright.debug.investigate.state import State
from tilewright.debug.investigate.switches import REFERENCE, SWITCHES, Switch, settings_text
from tilewright.debug.investigate.target import Failure
from tilewright.graph.text.repro import load_repro

TRIAL_SECONDS = 40.0
REDUCE_SECONDS = 30.0
BATCH = 4  # hypotheses that one process tries, each in a child process
PROGRAM_ONLY = ("DEVICE", "JIT", "CACHE")  # what makes no difference to a repro, or is always off
# The order in which findings of bisections are preferred, where no step was found that changes the meaning.
PREFERRED = ("queue", "memory", "fusion", "opts", "rewrites", "passes")


def investigate_repro(session: State, path: str) -> Finding | None:
    """None where it does not fail by itself: then the program around it matters."""
    run = session.scenarios
    reduced = run.experiment("reduce", path, {"seconds": str(min(REDUCE_SECONDS, run.left / 3))}, run.left)
    kind = reduced.get("kind", "")
    if not kind:
        text = reduced.get("ending") or "replayed alone it is right"
        verdict = Verdict("inconclusive" if "ending" in reduced else "refuted", text)
        run.record("schedule", "the schedule by itself", verdict, "", reduced["seconds"])
        return None
    if session.target.kind == "repro":
        session.failure = Failure(kind, reduced["text"])
        session.remember(None)
    small = str(reduced["path"])
    session.store.update(reduced={"path": small, "nodes": reduced["nodes"], "from": reduced["from"]})
    text = f"{reduced['text']}; {reduced['from']} nodes reduced to {reduced['nodes']}"
    run.record("schedule", "the schedule by itself", Verdict("confirmed", text), "", reduced["seconds"])
    steps: dict[str, Any] = {}

    def check_steps() -> None:
        steps.update(run.experiment("steps", small, {}, TRIAL_SECONDS))

    switches = [switch for switch in SWITCHES if switch.scope == "graph"]
    verdicts: dict[str, Verdict] = {}

    def switch_off() -> None:
        verdicts.update(run.try_switches(switches, lambda taken: try_switches(session, small, taken, kind), BATCH))

    run.together([check_steps, switch_off])
    found = _finding(steps)
    evidence = found.text if found is not None else steps.get("ending") or steps.get("text") or "each keeps the meaning"
    verdict = Verdict("confirmed" if found is not None else "refuted", evidence)
    run.record("steps", "a step that changes what the graph means", verdict, "", steps.get("seconds", 0.0))
    bisected = bisect_confirmed(session, small, verdicts, found)
    guilty = choose(found, bisected)
    if guilty is not None and guilty.kind == "rule":
        guilty = confirm_rule(session, small, guilty)
    write_test(session, small, guilty)
    confirm_in_target(session, guilty)
    return guilty


def try_switches(session: State, repro: str, switches: Sequence[Switch], kind: str) -> list[tuple[Verdict, float]]:
    """Off: is it right? If so, everything else off as well: does it still fail? Each is a child of one process, which
    has loaded the compiler once."""
    trials = []
    for switch in switches:
        settings = dict(switch.settings)
        device = settings.pop("DEVICE", "")
        others = {name: value for name, value in REFERENCE.items() if name not in (*switch.settings, *PROGRAM_ONLY)}
        trials.append({"settings": settings, "device": device, "others": others})
    words = {"trials": json.dumps(trials), "kind": kind}
    found = session.scenarios.experiment("switches", repro, words, TRIAL_SECONDS * len(switches))
    if "ending" in found:
        return [(Verdict("inconclusive", found["ending"]), found["seconds"])] * len(switches)
    return [(_verdict(result, kind), float(result["seconds"])) for result in found["results"]]


def _verdict(result: dict[str, Any], kind: str) -> Verdict:
    if result["kind"] == kind:
        return Verdict("refuted", f"without it: {result['text']}")
    if result["kind"]:
        return Verdict("inconclusive", f"without it it fails otherwise: {result['text']}")
    alone = "it alone is enough to fail" if result["is_enough"] else "it alone is not enough to fail"
    return Verdict("confirmed", f"without it: {result['text']}; {alone}")


def bisect_confirmed(
    session: State, repro: str, verdicts: dict[str, Verdict], named: Finding | None
) -> dict[str, Finding]:
    """Which one it is, for each hypothesis that is confirmed and that the steps have not settled."""
    run = session.scenarios
    found: dict[str, Finding] = {}
    wanted = [
        switch
        for switch in SWITCHES
        if switch.bisection and verdicts.get(switch.name, Verdict("", "")).verdict == "confirmed"
    ]
    if named is not None and named.kind not in ("error", "pass", "backend"):
        wanted = [switch for switch in wanted if switch.bisection == "bisect-rewrites" and named.kind == "rule"]

    def bisect(switch: Switch) -> None:
        result = run.experiment(switch.bisection, repro, {}, TRIAL_SECONDS)
        finding = _finding(result)
        if finding is not None:
            found[switch.name] = finding
        evidence = finding.text if finding is not None else result.get("ending", "no single one makes the difference")
        verdict = Verdict("confirmed" if finding is not None else "inconclusive", evidence)
        run.record(f"which-{switch.name}", f"which one: {switch.question}", verdict, "", result["seconds"])

    if run.left > 5:
        run.together([lambda switch=switch: bisect(switch) for switch in wanted])  # type: ignore[misc]
    return found


def choose(steps: Finding | None, bisected: dict[str, Finding]) -> Finding | None:
    """A step that changes the meaning is guilty. Where that is writing the schedule, or no step does, the finding of a
    bisection is preferred."""
    if steps is not None and steps.name != "schedule/write_values" and steps.kind != "error":
        return steps
    for name in PREFERRED:
        if name in bisected:
            return bisected[name]
    return steps


def confirm_rule(session: State, repro: str, guilty: Finding) -> Finding:
    """The repro is right without that rule."""
    found = session.scenarios.experiment("replay", repro, {"DISABLE_RULES": guilty.name}, TRIAL_SECONDS)
    is_right = found.get("kind") == ""
    evidence = f"without rule {guilty.name}: {found.get('text') or found.get('ending')}"
    verdict = Verdict("confirmed" if is_right else "inconclusive", evidence)
    name = f"rule {guilty.name}"
    session.scenarios.record(name, name, verdict, f"DISABLE_RULES={guilty.name}", found["seconds"])
    return guilty


def switch_of(guilty: Finding | None) -> dict[str, str]:
    """The settings without which the guilty step does not happen; none where it cannot be switched off."""
    if guilty is None:
        return {}
    off = {"fusion": "FUSE=0", "memory": "REUSE_LIMIT=0", "queue": "SERIAL_LIMIT=-1", "opt": "NOOPT=1"}
    text = f"DISABLE_RULES={guilty.name}" if guilty.kind == "rule" else off.get(guilty.kind, "")
    name, _, value = text.partition("=")
    return {name: value} if name else {}


def confirm_in_target(session: State, guilty: Finding | None) -> None:
    """The program that was given, with the guilty step off."""
    settings = switch_of(guilty)
    if session.target.kind == "repro" or not settings or session.scenarios.left < 3:
        return
    ended = session.scenarios.program(session.target.command, settings, TRIAL_SECONDS)
    failure = session.failure_of(ended)
    verdict = Verdict("confirmed" if not failure.kind else "inconclusive", f"the target: {failure.text or 'right'}")
    text = settings_text(settings)
    session.scenarios.record("target", f"the target is right with {text}", verdict, text, ended.seconds)


def write_test(session: State, repro: str, guilty: Finding | None) -> None:
    path = session.store.folder / "test_regression.py"
    found = None if guilty is None else guilty.as_json()
    path.write_text(repro_test(found, text_of(repro)), encoding="utf-8")
    session.store.update(regression=str(path), nodes=load_repro(repro).nodes)


def _finding(result: dict[str, Any]) -> Finding | None:
    found = result.get("finding")
    return Finding.from_json(found) if found else None
