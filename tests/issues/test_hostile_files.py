"""Files that are damaged, or made to take all memory or all time: every loader raises one of our errors, soon, and
takes no more memory than the file gives reason for. Found by mutating files at random and by making them on purpose."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import FileError, FileFormatError, ShapeError, UserError
from tilewright.nn.formats.idx import idx_load

MEGABYTE = 1 << 20


@contextmanager
def little_memory(limit: int = 64 * MEGABYTE) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- GGUF


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(pairs: bytes, pair_count: int, infos: bytes = b"", tensors: int = 0, data: bytes = b"") -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, tensors, pair_count) + pairs + infos
    return header + b"\0" * (-len(header) % 32) + data


def info(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


WHOLE_GGUF = gguf(
    text("general.name") + struct.pack("<I", 8) + text("tiny") + text("list") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3),
    2,
    info("a", (4, 2), 0, 0) + info("b", (32,), 8, 32),
    2,
    np.arange(8, dtype="<f4").tobytes() + struct.pack("<e32b", 0.5, *range(32)),
)
BAD_GGUF = {
    "array of 2**60 numbers": gguf(text("k") + struct.pack("<IIQ", 9, 4, 1 << 60), 1),
    "array of 2**60 texts": gguf(text("k") + struct.pack("<IIQ", 9, 8, 1 << 60), 1),
    "2**60 pairs": gguf(b"", 1 << 60),
    "2**60 tensors": gguf(b"", 0, b"", 1 << 60),
    "a text of 2**63 bytes": gguf(struct.pack("<Q", 1 << 63), 1),
    "an offset that wraps": gguf(b"", 0, info("a", (4,), 0, (1 << 64) - 32), 1, bytes(64)),
    "sizes that wrap": gguf(b"", 0, info("a", (1 << 33, 1 << 33), 0, 0), 1, bytes(64)),
    "axes without end": gguf(b"", 0, text("a") + struct.pack("<I", 1 << 31), 1),
    "an unknown type": gguf(b"", 0, info("a", (4,), 250, 0), 1, bytes(64)),
    "a row that is no whole block": gguf(b"", 0, info("a", (33,), 8, 0), 1, bytes(64)),
    "arrays in arrays in arrays": gguf(text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40, 1),
    "an alignment of 0": gguf(text("general.alignment") + struct.pack("<II", 4, 0), 1),
    "one name twice": gguf(b"", 0, info("a", (4,), 0, 0) * 2, 2, bytes(64)),
}


def test_a_whole_gguf_is_read(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(WHOLE_GGUF)
    for source in (path, Tensor(np.frombuffer(WHOLE_GGUF, np.uint8))):
        facts, tensors = nn.state.gguf_load(source)
        assert facts == {"general.name": "tiny", "list": [1, 2, 3]}
        assert tensors["a"].numpy().tolist() == np.arange(8.0).reshape(2, 4).tolist()
        assert tensors["b"].numpy().tolist() == (np.arange(32) * 0.5).tolist()


@pytest.mark.parametrize("name", sorted(BAD_GGUF))
def test_a_gguf_that_announces_more_than_it_has(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD_GGUF[name])
    with little_memory(), pytest.raises(FileFormatError):
        nn.state.gguf_load(path)


# ---------------------------------------------------------------- zip, gzip, pickles


def torch_zip(value: bytes, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", compression) as archive:
        archive.writestr("archive/data.pkl", value)
        archive.writestr("archive/byteorder", b"little")
        for name, content in entries.items():
            archive.writestr(f"archive/data/{name}", content)
    return memory.getvalue()


def storage(key: str, count: int) -> bytes:
    """A tensor of uint8 over a storage."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + b"X\x07\0\0\0storage" + b"ctorch\nByteStorage\n" + b"X" + struct.pack("<I", len(key)) + key.encode()
        + b"X\x03\0\0\0cpu" + b"\x8a\x08" + struct.pack("<q", count) + b"tQ"
        + b"K\0" + b"\x8a\x08" + struct.pack("<q", count) + b"\x85" + b"K\x01\x85" + b"\x89" + b"}" + b"tR"
    )  # fmt: skip


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    size = 280 * MEGABYTE
    path.write_bytes(torch_zip(b"\x80\x02" + storage("0", size) + b".", zipfile.ZIP_DEFLATED, **{"0": bytes(size)}))
    assert path.stat().st_size < MEGABYTE
    with little_memory(), pytest.raises(FileFormatError, match="unpack to"):
        nn.state.torch_load(path)


