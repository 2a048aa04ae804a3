"""What a graph must look like at each stage. In: a tensor graph, a kernel or a linear program. Out: nothing, or a
VerifyError that names the stage, the rule, the node and the pass that made it. A stage is a row: the ops it may hold,
its rules of single nodes, besides those of every stage (`tensor_nodes.py`, `kernel_nodes.py`), and those of the whole
graph. Nodes never change, so what has passed in a stage, a node or a whole graph, is not checked again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tilewright.base.errors import VerifyError
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import ALL_OPS, ELEMENTWISE, Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Kind, Op
from tilewright.graph.uop import UOp
from tilewright.graph.verification.kernel_nodes import EFFECTS, KERNEL_RULES
from tilewright.graph.verification.program import PROGRAM_RULES
from tilewright.graph.verification.tensor_nodes import (
    MOVEMENT,
    PLACEHOLDERS,
    TENSOR_RULES,
    NodeRule,
    ops_of_kind,
)
from tilewright.graph.walk import toposort

NODE_RULES: tuple[NodeRule, ...] = TENSOR_RULES + KERNEL_RULES

# A node and what is wrong with it.
Fault = tuple[UOp, str]


class GraphRule(NamedTuple):
    """A rule of a whole graph, given its root and its nodes in order."""

    name: str
    check: Callable[[UOp, list[UOp]], Fault | None]


class Stage(NamedTuple):
    """What one stage's graphs may hold and must keep."""

    name: str
    ops: frozenset[Op]
    rules: tuple[GraphRule, ...]
    node_rules: tuple[NodeRule, ...] = ()


def describe(node: UOp) -> str:
    """The node on one line, with its sources and the user's line where that is known."""
    sources = ", ".join(f"{src.op.name} {src.dtype.name}" for src in node.src)
    argument = "" if node.arg is None else f" {node.arg!r}"
    made = "" if node.line is None else f" made at {node.line[0]}:{node.line[1]}"
    return f"{node.op.name} {node.dtype.name} ({sources}){argument}{made}"


# ---------------------------------------------------------------- rules of whole graphs


def unique_rule(name: str, ops: Collection[Op], kind: str, key: Callable[[UOp], object]) -> GraphRule:
    """The rule that no two nodes with one of these ops have the same key."""

    def check(_root: UOp, nodes: list[UOp]) -> Fault | None:
        seen: dict[object, UOp] = {}
        for node in nodes:
            if node.op in ops and (other := seen.setdefault((node.op, key(node)), node)) is not node:
                return node, f"the {kind} {key(node)!r} belongs to {describe(other)} as well"
        return None

    return GraphRule(name, check)


ONE_RANGE_PER_ID = unique_rule("one-range-per-id", {Ops.RANGE}, "id", lambda node: node.arg.id)
ONE_PARAM_PER_SLOT = unique_rule("one-param-per-slot", PLACEHOLDERS, "slot", lambda node: node.arg.slot)
VARIABLES_AGREE = unique_rule("variables-agree", {Ops.VARIABLE}, "name", lambda node: node.arg[0])


def check_sink_is_root(root: UOp, nodes: list[UOp]) -> Fault | None:
    if root.op is not Ops.SINK:
        return root, "a kernel is a SINK"
    for source in root.src:
        if source.op not in EFFECTS:
            return root, f"a kernel's SINK takes effects, not {source.op.name}"
    inner = next((node for node in nodes if node.op is Ops.SINK and node is not root), None)
    return None if inner is None else (inner, "a kernel has one SINK, its root")


def check_sink_of_values(root: UOp, nodes: list[UOp]) -> Fault | None:
    for node in nodes:
        if node.op is Ops.SINK and node is not root:
            return node, "only the root of a tensor graph may be a SINK"
    return None


# ---------------------------------------------------------------- rules of single nodes that stages of loops have

# How many of its first sources an op takes as memory.
_MEMORY_SOURCES = {Ops.INDEX: 1, Ops.AFTER: 1, Ops.DOT: 2, Ops.TILE_DOT: 2, Ops.BARRIER: 1 << 30}


def check_values_are_scalar(node: UOp) -> str | None:
    """In a kernel only INDEX may look at a buffer as a whole; AFTER and BARRIER name it."""
    memory_sources = _MEMORY_SOURCES.get(node.op, 0)
    for position, source in enumerate(node.src):
        is_memory = source.op in PLACEHOLDERS or source.op is Ops.AFTER
        if is_memory and position >= memory_sources:
            return f"uses the buffer {describe(source)} as a value; go through INDEX and LOAD"
        if source.op is Ops.INDEX and not (node.op in (Ops.LOAD, Ops.STORE) and position == 0):
            return "uses an INDEX as a value; go through LOAD"
    return None


def check_ranges_are_closed_once(node: UOp) -> str | None:
    """Two REDUCEs inside each other must not close the same range: the outer one has nothing left to count."""
    inner = node.src[0]
    if inner.op is Ops.REDUCE and set(inner.src[1:]) & set(node.src[1:]):
        return "closes a range that the REDUCE below it has closed"
    return None


