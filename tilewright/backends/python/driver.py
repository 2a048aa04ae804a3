"""The PYTHON device: the emulator behind the runtime's contract. In: programs and buffers. Out: results, or an error
that names what no device may do. Memory knows which of its bytes were written, from one launch to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.backends.python.device import python_target
from tilewright.backends.python.emulator import run_program
from tilewright.base.errors import UnwrittenOutputError
from tilewright.base.records import NamedTuple
from tilewright.graph.interpreter.numpy_math import numpy_dtype
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


class BoundProgram(NamedTuple):
    """A program with the values of its variables."""

    program: Program
    values: dict[str, int]


Kernel = Program | BoundProgram


class EmulatedRunner(Runner):
    def __init__(self, launches: Sequence[tuple[Kernel, Sequence[Address]]]) -> None:
        self.launches = [(*_taken_apart(kernel), list(arguments)) for kernel, arguments in launches]

    def run(self) -> None:
        for program, values, arguments in self.launches:
            for number in range(program.sections):
                start = number * program.section_buffers
                # A parameter that was simplified away is not in the program but has an address.
                self._run_section(program, values, [arguments[start + param.slot] for param in program.params])

    def _run_section(self, program: Program, values: dict[str, int], used: list[Address]) -> None:
        """One of the equal sections of a program, on the buffers of its parameters."""
        arrays = []
        written = []
        for param, (memory, offset) in zip(program.params, used, strict=True):
            dtype = numpy_dtype(param.dtype)
            stop = offset + param.size * dtype.itemsize
            arrays.append(memory.bytes[offset:stop].view(dtype))
            written.append(memory.written[offset : stop : dtype.itemsize])
        states: list[Any] = [state.copy() for state in written]
        for state, param in zip(states, program.params, strict=True):
            if param.slot in program.fills:
                state[:] = False  # whatever the memory was used for before
        run_program(program, arrays, states, variables=values)
        check_filled(program, states)
        for state, (memory, offset), param in zip(states, used, program.params, strict=True):
            bytes_written = np.repeat(state, param.dtype.itemsize)
            memory.written[offset : offset + bytes_written.size] = bytes_written

    def set_address(self, launch: int, param: int, address: Address) -> None:
        self.launches[launch][2][param] = address

    def set_variable(self, launch: int, number: int, value: int) -> None:
        program, values, _ = self.launches[launch]
        values[program.variables[number].arg[0]] = value


def _taken_apart(kernel: Kernel) -> tuple[Program, dict[str, int]]:
    """A program and a copy of its values, which a run may change."""
    return (kernel, {}) if isinstance(kernel, Program) else (kernel.program, dict(kernel.values))


def check_filled(program: Program, states: Sequence[Any]) -> None:
    """Every element of the buffers that a kernel fills must have been written."""
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
    takes_variables = True

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

    def variables_of(self, kernel: Kernel) -> tuple[str, ...]:
        return kernel.variable_names if isinstance(kernel, Program) else ()

    def bind_variables(self, kernel: Program, values: Mapping[str, int]) -> BoundProgram:
        return BoundProgram(kernel, dict(values))

    def prepare(self, launches: Sequence[tuple[Kernel, Sequence[Address]]]) -> Runner:
        return EmulatedRunner(launches)


def open_device(name: str) -> PythonDriver:
    return PythonDriver()
