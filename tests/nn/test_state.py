"""State dicts and safetensors: names, loading that changes all or nothing, mapped files, files that are wrong."""

from __future__ import annotations

import json
import os
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tilewright import Tensor, jit
from tilewright.base.errors import DTypeError, FileError, FileFormatError, StateError, TilewrightError, UnsupportedError
from tilewright.graph import build
from tilewright.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save
from tilewright.runtime.buffer import buffer_of


class Block:
    def __init__(self, fill: float) -> None:
        self.weight = Tensor.full((2, 3), fill, requires_grad=True)
        self.mean = Tensor([fill, fill])


class Model:
    def __init__(self, fill: float = 1.0) -> None:
        self.blocks = [Block(fill), Block(fill + 1)]
        self.head = Tensor.full((3,), fill + 2, requires_grad=True)
        self.activation = Tensor.relu
        self.size = 3


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Slotted:
    __slots__ = ("missing", "scale")

    def __init__(self) -> None:
        self.scale = Tensor([1.0])


MODEL_NAMES = ["blocks.0.weight", "blocks.0.mean", "blocks.1.weight", "blocks.1.mean", "head"]


def values(model: Any) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in get_state_dict(model).items()}


def memory_of(tensor: Tensor) -> Any:
    return buffer_of(build.stored_root(tensor.uop)).memory


# ---------------------------------------------------------------- names


def one() -> Tensor:
    return Tensor([1.0])


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Model(), MODEL_NAMES),
        (one(), [""]),
        ([one(), (one(), one())], ["0", "1.0", "1.1"]),
        ({"a": one(), "b": {1: one()}}, ["a", "b.1"]),
        (OrderedDict(z=one(), a=one()), ["z", "a"]),
        (Pair(one(), one()), ["left", "right"]),
        (Slotted(), ["scale"]),
        ([1, "text", None, len, Tensor], []),
    ],
    ids=["object", "tensor", "lists", "dicts", "ordered", "named tuple", "slots", "no tensors"],
)
def test_names(model: Any, names: list[str]) -> None:
    assert list(get_state_dict(model)) == names


def test_prefix_stands_before_every_name() -> None:
    assert list(get_state_dict([one()], "net")) == list(get_state_dict([one()], "net.")) == ["net.0"]


def test_an_object_that_holds_itself() -> None:
    model: Any = Block(1.0)
    model.owner = model
    model.parts = [model]
    assert list(get_state_dict(model)) == ["weight", "mean"]


def test_a_tensor_with_two_names_is_one_parameter() -> None:
    shared = one()
    assert list(get_state_dict([shared, shared])) == ["0", "1"]
    assert get_parameters([shared, shared, one()])[0] is shared
    assert len(get_parameters([shared, shared, one()])) == 2


def test_what_jit_keeps_is_no_weight() -> None:
    class Stepper:
        def __init__(self) -> None:
            self.weight = Tensor([1.0])

        @jit
        def step(self, x: Tensor) -> Tensor:
            return x * self.weight

    model = Stepper()
    for _ in range(3):
        model.step(Tensor([2.0]).realize())
    assert list(get_state_dict(model)) == ["weight"]


# ---------------------------------------------------------------- loading into a model


def test_loading_copies_every_value() -> None:
    source, target = Model(5.0), Model(1.0)
    load_state_dict(target, get_state_dict(source))
    assert values(target) == values(source)
    assert all(tensor.requires_grad for name, tensor in get_state_dict(target).items() if "mean" not in name)


@pytest.mark.parametrize(
    ("change", "strict", "complaints"),
    [
        ({"head": None}, True, ["missing: head"]),
        ({"extra": Tensor([1.0])}, True, ["unexpected: extra"]),
        ({"head": Tensor.zeros(4)}, True, ["differing: head (float32[4], the model has float32[3])"]),
        ({"head": Tensor.zeros(4)}, False, ["differing: head"]),
        ({"head": Tensor.zeros(3).half()}, False, ["head (float16[3], the model has float32[3])"]),
        ({"head": [1.0, 2.0, 3.0]}, True, ["head (a list)"]),
        (
            {"head": None, "extra": Tensor([1.0]), "blocks.1.mean": Tensor.zeros(1)},
            True,
            ["missing: head", "unexpected: extra", "blocks.1.mean (float32[1], the model has float32[2])"],
        ),
    ],
)
def test_a_dict_that_does_not_fit_changes_nothing(change: dict[str, Any], strict: bool, complaints: list[str]) -> None:
    model = Model(1.0)
    nodes = [tensor.uop for tensor in get_parameters(model)]
    state = {name: tensor for name, tensor in (get_state_dict(Model(5.0)) | change).items() if tensor is not None}
    with pytest.raises(StateError) as caught:
        load_state_dict(model, state, strict=strict)
    for complaint in complaints:
        assert complaint in str(caught.value)
    assert [tensor.uop for tensor in get_parameters(model)] == nodes
    assert values(model) == values(Model(1.0))


