"""WEBGPU. Golden texts and spelling, which need no device; then, where wgpu finds an adapter, kernels on it: what a
shader compiler would get wrong if it were let, bytes that neighbours store at once, copies that are no whole words,
grids beyond a dimension, adapters that lack a type."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.golden.texts import EVERYWHERE, WITH_GROUPS, Case, check_golden, leaf, program_of
from tilewright import Device, Tensor, jit
from tilewright.backends.python.driver import PythonDriver
from tilewright.backends.webgpu import adapter
from tilewright.backends.webgpu.language import WgslLanguage
from tilewright.backends.webgpu.renderer import render
from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import InternalError, UnsupportedError
from tilewright.base.target import Target
from tilewright.codegen.c_style.expressions import Expression
from tilewright.graph import build
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.records import Opt, OptOps, Program
from tilewright.graph.uop import UOp, const
from tilewright.runtime.device import Driver, Unavailable

LIMITS = {"max-compute-workgroups-per-dimension": 65535, "max-compute-workgroup-storage-size": 16384}
LIMITS |= {"max-compute-invocations-per-workgroup": 256} | {f"max-compute-workgroup-size-{axis}": 256 for axis in "xyz"}
LIMITS |= {"max-storage-buffers-per-shader-stage": 8}
INFO = {"backend_type": "Vulkan", "device": "a card", "description": "a driver"}
ALL_FEATURES = frozenset(adapter.FEATURE_DTYPES)


def target_with(features: frozenset[str]) -> Target:
    pytest.importorskip("wgpu", reason="the version of wgpu is part of the target")
    return adapter.webgpu_target(INFO, LIMITS, features)


# ---------------------------------------------------------------- kernels


def add_bytes() -> UOp:
    """Whole words of bytes."""
    return build.alu(Ops.ADD, leaf(0, 64, dtype=dtypes.uint8), leaf(1, 64, dtype=dtypes.uint8))


def negate_shorts() -> UOp:
    """Elements that lie two in a word, stored one by one."""
    return build.alu(Ops.NEG, leaf(0, 33, dtype=dtypes.int16))


def round_away() -> UOp:
    """(x + c) - c, which is x only for real numbers; and a maximum."""
    shift = build.const(dtypes.float32, 1.5 * 2.0**23)
    x = leaf(0, 40)
    rounded = build.alu(Ops.SUB, build.alu(Ops.ADD, x, shift), shift)
    return build.alu(Ops.MAX, rounded, build.alu(Ops.MUL, x, build.const(dtypes.float32, 0.0)))


def byte_rows() -> UOp:
    """The sum of each row, in bytes that wrap."""
    return build.reduce_axis(Ops.ADD, leaf(0, 6, 64, dtype=dtypes.uint8), (1,))


def long_sums() -> UOp:
    """64-bit integers: a product, carries of an accumulator, memory of pairs."""
    x = leaf(0, 4, 16, dtype=dtypes.int64)
    return build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, x, build.const(dtypes.int64, 3)), (1,))


OWN: dict[str, Case] = {
    "bytes": (add_bytes, (Opt(OptOps.UPCAST, 0, 8),)),
    "shorts": (negate_shorts, ()),
    "round_away": (round_away, (Opt(OptOps.UPCAST, 0, 2),)),
    "byte_rows_group": (byte_rows, (Opt(OptOps.GROUP, 1, 8),)),
    "long_sums": (long_sums, (Opt(OptOps.UPCAST, 0, 2),)),
}
CASES = EVERYWHERE | WITH_GROUPS | OWN
GOLDEN = Target(
    "WEBGPU",
    has_local=True,
    max_local_bytes=16384,
    max_group_size=256,
    native=adapter.ALWAYS_NATIVE,
    native_ops=adapter.NATIVE_OPS,
)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, request: pytest.FixtureRequest) -> None:
    build_output, opts = CASES[name]
    check_golden(f"{name}.wgsl", render(program_of(name, build_output(), opts, GOLDEN)), request)


# ---------------------------------------------------------------- spelling

WHOLE = Target("WEBGPU", native_ops=adapter.NATIVE_OPS)
A, B, C = (Expression(name) for name in "abc")


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 0.1, "0.1f"),
        (dtypes.float32, 0.0, "zero_float32()"),
        (dtypes.float32, -0.0, "bitcast<f32>(2147483648u ^ unknown_zero.x)"),
        (dtypes.float32, 1e-45, "bitcast<f32>(1u)"),
        (dtypes.float32, math.inf, "bitcast<f32>(2139095040u ^ unknown_zero.x)"),
        (dtypes.float16, 0.5, "f16(0.5f)"),
        (dtypes.int32, -(2**31), "i32(-2147483648)"),
        (dtypes.int64, -(2**63), "vec2<u32>(0u, 2147483648u)"),
        (dtypes.int64, -2, "vec2<u32>(4294967294u, 4294967295u)"),
        (dtypes.uint64, 2**33 + 1, "vec2<u32>(1u, 2u)"),
        (dtypes.int8, -128, "-128"),
        (dtypes.uint8, 255, "255u"),
    ],
)
def test_constants(dtype: DType, value: float, text: str) -> None:
    assert WgslLanguage(WHOLE).literal(dtype, const(dtype, value).arg).text == text


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (Ops.ADD, dtypes.int8, "extractBits(a + b, 0u, 8u)"),
        (Ops.MUL, dtypes.uint16, "(a * b) & 65535u"),
        (Ops.ADD, dtypes.int32, "a + b"),
        (Ops.SHL, dtypes.int32, "a << u32(b)"),
        (Ops.SHL, dtypes.uint64, "vec2<u32>(0u, a.x)"),
        (Ops.SHR, dtypes.uint64, "vec2<u32>(a.y, 0u)"),
        (Ops.OR, dtypes.uint64, "a | b"),
        (Ops.CMPNE, dtypes.float32, "!(a == b)"),
        (Ops.CMPLT, dtypes.bool, "!a & b"),
        (Ops.MAX, dtypes.float32, "max_float32(a, b)"),
    ],
)
def test_binary_ops(op: Any, dtype: DType, text: str) -> None:
    assert WgslLanguage(WHOLE).binary(op, dtype, A, B).text == text


def test_a_word_of_a_pair_is_named_without_making_the_pair() -> None:
    language = WgslLanguage(WHOLE)
    pair = language.cast(dtypes.uint32, dtypes.uint64, A)
    assert pair.text == "vec2<u32>(a, 0u)"
    assert language.cast(dtypes.uint64, dtypes.uint32, pair).text == "a"
    assert language.binary(Ops.SHL, dtypes.uint64, pair, B).text == "vec2<u32>(0u, a)"
    shifted = language.binary(Ops.SHR, dtypes.uint64, language.cast(dtypes.int64, dtypes.uint64, A), B)
    assert language.cast(dtypes.uint64, dtypes.uint32, shifted).text == "a.y"


def test_arithmetic_of_64_bits_is_not_left_to_vectors() -> None:
    """a + b of two vectors would lose the carry without a word."""
    for op in (Ops.ADD, Ops.MUL, Ops.CMPLT, Ops.MAX):
        with pytest.raises(InternalError, match="64 bits"):
            WgslLanguage(WHOLE).binary(op, dtypes.uint64, A, B)


def test_operators_that_have_no_order_are_set_off() -> None:
    language = WgslLanguage(WHOLE)
    both = language.binary(Ops.AND, dtypes.bool, A, B)
    assert language.binary(Ops.OR, dtypes.bool, both, C).text == "(a & b) | c"
    less = language.binary(Ops.CMPLT, dtypes.int32, A, B)
    assert language.binary(Ops.CMPEQ, dtypes.bool, less, C).text == "(a < b) == c"
    total = language.binary(Ops.ADD, dtypes.int32, A, B)
    assert language.binary(Ops.CMPLT, dtypes.int32, total, C).text == "a + b < c"


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (dtypes.uint32, dtypes.uint64, "vec2<u32>(a, 0u)"),
        (dtypes.uint64, dtypes.int64, "a"),
        (dtypes.uint64, dtypes.uint32, "a.x"),
        (dtypes.int32, dtypes.uint8, "u32(a) & 255u"),
        (dtypes.uint8, dtypes.int32, "i32(a)"),
        (dtypes.float32, dtypes.bool, "!(a == zero_float32())"),
        (dtypes.int32, dtypes.float16, "f16(f32(a))"),
    ],
)
def test_casts(source: DType, target: DType, text: str) -> None:
    assert WgslLanguage(WHOLE).cast(source, target, A).text == text


def test_float64_is_refused_by_name_on_every_adapter() -> None:
    for features in (frozenset[str](), ALL_FEATURES, frozenset({"shader-f64", "shader-int64"})):
        target = target_with(features)
        assert target.computes(dtypes.int64)
        assert not target.computes(dtypes.float64)
        output = build.alu(Ops.ADD, leaf(0, 4, dtype=dtypes.float64), leaf(1, 4, dtype=dtypes.float64))
        with pytest.raises(UnsupportedError, match="WEBGPU does not compute with float64"):
            program_of("wide", output, (), target)


def test_narrow_integers_count_a_word_each_in_local_memory() -> None:
    language = WgslLanguage(Target("WEBGPU", max_local_bytes=1024))
    language.declare_local("shared0", dtypes.uint8, 256)
    with pytest.raises(UnsupportedError, match="1028 bytes"):
        language.declare_local("shared1", dtypes.uint8, 1)


def test_without_wgpu_the_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wgpu", None)
    adapter.find_adapter.cache_clear()
    try:
        with pytest.raises(Unavailable, match="pip install"):
            adapter.find_adapter()
    finally:
        adapter.find_adapter.cache_clear()


# ---------------------------------------------------------------- on the device


@functools.cache
def unavailable() -> str | None:
    return Device.availability()["WEBGPU"]


@pytest.fixture
def driver() -> Driver:
    if unavailable() is not None:
        pytest.skip(f"WEBGPU: {unavailable()}")
    return Device["WEBGPU"]


def run(driver: Driver, program: Program, arrays: list[np.ndarray]) -> np.ndarray:
    """The first buffer after the program ran on these."""
    memories = []
    for array in arrays:
        memories.append(driver.allocate(max(array.nbytes, 1)))
        driver.copy_in(memories[-1], 0, memoryview(array).cast("B"))
    kernel = driver.load(driver.compile(driver.render(program)), program)
    driver.prepare([(kernel, [(memory, 0) for memory in memories])]).run()
    result = np.empty_like(arrays[0])
    driver.copy_out(memories[0], 0, memoryview(result).cast("B"))
    return result


def arrays_for(program: Program, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = []
    for param in program.params:
        numbers = rng.standard_normal(param.size) * 3 if param.dtype.is_float else rng.integers(0, 100, param.size)
        arrays.append(numbers.astype(numpy_dtype(param.dtype)))
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_golden_kernels_agree_with_the_emulator(name: str, driver: Driver) -> None:
    build_output, opts = CASES[name]
    reference = PythonDriver()
    found = [
        run(where, program, arrays_for(program))
        for where in (driver, reference)
        for program in [program_of(name, build_output(), opts, where.target)]
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-6)


SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 1e-40, -1e-40, 3.4e38, 0.49999997], np.float32)


def padded_zeros(x: Any) -> Any:
    """Zeros that no constant of the graph is: what a masked load gives."""
    if isinstance(x, Tensor):
        return x[:0].pad(((x.shape[0], 0),)) if x.shape[0] else x
    return np.zeros_like(x)


EXACT: dict[str, Callable[[Any], Any]] = {
    "add and take away": lambda x: (x + np.float32(12582912.0).item()) - np.float32(12582912.0).item(),
    "times zero": lambda x: x * 0.0,
    "plus zero": lambda x: x + 0.0,
    "from zero": lambda x: 0.0 - x,
    "padding over x": lambda x: padded_zeros(x) / x,
    "itself from itself": lambda x: x - x,
    "itself over itself": lambda x: x / x,
    "its double less itself": lambda x: (x + x) - x,
    "two factors": lambda x: (x * 3.0) * 0.25,
    "factored": lambda x: x * 1.5 + x * 2.5,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_computed_as_written(dtype: str, driver: Driver) -> None:
    with np.errstate(all="ignore"):
        given = SPECIAL.astype(dtype)
    if to_dtype(dtype) not in driver.target.native:
        pytest.skip(f"this adapter has no {dtype}")
    outputs = [call(Tensor(given, device="WEBGPU")) for call in EXACT.values()]
    Tensor.realize(*outputs)
    for (name, call), output in zip(EXACT.items(), outputs, strict=True):
        with np.errstate(all="ignore"):
            expected = call(given).astype(dtype)
        found = output.numpy()
        np.testing.assert_array_equal(found, expected, err_msg=name)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]), err_msg=name)


def test_signs_of_zeros_in_reductions(driver: Driver) -> None:
    """A sum begins with 0.0, so that it is never -0.0; a product with a zero keeps the sign of the other factors."""
    zeros = Tensor(np.full((3, 5), -0.0, np.float32), device="WEBGPU")
    assert not np.signbit(zeros.sum(1).numpy()).any()
    signs = Tensor(np.array([[1, -1], [-1, -1], [-1, 1]], np.float32), device="WEBGPU")
    padded = signs.cast("int32").pad(((0, 0), (0, 1))).cast("float32")
    np.testing.assert_array_equal(np.signbit(padded.prod(1).numpy()), [True, False, True])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16", "uint16"])
def test_neighbours_store_parts_of_a_word_at_once(dtype: str, driver: Driver) -> None:
    """One thread an element: four, or two, share each word. A lost store would leave the old value."""
    output = build.alu(Ops.XOR, *(leaf(slot, 4096, dtype=to_dtype(dtype)) for slot in range(2)))
    program = program_of("parts", output, (Opt(OptOps.LOCAL, 0, 64),), driver.target)
    assert "atomicXor" in driver.render(program)
    for seed in range(3):
        arrays = arrays_for(program, seed)
        np.testing.assert_array_equal(run(driver, program, arrays), arrays[1] ^ arrays[2])


@pytest.mark.parametrize(("offset", "length"), [(0, 5), (1, 1), (3, 6), (4, 8), (2, 4), (7, 9)])
def test_copies_of_bytes(offset: int, length: int, driver: Driver) -> None:
    before = bytes(range(100, 116))
    memory, other = driver.allocate(16), driver.allocate(16)
    driver.copy_in(memory, 0, memoryview(before))
    driver.copy_in(other, 0, memoryview(bytes(16)))
    driver.copy_in(memory, offset, memoryview(bytes(range(length))))
    expected = bytearray(before)
    expected[offset : offset + length] = range(length)
    into = bytearray(16)
    driver.copy_out(memory, 0, memoryview(into))
    assert into == expected
    part = bytearray(length)
    driver.copy_out(memory, offset, memoryview(part))
    assert part == bytes(range(length))
    driver.copy((other, offset), (memory, offset), length)
    driver.copy_out(other, 0, memoryview(into))
    assert into == bytes(offset) + bytes(range(length)) + bytes(16 - offset - length)


def test_a_grid_longer_than_a_dimension(driver: Driver) -> None:
    count = driver.target.max_grid[0] + 3
    output = build.alu(Ops.ADD, leaf(0, count, dtype=dtypes.int32), leaf(1, count, dtype=dtypes.int32))
    program = program_of("long", output, (), driver.target)
    arrays = arrays_for(program)
    np.testing.assert_array_equal(run(driver, program, arrays), arrays[1] + arrays[2])


def test_a_grid_that_32_bits_cannot_count_is_refused() -> None:
    kernel = UOp(Ops.RANGE, dtypes.int32, (const(dtypes.int32, 1 << 30),), Axis((0,), AxisType.GLOBAL))
    other = UOp(Ops.RANGE, dtypes.int32, (const(dtypes.int32, 1 << 3),), Axis((1,), AxisType.GLOBAL))
    with pytest.raises(UnsupportedError, match="more work-groups than 32 bits count"):
        render(Program("grid", (), (), (kernel, other), (), dataclasses.replace(GOLDEN, max_grid=(65535,) * 3)))


def test_more_buffers_than_the_adapter_binds(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "target", dataclasses.replace(driver.target, max_buffers=2))
    with pytest.raises(UnsupportedError, match=r"3 buffers.* binds 2"):
        driver.render(program_of("bytes", add_bytes(), (), driver.target))


def test_an_adapter_without_the_wide_types(driver: Driver) -> None:
    """As on hardware that has none of them: half precision is emulated, sines and 64-bit integers computed in words."""
    from tilewright.backends.webgpu.device import WebGpuDriver

    poor = WebGpuDriver(adapter.open_adapter(without=ALL_FEATURES))
    assert not {dtypes.float16, dtypes.int64, dtypes.uint64, dtypes.float64} & poor.target.native
    output = build.alu(Ops.MUL, leaf(0, 40, dtype=dtypes.float16), leaf(1, 40, dtype=dtypes.float16))
    program = program_of("halves", output, (), poor.target)
    rng = np.random.default_rng(3)
    halves = [rng.standard_normal(40).astype(np.float16) for _ in range(3)]
    np.testing.assert_array_equal(run(poor, program, halves), halves[1] * halves[2])
    numbers = [rng.uniform(-1e4, 1e4, 40).astype(np.float32) for _ in range(2)]
    sines = run(poor, program_of("sines", build.alu(Ops.SIN, leaf(0, 40)), (), poor.target), numbers)
    np.testing.assert_allclose(sines, np.sin(numbers[1].astype(np.float64)), rtol=0, atol=2e-7)
    wide = build.alu(Ops.MUL, leaf(0, 40, dtype=dtypes.int64), leaf(1, 40, dtype=dtypes.int64))
    longs = [rng.integers(-(2**62), 2**62, 40) for _ in range(3)]
    np.testing.assert_array_equal(run(poor, program_of("wide", wide, (), poor.target), longs), longs[1] * longs[2])


def test_positions_that_take_64_bits_on_the_way(driver: Driver) -> None:
    """An index from memory may be anything; what becomes of it must still find an element by 32 bits."""
    image = np.random.default_rng(5).standard_normal((2, 2, 5, 6)).astype(np.float32)
    values, places = Tensor(image, device="WEBGPU").max_pool2d((5, 5), 1, return_indices=True)
    expected, expected_places = Tensor(image, device="PYTHON").max_pool2d((5, 5), 1, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), expected.numpy())
    np.testing.assert_array_equal(places.numpy(), expected_places.numpy())


def test_widened_integers_are_compared_with_constants(driver: Driver) -> None:
    """The bounds of an index from memory are checked in 64 bits where it may be anything."""
    x, index = np.arange(16, dtype=np.float32).reshape(4, 4), np.array([[0, 1, -3], [2, 1, 3]], np.int64)
    source = np.arange(9, dtype=np.float32).reshape(3, 3) + 100
    found, expected = (
        Tensor(x, device=device).scatter(0, Tensor(index, device=device), Tensor(source, device=device)).numpy()
        for device in ("WEBGPU", "PYTHON")
    )
    np.testing.assert_array_equal(found, expected)


def test_two_queues_and_a_replay(driver: Driver) -> None:
    first, second = (Tensor(np.arange(8, dtype=np.float32) + n, device=f"WEBGPU:{n}").realize() for n in (0, 1))
    np.testing.assert_array_equal((first + second.to("WEBGPU")).numpy(), 2 * np.arange(8) + 1)

    @jit
    def step(x: Tensor) -> Tensor:
        return (x * 2 + 1).contiguous().sum().realize()

    for start in range(4):
        numbers = np.arange(6, dtype=np.float32) + start
        assert step(Tensor(numbers, device="WEBGPU").realize()).item() == (numbers * 2 + 1).sum()


def test_one_thread_at_a_time_where_there_is_one_context(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu ends the process where a thread waits a second for OpenGL's context, as another's compilation takes. Of a
    device that is told it has one, no two threads are inside of wgpu at once; reads and drops of memory are right."""
    from tilewright.backends.webgpu import context
    from tilewright.backends.webgpu.device import WebGpuDriver

    monkeypatch.setattr(context, "has_one_context", lambda device: True)
    single = WebGpuDriver(adapter.open_adapter())
    inside: list[int] = []
    together: list[int] = []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **kwargs: Any) -> Any:
            inside.append(1)
            time.sleep(0.001)  # another thread that may come in does
            together.append(len(inside))
            try:
                return call(*args, **kwargs)
            finally:
                inside.pop()

        return watch

    for owner, name in (
        (single.device, "create_buffer"),
        (single.device, "create_compute_pipeline"),
        (single.device.queue, "submit"),
        (single.device.queue, "write_buffer"),
    ):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    program = program_of("parts", build.alu(Ops.ADD, leaf(0, 64), leaf(1, 64)), (), single.target)

    def work(seed: int) -> list[bool]:
        arrays = arrays_for(program, seed)
        return [np.array_equal(run(single, program, arrays), arrays[1] + arrays[2]) for _ in range(3)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(8))) == [[True] * 3] * 8
    assert set(together) == {1}
    assert single.context.dropped
    single.synchronize()
    assert not single.context.dropped
