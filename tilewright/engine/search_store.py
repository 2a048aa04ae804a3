"""What searches found, on disk. In: a kernel and a target. Out: the records of its search, in this or another process.
One readable JSON file per kernel and target: the folder can be copied to any machine with the same target."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import fields
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import emit, listeners
from tilewright.base.target import Target
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.show import show
from tilewright.graph.uop import UOp
from tilewright.kernel.search import Opts, Search, Trial
from tilewright.runtime.cache import cache_folder

VERSION = 1
# Another compiler makes other code, but what to ask of it stays good; a name says nothing of a kernel.
_NOT_IN_KEY = frozenset({"toolchain"})


def kernel_text(sink: UOp) -> str:
    return show(sink.replace(arg=KernelInfo("kernel", sink.arg.opts_to_apply)))


def target_text(target: Target) -> str:
    facts = []
    for fact in fields(target):
        value = getattr(target, fact.name)
        if fact.name not in _NOT_IN_KEY:
            facts.append(f"{fact.name}={sorted(map(str, value)) if isinstance(value, frozenset) else value!r}")
    return " ".join(facts)


def search_folder() -> str:
    return os.path.join(cache_folder(), "search")


def _path(sink: UOp, target: Target) -> str:
    digest = hashlib.sha256(f"{VERSION}\n{target_text(target)}\n{kernel_text(sink)}".encode()).hexdigest()
    return os.path.join(search_folder(), f"{target.name.lower()}-{digest[:32]}.json")


def read_search(sink: UOp, target: Target) -> Search | None:
    """The records of an earlier search. A damaged file counts as none and is written anew."""
    if not options.CACHE:
        return None
    try:
        with open(_path(sink, target), encoding="utf-8") as file:
            record = json.load(file)
        if record["kernel"] != kernel_text(sink) or record["target"] != target_text(target):
            return None
        trials = [_trial_from(entry) for entry in record["trials"]]
        return Search({trial.opts: trial for trial in trials}, bool(record["complete"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if listeners:
            emit("warning", message=f"the records of a search cannot be read and are made anew: {error}")
        return None


def write_search(sink: UOp, target: Target, search: Search) -> None:
    """Keeps the records. The file appears whole or not at all."""
    if not options.CACHE:
        return
    best = search.best
    record = {
        "complete": search.is_complete,
        "best": None if best is None else _trial_to(best),
        "target": target_text(target),
        "kernel": kernel_text(sink),
        "trials": [_trial_to(trial) for trial in search.trials.values()],
    }
    path = _path(sink, target)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        if listeners:
            emit("warning", message=f"the records of a search cannot be written: {error}")


def _trial_to(trial: Trial) -> dict[str, Any]:
    opts = [[opt.op.name, opt.axis, opt.arg] for opt in trial.opts]
    return {"opts": opts, "seconds": trial.seconds, "reason": trial.reason}


def _trial_from(entry: dict[str, Any]) -> Trial:
    opts: Opts = tuple(Opt(OptOps[name], axis, _argument(argument)) for name, axis, argument in entry["opts"])
    seconds = entry["seconds"]
    return Trial(opts, None if seconds is None else float(seconds), str(entry["reason"]))


def _argument(value: Any) -> Any:
    """JSON has lists where an opt has tuples."""
    return tuple(_argument(part) for part in value) if isinstance(value, list) else value
