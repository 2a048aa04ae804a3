"""Devices by name. In: a name such as 'CPU' or 'OPENCL:1'. Out: the opened driver behind it, or why there is none.
Backends are entered into the table by the engine; a driver is imported and opened when it is first asked for."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, overload

from tilewright.base.config import options
from tilewright.base.errors import DeviceError
from tilewright.base.forks import renewed_lock
from tilewright.base.target import Target
from tilewright.graph.records import Program
from tilewright.graph.spec import Devices


class Memory(Protocol):
    """A block of device memory. Freed when the last reference goes."""

    @property
    def nbytes(self) -> int: ...


Address = tuple[Any, int]
"""Device memory and a byte offset into it."""

Binding = tuple[int, int, int, int]
"""A parameter that each run gives memory to: (index among the memories of the run, launch, parameter, byte offset)."""

VariableBinding = tuple[int, int, int]
"""A variable that each run gives a value to: (index among the memories of the run, launch, number of the variable)."""


class Runner(ABC):
    """A prepared list of launches that can be run again and again."""

    __slots__ = ()

    @abstractmethod
    def run(self) -> None:
        """Gives the launches to the device's queue; they may still be running when this returns."""

    @abstractmethod
    def set_address(self, launch: int, param: int, address: Address) -> None:
        """Gives one parameter other memory for the runs to come. The caller keeps it alive until it has run."""

    def set_variable(self, launch: int, number: int, value: int) -> None:
        """Gives one variable of a kernel another value for the runs to come."""
        raise NotImplementedError

    def bind(
        self,
        bindings: Sequence[Binding],
        variables: Sequence[VariableBinding] = (),
        exclusive: frozenset[int] = frozenset(),
    ) -> Callable[[Sequence[Any]], None]:
        """Returns a function of one sequence: the memories of a run, then the values of its variables. It sets the
        address of each bound parameter and each variable, and runs the list. The memory at an index in `exclusive` is
        neither another memory of the run nor one that the list already has; the other memories may repeat."""

        def run(memories: Sequence[Any]) -> None:
            for index, launch, param, offset in bindings:
                self.set_address(launch, param, (memories[index], offset))
            for index, launch, number in variables:
                self.set_variable(launch, number, memories[index])
            self.run()

        return run

    def wait(self) -> None:  # noqa: B027 - on most devices the work is done when `run` returns
        """Returns when the launches that were given to the queue are done."""

    def run_timed(self) -> float:
        """Runs the list alone; the seconds it took, by the clock of the host where the device has none."""
        start = time.perf_counter()
        self.run()
        self.wait()
        return time.perf_counter() - start


