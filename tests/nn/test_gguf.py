"""GGUF files, written by the library `gguf`: what is in them, and what damage does."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from tilewright import Tensor, jit
from tilewright.base.errors import FileError, FileFormatError, UnsupportedError
from tilewright.nn.formats.gguf_header import read_header
from tilewright.nn.formats.gguf_values import KINDS, Texts
from tilewright.nn.state import gguf_load

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0")
PLAIN = {
    "float64": X.astype(np.float64),
    "float32": X,
    "float16": X.astype(np.float16),
    "int8": np.arange(6, dtype=np.int8),
    "int32": np.arange(6, dtype=np.int32).reshape(1, 2, 3),
    "int64": np.array([1 << 40, -1]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("count", 7)
    writer.add_float32("ratio", 0.5)
    writer.add_bool("flag", True)
    writer.add_string("name", "Größe")
    writer.add_array("words", ["a", "bc"])
    writer.add_array("numbers", [1, 2, 3])
    for name, array in PLAIN.items():
        writer.add_tensor(name, array)
    writer.add_tensor("bfloat16", (X.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), raw_dtype=kind("BF16"))
    wide = np.tile(X, (1, 4))
    for name in QUANTISED:
        writer.add_tensor(name, gguf.quantize(wide, kind(name)), raw_dtype=kind(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kind(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def test_weights_from_a_tensor_of_bytes_are_their_own(model: Path) -> None:
    """They were views of that tensor's memory: an update of it changed the weights."""
    contents = np.frombuffer(model.read_bytes(), np.uint8)
    for update in (lambda t: t.assign(t * 0).realize(), lambda t: t.__setitem__(slice(100, None), 0), jit(_zeroed)):
        for _ in range(3):
            given = Tensor(contents.copy()).realize()
            tensors = gguf_load(given)[1]
            update(given)
            given.realize()
            assert int(given[-64:].max().item()) == 0
            for name, array in PLAIN.items():
                np.testing.assert_array_equal(tensors[name].numpy(), array)


def _zeroed(tensor: Tensor) -> None:
    tensor.assign(tensor * 0).realize()


def test_facts_and_plain_tensors(model: Path) -> None:
    facts, tensors = gguf_load(model)
    assert facts == {
        "general.architecture": "llama",
        "count": 7,
        "ratio": 0.5,
        "flag": True,
        "name": "Größe",
        "words": ["a", "bc"],
        "numbers": [1, 2, 3],
    }
    assert list(tensors) == [*PLAIN, "bfloat16", *QUANTISED]
    for name, array in PLAIN.items():
        assert (tensors[name].dtype.name, tensors[name].shape) == (name, array.shape)
        np.testing.assert_array_equal(tensors[name].numpy(), array)
    assert tensors["bfloat16"].dtype.name == "bfloat16"
    np.testing.assert_allclose(tensors["bfloat16"].float().numpy(), X, rtol=2**-7)


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_tensors_are_what_the_library_unpacks(model: Path, name: str) -> None:
    found = gguf_load(str(model))[1][name]
    packed = gguf.quantize(np.tile(X, (1, 4)), kind(name))
    assert (found.dtype.name, found.shape) == ("float32", (4, 256))
    np.testing.assert_array_equal(found.numpy(), gguf.dequantize(packed, kind(name)))


def test_plain_tensors_stay_in_the_file(model: Path) -> None:
    found = gguf_load(model)[1]["float32"]
    assert found._host_view().readonly
    found += 1
    np.testing.assert_allclose(found.numpy(), X + 1)
    np.testing.assert_array_equal(gguf_load(model, device="PYTHON")[1]["float32"].numpy(), X)


