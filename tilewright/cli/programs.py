"""A user's program, run inside this process. In: a script or the name of a module, and its arguments. Out: how
it ended. `bench`, `trace` and `viz` run programs with this, as `python` would."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tilewright.base.errors import ConfigError, FileError

INTERRUPTED = 130


class Outcome(NamedTuple):
    """How a program ended: its exit status, and that in words."""

    status: int
    words: str


@dataclass(frozen=True)
class Script:
    """A user's program: a file, or a module by name."""

    path: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def __str__(self) -> str:
        return " ".join(("-m", self.path, *self.arguments) if self.is_module else (self.path, *self.arguments))

    def run(self) -> None:
        with self.started():
            if self.is_module:
                runpy.run_module(self.path, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.path, run_name="__main__")

    def run_to_end(self) -> Outcome:
        """Runs it, and shows what it raises as Python does. An error ends the program, not the command that runs it."""
        try:
            self.run()
        except SystemExit as done:
            return exit_outcome(done)
        except KeyboardInterrupt:
            return Outcome(INTERRUPTED, "interrupted")
        except Exception as error:  # the program's own
            traceback.print_exc()
            return Outcome(1, f"raised {type(error).__name__}: {error}")
        return Outcome(0, "finished")

    @contextmanager
    def started(self) -> Iterator[None]:
        """Sets `sys.argv` and `sys.path[0]` as Python does for a program."""
        before, first = sys.argv, sys.path[0]
        sys.argv = [self.path, *self.arguments]
        sys.path[0] = "" if self.is_module else str(Path(self.path).resolve().parent)
        try:
            yield
        finally:
            sys.argv, sys.path[0] = before, first

    def is_there(self) -> bool:
        if not self.is_module:
            return Path(self.path).is_file()
        with self.started():
            try:
                return importlib.util.find_spec(self.path) is not None
            except ModuleNotFoundError:  # of a package around it
                return False


def exit_outcome(done: SystemExit) -> Outcome:
    """What `sys.exit` was given: a number is the status, nothing is 0, and a message is 1 after it was printed."""
    if done.code is None or isinstance(done.code, int):
        status = int(done.code or 0)
        return Outcome(status, f"exited with status {status}" if status else "finished")
    print(done.code, file=sys.stderr)
    return Outcome(1, f"exited: {done.code}")


def find_program(operation: str, given: tuple[str, ...], module: str) -> Script:
    """The program that the arguments of a command name."""
    if module:
        found = Script(module, given, is_module=True)
        if not found.is_there():
            raise ConfigError(operation, f"there is no module {module!r}", "name one that Python can import")
        return found
    if not given:
        raise ConfigError(operation, "nothing to run", "name a script, or a module with `-m MODULE`")
    script = Script(given[0], tuple(given[1:]))
    if not script.is_there():
        raise FileError(operation, f"there is no script {given[0]}", "name a file that exists")
    return script
