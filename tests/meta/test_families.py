"""The families of tensor operations are siblings: each is a direct subclass of `Family`, or of the families it uses.

mypy refuses a family that calls an operation of another without naming it as a base; this test refuses a base that the
family does not use, and an operation that two families define.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from tilewright import Tensor
from tilewright.tensor.families.base import Family

FOLDER = Path(inspect.getfile(Family)).parent
OPERATORS = {ast.MatMult: "__matmul__"}


def families() -> list[type[Family]]:
    """Every family that a file of the folder defines."""
    found = []
    for path in sorted(FOLDER.rglob("*.py")):
        name = ".".join(("tilewright", "tensor", "families", *path.relative_to(FOLDER).with_suffix("").parts))
        members = vars(importlib.import_module(name.removesuffix(".__init__"))).values()
        found += [each for each in members if inspect.isclass(each) and each.__module__ == name]
    return [each for each in found if issubclass(each, Family) and each is not Family]


FAMILIES = families()


def names_used(source: str) -> set[str]:
    """The attributes that a program reads, and the methods behind its operators."""
    tree = list(ast.walk(ast.parse(source)))
    used = {node.attr for node in tree if isinstance(node, ast.Attribute)}
    return used | {
        OPERATORS[type(node.op)] for node in tree if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS
    }


def unused_bases(family: type[Family], source: str) -> list[str]:
    """The families that a family names as its bases, and uses no operation of."""
    used = names_used(source)
    bases = [base for base in family.__bases__ if base is not Family]
    return [base.__name__ for base in bases if not used & operations(base)]


def operations(family: type) -> set[str]:
    """What a family has that the base of all families does not: its own, and those of the families it names."""
    kinds = [kind for kind in family.__mro__ if issubclass(kind, Family) and kind is not Family]
    return {name for kind in kinds for name in vars(kind) if not hasattr(Family, name)}


def test_every_family_is_part_of_tensor() -> None:
    assert len(FAMILIES) >= 20
    assert dir(Tensor), "which loads the rare ones"
    assert [family.__name__ for family in FAMILIES if not issubclass(Tensor, family)] == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_bases_are_the_families_it_uses(family: type[Family]) -> None:
    assert all(issubclass(base, Family) for base in family.__bases__)
    assert unused_bases(family, Path(inspect.getfile(family)).read_text()) == []


def test_an_unused_base_is_seen() -> None:
    family = type("ProbeMixin", (Tensor.__mro__[1],), {})
    assert unused_bases(family, "def f(self): return self.reshape(3)") == [Tensor.__mro__[1].__name__]


def test_no_operation_is_defined_twice() -> None:
    owners: dict[str, list[str]] = {}
    for kind in (*FAMILIES, *(kind for kind in Family.__mro__ if kind is not object)):
        for name, member in vars(kind).items():
            if inspect.isfunction(member) or isinstance(member, classmethod | staticmethod | property):
                owners.setdefault(name, []).append(kind.__name__)
    # Storing to a tensor on a file device also writes the file.
    assert {name: kinds for name, kinds in owners.items() if len(kinds) > 1} == {
        "_store": ["PlacementMixin", "TensorBase"]
    }
