"""The rules of a linear program: order, loops, scopes, accumulators, parameters. In: a Program whose nodes have been
checked one by one. Out: a node and what is wrong with it, or None. `verify.py` applies the table at the end.
The scope of a value is the loops open where it is computed; it must hold wherever the value is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.uop import UOp, memory_of

Fault = tuple[UOp, str]

_GROUP_KINDS = frozenset({AxisType.LOCAL, AxisType.GROUP})
_GLOBAL_KINDS = frozenset({AxisType.GLOBAL, AxisType.THREAD})
_LAUNCH_KINDS = _GROUP_KINDS | _GLOBAL_KINDS
# Leaves that have a value without being computed; a program may list a VARIABLE or a placeholder, or leave it out.
# So may an INDEX or a BARRIER name AFTER, GROUP and END, which stand for an order that the body already has.
_FREE = frozenset({Ops.CONST, Ops.PARAM, Ops.VARIABLE, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.AFTER, Ops.GROUP, Ops.END})


class ProgramRule(NamedTuple):
    """One line of the table; a later rule may rely on the earlier ones."""

    name: str
    check: Callable[[Program], Fault | None]


def _is_loop(node: UOp) -> bool:
    return node.op is Ops.RANGE and node.arg.kind not in _LAUNCH_KINDS and not node.arg.kind.is_tile


def _is_computed(node: UOp) -> bool:
    """Whether the node must stand in the body before its users."""
    return node.op not in _FREE and (node.op is not Ops.RANGE or _is_loop(node))


def _with_open_loops(program: Program) -> Iterator[tuple[UOp, tuple[UOp, ...]]]:
    """Each node of the body with the loops open around it. A RANGE lies inside of its own loop, an END does not."""
    stack: list[UOp] = []
    for node in program.body:
        if node.op is Ops.END:
            stack.pop()
        elif _is_loop(node):
            stack.append(node)
        yield node, tuple(stack)


# ---------------------------------------------------------------- order, loops and scopes


def check_body_nodes(program: Program) -> Fault | None:
    seen: set[UOp] = set()
    for node in program.body:
        if node in seen:
            return node, "stands in the body twice"
        seen.add(node)
        if node.op is Ops.CONST or node.op is Ops.PARAM:
            return node, f"a {node.op.name} has no place in the body"
        if node.op is Ops.AFTER or node.op is Ops.GROUP or (node.op is Ops.END and node.src[0].op is not Ops.RANGE):
            return node, f"{node.op.name} states an order, which the body has by itself"
        if node.op is Ops.RANGE and node.arg.kind.is_tile:
            return node, "a tile axis has no place in the body: the emitter writes it out"
    return None


def check_order(program: Program) -> Fault | None:
    seen: set[UOp] = set()
    in_body = frozenset(program.body)
    for node in program.body:
        for source in node.src:
            if source not in seen and (_is_computed(source) or source in in_body):
                where = "comes later" if source in in_body else "is missing"
                return node, f"its source {source.op.name} {source.dtype.name} {where}"
        seen.add(node)
    return None


def check_loops_nest(program: Program) -> Fault | None:
    stack: list[UOp] = []
    for node in program.body:
        if _is_loop(node):
            stack.append(node)
        elif node.op is Ops.END:
            closed = node.src[0]
            if closed not in stack:
                return node, f"closes {closed.arg}, which is not open"
            if stack[-1] is not closed:
                return node, f"closes {closed.arg} while {stack[-1].arg} inside of it is open"
            stack.pop()
    return None if not stack else (stack[-1], f"the loop {stack[-1].arg} is never closed")


def check_scopes(program: Program) -> Fault | None:
    scopes: dict[UOp, tuple[UOp, ...]] = {}
    for node, open_loops in _with_open_loops(program):
        for source in node.src:
            scope = scopes.get(source, ())
            if node.op is not Ops.END and open_loops[: len(scope)] != scope:
                return node, f"uses {source.op.name} {source.dtype.name} outside of the loop {scope[-1].arg}"
        scopes[node] = open_loops
    return None


# ---------------------------------------------------------------- launches


def check_launch_ranges(program: Program) -> Fault | None:
    for ranges, kinds, name in (
        (program.global_ranges, _GLOBAL_KINDS, "global_ranges"),
        (program.local_ranges, _GROUP_KINDS, "local_ranges"),
    ):
        for node in ranges:
            if node.op is not Ops.RANGE or node.arg.kind not in kinds:
                return node, f"does not belong into {name}"
    listed = program.global_ranges + program.local_ranges
    for node in program.body:
        for used in (node, *node.src):
            if used.op is Ops.RANGE and used.arg.kind in _LAUNCH_KINDS and used not in listed:
                return node, f"the launch does not list {used.arg}"
    return None


def check_params(program: Program) -> Fault | None:
    params: dict[int, Param] = {param.slot: param for param in program.params}
    for node in program.body:
        if node.op is not Ops.LOAD and node.op is not Ops.STORE:
            continue
        buffer = memory_of(node.src[0])
        if buffer.op is not Ops.PARAM:
            continue
        param = params.get(buffer.arg.slot)
        if param is None:
            return node, f"the program has no parameter {buffer.arg.slot}"
        if param.dtype is not buffer.dtype or param.size != buffer.arg.size:
            held = f"{param.size} {param.dtype.name}"
            return node, f"parameter {param.slot} is {held}, used as {buffer.arg.size} {buffer.dtype.name}"
        if node.op is Ops.LOAD and not param.is_read:
            return node, f"reads parameter {param.slot}, which is not declared as read"
        if node.op is Ops.STORE and not param.is_written:
            return node, f"writes parameter {param.slot}, which is not declared as written"
    return None


# ---------------------------------------------------------------- accumulators


def check_accumulators(program: Program) -> Fault | None:
    """ACC, then ACCUMULATE, then COMBINE, by one op, and the COMBINE outside of the loops that accumulate."""
    scopes: dict[UOp, tuple[UOp, ...]] = {}
    updates: dict[UOp, list[UOp]] = {}
    combined: set[UOp] = set()
    for node, open_loops in _with_open_loops(program):
        if node.op is Ops.ACCUMULATE:
            accumulator = node.src[0]
            if accumulator in combined:
                return node, "accumulates after the COMBINE that reads the result"
            updates.setdefault(accumulator, []).append(node)
        elif node.op is Ops.COMBINE:
            accumulator = node.src[0]
            combined.add(accumulator)
            if accumulator not in updates:
                return node, "combines an ACC that nothing has been accumulated into"
            for update in updates[accumulator]:
                if update.arg is not node.arg:
                    return node, f"combines with {node.arg} what {update.arg} accumulated"
                accumulating = set(scopes[update]) - set(scopes[accumulator])
                if accumulating & set(open_loops):
                    return node, "combines inside of the loop that still accumulates"
        scopes[node] = open_loops
    for accumulator, found in updates.items():
        if accumulator not in combined:
            return found[0], "accumulates into an ACC that no COMBINE reads"
    return None


def check_accumulators_are_read_by_combine(program: Program) -> Fault | None:
    for node in program.body:
        for position, source in enumerate(node.src):
            if source.op is Ops.ACC and not (node.op in (Ops.ACCUMULATE, Ops.COMBINE) and position == 0):
                return node, "reads an ACC; only COMBINE gives its value"
    return None


def check_atomic_updates(program: Program) -> Fault | None:
    for node in program.body:
        if node.op is Ops.STORE and node.arg is not None:
            dtype = node.src[1].dtype
            if not program.target.updates(node.arg.name, dtype):
                return node, f"updates {dtype.name} by {node.arg.name} atomically, which {program.target.name} cannot"
    return None


PROGRAM_RULES: tuple[ProgramRule, ...] = (
    ProgramRule("body-nodes", check_body_nodes),
    ProgramRule("sources-first", check_order),
    ProgramRule("loops-nest", check_loops_nest),
    ProgramRule("scope-dominates-use", check_scopes),
    ProgramRule("launch-ranges", check_launch_ranges),
    ProgramRule("params-declared", check_params),
    ProgramRule("acc-read-by-combine", check_accumulators_are_read_by_combine),
    ProgramRule("accumulate-then-combine", check_accumulators),
    ProgramRule("atomic-updates", check_atomic_updates),
)
