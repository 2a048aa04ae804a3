"""Values of rows that a kernel stores beside the elements of the rows. In: a `Plan`, and the facts of each node's
device. Out: the values that a device with work-groups stores by kernels of their own.

    before: for b, c: gate[b, c] = f(sum[b, c]); for h, w: y[b, h, w, c] = gate[b, c] * x[b, h, w, c]
    after:  for b, c: gate[b, c] = f(sum[b, c]), then for b, h, w, c: y[b, h, w, c] = gate[b, c] * x[b, h, w, c]

Where the kernel takes the sum as well, the threads of a group share the row. Where it does not, there is a thread for
each row alone, which goes through the row element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.schedule.fusion.uses import Plan, ranges_of

# The fewest elements of a row that more threads than one should share, and the threads that keep a core busy.
MIN_SHARED_ROW = 32
THREADS_OF_CORE = 512


def values_of_rows(plan: Plan, facts_of: Callable[[UOp], Target]) -> set[UOp]:
    found: set[UOp] = set()
    summed: set[UOp] | None = None
    for node, (root, element) in plan.hosts.items():
        if is_symbolic(root.shape) or not facts_of(root).has_local:
            continue
        rows = math.prod(size_of(loop) for loop in ranges_of(element))
        if max_count(root.shape) < MIN_SHARED_ROW * rows or rows >= THREADS_OF_CORE * facts_of(root).cores:
            continue
        summed = kernels_with_sums(plan) if summed is None else summed
        if root not in summed:
            found.add(node)
    return found


def kernels_with_sums(plan: Plan) -> set[UOp]:
    """The roots of the kernels that compute a reduction."""
    stored = frozenset(plan.stored)
    found: set[UOp] = set()
    for node in plan.order:
        if node.op is not Ops.REDUCE_AXIS:
            continue
        if node in stored:
            found.add(plan.hosts[node][0] if node in plan.hosts else node)
        else:
            found.update(root for root, _ in plan.uses.get(node, {}))
    return found
