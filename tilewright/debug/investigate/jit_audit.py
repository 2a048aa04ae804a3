"""Replays against their functions. In: the calls of jitted functions while a program runs. Out: a finding where a
replay differs from a plain call of the function, with the first constant of the record that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.debug.investigate.finding import Finding
from tilewright.engine.compilation.difference import find_difference
from tilewright.engine.jit.arguments import flatten
from tilewright.engine.jit.jit import Jit
from tilewright.graph.ops import Ops
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

Runs = list[tuple[UOp, ...]]


class JitAudit:
    """`runs` has the graph of each run of the program so far; a replay adds none."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.runs: Runs = []
        self._recorded: dict[int, Runs] = {}  # by jitted function: the graphs of its last traced call
        self._is_busy = False

    def install(self) -> None:
        """Wraps `Jit.__call__`, so that every replay is compared."""
        inner = Jit.__call__
        audit = self

        def call(jitted: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(audit.runs)
            result = inner(jitted, *args, **kwargs)
            if audit._is_busy:
                return result
            if jitted.last_reason:
                audit._recorded[id(jitted)] = audit.runs[before:]
            elif not audit.findings and not _overwrites(jitted):
                audit._compare(jitted, result, args, kwargs)
            return result

        setattr(Jit, "__call__", call)  # noqa: B010 - a method of a generic class, which mypy has no type for

    def _compare(self, jitted: Any, result: Any, args: Any, kwargs: Any) -> None:
        before = len(self.runs)
        self._is_busy = True
        try:
            plain = jitted.function(*args, **kwargs)
            found, expected = _values(result), _values(plain)
        finally:
            self._is_busy = False
        for got, want in zip(found, expected, strict=False):
            difference = find_difference(got.numpy(), want.numpy(), want.dtype)
            if difference is not None:
                name = getattr(jitted, "__name__", "function")
                recorded, now = self._recorded.get(id(jitted), []), self.runs[before:]
                text = f"a replay of {name} differs from a plain call: {difference}{_changed(recorded, now)}"
                self.findings.append(Finding("jit", name, text, _shown(recorded), _shown(now)))
                return


def _overwrites(jitted: Any) -> bool:
    """Whether a call changes memory that it was given: calling the function once more would change it twice."""
    _, entry = jitted._latest
    return entry.ready is None or bool(entry.ready.replay.written) or entry.ready.leaves_behind


def _values(result: Any) -> list[Any]:
    tensors: list[Any] = []
    flatten(result, tensors)
    return tensors


def _changed(recorded: Runs, now: Runs) -> str:
    """The first constant in which the recorded graphs differ from the present ones."""
    for before, after in zip(recorded, now, strict=False):
        for left, right in zip(toposort(*before), toposort(*after), strict=False):
            if left.op is right.op is Ops.CONST and left is not right:
                return f"; the record has the constant {left.arg}, the function now has {right.arg}"
    return ""


def _shown(runs: Sequence[tuple[UOp, ...]]) -> str:
    return "\n".join(show(node) for outputs in runs for node in outputs)
