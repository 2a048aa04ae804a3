"""The disk cache: entries survive a process, damaged ones are rebuilt, many writers never make a torn one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tilewright import Context
from tilewright.runtime.cache import cache_folder, cache_key, read_entry, state_folder, write_entry
from tilewright.runtime.sealed import MAGIC

PROGRAM = """
from tilewright import Tensor
from tilewright.base.events import subscribe
seen = []
subscribe(lambda event: seen.append(event.kind), ["cache-hit", "cache-miss"])
assert (Tensor([1.0, 2.0, 3.0]) * 4 + 1).tolist() == [5.0, 9.0, 13.0]
print(seen.count("cache-hit"), seen.count("cache-miss"))
"""


def run_program(folder: pathlib.Path) -> tuple[int, int]:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:-7] + bytes([data[-7] ^ 0x40]) + data[-6:],
    "empty": lambda data: b"",
    "foreign": lambda data: b"not an entry of ours" * 100,
}


def test_a_second_process_compiles_nothing_and_damaged_entries_are_rebuilt(tmp_path: pathlib.Path) -> None:
    hits, misses = run_program(tmp_path)
    assert hits == 0
    assert misses >= 1
    assert run_program(tmp_path) == (misses, 0)
    for name, damage in DAMAGES.items():
        for path in entries(tmp_path):
            path.write_bytes(damage(path.read_bytes()))
        assert run_program(tmp_path) == (0, misses), name
    assert run_program(tmp_path) == (misses, 0)


def test_unwritable_folder_is_no_failure(tmp_path: pathlib.Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    hits, misses = run_program(blocked)
    assert hits == 0
    assert misses >= 1


def test_many_processes_write_at_once(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in running:
        process.communicate()
        assert process.returncode == 0
    for path in entries(tmp_path):
        assert path.read_bytes().startswith(MAGIC)
        assert not path.name.startswith(".new-")
    assert run_program(tmp_path)[1] == 0


def test_entries_by_key(tmp_path: pathlib.Path) -> None:
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path)):
        assert cache_folder() == str(tmp_path)
        key = cache_key("program", "text", "toolchain")
        assert read_entry(key) is None
        write_entry(key, b"payload")
        assert read_entry(key) == b"payload"
        assert key != cache_key("program", "texttool", "chain")
        assert key != cache_key("program", "text", "toolchain 2")
        with Context(CACHE=0):
            assert read_entry(key) is None


@pytest.mark.parametrize("value", [None, "", " ", "/some/where", "/some/where/", "not/absolute", "~/own"])
def test_folders_are_those_of_platformdirs(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not asked in the plain case, an absolute path on Linux."""
    import platformdirs

    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    with Context(TILEWRIGHT_CACHE_DIR="", TILEWRIGHT_STATE_DIR=""):
        assert cache_folder() == platformdirs.user_cache_dir("tilewright", appauthor=False)
        assert state_folder() == platformdirs.user_state_dir("tilewright", appauthor=False)
