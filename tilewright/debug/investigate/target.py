"""What is investigated. In: the words of a command line. Out: a `Target`: a repro file, a script or a module with its
arguments, or a test; how to run it, and how to compare two runs of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.errors import FileError
from tilewright.debug.investigate.process import Ended
from tilewright.graph.text.repro import SUFFIX

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|inf|nan)\b")
# Quiet enough that no times are printed: the outputs of two runs are compared.
PYTEST = ("-x", "-qq", "--no-header", "-p", "no:cacheprovider")
_RAISED = re.compile(
    r"^(?:E\s+)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))\b(?:: )?(.*)$", re.MULTILINE
)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Target:
    """`kind` is repro, script, module or test; the words of a module begin with -m."""

    kind: str
    words: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """How it is run plainly."""
        if self.kind == "test":
            return [sys.executable, "-m", "pytest", *PYTEST, *self.words]
        return [sys.executable, *self.words]

    def observed(self, folder: str, *options: str) -> list[str]:
        """How it is run under observation."""
        return [sys.executable, "-m", "tilewright.debug.investigate.observe", folder, *options, *self.words]


def make_target(words: Sequence[str]) -> Target:
    """The first word says what it is. A leading `python` is left out: the same interpreter runs every scenario."""
    given = list(words)
    if given and os.path.basename(given[0]).startswith("python"):
        given = given[1:]
    if given[:2] == ["-m", "pytest"] or given[:1] == ["pytest"]:
        given = given[2:] if given[0] == "-m" else given[1:]
        return Target("test", tuple(given))
    if not given:
        raise FileError(
            "debug", "nothing was named", "give a repro file, a script, or a test such as tests/x.py::test_y"
        )
    if given[0] == "-m" and len(given) > 1:
        return Target("module", tuple(given))
    path = given[0].partition("::")[0]
    if not os.path.exists(path):
        raise FileError("debug", f"{path} does not exist", "give a repro file, a script, or a test")
    if "::" in given[0]:
        return Target("test", tuple(given))
    return Target("repro" if path.endswith(SUFFIX) else "script", tuple(given))


@dataclass(frozen=True)
class Failure:
    """How a program fails: `kind` is the same for failures alike, and empty for none."""

    kind: str
    text: str


def failure_of(ended: Ended, reference: Ended | None, again: Ended | None = None) -> Failure:
    """A program fails where it does not end well, or prints other numbers than the reference does. `again` is a second
    plain run: differences between two of these are ignored."""
    if ended.ending != "finished":
        return Failure(ended.ending, ended.words)
    if ended.status:
        raised = _RAISED.findall(ended.errors) or _RAISED.findall(ended.output)
        name, message = raised[-1] if raised else (f"status {ended.status}", "")
        return Failure(name, f"{name}: {message}".strip(": "))
    if reference is not None and reference.is_success:
        difference = compare_output(ended.output, reference.output, None if again is None else again.output)
        if difference:
            return Failure("other output", difference)
    return Failure("", "")


def compare_output(got: str, want: str, again: str | None = None) -> str:
    """How two outputs differ, as words; numbers agree within a thousandth, the text around them is the same. `again` is
    the output of the same as `got` was: where these two differ nothing is compared."""
    if got == want:
        return ""
    numbers, wanted = _NUMBER.findall(got), _NUMBER.findall(want)
    repeated = numbers if again is None else _NUMBER.findall(again)
    if again is not None and _NUMBER.sub("#", got) != _NUMBER.sub("#", again):
        return ""
    if len(numbers) != len(wanted) or _NUMBER.sub("#", got) != _NUMBER.sub("#", want):
        return "the output is another text"
    for first, second, other in zip(numbers, wanted, repeated, strict=True):
        if not _are_equal(first, second) and _are_equal(first, other):
            return f"it prints {first} instead of {second}"
    return ""


def _are_equal(first: str, second: str) -> bool:
    left, right = _value(first), _value(second)
    if left == right or (left != left and right != right):
        return True
    return abs(left - right) <= TOLERANCE * max(1.0, abs(right))


def _value(text: str) -> float:
    return float(int(text, 16)) if text.startswith("0x") else float(text)