_BUFFERS_ARE_INDEXED = NodeRule("buffers-are-indexed", frozenset(ALL_OPS), check_values_are_scalar)
_RANGES_CLOSED_ONCE = NodeRule("ranges-closed-once", frozenset({Ops.REDUCE}), check_ranges_are_closed_once)

_KERNEL_VALUES = (
    ELEMENTWISE
    | PLACEHOLDERS
    | {Ops.CONST, Ops.VARIABLE, Ops.RANGE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.WARP_FOLD, Ops.DOT, Ops.TILE_DOT}
)
# A program's body holds no AFTER and no GROUP, but an INDEX in it may name them.
_ORDER = frozenset({Ops.AFTER, Ops.GROUP, Ops.END, Ops.BARRIER})

TENSOR_STAGE = Stage(
    "tensor",
    ELEMENTWISE | MOVEMENT | ops_of_kind(Kind.LEAF, Kind.TENSOR) | {Ops.SINK},
    (
        GraphRule("one-sink", check_sink_of_values),
        VARIABLES_AGREE,
    ),
)
KERNEL_STAGE = Stage(
    "kernel",
    _KERNEL_VALUES | _ORDER | {Ops.REDUCE, Ops.SINK},
    (
        GraphRule("sink-of-effects", check_sink_is_root),
        ONE_RANGE_PER_ID,
        ONE_PARAM_PER_SLOT,
        VARIABLES_AGREE,
    ),
    (_BUFFERS_ARE_INDEXED, _RANGES_CLOSED_ONCE),
)
PROGRAM_STAGE = Stage(
    "program",
    _KERNEL_VALUES | _ORDER | {Ops.ACC, Ops.ACCUMULATE, Ops.COMBINE},
    (
        ONE_RANGE_PER_ID,
        ONE_PARAM_PER_SLOT,
        VARIABLES_AGREE,
    ),
    (_BUFFERS_ARE_INDEXED,),
)


RulesOf = dict[Op, tuple[NodeRule, ...]]


def _by_op(rules: tuple[NodeRule, ...]) -> RulesOf:
    return {op: tuple(rule for rule in rules if op in rule.ops) for op in ALL_OPS}


_RULES_OF: RulesOf = _by_op(NODE_RULES)
_STAGE_RULES: dict[str, RulesOf] = {
    stage.name: _by_op(stage.node_rules) for stage in (TENSOR_STAGE, KERNEL_STAGE, PROGRAM_STAGE)
}


# ---------------------------------------------------------------- entries


def verify_tensor_graph(root: UOp, pass_name: str = "") -> None:
    """A graph as `tensor/` builds it: values of any shape, a SINK at the root where several are wanted."""
    _verify_graph(TENSOR_STAGE, root, pass_name)


def verify_kernel(sink: UOp, pass_name: str = "") -> None:
    """A kernel as `schedule/` makes it and `kernel/` transforms it: a SINK of effects over RANGEs."""
    _verify_graph(KERNEL_STAGE, sink, pass_name)


def verify_program(program: Program, pass_name: str = "") -> None:
    """A linear program as `codegen/` gives it to a backend."""
    stage = PROGRAM_STAGE
    nodes = toposort(*program.body)
    _verify_nodes(stage, nodes, pass_name)
    for rule in stage.rules:
        # A linear program has no root; its rules look at the nodes alone.
        _refuse(stage, rule.name, rule.check(program.body[-1], nodes) if program.body else None, pass_name)
    for program_rule in PROGRAM_RULES:
        _refuse(stage, program_rule.name, program_rule.check(program), pass_name)


def _verify_graph(stage: Stage, root: UOp, pass_name: str) -> None:
    mark = f"verified-{stage.name}-graph"
    if mark in root.cache:
        return
    nodes = toposort(root)
    _verify_nodes(stage, nodes, pass_name)
    for rule in stage.rules:
        _refuse(stage, rule.name, rule.check(root, nodes), pass_name)
    root.cache[mark] = True


def _verify_nodes(stage: Stage, nodes: Iterable[UOp], pass_name: str) -> None:
    mark, stage_rules = f"verified-{stage.name}", _STAGE_RULES[stage.name]
    for node in nodes:
        known = node.cache
        if mark in known:
            continue
        if node.op not in stage.ops:
            _refuse(stage, "stage-ops", (node, f"{node.op.name} does not belong to this stage"), pass_name)
        for rule in stage_rules[node.op] if "verified" in known else _RULES_OF[node.op] + stage_rules[node.op]:
            complaint = rule.check(node)
            if complaint is not None:
                _refuse(stage, rule.name, (node, f"{node.op.name} {complaint}"), pass_name)
        known["verified"] = known[mark] = True


def _refuse(stage: Stage, rule: str, fault: Fault | None, pass_name: str) -> None:
    if fault is not None:
        node, complaint = fault
        raise VerifyError(f"{rule}: {complaint}", stage=stage.name, pass_name=pass_name, node=describe(node))
