"""`nn.state.tar_extract` and `zip_extract`: the files of an archive as tensors of bytes; and archives that are damaged,
or made to take all memory or all time, which are refused with our errors."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import DTypeError, FileError, FileFormatError, UserError

MEGABYTE = 1 << 20
CONTENTS = {"a.txt": b"hello", "folder/b.bin": bytes(range(256)) * 5, "empty": b"", "long/" + "n" * 200: b"\1\2\3"}
Extract = Callable[..., dict[str, Tensor]]


def tar_bytes(contents: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return memory.getvalue()


def zip_bytes(contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return memory.getvalue()


WHOLE: dict[str, tuple[Extract, bytes]] = {
    "tar, pax": (nn.state.tar_extract, tar_bytes(CONTENTS)),
    "tar, GNU": (nn.state.tar_extract, tar_bytes(CONTENTS, form=tarfile.GNU_FORMAT)),
    "tar, gzipped": (nn.state.tar_extract, tar_bytes(CONTENTS, "w:gz")),
    "zip, stored": (nn.state.zip_extract, zip_bytes(CONTENTS)),
    "zip, deflated": (nn.state.zip_extract, zip_bytes(CONTENTS, zipfile.ZIP_DEFLATED)),
    "zip, lzma": (nn.state.zip_extract, zip_bytes(CONTENTS, zipfile.ZIP_LZMA)),
}


def read(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", sorted(WHOLE))
def test_the_files_of_an_archive(kind: str, tmp_path: Path) -> None:
    extract, data = WHOLE[kind]
    path = tmp_path / "archive"
    path.write_bytes(data)
    for source in (path, str(path), Tensor(np.frombuffer(data, np.uint8)), Tensor(data)):
        found = extract(source)
        assert read(found) == CONTENTS
        assert {(tensor.dtype.name, tensor.ndim) for tensor in found.values()} == {("uint8", 1)}
    assert extract(path, device="PYTHON")["a.txt"].device == "PYTHON"


@pytest.mark.parametrize(
    ("extract", "data"), [(nn.state.tar_extract, tar_bytes({})), (nn.state.zip_extract, zip_bytes({}))]
)
def test_an_archive_without_files(extract: Extract, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(data)
    assert extract(tmp_path / "archive") == {}


@pytest.mark.parametrize("kind", ["tar, pax", "zip, stored", "zip, deflated"])
def test_an_update_of_the_tensor_leaves_its_files_alone(kind: str) -> None:
    extract, data = WHOLE[kind]
    source = Tensor(data).clone().realize()
    found = extract(source)
    source.assign(Tensor.zeros_like(source))
    source.realize()
    assert read(found) == CONTENTS


def test_folders_links_and_devices_are_left_out() -> None:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for name, kind in [
            ("f", tarfile.DIRTYPE),
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("d", tarfile.CHRTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("../../plain")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"ok"))
    assert read(nn.state.tar_extract(Tensor(memory.getvalue()))) == {"../../plain": b"ok"}
    folder = zip_bytes({"folder/": b"", "folder/x": b"1"})
    assert read(nn.state.zip_extract(Tensor(folder))) == {"folder/x": b"1"}


def test_of_two_files_with_one_name_the_later() -> None:
    first, second = (tar_bytes({"a": content}) for content in (b"old", b"new"))
    assert read(nn.state.tar_extract(Tensor(first[:1024] + second))) == {"a": b"new"}


# ---------------------------------------------------------------- hostile ones


def header(size: bytes, kind: bytes = b"0", name: bytes = b"a") -> bytes:
    """A block of a tar with a size as it stands there."""
    block = bytearray(tarfile.TarInfo(name.decode()).tobuf(tarfile.USTAR_FORMAT)[:512])
    block[124:136] = size.ljust(12, b"\0")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(text: bytes) -> bytes:
    line = b" " + text + b"\n"
    length = len(line)
    while len(str(length)) + len(line) != length:
        length = len(str(length)) + len(line)
    whole = str(length).encode() + line
    return header(b"%011o" % len(whole), b"x") + whole.ljust(512, b"\0")


NEGATIVE = b"\xff" * 11 + b"\0"
BAD_TARS = {
    "empty": b"",
    "text": b"this is no archive" * 100,
    "a size of 2**60": header(b"\x80" + (1 << 60).to_bytes(11, "big")) + bytes(2048),
    "a size beyond the file": header(b"%011o" % 4096) + bytes(1024),
    "a size below 0": header(NEGATIVE) + bytes(2048),
    "a folder with a size below 0": tar_bytes({"x": b"1"})[:1024]
    + header(b"\xff" * 10 + b"\xfc\0", b"7")
    + bytes(2048),
    "a pax size below 0": pax(b"size=-1024") + header(b"%011o" % 0) + bytes(2048),
    "a pax size of 2**70": pax(b"size=" + str(1 << 70).encode()) + header(b"%011o" % 0) + bytes(2048),
    "a pax header of 2**60 bytes": header(b"\x80" + (1 << 60).to_bytes(11, "big"), b"x") + bytes(2048),
    "a long name of 2**60 bytes": header(b"\x80" + (1 << 60).to_bytes(11, "big"), b"L") + bytes(2048),
    "headers of headers of headers": pax(b"a=b") * 3000 + header(b"%011o" % 0) + bytes(1024),
    "a sparse file": header(b"%011o" % 0, b"S") + bytes(1024),
    "damage between two files": tar_bytes({"a": b"1"})[:1024] + b"x" * 512 + tar_bytes({"b": b"1"}),
    "a cut gzip stream": gzip.compress(tar_bytes(CONTENTS))[:-40],
}


@pytest.mark.parametrize("name", sorted(BAD_TARS))
def test_a_tar_that_is_wrong(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    path.write_bytes(BAD_TARS[name])
    tracemalloc.start()
    try:
        if name == "a pax size below 0" and sys.version_info >= (3, 12):
            assert nn.state.tar_extract(path) == {}  # Python's own reader ends the archive there
            return
        with pytest.raises(FileFormatError):
            nn.state.tar_extract(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("extract", [nn.state.tar_extract, nn.state.zip_extract])
def test_a_bomb_is_refused(extract: Extract, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    size = 300 * MEGABYTE
    if extract is nn.state.tar_extract:
        # The same block of zeros again and again: gzip members may follow each other.
        path.write_bytes(gzip.compress(header(b"%011o" % size)) + gzip.compress(bytes(10 * MEGABYTE), 1) * 31)
    else:
        block = zip_bytes({"a": bytes(MEGABYTE)}, zipfile.ZIP_DEFLATED)
        path.write_bytes(block.replace(struct.pack("<I", MEGABYTE), struct.pack("<I", size)))
    assert path.stat().st_size < 2 * MEGABYTE
    with pytest.raises(FileFormatError, match=r"unpack to"):
        extract(path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for extract in (nn.state.tar_extract, nn.state.zip_extract):
        for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
            with pytest.raises(FileError):
                extract(path)
        with pytest.raises(DTypeError, match="uint8"):
            extract(Tensor([1.0, 2.0]))


@pytest.mark.parametrize("kind", sorted(WHOLE))
def test_damaged_archives_raise_our_errors_alone(kind: str, tmp_path: Path) -> None:
    extract, data = WHOLE[kind]
    generator = random.Random(7)
    refused = 0
    for _ in range(120):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 5)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        del damaged[generator.choice([len(data), generator.randrange(len(data))]) :]
        (tmp_path / "archive").write_bytes(damaged)
        try:
            extract(tmp_path / "archive")
        except UserError:
            refused += 1
    assert refused > 40