def test_a_packed_file_of_reasonable_size_is_read(tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        path = tmp_path / "packed.pt"
        path.write_bytes(torch_zip(b"\x80\x02" + storage("0", 4) + b".", compression, **{"0": b"\1\2\3\4"}))
        assert nn.state.torch_load(path).tolist() == [1, 2, 3, 4]


def test_errors_of_other_modules_become_ours(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt"
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        whole = bytearray(torch_zip(b"\x80\x02" + storage("0", 4000) + b".", compression, **{"0": os.urandom(4000)}))
        refused = 0
        places = range(60, len(whole) - 400, 97)
        for place in places:
            damaged = bytearray(whole)
            damaged[place : place + 8] = b"\xff" * 8
            path.write_bytes(damaged)
            try:
                nn.state.torch_load(path)
            except UserError:
                refused += 1
        assert refused > len(places) // 2  # the rest hit what nobody reads


PICKLES = {
    "copies of a size": pickle.dumps(list(range(50_000)), 2)[:-1]
    + b"q\x99" + b"ctorch\nSize\nq\x98" + b"h\x98h\x99\x85R" * 20_000 + b".",
    "copies of a text": b"\x80\x02c_codecs\nencode\nq\x01X" + struct.pack("<I", 200_000) + b"a" * 200_000
    + b"q\x02X\x06\0\0\0latin1q\x03" + b"h\x01h\x02h\x03\x86R" * 20_000 + b".",
    "copies of a dict": b"\x80\x02ccollections\nOrderedDict\nq\x01}("
    + b"".join(b"J" + struct.pack("<i", k) + b"K\0" for k in range(5_000)) + b"uq\x02"
    + b"h\x01h\x02\x85R" * 20_000 + b".",
    "keys that collide": b"\x80\x02}("
    + b"".join(b"\x8a\x0c" + (((1 << 61) - 1) * k).to_bytes(12, "little") + b"K\0" for k in range(1, 20_000)) + b"u.",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PICKLES))
def test_a_small_pickle_that_asks_for_much(name: str, tmp_path: Path) -> None:
    path = tmp_path / "pickle.pt"
    path.write_bytes(torch_zip(PICKLES[name]))
    with little_memory(256 * MEGABYTE), pytest.raises(FileFormatError):
        nn.state.torch_load(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    zeros = gzip.compress(bytes(MEGABYTE))  # one member of the stream: a thousandth of what it unpacks to
    for sizes in ((1 << 20, 280), (10,)):
        header = bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
        path.write_bytes(gzip.compress(header) + 280 * zeros)
        with little_memory(), pytest.raises(FileFormatError):
            idx_load(path)
    with pytest.raises(FileFormatError, match="unpack"), little_memory(1 << 30):
        Tensor.from_url(path.as_uri(), gunzip=True, progress=False)


# ---------------------------------------------------------------- what is not a file, what never ends


@pytest.mark.parametrize("load", [nn.state.gguf_load, nn.state.safe_load, nn.state.torch_load, idx_load])
def test_pipes_and_folders_are_refused(load: Callable[[Any], Any], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "missing", "nul\0"):
        with pytest.raises(FileError):
            load(path)


def test_a_list_that_contains_itself() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    twice: list[Any] = []
    twice.extend([twice, twice])
    later: list[Any] = [[1.0], None]
    later[1] = later
    for data in (cycle, twice, later, [1.0, cycle], [cycle]):
        with pytest.raises(ShapeError):
            Tensor(data)


# ---------------------------------------------------------------- mutations


def whole_files(folder: Path) -> dict[str, bytes]:
    nn.state.safe_save({"w": Tensor(np.arange(6, dtype=np.float32)), "n": Tensor([1, 2])}, folder / "w.safetensors")
    return {
        "gguf": WHOLE_GGUF,
        "safetensors": (folder / "w.safetensors").read_bytes(),
        "torch": torch_zip(b"\x80\x02" + storage("0", 8) + b".", **{"0": bytes(range(8))}),
        "idx": bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]),
    }


LOADERS: dict[str, Callable[[Any], Any]] = {
    "gguf": nn.state.gguf_load,
    "safetensors": nn.state.safe_load,
    "torch": nn.state.torch_load,
    "idx": idx_load,
}


@pytest.mark.parametrize("kind", sorted(LOADERS))
def test_mutated_files(kind: str, tmp_path: Path) -> None:
    """Bytes changed, numbers made huge, ends cut off: a value or our error, and little memory."""
    rng = random.Random(kind)
    whole = whole_files(tmp_path)[kind]
    path = tmp_path / "mutated"
    with little_memory():
        for _ in range(250):
            mutated = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                place = rng.randrange(len(mutated))
                change = rng.randrange(4)
                if change == 0:
                    mutated[place] = rng.randrange(256)
                elif change == 1:
                    mutated[place : place + 8] = struct.pack("<Q", rng.choice([1 << 60, (1 << 64) - 1, 1 << 31, 0]))
                elif change == 2:
                    del mutated[place:]
                    mutated += b"\0"
                else:
                    mutated[place:place] = bytes(rng.randrange(16))
            path.write_bytes(mutated)
            try:
                LOADERS[kind](path)
            except UserError:
                continue
