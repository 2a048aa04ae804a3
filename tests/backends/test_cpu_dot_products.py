"""Dot-product instructions: which of them a target has, which one a product takes, and that the text which uses them
means what the program means. A target that is not this machine's is run on the emulator, assembled for its processor,
and run here with the meaning of its instruction written in its place."""

from __future__ import annotations

import ctypes
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.backends.test_cpu_processors import assembly_for
from tests.fuzz.opts import Pair, check_on_device, draw_opts
from tests.kernel.kernels import axis, expected, kernel, load, param, store, summed
from tilewright import Tensor
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target, processor_facts
from tilewright.backends.cpu.host.processors import Processor
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.backends.python.emulator import run_program
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.kernels.dot_products import find_dots
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, OptOps, Program
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise
from tilewright.kernel.templates import packed_products, products

INT8, UINT8, INT16, UINT16, INT32 = dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32
X86, ARM = "x86_64", "aarch64"
# Name: instruction set, flags as the kernel of the system spells them, processor as LLVM does, further features.
PROCESSORS = {
    "AVX-512 VNNI": (X86, "avx2 avx512f avx512bw avx512vl avx512_vnni", "cascadelake", ""),
    "AVX-512": (X86, "avx2 avx512f avx512bw avx512vl", "skylake-avx512", ""),
    "AVX-VNNI": (X86, "avx2 avx_vnni", "alderlake", ""),
    "AVX2": (X86, "avx2", "haswell", ""),
    "NEON": (ARM, "asimd", "generic", ""),
    "NEON dotprod": (ARM, "asimd asimddp", "neoverse-n1", ""),
    "NEON i8mm": (ARM, "asimd asimddp i8mm", "generic", "+dotprod,+i8mm"),
}


@pytest.fixture(scope="session")
def targets() -> dict[str, Target]:
    found = {}
    for name, (machine, flags, *_) in PROCESSORS.items():
        facts = processor_facts(Processor(machine, frozenset(flags.split())))
        # Code for other processors runs here, but its flags for denormal numbers are not of this one.
        small = {"cores": 2, "core_cache_bytes": 1 << 13, "max_local_bytes": 1 << 20, "flush_denormals": 0}
        found[name] = replace(cpu_target(), **facts, **small)
    return found


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(packed_products, "MIN_SHARED", 1)
    forget_kernels()


# ---------------------------------------------------------------- which instruction


@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("AVX-512 VNNI", ["vpdpbusd", "pmaddwd"]),
        ("AVX-512", ["pmaddubsw", "pmaddwd", "bytes as words"]),
        ("AVX-VNNI", ["vpdpbusd", "pmaddwd"]),
        ("AVX2", ["pmaddubsw", "pmaddwd", "bytes as words"]),
        ("NEON", []),
        ("NEON dotprod", ["sdot", "udot"]),
        ("NEON i8mm", ["sdot", "udot", "usdot"]),
    ],
)
def test_what_a_processor_has(targets: dict[str, Target], name: str, instructions: list[str]) -> None:
    assert [each.name for each in targets[name].dot_products] == instructions


def test_a_processor_whose_words_are_no_512_bits_has_none() -> None:
    flags = frozenset({"avx2", "avx512f", "avx512er"})
    assert Processor(X86, flags).dot_products() == ()
    assert Processor("riscv64", flags).dot_products() == ()


