"""Slow paths. In: a condition that nearly always holds, the value for it, and the value otherwise, which is expensive.
Out: a WHERE with a mark, which has the value of one without; and the nodes of a program's body that are computed for
the second value alone. A backend with branches computes them only where an element needs them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers

MARK = "slow"
# The name in a target's `native_ops` which says that its renderer uses the mark.
SLOW_PATH = "SLOW_PATH"


def slow_path(is_common: UOp, common: UOp, seldom: UOp) -> UOp:
    return UOp(Ops.WHERE, common.dtype, (is_common, common, seldom), MARK)


def has_slow_path(node: UOp) -> bool:
    return node.op is Ops.WHERE and node.arg == MARK


def find_slow_paths(body: Sequence[UOp]) -> dict[UOp, list[UOp]]:
    """For each marked WHERE of a body the nodes, in order, that are used by its second value alone. They are arithmetic
    in the same loop: loop-invariant nodes are computed once before it, and loads are not made conditional."""
    if not any(map(has_slow_path, body)):
        return {}
    users = consumers(body)
    blocks: dict[UOp, int] = {}
    open_blocks, count = [0], 0
    for node in body:
        if node.op is Ops.RANGE:
            count += 1
            open_blocks.append(count)
        elif node.op is Ops.END:
            open_blocks.pop()
        blocks[node] = open_blocks[-1]
    owners: dict[UOp, frozenset[UOp]] = {}
    for node in reversed(body):
        if node.op.is_elementwise and node.op is not Ops.CHECK:
            found = _owners(node, users[node], owners)
            if found and all(blocks[choice] == blocks[node] for choice in found):
                owners[node] = found
    return {
        choice: nodes
        for choice in body
        if has_slow_path(choice) and (nodes := [node for node in body if choice in owners.get(node, ())])
    }


def _owners(node: UOp, users: list[UOp], owners: dict[UOp, frozenset[UOp]]) -> frozenset[UOp]:
    """The marked WHEREs for whose second values alone the users of a node are computed; none where a user has another
    purpose. A WHERE inside the second value of another is one of its nodes."""
    found: frozenset[UOp] = frozenset()
    for user in users:
        is_second = has_slow_path(user) and node not in user.src[:2]
        served = owners.get(user) or (frozenset({user}) if is_second else frozenset())
        if not served:
            return frozenset()
        found |= served
    return found
