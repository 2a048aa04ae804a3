"""Steps checked where the program runs. In: a schedule that was wrong there. Out: a file beside it with the step that
breaks it, and the smallest graph that still fails there. The fault may be in the program itself: a rule, a transform or
a backend that it added, a part of the package that it replaced. Replayed alone the schedule is then right."""

from __future__ import annotations

import json
import os
from typing import Any

from tilewright.base.records import replace
from tilewright.debug.investigate.reduce import reduce_repro
from tilewright.debug.investigate.steps import examine
from tilewright.debug.investigate.trial import counted_replay
from tilewright.graph.text.repro import Repro, write_repro

RESULT, SMALLEST = "steps.json", "smallest.repro"
REDUCE_SECONDS = 20.0


def examine_in_place(repro: Repro, folder: str) -> None:
    """Runs in this process, because not every driver works in a forked child. So the result is written as soon as there
    is one, and again for a smaller graph."""
    if not _examined(repro, folder):
        return
    # Memory that nothing writes may have the right contents from the run before: then there is nothing to reduce.
    kind = counted_replay(repro).kind
    if kind:
        small = reduce_repro(repro, lambda candidate: counted_replay(candidate).kind == kind, REDUCE_SECONDS)
        _examined(small, folder)


def _examined(repro: Repro, folder: str) -> bool:
    found = examine(repro)
    if found is None:
        return False
    path = os.path.join(folder, SMALLEST)
    with open(path, "w", encoding="utf-8") as file:
        file.write(write_repro(replace(repro, note=found.text)))
    result: dict[str, Any] = {"finding": found.as_json(), "path": path}
    whole = os.path.join(folder, f"{RESULT}.new")
    with open(whole, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(whole, os.path.join(folder, RESULT))
    return True