@pytest.mark.parametrize(
    ("name", "left", "right", "found"),
    [
        ("AVX-512 VNNI", UINT8, INT8, ("vpdpbusd", (0, 1), None)),
        ("AVX-512 VNNI", INT8, UINT8, ("vpdpbusd", (1, 0), None)),
        ("AVX-512 VNNI", INT8, INT8, ("vpdpbusd", (0, 1), 0)),
        ("AVX-512 VNNI", UINT8, UINT8, ("vpdpbusd", (0, 1), 1)),
        ("AVX-512 VNNI", INT16, INT8, ("pmaddwd", (0, 1), None)),
        ("AVX-512 VNNI", INT16, UINT16, ("pmaddwd", (0, 1), 1)),
        ("AVX-512 VNNI", UINT16, UINT16, None),
        ("AVX2", INT8, UINT8, ("pmaddwd", (0, 1), None)),
        ("NEON dotprod", INT8, INT8, ("sdot", (0, 1), None)),
        ("NEON dotprod", UINT8, UINT8, ("udot", (0, 1), None)),
        ("NEON dotprod", UINT8, INT8, ("sdot", (0, 1), 0)),
        ("NEON i8mm", INT8, UINT8, ("usdot", (1, 0), None)),
        ("NEON dotprod", INT16, INT16, None),
        ("NEON", INT8, INT8, None),
    ],
)
def test_which_instruction_a_product_takes(
    targets: dict[str, Target], name: str, left: DType, right: DType, found: tuple[object, ...] | None
) -> None:
    dots = find_dots(left, right, INT32, targets[name])
    assert (None if not dots else (dots[0].instruction.name, *dots[0][1:])) == found
    assert find_dots(left, right, dtypes.int64, targets[name]) == []
    assert find_dots(left, right, dtypes.float32, targets[name]) == []


@pytest.mark.parametrize(
    ("left", "right", "greatest", "found"),
    [
        (UINT8, INT8, (127, 127), ("pmaddubsw", (0, 1), None)),
        (INT8, UINT8, (127, 15), ("pmaddubsw", (1, 0), None)),
        (UINT8, INT8, (128, 127), ("bytes as words", (0, 1), None)),
        (INT8, INT8, (127, 127), ("bytes as words", (0, 1), 0)),
        (UINT8, UINT8, (127, 255), ("pmaddubsw", (0, 1), 1)),
    ],
)
def test_sums_of_two_products_that_would_saturate_are_taken_in_words(
    targets: dict[str, Target], left: DType, right: DType, greatest: tuple[int, int], found: tuple[object, ...]
) -> None:
    dots = find_dots(left, right, INT32, targets["AVX2"], greatest, terms=4)
    assert (dots[0].instruction.name, *dots[0][1:]) == found


# ---------------------------------------------------------------- what the text means


def matrices(
    left: DType, right: DType, sizes: tuple[int, int, int], steps: tuple[int, int, int, int], total: DType = INT32
) -> UOp:
    """`steps` are those of the left factor along rows and depth, and of the right one along depth and columns."""
    rows, depth, columns = sizes
    i, j, k = axis(rows, 0), axis(columns, 1), axis(depth, 2, AxisType.REDUCE)
    one = load(param(1, rows * depth, left), i * steps[0] + k * steps[1]).cast(total)
    other = load(param(2, depth * columns, right), k * steps[2] + j * steps[3]).cast(total)
    place = store(param(0, rows * columns, total), i * columns + j, summed(one * other, k))
    return UOp(Ops.SINK, dtypes.void, (place,), KernelInfo("product"))


def scaled() -> UOp:
    """What follows the sum happens to it in float32: a scale, a bias and a rectifier."""
    i, j, k = axis(20, 0), axis(48, 1), axis(16, 2, AxisType.REDUCE)
    one, other = load(param(1, 320, INT8), i * 16 + k), load(param(2, 768, INT8), k * 48 + j)
    total = summed(one.cast(INT32) * other.cast(INT32), k).cast(dtypes.float32)
    value = (total * const(dtypes.float32, 0.125) + load(param(3, 48), j)).maximum(const(dtypes.float32, 0.0))
    return UOp(Ops.SINK, dtypes.void, (store(param(0, 960), i * 48 + j, value),), KernelInfo("scaled"))


def batched() -> UOp:
    b, i, j, k = axis(3, 0), axis(16, 1), axis(32, 2), axis(9, 3, AxisType.REDUCE)
    left = load(param(1, 432, UINT8), b * 144 + i * 9 + k).cast(INT32)
    right = load(param(2, 864, INT8), b * 288 + k * 32 + j).cast(INT32)
    place = store(param(0, 1536, INT32), b * 512 + i * 32 + j, summed(left * right, k))
    return UOp(Ops.SINK, dtypes.void, (place,), KernelInfo("batched"))


