"""METAL, as far as it goes without a machine of Apple's: golden texts, spelling, what is refused, why it is not there;
and the device's own code against a stand-in for the framework that keeps buffers, and notes launches instead of running
them. The values that kernels compute are not tested here."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tests.golden.texts import EVERYWHERE, WITH_GROUPS, Case, check_golden, leaf, program_of
from tilewright.backends.metal import device as metal
from tilewright.backends.metal.language import MetalLanguage
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import CompileError, InternalError, UnsupportedError
from tilewright.codegen.c_style.expressions import Expression
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, OptOps, Program
from tilewright.graph.uop import UOp
from tilewright.runtime.device import Unavailable

TARGET = metal.metal_target("a GPU")


def halves() -> UOp:
    """Half precision: its vectors, its square root, a constant."""
    x = leaf(0, 64, dtype=dtypes.float16)
    return build.alu(Ops.ADD, build.alu(Ops.SQRT, x), build.const(dtypes.float16, 0.5))


def largest() -> UOp:
    """The maximum of each row, by the threads of a warp."""
    return build.reduce_axis(Ops.MAX, leaf(0, 8, 256), (1,))


OWN: dict[str, Case] = {
    "halves": (halves, (Opt(OptOps.UPCAST, 0, 4),)),
    "largest_group": (largest, (Opt(OptOps.GROUP, 1, 64),)),
}
CASES = EVERYWHERE | WITH_GROUPS | OWN


def case_program(name: str) -> Program:
    build_output, opts = CASES[name]
    return program_of(name, build_output(), opts, TARGET)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(f"{name}.metal", metal.render(case_program(name)), request)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 0.5, "0.5f"),
        (dtypes.float32, float("-inf"), "-as_type<float>(0x7f800000u)"),
        (dtypes.float16, 0.5, "half(0.5f)"),
        (dtypes.int64, 3, "3l"),
        (dtypes.uint64, 3, "3ul"),
    ],
)
def test_constants(dtype: DType, value: float, text: str) -> None:
    assert MetalLanguage(case_program("padded")).literal(dtype, value).text == text


@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        (dtypes.float32, "x = x + simd_shuffle_xor(x, 2); x = x + simd_shuffle_xor(x, 1);"),
        (dtypes.int64, "as_type<long>(simd_shuffle_xor(as_type<uint2>(x), 2))"),
        (dtypes.bool, "bool(simd_shuffle_xor(uint(x), 2))"),
    ],
)
def test_threads_of_a_warp_exchange_their_values(dtype: DType, step: str) -> None:
    language = MetalLanguage(case_program("padded"))
    name = language.warp_fold(Ops.ADD, dtype, 4, Expression("a")).text.partition("(")[0]
    assert step in language.helpers[name]


def test_doubles_are_refused_by_name() -> None:
    output = build.alu(Ops.ADD, leaf(0, 4, dtype=dtypes.float64), leaf(1, 4, dtype=dtypes.float64))
    with pytest.raises(UnsupportedError, match="METAL does not compute with float64"):
        program_of("doubles", output, (), TARGET)


@pytest.mark.skipif(sys.platform == "darwin", reason="says what other systems are told; macOS has Metal")
def test_it_says_that_it_is_part_of_another_system() -> None:
    metal._metal.cache_clear()
    with pytest.raises(Unavailable, match=f"part of macOS and this is {sys.platform}.*tested as text"):
        metal.open_device("METAL")


# ---------------------------------------------------------------- the device, on a stand-in


class Buffer:
    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(nbytes)

    def contents(self) -> Buffer:
        return self

    def as_buffer(self, count: int) -> memoryview:
        return memoryview(self.bytes)[:count]


class Failure:
    def localizedDescription(self) -> str:
        return "it is broken"


class Commands:
    """A command buffer and its encoder: notes what is launched with which buffers."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.pipeline = ""
        self.bound: dict[int, tuple[Buffer, int]] = {}
        self.fails = False

    def computeCommandEncoder(self) -> Commands:
        return self

    def setComputePipelineState_(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        self.bound[index] = (buffer, offset)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: Any, group: Any) -> None:
        self.log.append((self.pipeline, dict(self.bound), grid, group))

    def endEncoding(self) -> None:
        self.log.append("ended")

    def commit(self) -> None:
        self.log.append("committed")

    def waitUntilCompleted(self) -> None:
        self.log.append("waited")

    def status(self) -> int:
        return metal.STATUS_ERROR if self.fails else 4

    def error(self) -> Failure:
        return Failure()

    def GPUStartTime(self) -> float:
        return 1.0

    def GPUEndTime(self) -> float:
        return 1.25


