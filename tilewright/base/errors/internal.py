"""Bugs of Tilewright, found by a stage, by verification or by a toolchain. Each error says how to report it."""

from __future__ import annotations

from tilewright.base.errors.root import TilewrightError
from tilewright.base.location import Location

_REPORT = (
    "this is a bug in Tilewright. Run the program again with VERIFY_GRAPH=1 DEBUG=5 and send what it prints: "
    "the last graph shown is the reproduction"
)


class InternalError(TilewrightError):
    """An invariant of Tilewright does not hold. The caller did nothing wrong."""

    def __init__(self, message: str, *, location: Location | None = None) -> None:
        super().__init__("internal error", message, _REPORT, location=location)
        self.args = (message,)


class VerifyError(InternalError):
    """A graph breaks the specification of its stage; names the stage, the pass that made it and the node."""

    def __init__(self, message: str, *, stage: str = "", pass_name: str = "", node: object = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.pass_name = pass_name
        # Text, not the node: an error must not keep a graph alive, and must cross a process boundary.
        self.node = "" if node is None else str(node)

    def _details(self) -> list[str]:
        named = (("stage", self.stage), ("pass", self.pass_name), ("node", self.node))
        return [f"  {label}: {value}" for label, value in named if value]


class KernelDifferenceError(InternalError):
    """An optimised kernel gives a different result than the unoptimised one. `kernel` is its name, `repro` the file
    that replays it. The engine sets the user's line, since a cached kernel may serve several."""

    def __init__(self, message: str, *, kernel: str = "", repro: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel
        self.repro = repro
        if repro:
            self.remedy = f"this is a bug in Tilewright: `tilewright debug {repro}` finds the step at fault"

    def _details(self) -> list[str]:
        return [f"  {label}: {text}" for label, text in (("kernel", self.kernel), ("repro", self.repro)) if text]


class CompileError(InternalError):
    """A toolchain refused the source a renderer wrote. `source` holds that source, shown with line numbers."""

    def __init__(self, message: str, *, source: str = "") -> None:
        super().__init__(message)
        self.source = source

    def _details(self) -> list[str]:
        return [f"  {number:4d} | {line}" for number, line in enumerate(self.source.splitlines(), start=1)]
