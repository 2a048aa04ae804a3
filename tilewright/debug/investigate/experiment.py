"""One experiment on a repro, in a separate process. In: its name, a repro file, settings. Out: a JSON file. Run as

    python -m tilewright.debug.investigate.experiment RESULT.json NAME FILE.repro [OPTION=VALUE ...] [device=D]

replay            how it ends with these settings
switches          how it ends with each of several settings, and with all but these off: each in a child process
reduce            the smallest repro that fails alike, written beside the result
steps             the first step that changes what the graph means
bisect-X          the first opt, pass, rewrite, fusion or buffer (X) with which it fails
waits             the first item that is not waited for"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tilewright.base.config import DECLARATIONS
from tilewright.debug.investigate.bisect import bisect, find_missing_wait
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.reduce import reduce_repro
from tilewright.debug.investigate.steps import examine
from tilewright.debug.investigate.trial import in_child, try_repro
from tilewright.graph.text.repro import Repro, load_repro, write_repro

REDUCE_SECONDS = 30.0
STEPS_SECONDS = 60.0
KEPT_PATTERN: tuple[dict[str, Any], ...] = ({"NOOPT": 1}, {"REWRITE_LIMIT": 0})


def run_experiment(name: str, repro: Repro, path: str, words: dict[str, str]) -> dict[str, Any]:
    if name == "replay":
        outcome = try_repro(repro, parsed(words), words.get("device", ""))
        return {"kind": outcome.kind, "text": outcome.text}
    if name == "switches":
        return {"results": [_try_switch(repro, trial, words["kind"]) for trial in json.loads(words["trials"])]}
    if name == "reduce":
        return _reduce(repro, path, float(words.get("seconds", REDUCE_SECONDS)))
    if name == "steps":
        found = in_child(lambda: _json(examine(repro)), STEPS_SECONDS)
        return {"finding": found.get("value"), "text": found.get("ending", "")}
    if name == "waits":
        return {"finding": _json(find_missing_wait(repro))}
    return {"finding": _json(bisect(repro, name.removeprefix("bisect-")))}


def _try_switch(repro: Repro, trial: dict[str, Any], kind: str) -> dict[str, Any]:
    started = time.monotonic()
    outcome = try_repro(repro, parsed(trial["settings"]), trial["device"])
    alone = ""
    if not outcome.kind:
        alone = try_repro(repro, parsed(trial["others"])).kind
    seconds = time.monotonic() - started
    return {"kind": outcome.kind, "text": outcome.text, "is_enough": alone == kind, "seconds": seconds}


def parsed(words: dict[str, str]) -> dict[str, Any]:
    """Settings from text; what is not an option is left out."""
    return {key: DECLARATIONS[key].parse(value) for key, value in words.items() if key in DECLARATIONS}


def _json(finding: Finding | None) -> dict[str, Any] | None:
    return None if finding is None else finding.as_json()


def _reduce(repro: Repro, path: str, seconds: float) -> dict[str, Any]:
    before = try_repro(repro)
    if not before.kind:
        return {"kind": "", "nodes": repro.nodes}
    # A smaller case must react to these settings as the repro does. One that does not fails for another reason, as a
    # sum of cancelling numbers does when an opt takes it in another order.
    pattern = [(setting, try_repro(repro, setting).kind) for setting in KEPT_PATTERN]

    def fails(candidate: Repro) -> bool:
        if try_repro(candidate, seconds=10.0).kind != before.kind:
            return False
        return all(try_repro(candidate, setting, seconds=10.0).kind == kind for setting, kind in pattern)

    small = reduce_repro(repro, fails, seconds)
    after = try_repro(small)
    with open(path, "w", encoding="utf-8") as file:
        file.write(write_repro(small))
    return {"kind": before.kind, "nodes": small.nodes, "from": repro.nodes, "path": path, "text": after.text}


def main(arguments: Sequence[str]) -> None:
    result, name, path, *rest = arguments
    words = dict(word.partition("=")[::2] for word in rest)
    found = run_experiment(name, load_repro(path), result.removesuffix(".json") + ".repro", words)
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