PLAIN = (24, 12, 64)
PRODUCTS = {
    "int8": lambda: matrices(INT8, INT8, PLAIN, (12, 1, 64, 1)),
    "uint8": lambda: matrices(UINT8, UINT8, PLAIN, (12, 1, 64, 1)),
    "uint8 by int8": lambda: matrices(UINT8, INT8, PLAIN, (12, 1, 64, 1)),
    "int8 by uint8": lambda: matrices(INT8, UINT8, PLAIN, (12, 1, 64, 1)),
    "int16 by int8": lambda: matrices(INT16, INT8, PLAIN, (12, 1, 64, 1)),
    "into uint32": lambda: matrices(INT8, INT8, PLAIN, (12, 1, 64, 1), dtypes.uint32),
    "odd sizes": lambda: matrices(INT8, INT8, (37, 27, 53), (27, 1, 53, 1)),
    "a sum shorter than a group": lambda: matrices(INT8, UINT8, (16, 3, 32), (3, 1, 32, 1)),
    "left transposed": lambda: matrices(INT8, INT8, (48, 12, 64), (1, 48, 64, 1)),
    "right transposed": lambda: matrices(INT8, INT8, (24, 20, 64), (20, 1, 1, 20)),
    "one tile of rows": lambda: matrices(INT8, INT8, (8, 32, 64), (32, 1, 64, 1)),
    "a vector": lambda: matrices(INT8, INT8, (16, 512, 1), (512, 1, 1, 1)),
    "with what follows": scaled,
    "batched": batched,
}


def extremes(ast: UOp) -> dict[int, np.ndarray]:
    """Numbers from the ends of their ranges, where products are largest and an offset matters."""
    numbers, found = np.random.default_rng(3), {}
    for node in sorted((n for n in toposort(ast) if n.op is Ops.PARAM), key=lambda n: n.arg.slot):
        dtype = numpy_dtype(node.dtype)
        if node.dtype.is_float:
            found[node.arg.slot] = numbers.integers(-9, 9, node.arg.size).astype(dtype)
        else:
            ends = [node.dtype.min, node.dtype.min + 1, node.dtype.max, 0, 1, node.dtype.max - 1]
            found[node.arg.slot] = numbers.choice(np.array(ends, dtype), node.arg.size)
    return found


def emulated(program: Program, data: dict[int, np.ndarray]) -> np.ndarray:
    buffers = {slot: values.copy() for slot, values in data.items()}
    run_program(program, [buffers[p.slot] for p in program.params], [p.is_read for p in program.params])
    return buffers[0]


def run_text(text: str, program: Program, data: dict[int, np.ndarray]) -> np.ndarray:
    """What the machine code of a text leaves in the first buffer, on this machine."""
    buffers = {slot: values.copy() for slot, values in data.items()}
    threads = [int(a.src[0].arg) for a in program.global_ranges if a.arg.kind is AxisType.THREAD]
    pointers = (ctypes.c_void_p * len(buffers))(*(buffers[slot].ctypes.data for slot in sorted(buffers)))
    with_code = llvm.load_object(llvm.compile_ir(text), KERNEL_SYMBOL)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(with_code.address)
    entry(ctypes.addressof(pointers), 0, threads[0] if threads else 1)
    return buffers[0]


def with_meanings(text: str) -> str:
    """The text with each dot-product instruction as a function: what this machine lacks, it can compute."""
    pattern = r"declare <(\d+) x i32> @(llvm\.(?:x86|aarch64)\.[\w.]*?(pmadd|dpbusd|[su]+dot)[\w.]*)\(.*\)"
    for lanes, name, kind in re.findall(pattern, text):
        own, count = name.replace("llvm.", "meaning."), int(lanes)
        is_pairs = kind == "pmadd"
        terms, bits = (2, 16) if is_pairs else (4, 8)
        signs = {"pmadd": "ss", "dpbusd": "zs", "sdot": "ss", "udot": "zz", "usdot": "zs"}[kind]
        narrow, wide = f"<{count * terms} x i{bits}>", f"<{count * terms} x i32>"
        lines = [f"  %{x} = {sign}ext {narrow} %{x}n to {wide}" for x, sign in zip("ab", signs, strict=True)]
        lines += [f"  %p = mul {wide} %a, %b"]
        last = "zeroinitializer" if is_pairs else "%c"
        for term in range(terms):
            order = ", ".join(f"i32 {lane * terms + term}" for lane in range(count))
            lines += [f"  %t{term} = shufflevector {wide} %p, {wide} poison, <{count} x i32> <{order}>"]
            lines += [f"  %s{term} = add <{count} x i32> {last}, %t{term}"]
            last = f"%s{term}"
        arguments = f"{narrow} %an, {narrow} %bn" if is_pairs else f"<{count} x i32> %c, {narrow} %an, {narrow} %bn"
        body = "\n".join([*lines, f"  ret <{count} x i32> {last}"])
        definition = f"define internal <{count} x i32> @{own}({arguments}) {{\n{body}\n}}"
        text = re.sub(rf"declare .*@{re.escape(name)}\(.*\)", definition, text).replace(f"@{name}(", f"@{own}(")
    for lanes, name in re.findall(r"declare <(\d+) x i16> @(llvm\.x86\.[\w.]*pmadd[\w.]*)\(.*\)", text):
        text = re.sub(rf"declare .*@{re.escape(name)}\(.*\)", _saturating(int(lanes)), text)
        text = text.replace(f"@{name}(", f"@meaning.saturating{lanes}(")
    insertion = "llvm.aarch64.neon.vsri.v16i8"
    text = re.sub(rf"declare .*@{re.escape(insertion)}\(.*\)", _INSERTION, text)
    return text.replace(f"@{insertion}(", "@meaning.insertion(")


