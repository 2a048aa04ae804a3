"""Choices whose second value few elements need. In: a condition that nearly always holds, the value then, and the value
otherwise, which takes long. Out: a WHERE with a mark, equal to one without; and of a program's body, what is computed
for the second value alone. A backend that can jump computes that only where an element needs it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

MARK = "slow"
# The name by which a target's `native_ops` says that its renderer makes use of the mark.
SLOW_PATH = "SLOW_PATH"


def slow_path(is_common: UOp, common: UOp, seldom: UOp) -> UOp:
    return UOp(Ops.WHERE, common.dtype, (is_common, common, seldom), MARK)


def has_slow_path(node: UOp) -> bool:
    return node.op is Ops.WHERE and node.arg == MARK


def find_slow_paths(body: Sequence[UOp]) -> dict[UOp, list[UOp]]:
    """For each marked choice of a body the nodes, in order, that its second value needs, and otherwise second values
    alone. They are arithmetic of the same loop: what is done in front of it is done once, and memory is read whether or
    not a value counts."""
    if not any(map(has_slow_path, body)):
        return {}
    users: dict[UOp, list[UOp]] = {}
    blocks: dict[UOp, int] = {}
    open_blocks, count = [0], 0
    for node in body:
        if node.op is Ops.RANGE:
            count += 1
            open_blocks.append(count)
        elif node.op is Ops.END:
            open_blocks.pop()
        blocks[node] = open_blocks[-1]
        for source in node.src:
            users.setdefault(source, []).append(node)
    owners: dict[UOp, frozenset[UOp]] = {}
    for node in reversed(body):
        if node.op.is_elementwise and node.op is not Ops.CHECK:
            found = _owners(node, users.get(node, []), owners)
            if found and all(blocks[choice] == blocks[node] for choice in found):
                owners[node] = found
    return {
        choice: nodes
        for choice in body
        if has_slow_path(choice) and (nodes := [node for node in body if choice in owners.get(node, ())])
    }


def _owners(node: UOp, users: list[UOp], owners: dict[UOp, frozenset[UOp]]) -> frozenset[UOp]:
    """The choices for whose second values the users of a node work; none where a user works for something else. Inside
    the second value of a choice another choice is one of its nodes."""
    found: frozenset[UOp] = frozenset()
    for user in users:
        is_second = has_slow_path(user) and node not in user.src[:2]
        served = owners.get(user) or (frozenset({user}) if is_second else frozenset())
        if not served:
            return frozenset()
        found |= served
    return found
