"""The CPU device. In: programs and buffers. Out: kernels in the process's own machine code, run by a native pool.
Memory is host memory, so that NumPy arrays can be borrowed and reading a result needs no copy. The code is compiled by
LLVM in this process, or by the system's C compiler, as CPU_COMPILER says, for the processor that CPU_ARCH names."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.host import system
from tilewright.backends.cpu.host.caches import memory_facts
from tilewright.backends.cpu.host.memory import HostMemory, allocate, release_unused, wrap
from tilewright.backends.cpu.host.panels import STACK_BYTES, SYMBOL, panel_offsets, panels
from tilewright.backends.cpu.host.processors import Processor, processor
from tilewright.backends.cpu.pool.ir import pool_ir
from tilewright.backends.cpu.pool.threads import CommandList, Pool
from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import CompileError, InternalError
from tilewright.base.events import emit
from tilewright.base.forks import renewed_lock
from tilewright.base.records import NamedTuple
from tilewright.base.target import ALL_DTYPES, BASIC_OPS, FLUSH_CONTRACTIONS, SMALL_FLOATS, Target
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.walk import toposort
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import Address, Binding, HostDriver, Runner, VariableBinding

KERNEL_SYMBOL = "kernel"
NUMBERS = "tw_numbers"  # the symbol of the numbers that a shared text reads
LLVM = "llvm"  # of CPU_COMPILER: every other choice is the name of a program
# The work, in operations and bytes, below which waking another thread costs more than it saves.
MIN_GRAIN = 1 << 15
# Small chunks balance the load when a core starts late; but the hardware prefetchers start again in each one: with 32
# chunks the exponential of 4M numbers takes 3 % longer, a sum of 256k numbers a fifth.
CHUNKS_PER_THREAD = 16
# Of a core, as estimates need them: two of 2.5 GHz read 24 to 33 GB/s (docs/roofline.md, docs/measurements/cpu.md).
CLOCK_HZ = 2.5e9
MEMORY_BYTES_PER_CLOCK = 5.0
# Bytes that each thread of a kernel may pack its operands into: more would not stay in any cache.
MAX_PANEL_BYTES = 8 << 20

# Small floats are converted by integer maths: LLVM would call library functions for some of these conversions. Between
# float16 and float32 it has an instruction on most processors.


def _names(**has: bool) -> frozenset[str]:
    return frozenset(name for name, is_there in has.items() if is_there)


@functools.cache
def cpu_target(compiler: str = LLVM, arch: str = "", facts: str = "", flush: int = FLUSH_CONTRACTIONS) -> Target:
    if compiler == LLVM:
        toolchain, local_bytes = llvm.toolchain(arch), MAX_PANEL_BYTES
    else:
        # Modules for C text are imported here and below, not at every start.
        from tilewright.backends.cpu.code import c_compiler

        toolchain, local_bytes = c_compiler.toolchain(compiler, arch), STACK_BYTES
    return Target(
        name="CPU",
        # Includes the machine: the results of a search are for the machine that it was timed on.
        arch=f"{system.machine()} {system.cpu_identity()} {arch}".rstrip(),
        toolchain=toolchain,
        cores=system.usable_cores(options.TILEWRIGHT_THREADS or None),
        clock_hz=CLOCK_HZ,
        memory_bytes_per_clock=MEMORY_BYTES_PER_CLOCK,
        has_threads=True,
        start_alignment=1 if compiler == LLVM else 64,
        # The C text keeps panels on the stack.
        max_local_bytes=local_bytes,
        **memory_facts(facts),
        **processor_facts(processor(arch), compiler),
        native=ALL_DTYPES - SMALL_FLOATS,
        flush_denormals=flush,
        checks_ranges=True,
    )


def processor_facts(compiled_for: Processor, compiler: str = LLVM) -> dict[str, Any]:
    """The facts of a target that follow from the instructions of its processor."""
    vector_bytes, registers = compiled_for.vector()
    if compiler != LLVM:
        # C text names every element, and its vectoriser must find them again: wide tiles take seconds and gain little.
        # Conversions out of range are undefined in C.
        return {"vector_bytes": 16, "vector_registers": registers, "native_ops": BASIC_OPS}
    names = _names(
        SATURATING_CAST=compiled_for.has_saturating_casts(),  # elsewhere LLVM scalarises vectors
        NAN_MAXIMUM=compiled_for.has_nan_maximum(),
        SLOW_PATH=True,
        SLOW_CONVERSIONS=compiled_for.has_slow_conversions(),
        SHIFT_INSERT=compiled_for.has_shift_insert(),
    )
    return {
        "vector_bytes": vector_bytes,
        "vector_registers": registers,
        "has_lane_operands": compiled_for.has_lane_operands(),
        "masked_itemsizes": compiled_for.masked_itemsizes(),
        "native_casts": frozenset({dtypes.float16}) if compiled_for.has_half_casts() else frozenset(),
        "native_ops": BASIC_OPS | names,
        "dot_products": compiled_for.dot_products(),
    }


class CpuKernel(NamedTuple):
    """`values` are those of `variables`, once they are bound. `counts` has the number and the greatest value of each
    variable that is the size of a loop. `work` is that of one iteration of the thread axis with these greatest values;
    it is proportional to the values."""

    code: llvm.LoadedCode
    extent: int
    grain: int
    variables: tuple[str, ...] = ()
    work: int = 1
    counts: tuple[tuple[int, int], ...] = ()
    values: tuple[int, ...] = ()

    @property
    def worth(self) -> float:
        """The fewest iterations that repay another thread, times the product of the variables that are loop sizes: a
        launch divides it by their values."""
        return math.prod([float(greatest) for _, greatest in self.counts]) * MIN_GRAIN / self.work


class CpuRunner(CommandList, Runner):
    """A command list that keeps the memory of its buffers alive."""

    __slots__ = ("_memories", "kernels", "variables")

    def __init__(self, pool: Pool, launches: Sequence[tuple[CpuKernel, Sequence[Address]]]) -> None:
        commands = []
        owners: list[object] = []
        self._memories: list[HostMemory | None] = []  # by the position of the pointer
        chunks = pool.threads * CHUNKS_PER_THREAD
        self.kernels = [(kernel, max(kernel.extent // chunks, 1)) for kernel, _ in launches]
        self.variables: list[int] = []  # the position of each launch's first variable among the pointers
        for kernel, arguments in launches:
            words = [memory.address + offset for memory, offset in arguments]
            self._memories += [memory for memory, _ in arguments]
            self.variables.append(len(self._memories))
            if len(kernel.values) != len(kernel.variables):
                raise InternalError(f"a kernel is launched without values of {', '.join(kernel.variables)}")
            if kernel.variables:
                words += kernel.values  # the program reads them after the buffers
                self._memories += [None] * len(kernel.values)
            commands.append((kernel.code.address, words, kernel.extent, kernel.grain))
            owners.append(kernel.code)
        super().__init__(pool, commands, owners)

    def set_address(self, launch: int, param: int, address: Address) -> None:
        """The caller keeps this memory alive while it runs, so that a result is freed after a replay."""
        memory, offset = address
        position = self.first[launch] + param
        self._memories[position] = None
        self.pointers[position] = memory.address + offset

    def _grains(self, given: Mapping[tuple[int, int], int]) -> list[tuple[int, int, float, list[int]]]:
        """For each launch that threads share and whose work depends on variables of a run: the position of its grain
        among the command's words, the least grain, `worth`, and the indices of the values that divide `worth`."""
        found = []
        for launch, (kernel, least) in enumerate(self.kernels):
            indices = [given[launch, number] for number, _ in kernel.counts if (launch, number) in given]
            if kernel.extent > 1 and indices:
                found.append((4 * launch + 4, least, kernel.worth, indices))
        return found

    def set_variable(self, launch: int, number: int, value: int) -> None:
        self.pointers[self.variables[launch] + number] = value

    def bind(
        self,
        bindings: Sequence[Binding],
        variables: Sequence[VariableBinding] = (),
        exclusive: frozenset[int] = frozenset(),
    ) -> Callable[[Sequence[Any]], None]:
        # Most buffers are given from their beginning on: they need no addition at every call.
        positions = [(number, self.first[launch] + param) for number, launch, param, start in bindings if not start]
        moved = [(number, self.first[launch] + param, start) for number, launch, param, start in bindings if start]
        for _, position, *_ in (*positions, *moved):
            self._memories[position] = None
        pointers, run = self.pointers, self.run

        values = [(index, self.variables[launch] + number) for index, launch, number in variables]
        grains = self._grains({(launch, number): index for index, launch, number in variables})
        words = self._words

        def run_whole(memories: Sequence[HostMemory]) -> None:
            for number, position in positions:
                pointers[position] = memories[number].address
            run()

        def run_moved(memories: Sequence[HostMemory]) -> None:
            for number, position, start in moved:
                pointers[position] = memories[number].address + start
            run_whole(memories)

        run_bound = run_moved if moved else run_whole

        def run_with_values(memories: Sequence[Any]) -> None:
            for number, position in values:
                pointers[position] = memories[number]
            for position, least, steps, indices in grains:
                for number in indices:
                    steps /= memories[number] or 1
                words[position] = max(least, int(steps))
            run_bound(memories)

        return run_with_values if values else run_bound


