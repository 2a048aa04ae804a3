"""The PYTHON device: the emulator behind the runtime's contract. In: programs and buffers. Out: results, or an error
that names what no device may do. Memory knows which of its bytes were written, from one launch to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.errors import UnwrittenOutputError
from tilewright.graph.interpreter.evaluate import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import memory_of
from tilewright.runtime.device import Address, HostDriver, Runner


class EmulatedMemory:
    """Bytes, and for each whether anything wrote it."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.empty(nbytes, dtype=np.uint8)
        self.written = np.zeros(nbytes, dtype=np.bool_)

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes

    def view(self) -> memoryview:
        return self.bytes.data

    def mark_written(self, start: int = 0, stop: int | None = None) -> None:
        self.written[start:stop] = True


class EmulatedRunner(Runner):
    def __init__(self, launches: Sequence[tuple[Program, Sequence[Address]]]) -> None:
        self.launches = [(program, list(arguments)) for program, arguments in launches]

    def run(self) -> None:
        for program, arguments in self.launches:
            arrays = []
            written = []
            # A parameter that was simplified away is not in the program but has an address.
            used = [arguments[param.slot] for param in program.params]
            for param, (memory, offset) in zip(program.params, used, strict=True):
                dtype = numpy_dtype(param.dtype)
                stop = offset + param.size * dtype.itemsize
                arrays.append(memory.bytes[offset:stop].view(dtype))
                written.append(memory.written[offset : stop : dtype.itemsize])
            states: list[Any] = [state.copy() for state in written]
            for state, param in zip(states, program.params, strict=True):
                if param.slot in program.fills:
                    state[:] = False  # whatever the memory was used for before
            run_program(program, arrays, states)
            check_filled(program, states)
            for state, (memory, offset), param in zip(states, used, program.params, strict=True):
                bytes_written = np.repeat(state, param.dtype.itemsize)
                memory.written[offset : offset + bytes_written.size] = bytes_written

    def set_address(self, launch: int, param: int, address: Address) -> None:
        self.launches[launch][1][param] = address


def check_filled(program: Program, states: Sequence[Any]) -> None:
    """What a kernel is there to write must be written, every element of it."""
    for state, param in zip(states, program.params, strict=True):
        if param.slot not in program.fills or state.all():
            continue
        stores = [node for node in program.body if node.op is Ops.STORE]
        lines = [store.line for store in stores if memory_of(store.src[0]).arg.slot == param.slot and store.line]
        missing = int(np.argmin(state))
        raise UnwrittenOutputError(
            program.name,
            f"leaves {int((~state).sum())} of {param.size} elements of its argument {param.slot} unwritten, "
            f"the first at {missing}",
            "write every element, or give the kernel a tensor that has contents, such as Tensor.zeros",
            location=lines[0] if lines else None,
        )


class PythonDriver(HostDriver):
    def __init__(self) -> None:
        self.target = python_target()

    def allocate(self, nbytes: int) -> EmulatedMemory:
        return EmulatedMemory(nbytes)

    def copy_in(self, memory: EmulatedMemory, offset: int, data: memoryview) -> None:
        super().copy_in(memory, offset, data)
        memory.mark_written(offset, offset + data.nbytes)

    def render(self, program: Program) -> str:
        from tilewright.graph.text.show import show_program

        return show_program(program)

    def compile(self, source: str) -> bytes:
        return source.encode()

    def load(self, binary: bytes, program: Program) -> Program:
        return program

    def prepare(self, launches: Sequence[tuple[Program, Sequence[Address]]]) -> Runner:
        return EmulatedRunner(launches)


def open_device(name: str) -> PythonDriver:
    return PythonDriver()
