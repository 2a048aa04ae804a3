"""A graph whose structure an earlier process has planned is run without scheduling it; everything that could make it
another schedule is in its key, and an entry that is damaged or not its own is passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.calls import Calls, cache_in, forget
from tilewright import Context, Tensor, UOp, jit
from tilewright.base.events import subscribe
from tilewright.engine.planning import plan as planning
from tilewright.engine.planning.bind import BoundGraph
from tilewright.engine.planning.plan import Structure, schedule_graph
from tilewright.engine.planning.stored_schedules import Binding, read_schedule, schedule_key, write_schedule
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp as Node
from tilewright.runtime.cache import read_entry, write_entry
from tilewright.schedule import pipeline


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with cache_in(tmp_path) as folder:
        yield folder


@pytest.fixture
def scheduled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often a graph is scheduled."""
    return Calls(monkeypatch, pipeline, "schedule")


# ---------------------------------------------------------------- graphs of every kind


def softmax() -> list[Any]:
    return [Tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]]).softmax(-1).tolist()]


def several_outputs() -> list[Any]:
    x = Tensor([3, 1, 2]).contiguous().realize()
    first, second = x + 1, (x * x).sum()
    first.realize(second)
    return [first.tolist(), second.item()]


def update_in_place() -> list[Any]:
    x = Tensor([1.0, 2.0, 3.0]).contiguous().realize()
    before = x * 10
    x.assign(x + 1)
    x[1:].assign(x[:2])
    return [x.tolist(), before.tolist()]


def random_numbers() -> list[Any]:
    Tensor.manual_seed(3)
    return [Tensor.rand(5).tolist(), Tensor.randn(4).tolist(), Tensor.rand(5).tolist()]


def double(out: UOp, x: UOp) -> UOp:
    place = UOp.range(x.shape[0], 0)
    return out[place].set(x[place] * 2, end=place).sink(arg=KernelInfo(name="mine"))


def triple(out: UOp, x: UOp) -> UOp:
    place = UOp.range(x.shape[0], 0)
    return out[place].set(x[place] * 3, end=place).sink(arg=KernelInfo(name="mine"))


def custom_kernels() -> list[Any]:
    """Two of one name and one shape."""
    x = Tensor([1.0, 2.0, 3.0])
    found = [Tensor.empty(3).custom_kernel(x, fxn=kernel)[0].tolist() for kernel in (double, triple)]
    return [*found, ((x + 1) * 2).tolist()]


def two_devices() -> list[Any]:
    x = Tensor([1.0, 2.0]) + 1
    return [(x.to("CPU:1") * 2).to("CPU").tolist()]


def jitted() -> list[Any]:
    step = jit(lambda x: (x * 2 + 1).realize())
    return [step(Tensor([float(k), 1.0]).realize()).tolist() for k in range(5)]


def trained() -> list[Any]:
    weight = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for _ in range(3):
        weight.grad = None
        (Tensor([[1.0, -1.0]]) @ weight).square().sum().backward()
        assert weight.grad is not None
        with Tensor.no_grad():
            weight.assign(weight - weight.grad * 0.1).realize()
    return [weight.tolist()]


GRAPHS = [
    softmax,
    several_outputs,
    update_in_place,
    random_numbers,
    custom_kernels,
    two_devices,
    jitted,
    trained,
]


@pytest.mark.parametrize("compute", GRAPHS)
def test_a_known_structure_is_not_scheduled_again(scheduled: Calls, compute: Callable[[], list[Any]]) -> None:
    with Context(CACHE=0):
        expected = compute()
    for _ in range(3):  # the seed of random numbers is an update of the one before, so the first graphs differ
        forget()
        assert compute() == expected
    assert scheduled.count > 0
    forget()
    scheduled.count = 0
    assert compute() == expected
    assert scheduled.count == 0


def test_another_process_schedules_nothing(folder: Path) -> None:
    """Nor does it load what schedules; and it computes the same."""
    text = (
        "import sys; from tilewright import Tensor; import tilewright.base.events as events\n"
        "x = Tensor([[1.0, 2.0], [3.0, 4.0]]).contiguous().realize()\n"
        "print((x @ x.softmax(-1)).sum(0).tolist(), 'schedule' in events.stage_times, "
        "'tilewright.schedule.pipeline' in sys.modules)"
    )
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder), "VERIFY_GRAPH": "0", "VERIFY": "0", "DEBUG": "0"}
    command = [sys.executable, "-c", text]
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert runs[0].endswith("True True\n")
    assert runs[1] == runs[0].replace("True True", "False False")