def _saturating(lanes: int) -> str:
    """Sums of two products of unsigned by signed bytes, saturated at 16 bits."""
    narrow, wide, words = f"<{2 * lanes} x i8>", f"<{2 * lanes} x i32>", f"<{lanes} x i32>"
    halves = [", ".join(f"i32 {2 * lane + term}" for lane in range(lanes)) for term in range(2)]
    lines = [f"  %a = zext {narrow} %an to {wide}", f"  %b = sext {narrow} %bn to {wide}", f"  %p = mul {wide} %a, %b"]
    for term, order in enumerate(halves):
        lines += [f"  %t{term} = shufflevector {wide} %p, {wide} poison, <{lanes} x i32> <{order}>"]
    lines += [f"  %s = add {words} %t0, %t1"]
    for number, (name, limit) in enumerate((("sgt", 32767), ("slt", -32768))):
        lines += [f"  %c{number} = icmp {name} {words} %{'s' if number == 0 else 'm0'}, splat (i32 {limit})"]
        value = "%s" if number == 0 else "%m0"
        lines += [f"  %m{number} = select <{lanes} x i1> %c{number}, {words} splat (i32 {limit}), {words} {value}"]
    lines += [f"  %r = trunc {words} %m1 to <{lanes} x i16>", f"  ret <{lanes} x i16> %r"]
    start = f"define internal <{lanes} x i16> @meaning.saturating{lanes}({narrow} %an, {narrow} %bn) {{"
    return "\n".join([start, *lines, "}"])


