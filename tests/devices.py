"""The devices that tests run on: every one that can be used on this machine, as `Device.availability()` tells, and the
CPU once more with the system's C compiler. `make test` ends with a line that names them and those that are not here.

Some compile slowly: PoCL takes half a second a kernel. A table of cases asks `takes` whether to run a case there, and
`sample` which of its dtypes: one, another for each case; some tests ask for quick compilation (`spare_compilers`).
`make test-devices` sets TILEWRIGHT_WHOLE_TABLE: all cases are run, and compiled as a user's kernels are."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tilewright import Device
from tilewright.base.config import Context

# Devices that compile a kernel in milliseconds.
QUICK = frozenset({"CPU", "CUDA", "PYTHON"})
# Of the cases of a table one in so many is run; the edge values of every op and dtype are in tests/backends besides.
ONE_IN = {"OPENCL": 16, "WEBGPU": 12, "CPU-clang": 12, "CPU-gcc": 12}
# Compiles and runs nothing, so that there is no value to compare.
WITHOUT_VALUES = frozenset({"NULL"})


class Setting(NamedTuple):
    """A device, and what compiles for it."""

    label: str
    device: str
    compiler: str = ""

    def options(self) -> contextlib.AbstractContextManager[object]:
        return Context(CPU_COMPILER=self.compiler) if self.compiler else contextlib.nullcontext()

    def takes(self, name: str) -> bool:
        return _is_whole() or zlib.crc32(name.encode()) // 7 % ONE_IN.get(self.label, 1) == 0

    def sample(self, name: str, dtypes: Sequence[str]) -> Sequence[str]:
        if self.label in QUICK or len(dtypes) < 2 or _is_whole():
            return dtypes
        return [dtypes[zlib.crc32(name.encode()) % len(dtypes)]]


def spare_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what a kernel computes: PoCL takes half the time where it need not make the kernel fast. It reads
    this each time it compiles."""
    if not _is_whole():
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")


def _is_whole() -> bool:
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
