"""What lies in the cache folder is run, so it is believed only where nobody else could have put it there, only for the
key it was stored under, and only whole. Everything else counts as missing, and results are right all the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilewright import Context, Tensor
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.compilation.search.store import read_search, write_search
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.records import Opt, OptOps
from tilewright.kernel.search import Search, Trial
from tilewright.runtime import cache
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import open_driver
from tilewright.runtime.download import make_cache_folder, read_address
from tilewright.runtime.sealed import HEADER_BYTES, seal

needs_users = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no owners of files")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test, in use as it is outside of the suite."""
    place = tmp_path / "cache"
    with Context(TILEWRIGHT_CACHE_DIR=str(place), CACHE=1, VERIFY_GRAPH=0, VERIFY=0):
        yield place
    forget_kernels()
    forget_schedules()


def compute() -> list[object]:
    """Several kernels and schedules of one form, whose binaries and records would fit one another's places."""
    forget_kernels()
    forget_schedules()
    x = Tensor([1.0, 2.0, 3.0])
    results: list[object] = [(x * factor + 1).tolist() for factor in (2.0, 3.0, 4.0)]
    results.append((x.sum() * 2).item())
    results.append((x.reshape(3, 1) @ x.reshape(1, 3)).tolist())
    return results


EXPECTED: list[object] = [
    [3.0, 5.0, 7.0],
    [4.0, 7.0, 10.0],
    [5.0, 9.0, 13.0],
    12.0,
    [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]],
]


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- whose folder it is


@needs_users
def test_folders_and_entries_are_for_their_owner_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        compute()
        make_cache_folder("test", "datasets", "some")
    finally:
        os.umask(before)
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert len(folders) > 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries(folder)} == {0o600}


@needs_users
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused_and_said_so_once(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"cache' is not used: others can write to it \(mode .*chmod go-w") as told:
        found = [compute(), compute()]
    assert found == [EXPECTED, EXPECTED]
    assert len(told) == 1
    assert told[0].filename == __file__
    assert entries(folder) == []


@needs_users
def test_a_folder_of_another_owner_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute() == EXPECTED
    monkeypatch.setattr(cache, "_refused", set())
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    kept = [path.read_bytes() for path in entries(folder)]
    with pytest.warns(RuntimeWarning, match=f"it belongs to another user \\(uid {owner}\\)"):
        found = compute()
    assert found == EXPECTED
    assert read_entry(entries(folder)[0].name) is None
    assert [path.read_bytes() for path in entries(folder)] == kept


@needs_users
def test_an_entry_that_others_can_write_to_is_a_miss(folder: Path) -> None:
    key = cache_key("test")
    write_entry(key, b"payload")
    assert read_entry(key) == b"payload"
    (folder / key[:2] / key).chmod(0o666)
    assert read_entry(key) is None
    write_entry(key, b"payload")
    assert read_entry(key) == b"payload"


@needs_users
def test_downloads_and_datasets_work_without_a_cache_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is not used"):
        place = make_cache_folder("test", "datasets", "some")
    assert not place.startswith(str(folder))
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700


def test_a_folder_behind_a_link_of_the_users_is_used(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other disk"
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)
    assert compute() == EXPECTED
    assert len(entries(elsewhere)) > 5


# ---------------------------------------------------------------- which key an entry is of


def test_entries_in_each_others_places_are_misses(folder: Path) -> None:
    assert compute() == EXPECTED
    before = {path: path.read_bytes() for path in entries(folder)}
    assert len(before) >= 10
    paths = list(before)
    for step in range(1, len(paths), 2):
        for path, other in zip(paths, paths[step:] + paths[:step], strict=True):
            path.write_bytes(before[other])
        assert compute() == EXPECTED
        # Each was made anew, or is still the wrong one's and was not asked for.
        for path, other in zip(paths, paths[step:] + paths[:step], strict=True):
            assert not path.exists() or path.read_bytes() in (before[path], before[other])


def test_a_seal_is_of_a_key_and_a_payload() -> None:
    assert len({seal(key, payload) for key in ("", "a", "b", "ab") for payload in (b"", b"a", b"b", b"ab")}) == 16
    assert len(seal("key", b"12345")) == HEADER_BYTES + 5


def test_a_key_that_is_no_digest_leads_nowhere(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_bytes(seal("../outside", b"payload"))
    assert read_entry("../outside") is None
    assert read_entry("") is None


# ---------------------------------------------------------------- damage of every kind

Damage = Callable[[Path, random.Random], None]


def _truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 20))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def _lengthen(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 200)))


def _fill_with_noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(1000)))


def _become_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if chance.random() < 0.5:
        (path / "file").write_bytes(b"")


