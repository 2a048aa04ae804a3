"""Simplification. In: a scalar expression. Out: an equal one, smaller and in canonical form: equal values, one node.
One file per op family holds its rules; every stage calls `simplify`, and its result is kept on the node."""

from __future__ import annotations

from tilewright.base.config import options
from tilewright.graph.pattern import RuleSet
from tilewright.graph.rewrite import rewrite
from tilewright.graph.simplify.add import ADD_RULES
from tilewright.graph.simplify.cast import CAST_RULES
from tilewright.graph.simplify.compare import COMPARE_RULES
from tilewright.graph.simplify.constants import CONSTANT_RULES
from tilewright.graph.simplify.divmod import DIVMOD_RULES
from tilewright.graph.simplify.logic import LOGIC_RULES
from tilewright.graph.simplify.mul import MUL_RULES
from tilewright.graph.simplify.reduce import REDUCE_RULES
from tilewright.graph.simplify.select import SELECT_RULES
from tilewright.graph.uop import UOp

SCALAR_RULES = RuleSet(
    "simplify",
    (
        *CONSTANT_RULES,
        *LOGIC_RULES,
        *ADD_RULES,
        *MUL_RULES,
        *DIVMOD_RULES,
        *CAST_RULES,
        *COMPARE_RULES,
        *SELECT_RULES,
    ),
    pure=True,
)
KERNEL_RULES = RuleSet("fold-reductions", (*SCALAR_RULES, *REDUCE_RULES), pure=True)


def simplify(node: UOp) -> UOp:
    """The expression with every scalar rule applied. Nodes have no shape of their own here: it is for kernels."""
    return rewrite(node, SCALAR_RULES)


def fold_reductions(node: UOp) -> UOp:
    """The kernel graph with the loops removed that a closed form or a load can stand for, and simplified."""
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
