"""The records of a trace: frozen, of plain values, filled by `recorder.py` and `lines.py`. The text, the JSON, the page
and the profile are all made from these.

Nodes are kept in pools. A pool holds every distinct node that one graph had at any time, and a graph is its roots, as
numbers into the pool: a node that two passes share has one number, so what a pass changed is a difference of
sets. Times are nanoseconds since the trace began."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT = 1

Location = tuple[str, int]  # file and line


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a graph; `src` are numbers of the same pool."""

    op: str
    dtype: str
    shape: str
    arg: str
    src: tuple[int, ...]
    line: Location | None  # of the user


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite: which rule of which set, and the expression before and after it; the numbers of both in the pool."""

    name: str
    ruleset: str
    before: str
    after: str
    place: Location | None  # where the rule is written
    line: Location | None  # of the user
    nodes: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice between correct alternatives: what was chosen, why, and where in the package."""

    stage: str
    choice: str
    reason: str
    place: Location | None
    line: Location | None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: the graph that it left (its roots, and its text where it changed) and what happened in it."""

    stage: str
    name: str
    place: Location | None
    start: int
    duration: int
    is_changed: bool
    roots: tuple[int, ...]
    text: str
    rules: tuple[Rule, ...]
    rules_left_out: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One step of a schedule: a kernel or a copy, with what it reads and writes."""

    name: str
    device: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    line: Location | None
    kernel: int | None  # its number in the trace; None for a copy


@dataclass(frozen=True, slots=True)
class Step:
    """One realisation of values: the graph, the passes that scheduled it, and the items that were to run.

    `same_as` is an earlier step with an equal graph, whose schedule was used again: it holds the graph and the passes.
    """

    number: int
    line: Location | None  # of the user, where the values were asked for
    thread: str
    start: int
    duration: int  # of scheduling
    same_as: int | None
    nodes: tuple[Node, ...]
    roots: tuple[int, ...]
    passes: tuple[Pass, ...]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The result of each stage for one kernel, in order."""

    number: int
    step: int | None  # that it was compiled for
    name: str
    device: str
    line: Location | None
    expression: str
    nodes: tuple[Node, ...]
    roots: tuple[int, ...]  # as scheduled
    passes: tuple[Pass, ...]
    opts: tuple[str, ...]
    axes: tuple[str, ...]
    optimised: str
    program: str
    source: str
    assembly: str
    operations: int
    bytes_moved: int
    stages: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Something that ran on a device: a kernel, a copy, or the replay of a jitted function (`names` of its kernels)."""

    kind: str
    name: str
    device: str
    start: int
    duration: int
    operations: int
    bytes_moved: int
    line: Location | None
    thread: str
    step: int | None
    kernel: int | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Time that a stage of the compiler took, in a thread of the host."""

    stage: str
    name: str
    start: int
    duration: int
    thread: str
    line: Location | None


@dataclass(frozen=True, slots=True)
class Level:
    """How much memory of a device was allocated at a time."""

    time: int
    device: str
    allocated: int


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the package that ran: how often in one call, and the calls made there."""

    number: int
    text: str
    count: int
    calls: tuple[Call, ...]
    calls_left_out: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the package, its lines in the order in which they first ran."""

    function: str
    file: str
    caller: Location | None  # of the user, for a call from outside of the package
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class UserLine:
    """A line of the user's program that made work: the nodes it built, and the kernels and copies that ran for it."""

    line: Location
    text: str
    nodes: int
    ops: tuple[str, ...]
    kernels: tuple[int, ...]
    steps: tuple[int, ...]  # where values were asked for at this line
    runs: int
    duration: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A program from its lines to machine code. `notes` are warnings, and what was left out because of a limit."""

    format: int
    program: str
    outcome: str
    versions: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    duration: int
    lines: tuple[UserLine, ...]
    steps: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    runs: tuple[Run, ...]
    spans: tuple[Span, ...]
    memory: tuple[Level, ...]
    calls: tuple[Call, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The runs with their times: the part of a trace that a profile has."""

    program: str
    runs: tuple[Run, ...]
    spans: tuple[Span, ...]
    memory: tuple[Level, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a trace keeps. What is beyond is counted and said in `Trace.notes`."""

    steps: int = 2_000
    kernels: int = 2_000
    runs: int = 50_000
    rules: int = 400  # of one pass
    nodes: int = 50_000  # of one pool
    text: int = 200_000  # characters of one source, program or assembly
    expression: int = 600  # characters of one side of a rule
    levels: int = 50_000
    source_lines: int = 100_000
    calls: int = 3  # of the same function at one line of one call
    assembly: bool = True


def reachable(roots: tuple[int, ...], nodes: tuple[Node, ...]) -> list[int]:
    """The numbers of the nodes of a graph, sources before their users."""
    found: dict[int, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        number, is_done = stack.pop()
        if number in found:
            continue
        if is_done:
            found[number] = None
        else:
            stack.append((number, True))
            stack.extend((src, False) for src in reversed(nodes[number].src) if src not in found)
    return list(found)


def node_text(number: int, node: Node) -> str:
    """`%3 = ADD float32 %1 %2  # (4, 4)`."""
    parts = [f"%{number} = {node.op} {node.dtype}", *(f"%{src}" for src in node.src)]
    if node.arg:
        parts.append(node.arg)
    return " ".join(parts) + (f"  # {node.shape}" if node.shape else "")