class CpuDriver(HostDriver):
    keeps_launches = True
    rebinds_lists = True
    _shared_pool: Pool | None = None

    @property
    def target(self) -> Target:  # type: ignore[override]  # the options may change under an open device
        return cpu_target(options.CPU_COMPILER, options.CPU_ARCH, options.CPU_FACTS, options.FLUSH_DENORMALS)

    @property
    def compile_threads(self) -> int:  # type: ignore[override]
        return self.target.cores

    allocate = staticmethod(allocate)
    release_unused = staticmethod(release_unused)
    wrap = staticmethod(wrap)

    def render(self, program: Program) -> str:
        # Not needed where every kernel is on disk.
        if options.CPU_COMPILER == LLVM:
            from tilewright.backends.cpu.rendering.renderer import render

            return render(program, KERNEL_SYMBOL)
        from tilewright.backends.cpu.rendering.c_language import render_c

        return render_c(program)

    def share_texts(self, sources: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        if options.CPU_COMPILER != LLVM:
            return super().share_texts(sources)
        from tilewright.backends.cpu.rendering.shared_text import share_texts

        return share_texts(sources)

    def compile(self, source: str) -> bytes:
        if options.CPU_COMPILER != LLVM:
            from tilewright.backends.cpu.code import c_compiler

            return c_compiler.compile_c(options.CPU_COMPILER, source, options.CPU_ARCH)
        try:
            return llvm.compile_ir(source, arch=options.CPU_ARCH)
        except llvm.CompileFailure as error:
            raise CompileError(str(error), source=source) from error

    @property
    def joins_texts(self) -> bool:  # type: ignore[override]
        return options.CPU_COMPILER == LLVM and llvm.HAS_ELF_OBJECTS

    def compile_texts(self, sources: Sequence[str]) -> list[bytes]:
        if not self.joins_texts or len(sources) == 1:
            return super().compile_texts(sources)
        from tilewright.backends.cpu.rendering.denormals import INNER

        own = frozenset(f"@{name}" for name in (KERNEL_SYMBOL, INNER, NUMBERS))
        try:
            return llvm.compile_texts(sources, own, options.CPU_ARCH)
        except llvm.CompileFailure:
            return super().compile_texts(sources)  # which names the text that LLVM refuses

    def load_compiler(self) -> None:
        if options.CPU_COMPILER == LLVM:
            llvm.load(arch=options.CPU_ARCH)
            self.pool()

    def load(self, binary: bytes, program: Program) -> CpuKernel:
        return self.load_kept(binary, self.launch_of(program))

    def launch_of(self, program: Program) -> dict[str, Any]:
        symbol, panel = KERNEL_SYMBOL, 0
        if options.CPU_COMPILER == LLVM:
            _, panel = panel_offsets(program)
        else:
            from tilewright.backends.cpu.rendering.c_language import CpuCLanguage

            symbol = CpuCLanguage().kernel_name(program)
        thread = next((axis for axis in program.global_ranges if axis.arg.kind is AxisType.THREAD), None)
        extent = 1 if thread is None else int(thread.src[0].arg)
        return {
            "symbol": symbol,
            "extent": extent,
            "grain": self._grain(program, extent),
            "panel": panel,
            "variables": program.variable_names,
            "work": _work_of_step(program, extent),
            "counts": _counts(program),
            "numbers": program.numbers,
        }

    def load_kept(self, binary: bytes, launch: dict[str, Any]) -> CpuKernel:
        panels.ensure(launch["panel"])
        numbers, imports = launch["numbers"], {SYMBOL: panels.word.address}
        if numbers:
            memory = allocate(8 * len(numbers))
            (ctypes.c_int64 * len(numbers)).from_address(memory.address)[:] = numbers
            imports[NUMBERS] = memory.address
        code = llvm.load_object(binary, launch["symbol"], imports=imports)
        code.read = memory if numbers else None
        counts = tuple((number, greatest) for number, greatest in launch["counts"])
        names = tuple(launch["variables"])
        return CpuKernel(code, launch["extent"], launch["grain"], names, launch["work"], counts)

    @property
    def takes_variables(self) -> bool:  # type: ignore[override]
        return options.CPU_COMPILER == LLVM

    @property
    def shares_kernels(self) -> bool:  # type: ignore[override]
        return self.takes_variables

    @property
    def lifted_terms(self) -> int:  # type: ignore[override]
        return 1 << 27 if self.takes_variables else 0

    def bind_variables(self, kernel: CpuKernel, values: Mapping[str, int]) -> CpuKernel:
        bound: CpuKernel = super().bind_variables(kernel, values)
        steps = kernel.worth / math.prod([max(bound.values[number], 1) for number, _ in kernel.counts])
        return bound._replace(grain=max(int(steps), kernel.extent // self._chunks, 1))

    def _grain(self, program: Program, extent: int) -> int:
        """Iterations of the thread axis in a chunk: several chunks a core, each of at least MIN_GRAIN work."""
        least = max(1, MIN_GRAIN // _work_of_step(program, extent))
        return max(least, extent // self._chunks)

    @property
    def _chunks(self) -> int:
        return self.target.cores * CHUNKS_PER_THREAD

    def prepare(self, launches: Sequence[tuple[CpuKernel, Sequence[Address]]]) -> Runner:
        return CpuRunner(self.pool(), launches)

    def disassemble(self, source: str) -> str:
        if options.CPU_COMPILER != LLVM:
            from tilewright.backends.cpu.code import c_compiler

            return c_compiler.assembly(options.CPU_COMPILER, source, options.CPU_ARCH)
        return llvm.assembly(source, arch=options.CPU_ARCH)

    @classmethod
    def pool(cls) -> Pool:
        """One pool for every CPU device of the process. Its code is kept on disk like any kernel's."""
        if cls._shared_pool is None:
            with _pool_lock:
                cls._shared_pool = cls._shared_pool or _new_pool()
        return cls._shared_pool


def _work_of_step(program: Program, extent: int) -> int:
    return max(1, (program.flops + program.bytes_moved) // max(extent, 1))


def _counts(program: Program) -> list[tuple[int, int]]:
    """The variables that are sizes of loops: the number and the greatest value of each."""
    loops = [node for node in program.body if node.op is Ops.RANGE]
    found = {name for loop in loops for name in toposort(loop.src[0]) if name.op is Ops.VARIABLE}
    return [(number, node.arg[2]) for number, node in enumerate(program.variables) if node in found]


_pool_lock = renewed_lock()


def _new_pool() -> Pool:
    source = pool_ir()
    key = cache_key("pool", source, llvm.toolchain())
    threads = system.usable_cores(options.TILEWRIGHT_THREADS or None)
    kept = read_entry(key)
    if kept is not None:
        try:
            return Pool(kept, threads)
        except llvm.CompileFailure as error:
            emit("warning", message=f"the stored pool {key} cannot be loaded: {error}", location=None)
    code = llvm.compile_ir(source, optimise=0)
    write_entry(key, code)
    return Pool(code, threads)


def open_device(name: str) -> CpuDriver:
    return CpuDriver()
