"""The op table covers every name of the list, with its parameters, and the page about it is up to date."""

from __future__ import annotations

import inspect

import pytest

from tests.ops.table import LATER, PAGE, TABLE, TESTED_ELSEWHERE, listed_names, ops_markdown
from tilewright import Tensor

NAMES = listed_names()
# Properties that only an instance has.
OF_INSTANCES = {"device", "grad", "requires_grad"}


def test_the_list_is_read() -> None:
    assert len(NAMES) > 220
    assert NAMES["pad"] == ["padding", "mode", "value"]
    assert NAMES["max_pool2d"][0] == "kernel_size"


def test_every_name_has_a_row() -> None:
    covered = {row.op for row in TABLE} | set(TESTED_ELSEWHERE) | set(LATER)
    assert sorted(set(NAMES) - covered) == []


def test_nothing_is_excused_that_is_there() -> None:
    assert [name for name in LATER if hasattr(Tensor, name)] == []
    assert set(LATER) | set(TESTED_ELSEWHERE) <= set(NAMES)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(LATER)))
def test_names_and_parameters_exist(name: str) -> None:
    found = getattr(Tensor([1.0]) if name in OF_INSTANCES else Tensor, name, "missing")
    assert not (isinstance(found, str) and found == "missing")
    if callable(found) and NAMES[name]:
        signature = inspect.signature(found)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        missing = [each for each in NAMES[name] if each not in signature.parameters and each != "kwargs"]
        assert not missing or takes_any


def test_row_names_are_unique() -> None:
    names = [row.name for row in TABLE]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == ops_markdown(), "run: python -m tests.ops.table"
