"""Lists of launches. In: kernels with their buffers, in order. Out: a `Runner` of the list.
A command buffer is used once, so each run records its launches again; what a launch binds is kept."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.backends.webgpu.context import GpuContext
from tilewright.backends.webgpu.memory import up_to_word
from tilewright.base.records import NamedTuple
from tilewright.graph.records import Param
from tilewright.runtime.device import Address, Runner


class WebGpuKernel(NamedTuple):
    pipeline: Any
    layout: Any
    grid: tuple[int, int, int]
    params: tuple[Param, ...]
    variables: tuple[str, ...] = ()  # in a separate buffer, after the others
    values: tuple[int, ...] = ()  # of the variables, once they are bound


class WebGpuRunner(Runner):
    """A prepared list. Memory given at the start is kept alive here; memory given later is kept for one run."""

    def __init__(
        self,
        context: GpuContext,
        constants: Any,
        launches: Sequence[tuple[WebGpuKernel, Sequence[Address]]],
        wait: Callable[[], None],
    ) -> None:
        self.context = context
        self.device = context.device
        self.constants = constants
        self.wait = wait  # type: ignore[method-assign]
        self.launches = [(kernel, list(arguments)) for kernel, arguments in launches]
        self.bound: list[Any] = [None] * len(self.launches)
        self.changed: set[int] = set()
        self.values = [list(kernel.values) for kernel, _ in launches]
        self.words: dict[int, Any] = {}  # the buffer that has the variables of a launch
        self.stale = {number for number, (kernel, _) in enumerate(launches) if kernel.variables}

    def run(self) -> None:
        with self.context:
            self._submit()
        for number in self.changed:
            self.bound[number] = None
        self.changed.clear()

    def _submit(self) -> None:
        for number in self.stale:
            self.device.queue.write_buffer(self._words_of(number), 0, array("i", self.values[number]))
        self.stale.clear()
        encoder = self.device.create_command_encoder()
        # Between the launches of one pass wgpu puts the barriers that their buffers ask for.
        commands = encoder.begin_compute_pass()
        for number, (kernel, arguments) in enumerate(self.launches):
            if self.bound[number] is None:
                self.bound[number] = self._bind(number, kernel, arguments)
            commands.set_pipeline(kernel.pipeline)
            commands.set_bind_group(0, self.bound[number])
            commands.set_bind_group(1, self.constants)
            commands.dispatch_workgroups(*kernel.grid)
        commands.end()
        self.device.queue.submit([encoder.finish()])

    def set_address(self, launch: int, param: int, address: Address) -> None:
        """Sets an address for one run: the bind group is dropped after it."""
        self.launches[launch][1][param] = address
        self.changed.add(launch)
        self.bound[launch] = None

    def set_variable(self, launch: int, number: int, value: int) -> None:
        self.values[launch][number] = value
        self.stale.add(launch)

    def _words_of(self, launch: int) -> Any:
        if launch not in self.words:
            import wgpu

            nbytes, usage = 4 * len(self.launches[launch][0].variables), wgpu.BufferUsage
            self.words[launch] = self.device.create_buffer(size=nbytes, usage=usage.STORAGE | usage.COPY_DST)
        return self.words[launch]

    def _bind(self, launch: int, kernel: WebGpuKernel, arguments: Sequence[Address]) -> Any:
        entries = []
        for number, param in enumerate(kernel.params):
            memory, offset = arguments[param.slot]
            size = up_to_word(param.size * param.dtype.itemsize)
            entries.append({"binding": number, "resource": {"buffer": memory.buffer, "offset": offset, "size": size}})
        if kernel.variables:
            resource = {"buffer": self._words_of(launch), "offset": 0, "size": 4 * len(kernel.variables)}
            entries.append({"binding": len(kernel.params), "resource": resource})
        return self.device.create_bind_group(layout=kernel.layout, entries=entries)
