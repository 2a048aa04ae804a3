"""Search results on disk. In: a kernel and a target. Out: the records of its search, in this or another process.
One readable JSON file per kernel and target: the folder can be copied to any machine with the same target."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import emit
from tilewright.base.records import replace
from tilewright.base.target import Target
from tilewright.engine.compilation.stored import frozen, target_text
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.kernel.search import Opts, Search, Trial
from tilewright.runtime.cache import usable_folder
from tilewright.runtime.sealed import MAX_ENTRY_BYTES, make_folder, read_plain, write_plain

VERSION = 3
_FOLDER = "search"


def kernel_text(sink: UOp) -> str:
    return show(sink.replace(arg=KernelInfo("kernel", sink.arg.opts_to_apply)))


def _target_text(target: Target) -> str:
    """The target without its toolchain: opts that were found with one compiler are kept for another."""
    return target_text(replace(target, toolchain=""))


def _name(sink: UOp, target: Target) -> str:
    digest = hashlib.sha256(f"{VERSION}\n{_target_text(target)}\n{kernel_text(sink)}".encode()).hexdigest()
    return f"{target.name.lower()}-{digest[:32]}.json"


def read_search(sink: UOp, target: Target) -> Search | None:
    """The records of an earlier search. A damaged file is ignored and rewritten."""
    folder = usable_folder() if options.CACHE else None
    if folder is None:
        return None
    try:
        record = json.loads(read_plain(os.path.join(folder, _FOLDER, _name(sink, target)), MAX_ENTRY_BYTES))
        if record.pop("checksum") != _checksum(record):
            raise ValueError("the checksum is another's")
        if record["kernel"] != kernel_text(sink) or record["target"] != _target_text(target):
            raise ValueError("they are those of another kernel")
        trials = [_trial_from(entry) for entry in record["trials"]]
        return Search({trial.opts: trial for trial in trials}, bool(record["complete"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        emit("warning", message=f"the records of a search cannot be read and are discarded: {error}")
        return None


def write_search(sink: UOp, target: Target, search: Search) -> None:
    """Keeps the records. The file appears whole or not at all."""
    folder = usable_folder() if options.CACHE else None
    if folder is None:
        return
    best = search.best
    record: dict[str, Any] = {
        "complete": search.is_complete,
        "best": None if best is None else _trial_to(best),
        "target": _target_text(target),
        "kernel": kernel_text(sink),
        "trials": [_trial_to(trial) for trial in search.trials.values()],
    }
    record["checksum"] = _checksum(record)
    try:
        path = os.path.join(make_folder(folder, _FOLDER), _name(sink, target))
        write_plain(path, json.dumps(record, indent=1).encode())
    except OSError as error:
        emit("warning", message=f"the records of a search cannot be written: {error}")


def _checksum(record: dict[str, Any]) -> str:
    """A digest of the values: a reformatted file has the same one."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _trial_to(trial: Trial) -> dict[str, Any]:
    opts = [[opt.op.name, opt.axis, opt.arg] for opt in trial.opts]
    return {"opts": opts, "seconds": trial.seconds, "reason": trial.reason}


def _trial_from(entry: dict[str, Any]) -> Trial:
    opts: Opts = tuple(Opt(OptOps[name], axis, frozen(argument)) for name, axis, argument in entry["opts"])
    seconds = entry["seconds"]
    return Trial(opts, None if seconds is None else float(seconds), str(entry["reason"]))
