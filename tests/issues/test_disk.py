"""Files as tensors: `Tensor(pathlib.Path(...))` reads one where it is needed, and a tensor of the device 'DISK:path' is
the file, which assignments write at once."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from tilewright import Device, Tensor, dtypes, nn
from tilewright.base.errors import DeviceError, FileError, ShapeError, UserError
from tilewright.base.events import GlobalCounters


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "Mixed Case:1.bin"
    made.write_bytes(bytes(range(256)) * 4)
    return made


def contents(path: Path, dtype: str = "uint8") -> list[float]:
    return np.fromfile(path, dtype).tolist()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- reading


def test_a_path_is_a_tensor_of_its_bytes(path: Path) -> None:
    t = Tensor(path)
    assert (t.shape, t.dtype, t.device) == ((1024,), dtypes.uint8, f"DISK:{path}")
    assert t.tolist() == list(range(256)) * 4
    assert Tensor(path, dtype="int32").tolist() == np.fromfile(path, np.int32).tolist()
    assert Tensor(path, device="CPU").device == "CPU"
    assert t.to(None).device == Device.DEFAULT


def test_views_are_read_as_they_would_be_in_memory(path: Path) -> None:
    t, values = Tensor(path), np.fromfile(path, np.uint8)
    assert t[10:20].to("CPU").tolist() == values[10:20].tolist()
    assert t[12:20].bitcast(dtypes.int32).to("CPU").tolist() == values[12:20].view(np.int32).tolist()
    assert t[13:21].bitcast("int32").to("CPU").tolist() == values[13:21].view(np.int32).tolist()
    assert t.bitcast("float32")[3].to("PYTHON").device == "PYTHON"
    table = t.reshape(32, 32)
    for view, wanted in [(table.T, values.reshape(32, 32).T), (table[::3, 5], values.reshape(32, 32)[::3, 5])]:
        assert np.array_equal(view.to("CPU").numpy(), wanted)
    assert t[7].item() == 7
    assert t[[5, 300]].to("CPU").tolist() == [5, 44]
    assert t[:16].shard(("CPU:1", "CPU:2"), axis=0).to("CPU").tolist() == list(range(16))


def test_only_what_is_needed_comes_into_memory(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"\1\2\3\4")
    gc.collect()
    before = GlobalCounters.mem_used
    t = Tensor(large)
    assert t.shape == (1 << 40,)
    part = t[(1 << 39) : (1 << 39) + 4].to("CPU")
    assert part.tolist() == [1, 2, 3, 4]
    assert GlobalCounters.mem_used - before < 4096


def test_a_path_is_read_and_never_written(path: Path) -> None:
    before = contents(path)
    path.chmod(0o444)
    t = Tensor(path)
    t.assign(Tensor.zeros(1024, dtype="uint8"))
    t[3] = 9
    assert t[:5].tolist() == [0, 0, 0, 9, 0]
    assert contents(path) == before


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    t = Tensor(tmp_path / "empty", dtype="float32")
    assert (t.shape, t.dtype, t.tolist()) == ((0,), dtypes.float32, [])


def test_what_cannot_be_read_is_refused(tmp_path: Path, path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path / "missing", tmp_path / "pipe", tmp_path):
        with pytest.raises(FileError):
            Tensor(bad)
    path.write_bytes(b"12345")
    with pytest.raises(ShapeError, match="not a whole number of int32"):
        Tensor(path, dtype="int32")


def test_archives_and_weights_are_read_from_a_file_as_a_tensor(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"\5\6")
    found = nn.state.zip_extract(Tensor(tmp_path / "a.zip"))
    assert found["x"].device == f"DISK:{tmp_path / 'a.zip'}"
    assert found["x"].to("CPU").tolist() == [5, 6]


# ---------------------------------------------------------------- writing


def test_a_tensor_moved_to_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "Out"
    t = Tensor([[1.0, 2.0], [3.0, 4.0]]).to(f"disk:{path}")
    assert (t.device, contents(path, "float32")) == (f"DISK:{path}", [1, 2, 3, 4])
    assert Tensor.empty(4, device=f"DISK:{path}").tolist() == [1, 2, 3, 4]
    assert (t.to("CPU") + 1).tolist() == [[2, 3], [4, 5]]
    Tensor([5, 6], device=f"disk:{path}")
    assert contents(path, "int32")[:2] == [5, 6]
    Tensor.full((4,), 2.5).to(f"disk:{path}")
    assert contents(path, "float32") == [2.5] * 4


def test_assignments_write_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    t = Tensor.empty(16, dtype="uint8", device=f"disk:{path}")
    assert path.stat().st_size == 16
    assert contents(path) == [0] * 16
    t[2:4].assign(Tensor([7, 8], dtype="uint8"))
    assert contents(path)[:5] == [0, 0, 7, 8, 0]
    t[0] = 255
    t[8:16].bitcast("int64").assign(Tensor([12345], dtype="int64"))
    assert contents(path)[0] == 255
    assert np.fromfile(path, np.int64)[1] == 12345
    t[4:8] = Tensor([1, 2, 3, 4], dtype="uint8", device="PYTHON")
    t[1::2].assign(Tensor.full((8,), 9, dtype="uint8"))
    assert contents(path)[1::2] == [9] * 8
    t.assign(t + 1)
    assert contents(path)[:2] == [0, 10]
    assert t.tolist() == contents(path)


def test_a_view_writes_the_file_also_when_its_tensor_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    view = Tensor.empty(8, dtype="int32", device=f"disk:{path}").reshape(2, 4)[1]
    gc.collect()
    view.assign(Tensor([1, 2, 3, 4]))
    assert contents(path, "int32") == [0, 0, 0, 0, 1, 2, 3, 4]


def test_values_read_before_an_update_stay_and_the_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    t = Tensor([1, 2, 3, 4]).to(f"disk:{path}")
    part, whole, again, sums, same = t[1:3], t.reshape(2, 2), Tensor(t), t + 10, t.detach()
    t.assign(Tensor([5, 6, 7, 8]))
    assert contents(path, "int32") == [5, 6, 7, 8]
    t.assign(Tensor([0, 0, 0, 1]))
    assert contents(path, "int32") == [0, 0, 0, 1] == t.tolist()
    assert (part.tolist(), whole.tolist(), again.tolist()) == ([2, 3], [[1, 2], [3, 4]], [1, 2, 3, 4])
    assert (sums.tolist(), same.tolist()) == ([11, 12, 13, 14], [1, 2, 3, 4])


def test_copies_of_a_tensor_do_not_write_its_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    t = Tensor([1, 2]).to(f"disk:{path}")
    for other in (Tensor(t), t.clone(), copy.deepcopy(t), pickle.loads(pickle.dumps(t)), t + 0):
        other.assign(Tensor([8, 9], device=other.device if other.device == "CPU" else "CPU"))
        other.realize()
        assert other.tolist() == [8, 9]
        assert contents(path, "int32") == [1, 2] == t.tolist()


def test_files_to_files(tmp_path: Path) -> None:
    first = Tensor([1, 2, 3]).to(f"disk:{tmp_path / 'first'}")
    second = first.to(f"disk:{tmp_path / 'second'}")
    second[0] = first[2]
    assert contents(tmp_path / "second", "int32") == [3, 2, 3]
    assert contents(tmp_path / "first", "int32") == [1, 2, 3]


def test_threads_write_parts_of_one_file(tmp_path: Path) -> None:
    t = Tensor.empty(4, 100, dtype="int32", device=f"disk:{tmp_path / 'out'}")

    def write(row: int) -> None:
        t[row].assign(Tensor.full((100,), row + 1, dtype="int32"))

    threads = [threading.Thread(target=write, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path / "out", "int32") == np.repeat([1, 2, 3, 4], 100).tolist()


# ---------------------------------------------------------------- names and errors


def test_names_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    t = Tensor([1]).to("disk:Relative")
    assert t.device == f"DISK:{tmp_path / 'Relative'}"
    assert Device.availability()["DISK"] is None
    for made in (lambda: Tensor([1]).to("DISK"), lambda: Tensor.empty(3, device="disk")):
        with pytest.raises(DeviceError, match="names no file"):
            made()
    with pytest.raises(DeviceError, match="different devices"):
        t + Tensor([1], device="CPU")
    with pytest.raises(DeviceError, match=r"\.to\('CPU'\)"):  # and not to the file, which would overwrite it
        t[Tensor([0], device="CPU")]
    with pytest.raises(DeviceError, match="name files"):
        Tensor([1, 2]).shard(("disk:a", "disk:b"), axis=0)
    with pytest.raises(DeviceError, match="no device"):
        Tensor([1]).to("CPU:/tmp/x")


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path, tmp_path / "missing" / "x", tmp_path / "pipe"):
        with pytest.raises(FileError):
            Tensor.empty(4, device=f"disk:{bad}")
    with pytest.raises(UserError):
        Tensor.empty(1 << 60, dtype="uint8", device=f"disk:{tmp_path / 'huge'}")
    with pytest.raises(UserError):
        Tensor.empty(4, device="disk:a\0b")
