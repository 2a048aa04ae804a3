"""`tilewright bench`: what it prints adds up, the greatest loss comes first, mistakes are told in a sentence, and the
peaks of a machine are measured once. Most tests are given peaks, so that none waits for a measurement."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tilewright import Context, KernelInfo, Opt, OptOps, Tensor, UOp
from tilewright.cli import bench, peaks
from tilewright.cli.main import app
from tilewright.cli.peaks import Peaks, machine_peaks, read_peaks
from tilewright.cli.roofline import report_runs
from tilewright.debug.watch import KernelRun, watch_runs

PEAKS = Peaks(operations=100e9, read=10e9, write=5e9, triad=8e9)
RUNS = [
    KernelRun("stream", "CPU", 0.02, 1_000_000, 100_000_000, ("a.py", 3)),  # 10 ms of memory
    KernelRun("product", "CPU", 0.05, 2_000_000_000, 1_000_000, ("a.py", 4)),  # 20 ms of arithmetic
    KernelRun("product", "CPU", 0.04, 2_000_000_000, 1_000_000, ("a.py", 4)),
    KernelRun("cached", "CPU", 0.001, 0, 20_000_000, ("a.py", 5)),  # 2 ms of memory, faster than memory is
    KernelRun("stream", "CPU", 0.011, 1_000_000, 100_000_000, ("a.py", 9)),
]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path / "cache"


@pytest.fixture
def given_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "machine_peaks", lambda device, again, note: PEAKS)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


# ---------------------------------------------------------------- the report


def test_rows_come_by_loss_and_add_up() -> None:
    report = report_runs(RUNS, {"CPU": PEAKS})
    assert [(row.name, row.location, row.count) for row in report.rows] == [
        ("product", "a.py:4", 2),
        ("stream", "a.py:3", 1),
        ("stream", "a.py:9", 1),
        ("cached", "a.py:5", 1),
    ]
    assert [row.loss_seconds for row in report.rows] == pytest.approx([0.05, 0.01, 0.001, 0.0])
    assert [row.bound for row in report.rows] == ["arithmetic", "memory", "memory", "memory"]
    assert [row.share for row in report.rows] == pytest.approx([40 / 90, 0.5, 10 / 11, 2.0])
    total = report.total
    assert total.count == len(RUNS)
    assert total.seconds == pytest.approx(sum(run.seconds for run in RUNS))
    assert total.loss_seconds == pytest.approx(0.061)
    assert total.operations == sum(run.operations for run in RUNS)
    assert report.rows[0].intensity == 2000.0
    assert report.rows[0].operation_rate == pytest.approx(4e9 / 0.09)
    assert report.rows[1].byte_rate == pytest.approx(5e9)


def test_each_device_has_its_own_roof() -> None:
    slow = dataclasses.replace(PEAKS, operations=1e9)
    runs = [RUNS[1], dataclasses.replace(RUNS[1], device="OPENCL")]
    rows = {row.device: row for row in report_runs(runs, {"CPU": PEAKS, "OPENCL": slow}).rows}
    assert rows["CPU"].share == pytest.approx(0.4)
    assert rows["OPENCL"].share == pytest.approx(40.0)


def test_what_a_kernel_is_padded_with_is_no_work_of_its() -> None:
    def double(out: UOp, x: UOp) -> UOp:
        i = UOp.range(10, 0)
        info = KernelInfo(name="double", opts_to_apply=(Opt(OptOps.PADTO, 0, 16), Opt(OptOps.UPCAST, 0, 16)))
        return out[i].set(x[i] + x[i], end=i).sink(arg=info)

    x = Tensor.ones(10).contiguous().realize()
    with watch_runs() as runs:
        Tensor.custom_kernel(Tensor.empty(10), x, fxn=double)[0].realize()
    assert [(run.operations, run.bytes_moved) for run in runs] == [(10, 2 * 10 * 4)]


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("given_peaks")
def test_a_workload_is_listed_with_its_lines(tmp_path: Path) -> None:
    values, picture = tmp_path / "softmax.json", tmp_path / "roofline.png"
    result = invoke("softmax", "--json", str(values), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "softmax.py:" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    found = json.loads(values.read_text())
    assert found["peaks"]["CPU"]["operations_per_second"] == PEAKS.operations
    kernels = found["kernels"]
    assert [kernel["loss_seconds"] for kernel in kernels] == sorted((k["loss_seconds"] for k in kernels), reverse=True)
    assert found["total"]["seconds"] == pytest.approx(sum(kernel["seconds"] for kernel in kernels))
    assert found["total"]["bytes"] >= 2 * 4096 * 1024 * 4


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "mnist" else []) for name in bench.workload_names()]
)
def test_every_workload_runs(name: str) -> None:
    told: list[str] = []
    runs = bench.Builtin(name).run(told.append)
    assert told[-1] == f"{name}: round {bench.ROUNDS} of {bench.ROUNDS}"
    assert runs
    assert any(run.location.startswith(f"{name}.py:") for run in runs)


SCRIPT = """
import sys
from tilewright import Tensor, jit
add = jit(lambda x: (x + 1).realize())
x = Tensor([1.0, 2.0]).realize()
for _ in range(4):
    x = add(x)
