"""Accumulators of 64-bit integers where those are pairs of words. In: the op that a reduction folds with, and a
language. Out: the lines inside a function of two operands `a` and `b`. The arithmetic is that of
codegen/emulation/wide_integers.py."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import DType
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.emulation.wide_integers import combine_words
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers, toposort

Spell = Callable[[UOp, list[Expression]], Expression]


def fold_body(language: Language, spell: Spell, op: Op, dtype: DType) -> list[str]:
    """The lines of the function; a value with several uses gets a name."""
    a, b = (UOp(Ops.VARIABLE, dtype, (), (name, dtype.min, dtype.max)) for name in "ab")
    root = combine_words(op, a, b)
    nodes = toposort(root)
    users = consumers(nodes)
    texts = {a: Expression("a"), b: Expression("b")}
    lines: list[str] = []
    for node in nodes:
        if node.op is Ops.CONST:
            texts[node] = language.literal(node.dtype, node.arg)
        elif node not in texts:
            texts[node] = spell(node, [texts[source] for source in node.src])
            if len(users[node]) > 1:
                name = f"w{len(lines)}"
                lines.append(f"{language.constant(node.dtype, name)} = {texts[node].text};")
                texts[node] = Expression(name)
    return [*lines, f"return {texts[root].text};"]
