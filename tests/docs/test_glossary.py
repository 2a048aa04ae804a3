"""docs/glossary.md names every op that is not arithmetic, every axis role and every record of the graph, and no op that
is gone."""

from __future__ import annotations

import dataclasses
import re

from tests.docs.examples import DOCS
from tilewright.graph import records
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.spec import Op

TEXT = (DOCS / "glossary.md").read_text()
FIRST_COLUMN = " ".join(re.findall(r"^\| (.*?) \| ", TEXT, flags=re.MULTILINE))
NAMED = set(re.findall(r"`(\w+)`", FIRST_COLUMN))


def test_every_op_with_a_structure_is_named() -> None:
    ops = {name for name, op in vars(Ops).items() if isinstance(op, Op)}
    wanted = {name for name in ops if not getattr(Ops, name).is_elementwise}
    assert wanted - NAMED == set()
    assert {name for name in NAMED if name.isupper()} - ops == set()


def test_every_role_and_record_is_named() -> None:
    roles = re.search(r"^\| role, `AxisType` \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert roles is not None
    assert set(re.findall(r"`([A-Z]+)`", roles[1])) == set(AxisType.__members__)
    defined = {name: value for name, value in vars(records).items() if dataclasses.is_dataclass(value)}
    found = {name for name, value in defined.items() if value.__module__ == records.__name__}
    assert found - NAMED == set()


def test_every_term_is_explained_once() -> None:
    terms = [term for cell in re.findall(r"^\| (.*?) \| ", TEXT, flags=re.MULTILINE) for term in cell.split(", ")]
    meant = [term for term in terms if term not in ("term", "op", "---")]
    assert sorted(term for term in set(meant) if meant.count(term) > 1) == []
