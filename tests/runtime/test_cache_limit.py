"""The size of the disk cache: what was not used longest goes first, nothing but entries goes at all, and readers and
writers of other processes never see half of one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from tilewright import Context
from tilewright.cli.main import app
from tilewright.runtime import cache_limit
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.cache_limit import MEGABYTE, clear, entries, trim

HOUR = 3600.0


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path), CACHE=1):
        yield tmp_path


def age(folder: pathlib.Path, key: str, hours: float) -> None:
    moment = time.time() - hours * HOUR
    os.utime(folder / key[:2] / key, (moment, moment))


def filled(folder: pathlib.Path, count: int, size: int) -> list[str]:
    """Entries of about that size, the first used longest ago."""
    keys = [cache_key("entry", str(number)) for number in range(count)]
    for number, key in enumerate(keys):
        write_entry(key, b"x" * size)
        age(folder, key, float(2 * count - number))
    return keys


def test_those_unused_longest_go_first(folder: pathlib.Path) -> None:
    keys = filled(folder, 10, 1000)
    assert read_entry(keys[0]) is not None  # the oldest, but used now
    size = sum(entry.size for entry in entries(str(folder)))
    freed = trim(str(folder), size // 2)
    assert freed >= size // 2
    left = [key for key in keys if read_entry(key) is not None]
    assert left == [keys[0], *keys[len(keys) - len(left) + 1 :]]
    assert 2 <= len(left) <= 5
    assert sum(entry.size for entry in entries(str(folder))) == size - freed


def test_what_fits_is_left_alone(folder: pathlib.Path) -> None:
    keys = filled(folder, 4, 1000)
    size = sum(entry.size for entry in entries(str(folder)))
    assert trim(str(folder), size) == 0
    assert all(read_entry(key) is not None for key in keys)


def test_a_use_is_noted_once_an_hour(folder: pathlib.Path) -> None:
    (key,) = filled(folder, 1, 10)
    path = folder / key[:2] / key
    age(folder, key, 5.0)
    read_entry(key)
    noted = path.stat().st_mtime
    assert time.time() - noted < HOUR / 2
    age(folder, key, 0.5)
    before = path.stat().st_mtime
    read_entry(key)
    assert path.stat().st_mtime == before


@pytest.mark.parametrize("megabytes", [0, 1])
def test_writes_keep_the_limit(folder: pathlib.Path, megabytes: int) -> None:
    """Of so many entries some have keys that begin with 00, and those look at the size."""
    keys = [cache_key("large", str(number)) for number in range(600)]
    looks = [number for number, key in enumerate(keys) if key.startswith("00")]
    assert looks
    with Context(CACHE_MEGABYTES=megabytes):
        for key in keys[: looks[-1] + 1]:
            write_entry(key, b"x" * (MEGABYTE // 64))
    size = sum(entry.size for entry in entries(str(folder)))
    assert (size <= MEGABYTE) == (megabytes == 1)
    assert read_entry(keys[looks[-1]]) is not None


def test_only_entries_are_removed(folder: pathlib.Path) -> None:
    filled(folder, 3, 100)
    names = ("downloads/a.bin", "00/notes.txt", "readme", "zz/" + "a" * 64, "ab/" + "z" * 64)
    others = [folder / name for name in names]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"x" * 1000)
    young, old = folder / "00" / ".new-young", folder / "00" / ".new-old"
    for path, hours in ((young, 0.1), (old, 3.0)):
        path.write_bytes(b"x")
        moment = time.time() - hours * HOUR
        os.utime(path, (moment, moment))
    trim(str(folder), 0)
    assert young.exists()  # somebody may be writing it
    assert not old.exists()
    assert all(other.exists() for other in others)
    assert [entry.path for entry in entries(str(folder))] == [str(young)]
    clear(str(folder))
    assert all(other.exists() for other in others)


def test_an_entry_that_is_being_read_is_there_to_the_end(folder: pathlib.Path) -> None:
    (key,) = filled(folder, 1, 100_000)
    with open(folder / key[:2] / key, "rb") as file:
        start = file.read(10)
        assert clear(str(folder)) > 100_000
        assert len(start + file.read()) > 100_000
    assert read_entry(key) is None


def test_one_that_another_process_removed_meanwhile_counts_as_gone(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = filled(folder, 8, 1000)
    found = list(entries(str(folder)))
    monkeypatch.setattr(cache_limit, "entries", lambda _: iter(found))
    for entry in sorted(found)[:3]:
        os.remove(entry.path)
    trim(str(folder), sum(entry.size for entry in found) // 2)
    assert [key for key in keys if read_entry(key) is not None] == keys[5:]


CROWD = """
import sys
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.cache_limit import trim
folder, own = sys.argv[1:]
for number in range(150):
    key = cache_key(str(number))
    found = read_entry(key)
    assert found in (None, bytes([number]) * 2000), len(found)
    write_entry(key, bytes([number]) * 2000)
    if number % 10 == int(own):
        trim(folder, 50_000)
"""


def test_processes_write_read_and_remove_at_once(folder: pathlib.Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder), "CACHE": "1"}
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(folder), str(own)], env=environment, stderr=subprocess.PIPE)
        for own in range(3)
    ]
    errors = [process.communicate(timeout=600)[1] for process in crowd]
    assert [(process.returncode, error) for process, error in zip(crowd, errors, strict=True)] == [(0, b"")] * 3
    trim(str(folder), 50_000)
    assert 0 < sum(entry.size for entry in entries(str(folder))) <= 50_000


def test_the_command_tells_and_clears(folder: pathlib.Path) -> None:
    filled(folder, 5, MEGABYTE // 2)
    told = CliRunner().invoke(app, ["cache"]).output
    assert str(folder) in told
    assert "entries  5" in told
    assert "size     2.5 MB" in told
    assert "limit    2048 MB" in told
    assert "2.5 MB removed" in CliRunner().invoke(app, ["cache", "--clear"]).output
    assert list(entries(str(folder))) == []
    assert "entries  0" in CliRunner().invoke(app, ["cache"]).output
