"""The memory hierarchy in `Target`: read from what each system says, overridden by CPU_FACTS, printed by `tilewright
devices`, and read there by whoever needs it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright import Context, Device, Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.cpu.host.caches import (
    NAMES,
    Cache,
    darwin_caches,
    facts_of,
    linux_caches,
    memory_facts,
    parse_facts,
    windows_caches,
)
from tilewright.base.errors import ConfigError
from tilewright.base.target import Target
from tilewright.cli.main import app

KIB, MIB = 1 << 10, 1 << 20


def sysfs(root: Path, siblings: str, *caches: tuple[str, ...]) -> Path:
    """A tree as Linux has it. A cache is level, type, size, line, ways, and the processors that share it; "" is a file
    that the machine does not have, as ARM ones often lack some."""
    cpu = root / "sys/devices/system/cpu/cpu0"
    names = ("level", "type", "size", "coherency_line_size", "ways_of_associativity", "shared_cpu_list")
    for number, values in enumerate(caches):
        folder = cpu / f"cache/index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(names, values, strict=True):
            if value:
                (folder / name).write_text(f"{value}\n")
    (cpu / "topology").mkdir(parents=True)
    (cpu / "topology/thread_siblings_list").write_text(f"{siblings}\n")
    return root


LINUX = {
    "a guest with 2 cores of a socket: its share of the last level": (
        "0",
        [
            ("1", "Data", "32K", "64", "8", "0"),
            ("1", "Instruction", "64K", "32", "4", "0"),
            ("2", "Unified", "1024K", "64", "16", "0"),
            ("3", "Unified", "36608K", "64", "11", "0-1"),
        ],
        {"line_bytes": 64, "l1_bytes": 32 * KIB, "l1_ways": 8, "core_cache_bytes": MIB, "cache_bytes": 16 * MIB},
    ),
    "a desktop with two threads a core": (
        "0,8",
        [
            ("1", "Data", "48K", "64", "12", "0,8"),
            ("2", "Unified", "1280K", "64", "10", "0,8"),
            ("3", "Unified", "24M", "64", "12", "0-15"),
        ],
        {"l1_bytes": 48 * KIB, "l1_ways": 12, "core_cache_bytes": 1280 * KIB, "cache_bytes": 24 * MIB},
    ),
    "four ARM cores that share their second level, which is the last": (
        "0",
        [("1", "Data", "32K", "64", "2", "0"), ("2", "Unified", "1024K", "64", "16", "0-3")],
        {"l1_ways": 2, "core_cache_bytes": 256 * KIB, "cache_bytes": MIB},
    ),
    "an ARM server that tells sizes alone": (
        "0",
        [("1", "Data", "64K", "", "", ""), ("2", "Unified", "1M", "", "", "")],
        {"line_bytes": 64, "l1_bytes": 64 * KIB, "l1_ways": 8, "core_cache_bytes": MIB, "cache_bytes": MIB},
    ),
    "nonsense is not believed": (
        "0",
        [("1", "Data", "-1K", "60", "x", "0"), ("2", "Unified", "0K", "64", "8", "0")],
        {"line_bytes": 64, "l1_bytes": 32 * KIB, "core_cache_bytes": 512 * KIB, "cache_bytes": 16 * MIB},
    ),
    "a machine that tells nothing": (
        "",
        [],
        {"core_cache_bytes": 512 * KIB, "cache_bytes": 16 * MIB, "tlb_entries": 64},
    ),
}


@pytest.mark.parametrize("name", LINUX)
def test_linux(name: str, tmp_path: Path) -> None:
    siblings, caches, expected = LINUX[name]
    found = facts_of(linux_caches(sysfs(tmp_path, siblings, *caches)), 4096, 16)
    assert tuple(found) == NAMES
    assert expected.items() <= found.items()


def test_the_cores_of_others_keep_their_share() -> None:
    """A process that may use 2 of 16 cores: a transposition of 64 MiB was taken to stay in a cache of 105 MiB, and
    took three times as long."""
    caches = [Cache(1, 48 * KIB, 64, 12), Cache(2, 2 * MIB, 64, 16), Cache(3, 105 * MIB, 64, 15, cores=16)]
    assert facts_of(caches, 4096, 2)["cache_bytes"] == 16 * MIB
    assert facts_of(caches, 4096, 16)["cache_bytes"] == 105 * MIB


def test_macos() -> None:
    """An Apple processor: fast cores first, six of them with one second level and no third; the ways are not told."""
    said = {
        "hw.cachelinesize": 128,
        "hw.l1dcachesize": 64 * KIB,
        "hw.perflevel0.l1dcachesize": 128 * KIB,
        "hw.perflevel0.l2cachesize": 12 * MIB,
        "hw.perflevel0.cpusperl2": 6,
        "hw.physicalcpu": 8,
    }
    found = facts_of(darwin_caches(lambda name: said.get(name, 0)), 16 * KIB, 16)
    assert found["line_bytes"] == 128
    assert found["page_bytes"] == 16 * KIB
    assert found["l1_bytes"] == 128 * KIB
    assert (found["core_cache_bytes"], found["cache_bytes"]) == (2 * MIB, 12 * MIB)
    intel = {"hw.l1dcachesize": 32 * KIB, "hw.l2cachesize": 256 * KIB, "hw.l3cachesize": 9 * MIB, "hw.physicalcpu": 6}
    found = facts_of(darwin_caches(lambda name: intel.get(name, 0)), 4096, 16)
    assert (found["core_cache_bytes"], found["cache_bytes"]) == (256 * KIB, 9 * MIB)


def test_windows() -> None:
    def record(mask: int, relation: int, level: int, ways: int, line: int, nbytes: int, kind: int) -> bytes:
        return struct.pack("<Qi4xBBHIi4x", mask, relation, level, ways, line, nbytes, kind)

    records = (
        record(0b0001, 0, 0, 0, 0, 0, 0)
        + record(0b0001, 2, 1, 8, 64, 32 * KIB, 1)
        + record(0b0001, 2, 1, 12, 64, 48 * KIB, 2)
        + record(0b0010, 2, 1, 8, 64, 16 * KIB, 2)
        + record(0b0001, 2, 2, 8, 64, 2 * MIB, 0)
        + record(0b1111, 2, 3, 16, 64, 30 * MIB, 0)
    )
    caches = windows_caches(records)
    assert caches == [Cache(1, 48 * KIB, 64, 12), Cache(2, 2 * MIB, 64, 8), Cache(3, 30 * MIB, 64, 16, cores=4)]
    assert facts_of(caches, 4096, 16)["cache_bytes"] == 30 * MIB


def test_this_machine() -> None:
    """The facts of the device's target are those that the system gives."""
    found = memory_facts()
    target = cpu_target()
    assert {name: getattr(target, name) for name in NAMES} == found
    assert all(number > 0 for name, number in found.items() if name != "prefetch_bytes")
    assert found["l1_bytes"] <= found["core_cache_bytes"] <= found["cache_bytes"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("l4_bytes=1M", "'l4_bytes' is not a fact"),
        ("line_bytes=48", "power of two"),
        ("page_bytes=0", "power of two"),
        ("l1_ways=many", "positive number"),
        ("l1_ways", "positive number"),
        ("cache_bytes=-1", "positive number"),
        ("cache_bytes=0", "positive number"),
        ("prefetch_bytes=none", "positive number"),
    ],
)
def test_facts_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_facts(text)


