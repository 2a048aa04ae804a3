"""The CUDA device. In: programs and buffers. Out: kernels compiled by NVRTC, run in order on the queue of one card.
`CUDA` is the first card, `CUDA:1` the second. `cuda_target`, `render` and `compile_text` need no card."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from tilewright.backends.cuda import card as facts
from tilewright.backends.cuda.card import Card
from tilewright.backends.cuda.chain_plan import chain_launch, plan_chain
from tilewright.backends.cuda.cores import cores_of
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.dot_plan import dot_launch, plan_dot
from tilewright.backends.cuda.launches import CudaKernel, CudaRunner
from tilewright.backends.cuda.library import CudaError
from tilewright.backends.cuda.memory import CudaMemory, Pool, Staging
from tilewright.backends.cuda.nvrtc import compile_text, toolchain
from tilewright.backends.cuda.renderer import CudaLanguage
from tilewright.backends.cuda.tile_plan import plan_ring
from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.base.target import ALL_DTYPES, ATOMIC_DTYPES, BASIC_OPS, FLOAT_ATOMIC_DTYPES, SMALL_FLOATS, Target
from tilewright.codegen.c_style.launch import argument_slots, plan_launch
from tilewright.codegen.c_style.simt import dynamic_local_bytes
from tilewright.graph.records import Program
from tilewright.runtime.device import Address, Driver

# CUfunction_attribute: the most dynamic shared memory that launches of a function ask for.
MAX_DYNAMIC_SHARED = 8

_NATIVE_OPS = BASIC_OPS | {"EXP2", "LOG2", "SIN"}

MAX_COMPILE_THREADS = 16

# Of an H200: clocks in a second, and the warps of float32 that a multiprocessor multiplies and adds in one.
CLOCK_HZ = 1.98e9
PRODUCTS_PER_CLOCK = 4.0

# Bytes of kernel arguments that every card accepts.
PARAMETER_BYTES = 4096
POINTER_BYTES = 8


def cuda_target(card: Card | None = None, compiler: str = "") -> Target:
    """The facts of a card; without one, those of the H200 and the architecture of CUDA_ARCH."""
    ask = card.attribute if card is not None else _H200.__getitem__
    arch = card.arch() if card is not None else options.CUDA_ARCH
    return Target(
        name="CUDA",
        arch=arch,
        toolchain=compiler,
        vector_bytes=16,
        start_alignment=16,
        cores=ask(facts.MULTIPROCESSORS),
        clock_hz=CLOCK_HZ,
        products_per_clock=PRODUCTS_PER_CLOCK,
        has_local=True,
        max_local_bytes=ask(facts.SHARED_BYTES),
        max_group_size=ask(facts.MAX_THREADS),
        max_buffers=PARAMETER_BYTES // POINTER_BYTES,
        max_sections=PARAMETER_BYTES // POINTER_BYTES,
        warp_size=32,
        cache_bytes=ask(facts.L2_BYTES),
        native=ALL_DTYPES - SMALL_FLOATS,
        native_ops=_NATIVE_OPS,
        atomics=ATOMIC_DTYPES,
        float_atomics=FLOAT_ATOMIC_DTYPES,
        native_casts=frozenset({dtypes.float16, dtypes.bfloat16}),
        tensor_cores=cores_of(arch, bool(options.ALLOW_TF32), bool(options.ALLOW_BF16X6)),
    )


_H200 = {facts.MULTIPROCESSORS: 132, facts.SHARED_BYTES: 232448, facts.MAX_THREADS: 1024, facts.L2_BYTES: 60 << 20}


# Bytes of the card's memory for each element of the largest value that a lifted graph stores.
LIFTED_BYTES = 128


class CudaDriver(Driver):
    takes_variables = True
    lifted_terms = 1 << 44

    def __init__(self, card: Card) -> None:
        self.card = card
        self.targets: dict[tuple[int, ...], Target] = {}
        self.pool = Pool(card)
        self.staging = Staging(card)
        self.programs: dict[int, Program] = {}  # by the number of the loaded function
        self.unrestricted: dict[int, CudaKernel] = {}

    @property
    def target(self) -> Target:  # type: ignore[override]  # the options may change under an open device
        allowed = (options.ALLOW_TF32, options.ALLOW_BF16X6)
        if allowed not in self.targets:
            self.targets[allowed] = cuda_target(self.card, toolchain())
        return self.targets[allowed]

    @functools.cached_property
    def lifted_elements(self) -> int:  # type: ignore[override]
        self.card.enter()
        return int(self.card.library.call("cuMemGetInfo")[1]) // LIFTED_BYTES

    @property
    def compile_threads(self) -> int:  # type: ignore[override]
        """NVRTC releases the GIL while it works."""
        found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(found, MAX_COMPILE_THREADS)

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> CudaMemory:
        return self.pool.allocate(nbytes)

    def copy_in(self, memory: CudaMemory, offset: int, data: memoryview) -> None:
        if data.nbytes:
            self.staging.copy_in(memory.address + offset, data)

    def copy_out(self, memory: CudaMemory, offset: int, into: memoryview) -> None:
        if into.nbytes:
            self.staging.copy_out(memory.address + offset, into)

    def copy(self, target: Address, source: Address, nbytes: int) -> None:
        (to, to_offset), (origin, origin_offset) = target, source
        self.card.enter()
        self.card.library.call(
            "cuMemcpyDtoDAsync", to.address + to_offset, origin.address + origin_offset, nbytes, self.card.stream
        )

    # ------------------------------------------------------------ programs

    def render(self, program: Program) -> str:
        return render_program(program)

    def compile(self, source: str) -> bytes:
        return compile_text(source, self.target.arch)

    def load(self, binary: bytes, program: Program) -> CudaKernel:
        """Modules stay loaded for the life of the process."""
        self.card.enter()
        library, product = self.card.library, plan_dot(program)
        chain = plan_chain(program)
        if chain is not None:
            launch = chain_launch(chain)
        else:
            launch = plan_launch(program) if product is None else dot_launch(program, product)
        asking = product or chain or plan_ring(program)
        shared_bytes = dynamic_local_bytes(program) if asking is None else asking.shared_bytes
        try:
            module = library.call("cuModuleLoadData", binary)
            name = CudaLanguage(program).kernel_name(program)
            function = library.call("cuModuleGetFunction", module, name.encode())
            if shared_bytes:
                library.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared_bytes)
        except CudaError as error:
            raise InternalError(f"{program.name} cannot be loaded: {error}") from error
        slots = argument_slots(program)
        starts = [number * program.section_buffers for number in range(program.sections)]
        written = tuple(start + param.slot for param in program.params if param.is_written for start in starts)
        maps = product.maps if product is not None else chain.maps if chain is not None else ()
        sizes = tuple(param.size * param.dtype.itemsize for param in program.params for _ in starts)
        names = program.variable_names
        kernel = CudaKernel(function, launch.grid, launch.group, shared_bytes, slots, maps, written, sizes, names)
        kernel = kernel._replace(has_table=program.section is not None)
        self.programs[int(function)] = program
        return kernel

    def disassemble(self, source: str) -> str:
        """The card's own instructions where NVIDIA's disassembler is installed, else PTX."""
        tool = shutil.which("cuobjdump")
        if tool is None:
            return compile_text(source, self.target.arch, "PTX").decode()
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.compile(source))
            file.flush()
            done = subprocess.run([tool, "--dump-sass", file.name], capture_output=True, text=True, check=True)
        return done.stdout

    # ------------------------------------------------------------ running

    def prepare(self, launches: Sequence[tuple[CudaKernel, Sequence[Address]]]) -> CudaRunner:
        return CudaRunner(self.card, [(self._fitting(kernel, arguments), arguments) for kernel, arguments in launches])

    def _fitting(self, kernel: CudaKernel, arguments: Sequence[Address]) -> CudaKernel:
        """The kernel; compiled again without `restrict` where a buffer that it writes is given twice."""
        if not kernel.shares_written(arguments):
            return kernel
        key = int(kernel.function)
        if key not in self.unrestricted:
            program = self.programs[key]
            binary = self.compile(render_program(program, is_restricted=False))
            self.unrestricted[key] = self.load(binary, program)._replace(written=())
        return self.unrestricted[key]._replace(values=kernel.values)

    def synchronize(self) -> None:
        self.card.synchronize()


def open_device(name: str) -> CudaDriver:
    toolchain()  # raises where the compiler is missing, before any card is opened
    number = name.partition(":")[2]
    return CudaDriver(Card(int(number) if number else 0))