def test_loading_without_strict_passes_over_names() -> None:
    model = Model(1.0)
    load_state_dict(model, {"head": Tensor([7.0, 8.0, 9.0]), "extra": Tensor([1.0])}, strict=False)
    assert values(model) == values(Model(1.0)) | {"head": [7.0, 8.0, 9.0]}


def test_models_loaded_from_one_dict_stay_apart(tmp_path: Path) -> None:
    safe_save(get_state_dict(Model(5.0)), tmp_path / "m.safetensors")
    for state in (get_state_dict(Model(5.0)), safe_load(tmp_path / "m.safetensors")):
        first, second = Model(), Model()
        load_state_dict(first, state)
        load_state_dict(second, state)
        # Gradients tell parameters apart by their nodes.
        nodes = [tensor.uop for holder in (first, second, state) for tensor in get_parameters(holder)]
        assert len(set(nodes)) == len(nodes)
        with Tensor.no_grad():
            first.head += 1
        assert (first.head.tolist(), second.head.tolist(), state["head"].tolist()) == ([8.0] * 3, [7.0] * 3, [7.0] * 3)


def test_a_later_update_of_the_source_is_not_seen() -> None:
    source, target = Tensor([1.0, 2.0]).realize(), [Tensor.zeros(2).contiguous().realize()]
    load_state_dict(target, {"0": source})
    source += 10
    assert source.tolist() == [11.0, 12.0]
    assert target[0].tolist() == [1.0, 2.0]


def test_an_array_that_changes_later_does_not_change_the_model() -> None:
    array = np.array([1.0, 2.0], dtype=np.float32)
    target = [Tensor.zeros(2)]
    load_state_dict(target, {"0": Tensor(array)})
    target[0].realize()
    array[:] = 9
    assert target[0].tolist() == [1.0, 2.0]


def test_loading_into_a_view_writes_its_base() -> None:
    base = Tensor.zeros(4).contiguous().realize()
    load_state_dict({"part": base[1:3]}, {"part": Tensor([5.0, 6.0])})
    assert base.tolist() == [0.0, 5.0, 6.0, 0.0]


def test_loading_moves_to_the_device_of_the_model() -> None:
    target = [Tensor([0.0, 0.0], device="PYTHON")]
    load_state_dict(target, {"0": Tensor([1.0, 2.0], device="CPU")})
    assert (target[0].device, target[0].tolist()) == ("PYTHON", [1.0, 2.0])


# ---------------------------------------------------------------- safetensors: values

