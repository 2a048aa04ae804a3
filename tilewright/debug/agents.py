"""Tools for an agent. In: names, paths and commands, as text. Out: plain values. `tilewright mcp` offers these
functions as tools of the Model Context Protocol; nothing here knows the protocol.

A program is run in a separate process, with limits of time and output: whatever it prints or breaks, the caller
continues. Investigations are those of `sessions.py`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import ConfigError, FileError
from tilewright.debug import sessions
from tilewright.debug.investigate.process import Ended, Processes
from tilewright.debug.propose import propose
from tilewright.debug.trace.encode import is_trace, read_trace
from tilewright.debug.trace.records import Kernel, Trace
from tilewright.debug.trace.text import kernel_text, trace_text
from tilewright.graph.text.repro import SUFFIX

Values = dict[str, Any]

DEFAULT_SECONDS = 120.0
MAX_TEXT = 40_000
PARTS = ("all", "expression", "opts", "program", "source", "assembly", "passes")
# Texts in the answer of `check_investigation` are cut after this many characters.
SHORT = 2_000


class Workbench:
    """The tools, and the processes and files that they use. `close` ends and removes both."""

    def __init__(self) -> None:
        self._processes = Processes(lambda groups: None)
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        self._count = 0

    def close(self) -> None:
        self._processes.cancel()
        self._folder.cleanup()

    # ------------------------------------------------------------ investigations

    def start_investigation(self, command: Sequence[str], seconds: float = 110.0, jobs: int = 2) -> Values:
        """Investigate a failure by experiment: a repro file, a script with its arguments, or a test such as
        tests/x.py::test_y. Returns at once; check_investigation tells how far it is."""
        if not seconds > 0 or jobs < 1:
            raise ConfigError("start_investigation", f"{seconds} seconds, {jobs} jobs", "give positive numbers")
        return {"session": sessions.start(command, seconds=seconds, jobs=jobs)}

    def check_investigation(self, session: str) -> Values:
        """What is known so far: status (running, done, cancelled, failed), each hypothesis with its verdict and
        evidence, the guilty step once it is found, and earlier sessions with the same failure."""
        found: Values = _shortened(sessions.check(session))
        return found

    def add_observation(self, session: str, text: str) -> Values:
        """Tell an investigation something, such as 'it passes with JIT=0'; what it makes likely is tried first."""
        sessions.observe(session, text)
        return {"session": session, "observed": text}

    def cancel_investigation(self, session: str) -> Values:
        """End an investigation and every process that it has started."""
        sessions.cancel(session)
        return {"session": session, "status": sessions.check(session)["status"]}

    def list_investigations(self) -> list[Values]:
        """The investigations of this project, the latest first."""
        return sessions.list_sessions()

    def propose_hypotheses(self, session: str, address: str, model: str = "") -> Values:
        """Ask a language model at an address in OpenAI's form (such as http://127.0.0.1:8000/v1) for options that an
        investigation has not tried. Each is run, and recorded with its verdict: a proposal alone counts for nothing."""
        return {"session": session, "hypotheses": propose(session, address, model)}

    # ------------------------------------------------------------ kernels

    def trace(self, command: Sequence[str], depth: int = 2, seconds: float = DEFAULT_SECONDS) -> Values:
        """Run a script with its arguments and tell what became of each line, as text of that depth (1 to 5), and in a
        file that show_kernel reads."""
        if not command:
            raise ConfigError("trace", "nothing to run", "give a script and its arguments")
        if not Path(command[0]).is_file():
            raise FileError("trace", f"there is no script {command[0]}", "name a file that exists")
        return self._trace([command[0], "--", *command[1:]], depth, seconds)

    def show_kernel(self, file: str, kernel: str = "", part: str = "all") -> Values:
        """A kernel of a trace, or of a repro file or script, which is traced first: what it computes, opts and their
        reasons, program, source, assembly, or the passes that led to it. Without a name: the kernels that there are."""
        if part not in PARTS:
            raise ConfigError("show_kernel", f"a kernel has no {part!r}", f"ask for one of: {', '.join(PARTS)}")
        found, path = self._find_trace(file)
        if not kernel and len(found.kernels) != 1:
            listed = [{"name": k.name, "device": k.device, "computes": _cut(k.expression, 300)} for k in found.kernels]
            return {"file": str(path), "kernels": listed}
        matching = [each for each in found.kernels if not kernel or each.name == kernel]
        if not matching:
            names = ", ".join(each.name for each in found.kernels[:20]) or "none"
            raise ConfigError("show_kernel", f"no kernel is called {kernel!r}", f"there are: {names}")
        return {"file": str(path), "kernel": matching[0].name, "text": _cut(part_text(matching[0], part), MAX_TEXT)}

    def replay(self, file: str, device: str = "", seconds: float = DEFAULT_SECONDS) -> Values:
        """Replay a repro file on a device, and compare it with the definition."""
        if not Path(file).exists():
            raise FileError("replay", f"{file} does not exist", "name a repro file, or a folder of them")
        given = ["replay", file, *(["--device", device] if device else [])]
        return _ended(self._run(given, seconds))

    # ------------------------------------------------------------ processes

    def _find_trace(self, file: str) -> tuple[Trace, Path]:
        path = Path(file)
        if not path.is_file():
            raise FileError("show_kernel", f"{file} does not exist", "name a trace, a repro file or a script")
        if is_trace(path):
            return read_trace(path), path
        words = ["-m", "tilewright", "--", "replay", file] if file.endswith(SUFFIX) else [file]
        made = Path(self._trace(words, 1, DEFAULT_SECONDS)["file"])
        return read_trace(made), made

    def _trace(self, words: Sequence[str], depth: int, seconds: float) -> Values:
        self._count += 1
        path = Path(self._folder.name, f"trace-{self._count}.json")
        ended = self._run(["trace", "--depth", "0", "--json", str(path), *words], seconds)
        if not path.is_file():
            reason = (ended.errors or ended.output).strip().splitlines()[-1:] or [ended.words]
            raise ConfigError("trace", f"the program {ended.words}: {reason[0]}", "fix it, or give it more seconds")
        text = trace_text(read_trace(path), min(5, max(1, depth)))
        return {**_ended(ended), "file": str(path), "trace": _cut(text, MAX_TEXT)}

    def _run(self, words: Sequence[str], seconds: float) -> Ended:
        return self._processes.run([sys.executable, "-m", "tilewright", *words], {}, seconds)


def part_text(kernel: Kernel, part: str) -> str:
    if part in ("all", "passes"):
        return "\n".join(kernel_text(kernel, 5 if part == "passes" else 4))
    if part == "opts":
        reasons = [f"{d.choice}: {d.reason}" for made in kernel.passes for d in made.decisions]
        return "\n".join([", ".join(kernel.opts) or "none", *reasons])
    return str(getattr(kernel, part))


def _ended(ended: Ended) -> Values:
    output, errors = _cut(ended.output, MAX_TEXT), _cut(ended.errors, MAX_TEXT)
    return {"ending": ended.words, "status": ended.status, "output": output, "errors": errors}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n... ({len(text) - limit} more characters)"


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    return _cut(value, SHORT) if isinstance(value, str) else value
