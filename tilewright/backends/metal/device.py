"""The METAL device. In: programs and buffers. Out: kernels compiled by the system, run on a command queue of the GPU.

Memory is shared between processor and GPU, so the host reads results in place. Written from the documentation of
Metal and of pyobjc: the tests run it against a stand-in for the framework, no machine of Apple's has run it yet."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from tilewright.backends.metal.language import MetalLanguage
from tilewright.base.dtype import dtypes
from tilewright.base.errors import CompileError, InternalError
from tilewright.base.records import NamedTuple
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, Target
from tilewright.codegen.c_style.launch import Launch, plan_launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, Driver, Runner, Unavailable

_EMULATED = frozenset({dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2})
SIMD_WIDTH = 32
GROUP_SIZE = 1024
LOCAL_BYTES = 32 << 10
BUFFER_ARGUMENTS = 31  # of a function, on every GPU
STATUS_ERROR = 5  # MTLCommandBufferStatusError


@functools.cache
def _metal() -> Any:
    if sys.platform != "darwin":
        raise Unavailable(
            f"Metal is part of macOS and this is {sys.platform}",
            "use another device; METAL has only been tested as text",
        )
    try:
        import Metal
    except ImportError as error:
        raise Unavailable(f"Metal cannot be imported ({error})", "pip install 'tilewright[metal]'") from error
    return Metal


def metal_target(gpu: str, local_bytes: int = LOCAL_BYTES, group_size: int = GROUP_SIZE) -> Target:
    return Target(
        name="METAL",
        arch=gpu,
        toolchain="MSL 3.1, safe maths",
        has_local=True,
        start_alignment=16,
        max_local_bytes=local_bytes,
        max_group_size=group_size,
        max_group=(group_size, group_size, group_size),
        max_buffers=BUFFER_ARGUMENTS,
        warp_size=SIMD_WIDTH,
        native=ALL_DTYPES - _EMULATED - {dtypes.float64},
        native_ops=BASIC_OPS,
    )


class MetalMemory:
    """A buffer that processor and GPU share."""

    __slots__ = ("__weakref__", "buffer", "nbytes")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes

    def view(self) -> memoryview:
        return memoryview(self.buffer.contents().as_buffer(self.nbytes))


class MetalKernel(NamedTuple):
    pipeline: Any
    launch: Launch
    slots: tuple[int, ...]  # the slot of each parameter


class MetalRunner(Runner):
    """A prepared list: each run is a command buffer, whose launches the GPU runs one after the other."""

    def __init__(self, driver: MetalDriver, launches: Sequence[tuple[MetalKernel, Sequence[Address]]]) -> None:
        self.driver = driver
        self.launches = [(kernel, list(arguments)) for kernel, arguments in launches]

    def run(self) -> None:
        self._commit()

    def run_timed(self) -> float:
        """By the GPU's clock."""
        commands = self._commit()
        self.driver.synchronize()
        return float(commands.GPUEndTime() - commands.GPUStartTime())

    def _commit(self) -> Any:
        metal = _metal()
        commands = self.driver.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        for kernel, arguments in self.launches:
            encoder.setComputePipelineState_(kernel.pipeline)
            for number, slot in enumerate(kernel.slots):
                memory, offset = arguments[slot]
                encoder.setBuffer_offset_atIndex_(memory.buffer, offset, number)
            grid, group = metal.MTLSizeMake(*kernel.launch.grid), metal.MTLSizeMake(*kernel.launch.group)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(grid, group)
        encoder.endEncoding()
        commands.commit()
        self.driver.pending = commands
        return commands

    def set_address(self, launch: int, param: int, address: Address) -> None:
        self.launches[launch][1][param] = address


class MetalDriver(Driver):
    def __init__(self) -> None:
        metal = _metal()
        self.device = metal.MTLCreateSystemDefaultDevice()
        if self.device is None:
            raise Unavailable("Metal finds no GPU", "run on a machine with one; virtual machines often have none")
        self.queue = self.device.newCommandQueue()
        self.pending: Any = None  # the last command buffer; buffers of a queue end in order
        threads = int(self.device.maxThreadsPerThreadgroup().width)
        local_bytes = int(self.device.maxThreadgroupMemoryLength())
        self.target = metal_target(str(self.device.name()), local_bytes, threads)

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> MetalMemory:
        buffer = self.device.newBufferWithLength_options_(nbytes, _metal().MTLResourceStorageModeShared)
        if buffer is None:
            raise MemoryError(f"{self.target.arch} gives no buffer of {nbytes} bytes")
        return MetalMemory(buffer, nbytes)

    def host_view(self, memory: MetalMemory) -> memoryview:
        return memory.view()

    def copy_in(self, memory: MetalMemory, offset: int, data: memoryview) -> None:
        self.synchronize()
        memory.view()[offset : offset + data.nbytes] = data

    def copy_out(self, memory: MetalMemory, offset: int, into: memoryview) -> None:
        self.synchronize()
        into[:] = memory.view()[offset : offset + into.nbytes]

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        self.synchronize()
        (to, to_offset), (origin, from_offset) = target, source
        to.view()[to_offset : to_offset + nbytes] = origin.view()[from_offset : from_offset + nbytes]

    # ------------------------------------------------------------ programs

    def render(self, program: Program) -> str:
        return render(program)

    def compile(self, source: str) -> bytes:
        """The text itself, once the system has accepted it: it keeps no binary that another process can load."""
        self._library(source)
        return source.encode()

    def _library(self, source: str) -> Any:
        options = _metal().MTLCompileOptions.alloc().init()
        # With fast maths the compiler assumes that there is no NaN and no infinity.
        options.setFastMathEnabled_(False)
        library, error = self.device.newLibraryWithSource_options_error_(source, options, None)
        if library is None:
            raise CompileError(str(error.localizedDescription()), source=source)
        return library

    def load(self, binary: bytes, program: Program) -> MetalKernel:
        source = binary.decode()
        name = MetalLanguage(program).kernel_name(program)
        function = self._library(source).newFunctionWithName_(name)
        pipeline, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise CompileError(str(error.localizedDescription()), source=source)
        return MetalKernel(pipeline, plan_launch(program), tuple(param.slot for param in program.params))

    # ------------------------------------------------------------ running

    def prepare(self, launches: Sequence[tuple[MetalKernel, Sequence[Address]]]) -> Runner:
        return MetalRunner(self, launches)

    def synchronize(self) -> None:
        commands, self.pending = self.pending, None
        if commands is not None:
            commands.waitUntilCompleted()
            if commands.status() == STATUS_ERROR:
                raise InternalError(f"{self.target.arch} stopped a kernel: {commands.error().localizedDescription()}")


def render(program: Program) -> str:
    return CStyleRenderer(program, MetalLanguage(program)).render()


def open_device(name: str) -> MetalDriver:
    return MetalDriver()
