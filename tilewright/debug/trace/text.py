"""A trace as text. In: a `Trace` and how deep to go. Out: lines, each step indented below what it is part of.

depth  1  the lines of the program that made work
       2  what each step scheduled; kernels with their opts and times
       3  decisions with their reasons, and the rules that fired in each pass
       4  graphs, programs and source
       5  graphs after each pass, and assembly
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.debug import describe
from tilewright.debug.describe import show_nanoseconds
from tilewright.debug.trace.facts import time_of
from tilewright.debug.trace.records import (
    Call,
    Decision,
    Kernel,
    Location,
    Node,
    Pass,
    Step,
    Trace,
    UserLine,
    node_text,
    reachable,
)

MARGIN = "  "
MAX_OPS = 8
PLACE_COLUMN = 96


def trace_text(trace: Trace, depth: int = 3) -> str:
    return "\n".join(line.rstrip() for line in trace_lines(trace, depth)) + "\n"


def trace_lines(trace: Trace, depth: int) -> Iterator[str]:
    """The whole text, line by line: a trace may be long."""
    yield summary(trace)
    for note in trace.notes:
        yield f"note: {note}"
    yield ""
    yield "lines that made work"
    for line in trace.lines:
        yield from indented(user_line_text(line, trace))
    if not trace.lines:
        yield MARGIN + "none: no values were asked for"
    if depth >= 2:
        runs: dict[int | None, list[int]] = {}
        for number, run in enumerate(trace.runs):
            runs.setdefault(run.step, []).append(number)
        for step in trace.steps:
            yield ""
            yield from step_text(step, trace, runs.get(step.number, []), depth)
        replays = [number for number in runs.get(None, []) if trace.runs[number].kind == "replay"]
        if replays:
            yield ""
            yield "replays of jitted functions"
            yield from indented(run_lines(trace, replays))
    if trace.calls:
        yield ""
        yield "lines of the package that ran, by call"
        for call in trace.calls:
            yield from indented(call_text(call))


def summary(trace: Trace) -> str:
    ran = time_of(trace.runs)
    compiled = sum(spent for kernel in trace.kernels for _, spent in kernel.stages)
    compiled += sum(step.duration for step in trace.steps)
    facts = (
        f"{counted(len(trace.steps), 'step')}, {counted(len(trace.kernels), 'kernel')} compiled in "
        f"{show_nanoseconds(compiled)}, {counted(len(trace.runs), 'run')} in {show_nanoseconds(ran)}"
    )
    return f"trace of {trace.program}: {trace.outcome} after {show_nanoseconds(trace.duration)}; {facts}"


def user_line_text(line: UserLine, trace: Trace) -> Iterator[str]:
    yield f"{place(line.line)}  {line.text}"
    if line.nodes:
        ops = ", ".join(line.ops[:MAX_OPS]) + (", ..." if len(line.ops) > MAX_OPS else "")
        yield f"{MARGIN}built {counted(line.nodes, 'node')}: {ops}"
    if line.steps:
        steps = ", ".join(map(str, line.steps[:MAX_OPS])) + (", ..." if len(line.steps) > MAX_OPS else "")
        yield f"{MARGIN}asked for values: step {steps}"
    if line.runs:
        names = ", ".join(trace.kernels[number].name for number in line.kernels[:MAX_OPS]) or "copies or replays"
        yield f"{MARGIN}ran {counted(line.runs, 'time')} in {show_nanoseconds(line.duration)}: {names}"


# ---------------------------------------------------------------- steps


def step_text(step: Step, trace: Trace, runs: list[int], depth: int) -> Iterator[str]:
    source = next((line.text for line in trace.lines if line.line == step.line), "")
    thread = "" if step.thread == "MainThread" else f", in thread {step.thread}"
    yield f"step {step.number} at {place(step.line)}{thread}  {source}"
    if step.same_as is not None:
        yield f"{MARGIN}the graph is that of step {step.same_as}: its schedule is used again"
    else:
        yield f"{MARGIN}graph of {counted(len(reachable(step.roots, step.nodes)), 'node')}"
        if depth >= 4:
            yield from indented(graph_lines(step.roots, step.nodes), 2)
    yield f"{MARGIN}schedule of {counted(len(step.items), 'item')} in {show_nanoseconds(step.duration)}"
    if depth >= 3:
        yield from indented(decision_lines(latest(step.passes)), 2)
        yield from indented(pass_lines(step.passes, step.nodes, depth), 2)
    for number, item in enumerate(step.items):
        reads, writes = ", ".join(item.reads) or "nothing", ", ".join(item.writes) or "nothing"
        yield f"{MARGIN * 2}{number} {item.name} on {item.device}: {reads} -> {writes}  {place(item.line)}"
    told: set[int] = set()
    for item in step.items:
        if item.kernel is not None and item.kernel not in told:
            told.add(item.kernel)
            kernel = trace.kernels[item.kernel]
            if kernel.step == step.number:
                yield from indented(kernel_text(kernel, depth))
            else:
                yield f"{MARGIN}kernel {kernel.name}: compiled before, see step {kernel.step}"
    yield from indented(run_lines(trace, runs))


def latest(passes: Iterable[Pass]) -> list[Decision]:
    """The decisions of all passes. A plan is made again when a pass changes it: the last decision about a value
    counts."""
    found: dict[tuple[str, Location | None], Decision] = {}
    for made in passes:
        for decision in made.decisions:
            found[decision.choice.partition(" ")[2], decision.line] = decision
    return list(found.values())


def decision_lines(decisions: Iterable[Decision]) -> Iterator[str]:
    counts: dict[tuple[str, str, str], int] = {}
    places: dict[tuple[str, str, str], Location | None] = {}
    for decision in decisions:
        key = (decision.choice, decision.reason, place(decision.line))
        counts[key] = counts.get(key, 0) + 1
        places[key] = decision.place
    for (choice, reason, line), count in counts.items():
        many = f" ({count} times)" if count > 1 else ""
        shown = "" if line == NO_PLACE else f"  {line}"
        yield aligned(f"{choice}{many}: {reason}{shown}", places[choice, reason, line])


# ---------------------------------------------------------------- kernels


def kernel_text(kernel: Kernel, depth: int) -> Iterator[str]:
    yield f"kernel {kernel.name} on {kernel.device}  {place(kernel.line)}"
    yield from indented(block("computes", kernel.expression))
    yield f"{MARGIN}opts {', '.join(kernel.opts) or 'none'}"
    if depth >= 3:
        yield from indented(decision_lines(d for made in kernel.passes for d in made.decisions), 2)
    yield f"{MARGIN}axes {' '.join(kernel.axes) or 'none'}"
    if depth >= 3:
        yield from indented(pass_lines(kernel.passes, kernel.nodes, depth))
    if depth >= 4:
        yield from indented(block("program", kernel.program))
        yield from indented(block("source", kernel.source))
    if depth >= 5:
        yield from indented(block("assembly", machine_code(kernel.assembly)))
    yield f"{MARGIN}compiled: {describe.show_stage_times(dict(kernel.stages))}"


def machine_code(assembly: str) -> str:
    from tilewright.debug.layout import machine_code  # loads rich

    return machine_code(assembly)


def pass_lines(passes: Iterable[Pass], nodes: tuple[Node, ...], depth: int) -> Iterator[str]:
    """The passes that changed something; all of them from depth 5."""
    before: tuple[int, ...] | None = None
    for made in passes:
        if made.is_changed or made.rules or depth >= 5:
            change = "" if made.is_changed else ", the graph stays as it is"
            yield aligned(f"pass {made.stage}/{made.name} in {show_nanoseconds(made.duration)}{change}", made.place)
            yield from indented(rule_lines(made))
            if made.is_changed and made.text and depth >= 4:
                yield from indented(block("computes", made.text))
            if made.is_changed and depth >= 5:
                yield from indented(difference(before, made.roots, nodes))
        before = made.roots or before


def rule_lines(made: Pass) -> Iterator[str]:
    for rule in made.rules:
        yield aligned(f"rule {rule.name}: {rule.before}  ->  {rule.after}", rule.place)
    if made.rules_left_out:
        yield f"... and {made.rules_left_out:,} more rewrites"


def difference(before: tuple[int, ...] | None, after: tuple[int, ...], nodes: tuple[Node, ...]) -> Iterator[str]:
    """The nodes that a pass removed and those that it added."""
    if before is None:
        return
    old, new = reachable(before, nodes), reachable(after, nodes)
    kept = set(old) & set(new)
    for number in old:
        if number not in kept:
            yield f"- {node_text(number, nodes[number])}"
    for number in new:
        if number not in kept:
            yield f"+ {node_text(number, nodes[number])}"


def graph_lines(roots: tuple[int, ...], nodes: tuple[Node, ...]) -> Iterator[str]:
    for number in reachable(roots, nodes):
        node = nodes[number]
        yield node_text(number, node) + ("" if node.line is None else f"  {place(node.line)}")


# ---------------------------------------------------------------- what ran


def run_lines(trace: Trace, numbers: Iterable[int]) -> Iterator[str]:
    """A line for each kernel, copy or replay, the runs of one line of the program together."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for number in numbers:
        run = trace.runs[number]
        groups.setdefault((run.kind, run.name, run.device, place(run.line)), []).append(number)
    for (kind, name, device, line), found in groups.items():
        spent = sum(trace.runs[number].duration for number in found)
        moved = sum(trace.runs[number].bytes_moved for number in found)
        done = sum(trace.runs[number].operations for number in found)
        rate = f"{describe.giga_per_second(moved, spent / 1e9)} GB/s"
        rate += f", {describe.giga_per_second(done, spent / 1e9)} GFLOP/s" if done else ""
        many = f" {len(found)} times" if len(found) > 1 else ""
        kernels = trace.runs[found[0]].names
        inside = f", {counted(len(kernels), 'kernel')}: {', '.join(dict.fromkeys(kernels))}" if kernels else ""
        yield f"ran {kind} {name} on {device}{many} in {show_nanoseconds(spent)}, {rate}{inside}  {line}"