def test_facts_are_overridden() -> None:
    assert parse_facts("core_cache_bytes=2M  line_bytes=128 l1_bytes=48k") == {
        "core_cache_bytes": 2 * MIB,
        "line_bytes": 128,
        "l1_bytes": 48 * KIB,
    }
    assert parse_facts("prefetch_bytes=0") == {"prefetch_bytes": 0}
    before = Device["CPU"].target
    with Context(CPU_FACTS="line_bytes=128 tlb_entries=7"):
        assert Device["CPU"].target == replace(before, line_bytes=128, tlb_entries=7)
        x = Tensor.arange(48).reshape(6, 8)
        assert (x.T.contiguous() + 1).tolist() == [[8 * row + column + 1 for row in range(6)] for column in range(8)]
    assert Device["CPU"].target == before


def test_devices_prints_them() -> None:
    with Context(
        CPU_FACTS="page_bytes=16K l1_bytes=48K l1_ways=12 core_cache_bytes=1280K tlb_entries=96 cache_bytes=24M"
    ):
        shown = " ".join(CliRunner().invoke(app, ["devices"]).stdout.split())
    for fact in ("pages of 16 KiB", "L1 of 48 KiB in 12 ways", "1280 KiB of cache a core", "24 MiB shared", "96 pages"):
        assert fact in shown


def test_lines_at_a_stride_that_the_first_cache_holds() -> None:
    """Those of one set displace one another: steps of a whole way use one set, of half a way two."""
    cache = Target("T", l1_bytes=32 * KIB, l1_ways=8)
    assert [cache.l1_lines(step) for step in (4096, 3 * 4096, 1 << 20, 2048, 4096 + 64, 64, 4)] == [
        *(8, 8, 8, 16, 512, 512, 512),
    ]
    few_ways = Target("T", l1_bytes=64 * KIB, l1_ways=4)
    assert [few_ways.l1_lines(step) for step in (4096, 8192, 16384)] == [16, 8, 4]
    assert Target("T", l1_bytes=32 * KIB, l1_ways=255).l1_lines(1 << 20) >= 255
