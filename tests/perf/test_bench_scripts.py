"""The scripts of bench/ that write pages and check memory: their rows, checks and tables, on sizes that are small."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import memory_bound, memory_step, scaling
from tilewright import Tensor

ROOT = Path(__file__).resolve().parents[2]


def test_scripts_import_what_there_is() -> None:
    """Most of them need a card or torch, which are not here."""
    for script in (*ROOT.glob("bench/*.py"), *ROOT.glob("tools/*.py")):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("bench.", "tools.")):
                source = ast.parse((ROOT / (node.module.replace(".", "/") + ".py")).read_text())
                defined = {each.name for each in source.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
                for each in ast.walk(source):
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        defined.add(each.id)
                    elif isinstance(each, ast.alias):
                        defined.add(each.asname or each.name)
                missing = {each.name for each in node.names} - defined
                assert not missing, f"{script.name} imports {missing} from {node.module}"


def test_rows_stop_at_their_limits_and_hold_what_they_say() -> None:
    rows = list(scaling.rows_of(100, 4096))
    assert [row.size for row in rows if row.kind == "matmul"] == [32, 33, 64, 65, 100]
    assert [row.size for row in rows if row.kind == "sum columns"] == [1024, 4096]
    for row in rows:
        elements = row.size**2 if row.kind == "matmul" else row.size
        assert [array.size for array in row.arrays()] == [elements] * len(row.shapes)


@pytest.mark.parametrize("row", list(scaling.rows_of(33, 1024)), ids=lambda row: row.name)
def test_every_row_is_measured_and_a_wrong_result_is_seen(
    row: scaling.Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "SECONDS", 0.0)
    scaling.measure("tilewright", iter([row]))
    name, seconds = json.loads(capsys.readouterr().out)
    assert name == row.name
    assert 0 < seconds < 60
    arrays = row.arrays()
    right = np.asarray(row.compute(*(array.astype(np.float64) for array in arrays)))
    row.check(right.astype(np.float32), arrays)
    with pytest.raises(AssertionError, match=row.name):
        row.check(right + np.sqrt(arrays[0].size), arrays)


def test_the_table_has_rates_and_ratios_and_the_pictures_are_there(tmp_path: Path) -> None:
    rows = list(scaling.rows_of(33, 1024))
    best = {row.name: {"tilewright": row.amount / 4e9, "torch": row.amount / 2e9} for row in rows}
    text = scaling.table(rows, best, ["tilewright", "torch"])
    assert "| matmul 33 | GFLOP/s | 4.00 | 2.00 | 2.00 |" in text
    assert "| sum rows 1024 | GB/s | 4.00 | 2.00 | 2.00 |" in text
    alone = scaling.table(rows, {name: {"tilewright": 1.0} for name in best}, ["tilewright"])
    assert "| matmul 32 | GFLOP/s | 0.00 | - |" in alone
    scaling.save_plots(rows, best, ["tilewright", "torch"], tmp_path)
    for name in ("scaling_matmul.png", "scaling_sum.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process there")
def test_the_peak_of_the_process_is_read() -> None:
    """In a process of its own: this one gives back memory of other tests whenever it likes."""
    code = """
import numpy as np
from bench import memory_step
peak, resident = memory_step.peak_bytes(), memory_step.resident_bytes()
block = np.ones(peak - resident + (32 << 20), dtype=np.uint8)
print(resident, peak, memory_step.peak_bytes(), block.nbytes)
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    resident, before, after, added = (int(number) for number in finished.stdout.split())
    assert 0 < resident < before + (1 << 20)  # the system counts pages in batches
    assert before + (16 << 20) < after < before + added + (32 << 20)


def test_what_is_alive_at_once_is_no_more_than_the_arena() -> None:
    x = Tensor.rand(64, 64).realize()
    plan = ((x @ x).contiguous() @ (x @ x).contiguous()).schedule()
    (arena,) = (size for _, size in plan.arenas)
    assert 64 * 64 * 4 <= memory_step.alive(plan) <= arena


def test_bytes_that_have_to_move_are_those_given_and_those_that_come_out_once_each() -> None:
    rows = memory_bound.Rows(None).makers()
    row = rows["average pool 2x2 8x256x14x14 and gradients"]()
    x = row.inputs[0]
    line = memory_bound.measure(row, None, 0.0, 1e9)
    milliseconds, rate = float(line.split(" ms")[0].split()[-1]), float(line.split(" GB/s")[0].split()[-1])
    # The images, their gradient, and a quarter of them each for the means and what these weigh.
    assert rate == pytest.approx(2.5 * x.nbytes / milliseconds / 1e6, rel=0.05)
