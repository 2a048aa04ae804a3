"""bench/compare.py: the best of several rounds is kept, ratios and differing values are shown, every row computes what
NumPy computes, and a framework that is not installed is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import compare
from bench.frameworks import FIRST_RESULT, FRAMEWORKS, Tilewright

ROOT = Path(__file__).resolve().parents[2]


def test_the_best_round_is_kept_and_an_error_only_without_a_time() -> None:
    table: compare.Table = {}
    compare.keep_best(table, "torch", {"row": {"error": "none"}})
    compare.keep_best(table, "torch", {"row": {"seconds": 2.0}})
    compare.keep_best(table, "torch", {"row": {"seconds": 3.0}})
    compare.keep_best(table, "torch", {"row": {"error": "late"}})
    assert table == {"row": {"torch": {"seconds": 2.0}}}


def test_the_ratio_is_that_of_the_best_peer_and_other_values_are_seen() -> None:
    table: compare.Table = {
        "a": {
            "tilewright": {"seconds": 0.002, "magnitude": 1.0},
            "torch": {"seconds": 0.003, "magnitude": 1.0001},
            "jax": {"seconds": 0.001, "magnitude": 1.0},
        },
        "b": {"tilewright": {"seconds": 0.002, "magnitude": 1.0}, "torch": {"seconds": 0.003, "magnitude": 1.1}},
        "c": {"tilewright": {"seconds": 0.002, "magnitude": float("nan")}, "jax": {"error": "OutOfMemory: no"}},
    }
    header, a, b, difference, c, error, nan = compare.table_lines(table, ["tilewright", "torch", "jax"])
    assert header.split() == ["row", "tilewright", "torch", "jax", "best", "peer", "ratio"]
    assert a.split() == ["a", "2.000ms", "3.000ms", "1.000ms", "jax", "0.50"]
    assert b.split() == ["b", "2.000ms", "3.000ms", "-", "torch", "1.50"]
    assert "VALUES DIFFER" in difference
    assert c.split() == ["c", "2.000ms", "-", "-", "-", "-"]
    assert error.strip() == "jax: OutOfMemory: no"
    assert "VALUES DIFFER" in nan
    assert compare.markdown_lines({"a": table["a"]}, ["tilewright", "jax"]) == [
        "| row | tilewright | jax | best peer | ratio |",
        "|---|---|---|---|---|",
        "| a | 2.000ms | 1.000ms | jax | 0.50 |",
    ]


def gelu(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


REFERENCES: dict[str, Any] = {
    "matmul_64": lambda x, y: x @ y,
    "gemv_4096_T": lambda x, y: x @ y.T,
    "gelu_4M": gelu,
    "softmax_4096x1024": softmax,
    "attention_8x256x64": lambda q, k, v: softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v,
    "add_tiny": lambda x: x + 1,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_row_computes_what_its_name_says(name: str) -> None:
    framework = Tilewright()
    workload = compare.kernel_workloads(framework)[name]
    generator = np.random.default_rng(1)
    smaller = [tuple(min(size, 64) for size in shape) for shape in workload.shapes]
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in smaller]
    found = framework.numpy(framework.compiled(workload.function)(*(framework.tensor(array) for array in arrays)))
    np.testing.assert_allclose(found, REFERENCES[name](*arrays), rtol=1e-3, atol=1e-4)


def test_a_run_gives_a_table_and_numbers_and_names_what_is_missing(tmp_path: Path) -> None:
    """In the framework's place of a peer that is not installed stands one that cannot be: tinygrad hidden by a file."""
    (tmp_path / "tinygrad.py").write_text("raise ImportError('hidden')")
    command = [sys.executable, "-m", "bench.compare", "--suite", "kernels", "--only", "add_tiny", "--peers", "tinygrad"]
    command += ["--rounds", "1", "--seconds", "0", "--json", str(tmp_path / "out.json")]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "", "TILEWRIGHT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    assert "kernels: tinygrad did not run: ImportError: hidden" in done.stdout
    assert "add_tiny" in done.stdout
    row = json.loads((tmp_path / "out.json").read_text())["add_tiny"]["tilewright"]
    assert row["seconds"] > 0
    assert row["unit"] == "GB/s"


def test_an_unknown_suite_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "--suite", "kernel"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "'kernel' is none of latency, kernels, train, cold" in done.stderr


def test_every_framework_has_its_first_program() -> None:
    assert list(FIRST_RESULT) == list(FRAMEWORKS)


@pytest.mark.torch
def test_a_training_step_has_a_loss_in_both_frameworks() -> None:
    for name in ("tilewright", "torch"):
        step = FRAMEWORKS[name]().training_step()
        assert step is not None
        first = step()
        assert 1.0 < first < 5.0  # of ten classes, guessed at random
        assert step() != first
