"""Files of torch.save, read without torch: what they hold, what they may not ask for, what damage does to them.

The files in tests/data were written by torch with tests/data/make_torch_files.py; the hostile ones are made here.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tilewright import Tensor, dtypes
from tilewright.base.errors import FileError, FileFormatError, TilewrightError, UnsupportedError
from tilewright.graph import build
from tilewright.nn.state import load_state_dict, torch_load
from tilewright.runtime.buffer import buffer_of

DATA = Path(__file__).resolve().parents[1] / "data"
EXPECTED = json.loads((DATA / "torch_expected.json").read_text())
ZIP, LEGACY = DATA / "torch_zip.pt", DATA / "torch_legacy.pt"
EXTRAS = {
    "step": 7,
    "lr": 0.125,
    "name": "net",
    "none": None,
    "flag": True,
    "list": [1, 2, (3, 4)],
    "set": {1, 2},
    "bytes": b"\x00\xff",
    "size": (2, 3, 4),
    "device": "cuda:1",
    "dtype": dtypes.float16,
    "counter": {"a": 1, "b": 2},
}


def facts(tensor: Tensor) -> list[Any]:
    flat = tensor.reshape(math.prod(tensor.shape)).tolist()
    return [tensor.dtype.name, list(tensor.shape), [value if tensor.dtype.is_float else int(value) for value in flat]]


# ---------------------------------------------------------------- what torch wrote


@pytest.mark.parametrize("path", [ZIP, LEGACY], ids=["zip", "legacy"])
def test_every_kind_of_tensor(path: Path) -> None:
    loaded = torch_load(path)
    assert {name: value for name, value in loaded.items() if name != "model"} == EXTRAS
    assert len(loaded["model"]) == len(EXPECTED["model"]) - (3 if path is LEGACY else 0)
    for name, tensor in loaded["model"].items():
        assert facts(tensor) == EXPECTED["model"][name], name


def test_another_device() -> None:
    loaded = torch_load(ZIP, device="PYTHON")["model"]
    assert {tensor.device for tensor in loaded.values()} == {"PYTHON"}
    for name in ("permuted", "sliced", "bfloat16"):
        assert facts(loaded[name]) == EXPECTED["model"][name]


def test_a_state_dict_goes_into_a_model() -> None:
    state = torch_load(DATA / "torch_state_dict.pth")
    assert {name: facts(tensor) for name, tensor in state.items()} == EXPECTED["state_dict"]
    model = [
        {"weight": Tensor.zeros(2, 3), "bias": Tensor.zeros(2)},
        {name: Tensor.zeros(2) for name in ("weight", "bias", "running_mean", "running_var")}
        | {"num_batches_tracked": Tensor(0, dtype="int64")},
    ]
    load_state_dict(model, state)
    assert facts(model[0]["weight"]) == EXPECTED["state_dict"]["0.weight"]


def test_storages_are_mapped_and_updates_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "copy.pt"
    content = ZIP.read_bytes()
    path.write_bytes(content)
    model = torch_load(path)["model"]
    assert buffer_of(build.stored_root(model["contiguous"].uop)).memory.readonly
    model["contiguous"] += 1
    # `row` is a part of the same storage; tensors are values, so it keeps its own.
    assert model["contiguous"].tolist()[1][2] == [21, 22, 23, 24]
    assert model["row"].tolist() == [20, 21, 22, 23]
    assert path.read_bytes() == content


# ---------------------------------------------------------------- files made by hand


class Name:
    """Pickled as a global: a name of a module that need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.text = f"c{module}\n{name}\n".encode()


class Stored:
    """Pickled as torch pickles a storage: by a persistent id."""

    def __init__(self, *identity: Any) -> None:
        self.identity = identity


class Call:
    """Pickled as the call of a global."""

    def __init__(self, module: str, name: str, *arguments: Any) -> None:
        self.reduced = (Name(module, name), arguments)


