"""Reduction of scripts. In: a script that fails, and a test whether another text fails alike. Out: the script
without the statements that the failure does not need (delta debugging over the syntax tree)."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator


def reduce_program(text: str, fails: Callable[[str], bool], seconds: float) -> str:
    """The shortest script found in the time given; the text itself where it is not Python."""
    end = time.monotonic() + seconds
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    best = text
    size = max(1, _count(tree) // 2)
    while size >= 1 and time.monotonic() < end:
        changed = False
        plain = ast.unparse(ast.parse(best)) + "\n"
        for candidate in _without(plain, size):
            if time.monotonic() > end:
                return best
            if len(candidate) < len(plain) and fails(candidate):
                best, changed = candidate, True
                break
        if not changed:
            size //= 2
    return best


def _count(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def _without(text: str, size: int) -> Iterator[str]:
    """The script without `size` statements that follow each other in one block, from the last."""
    blocks = sum(1 for _ in _blocks(ast.parse(text)))
    for number in range(blocks):
        length = len(list(_blocks(ast.parse(text)))[number])
        for start in range(length - 1, -1, -size):
            tree = ast.parse(text)
            block = list(_blocks(tree))[number]
            first = max(0, start - size + 1)
            del block[first : start + 1]
            if not block and number:
                block.append(ast.Pass())
            if block or not number:
                yield ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, the whole script first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            found = getattr(node, name, None)
            if isinstance(found, list) and found and isinstance(found[0], ast.stmt):
                yield found
