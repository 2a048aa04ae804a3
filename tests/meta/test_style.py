"""What ruff does not check: docstrings that open modules, errors that say something, marks left behind.

Every rule is a function from a module's text to complaints, and is itself tested with a text that breaks it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tilewright").rglob("*.py"))

Rule = Callable[[str], list[str]]


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """Of a module, itself first. One rule after the other looks at the same ones."""
    return list(ast.walk(ast.parse(source)))


def missing_docstring(source: str) -> list[str]:
    """A module opens with a docstring that is a sentence."""
    docstring = ast.get_docstring(nodes_of(source)[0])
    return [] if docstring and len(docstring.split()) > 3 else ["1: the module does not open with a docstring"]


def swallowed_errors(source: str) -> list[str]:
    """No bare `except:`; no `except Exception` whose whole body is `pass`, `...` or `continue`."""
    complaints = []
    for node in nodes_of(source):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            complaints.append(f"{node.lineno}: bare except")
        elif ast.unparse(node.type) in ("Exception", "BaseException") and all(map(does_nothing, node.body)):
            complaints.append(f"{node.lineno}: swallows {ast.unparse(node.type)}")
    return complaints


def does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def nameless_errors(source: str) -> list[str]:
    """What is raised belongs to the tree of base/errors.py, not to the catch-alls of the language."""
    complaints = []
    for node in nodes_of(source):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if ast.unparse(raised) in ("RuntimeError", "Exception", "BaseException"):
                complaints.append(f"{node.lineno}: raises {ast.unparse(raised)}; base/errors.py has a name for it")
    return complaints


def marks_left(source: str) -> list[str]:
    """A TODO gives its reason and the condition for its end: `TODO(until llvmlite 0.50): because ...`."""
    complaints = []
    for number, line in enumerate(source.splitlines(), start=1):
        for match in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b(.*)", line):
            if match[1] != "TODO" or not re.match(r"\((until|when) [^)]+\): \w+ \w+", match[2]):
                complaints.append(f"{number}: {match[1]} without a reason and a condition for its end")
    return complaints


RULES: tuple[Rule, ...] = (missing_docstring, swallowed_errors, nameless_errors, marks_left)


def test_package_keeps_the_rules() -> None:
    assert FILES
    complaints = []
    for path in FILES:
        source = path.read_text()
        complaints += [f"{path.relative_to(ROOT)}:{line}" for rule in RULES for line in rule(source)]
    assert complaints == []


@pytest.mark.parametrize(
    ("rule", "source", "line"),
    [
        (missing_docstring, "import os", 1),
        (missing_docstring, '"""Stub."""', 1),
        (swallowed_errors, "try:\n    f()\nexcept:\n    g()", 3),
        (swallowed_errors, "try:\n    f()\nexcept Exception:\n    pass", 3),
        (swallowed_errors, "for x in y:\n    try:\n        f()\n    except Exception as e:\n        continue", 4),
        (nameless_errors, "raise RuntimeError('no')", 1),
        (nameless_errors, "def f():\n    raise Exception", 2),
        (marks_left, "x = 1\n# TODO make this fast", 2),
        (marks_left, "# XXX", 1),
    ],
)
def test_a_breach_is_seen(rule: Rule, source: str, line: int) -> None:
    (complaint,) = rule(source)
    assert complaint.startswith(f"{line}: ")


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (missing_docstring, '"""What comes in, what goes out."""'),
        (swallowed_errors, "try:\n    f()\nexcept KeyError:\n    pass"),
        (swallowed_errors, "try:\n    f()\nexcept Exception as error:\n    raise ShapeError('f', 'x') from error"),
        (nameless_errors, "try:\n    f()\nexcept RuntimeError:\n    raise"),
        (marks_left, "# TODO(until llvmlite 0.50): work around the missing wheel"),
    ],
)
def test_good_code_passes(rule: Rule, source: str) -> None:
    assert rule(source) == []
