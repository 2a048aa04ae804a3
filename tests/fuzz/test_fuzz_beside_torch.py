"""Random programs of tensor operations beside torch: a sample of seeds. `python -m tests.fuzz.beside_torch` takes fresh
ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import beside_torch
from tests.fuzz.beside_torch import check_program, make_program

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_agree(first: int) -> None:
    for seed in range(first, first + 10):
        assert check_program(seed) == []


def test_a_wrong_operation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any) -> Any:
        return x.tanh() if beside_torch.is_torch(x) else x.tanh() * 1.01

    monkeypatch.setattr(beside_torch, "KINDS", (lambda program: program.call("wrong", wrong, program.pick()),))
    found = check_program(3)
    assert any("differs by" in line for line in found)
    assert any("gradient" in line for line in found)
    assert found[: len(make_program(3).text)] == make_program(3).text