ARRAYS: dict[str, Any] = {
    "float32": np.array([[1.5, -2.5, np.inf]], dtype=np.float32),
    "float64": np.array([1e300, 0.1]),
    "float16": np.array([65504.0, -1.25], dtype=np.float16),
    "int8": np.array([-128, 127], dtype=np.int8),
    "int16": np.array([-32768], dtype=np.int16),
    "int32": np.array([-(2**31), 7], dtype=np.int32),
    "int64": np.array([2**62], dtype=np.int64),
    "uint8": np.array([0, 255, 3], dtype=np.uint8),
    "uint16": np.array([65535], dtype=np.uint16),
    "uint32": np.array([2**32 - 1], dtype=np.uint32),
    "uint64": np.array([2**63], dtype=np.uint64),
    "bool": np.array([True, False, True]),
    "scalar": np.array(2.5, dtype=np.float32),
    "empty": np.zeros((0, 3), dtype=np.float32),
}
SMALL = {
    "bfloat16": np.array([1.0, -3.140625, 1e30], dtype=ml_dtypes.bfloat16),
    "float8_e4m3": np.array([1.5, -448.0], dtype=ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.array([1.5, -57344.0], dtype=ml_dtypes.float8_e5m2),
}


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_tensors_come_back(tmp_path: Path, device: str) -> None:
    path = tmp_path / "all.safetensors"
    safe_save({name: Tensor(array, device=device) for name, array in (ARRAYS | SMALL).items()}, path, {"made": "here"})
    loaded = safe_load(path, device=device)
    assert loaded.keys() == (ARRAYS | SMALL).keys()
    for name, array in (ARRAYS | SMALL).items():
        assert loaded[name].device == device
        assert loaded[name].shape == array.shape
        assert loaded[name].numpy().tobytes() == array.tobytes(), name


def test_the_library_reads_what_is_written_and_back(tmp_path: Path) -> None:
    safe_save({name: Tensor(array) for name, array in ARRAYS.items()}, tmp_path / "ours.safetensors")
    for name, array in load_file(tmp_path / "ours.safetensors").items():
        assert array.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(array, ARRAYS[name])
    save_file(ARRAYS, tmp_path / "theirs.safetensors")
    for name, tensor in safe_load(tmp_path / "theirs.safetensors").items():
        assert tensor.numpy().dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(tensor.numpy(), ARRAYS[name])


def test_views_and_expressions_are_saved_as_their_values(tmp_path: Path) -> None:
    base = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    safe_save({"t": base.T, "part": base[:, 1:], "sum": base + 1, "const": Tensor.ones(2)}, tmp_path / "v.safetensors")
    loaded = safe_load(tmp_path / "v.safetensors")
    assert loaded["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["part"].tolist() == [[1, 2], [4, 5]]
    assert loaded["sum"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert loaded["const"].tolist() == [1, 1]


def write_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_data_that_is_not_aligned(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], 0, 1), "b": entry("F32", [2], 1, 9), "c": entry("F64", [1], 9, 17)}
    data = b"\x07" + struct.pack("<2fd", 1.5, -2.5, 0.1)
    loaded = safe_load(write_file(tmp_path / "odd.safetensors", header, data))
    assert {name: (tensor + 0).tolist() for name, tensor in loaded.items()} == {"a": [7], "b": [1.5, -2.5], "c": [0.1]}


# ---------------------------------------------------------------- safetensors: memory


def test_loading_maps_the_file_and_an_update_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safe_save(get_state_dict(Model(5.0)), path)
    before = path.read_bytes()
    model = Model()
    load_state_dict(model, safe_load(path))
    assert all(memory_of(tensor).readonly for tensor in get_parameters(model))
    with Tensor.no_grad():
        model.head += 1
        model.blocks[0].weight[0] = 3.0
    model.head.realize(model.blocks[0].weight)
    assert model.head.tolist() == [8.0] * 3
    assert model.blocks[0].weight.tolist() == [[3.0] * 3, [5.0] * 3]
    assert path.read_bytes() == before


def test_saving_over_the_file_that_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safe_save({"w": Tensor([1.0, 2.0])}, path)
    loaded = safe_load(path)
    safe_save({"w": loaded["w"] * 10}, path)
    assert loaded["w"].tolist() == [1.0, 2.0]
    assert safe_load(path)["w"].tolist() == [10.0, 20.0]
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize(
    ("tensors", "error"),
    [({"a": [1.0]}, DTypeError), ({1: one()}, DTypeError)],
)
def test_what_cannot_be_saved(tmp_path: Path, tensors: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        safe_save(tensors, tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == []


def test_saving_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere.x\.safetensors"):
        safe_save({"a": one()}, tmp_path / "nowhere" / "x.safetensors")


# ---------------------------------------------------------------- safetensors: parts and shards


def test_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safe_save(get_state_dict(Model(5.0)), path)
    assert set(safe_load(path, names=["head", "blocks.0.mean"])) == {"head", "blocks.0.mean"}
    assert set(safe_load(path, names=lambda name: name.endswith("mean"))) == {"blocks.0.mean", "blocks.1.mean"}
    with pytest.raises(FileError, match="holds no 'haed'"):
        safe_load(path, names=["haed"])


def test_a_dtype_we_have_not_can_be_passed_over(tmp_path: Path) -> None:
    header = {"c": entry("C64", [1], 0, 8), "f4": entry("F4", [4], 8, 10), "b": entry("F32", [1], 10, 14)}
    path = write_file(tmp_path / "c.safetensors", header, bytes(10) + struct.pack("<f", 2.5))
    assert safe_load(path, names=["b"])["b"].tolist() == [2.5]
    with pytest.raises(UnsupportedError, match="'c' has dtype C64"):
        safe_load(path)


def save_shards(folder: Path) -> Path:
    safe_save({"a": Tensor([1.0]), "b": Tensor([2.0])}, folder / "model-1.safetensors")
    safe_save({"c": Tensor([3.0])}, folder / "model-2.safetensors")
    weight_map = {"c": "model-2.safetensors", "a": "model-1.safetensors", "b": "model-1.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 12}, "weight_map": weight_map}))
    return index


def test_a_model_in_several_files(tmp_path: Path) -> None:
    index = save_shards(tmp_path)
    for path in (index, tmp_path, str(tmp_path)):
        assert {name: tensor.tolist() for name, tensor in safe_load(path).items()} == {"c": [3], "a": [1], "b": [2]}
    (tmp_path / "model-1.safetensors").unlink()
    # What is not asked for is not opened.
    assert list(safe_load(index, names=["c"])) == ["c"]
    with pytest.raises(FileError, match=r"model-1\.safetensors"):
        safe_load(index)


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds neither"):
        safe_load(tmp_path)
    safe_save({"a": one()}, tmp_path / "model.safetensors")
    assert list(safe_load(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON list where an object should be"),
        ('{"weight_map": [1]}', "no 'weight_map'"),
        ('{"weight_map": {"a": 1}}', "'a' is in 1"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "'../secret.safetensors'"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "'/etc/passwd'"),
        ('{"weight_map": {"z": "model-1.safetensors"}}', "does not hold 'z'"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_wrong_index(tmp_path: Path, content: Any, complaint: str) -> None:
    index = save_shards(tmp_path)
    index.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileFormatError, match=complaint) as caught:
        safe_load(index)
    assert str(index) in str(caught.value)


# ---------------------------------------------------------------- safetensors: damage

FLOATS = struct.pack("<4f", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("header", "data", "length", "complaint"),
    [
        ({"a": entry("F32", [4], 0, 16)}, FLOATS, 1 << 40, "header too large"),
        ({"a": entry("F32", [4], 0, 16)}, FLOATS, 1 << 20, "invalid header length"),
        ({"a": entry("F32", [4], 0, 16), "b": entry("F32", [2], 8, 16)}, FLOATS, None, "offset for tensor `b`"),
        ({"a": entry("F31", [4], 0, 16)}, FLOATS, None, "F31"),
        ({"a": entry("F32", [5], 0, 16)}, FLOATS, None, "shape"),
        ({"a": entry("F32", [-4], 0, 16)}, FLOATS, None, "invalid"),
        ({"a": entry("F32", [1 << 40, 1 << 40], 0, 16)}, FLOATS, None, "overflow"),
        ({"a": entry("F32", [4], 0, 16)}, FLOATS[:-1], None, "not fully covered"),
        ({"a": entry("F32", [4], 0, 16)}, FLOATS + b"x", None, "not fully covered"),
        ({"a": entry("BOOL", [2], 0, 2)}, b"\x01\x02", None, "'a': a bool is neither 0 nor 1"),
        (b"{nonsense", b"", None, "JSON"),
        (b"\xff\xff", b"", None, "UTF-8"),
    ],
)
def test_a_damaged_file(tmp_path: Path, header: Any, data: bytes, length: int | None, complaint: str) -> None:
    path = write_file(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(FileFormatError) as caught:
        safe_load(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x01", b"\0" * 8])
def test_a_file_without_a_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        safe_load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.safetensors.*No such file"):
        safe_load(tmp_path / "nothing.safetensors")


def test_random_damage_gives_only_our_errors(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safe_save({name: Tensor(array) for name, array in ARRAYS.items()}, path)
    content = path.read_bytes()
    random_source = random.Random(7)
    outcomes = {"loaded": 0, "refused": 0}
    named = 0
    for round_number in range(200):
        changed = bytearray(content)
        if round_number % 4 == 0:
            del changed[random_source.randrange(len(changed)) :]
        for _ in range(random_source.randrange(1, 4)):
            if changed:
                changed[random_source.randrange(len(changed))] = random_source.randrange(256)
        path.write_bytes(changed)
        try:
            safe_load(path)
            outcomes["loaded"] += 1
        except TilewrightError as error:
            outcomes["refused"] += 1
            named += str(path) in str(error)
    # Both happen: damage to numbers cannot be seen, damage to the header is.
    assert min(outcomes.values()) > 0
    assert named == outcomes["refused"]
