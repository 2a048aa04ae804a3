"""`GlobalCounters.mem_used_per_device`: the bytes that tensors hold on each device, whoever allocated them."""

from __future__ import annotations

import gc

from tilewright import Tensor, jit
from tilewright.base.events import Counters, GlobalCounters


def used(device: str) -> int:
    return GlobalCounters.mem_used_per_device[device]


def test_each_device_is_counted_by_itself() -> None:
    gc.collect()
    cpu, other = used("CPU"), used("PYTHON")
    held = Tensor.ones(1000, device="CPU").contiguous().realize()
    assert (used("CPU") - cpu, used("PYTHON") - other) == (4000, 0)
    moved = held.to("PYTHON").realize()
    assert (used("CPU") - cpu, used("PYTHON") - other) == (4000, 4000)
    del held
    gc.collect()
    assert (used("CPU") - cpu, used("PYTHON") - other) == (0, 4000)
    del moved
    gc.collect()
    assert (used("CPU") - cpu, used("PYTHON") - other) == (0, 0)


def test_the_devices_of_a_sharded_tensor() -> None:
    gc.collect()
    before = used("CPU:1"), used("CPU:2")
    held = Tensor.ones(64, 8).contiguous().shard(("CPU:1", "CPU:2"), axis=0).realize()
    assert (used("CPU:1") - before[0], used("CPU:2") - before[1]) == (1024, 1024)
    del held


def test_results_of_replays_are_counted() -> None:
    doubled = jit(lambda x: (x * 2).realize())
    x = Tensor.ones(1 << 20).contiguous().realize()
    for _ in range(4):
        doubled(x)
    gc.collect()
    before = used("CPU")
    results = [doubled(x), doubled(x)]
    assert used("CPU") - before >= 4 << 20
    del results


def test_the_levels_add_up_and_cannot_be_changed_through_the_answer() -> None:
    assert sum(GlobalCounters.mem_used_per_device.values()) == GlobalCounters.mem_used
    assert GlobalCounters.mem_used_per_device["no such device"] == 0
    GlobalCounters.mem_used_per_device["CPU"] += 5
    assert sum(GlobalCounters.mem_used_per_device.values()) == GlobalCounters.mem_used


def test_reset_keeps_the_levels() -> None:
    counters = Counters()
    counters.add_memory(7, "CPU")
    counters.add_memory(9, "CUDA:1")
    counters.free_memory(("CPU", -7))
    counters.reset()
    assert counters.mem_used_per_device == {"CUDA:1": 9}
    assert counters.mem_used == 9