print(sys.argv[1:], x.tolist())
sys.exit(3)
"""


@pytest.mark.usefixtures("given_peaks")
@pytest.mark.parametrize("is_module", [False, True])
def test_a_program_runs_with_its_arguments_and_status(
    is_module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adding.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path), list(sys.argv)
    result = invoke("-m", "adding", "--", "-n", "4") if is_module else invoke("adding.py", "--", "-n", "4")
    assert (sys.path, sys.argv) == before
    assert result.exit_code == 3, result.output
    assert "['-n', '4'] [5.0, 6.0]" in result.stdout
    row = next(line for line in result.stdout.splitlines() if "adding.py:4" in line)
    assert row.split()[2] == "4"  # jitted, and each of its runs is seen


@pytest.mark.usefixtures("given_peaks")
def test_an_error_of_a_script_is_shown_beside_what_ran(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("from tilewright import Tensor\n(Tensor([1.0]) + 1).realize()\nTensor.ones(2) + Tensor.ones(3)\n")
    result = invoke(str(script))
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "ShapeError" in result.stderr
    assert "broken.py:2" in result.stdout


@pytest.mark.usefixtures("given_peaks")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sofmax",), "there is no workload 'sofmax'"),
        (("sofmax",), "attention, matmul, mnist, softmax"),
        ((), "nothing to run"),
        (("not_there.py",), "there is no script not_there.py"),
        (("-m", "not.there"), "there is no module 'not.there'"),
        (("softmax", "--device", "TPU"), "there is no device 'TPU'"),
        (("softmax", "--device", "HIP"), "HIP cannot be used"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "to fix it" in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("given_peaks")
def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke("softmax", "--plot", str(tmp_path / "roofline.png"))
    assert result.exit_code == 2
    assert "pip install 'tilewright[plot]'" in result.stderr


# ---------------------------------------------------------------- peaks


def test_peaks_are_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(device: str, note: object) -> Peaks:
        measured.append(device)
        return PEAKS

    monkeypatch.setattr(peaks, "measure_peaks", measure)
    assert [machine_peaks("CPU"), machine_peaks("CPU")] == [PEAKS, PEAKS]
    assert len(measured) == 1
    machine_peaks("CPU", again=True)
    assert len(measured) == 2
    (entry,) = (path for path in cache.rglob("*") if path.is_file())
    entry.write_bytes(entry.read_bytes()[:-5])
    assert machine_peaks("CPU") == PEAKS
    assert len(measured) == 3
    assert machine_peaks("CPU") == PEAKS
    assert len(measured) == 3


@pytest.mark.parametrize("entry", [b"", b"[]", b"{}", b'{"operations": 1}', b"no json", b'{"operations": "x"}'])
def test_an_entry_that_holds_no_rates_is_none(entry: bytes) -> None:
    assert read_peaks(entry) is None
    complete = dataclasses.asdict(PEAKS)
    assert read_peaks(json.dumps(complete).encode()) == PEAKS
    assert read_peaks(json.dumps(complete | {"read": 0}).encode()) is None


def test_a_device_that_runs_nothing_has_no_peaks() -> None:
    result = invoke("softmax", "--device", "NULL")
    assert result.exit_code == 2
    assert "take no time" in result.stderr


def test_a_short_measurement_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arithmetic that waits for something, or bytes that are not counted, are far outside of this."""
    for name, value in {"ROUNDS": 2, "MANY_ELEMENTS": 1 << 22, "MIN_SECONDS": 1e-4}.items():
        monkeypatch.setattr(peaks, name, value)
    best = Peaks(0, 0, 0, 0)
    for _ in range(20):  # the best of several: other programs on the machine only make them less
        told: list[str] = []
        found = peaks.measure_peaks("CPU", told.append)
        assert told == ["arithmetic", "read", "write", "triad"]
        best = Peaks(*map(max, dataclasses.astuple(best), dataclasses.astuple(found)))
        if best.operations > 1e9 and min(best.read, best.write, best.triad) > 1e8:
            break
    assert 1e9 < best.operations < 1e14
    assert 1e8 < min(best.read, best.write, best.triad)
    assert best.bandwidth < 1e13
