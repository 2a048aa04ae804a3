"""What is told of an emulated processor is what is known of it by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.machines import MACHINES
from tilewright.backends.cpu.host import system
from tilewright.backends.cpu.host.processors import _FLAGS, Processor


@pytest.mark.parametrize("name", MACHINES)
def test_the_flags_of_a_machine_are_those_of_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(MACHINES[name].cpuinfo())
    found = Processor("aarch64", system.cpu_flags(tmp_path))
    assert found.flags >= set(_FLAGS["aarch64"].get(name, "").split())
    dots = {"cortex-a72": [], "neoverse-n1": ["sdot", "udot"], "unknown": ["sdot", "udot", "usdot"]}[name]
    assert [each.name for each in found.dot_products()] == dots