# ---------------------------------------------------------------- keys


def structure_of(*tensors: Tensor, pinned: frozenset[int] = frozenset()) -> Structure:
    bound = BoundGraph([tensor.uop for tensor in tensors])
    return Structure(bound.outputs, bound.params, "CPU", pinned)


def key_of(*tensors: Tensor, pinned: frozenset[int] = frozenset()) -> str:
    found = structure_of(*tensors, pinned=pinned)
    key = schedule_key(found.outputs, found.device, found.pinned)
    assert key is not None
    return key


def filled(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.ones(*shape, dtype=dtype).contiguous().realize()


def test_keys_tell_structures_apart(folder: Path) -> None:
    x, y = filled(4), filled(4)
    out = filled(3)
    keys = [
        key_of(x + 1),
        key_of(x + 2),
        key_of(x + 1.5),
        key_of(x + y),
        key_of(x + x),
        key_of(filled(5) + 1),
        key_of(filled(2, 2) + 1),
        key_of(filled(4, dtype="int32") + 1),
        key_of(filled(4, dtype="uint32") + 1),
        key_of(x + 0.0),
        key_of(x + -0.0),
        key_of(x + float("nan")),
        key_of(x * 2, x + 1),
        key_of(x + 1, x * 2),
        key_of(x + 1, pinned=frozenset({0})),
        key_of(x.to("CPU:1") + 1),
        *(key_of(Tensor.empty(3).custom_kernel(out, fxn=kernel)[0]) for kernel in (double, triple)),
    ]
    for option in ("FUSE", "SPLIT_REDUCE", "FOLD_REDUCE", "NOOPT"):
        with Context(**{option: 1 if option == "NOOPT" else 0}):
            keys.append(key_of(x + 1))
    assert len(set(keys)) == len(keys)


def test_a_key_does_not_depend_on_the_buffers(folder: Path) -> None:
    assert key_of(filled(4) + 1) == key_of(filled(4) + 1)
    a, b = filled(4), filled(4)
    assert key_of(a * b - a) == key_of(b * a - b)


def test_a_device_that_keeps_no_kernels_has_no_key(folder: Path) -> None:
    x = Tensor([1.0, 2.0], device="PYTHON").contiguous().realize()
    assert schedule_key(((x + 1).uop,), "PYTHON", frozenset()) is None
    assert (x + 1).tolist() == [2.0, 3.0]


def test_options_that_change_kernels_find_plans_of_their_own(scheduled: Calls) -> None:
    x = filled(3)
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    structure = structure_of(x + 1)
    plan = planning.plan_graph(structure)
    with Context(NOOPT=1):
        assert planning.plan_graph(structure) is not plan
    assert planning.plan_graph(structure) is plan


# ---------------------------------------------------------------- who watches, who switches it off


@pytest.mark.parametrize("setting", [{"CACHE": 0}, {"VERIFY_GRAPH": 1}, {"VERIFY": 1}, {"REWRITE_LIMIT": 10**9}])
def test_who_checks_the_stages_runs_them(scheduled: Calls, setting: dict[str, int]) -> None:
    expected = softmax()
    forget()
    scheduled.count = 0
    with Context(**setting):
        assert softmax() == expected
    assert scheduled.count > 0


def test_who_watches_sees_the_schedule_with_lines_and_kernels(scheduled: Calls) -> None:
    x = filled(3)
    (x + 41).realize()
    forget()
    (x + 41).realize()  # from disk
    seen: list[Any] = []
    with subscribe(seen.append, kinds=("schedule",)):
        (x + 41).realize()
    (item,) = seen[0]["items"]
    assert item.ast is not None
    assert item.line is not None
    assert item.line[0].endswith("test_stored_schedules.py")


# ---------------------------------------------------------------- entries that are not right


def entry_of(tensor: Tensor, folder: Path) -> Path:
    key = key_of(tensor)
    path = folder / key[:2] / key
    assert path.exists()
    return path


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_entry_is_scheduled_anew_and_told(scheduled: Calls, folder: Path, damage: str) -> None:
    x = filled(4)
    (x + 7).realize()
    path = entry_of(x + 7, folder)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-7] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 255]))
    forget()
    scheduled.count = 0
    seen: list[Any] = []
    with subscribe(seen.append, kinds=("cache-miss", "warning")):
        assert (x + 7).tolist() == [8.0] * 4
    assert scheduled.count == 1
    assert any(event.kind == "cache-miss" and event["cache"] == "schedule" for event in seen)
    assert any(event.kind == "warning" for event in seen) == (damage != "missing")
    assert path.read_bytes() == data


