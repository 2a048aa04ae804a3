"""Operands of a contraction's inner loop are loaded where they are first needed, where all at once do not fit the
registers beside the accumulators. Each accumulator keeps the order of its terms."""

from __future__ import annotations

import re

import pytest

from tilewright.backends.cpu.rendering.operand_order import Body, ordered

ROWS = 6


def loop() -> tuple[list[str], list[str]]:
    """One vector of four registers, multiplied with a scalar of each row: all loads stand first."""
    lines = ["  %b = load <16 x float>, ptr %p, align 4"]
    lines += [f"  %a{row} = load float, ptr %q{row}, align 4" for row in range(ROWS)]
    lines += ["  %unused = add i32 %i, 1"]
    for row in range(ROWS):
        lines.append(f"  %one{row} = insertelement <16 x float> poison, float %a{row}, i64 0")
        lines.append(
            f"  %all{row} = shufflevector <16 x float> %one{row}, <16 x float> poison, <16 x i32> zeroinitializer"
        )
        lines.append(f"  %m{row} = fmul contract <16 x float> %all{row}, %b")
    updates = [f"%s{row}" for row in range(ROWS)]
    return lines + [f"  %s{row} = fadd contract <16 x float> %old{row}, %m{row}" for row in range(ROWS)], updates


def test_an_operand_is_loaded_where_it_is_needed() -> None:
    lines, updates = loop()
    made = ordered(lines, updates, 16, 32 - 4 * ROWS)
    assert sorted(made) == sorted(lines)
    names = [line.split()[0] for line in made]
    assert names.index("%a5") > names.index("%s4") > names.index("%a4") > names.index("%s3")
    defined: set[str] = set()
    inside = {line.split()[0] for line in lines}
    for line in made:
        assert {used for used in re.findall(r"%\w+", line.split(" = ")[1]) if used in inside} <= defined
        defined.add(line.split()[0])


@pytest.mark.parametrize("free", [4, 32])
def test_what_fits_or_never_fits_stays_as_it_is(free: int) -> None:
    lines, updates = loop()
    assert Body(lines, updates, 16).registers() == (4 + ROWS, 5)
    assert ordered(lines, updates, 16, free) == lines


def test_loads_that_no_updates_share_stay_as_they_are() -> None:
    """A sum of a stream has prefetches and loads in the order of addresses."""
    lines = [f"  %x{at} = load <4 x float>, ptr %q{at}, align 4" for at in range(16)]
    lines += [f"  %s{at} = fadd <4 x float> %old, %x{at}" for at in range(16)]
    assert ordered(lines, [f"%s{at}" for at in range(16)], 16, 8) == lines


def test_loads_do_not_pass_stores() -> None:
    lines, updates = loop()
    with_store = [*lines[:3], "  store float %a0, ptr %p, align 4", *lines[3:]]
    assert ordered(with_store, updates, 16, 8) == with_store
    with_prefetch = [*lines, "  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1)"]
    assert ordered(with_prefetch, updates, 16, 8)[-1] == with_prefetch[-1]


def test_what_is_loaded_again_from_one_address_counts_once() -> None:
    """Windows that overlap: each of 18 neighbours is used by three sums, and LLVM loads it once."""
    lines = ["  %w = load <4 x float>, ptr %p, align 4"]
    updates = []
    for term in range(3):
        for at in range(16):
            lines.append(f"  %x{term}_{at} = load float, ptr %q{at + term}, align 4")
            lines.append(f"  %s{term}_{at} = fadd <4 x float> %w, %x{term}_{at}")
            updates.append(f"%s{term}_{at}")
    together, at_a_time = Body(lines, updates, 16).registers()
    assert together == 1 + 18
    assert at_a_time > 14  # all but the first and last few, from the first term to the last


def test_elements_of_the_next_term_are_loaded_behind_a_fence() -> None:
    """LLVM loads adjacent elements of a row as a pair, and would hold the second until its term."""
    lines = ["  %b = load <4 x float>, ptr %p, align 4", "  %c = load <4 x float>, ptr %q, align 4"]
    lines += [f"  %s{row} = fadd <4 x float> %old{row}, %b" for row in range(2)]
    lines += [f"  %t{row} = fadd <4 x float> %s{row}, %c" for row in range(2)]
    made = ordered(lines, ["%s0", "%s1", "%t0", "%t1"], 16, 1, ["%t0"])
    fence = made.index('  call void asm sideeffect "", "~{memory}"()')
    assert made[:fence] == [lines[0], *lines[2:4]]
    assert made[fence + 1 :] == [lines[1], *lines[4:]]
