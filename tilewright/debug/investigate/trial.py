"""One trial of a repro in a child process. In: a repro, settings, a limit of time. Out: its `Outcome`, also where the
kernel crashes the interpreter or never ends. The parent runs no kernel itself, so that forking it is safe."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.quota import reset_quotas
from tilewright.debug.replay import Outcome, replay
from tilewright.engine.compilation.difference import Difference
from tilewright.graph.passes import reset_pass_count
from tilewright.graph.rewrite import reset_rewrite_count
from tilewright.graph.text.repro import Repro

DEFAULT_SECONDS = 20.0


def try_repro(
    repro: Repro, settings: Mapping[str, Any] | None = None, device: str = "", seconds: float = DEFAULT_SECONDS
) -> Outcome:
    """The outcome of a replay, in a child."""
    found = in_child(lambda: _as_json(counted_replay(repro, device, **(settings or {}))), seconds)
    return _from_json(found)


def counted_replay(repro: Repro, device: str = "", **settings: Any) -> Outcome:
    """A replay that counts rewrites, passes and opts from zero."""
    reset_quotas()
    reset_pass_count()
    reset_rewrite_count()
    return replay(repro, device, **settings)


def in_child(work: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """The result of a function, as JSON, computed in a child: {"value": ...} or {"ending": why there is none}."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(work, reader, writer)
    os.close(writer)
    data = bytearray()
    deadline = time.monotonic() + seconds
    ending = ""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            ending = f"no end after {seconds:.0f} s"
            os.kill(child, signal.SIGKILL)
            break
        block = os.read(reader, 1 << 16)
        if not block:
            break
        data += block
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if ending:
        return {"ending": ending}
    if os.WIFSIGNALED(status):
        return {"ending": f"crash with {signal.Signals(os.WTERMSIG(status)).name}"}
    if not data:
        return {"ending": f"exit with status {os.waitstatus_to_exitcode(status)}"}
    return {"value": json.loads(data)}


def _run_child(work: Callable[[], Any], reader: int, writer: int) -> None:
    """Leaves by `_exit`, so that the exit handlers of the parent do not run here."""
    os.close(reader)
    status = 1
    try:
        text = json.dumps(work()).encode()
        while text:
            text = text[os.write(writer, text) :]
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    difference = None if outcome.difference is None else list(outcome.difference)
    return {"difference": difference, "output": outcome.output, "error": outcome.error, "kind": outcome.error_kind}


def _from_json(found: dict[str, Any]) -> Outcome:
    if "ending" in found:
        return Outcome(error=found["ending"], error_kind=found["ending"])
    value = found["value"]
    difference = value["difference"]
    if difference is not None:
        position, coordinates, got, want, wrong, size = difference
        made = Difference(position, tuple(coordinates), got, want, wrong, size)
        return Outcome(made, value["output"])
    return Outcome(None, value["output"], value["error"], value["kind"])