def other_graph(found: dict[str, Any]) -> None:
    found["key"] = "0" * 64


def unknown_slot(found: dict[str, Any]) -> None:
    found["items"][0]["slots"][0] = 99


def another_input(found: dict[str, Any]) -> None:
    found["slots"][0][1] += 1


def too_few_outputs(found: dict[str, Any]) -> None:
    found["outputs"] = []


def temp_outside_of_its_arena(found: dict[str, Any]) -> None:
    found["offsets"][0][1] = 1 << 30


def no_dtype(found: dict[str, Any]) -> None:
    found["slots"][0][0] = "float33"


def no_items(found: dict[str, Any]) -> None:
    del found["items"]


WRONG = [
    other_graph,
    unknown_slot,
    another_input,
    too_few_outputs,
    temp_outside_of_its_arena,
    no_dtype,
    no_items,
]


@pytest.mark.parametrize("spoil", WRONG)
def test_an_entry_that_does_not_fit_is_passed_over(scheduled: Calls, spoil: Callable[[dict[str, Any]], None]) -> None:
    x = filled(6, 5)

    def compute() -> Tensor:
        return ((x + 1).contiguous() @ x.T).softmax(0).contiguous() * 2

    expected = compute().tolist()
    key = key_of(compute())
    entry = read_entry(key)
    assert entry is not None
    found = json.loads(entry)
    spoil(found)
    write_entry(key, json.dumps(found).encode())
    forget()
    scheduled.count = 0
    seen: list[Any] = []
    with subscribe(seen.append, kinds=("warning",)):
        assert compute().tolist() == expected
    assert scheduled.count == 1
    assert len(seen) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"items": 3}', b"\xff\xfe"])
def test_an_entry_of_another_form_is_passed_over(scheduled: Calls, content: bytes) -> None:
    x = filled(4)
    (x + 7).realize()
    write_entry(key_of(x + 7), content)
    forget()
    scheduled.count = 0
    assert (x + 7).tolist() == [8.0] * 4
    assert scheduled.count == 1


def test_a_schedule_whose_kernel_is_gone_is_made_anew(scheduled: Calls, folder: Path) -> None:
    x = filled(4)
    (x + 7).realize()
    entry = read_entry(key_of(x + 7))
    assert entry is not None
    kernel = json.loads(entry)["items"][0]["kernel"]
    (folder / kernel[:2] / kernel).unlink()
    forget()
    scheduled.count = 0
    assert (x + 7).tolist() == [8.0] * 4
    assert scheduled.count == 1


def test_every_field_comes_back(folder: Path) -> None:
    """But for kernels and lines: what a record is given later must be stored, or this fails."""
    x = filled(6, 5)
    value = ((x + 1).contiguous() @ x.T).softmax(0).to("CPU:1") * 2
    structure = structure_of(value, x.sum())
    plan = schedule_graph(structure)
    assert plan.arenas
    keys = [None if item.ast is None else f"key{number}" for number, item in enumerate(plan.items)]
    assert None in keys
    bindings = [None if key is None else Binding(key, 3, 4, {"n0": 7}) for key in keys]
    write_schedule("ab" * 32, plan, keys, bindings)
    found = read_schedule("ab" * 32, structure.params, structure.outputs, "CPU")
    bare = tuple(replace(item, ast=None, line=None) for item in plan.items)
    assert found == (replace(plan, items=bare), tuple(keys), tuple(bindings))


def test_nodes_of_a_custom_kernel_are_part_of_the_key(folder: Path) -> None:
    nodes: list[Node] = [Tensor.empty(3).custom_kernel(filled(3), fxn=kernel)[0].uop for kernel in (double, triple)]
    bound = [BoundGraph([node]).outputs for node in nodes]
    assert schedule_key(bound[0], "CPU", frozenset()) != schedule_key(bound[1], "CPU", frozenset())
