"""The WEBGPU device. In: programs and buffers. Out: WGSL compiled by wgpu, run on one queue of the system's adapter.
Memory belongs to the device: the host copies in and out. WEBGPU:1 and so on are further queues of the same adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.backends.webgpu.adapter import open_adapter, webgpu_target
from tilewright.backends.webgpu.context import GpuContext
from tilewright.backends.webgpu.language import ENTRY
from tilewright.backends.webgpu.launches import WebGpuKernel, WebGpuRunner
from tilewright.backends.webgpu.memory import Copies, WebGpuMemory
from tilewright.backends.webgpu.renderer import render
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.codegen.c_style.launch import plan_launch
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, Driver, Runner


class WebGpuDriver(Driver):
    takes_variables = True

    def __init__(self, device: Any) -> None:
        import wgpu

        self.wgpu = wgpu
        self.device = device
        self.limits = device.limits
        self.target = webgpu_target(device.adapter.info, device.limits, frozenset(device.features))
        self.context = GpuContext(device)
        self.copies = Copies(device, self.context)
        with self.context:
            self.constant_layout = self._layout(1, "uniform")
            self.constants = self._bind_constants()

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> WebGpuMemory:
        return self.copies.allocate(nbytes)

    def copy_in(self, memory: WebGpuMemory, offset: int, data: memoryview) -> None:
        self.copies.copy_in(memory, offset, data)

    def copy_out(self, memory: WebGpuMemory, offset: int, into: memoryview) -> None:
        self.copies.copy_out(memory, offset, into)

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        self.copies.copy(target, source, nbytes)

    def synchronize(self) -> None:
        self.copies.synchronize()

    # ------------------------------------------------------------ programs

    def render(self, program: Program) -> str:
        self._check_limits(program)
        return render(program)

    def _check_limits(self, program: Program) -> None:
        limit = self.target.max_buffers
        if len(program.params) > limit:
            raise UnsupportedError(
                "compile",
                f"kernel {program.name} has {len(program.params)} buffers, {self.target.arch} binds {limit} at most",
                "call `contiguous()` on parts of the expression, so that each kernel has fewer inputs",
            )
        largest = int(self.limits["max-storage-buffer-binding-size"])
        for param in program.params:
            if param.size * param.dtype.itemsize > largest:
                raise UnsupportedError(
                    "compile",
                    f"buffer {param.slot} of kernel {program.name} has {param.size * param.dtype.itemsize} bytes, "
                    f"{self.target.arch} binds {largest} at most",
                    "split the tensor",
                )

    def compile(self, source: str) -> bytes:
        """The text itself, once wgpu has accepted it: a shader is compiled to machine code when it is loaded."""
        with self.context:
            self._module(source)
        return source.encode()

    def _module(self, source: str) -> Any:
        try:
            return self.device.create_shader_module(code=source)
        except self.wgpu.GPUError as error:
            raise CompileError(str(error), source=source) from error

    def load(self, binary: bytes, program: Program) -> WebGpuKernel:
        with self.context:
            return self._pipeline(binary.decode(), program)

    def _pipeline(self, source: str, program: Program) -> WebGpuKernel:
        layout = self._layout(len(program.params) + bool(program.variables), "storage")
        layouts = [layout, self.constant_layout]
        try:
            pipeline = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=layouts),
                compute={"module": self._module(source), "entry_point": ENTRY},
            )
        except self.wgpu.GPUError as error:
            raise CompileError(str(error), source=source) from error
        return WebGpuKernel(pipeline, layout, plan_launch(program).grid, program.params, program.variable_names)

    def _layout(self, count: int, kind: str) -> Any:
        stage = self.wgpu.ShaderStage.COMPUTE
        entries = [{"binding": n, "visibility": stage, "buffer": {"type": kind}} for n in range(count)]
        return self.device.create_bind_group_layout(entries=entries)

    def _bind_constants(self) -> Any:
        """The zero in a buffer, which compilers cannot see to be zero (`language`)."""
        size = 16
        zeros = self.device.create_buffer_with_data(data=bytes(size), usage=self.wgpu.BufferUsage.UNIFORM)
        resource = {"buffer": zeros, "offset": 0, "size": size}
        return self.device.create_bind_group(
            layout=self.constant_layout, entries=[{"binding": 0, "resource": resource}]
        )

    # ------------------------------------------------------------ running

    def prepare(self, launches: Sequence[tuple[WebGpuKernel, Sequence[Address]]]) -> Runner:
        return WebGpuRunner(self.context, self.constants, launches, self.synchronize)


def open_device(name: str) -> WebGpuDriver:
    return WebGpuDriver(open_adapter())
