"""Simplification. In: a scalar expression. Out: an equal one, smaller and in canonical form: equal values, one node.
One file per op family has its rules; every stage calls `simplify`, and the result is cached on the node."""

from __future__ import annotations

from tilewright.base.config import options
from tilewright.graph.rewrite import rewrite
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.add import ADD_RULES
from tilewright.graph.simplify.cast import CAST_RULES
from tilewright.graph.simplify.compare import COMPARE_RULES
from tilewright.graph.simplify.constants import CONSTANT_RULES
from tilewright.graph.simplify.divmod import DIVMOD_RULES
from tilewright.graph.simplify.logic import LOGIC_RULES
from tilewright.graph.simplify.mul import MUL_RULES
from tilewright.graph.simplify.reduce import REDUCE_RULES
from tilewright.graph.simplify.scalar import SCALAR_RULES, simplify
from tilewright.graph.simplify.select import SELECT_RULES
from tilewright.graph.uop import UOp

KERNEL_RULES = RuleSet("fold-reductions", (*SCALAR_RULES, *REDUCE_RULES), pure=True)


def fold_reductions(node: UOp) -> UOp:
    """The kernel graph, simplified, with reductions replaced by a closed form or a load where possible."""
    return rewrite(node, KERNEL_RULES if options.FOLD_REDUCE else SCALAR_RULES)


__all__ = [
    "ADD_RULES",
    "CAST_RULES",
    "COMPARE_RULES",
    "CONSTANT_RULES",
    "DIVMOD_RULES",
    "KERNEL_RULES",
    "LOGIC_RULES",
    "MUL_RULES",
    "REDUCE_RULES",
    "SCALAR_RULES",
    "SELECT_RULES",
    "fold_reductions",
    "simplify",
]
