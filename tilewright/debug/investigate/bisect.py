"""Bisection of a repro. In: a repro that fails with all of something and is right with none of it. Out: the finding
that names the first one that makes it fail: an opt, a pass, a rewrite, a fused operation, a buffer that shares memory,
a wait that is missing. Each try is a replay in a child process, limited by an option."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tilewright.base.config import Context
from tilewright.base.events import Event, subscribe
from tilewright.base.quota import reset_quotas
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.trial import counted_replay, in_child, try_repro
from tilewright.debug.replay import bound_outputs, contents_of
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.passes import optional_passes_run
from tilewright.graph.records import Opt, Schedule
from tilewright.graph.rewrite import rewrites_applied
from tilewright.graph.spec import Kind
from tilewright.graph.text.repro import Repro
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers, toposort
from tilewright.kernel.optimise import opt_quota
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import fuse_quota
from tilewright.schedule.preparation.prepare import prepare_graph, storage_node

MANY = 1 << 30


class Bisection(NamedTuple):
    """`option` allows the first n; `count` runs with a limit that has no effect and gives how many there are."""

    option: str
    count: Callable[[Repro], int]
    name: Callable[[Repro, int], Finding]


def bisect(repro: Repro, which: str) -> Finding | None:
    """The first one that makes the repro fail; None where it is right with all, or fails with none."""
    step = BISECTIONS[which]
    kind = try_repro(repro).kind
    if not kind or try_repro(repro, {step.option: 0}).kind == kind:
        return None
    good, bad = 0, in_child(lambda: step.count(repro), 60.0).get("value", 0)
    if not bad or try_repro(repro, {step.option: bad}).kind != kind:
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        if try_repro(repro, {step.option: middle}).kind == kind:
            bad = middle
        else:
            good = middle
    found = in_child(lambda: step.name(repro, bad).as_json(), 60.0)
    return Finding.from_json(found["value"]) if "value" in found else None


# ---------------------------------------------------------------- counting and naming


@contextlib.contextmanager
def _heard(*kinds: str) -> Iterator[list[Event]]:
    heard: list[Event] = []
    with subscribe(heard.append, kinds=kinds):
        yield heard


def _count_rewrites(repro: Repro) -> int:
    counted_replay(repro, REWRITE_LIMIT=MANY)
    return rewrites_applied()


def _name_rewrite(repro: Repro, number: int) -> Finding:
    with _heard("rule-fired") as heard:
        counted_replay(repro, REWRITE_LIMIT=number)
    fields: Any = heard[-1].fields
    text = f"rewrite {number} of the process, by rule {fields['rule']}, is the first with which it fails"
    return Finding("rule", fields["rule"], text, show(fields["before"]), show(fields["after"]))


def _count_passes(repro: Repro) -> int:
    counted_replay(repro, PASS_LIMIT=MANY)
    return optional_passes_run()


def _name_pass(repro: Repro, number: int) -> Finding:
    """The last pass that runs with `number` and not with one fewer."""
    lists = []
    for limit in (number - 1, number):
        with _heard("pass-end") as heard:
            counted_replay(repro, PASS_LIMIT=limit)
        lists.append([(str(e["stage"]), str(e["name"]), e["graph"]) for e in heard])
    shorter, longer = lists
    position = next(
        (n for n, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a[:2] != b[:2]), min(map(len, lists))
    )
    stage, name, graph = longer[min(position, len(longer) - 1)]
    before = longer[position - 1][2] if position else ()
    text = f"optional pass {number} of the process, {stage}/{name}, is the first with which it fails"
    return Finding("pass", f"{stage}/{name}", text, _shown(before), _shown(graph))


def _shown(graph: Any) -> str:
    return "\n".join(show(node) for node in graph)


def _count_opts(repro: Repro) -> int:
    counted_replay(repro, OPT_LIMIT=MANY)
    return opt_quota.used


def _name_opt(repro: Repro, number: int) -> Finding:
    chosen: list[tuple[str, Opt]] = []
    with _heard("kernel-compiled") as heard:
        counted_replay(repro, OPT_LIMIT=number)
    for event in heard:
        kernel: Any = event["kernel"]
        chosen += [(str(event["name"]), opt) for opt in kernel.optimised.arg.applied]
    kernel_name, opt = chosen[-1] if chosen else ("", "an opt")
    text = f"opt {number} of the process, {opt} of kernel {kernel_name}, is the first with which it fails"
    return Finding("opt", str(opt), text)


def _count_fused(repro: Repro) -> int:
    counted_replay(repro, FUSE_LIMIT=MANY)
    return fuse_quota.used


def fused_nodes(repro: Repro) -> list[tuple[UOp, UOp | None]]:
    """The operations that FUSE_LIMIT counts, in its order, each with its first user that is not a view."""
    target = open_driver(repro.device).target
    outputs = bound_outputs(repro, repro.device, contents_of(repro))
    roots = [storage_node(node) for node in prepare_graph(outputs, target)[0]]
    order = toposort(*roots)
    users = consumers(order)
    found = []
    for node in order:
        if (node.op.is_elementwise or node.op in (Ops.REDUCE_AXIS, Ops.GATHER)) and node not in roots:
            user = next(iter(users[node]), None)
            while user is not None and user.op.kind is Kind.MOVEMENT:
                user = next(iter(users[user]), None)
            found.append((node, user))
    return found


def _name_fused(repro: Repro, number: int) -> Finding:
    plans = []
    for limit in (number - 1, number):
        plans.append(str(_scheduled(repro, FUSE_LIMIT=limit)))
    with Context(**{**repro.options, "CACHE": 0}):
        nodes = fused_nodes(repro)
    node, user = nodes[number - 1] if number <= len(nodes) else (None, None)
    name = "an operation" if node is None else node.op.name
    into = "" if user is None else f" into {user.op.name}"
    text = f"fusion of {name}{into}, number {number} of the process, is the first with which it fails"
    return Finding("fusion", f"{name}{into}", text, plans[0], plans[1])


def _scheduled(repro: Repro, **settings: Any) -> Schedule:
    reset_quotas()
    with Context(**{**repro.options, "CACHE": 0, **settings}):
        return schedule(bound_outputs(repro, repro.device, contents_of(repro)), repro.device)


def _count_temps(repro: Repro) -> int:
    return len(_scheduled(repro).offsets)


def _name_temp(repro: Repro, number: int) -> Finding:
    plan = _scheduled(repro, REUSE_LIMIT=number)
    temps = sorted(dict(plan.offsets), key=lambda n: (-plan.slots[n].nbytes, n))
    text = f"temporary buffer {temps[number - 1]}, the first that may not share its memory with others"
    return Finding("memory", "place_temps", text, str(_scheduled(repro, REUSE_LIMIT=0).offsets), str(plan.offsets))


def find_missing_wait(repro: Repro) -> Finding | None:
    """The first item that has to be waited for, where waiting for each makes the repro right."""
    kind = try_repro(repro).kind
    if not kind or try_repro(repro, {"SERIAL_LIMIT": -1}).kind:
        return None
    bad, good = 0, in_child(lambda: len(_scheduled(repro).items), 60.0).get("value", 0)
    while good - bad > 1:
        middle = (good + bad) // 2
        if try_repro(repro, {"SERIAL_LIMIT": middle}).kind:
            bad = middle
        else:
            good = middle
    found = in_child(lambda: _name_wait(repro, good).as_json(), 60.0)
    return Finding.from_json(found["value"]) if "value" in found else None


def _name_wait(repro: Repro, number: int) -> Finding:
    plan = _scheduled(repro)
    lines = str(plan).splitlines()
    item = plan.items[number - 1]
    readers = [
        other
        for other in range(number, len(plan.items))
        if any(read.conflicts(write) for read in plan.items[other].reads for write in item.writes)
    ]
    after = lines[readers[0]] if readers else ""
    reader = plan.items[readers[0]].device if readers else ""
    text = f"item {number - 1} on {item.device} is not waited for before what it writes is read"
    return Finding("queue", f"{item.device} to {reader}".strip(), text, lines[number - 1], after)


BISECTIONS: dict[str, Bisection] = {
    "opts": Bisection("OPT_LIMIT", _count_opts, _name_opt),
    "passes": Bisection("PASS_LIMIT", _count_passes, _name_pass),
    "rewrites": Bisection("REWRITE_LIMIT", _count_rewrites, _name_rewrite),
    "fusion": Bisection("FUSE_LIMIT", _count_fused, _name_fused),
    "memory": Bisection("REUSE_LIMIT", _count_temps, _name_temp),
}