class Gpu:
    """The device, its queue, and a library of one function."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.options: Any = None

    def name(self) -> str:
        return "stand-in"

    def newCommandQueue(self) -> Gpu:
        return self

    def commandBuffer(self) -> Commands:
        return Commands(self.log)

    def maxThreadsPerThreadgroup(self) -> Any:
        return types.SimpleNamespace(width=512)

    def maxThreadgroupMemoryLength(self) -> int:
        return 16384

    def newBufferWithLength_options_(self, nbytes: int, _options: int) -> Buffer | None:
        return Buffer(nbytes) if nbytes < 1 << 30 else None

    def newLibraryWithSource_options_error_(self, source: str, options: Any, _error: None) -> tuple[Any, Any]:
        self.options = options
        return (None, Failure()) if "broken" in source else (self, None)

    def newFunctionWithName_(self, name: str) -> str:
        return name

    def newComputePipelineStateWithFunction_error_(self, function: str, _error: None) -> tuple[Any, Any]:
        return f"pipeline of {function}", None


class Options:
    is_fast = True

    @classmethod
    def alloc(cls) -> type[Options]:
        return cls

    @classmethod
    def init(cls) -> Options:
        return cls()

    def setFastMathEnabled_(self, value: bool) -> None:
        self.is_fast = value


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> metal.MetalDriver:
    module = types.SimpleNamespace(
        MTLCreateSystemDefaultDevice=Gpu,
        MTLCompileOptions=Options,
        MTLResourceStorageModeShared=0,
        MTLSizeMake=lambda *sizes: sizes,
    )
    monkeypatch.setattr(metal, "_metal", lambda: module)
    return metal.MetalDriver()


def test_target_facts_come_from_the_device(driver: metal.MetalDriver) -> None:
    assert (driver.target.arch, driver.target.max_group_size, driver.target.max_local_bytes) == ("stand-in", 512, 16384)


def test_memory_is_shared_with_the_host(driver: metal.MetalDriver) -> None:
    memory, other = driver.allocate(8), driver.allocate(8)
    driver.copy_in(memory, 2, memoryview(b"abc"))
    assert bytes(driver.host_view(memory)) == b"\0\0abc\0\0\0"
    driver.copy((other, 0), (memory, 2), 3)
    into = bytearray(3)
    driver.copy_out(other, 0, memoryview(into))
    assert into == b"abc"
    with pytest.raises(MemoryError, match="stand-in"):
        driver.allocate(1 << 31)


def test_launches_go_in_order_with_their_buffers(driver: metal.MetalDriver) -> None:
    program = case_program("rows_group")
    kernel = driver.load(driver.compile(driver.render(program)), program)
    assert not driver.device.options.is_fast
    memories = [driver.allocate(4096), driver.allocate(16384)]
    runner = driver.prepare([(kernel, [(memory, 0) for memory in memories])])
    runner.run()
    replacement = driver.allocate(4096)
    runner.set_address(0, 0, (replacement, 256))
    assert runner.run_timed() == 0.25
    (first, _, _), (second, _, _, waited) = driver.device.log[:3], driver.device.log[3:]
    name, bound, grid, group = first
    assert (name, grid, group) == ("pipeline of rows_group", kernel.launch.grid, kernel.launch.group)
    assert bound == {0: (memories[0].buffer, 0), 1: (memories[1].buffer, 0)}
    assert second[1][0] == (replacement.buffer, 256)
    assert waited == "waited"


def test_what_the_compiler_and_the_gpu_refuse(driver: metal.MetalDriver) -> None:
    with pytest.raises(CompileError, match="it is broken"):
        driver.compile("broken")
    commands = Commands([])
    commands.fails = True
    driver.pending = commands
    with pytest.raises(InternalError, match="stopped a kernel: it is broken"):
        driver.synchronize()
    driver.synchronize()
