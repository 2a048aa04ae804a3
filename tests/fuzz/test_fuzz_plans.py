"""Random programs with fixed seeds, for random targets: every plan of a template for their kernels does on the emulator
what the kernel does without opts. `python -m tests.fuzz.plans` goes on with fresh seeds."""

from __future__ import annotations

import pytest

from tests.fuzz.plans import FAMILIES, Drawn, draw_facts, examine

QUICK_PROGRAMS = 10
PROGRAMS = 600
CHUNK = 10


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_PROGRAMS, CHUNK),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK_PROGRAMS, PROGRAMS, CHUNK)),
    ],
)
def test_plans_change_nothing(first: int) -> None:
    found = [examine(seed) for seed in range(first, first + CHUNK)]
    failures = [text for _, texts in found for text in texts]
    assert not failures, "\n".join(failures)
    assert sum(count for count, _ in found) > CHUNK


def test_programs_have_all_families_targets_and_kinds_of_sizes() -> None:
    drawn = [Drawn(seed) for seed in range(200)]
    facts = [draw_facts(each.chance) for each in drawn]
    assert {each.chance.choice(FAMILIES) for each in drawn} == set(FAMILIES)
    assert {bool(each.get("has_threads")) for each in facts} == {False, True}
    assert {bool(each.variables) for each in drawn} == {each.is_empty for each in drawn} == {False, True}
