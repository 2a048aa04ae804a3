"""How long an operation takes. In: a node. Out: its work per element, in units of one addition. Fusing asks this before
it computes something twice, and the kernel stage before it keeps something instead."""

from __future__ import annotations

from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

# A cast rides along with the load it follows.
OP_COST: dict[Op, float] = {
    Ops.CAST: 0.5,
    Ops.CHECK: 0,
    Ops.FDIV: 4,
    Ops.SQRT: 4,
    Ops.IDIV: 6,
    Ops.MOD: 6,
    Ops.EXP2: 10,
    Ops.LOG2: 10,
    Ops.SIN: 16,
    Ops.THREEFRY: 80,
    Ops.GATHER: 2,
    Ops.PAD: 1,
}


def own_cost(node: UOp) -> float:
    return OP_COST.get(node.op, 1.0 if node.op.is_elementwise else 0.0)
