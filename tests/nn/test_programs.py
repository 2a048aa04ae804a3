"""The programs of bench/programs.py on sizes that are tiny: the results, or the loss and each gradient, agree with
torch's, a replay has the same bits, and a program that is wrong is reported and not timed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import programs
from bench.program_kit import Library, OurLibrary, Program, TorchLibrary, call_of
from bench.programs import PROGRAMS
from tilewright import Context, jit

pytestmark = pytest.mark.torch

JOB = programs.Job("CPU", "float32", "tiny", seconds=0.0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_agrees_with_torch_and_a_replay_has_the_same_bits(name: str) -> None:
    expected, of_torch = programs.results_of_torch(PROGRAMS[name], "tiny", "CPU", "float32")
    with Context(DEVICE="CPU"):
        library = OurLibrary("CPU", "float32")
        step, names = call_of(PROGRAMS[name], "tiny", library)
        call = jit(step)
        calls = [[library.numbers(tensor) for tensor in call()] for _ in range(programs.REPLAYS)]
    assert len(names) == len(expected) > PROGRAMS[name].trains
    assert all(np.linalg.norm(array) > 0 for array in expected), "a comparison with zeros would see nothing"
    errors = programs.errors_of(names, calls[0], expected, "float32")
    errors_of_torch = programs.errors_of(names, of_torch, expected, "float32")
    assert programs.wrong_results(errors, errors_of_torch, "float32") == []
    for replayed in calls[1:]:
        assert all(np.array_equal(first, again) for first, again in zip(calls[0], replayed, strict=True))


def test_there_are_sizes_for_every_scale_and_a_title() -> None:
    made = [each for module in programs._MODULES for each in vars(module).values() if isinstance(each, Program)]
    assert len(PROGRAMS) == len(made) == 78, "no two have one name"
    assert sum(each.trains for each in made) == 42
    for program in PROGRAMS.values():
        assert list(program.sizes) == ["card", "host", "tiny"]
        assert program.title != program.name


def spoiled(name: str, change: float) -> Program:
    """A program whose loss, and so each gradient, is another in tilewright."""
    program = PROGRAMS[name]

    def loss(ops: Library, *given: Any, **sizes: int) -> Any:
        return program.function(ops, *given, **sizes) * (change if isinstance(ops, OurLibrary) else 1.0)

    loss.__name__ = name
    return dataclasses.replace(program, function=loss)


def test_a_program_is_timed_and_its_kernels_are_listed() -> None:
    row = programs.measure(PROGRAMS["relation_network"], dataclasses.replace(JOB, kernels=2))
    assert row["wrong"] == []
    assert row["ours"] > 0
    assert row["eager"] > 0
    assert list(row["errors"]) == ["loss", "left", "right", "pairs.weight", "pairs.bias"]
    assert len(row["kernels"]) == 4
    assert "bench/programs_of_sets.py:" in row["kernels"][2]


@pytest.mark.parametrize("change", [1.01, float("nan")])
def test_a_wrong_program_is_reported_and_not_timed(change: float) -> None:
    row = programs.measure(spoiled("skip_gram", change), JOB)
    assert row["wrong"] == ["loss", "words", "contexts"]
    assert "ours" not in row
    line = programs.line_of(row | {"row": "skip_gram"}, "eager")
    assert line.startswith("skip_gram")
    assert "WRONG" in line
    assert "contexts 1.0e-02" in line or np.isnan(change)


def test_torch_in_the_same_dtype_widens_what_is_allowed() -> None:
    assert programs.wrong_results({"loss": 1e-2}, {"loss": 3e-3}, "float32") == []
    assert programs.wrong_results({"loss": 1e-2}, {"loss": 2e-3}, "float32") == ["loss"]
    assert programs.wrong_results({"loss": 1e-2}, {"loss": 2e-3}, "bfloat16") == []
    assert programs.wrong_results({"loss": 1e-2}, {"loss": float("nan")}, "float32") == ["loss"]


def test_a_gradient_that_is_zero_but_for_rounding_counts_as_a_share_of_the_largest() -> None:
    expected = [np.ones(1), np.full(4, 1e-17), np.full(4, 2.0), np.full(4, 1e-9)]
    found = [np.ones(1), np.full(4, 1e-7), np.full(4, 2.0), np.full(4, 1.5e-9)]
    errors = programs.errors_of(["loss", "bias", "weight", "small"], found, expected, "float32")
    assert errors == {"loss": 0, "bias": pytest.approx(5e-8), "weight": 0, "small": pytest.approx(0.5)}
    found[1] = np.ones(4)
    assert programs.errors_of(["loss", "bias", "weight", "small"], found, expected, "float32")["bias"] > 0.4


def test_a_reference_is_made_of_the_rounded_numbers_and_keeps_its_width() -> None:
    torch = pytest.importorskip("torch")
    third = np.full((1,), 1 / 3, np.float32)
    for dtype, wide in (("float32", torch.float64), ("bfloat16", torch.float32)):
        library = TorchLibrary("CPU", dtype, is_reference=True)
        assert library.dtype is library.wide is wide
        made = library.tensor(third, True)
        assert library.widen(made).dtype is wide
        assert made.item() == TorchLibrary("CPU", dtype).tensor(third, True).item()
    assert TorchLibrary("CPU", "bfloat16").widen(made.bfloat16()).dtype is torch.float32


def test_the_summary_has_the_geometric_mean_and_the_rows_under_one() -> None:
    rows: list[dict[str, Any]] = [{"row": "nerf", "ours": 1.0, "eager": 8.0}, {"row": "vae", "ours": 1.0, "eager": 0.5}]
    rows.append({"row": "clip", "failure": "ValueError: no card"})
    assert programs.summary(rows, "eager") == [
        "2 of 3 rows timed, geometric mean of torch's time by ours 2.00",
        "under 1: vae 0.50",
    ]
    assert programs.line_of(rows[2], "eager") == f"{'clip':24}FAILED: ValueError: no card"
    assert programs.summary(rows[2:], "eager") == ["0 of 1 rows timed"]


def test_a_whole_run_prints_its_rows_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--scale", "tiny", "--rows", "skip_gram", "--seconds", "0", "--json", str(tmp_path / "rows.json")]
    assert programs.main(given) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["sizes"] == {"pairs": 32, "vocabulary": 64, "width": 16}
    assert "1 of 1 rows timed, geometric mean" in capsys.readouterr().out


def test_the_exit_status_says_that_a_row_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"row": "vae", "first": 1.0, "errors": {"loss": 1.0}, "torch_errors": {"loss": 0.0}, "wrong": ["loss"]}
    for row, status in ((wrong, 1), ({"row": "vae", "failure": "gone"}, 1), (wrong | {"wrong": []}, 0)):
        monkeypatch.setattr(programs, "rows_of", lambda names, arguments, row=row: [row])
        assert programs.main([]) == status


def test_a_row_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        programs.parse(["--rows", "vae,knitting"])
    assert "no row 'knitting'; there are: unet3d, edsr" in capsys.readouterr().err