class Writer(pickle._Pickler):  # type: ignore[name-defined]
    def persistent_id(self, value: Any) -> Any:
        return value.identity if isinstance(value, Stored) else None

    def save(self, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, Name):
            self.write(value.text)
        elif isinstance(value, Call):
            function, arguments = value.reduced
            self.save(function)
            self.save(arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, *args, **kwargs)


def pickled(value: Any, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    Writer(file, protocol).dump(value)
    return file.getvalue()


def write_zip(path: Path, text: bytes, storages: dict[str, bytes] | None = None, compression: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("net/data.pkl", text)
        archive.writestr("net/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"net/data/{key}", data)
    return path


def write_legacy(path: Path, text: bytes, storages: dict[str, bytes] | None = None, width: int = 4) -> Path:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    parts = [pickled(0x1950A86A20F9469CFC6C), pickled(1001), pickled(system), text, pickled(list(storages or {}))]
    parts += [struct.pack("<q", len(data) // width) + data for data in (storages or {}).values()]
    path.write_bytes(b"".join(parts))
    return path


def tensor(storage: Any, offset: Any, size: Any, stride: Any) -> Call:
    return Call("torch._utils", "_rebuild_tensor_v2", storage, offset, size, stride, False, Call(*ORDERED))


ORDERED = ("collections", "OrderedDict")
FLOATS = struct.pack("<6f", *range(6))
STORAGE = Stored("storage", Name("torch", "FloatStorage"), "0", "cpu", 6)
GOOD = {"w": tensor(STORAGE, 1, (2, 2), (1, 2))}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("protocol", [1, 2, 4])
def test_zip_by_hand(tmp_path: Path, protocol: int, compression: int) -> None:
    text = pickled(GOOD, protocol)
    loaded = torch_load(write_zip(tmp_path / "a.pt", text, {"0": FLOATS}, compression))
    assert loaded["w"].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("pad", range(4))
def test_legacy_by_hand_at_every_alignment(tmp_path: Path, pad: int) -> None:
    text = pickled({"x" * pad: 0} | {"w": tensor(Stored(*STORAGE.identity, None), 1, (2, 2), (1, 2))})
    assert torch_load(write_legacy(tmp_path / "a.pt", text, {"0": FLOATS}))["w"].tolist() == [[1, 3], [2, 4]]


def test_legacy_storage_that_is_a_part_of_another(tmp_path: Path) -> None:
    part = Stored("storage", Name("torch", "FloatStorage"), "0", "cpu", 6, ("view", 2, 3))
    path = write_legacy(tmp_path / "a.pt", pickled([tensor(part, 1, (2,), (1,))]), {"0": FLOATS})
    assert torch_load(path)[0].tolist() == [3, 4]
    beyond = Stored("storage", Name("torch", "FloatStorage"), "0", "cpu", 6, ("view", 5, 3))
    with pytest.raises(FileFormatError, match="exceeds it"):
        torch_load(write_legacy(tmp_path / "b.pt", pickled([tensor(beyond, 1, (2,), (1,))]), {"0": FLOATS}))


def test_an_entry_without_a_checksum(tmp_path: Path) -> None:
    content = write_zip(tmp_path / "a.pt", pickled(GOOD), {"0": FLOATS}).read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        for member in archive.infolist():
            content = content.replace(struct.pack("<I", member.CRC), bytes(4))
    (tmp_path / "b.pt").write_bytes(content)
    assert torch_load(tmp_path / "b.pt")["w"].tolist() == [[1, 3], [2, 4]]


def test_checksums_are_checked_unless_told_otherwise(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", pickled(GOOD), {"0": FLOATS})
    path.write_bytes(path.read_bytes().replace(struct.pack("<2f", 2, 3), struct.pack("<2f", 2, 7)))
    with pytest.raises(FileFormatError, match=r"'net/data/0' does not have its checksum"):
        torch_load(path)
    assert torch_load(path, check=False)["w"].tolist() == [[1, 7], [2, 4]]


# ---------------------------------------------------------------- pickles that want more than tensors


class Runs:
    """What a hostile pickle holds: unpickling it the usual way calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


def hostile_pickles(witness: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would make the file `witness`, or else do harm, and what the error has to name."""
    command = f"touch {witness}"
    found = {
        f"os.system, protocol {protocol}": (
            pickle.dumps(Runs(os.system, command), protocol),
            r"posix\.system|nt\.system",
        )
        for protocol in range(6)
    }
    calls = {
        "builtins.eval": Call("builtins", "eval", f"open({str(witness)!r}, 'w')"),
        "builtins.getattr": Call("builtins", "getattr", Name(*ORDERED), "__class__"),
        "subprocess.Popen": Call("subprocess", "Popen", command),
        "torch.load": Call("torch", "load", "other.pt"),
        "torch.nn.modules.linear.Linear": [Name("torch.nn.modules.linear", "Linear")],
        "tilewright.nn.state.safe_save": Call("tilewright.nn.state", "safe_save", {}, str(witness)),
    }
    found |= {name: (pickled(value), name.replace(".", r"\.")) for name, value in calls.items()}
    raw = {
        "INST": b"(S'touch'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'touch'\no.",
        "NEWOBJ": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        "EXT1": b"\x80\x02\x82\x01.",
        "a call of a DType": b"\x80\x02ctorch\nfloat32\n)R.",
        "a call of a str": b"\x80\x02X\x04\x00\x00\x00evil)R.",
        "fills a tuple": b"\x80\x02)K\x01K\x02s.",
    }
    found |= {name: (text, "os.system" if name in ("INST", "OBJ") else name) for name, text in raw.items()}
    found["INST"] = (raw["INST"], "INST")
    # State given to what the table hands out would change it for the next file.
    state = b"}X\x04\x00\x00\x00callNs"
    found["state of a function"] = (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + state + b"b.", "fills a Global")
    return found


@pytest.mark.parametrize("name", list(hostile_pickles(Path("witness"))))
@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_a_hostile_pickle_does_nothing(tmp_path: Path, name: str, write: Any) -> None:
    witness = tmp_path / "witness"
    text, named = hostile_pickles(witness)[name]
    path = write(tmp_path / "evil.pt", text)
    with pytest.raises(FileFormatError, match=named) as caught:
        torch_load(path)
    assert str(path) in str(caught.value)
    assert not witness.exists()


def test_the_hostile_pickle_works_with_pickle(tmp_path: Path) -> None:
    """The test above means something: the first of its pickles runs when it is loaded as pickles are."""
    witness = tmp_path / "witness"
    pickle.loads(hostile_pickles(witness)["os.system, protocol 2"][0])
    assert witness.exists()


def nested_pairs(depth: int) -> bytes:
    """((...), (...)) with each pair twice the same object: small on disk, without end when walked."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * depth


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"\x80\x02}" + nested_pairs(200)[2:] + b"Ns.", "a tuple as a key"),
        (b"\x80\x02" + nested_pairs(200)[2:] + b"Q.", "is not a storage"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", None),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "damaged"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b".", "damaged"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "damaged"),
        (b"(" * 100_000 + b".", "damaged"),
        (b"\x80\x02K\x01", "damaged"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02}K\x01s.", "damaged"),
        (b"", "damaged"),
    ],
    ids=range(12),
)
def test_a_pickle_that_is_built_to_hurt(tmp_path: Path, text: bytes, complaint: str | None) -> None:
    path = write_zip(tmp_path / "bomb.pt", text)
    if complaint is None:
        assert torch_load(path) is None
        return
    with pytest.raises(FileFormatError, match=complaint):
        torch_load(path)


# ---------------------------------------------------------------- files that do not fit together


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (tensor(STORAGE, 0, (7,), (1,)), "exceeds its storage"),
        (tensor(STORAGE, 5, (2,), (1,)), "exceeds its storage"),
        (tensor(STORAGE, 0, (2, 2), (1, 5)), "exceeds its storage"),
        (tensor(STORAGE, -1, (2,), (1,)), "offset -1"),
        (tensor(STORAGE, 0, (-2,), (1,)), "cannot be"),
        (tensor(STORAGE, 0, (2,), (-1,)), "cannot be"),
        (tensor(STORAGE, 0, (2,), (1, 1)), "cannot be"),
        (tensor(STORAGE, 0, (2.0,), (1,)), "cannot be"),
        (tensor(STORAGE, 0, (1 << 40, 1 << 40), (0, 0)), "cannot be"),
        (tensor(STORAGE, 0, (1,) * 65, (1,) * 65), "cannot be"),
        (tensor("no storage", 0, (2,), (1,)), "has no storage"),
        (tensor(STORAGE, 0, 2, 1), "damaged"),
        (Call("torch._utils", "_rebuild_tensor_v2", STORAGE), "damaged"),
        (Stored("storage", Name("torch", "FloatStorage"), "9", "cpu", 6), "'net/data/9'"),
        (Stored("storage", Name("torch", "FloatStorage"), "0", "cpu", 7), "24 bytes where 28 are announced"),
        (Stored("storage", Name("torch", "FloatStorage"), "0", "cpu", -1), "storage '0' is damaged"),
        (Stored("storage", Name("torch", "ComplexFloatStorage"), "0", "cpu", 3), "torch.ComplexFloatStorage"),
        (Stored("module", Name(*ORDERED), "source"), "is not a storage"),
        ([STORAGE, Stored("storage", Name("torch", "IntStorage"), "0", "cpu", 6)], "two dtypes"),
        (tensor(Stored("storage", Name("torch", "BoolStorage"), "1", "cpu", 3), 0, (3,), (1,)), "neither 0 nor 1"),
        (Call("_codecs", "encode", "a", "rot13"), "rot13"),
        (Call("torch", "device", ()), "name of a device"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, value: Any, complaint: str) -> None:
    path = write_zip(tmp_path / "odd.pt", pickled(value), {"0": FLOATS, "1": b"\0\1\2"})
    with pytest.raises(FileFormatError) as caught:
        torch_load(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "empty"),
        (b"not a file of torch", "neither a zip archive nor a stream"),
        (b"PK\x03\x04", "zip archive is damaged"),
        (pickled({"a": 1}), "neither a zip archive nor a stream"),
        (ZIP.read_bytes()[:-30], "zip archive is damaged"),
        (LEGACY.read_bytes()[:-1], "is cut off"),
        (LEGACY.read_bytes()[:100], "damaged"),
    ],
    ids=range(7),
)
def test_another_file(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=complaint):
        torch_load(path)


def test_other_endings(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        torch_load(tmp_path / "none.pt")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(FileFormatError, match=r"0 entries named data\.pkl"):
        torch_load(tmp_path / "plain.zip")
    with zipfile.ZipFile(tmp_path / "big.pt", "w") as archive:
        archive.writestr("net/data.pkl", pickled(1))
        archive.writestr("net/byteorder", "big")
    with pytest.raises(UnsupportedError, match="big-endian"):
        torch_load(tmp_path / "big.pt")


@pytest.mark.parametrize("source", [ZIP, LEGACY], ids=["zip", "legacy"])
def test_random_damage_gives_only_our_errors(tmp_path: Path, source: Path) -> None:
    content = source.read_bytes()
    path = tmp_path / "damaged.pt"
    random_source = random.Random(11)
    outcomes = {"loaded": 0, "refused": 0}
    named = 0
    for round_number in range(150):
        changed = bytearray(content)
        if round_number % 5 == 0:
            del changed[random_source.randrange(len(changed)) :]
        # Most of what can go wrong stands in the pickle, near the beginning.
        reach = max(1, min(len(changed), 1800) if round_number % 2 else len(changed))
        for _ in range(random_source.randrange(1, 4)):
            if changed:
                changed[random_source.randrange(min(reach, len(changed)))] = random_source.randrange(256)
        path.write_bytes(changed)
        try:
            torch_load(path, check=False)
            outcomes["loaded"] += 1
        except TilewrightError as error:
            outcomes["refused"] += 1
            named += str(path) in str(error)
    assert min(outcomes.values()) > 0
    assert named == outcomes["refused"]
