"""The OPENCL device. In: programs and buffers. Out: kernels compiled by the machine's OpenCL driver, run in order.
`OPENCL:n` is the n-th device of the machine; where there are fewer, several names are several queues of one device."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from tilewright.backends.opencl.language import OpenCLLanguage
from tilewright.base.dtype import dtypes
from tilewright.base.errors import CompileError, OutOfMemoryError
from tilewright.base.records import NamedTuple
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, SMALL_FLOATS, Target
from tilewright.codegen.c_style.launch import Launch, argument_slots, has_groups, plan_launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, Driver, Runner, Unavailable

# Small floats are converted by integer maths: half precision is an extension that few drivers have whole.
_NATIVE_OPS = BASIC_OPS | {"SATURATING_CAST"}
_CORRECTLY_ROUNDED = 1 << 7  # CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
# The buffers of all sections are separate arguments, from which a section selects its own.
MAX_SECTIONS = 16
_INSTALL = "install an OpenCL driver: that of the graphics card, or PoCL (Debian: pocl-opencl-icd) for the processor"


@functools.cache
def _library() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise Unavailable(f"pyopencl cannot be imported ({error})", "pip install 'tilewright[opencl]'") from error
    return pyopencl


@functools.cache
def _devices() -> list[Any]:
    """Every OpenCL device of the machine, graphics cards first."""
    cl = _library()
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise Unavailable(f"the machine has no OpenCL driver ({error})", _INSTALL) from error
    if not found:
        raise Unavailable("no OpenCL driver of this machine has a device", _INSTALL)
    return sorted(found, key=lambda device: not device.type & cl.device_type.GPU)


@functools.cache
def _context(number: int) -> Any:
    return _library().Context([_devices()[number]])


def opencl_target(device: Any) -> Target:
    extensions = device.extensions.split()
    has_double = "cl_khr_fp64" in extensions
    return Target(
        name="OPENCL",
        arch=device.name,
        toolchain=f"{device.platform.version} {device.driver_version} {_options(device)}",
        has_local=True,
        max_local_bytes=device.local_mem_size,
        max_group_size=device.max_work_group_size,
        max_grid=((1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1),
        max_group=tuple(device.max_work_item_sizes[:3]),
        max_buffers=device.max_parameter_size * 8 // device.address_bits,
        max_sections=MAX_SECTIONS,
        cores=device.max_compute_units,
        cache_bytes=device.global_mem_cache_size or 1 << 20,
        native=ALL_DTYPES - SMALL_FLOATS - (frozenset() if has_double else {dtypes.float64}),
        # The sine of a float32 is decomposed into float64 arithmetic.
        native_ops=_NATIVE_OPS if has_double else _NATIVE_OPS | {"SIN"},
    )


def _options(device: Any) -> str:
    is_exact = device.single_fp_config & _CORRECTLY_ROUNDED
    return "-w -cl-fp32-correctly-rounded-divide-sqrt" if is_exact else "-w"


class OpenCLMemory:
    """A buffer, and views of it from an offset on: kernels are given whole memory objects only."""

    __slots__ = ("_views", "buffer", "nbytes")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        self._views: dict[int, Any] = {}

    def at(self, offset: int) -> Any:
        if offset == 0:
            return self.buffer
        view = self._views.get(offset)
        if view is None:
            view = self._views[offset] = self.buffer.get_sub_region(offset, self.nbytes - offset)
        return view


class OpenCLKernel(NamedTuple):
    program: Any
    name: str
    launch: Launch
    slots: tuple[int, ...]  # the slot of each parameter
    has_groups: bool
    variables: tuple[str, ...] = ()  # after the buffers
    types: tuple[str, ...] = ()  # of the variables
    values: tuple[int, ...] = ()  # of the variables, once they are bound


class OpenCLRunner(Runner):
    """Kernels with their arguments set, one object per launch: arguments belong to the object."""

    def __init__(self, driver: OpenCLDriver, launches: Sequence[tuple[OpenCLKernel, Sequence[Address]]]) -> None:
        self.driver = driver
        self.launches: list[tuple[Any, Any, Any]] = []
        self.kernels: list[OpenCLKernel] = []
        self.arguments: list[dict[int, int]] = []  # per launch: the parameter's slot -> the number of the argument
        for kernel, arguments in launches:
            made = _library().Kernel(kernel.program, kernel.name)
            for argument, slot in enumerate(kernel.slots):
                memory, offset = arguments[slot]
                made.set_arg(argument, memory.at(offset))
            for number, value in enumerate(kernel.values):
                made.set_arg(len(kernel.slots) + number, _word(kernel, number, value))
            self.kernels.append(kernel)
            grid, group = kernel.launch.grid, kernel.launch.group
            size = tuple(blocks * threads for blocks, threads in zip(grid, group, strict=True))
            self.launches.append((made, size, group if kernel.has_groups else None))
            self.arguments.append({slot: argument for argument, slot in enumerate(kernel.slots)})

    def run(self) -> None:
        self._enqueue()

    def run_timed(self) -> float:
        """The seconds that the launches took, without the gaps between them, by the clock of the device."""
        events = self._enqueue()
        self.driver.synchronize()
        return float(sum(event.profile.end - event.profile.start for event in events)) * 1e-9

    def _enqueue(self) -> list[Any]:
        cl, queue = _library(), self.driver.queue
        try:
            return [cl.enqueue_nd_range_kernel(queue, kernel, size, group) for kernel, size, group in self.launches]
        except cl.MemoryError as error:
            raise OutOfMemoryError(
                "launch",
                f"the device cannot hold the buffers of a kernel ({error})",
                "free tensors, or use smaller ones",
            ) from error

    def set_address(self, launch: int, param: int, address: Address) -> None:
        argument = self.arguments[launch].get(param)
        if argument is not None:
            memory, offset = address
            self.launches[launch][0].set_arg(argument, memory.at(offset))

    def set_variable(self, launch: int, number: int, value: int) -> None:
        kernel = self.kernels[launch]
        self.launches[launch][0].set_arg(len(kernel.slots) + number, _word(kernel, number, value))


def _word(kernel: OpenCLKernel, number: int, value: int) -> Any:
    """A number as the bytes that a kernel takes."""
    import numpy

    return numpy.dtype(kernel.types[number]).type(value)


class OpenCLDriver(Driver):
    takes_variables = True

    def __init__(self, number: int) -> None:
        devices = _devices()
        self.device = devices[number % len(devices)]
        self.context = _context(number % len(devices))
        cl = _library()
        self.queue = cl.CommandQueue(self.context, self.device, cl.command_queue_properties.PROFILING_ENABLE)
        self.target = opencl_target(self.device)

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> OpenCLMemory:
        cl = _library()
        if nbytes > self.device.max_mem_alloc_size:
            raise MemoryError(f"one buffer has at most {self.device.max_mem_alloc_size} bytes on {self.device.name}")
        try:
            return OpenCLMemory(cl.Buffer(self.context, cl.mem_flags.READ_WRITE, nbytes), nbytes)
        except (cl.MemoryError, cl.RuntimeError) as error:
            raise MemoryError(str(error)) from error

    def copy_in(self, memory: OpenCLMemory, offset: int, data: memoryview) -> None:
        _library().enqueue_copy(self.queue, memory.buffer, data, dst_offset=offset, is_blocking=True)

    def copy_out(self, memory: OpenCLMemory, offset: int, into: memoryview) -> None:
        _library().enqueue_copy(self.queue, into, memory.buffer, src_offset=offset, is_blocking=True)

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        (to, to_offset), (origin, from_offset) = target, source
        _library().enqueue_copy(
            self.queue, to.buffer, origin.buffer, dst_offset=to_offset, src_offset=from_offset, byte_count=nbytes
        )

    # ------------------------------------------------------------ programs

    def render(self, program: Program) -> str:
        return CStyleRenderer(program, OpenCLLanguage(program)).render()

    def compile(self, source: str) -> bytes:
        cl = _library()
        try:
            program = self._build(cl.Program(self.context, source))
        except cl.RuntimeError as error:
            raise CompileError(str(error), source=source) from error
        return bytes(program.get_info(cl.program_info.BINARIES)[0])

    def load(self, binary: bytes, program: Program) -> OpenCLKernel:
        built = self._build(_library().Program(self.context, [self.device], [binary]))
        name = OpenCLLanguage(program).kernel_name(program)
        slots = argument_slots(program)
        names, types = program.variable_names, tuple(variable.dtype.name for variable in program.variables)
        return OpenCLKernel(built, name, plan_launch(program), slots, has_groups(program), names, types)

    def _build(self, program: Any) -> Any:
        with warnings.catch_warnings():
            # pyopencl turns all output of a driver's compiler into warnings, also that of a success.
            warnings.simplefilter("ignore", _library().CompilerWarning)
            return program.build(options=_options(self.device), cache_dir=False)

    # ------------------------------------------------------------ running

    def prepare(self, launches: Sequence[tuple[OpenCLKernel, Sequence[Address]]]) -> OpenCLRunner:
        return OpenCLRunner(self, launches)

    def synchronize(self) -> None:
        self.queue.finish()


def open_device(name: str) -> OpenCLDriver:
    return OpenCLDriver(int(name.partition(":")[2] or 0))
