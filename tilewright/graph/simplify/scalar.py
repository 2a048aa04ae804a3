"""All scalar rules in one set. In: an expression. Out: the simplified expression, cached on its nodes."""

from __future__ import annotations

from tilewright.graph.rewrite import rewrite
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.simplify.add import ADD_RULES
from tilewright.graph.simplify.cast import CAST_RULES
from tilewright.graph.simplify.compare import COMPARE_RULES
from tilewright.graph.simplify.constants import CONSTANT_RULES
from tilewright.graph.simplify.divmod import DIVMOD_RULES
from tilewright.graph.simplify.logic import LOGIC_RULES
from tilewright.graph.simplify.mul import MUL_RULES
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


def simplify(node: UOp) -> UOp:
    """The expression with every scalar rule applied. It is for kernels, whose nodes have no shapes."""
    return rewrite(node, SCALAR_RULES)
