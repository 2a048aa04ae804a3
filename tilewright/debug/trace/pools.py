"""Graphs as records. In: nodes. Out: numbers into a pool of `Node` records. A pool refers to the nodes that it has
numbered, so it is dropped with the event of its schedule or kernel: references to nodes of the user's graph decide what
may be overwritten."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tilewright.debug.trace.records import Limits, Location, Node
from tilewright.graph.text.arguments import literal
from tilewright.graph.text.show import show_expression
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

MAX_ARG = 400


class Pool:
    """The distinct nodes of one graph over time."""

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.nodes
        self.numbers: dict[UOp, int] = {}
        self.nodes: list[Node] = []
        self.left_out = 0  # nodes of graphs that had no room

    def add(self, roots: tuple[UOp, ...]) -> tuple[int, ...]:
        """Adds the graph of the roots; their numbers, or () where the pool has no room."""
        numbers = self.numbers
        missing = [node for node in toposort(*roots, stop=numbers.__contains__) if node not in numbers]
        if len(self.nodes) + len(missing) > self.limit:
            self.left_out += len(missing)
            return ()
        for node in missing:
            src = tuple(numbers[part] for part in node.src)
            numbers[node] = len(self.nodes)
            self.nodes.append(Node(node.op.name, node.dtype.name, shape_text(node), arg_text(node), src, node.line))
        return tuple(numbers[root] for root in roots)

    def set_lines(self, lines: Mapping[UOp, Location]) -> None:
        """Sets the lines of one caller: a node that several lines of a program made has the line of the first."""
        for node, line in lines.items():
            number = self.numbers.get(node)
            if number is not None:
                self.nodes[number] = dataclasses.replace(self.nodes[number], line=line)

    def pair(self, before: UOp, after: UOp) -> tuple[int, int] | None:
        found = self.add((before, after))
        return (found[0], found[1]) if len(found) == 2 else None


def shape_text(node: UOp) -> str:
    """Empty for a scalar; `no shape` for an invalid node, which must still be shown."""
    try:
        return str(node.shape) if node.shape else ""
    except (AttributeError, IndexError, TypeError, ValueError):
        return "no shape"


def arg_text(node: UOp) -> str:
    return "" if node.arg is None else cut(literal(node.arg), MAX_ARG)


def expression_text(node: UOp, limit: int) -> str:
    """The node as infix. Parts of it that are too long become `...`."""
    return cut(show_expression(node, limit), limit)


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"
