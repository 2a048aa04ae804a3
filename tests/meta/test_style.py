"""What ruff does not check: docstrings that open modules, errors that say something, marks left behind; and in tests,
verdicts that depend on how busy the machine is.

Every rule is a function from a module's text to complaints, and is itself tested with a text that breaks it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.meta.statements import statements_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tilewright").rglob("*.py"))
TEST_FILES = sorted((ROOT / "tests").rglob("*.py"))

Rule = Callable[[str], list[str]]


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """The statements of a module, itself first. One rule after the other looks at the same ones."""
    return statements_of(source)


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
    """What is raised belongs to the tree of base/errors, not to the catch-alls of the language."""
    complaints = []
    for node in nodes_of(source):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if ast.unparse(raised) in ("RuntimeError", "Exception", "BaseException"):
                complaints.append(f"{node.lineno}: raises {ast.unparse(raised)}; base/errors has a name for it")
    return complaints


def marks_left(source: str) -> list[str]:
    """A TODO gives its reason and the condition for its end: `TODO(until llvmlite 0.50): because ...`."""
    complaints = []
    for number, line in enumerate(source.splitlines(), start=1):
        for match in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b(.*)", line):
            if match[1] != "TODO" or not re.match(r"\((until|when) [^)]+\): \w+ \w+", match[2]):
                complaints.append(f"{number}: {match[1]} without a reason and a condition for its end")
    return complaints


def repeated_constants(source: str) -> list[str]:
    """No module defines a constant twice: the second would hold for whoever imports the first."""
    complaints, seen = [], set[str]()
    module = nodes_of(source)[0]
    for statement in module.body if isinstance(module, ast.Module) else ():
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        names = {target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()}
        complaints += [f"{statement.lineno}: {name} is defined twice" for name in sorted(names & seen)]
        seen |= names
    return complaints


CLOCKS = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"})


def verdicts_by_the_clock(source: str) -> list[str]:
    """No assertion compares the seconds that passed between two looks at the clock: on a busy machine they are many.
    tests/effort.py counts calls; `time.process_time` leaves out the others' share; what must end is waited for."""
    complaints: list[str] = []
    if not re.search(rf"\b({'|'.join(CLOCKS)})\(", source):
        return complaints
    for function in nodes_of(source):
        if not isinstance(function, ast.FunctionDef):
            continue
        inner = list(ast.walk(function))
        moments = names_of(inner, reads_clock)
        spans = names_of(inner, lambda node, moments=moments: is_span(node, moments))
        for node in inner:
            if isinstance(node, ast.Assert) and any(
                is_span(part, moments) or (isinstance(part, ast.Name) and part.id in spans)
                for compared in ast.walk(node.test)
                if isinstance(compared, ast.Compare)
                for part in ast.walk(compared)
            ):
                complaints.append(f"{node.lineno}: compares seconds that passed")
    return complaints


def names_of(nodes: list[ast.AST], is_meant: Callable[[ast.AST], bool]) -> set[str]:
    """The variables that are given a value with something in it that is meant."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and any(map(is_meant, ast.walk(node.value))):
            found |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def reads_clock(node: ast.AST) -> bool:
    """`time.monotonic()`, or `monotonic()` where it is imported by name."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in CLOCKS and isinstance(called.value, ast.Name) and called.value.id == "time"
    return isinstance(called, ast.Name) and called.id in CLOCKS


def is_span(node: ast.AST, moments: set[str]) -> bool:
    """A difference of two moments, each the clock itself or a variable that holds what it said."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return all(
        reads_clock(side) or (isinstance(side, ast.Name) and side.id in moments) for side in (node.left, node.right)
    )


RULES: tuple[Rule, ...] = (missing_docstring, swallowed_errors, nameless_errors, marks_left, repeated_constants)


def test_package_keeps_the_rules() -> None:
    assert FILES
    complaints = []
    for path in FILES:
        source = path.read_text()
        complaints += [f"{path.relative_to(ROOT)}:{line}" for rule in RULES for line in rule(source)]
    assert complaints == []


def test_no_verdict_depends_on_the_clock() -> None:
    complaints = [
        f"{path.relative_to(ROOT)}:{line}" for path in TEST_FILES for line in verdicts_by_the_clock(path.read_text())
    ]
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
        (repeated_constants, "MIN = 1\nx = 2\nx = 3\nMIN = 4", 4),
        (verdicts_by_the_clock, "def f():\n    a = time.time()\n    g()\n    assert time.time() - a < 10", 4),
        (verdicts_by_the_clock, "def f():\n    a = b()\n    assert perf_counter() - perf_counter() < a", 3),
        (
            verdicts_by_the_clock,
            "def f():\n    a = [time.monotonic()]\n    b = time.monotonic()\n    c = b - a\n    assert c < 3",
            5,
        ),
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
        (verdicts_by_the_clock, "def f():\n    a = time.process_time()\n    assert time.process_time() - a < 10"),
        (verdicts_by_the_clock, "def f():\n    a = time.time()\n    assert a <= g().made <= time.time()"),
        (
            verdicts_by_the_clock,
            "def f():\n    end = time.monotonic() + 9\n    while time.monotonic() < end:\n        g()",
        ),
        (marks_left, "# TODO(until llvmlite 0.50): work around the missing wheel"),
    ],
)
def test_good_code_passes(rule: Rule, source: str) -> None:
    assert rule(source) == []
