"""`PROFILE=1` and `tilewright stats`: the file has the form that Perfetto reads, with a row per queue and thread, what
ran in order, and the user's lines; a watched replay computes what an unwatched one does; the tables add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tilewright import Tensor, jit
from tilewright.base.errors import FileError
from tilewright.base.events import Event, subscribe
from tilewright.cli.main import app
from tilewright.cli.stats import read_timeline, rows_of, stats_values
from tilewright.debug.chrome import chrome_values, read_profile, write_profile
from tilewright.debug.trace import Recorder, write_trace
from tilewright.debug.trace.records import Level, Run, Span, Timeline

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os
from tilewright import Tensor, jit

@jit
def step(x):
    return (x * 2 + 1).sum()

x = Tensor([1.0, 2.0, 3.0]).realize()
for _ in range(5):
    step(x)
y = Tensor([[1.0, 2.0], [3.0, 4.0]]).shard(("CPU:0", "CPU:1"), axis=0)
(y + 1).sum().item()
os.chdir("/")
if os.fork() == 0:
    (x + 7).tolist()
    raise SystemExit
os.wait()
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PROFILE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tilewright_profile.json" in done.stderr
    return folder / "tilewright_profile.json"


def rows(values: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in values["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return found


def test_the_file_has_the_form_of_a_trace(profile: Path) -> None:
    values = json.loads(profile.read_text())
    required = {"M": {"name", "pid", "tid", "args"}, "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"}}
    required["C"] = {"name", "pid", "ts", "args"}
    named = set()
    for event in values["traceEvents"]:
        assert required[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        if event["ph"] == "M" and event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    assert rows(values).keys() == named, "every row has a name, and every name a row"


def test_a_queue_does_one_thing_at_a_time(profile: Path) -> None:
    for (process, _), events in rows(json.loads(profile.read_text())).items():
        if process == 2:
            spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
            for (_, end), (start, _) in pairwise(spans):
                assert end <= start + 0.002, "times are rounded to nanoseconds"


def test_what_ran_is_there_with_its_lines(profile: Path) -> None:
    timeline = read_profile(profile)
    kinds = {run.kind for run in timeline.runs}
    assert kinds == {"kernel", "copy", "replay"}
    replays = [run for run in timeline.runs if run.kind == "replay"]
    assert len(replays) == 3
    assert {run.line for run in replays} == {("program.py", 11)} or all(
        run.line[1] == 11 for run in replays if run.line
    )
    lines = {run.line[1] for run in timeline.runs if run.line is not None}
    assert {7, 11, 13} <= lines
    inside = [run for run in timeline.runs if run.kind == "kernel" and run.name in replays[0].names]
    assert len(inside) == 5 * len(replays[0].names), "two calls were recorded, three replayed, kernel by kernel"
    assert {"schedule", "kernel", "codegen", "render"} <= {span.name for span in timeline.spans}
    assert {level.device for level in timeline.memory} >= {"CPU", "CPU:1"}
    assert not any(run.line is not None and run.line[1] == 16 for run in timeline.runs), "the child's are its own"


def test_stats_of_a_profile(profile: Path) -> None:
    result = CliRunner().invoke(app, ["stats", str(profile), "--top", "50"])
    assert result.exit_code == 0, result.output
    assert "program.py:7" in result.stdout
    assert "codegen" in result.stdout
    values = json.loads(CliRunner().invoke(app, ["stats", str(profile), "--json"]).stdout)
    timeline = read_profile(profile)
    assert sum(row["nanoseconds"] for row in values["runs"]) == sum(run.duration for run in timeline.runs)
    assert sum(row["count"] for row in values["runs"]) == len(timeline.runs)
    spent = [row["nanoseconds"] for row in values["runs"]]
    assert spent == sorted(spent, reverse=True)


def test_stats_of_a_trace(tmp_path: Path) -> None:
    with Recorder() as recorder:
        (Tensor([1.0, 2.0]) + 1).tolist()
    trace = recorder.trace("program.py", "finished")
    path = tmp_path / "trace.json"
    write_trace(trace, path)
    (row,) = rows_of(read_timeline(path).runs)
    assert row.name == trace.kernels[0].name
    assert row.durations == (trace.runs[0].duration,)


RUN = Run("kernel", "add </script>", "CPU", 1_500, 250, 10, 80, ("a.py", 3), "MainThread", None, None)
TIMELINE = Timeline(
    "a.py",
    (RUN, Run("replay", "step", "CPU", 1_000, 900, 10, 80, None, "worker", None, None, ("add </script>",))),
    (Span("stage", "compile add", 100, 800, "MainThread", ("a.py", 3)),),
    (Level(1_400, "CPU", 80), Level(1_800, "CPU", 0)),
    ("one run is not recorded",),
)


def test_a_profile_reads_back(tmp_path: Path) -> None:
    write_profile(TIMELINE, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == TIMELINE
    assert stats_values(TIMELINE)["peak_memory"] == {"CPU": 80}
    (kernel,) = [event for event in chrome_values(TIMELINE)["traceEvents"] if event.get("cat") == "kernel"]
    assert kernel["args"]["GB/s"] == 0.32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"traceEvents": [], "otherData": {"kind": "other"}}',
        '{"otherData": {"kind": "tilewright profile"}}',
    ],
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(FileError):
        read_profile(path)
    result = CliRunner().invoke(app, ["stats", str(path)])
    assert result.exit_code == 2
    assert "profile" in result.stderr


def test_a_missing_file_is_told() -> None:
    result = CliRunner().invoke(app, ["stats", "nowhere.json"])
    assert result.exit_code == 2
    assert "nowhere.json" in result.stderr


# ---------------------------------------------------------------- replays that are watched


def steps() -> Iterator[tuple[str, Any, list[Any]]]:
    """A name, what makes a jitted function, and its arguments."""
    yield "two kernels", lambda: jit(lambda x: ((x + 1).sum() * x).realize()), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] * 3

    def counting() -> Any:
        total = Tensor.zeros(3).contiguous().realize()

        def add(x: Tensor) -> Tensor:
            total.assign(total + x)
            return (total * 2).realize()

        return jit(add)

    yield "an update in place", counting, [[1.0, 2.0, 3.0]] * 6

    def sharded() -> Any:
        return jit(lambda x: (x.shard(("CPU:0", "CPU:1"), axis=0) * 3).sum().realize())

    yield "copies between devices", sharded, [[1.0, 2.0], [5.0, 7.0]] * 3


@pytest.mark.parametrize(("make", "arguments"), [pytest.param(m, a, id=name) for name, m, a in steps()])
def test_a_watched_replay_computes_the_same(make: Any, arguments: list[Any]) -> None:
    def results() -> list[Any]:
        step = make()
        return [step(Tensor(given).realize()).numpy() for given in arguments]

    plain = results()
    seen: list[Event] = []
    with subscribe(seen.append, kinds=("kernel-run", "copy", "replay")):
        watched = results()
    for one, other in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(one, other)
    replays = [number for number, event in enumerate(seen) if event.kind == "replay"]
    assert len(replays) == len(arguments) - 2
    for before, number in pairwise(replays):
        names = seen[number]["names"]
        assert isinstance(names, tuple)
        between = [str(event["name"]) for event in seen[before + 1 : number] if event.kind == "kernel-run"]
        assert between == list(names)
