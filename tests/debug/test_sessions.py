"""Sessions: started, watched, told something, cancelled without leaving processes, reported whatever a program does.
Planted bugs are named: three of them by their parts, all of them (slow) by whole investigations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.debug.planted.programs import PROGRAMS, script_of
from tests.debug.test_processes import is_alive
from tilewright.base.errors import FileError
from tilewright.cli.main import app
from tilewright.debug import sessions
from tilewright.debug.investigate.finding import Finding

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests" / "debug" / "planted"
SAMPLE = ("wrong_simplify_rule", "short_symbolic_loop", "overlapping_temps")


def environment(folder: Path, plant: str = "") -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(PLANTED), str(ROOT)]),
        "TILEWRIGHT_PLANT": plant,
        "TILEWRIGHT_PLANT_ROOT": str(ROOT),
        "TILEWRIGHT_CACHE_DIR": str(folder / "cache"),
        "TILEWRIGHT_STATE_DIR": str(folder / "state"),
        "VERIFY_GRAPH": "0",
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def investigate(place: Path, text: str, seconds: float) -> dict[str, object]:
    script = place / "program.py"
    script.write_text(text)
    session = sessions.start([str(script)], seconds=seconds, folder=str(place / "sessions"))
    return sessions.wait(session, 200.0)


# ---------------------------------------------------------------- whatever a program does


def test_a_crash_ends_with_a_report(place: Path) -> None:
    record = investigate(place, "import os\nos.abort()\n", 30.0)
    assert record["status"] == "done"
    assert record["failure"] == {"kind": "crash", "text": "crashed with SIGABRT"}
    text = sessions.show(str(record["folder"]))
    assert "crashed with SIGABRT" in text
    assert "| the compiler, not the program | refuted |" in text
    assert "the program itself" in str(record["conclusion"])


def test_a_hang_ends_with_a_report(place: Path) -> None:
    record = investigate(place, "while True: pass\n", 2.0)
    assert record["status"] == "done"
    assert record["failure"]["kind"] == "timeout"  # type: ignore[index]


def test_a_flood_ends_with_a_report(place: Path) -> None:
    record = investigate(place, "while True: print('x' * 100000)\n", 12.0)
    assert record["status"] == "done"
    assert record["failure"]["kind"] == "flood"  # type: ignore[index]
    assert sum(path.stat().st_size for path in Path(str(record["folder"])).rglob("*") if path.is_file()) < 1 << 22


def test_a_program_that_is_right(place: Path) -> None:
    record = investigate(place, "print(1.5)\n", 30.0)
    assert record["status"] == "done"
    assert record["guilty"] is None
    assert "no failure was seen" in str(record["conclusion"])
    # Its process is waited for though nobody asks for it again.
    child = sessions._children[str(record["folder"])]
    end = time.monotonic() + 60.0
    while child.returncode is None and time.monotonic() < end:
        time.sleep(0.02)
    assert child.returncode == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes through /proc")
def test_cancelling_leaves_no_process(place: Path) -> None:
    script = place / "program.py"
    script.write_text("import os, time\nopen(f'pid-{os.getpid()}', 'w').close()\ntime.sleep(600)\n")
    session = sessions.start([str(script)], seconds=300.0, folder=str(place / "sessions"))
    while len(list(place.glob("pid-*"))) < 2:
        assert sessions.check(session)["status"] == "running"
        time.sleep(0.05)
    started = [int(path.name.removeprefix("pid-")) for path in place.glob("pid-*")]
    sessions.observe(session, "it passes with JIT=0")
    assert sessions.find_session(session).observations() == ["it passes with JIT=0"]
    sessions.cancel(session)
    assert sessions.check(session)["status"] == "cancelled"
    for _ in range(100):
        if not any(map(is_alive, started)):
            break
        time.sleep(0.05)
    assert not any(map(is_alive, started))


def test_the_command_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "project_folder", lambda: place / "sessions")
    (place / "program.py").write_text("raise SystemExit(3)\n")
    runner = CliRunner()
    done = runner.invoke(app, ["debug", "--seconds", "20", str(place / "program.py")])
    assert done.exit_code == 1
    assert "Failure: status 3" in done.output
    assert runner.invoke(app, ["sessions", "show"]).output.startswith("# Investigation")
    assert "done" in runner.invoke(app, ["sessions"]).output
    assert runner.invoke(app, ["sessions", "cancel", "last"]).exit_code == 0
    assert runner.invoke(app, ["sessions", "show", "nothing"]).exit_code == 2
    assert runner.invoke(app, ["sessions", "dance"]).exit_code == 2
    assert runner.invoke(app, ["debug", "nothing.py"]).exit_code == 2
    with pytest.raises(FileError):
        sessions.check("nothing")


# ---------------------------------------------------------------- planted bugs


def run(module: str, arguments: list[str], folder: Path, plant: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    given = {**os.environ, **environment(folder, plant)}
    return subprocess.run(command, env=given, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_named(name: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(script_of(name))
    run("tilewright.debug.investigate.observe", [str(tmp_path), str(script)], tmp_path, name)
    captured = tmp_path / "captured.repro"
    assert captured.exists()
    result = tmp_path / "steps.json"
    run("tilewright.debug.investigate.experiment", [str(result), "steps", str(captured)], tmp_path, name)
    found = Finding.from_json(json.loads(result.read_text())["finding"])
    assert found.kind == PROGRAMS[name].kind
    assert PROGRAMS[name].name in found.name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_investigation_names_the_planted_bug(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_PLANT", name)
    record = investigate(place, script_of(name), 110.0)
    guilty = record["guilty"]
    assert guilty is not None
    assert guilty["kind"] == PROGRAMS[name].kind  # type: ignore[index]
    assert PROGRAMS[name].name in guilty["name"]  # type: ignore[index]
    assert int(str(record["nodes"])) <= 12
    test = str(record["regression"])
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(place), test]
    assert run("pytest", arguments, place, name).returncode == 1
    (place / "clean").mkdir()
    assert run("pytest", arguments, place / "clean", "").returncode == 0
