"""Devices by name. In: a name such as 'CPU' or 'CPU:1'. Out: the opened driver behind it.
Backends are entered into the table by the engine; a driver is imported and opened when it is first asked for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.base.config import options
from tilewright.base.errors import DeviceError
from tilewright.base.target import Target
from tilewright.graph.records import Program


class Memory(Protocol):
    """A block of device memory. Freed when the last reference goes."""

    @property
    def nbytes(self) -> int: ...

    def view(self) -> memoryview:
        """The bytes as the host sees them, writable where the memory is."""
        ...


Place = tuple[Any, int]
"""Device memory and a byte offset into it."""


class Runner(Protocol):
    """A prepared list of launches that can be run again and again."""

    def run(self) -> None: ...

    def set_place(self, launch: int, param: int, place: Place) -> None:
        """Gives one launch another buffer for the runs to come."""
        ...


class Driver(ABC):
    """What a backend implements: the whole contract between the engine and a device."""

    target: Target

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """New memory, not initialised. MemoryError where there is not enough."""

    @abstractmethod
    def wrap(self, source: Any) -> Any | None:
        """Memory that borrows a host object's bytes without a copy, or None where the device cannot."""

    @abstractmethod
    def render(self, program: Program) -> str:
        """The program's text."""

    @abstractmethod
    def compile(self, source: str) -> bytes:
        """The text as a binary that can be kept on disk."""

    @abstractmethod
    def load(self, binary: bytes, program: Program) -> Any:
        """A kernel that can be launched."""

    @abstractmethod
    def prepare(self, launches: Sequence[tuple[Any, Sequence[Place]]]) -> Runner:
        """Kernels with their buffers, in order."""

    def disassemble(self, source: str) -> str:
        """The machine code of a program's text, for people."""
        return f"({self.target.name} shows no machine code)"

    def synchronize(self) -> None:
        """Returns when all work given to the device is done."""
        return


_openers: dict[str, Callable[[str], Driver]] = {}
_drivers: dict[str, Driver] = {}
_lock = threading.RLock()


def register_backend(name: str, opener: Callable[[str], Driver]) -> None:
    """Enters a backend. The first one entered is the default device."""
    _openers[name] = opener


def device_names() -> list[str]:
    return list(_openers)


def canonical_device(name: str | None = None) -> str:
    """'cpu' and 'CPU:0' are 'CPU'; None is the default device. A device that does not exist is refused here."""
    if not name:
        name = options.DEVICE or next(iter(_openers))
    kind, _, number = name.upper().partition(":")
    if kind not in _openers or (number and not number.isdigit()):
        raise DeviceError("device", f"there is no device {name!r}", f"use one of: {', '.join(_openers)}")
    return kind if not number or int(number) == 0 else f"{kind}:{int(number)}"


def open_driver(name: str) -> Driver:
    driver = _drivers.get(name)
    if driver is None:
        with _lock:
            driver = _drivers.get(name)
            if driver is None:
                driver = _drivers[name] = _openers[canonical_device(name).partition(":")[0]](name)
    return driver


def synchronize(name: str | None = None) -> None:
    """Waits for one device, or for all that are open."""
    for known, driver in list(_drivers.items()):
        if name is None or known == name:
            driver.synchronize()


class _Device:
    """The public `Device`: `Device.DEFAULT`, `Device['CPU']`, `list(Device)`."""

    @property
    def DEFAULT(self) -> str:
        return canonical_device()

    def __getitem__(self, name: str) -> Driver:
        return open_driver(canonical_device(name))

    def __iter__(self) -> Any:
        return iter(device_names())

    def canonicalize(self, name: str | None) -> str:
        return canonical_device(name)

    def __repr__(self) -> str:
        return f"Device(default={self.DEFAULT}, known={device_names()})"


Device = _Device()
