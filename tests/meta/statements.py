"""The statements of a module, without the expressions in them, which are ten times as many nodes."""

from __future__ import annotations

import ast

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def statements_of(source: str, name: str = "<source>") -> list[ast.AST]:
    """The module, its statements and those inside them, with the handlers of `try` and the cases of `match`."""
    found: list[ast.AST] = [ast.parse(source, name)]
    for node in found:  # which grows meanwhile
        for block in _BLOCKS:
            inside = getattr(node, block, None)
            if isinstance(inside, list):
                found += inside
    return found
