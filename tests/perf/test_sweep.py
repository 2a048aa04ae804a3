"""bench/sweep.py on sizes that are tiny: rows are made of a seed, values decide whether they are timed, and a row that
is wrong, fails or never ends is reported."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import sweep

pytestmark = pytest.mark.torch

FAMILIES = list(sweep.FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_made_of_its_seed_and_number(family: str) -> None:
    names = set()
    for number in range(40):
        found, case = sweep.case_of(7, number, [family], "tiny")
        _, again = sweep.case_of(7, number, [family], "tiny")
        assert found == family
        assert case.name == again.name
        assert all(np.array_equal(left, right) for left, right in zip(case.inputs, again.inputs, strict=True))
        assert max(array.size for array in case.inputs) <= 1 << 17
        names.add(case.name)
    assert len(names) > 20
    assert names != {sweep.case_of(8, number, [family], "tiny")[1].name for number in range(40)}


def test_all_families_take_turns_and_a_card_has_both_dtypes_of_each() -> None:
    assert [sweep.case_of(0, number, FAMILIES, "tiny")[0] for number in range(20)] == FAMILIES * 2
    found = {(number % 10, sweep.dtype_of(number, FAMILIES, "CUDA:0")) for number in range(20)}
    assert found == set(itertools.product(range(10), ("float32", "bfloat16")))
    assert {sweep.dtype_of(number, FAMILIES, "CPU") for number in range(20)} == {"float32"}


@pytest.mark.parametrize("number", range(20))
def test_rows_agree_with_torch_and_are_timed(number: int) -> None:
    _, case = sweep.case_of(3, number, FAMILIES, "tiny")
    row = sweep.measure(case, "CPU", "float32", 0.0, False)
    assert "wrong" not in row
    assert row["error"] < 1e-4
    assert row["ours"] > 0
    assert row["eager"] > 0


@pytest.mark.parametrize("clock", sweep.CLOCKS)
def test_a_call_that_does_more_takes_longer_by_either_clock(clock: str) -> None:
    def call(count: int) -> int:
        return sum(range(count))

    calls = {"little": (lambda: call(2_000), lambda: None), "much": (lambda: call(2_000_000), lambda: None)}
    found = sweep.best_in_turns(calls, 0.0, sweep.CLOCKS[clock])
    assert found["much"] > found["little"] > 0


@pytest.mark.parametrize("change", [1.01, float("nan")])
def test_a_wrong_result_is_reported_and_not_timed(change: float) -> None:
    _, case = sweep.case_of(0, 0, ["reduction"], "tiny")
    spoiled = dataclasses.replace(case, ours=lambda x: x.sum() * change, theirs=lambda x: x.sum(), differentiated=0)
    row = sweep.measure(spoiled, "CPU", "float32", 0.0, False)
    assert row["wrong"]
    assert "ours" not in row
    told = sweep.problems([row | {"number": 4, "name": "sum", "dtype": "float32"}])
    assert told[0].startswith("WRONG 4 sum float32: error")


def test_results_of_other_shapes_are_wrong() -> None:
    assert sweep.error_of([np.ones((2, 3))], [np.ones((3, 2))]) == float("inf")
    assert np.isnan(sweep.error_of([np.array([np.nan]), np.ones(1)], [np.ones(1), np.ones(1)]))
    assert sweep.error_of([np.zeros(3)], [np.zeros(3)]) == 0


BEGIN = "import time, json; row = {'number': 5, 'family': 'pool', 'name': 'x', 'dtype': 'float32'};"
BEGIN += "print(json.dumps(row | {'ours': 1.0}), flush=True); row['number'] = 6;"
BEGIN += "print(json.dumps(row | {'started': True}), flush=True);"


def test_a_row_that_never_ends_is_reported_and_its_process_is_ended() -> None:
    rows = list(sweep.read_rows([sys.executable, "-c", BEGIN + "time.sleep(1000)"], dict(os.environ), 2.0))
    assert [row["number"] for row in rows] == [5, 6]
    assert "failure" not in rows[0]
    assert rows[1]["failure"] == "not done in 2 s"


def test_a_row_that_ends_its_process_is_reported() -> None:
    rows = list(sweep.read_rows([sys.executable, "-c", BEGIN + "raise ValueError('gone')"], dict(os.environ), 60.0))
    assert rows[1]["failure"] == "the process ended: ValueError: gone"
    before = list(sweep.read_rows([sys.executable, "-c", "raise ValueError('no card')"], dict(os.environ), 60.0))
    assert before == [{"failure": "the process ended before the first row: ValueError: no card"}]


def test_the_report_has_the_mean_the_shares_and_the_slowest_first() -> None:
    rows = [
        {"number": n, "family": "pool", "name": f"row {n}", "dtype": "float32", "ours": 1e-3, "eager": 1e-3 * ratio}
        for n, ratio in enumerate((4.0, 0.25, 0.05, 20.0))
    ]
    rows.append({"number": 4, "family": "pool", "name": "bad", "dtype": "float32", "failure": "not done in 60 s"})
    lines = sweep.report(rows, "eager")
    assert lines[0] == "## eager: 4 of 5 rows timed"
    assert lines[1] == (
        "geometric mean of torch's time by ours 1.00; 50% under 0.8, 50% under 0.5, 25% under 0.1; the least 0.0500"
    )
    assert "| pool | 4 | 1.00 | 0.050 |" in lines
    assert lines[-4:][0] == "| 2 | row 2 | float32 | 1 | 0.05 | 0.050 |"
    assert sweep.problems(rows) == ["FAILED 4 bad float32: not done in 60 s"]
    assert sweep.report(rows, "compiled") == ["## compiled: 0 of 5 rows timed"]


def test_a_whole_run_writes_its_rows_and_reads_only_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--scale", "tiny", "--families", "elementwise", "--only", "3", "--row-seconds", "0"]
    assert sweep.main([*given, "--json", str(tmp_path / "rows.json")]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["name"] == sweep.case_of(0, 3, ["elementwise"], "tiny")[1].name
    printed = capsys.readouterr().out
    assert "## eager: 1 of 1 rows timed" in printed
    assert "no row is wrong, none failed" in printed


def test_a_family_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sweep.parse(["--families", "matmul,knitting"])
    assert "no family 'knitting'; there are: matmul, linear" in capsys.readouterr().err
