"""A kernel that an earlier process made is launched without optimising, lowering or rendering it again; what could make
it another kernel is in its key, and what is damaged is made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.calls import Calls, cache_in
from tilewright import Context, Tensor
from tilewright.base.events import subscribe
from tilewright.engine.compilation.compile import compile_kernel, forget_kernels
from tilewright.engine.compilation.stored import kernel_key, read_kernel
from tilewright.graph.uop import UOp
from tilewright.kernel import optimise as kernel_stage
from tilewright.runtime.cache import read_entry, write_entry
from tilewright.runtime.device import open_driver

VALUES = [1.0, 2.0, 3.0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with cache_in(tmp_path) as folder:
        yield folder


def compute() -> list[float]:
    found: list[float] = (Tensor(VALUES) * 2.5 + 1).tolist()
    return found


EXPECTED = [3.5, 6.0, 8.5]


def the_kernel() -> UOp:
    (item,) = (Tensor(VALUES) * 2.5 + 1).schedule().items
    assert item.ast is not None
    return item.ast


def key_of(kernel: UOp) -> str:
    return kernel_key(kernel, open_driver("CPU").target)


@pytest.fixture
def stages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often kernels are optimised after a first run has filled the folder."""
    assert compute() == EXPECTED
    forget_kernels()
    return Calls(monkeypatch, kernel_stage, "optimise")


def test_no_stage_runs_again(stages: Calls) -> None:
    assert compute() == EXPECTED
    assert stages.count == 0


def test_what_led_to_a_stored_kernel_is_there_when_asked_for(stages: Calls) -> None:
    kernel = compile_kernel(the_kernel(), "CPU")
    assert stages.count == 0
    with Context(CACHE=0):
        forget_kernels()
        fresh = compile_kernel(the_kernel(), "CPU")
    assert kernel.source == fresh.source
    assert kernel.optimised is fresh.optimised
    assert (kernel.name, kernel.operations, kernel.bytes_moved) == (fresh.name, fresh.operations, fresh.bytes_moved)
    assert kernel.program.body == fresh.program.body


@pytest.mark.parametrize("option", ["NOOPT", "FOLD_REDUCE", "VERIFY", "VERIFY_GRAPH", "BEAM"])
def test_an_option_that_changes_the_kernel_or_checks_it_runs_the_stages(stages: Calls, option: str) -> None:
    with Context(**{option: 0 if option == "FOLD_REDUCE" else 1}):
        assert compute() == EXPECTED
    assert stages.count > 0


def test_whoever_listens_sees_the_stages(stages: Calls) -> None:
    seen: list[Any] = []
    with subscribe(seen.append, kinds=("kernel-compiled",)):
        assert compute() == EXPECTED
    assert stages.count == len(seen) == 1


@pytest.mark.parametrize("part", ["kernel", "program"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_part_is_made_anew(stages: Calls, folder: Path, part: str, damage: str) -> None:
    key = key_of(the_kernel())
    entry = read_entry(key)
    assert entry is not None
    path = folder / key[:2] / key
    if part == "program":
        program = json.loads(entry)["program"]
        path = folder / program[:2] / program
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-7] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 255]))
    assert compute() == EXPECTED
    assert stages.count == 1
    assert read_kernel(key) is not None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": "x"}', b"\xff\xfe"])
def test_an_entry_of_another_form_is_made_anew(stages: Calls, content: bytes) -> None:
    write_entry(key_of(the_kernel()), content)
    assert compute() == EXPECTED
    assert stages.count == 1


def test_keys_tell_kernels_and_targets_apart(folder: Path) -> None:
    import dataclasses

    kernel = the_kernel()
    (other,) = (Tensor(VALUES) * 2.25 + 1).schedule().items
    assert other.ast is not None
    target = open_driver("CPU").target
    narrow = dataclasses.replace(target, cores=target.cores + 1)
    keys = {kernel_key(kernel, target), kernel_key(other.ast, target), kernel_key(kernel, narrow)}
    with Context(NOOPT=1):
        keys.add(kernel_key(kernel, target))
    assert len(keys) == 4
    assert kernel_key(kernel, dataclasses.replace(target)) in keys