def call_text(call: Call) -> Iterator[str]:
    origin = "" if call.caller is None else f", called at {place(call.caller)}"
    yield f"{call.function}  {call.file}{origin}"
    for line in call.lines:
        count = f"  ({line.count} times)" if line.count > 1 else ""
        yield f"{MARGIN}{line.number:4d}  {line.text}{count}"
        for inner in line.calls:
            yield from indented(call_text(inner), 4)
        if line.calls_left_out:
            yield f"{MARGIN * 4}... and {counted(line.calls_left_out, 'more call')}"


# ---------------------------------------------------------------- words

NO_PLACE = describe.show_location(None)


def place(location: Location | None) -> str:
    return describe.show_location(location)


def counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def indented(lines: Iterable[str], levels: int = 1) -> Iterator[str]:
    margin = MARGIN * levels
    for line in lines:
        yield margin + line


def block(title: str, text: str) -> Iterator[str]:
    """A title and a text below it; a text of one line beside it."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) == 1:
        yield f"{title} {lines[0]}"
        return
    yield title
    yield from indented(lines)


def aligned(text: str, where: Location | None) -> str:
    """The text, and its location in the package, in a separate column where there is room."""
    if where is None:
        return text
    return f"{text:<{PLACE_COLUMN}}  [{where[0]}:{where[1]}]"