def _become_fifo(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _become_link(path: Path, chance: random.Random) -> None:
    target = chance.choice((path.with_name("moved"), path, Path("/dev/zero"), Path("/nowhere")))
    data = path.read_bytes()
    path.unlink()
    path.symlink_to(target)
    if target.name == "moved":
        target.write_bytes(data)


def _become_unreadable(path: Path, chance: random.Random) -> None:
    path.chmod(0)


def _become_huge(path: Path, chance: random.Random) -> None:
    os.truncate(path, 1 << 42)


def _lose_folder(path: Path, chance: random.Random) -> None:
    shutil.rmtree(path.parent)
    if chance.random() < 0.5:
        path.parent.write_bytes(b"a file in the place of a folder")


DAMAGES: list[Damage] = [
    _truncate,
    _flip,
    _lengthen,
    _fill_with_noise,
    _become_folder,
    _become_fifo,
    _become_link,
    _become_unreadable,
    _become_huge,
    _lose_folder,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_whatever_happens_to_entries_results_are_right(folder: Path, damage: Damage) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        assert compute() == EXPECTED
        for path in entries(folder):
            if chance.random() < 0.7 and path.is_file():
                damage(path, chance)
        assert compute() == EXPECTED
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_symlink() or not path.is_dir():
                path.unlink()


def test_an_object_that_no_loader_takes_is_compiled_again(folder: Path) -> None:
    """Sealed as it should be: a compiler that crashed, or another version of it, may have left it."""
    assert compute() == EXPECTED
    for path in entries(folder):
        payload = path.read_bytes()[HEADER_BYTES:]
        if payload.startswith(b"\x7fELF"):
            path.write_bytes(seal(path.name, payload[: len(payload) // 2]))
        elif b'"launch"' in payload:
            path.write_bytes(seal(path.name, json.dumps({**json.loads(payload), "launch": {}}).encode()))
    assert compute() == EXPECTED


WRITER = """
import sys
from tilewright.runtime.cache import cache_key, read_entry, write_entry
for turn in range(300):
    key = cache_key("shared", str(turn % 7))
    write_entry(key, bytes([turn % 7]) * (1000 + 37 * (turn % 7)))
    assert read_entry(key) == bytes([turn % 7]) * (1000 + 37 * (turn % 7)), turn
"""


def test_two_writers_at_once(folder: Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder)}
    running = [subprocess.Popen([sys.executable, "-c", WRITER], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert all(not path.name.startswith(".new-") for path in entries(folder))
    assert len(entries(folder)) == 7


# ---------------------------------------------------------------- searches and downloads


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d is not _lose_folder], ids=lambda d: d.__name__.strip("_"))
def test_damaged_records_of_a_search_count_as_none(folder: Path, damage: Damage) -> None:
    (item,) = (Tensor([1.0, 2.0, 3.0]) * 2.5 + 1).schedule().items
    assert item.ast is not None
    target = open_driver("CPU").target
    trial = Trial((Opt(OptOps.UPCAST, 0, 3),), 0.25, "")
    found = Search({trial.opts: trial}, True)
    for seed in range(5):
        write_search(item.ast, target, found)
        kept = read_search(item.ast, target)
        assert kept is not None
        assert kept.trials == found.trials
        (path,) = (folder / "search").iterdir()
        damage(path, random.Random(seed))
        damaged = read_search(item.ast, target)
        # A file of one's own that lost its read permission is still read by the superuser.
        assert damaged is None or (damage is _become_unreadable and os.geteuid() == 0)
        for left in (folder / "search").iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def test_the_records_of_one_search_are_not_anothers(folder: Path) -> None:
    target = open_driver("CPU").target
    kernels = [(Tensor([1.0, 2.0, 3.0]) * factor).schedule().items[0].ast for factor in (2.5, 3.5)]
    for kernel, seconds in zip(kernels, (0.25, 0.5), strict=True):
        assert kernel is not None
        trial = Trial((), seconds, "")
        write_search(kernel, target, Search({(): trial}, True))
    first, second = (folder / "search").iterdir()
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    for kernel in kernels:
        assert kernel is not None
        assert read_search(kernel, target) is None


@pytest.mark.parametrize("damage", DAMAGES[:4], ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_download_is_fetched_again(folder: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    served = {"http://a/x": b"first file" * 40, "http://a/y": b"second file" * 40}
    asked: list[str] = []

    def transfer(address: str, file: object, progress: bool) -> None:
        asked.append(address)
        file.write(served[address])  # type: ignore[attr-defined]

    monkeypatch.setattr("tilewright.runtime.download._transfer", transfer)
    for seed in range(5):
        for address, content in served.items():
            assert read_address("test", address) == content
        for path in (folder / "downloads").iterdir():
            damage(path, random.Random(seed))
        asked.clear()
        for address, content in served.items():
            assert read_address("test", address) == content
        assert sorted(asked) == sorted(served)
    first, second = (folder / "downloads").iterdir()
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert read_address("test", "http://a/x") == served["http://a/x"]


def test_a_usable_folder_is_no_warning(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compute() == EXPECTED