def test_a_damaged_file_gives_nothing(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    path = tmp_path / "damaged.gguf"
    for size in (0, 3, 8, 30, 200, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"gguf_load: '.*damaged\.gguf'"):
            gguf_load(path)
    header = len(whole) - sum(array.nbytes for array in PLAIN.values())
    choose = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[choose.randrange(header)] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        try:
            _, tensors = gguf_load(path)
        except (FileFormatError, UnsupportedError):
            continue
        assert all(isinstance(tensor, Tensor) for tensor in tensors.values())


def test_types_are_those_of_the_library() -> None:
    sizes = {each.value: (each.name, *sizes) for each, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: tuple(own[1:]) for number, own in KINDS.items()} == sizes


def test_texts_are_made_when_they_are_asked_for(tmp_path: Path) -> None:
    """Words of a vocabulary stay bytes of the file; what is not UTF-8 is replaced, as in any text of a header."""
    words = ["", "a", "Größe", "日本語 ", "x" * 300]
    raw = [word.encode() for word in words] + [b"\xff\xfea"]
    packed = b"".join(struct.pack("<Q", len(each)) + each for each in raw)
    pair = (
        struct.pack("<Q1sIIQ", 1, b"w", 9, 8, len(raw)) + packed + struct.pack("<Q1sIIQ3f", 1, b"n", 9, 6, 3, 1, 2, 3)
    )
    facts = read_header(memoryview(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair)).facts
    found = facts["w"]
    assert isinstance(found, Texts)
    assert facts["n"].tobytes() == struct.pack("=3f", 1, 2, 3)
    words.append("\ufffd\ufffda")
    assert found == words
    assert list(found) == words
    assert [found[n] for n in range(-6, 0)] == words
    assert found[1:4] == words[1:4]
    assert "Größe" in found
    assert found not in (words[:-1], words[1:], 3)
    assert len(read_header(memoryview(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair[:13] + bytes(12))).facts["w"]) == 0
    with pytest.raises(IndexError):
        found[6]
    for end in range(len(pair) - 30):
        with pytest.raises(ValueError, match=r"ends|announced|left"):
            read_header(memoryview(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair[:end]))


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="No such file"):
        gguf_load(tmp_path / "nothing.gguf")
    (tmp_path / "text").write_text("these are no weights at all")
    with pytest.raises(FileFormatError, match="magic"):
        gguf_load(tmp_path / "text")
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"w", 1, 2, 0, 0)
    (tmp_path / "whole").write_bytes(header + bytes(-len(header) % 32 + 8))
    assert gguf_load(tmp_path / "whole")[1]["w"].tolist() == [0.0, 0.0]
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"w", 1, 32, 8, 0)
    (tmp_path / "quantised").write_bytes(header + bytes(-len(header) % 32 + 34))
    assert gguf_load(tmp_path / "quantised")[1]["w"].tolist() == [0.0] * 32
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnsupportedError, match="pip install gguf"):
        gguf_load(tmp_path / "quantised")


def write_part(path: Path, number: int, count: int, **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", f"part {number}")
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_model_in_several_files(tmp_path: Path) -> None:
    values = {name: np.arange(4, dtype=np.float32) + number for number, name in enumerate("abc")}
    paths = [tmp_path / f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, (path, name) in enumerate(zip(paths, values, strict=True)):
        write_part(path, number, 3, **{name: values[name]})
    for path in paths:
        facts, tensors = gguf_load(path)
        assert (facts["split.count"], facts["general.name"]) == (3, "part 0")
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {k: v.tolist() for k, v in values.items()}
    with pytest.raises(UnsupportedError, match="one part of 3"):
        gguf_load(Tensor(paths[0].read_bytes()))
    with pytest.raises(UnsupportedError, match="one part of 3"):
        gguf_load(paths[0].rename(tmp_path / "model.gguf"))
    (tmp_path / "model.gguf").rename(paths[0])
    write_part(paths[1], 1, 3, a=values["a"])
    with pytest.raises(FileFormatError, match="in another part"):
        gguf_load(paths[0])
    paths[1].unlink()
    with pytest.raises(FileError, match="00002-of-00003"):
        gguf_load(paths[0])
