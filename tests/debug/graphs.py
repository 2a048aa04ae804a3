"""Graphs as large as a whole network, for the web view: random, the same every time."""

from __future__ import annotations

import random

from tilewright.debug.trace.records import FORMAT, Node, Step, Trace

OPS = ("ADD", "MUL", "EXP2", "RESHAPE", "REDUCE_AXIS", "LOAD", "RANGE")
LEAVES = 40
REACH = 60  # how far back a source may be


def random_nodes(count: int, seed: int = 3) -> tuple[Node, ...]:
    source = random.Random(seed)
    nodes: list[Node] = []
    for number in range(count):
        line = ("model.py", number % 200 + 1)
        if number < LEAVES or source.random() < 0.12:
            nodes.append(Node(source.choice(("PARAM", "CONST")), "float32", "(64, 64)", str(number), (), line))
        else:
            found = {source.randrange(max(0, number - REACH), number) for _ in range(source.choice((1, 2, 2)))}
            nodes.append(Node(source.choice(OPS), "float32", "(64, 64)", "", tuple(sorted(found)), line))
    return tuple(nodes)


def random_trace(count: int) -> Trace:
    """One step with a graph of `count` nodes."""
    nodes = random_nodes(count)
    used = {number for node in nodes for number in node.src}
    roots = tuple(number for number in range(count) if number not in used)
    step = Step(0, ("model.py", 1), "MainThread", 0, 1000, None, nodes, roots, (), ())
    return Trace(FORMAT, "model.py", "finished", (), (), 10**9, (), (step,), (), (), (), (), (), ())
