"""The NULL device. In: programs and buffers. Out: the programs' text; nothing runs and no memory is taken, so that a
model of any size can be scheduled, compiled and counted on a machine that could not hold it. Reading is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, SMALL_FLOATS, Target
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, Driver, Runner


class NullLanguage(Language):
    """C with a grid of work-groups, for reading only: no compiler accepts it."""

    def group_index(self, dimension: int) -> str:
        return f"group.{'xyz'[dimension]}"

    def thread_index(self, dimension: int) -> str:
        return f"thread.{'xyz'[dimension]}"

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        return f"shared {self.memory_type(dtype)} {name}[{size}];"

    def barrier(self) -> str:
        return "barrier();"

    def vector_type(self, dtype: DType, width: int) -> str:
        return f"{dtype.name}x{width}"


class NullMemory(NamedTuple):
    """A size."""

    nbytes: int


class NullRunner(Runner):
    def run(self) -> None:
        return

    def run_timed(self) -> float:
        return 0.0

    def set_address(self, launch: int, param: int, address: Address) -> None:
        return


class NullDriver(Driver):
    keeps_values = False
    takes_variables = True

    def __init__(self) -> None:
        self.target = Target(
            name="NULL",
            has_local=True,
            max_local_bytes=48 * 1024,
            max_group_size=1024,
            native=ALL_DTYPES - SMALL_FLOATS,
            native_ops=BASIC_OPS,
        )

    def allocate(self, nbytes: int) -> NullMemory:
        return NullMemory(nbytes)

    def copy_in(self, memory: NullMemory, offset: int, data: memoryview) -> None:
        return

    def copy_out(self, memory: NullMemory, offset: int, into: memoryview) -> None:
        raise UnsupportedError(
            "read", "the NULL device compiles kernels and runs none, so no value is there", "use another device"
        )

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        return

    def render(self, program: Program) -> str:
        return CStyleRenderer(program, NullLanguage()).render()

    def compile(self, source: str) -> bytes:
        return source.encode()

    def load(self, binary: bytes, program: Program) -> Program:
        return program

    def variables_of(self, kernel: Any) -> tuple[str, ...]:
        return ()  # nothing runs, so none needs a value

    def prepare(self, launches: Sequence[tuple[Any, Sequence[Address]]]) -> NullRunner:
        return NullRunner()


def open_device(name: str) -> NullDriver:
    return NullDriver()