# The high bits of the first vector, and the second one shifted by the number.
_INSERTION = """define internal <16 x i8> @meaning.insertion(<16 x i8> %high, <16 x i8> %low, i32 %number) {
  %amount = trunc i32 %number to i8
  %first = insertelement <16 x i8> poison, i8 %amount, i64 0
  %amounts = shufflevector <16 x i8> %first, <16 x i8> poison, <16 x i32> zeroinitializer
  %below = lshr <16 x i8> splat (i8 -1), %amounts
  %above = xor <16 x i8> %below, splat (i8 -1)
  %kept = and <16 x i8> %high, %above
  %shifted = lshr <16 x i8> %low, %amounts
  %both = or <16 x i8> %kept, %shifted
  ret <16 x i8> %both
}"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_for_every_processor(targets: dict[str, Target], product: str, name: str) -> None:
    ast, target = PRODUCTS[product](), targets[name]
    data = extremes(ast)
    program = lower(optimise(ast, target), target)
    want = expected(ast, {node: data[node.arg.slot] for node in toposort(ast) if node.op is Ops.PARAM})[0]
    np.testing.assert_array_equal(emulated(program, data), want)
    text = render(program, KERNEL_SYMBOL)
    if product not in ("int16 by int8",) or PROCESSORS[name][0] == X86:
        assert bool(target.dot_products) == ("meaning." in with_meanings(text)), "the text has no dot product"
    np.testing.assert_array_equal(run_text(with_meanings(text), program, data), want)


ASSEMBLY = {
    ("AVX-512 VNNI", "int8"): r"vpdpbusd\s+.*zmm",
    ("AVX-512 VNNI", "int16 by int8"): r"vpdpwssd\s+.*zmm",
    ("AVX-512", "int8"): r"vpmaddwd\s+.*zmm",
    ("AVX-VNNI", "uint8"): r"vpdpbusd\s+.*ymm",
    ("AVX-VNNI", "int16 by int8"): r"vpdpwssd\s+.*ymm",
    ("AVX2", "int8"): r"vpmaddwd\s+.*ymm",
    ("NEON dotprod", "int8"): r"\tsdot\tv\d+\.4s",
    ("NEON dotprod", "uint8"): r"\tudot\tv\d+\.4s",
    ("NEON dotprod", "uint8 by int8"): r"\tsdot\tv\d+\.4s",
    ("NEON i8mm", "uint8 by int8"): r"\tusdot\tv\d+\.4s",
}


@pytest.mark.parametrize(("name", "product"), ASSEMBLY)
def test_the_instruction_of_each_processor(targets: dict[str, Target], name: str, product: str) -> None:
    machine, _, processor, features = PROCESSORS[name]
    program = lower(optimise(PRODUCTS[product](), targets[name]), targets[name])
    assembly = assembly_for(machine, processor, render(program, KERNEL_SYMBOL), features)
    assert re.search(ASSEMBLY[name, product], assembly), assembly


# ---------------------------------------------------------------- tensors on this machine


@pytest.mark.parametrize("left", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_tensors(left: type, right: type) -> None:
    numbers = np.random.default_rng(5)
    for rows, depth, columns in ((33, 130, 65), (1, 64, 64), (9, 2, 40), (64, 256, 96)):
        a, b = (
            numbers.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
            for dtype, shape in ((left, (2, rows, depth)), (right, (depth, columns)))
        )
        want = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
        got = Tensor(a).matmul(Tensor(b), dtype=INT32).numpy()
        np.testing.assert_array_equal(got, want)
        strided = Tensor(np.repeat(b, 2, 1))[:, ::2]
        np.testing.assert_array_equal(Tensor(a).matmul(strided, dtype=INT32).numpy(), want)
        vector = Tensor(a).matmul(Tensor(np.ascontiguousarray(b[:, 0])), dtype=INT32)
        np.testing.assert_array_equal(vector.numpy(), want[..., 0])


def test_a_sum_beyond_int32_wraps() -> None:
    """2**17 products of 2**14 are 2**31."""
    a = Tensor.full((16, 1 << 17), -128, dtype=INT8).contiguous().realize()
    got = a.matmul(Tensor.full((1 << 17, 16), -128, dtype=INT8).contiguous().realize(), dtype=INT32).numpy()
    assert got.tolist() == [[-(1 << 31)] * 16] * 16
    assert a.matmul(a[0], dtype=INT32).tolist() == [-(1 << 31)] * 16


def test_a_factor_may_be_used_twice_and_elsewhere() -> None:
    """A square, and a factor whose own sum is wanted too, as for a zero point."""
    numbers = np.random.default_rng(6).integers(-128, 128, (32, 64)).astype(np.int8)
    x = Tensor(numbers).realize()
    wide = numbers.astype(np.int32)
    squares = (x.cast(INT32) * x.cast(INT32)).sum(1)
    np.testing.assert_array_equal(squares.numpy(), (wide * wide).sum(1))
    both = x.matmul(x.T, dtype=INT32) + x.cast(INT32).sum(1, keepdim=True) * 3
    np.testing.assert_array_equal(both.numpy(), wide @ wide.T + wide.sum(1, keepdims=True) * 3)


def test_opts_drawn_at_random_change_nothing() -> None:
    """Tiles, unrolled sums, padding and panels in any order: those that a dot product fits, and those it does not."""
    ast = kernel("narrow_product")
    target = replace(cpu_target(), max_local_bytes=1 << 20)
    seen = 0
    for seed in range(60):
        opts = draw_opts(ast, random.Random(seed), target)
        pair = Pair(seed, "narrow_product", ast, opts, target)
        assert check_on_device(pair, "CPU") is None, pair
        seen += any(opt.op is OptOps.UNROLL for opt in opts)
    assert seen > 10
