"""The devices that tests run on: every one that can be used on this machine, as `Device.availability()` tells, and the
CPU once more with the system's C compiler. `make test` ends with a line that names them and those that are not here.

What a device cannot compute with (`Target.computes`) is asked of it here, by `lacking`: a case that needs it is
skipped, and the reason names it.

Some compile slowly: PoCL takes half a second a kernel. A table of cases asks `takes` whether to run a case there, and
`sample` which of its dtypes: one or some, others for each case; some tests ask for quick compilation
(`spare_compilers`). Of the cases of any other test that are for such devices, most are marked slow
(`mark_cases_of_slow_devices`).
`make test-devices` sets TILEWRIGHT_WHOLE_TABLE: all cases are run, and compiled as a user's kernels are."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

from tilewright import Device, Tensor
from tilewright.base.config import Context
from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.target import Target
from tilewright.graph.walk import toposort
from tilewright.runtime.device import open_driver

# Devices that compile a kernel in milliseconds, and those that run a case in some of its dtypes; the others take one.
QUICK = frozenset({"CPU", "CUDA", "PYTHON"})
DTYPES = {"CUDA": 4}
# Of the cases of a table one in so many is run; the edge values of every op and dtype are in tests/backends besides.
ONE_IN = {"OPENCL": 32, "WEBGPU": 12, "CPU-clang": 24, "CPU-gcc": 24}
# Of the cases of one test that are for slow devices, one in so many is quick, and one at least.
ONE_CASE_IN = 6
# Tables that choose their cases by `takes`, and the edge values of every op and dtype.
SAMPLED = frozenset(
    {"test_value", "test_blocks_decode_to_the_bits_of_the_library", "test_every_op_agrees_with_the_emulator"}
)
# Compiles and runs nothing, so that there is no value to compare; or needs the path of a file behind its name.
WITHOUT_VALUES = frozenset({"NULL", "DISK"})


class Setting(NamedTuple):
    """A device, and what compiles for it."""

    label: str
    device: str
    compiler: str = ""

    def options(self) -> contextlib.AbstractContextManager[object]:
        return Context(CPU_COMPILER=self.compiler) if self.compiler else contextlib.nullcontext()

    def takes(self, name: str) -> bool:
        return is_whole() or zlib.crc32(name.encode()) // 7 % ONE_IN.get(self.label, 1) == 0

    def lacking(self, needed: Iterable[DType | str]) -> str:
        """Why the device cannot run what needs these dtypes; empty where it can."""
        target = open_driver(self.device).target
        missing = {to_dtype(dtype).name for dtype in needed if not _computes(target, to_dtype(dtype))}
        return f"{self.label} does not compute with {', '.join(sorted(missing))}" if missing else ""

    def sample(self, name: str, wanted: Sequence[str]) -> Sequence[str]:
        """The dtypes to run a case in: those that the device computes with, or some of them."""
        found = [dtype for dtype in wanted if not self.lacking([dtype])]
        count = DTYPES.get(self.label, 1)
        if len(found) <= count or is_whole():
            return found
        # The CPU takes the dtype behind that of the emulator and other devices.
        first = (zlib.crc32(name.encode()) + (self.label == "CPU")) % len(found)
        return [*found[first:], *found[:first]][:count]


def _computes(target: Target, dtype: DType) -> bool:
    return target.computes(dtype) or dtype in (dtypes.index, dtypes.void)


def dtypes_of(*tensors: Tensor) -> set[DType]:
    """Those that computing the tensors needs."""
    return {node.dtype for tensor in tensors for node in toposort(tensor.uop)}


def spare_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what a kernel computes: PoCL takes half the time where it need not make the kernel fast. It reads
    this each time it compiles."""
    if not is_whole():
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")


def mark_cases_of_slow_devices(items: Sequence[pytest.Item]) -> None:
    """Every test keeps a quick case on one of them; which is drawn from its name. `make test-slow` runs the others."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if _is_for_slow_device(item) and name.rpartition("::")[2] not in SAMPLED:
            cases.setdefault(name, []).append(item)
    for name, found in cases.items():
        kept = range(zlib.crc32(name.encode()) % min(ONE_CASE_IN, len(found)), len(found), ONE_CASE_IN)
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def _is_for_slow_device(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    labels = [getattr(value, "label", value) for value in given.params.values()] if given is not None else []
    return any(isinstance(label, str) and (label in ONE_IN or f"CPU-{label}" in ONE_IN) for label in labels)


def is_whole() -> bool:
    return bool(os.environ.get("TILEWRIGHT_WHOLE_TABLE"))


@functools.cache
def settings() -> list[Setting]:
    """What there is to run on, the default device first."""
    usable = [name for name, reason in Device.availability().items() if reason is None and name not in WITHOUT_VALUES]
    compilers = [name for name in ("clang", "gcc") if shutil.which(name)]
    return [Setting(name, name) for name in usable] + [Setting(f"CPU-{name}", "CPU", name) for name in compilers[:1]]


def summary() -> str:
    """One line for people: what ran, and what could not."""
    missing = [f"{name} ({reason})" for name, reason in Device.availability().items() if reason is not None]
    ran = ", ".join(setting.label for setting in settings())
    return f"devices that ran: {ran}; not on this machine: {'; '.join(missing) or 'none'}"
