"""Facts of every node that fusion decides by. In: the nodes in order, and those that must be stored. Out: a `Facts` per
node: the depth of reductions below it, and the work that only this node needs.

The gate of a node is the first node that all of its users lead to through elementwise steps. Gates form trees: the work
that only a node needs is its own work plus that of all nodes whose gate it is. Work that other nodes need as well is
not counted: whether to store its result is decided at the shared node."""

from __future__ import annotations

from tilewright.base.records import mutable_record
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers

# A reduction that reads each distinct element at least this often is a matrix product or a convolution.
CONTRACTION_REUSE = 16
# One that reads them at least this often shares loads between results, in a register tile.
TILED_REUSE = 2
MIN_REPEATED = 16  # how often a value repeats each distinct element it reads, to count as a broadcast one
# The longest reduction that may contain another one: the window of a convolution, whose gradient is a sum of sums.
SHORT_REDUCTION = 16
PERMUTING = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP})
TRANSPARENT = frozenset({Ops.CONTIGUOUS, Ops.DETACH})


@mutable_record
class Facts:
    level: int  # the depth of nested reductions
    distinct: int  # elements of the largest tensor that it reads, before any EXPAND
    updates: int  # a bit mask of the updates of memory that come before it
    cost: float  # arithmetic per element that only this node needs
    reduce_work: int = 0  # elements read by the reductions that only this node needs
    is_contraction: bool = False  # a reduction that reads each distinct element many times
    holds_contraction: bool = False  # it is one, or sums the windows that one's results are
    is_tiled: bool = False  # a sum of products whose results share loads
    follows_reduction: bool = False  # each element is computed from one element of a reduction
    is_factor: bool = False  # a contraction multiplies it
    gate: UOp | None = None  # the nearest node through which all uses of this one go; None where there is none


def gather_facts(order: list[UOp], must_store: frozenset[UOp]) -> dict[UOp, Facts]:
    gates = find_gates(order, must_store)
    facts: dict[UOp, Facts] = {}
    update = 1
    for node in order:
        level = distinct = updates = 0
        follows_reduction = False
        for src in node.src:
            known = facts[src]
            if known.level > level:
                level = known.level
            if known.distinct > distinct:
                distinct = known.distinct
            updates |= known.updates
            if known.follows_reduction and not follows_reduction:
                follows_reduction = src not in must_store and keeps_elements(src, node)
        if updated_source(node) is not None:
            updates |= update
            update <<= 1
        found = facts[node] = Facts(level, distinct, updates, node.op.cost, follows_reduction=follows_reduction)
        if node.op is Ops.REDUCE_AXIS:
            found.level += 1
            found.reduce_work = max_count(node.src[0].shape)
            found.is_contraction = found.reduce_work >= CONTRACTION_REUSE * distinct > 0
            windows = _summed_windows(node)
            found.holds_contraction = found.is_contraction or (windows is not None and facts[windows].holds_contraction)
            found.is_tiled = found.reduce_work >= TILED_REUSE * distinct > 0 and bool(factors_of(node))
            found.follows_reduction = True
            if found.is_contraction:
                for factor in factors_of(node):
                    facts[factor].is_factor = True
        if node in must_store or node.op in (Ops.PARAM, Ops.GATHER, Ops.REDUCE_AXIS):
            found.distinct = max_count(node.shape)
    for node in order:
        gate = facts[node].gate = gates[node]
        if gate is not None:
            facts[gate].cost += facts[node].cost
            facts[gate].reduce_work += facts[node].reduce_work
    return facts


def factors_of(contraction: UOp) -> list[UOp]:
    """The two values whose products are summed, without the views and conversions through which they are read."""
    product = without_views(contraction.src[0])
    is_sum = contraction.arg[0] is Ops.ADD and product.op is Ops.MUL
    return [without_views(factor) for factor in product.src] if is_sum else []


def _summed_windows(total: UOp) -> UOp | None:
    """What a short sum adds up where it falls on the same element, as the gradient of windows does; None for another
    reduction."""
    node = total.src[0]
    if total.arg[0] is not Ops.ADD or max_count(node.shape) > SHORT_REDUCTION * max_count(total.shape):
        return None
    is_moved = False
    while node.op.kind is Kind.MOVEMENT or node.op in TRANSPARENT or node.op is Ops.CAST:
        is_moved = is_moved or node.op is Ops.PAD
        node = node.src[0]
    return node if is_moved else None


def without_views(node: UOp) -> UOp:
    while node.op.kind is Kind.MOVEMENT or node.op in TRANSPARENT or node.op is Ops.CAST:
        node = node.src[0]
    return node


def inputs_of(node: UOp, facts: dict[UOp, Facts]) -> list[UOp]:
    """The values, read element by element, that the node and the nodes which only it needs are computed from."""
    members = {node: None}
    pending = [node]
    inputs: dict[UOp, None] = {}
    while pending:
        member = pending.pop()
        for source in member.src:
            if facts[source].gate in members:
                if source not in members:
                    members[source] = None
                    pending.append(source)
            elif source.op is not Ops.CONST and keeps_elements(source, member) and not is_repeated(source, facts):
                inputs[source] = None
    return list(inputs)


def is_repeated(node: UOp, facts: dict[UOp, Facts]) -> bool:
    """Whether the node repeats each distinct element that it reads many times."""
    return max_count(node.shape) >= MIN_REPEATED * facts[node].distinct


def find_gates(order: list[UOp], must_store: frozenset[UOp]) -> dict[UOp, UOp | None]:
    """The gate of each node; None where the node is stored, or where a user does not read it element by element."""
    users = consumers(order)
    gates: dict[UOp, UOp | None] = {}
    depths: dict[UOp, int] = {}
    for node in reversed(order):
        gate: UOp | None = None
        if node not in must_store:
            own = users[node]
            if len(own) == 1:
                gate = own[0] if keeps_elements(node, own[0]) else None
            elif all(keeps_elements(node, user) for user in own):
                gate = _meeting(own, gates, depths)
        gates[node] = gate
        depths[node] = 0 if gate is None else depths[gate] + 1
    return gates


def keeps_elements(node: UOp, user: UOp) -> bool:
    """Whether the user reads each element of the node for exactly one of its own elements."""
    if user.op in PERMUTING or user.op in TRANSPARENT:
        return True
    return user.op.is_elementwise and user.shape == node.shape


def _meeting(users: list[UOp], gates: dict[UOp, UOp | None], depths: dict[UOp, int]) -> UOp | None:
    """The first node that the gates of all users lead to: the deeper of two moves on to its gate until they are
    equal."""
    meeting: UOp | None = None
    for other in users:
        here: UOp | None = other
        meeting = meeting or other
        while meeting is not here:
            if meeting is None or here is None:
                return None
            if depths[meeting] >= depths[here]:
                meeting = gates[meeting]
            else:
                here = gates[here]
    return meeting
