"""The DISK device: a file as memory. In: the path behind the device's name. Out: the file, mapped; bytes are read when
they are used, through the page cache. The mapping is host memory, so kernels are the CPU's and read the file in place;
their results and temporary memory are in host memory, not in the file."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import FileError
from tilewright.base.target import Target
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, HostDriver, Runner, open_driver

_HOST = "CPU"


class DiskDriver(HostDriver):
    keeps_launches = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._host = open_driver(_HOST)

    @property
    def target(self) -> Target:  # type: ignore[override]  # the host's may change under an open device
        return self._host.target

    @property
    def compile_threads(self) -> int:  # type: ignore[override]
        return self._host.compile_threads

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> Any:
        return self._host.allocate(nbytes)

    def wrap(self, source: Any) -> Any | None:
        return self._host.wrap(source)

    def map_file(self, nbytes: int | None) -> Any:
        try:
            return self._host.wrap(self._mapped(nbytes))
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            what = "read" if nbytes is None else f"opened to hold {nbytes} bytes"
            remedy = "check the path, its permissions and the space that is left"
            raise FileError("DISK", f"{self._path!r} cannot be {what}: {reason}", remedy) from error

    def _mapped(self, nbytes: int | None) -> mmap.mmap:
        flags = os.O_RDONLY if nbytes is None else os.O_RDWR | os.O_CREAT
        # Opening a pipe would block until its other end is open.
        handle = os.open(self._path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise FileError("DISK", f"{self._path!r} is not a plain file", "give the path of a plain file")
            if nbytes is None:
                return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
            if facts.st_size < nbytes:
                _grow(handle, nbytes)
            return mmap.mmap(handle, nbytes)
        finally:
            os.close(handle)

    # ------------------------------------------------------------ programs, which are the host's

    def render(self, program: Program) -> str:
        return self._host.render(program)

    def compile(self, source: str) -> bytes:
        return self._host.compile(source)

    def load_compiler(self) -> None:
        self._host.load_compiler()

    def load(self, binary: bytes, program: Program) -> Any:
        return self._host.load(binary, program)

    def launch_of(self, program: Program) -> dict[str, Any]:
        return self._host.launch_of(program)

    def load_kept(self, binary: bytes, launch: dict[str, Any]) -> Any:
        return self._host.load_kept(binary, launch)

    def disassemble(self, source: str) -> str:
        return self._host.disassemble(source)

    def prepare(self, launches: Sequence[tuple[Any, Sequence[Address]]]) -> Runner:
        return self._host.prepare(launches)

    def synchronize(self) -> None:
        self._host.synchronize()


def _grow(handle: int, nbytes: int) -> None:
    """Reserves the space on the disk: a write to a mapping without space would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, nbytes)
    else:
        os.ftruncate(handle, nbytes)


def open_device(name: str) -> DiskDriver:
    return DiskDriver(name.partition(":")[2])