class Unavailable(Exception):
    """A backend cannot be opened on this machine: what is missing, and what to install or do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class Driver(ABC):
    """What a backend implements: the whole contract between the engine and a device.

    A device has one queue. Launches and copies happen in the order they are given, as if one after the other; a launch
    may go on after the call that gave it, a read of memory by the host waits for all that was given before."""

    target: Target
    compile_threads = 1  # how many programs may be compiled at once, each by a thread of its own
    keeps_launches = False  # whether it has `launch_of` and `load_kept`: a stored kernel is loaded without its program
    shares_kernels = False  # whether small kernels that differ in sizes alone are one dynamic kernel (decision 31)
    # The most terms of all sums, for each node, of graphs that share a plan with variables in place of their sizes
    # (decision 51): kernels of more terms are worth a plan for their own sizes.
    lifted_terms = 0
    lifted_elements = 1 << 24  # the most of a value that they store: memory is allocated for the greatest sizes
    joins_texts = False  # whether `compile_texts` takes less time than `compile` of each
    takes_variables = False  # whether a launch may give the values of a program's VARIABLEs
    keeps_values = True  # whether its memory holds values: that of the NULL device does not
    # Whether a prepared list takes any memory at later runs: it is not specialised to addresses, and keeps none.
    rebinds_lists = False

    # ------------------------------------------------------------ memory

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """New memory, not initialised, aligned to 16 bytes at least. MemoryError where there is not enough."""

    def release_unused(self) -> None:  # noqa: B027 - most keep none
        """Gives memory that was freed, and is kept to be allocated again, back to the system: for a program that has
        done what needed it."""

    def wrap(self, source: Any) -> Any | None:
        """Memory that borrows a host object's bytes without a copy, or None where the device cannot."""
        return None

    def host_view(self, memory: Any) -> memoryview | None:
        """The bytes of the memory as the host sees them, when the queue is empty; None where it does not see them."""
        return None

    @abstractmethod
    def copy_in(self, memory: Any, offset: int, data: memoryview) -> None:
        """Bytes of the host into memory. When it returns, `data` may change."""

    @abstractmethod
    def copy_out(self, memory: Any, offset: int, into: memoryview) -> None:
        """Bytes of memory to the host. When it returns, they are there."""

    @abstractmethod
    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        """Bytes from one memory of this device to another."""

    def map_file(self, nbytes: int | None) -> Any:
        """Maps the file that a file device is named by: to be read and written, at least `nbytes` long; or, where that
        is None, to be read alone, in its present length. Other devices do not have it."""
        raise NotImplementedError

    # ------------------------------------------------------------ programs

    @abstractmethod
    def render(self, program: Program) -> str:
        """The program's text."""

    def share_texts(self, sources: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        """For each text one that does the same, with the numbers that it reads from memory: `Program.numbers`. Several
        that are equal but for numbers may become one."""
        return [(source, ()) for source in sources]

    @abstractmethod
    def compile(self, source: str) -> bytes:
        """The text as a binary that can be kept on disk."""

    def compile_texts(self, sources: Sequence[str]) -> list[bytes]:
        """The binaries of several texts."""
        return [self.compile(source) for source in sources]

    def load_compiler(self) -> None:  # noqa: B027 - most have nothing to load
        """Loads what the first `compile` of a process needs. Called on any thread, in parallel with other work."""

    @abstractmethod
    def load(self, binary: bytes, program: Program) -> Any:
        """A kernel that can be launched."""

    def launch_of(self, program: Program) -> dict[str, Any]:
        """The facts of a program that `load` needs besides its binary, as JSON values."""
        raise NotImplementedError

    def load_kept(self, binary: bytes, launch: dict[str, Any]) -> Any:
        """Like `load`, from the result of `launch_of` in place of the program."""
        raise NotImplementedError

    def bind_variables(self, kernel: Any, values: Mapping[str, int]) -> Any:
        """A loaded kernel that is launched with these values of its VARIABLEs, by name. By default a kernel is a
        NamedTuple: `variables` are their names, `values` their values, which are empty until they are bound."""
        return kernel._replace(values=tuple(values[name] for name in kernel.variables))

    def variables_of(self, kernel: Any) -> tuple[str, ...]:
        """The names of a loaded kernel's VARIABLEs, in the order of a launch's arguments; none once they are bound."""
        names: tuple[str, ...] = kernel.variables if self.takes_variables and not kernel.values else ()
        return names

    def disassemble(self, source: str) -> str:
        """The machine code of a program's text, for people."""
        return f"({self.target.name} shows no machine code)"

    # ------------------------------------------------------------ running

    @abstractmethod
    def prepare(self, launches: Sequence[tuple[Any, Sequence[Address]]]) -> Runner:
        """Kernels with their buffers, in order."""

    def synchronize(self) -> None:
        """Returns when all work given to the device is done."""
        return


class HostDriver(Driver):
    """A driver whose memory the host can address, by a method `view` that gives it as a memoryview, and whose work is
    done when a call returns."""

    def host_view(self, memory: Any) -> memoryview:
        return memoryview(memory.view())

    def copy_in(self, memory: Any, offset: int, data: memoryview) -> None:
        self.host_view(memory)[offset : offset + data.nbytes] = data

    def copy_out(self, memory: Any, offset: int, into: memoryview) -> None:
        into[:] = self.host_view(memory)[offset : offset + into.nbytes]

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        memory, offset = source
        self.copy_in(*target, self.host_view(memory)[offset : offset + nbytes])


_openers: dict[str, Callable[[str], Driver]] = {}
_drivers: dict[str, Driver] = {}
_file_devices: set[str] = set()  # their names are followed by a path, not by a number
_lock = renewed_lock()


def register_backend(name: str, opener: Callable[[str], Driver], is_file_device: bool = False) -> None:
    """Enters a backend. The first one entered is the default device. A file device is named with a path, such as
    'DISK:/tmp/weights'."""
    _openers[name] = opener
    if is_file_device:
        _file_devices.add(name)


def is_file_device(device: Devices) -> bool:
    """Whether tensors that are made on the device, or moved there, are a file."""
    return ":" in device and isinstance(device, str) and device.partition(":")[0] in _file_devices


def device_names() -> list[str]:
    return list(_openers)


@overload
def canonical_device(name: str | None = None) -> str: ...


@overload
def canonical_device(name: tuple[str, ...] | list[str]) -> Devices: ...


@overload
def canonical_device(name: Devices | list[str] | None) -> Devices: ...


def canonical_device(name: Devices | list[str] | None = None) -> Devices:
    """'cpu' and 'CPU:0' are 'CPU'; None is the default device. A device that does not exist is refused here. Several
    devices are that many names."""
    if isinstance(name, tuple | list):
        return _several_devices(name)
    if name is not None and not isinstance(name, str):
        raise DeviceError(
            "device", f"a {type(name).__name__} is not a device", "give a name, such as 'CPU:1', or several"
        )
    if not name:
        name = options.DEVICE or next(iter(_openers))
    kind, _, number = str(name).partition(":")
    kind = kind.upper()
    if kind in _file_devices:
        if not number:
            raise DeviceError("device", f"{name!r} names no file", f"add a path, such as '{kind}:/tmp/weights'")
        return f"{kind}:{os.path.abspath(number)}"
    if kind not in _openers or (number and not number.isdigit()):
        raise DeviceError("device", f"there is no device {name!r}", f"use one of: {', '.join(_openers)}")
    return kind if not number or int(number) == 0 else f"{kind}:{int(number)}"


def _several_devices(names: Sequence[str]) -> Devices:
    devices = tuple(canonical_device(name) for name in names)
    if len(devices) == 1:
        return devices[0]
    if not devices:
        raise DeviceError("device", "() names no device", "name one or several, such as ('CPU:0', 'CPU:1')")
    if any(map(is_file_device, devices)):
        raise DeviceError("device", f"{tuple(names)} name files", "move the tensor to one file with to()")
    if len(set(devices)) < len(devices):
        raise DeviceError("device", f"{tuple(names)} name a device twice", "name each device once")
    return devices


def open_driver(name: str) -> Driver:
    driver = _drivers.get(name)
    return driver if driver is not None else _open(canonical_device(name))


def target_of(devices: Devices) -> Target | None:
    """The facts of a device; None where there are several, or where it cannot be opened, which is an error when
    something is computed."""
    if not isinstance(devices, str):
        return None
    try:
        return open_driver(devices).target
    except DeviceError:
        return None


def _open(name: str) -> Driver:
    try:
        return _try_to_open(name)
    except Unavailable as error:
        usable = [known for known, reason in availability().items() if reason is None]
        remedy = f"{error.remedy}; usable here: {', '.join(usable)}"
        raise DeviceError("device", f"{name} cannot be used: {error.reason}", remedy) from error


def _try_to_open(name: str) -> Driver:
    with _lock:
        driver = _drivers.get(name)
        if driver is None:
            driver = _drivers[name] = _openers[name.partition(":")[0]](name)
        return driver


def availability() -> dict[str, str | None]:
    """Every device there is: None where it can be used here, else what is missing and what to do. Opens them all."""
    found: dict[str, str | None] = {}
    for name in _openers:
        try:
            _try_to_open(name)
            found[name] = None
        except Unavailable as error:
            found[name] = str(error)
    return found


def synchronize(name: Devices | None = None) -> None:
    """Waits for a device, for several, or for all that are open."""
    for known in list(_drivers) if name is None else (name,) if isinstance(name, str) else name:
        driver = _drivers.get(known)
        if driver is not None:
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

    def canonicalize(self, name: Devices | None) -> Devices:
        return canonical_device(name)

    def availability(self) -> dict[str, str | None]:
        """Every device there is: None where it can be used here, else what is missing and what to do."""
        return availability()

    def __repr__(self) -> str:
        return f"Device(default={self.DEFAULT}, known={device_names()})"


Device = _Device()
