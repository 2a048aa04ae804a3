"""The C text: golden texts of OpenCL and of the CPU's C; spelling of constants and launches; and every scalar op over
every dtype, at the values where C is most likely to differ, against the emulator to the bit.

A kernel costs half a second on PoCL, so all ops of a dtype are one kernel: their bits are folded into one number."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.devices import Setting, settings, spare_compilers
from tests.golden.texts import EVERYWHERE, WITH_GROUPS, WITH_THREADS, check_golden, leaf, program_of
from tilewright import Tensor
from tilewright.backends.cpu.rendering.c_language import render_c
from tilewright.backends.opencl.language import OpenCLLanguage
from tilewright.base.config import Context
from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import UnsupportedError
from tilewright.base.target import Target
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.c_style.launch import plan_launch
from tilewright.codegen.c_style.memory import MAX_ALIGNMENT, alignment
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import size_of

_OPS = frozenset({"MAX", "MIN", "SQRT", "TRUNC", "SATURATING_CAST"})
GRID = Target("GRID", has_local=True, max_local_bytes=1 << 15, max_group_size=256, native_ops=_OPS)
THREADS = Target("THREADS", has_threads=True, cores=4, native_ops=_OPS - {"SATURATING_CAST"})

# ---------------------------------------------------------------- golden texts


@pytest.mark.parametrize("name", EVERYWHERE | WITH_GROUPS)
def test_opencl_text(name: str, request: pytest.FixtureRequest) -> None:
    build_output, opts = (EVERYWHERE | WITH_GROUPS)[name]
    program = program_of(name, build_output(), opts, GRID)
    check_golden(f"{name}.cl", CStyleRenderer(program, OpenCLLanguage(program)).render(), request)


@pytest.mark.parametrize("name", EVERYWHERE | WITH_THREADS)
def test_cpu_c_text(name: str, request: pytest.FixtureRequest) -> None:
    build_output, opts = (EVERYWHERE | WITH_THREADS)[name]
    check_golden(f"{name}.c", render_c(program_of(name, build_output(), opts, THREADS)), request)


# ---------------------------------------------------------------- spelling


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.float32, 0.1, "0.1f"),
        (dtypes.float32, -0.0, "-0.0f"),
        (dtypes.float32, 16777216.0, "16777216.0f"),
        (dtypes.float32, 1e-45, "0x1.0000000000000p-149f"),
        (dtypes.float32, -math.inf, "-__builtin_inff()"),
        (dtypes.float64, 0.1, "0.1"),
        (dtypes.float64, 1e300, "1e+300"),
        (dtypes.int32, -(2**31), "(-2147483647 - 1)"),
        (dtypes.int64, -(2**63), "(-9223372036854775807ll - 1)"),
        (dtypes.uint64, 2**64 - 1, "18446744073709551615ull"),
        (dtypes.int8, -128, "-128"),
        (dtypes.bool, True, "true"),
    ],
)
def test_constants(dtype: DType, value: float, text: str) -> None:
    assert Language().literal(dtype, const(dtype, value).arg).text == text


@pytest.mark.parametrize("bits", [0x3DCCCCCD, 0x00800000, 0x7F7FFFFF, 0x3F800001, 0x4B7FFFFF, 0x33D6BF95])
def test_a_float_constant_reads_back_as_itself(bits: int) -> None:
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    text = Language().literal(dtypes.float32, value).text
    assert struct.pack("<f", float(text.rstrip("f"))) == struct.pack("<I", bits)


def test_parentheses_follow_the_grammar() -> None:
    a, b, c = (Expression(name) for name in "abc")
    language, dtype = Language(), dtypes.float32
    total = language.binary(Ops.ADD, dtype, a, b)
    assert language.binary(Ops.MUL, dtype, total, c).text == "(a + b) * c"
    assert language.binary(Ops.SUB, dtype, c, total).text == "c - (a + b)"
    assert language.binary(Ops.SUB, dtype, total, c).text == "a + b - c"
    assert language.unary(Ops.NEG, dtype, language.unary(Ops.NEG, dtype, a)).text == "-(-a)"
    shifted = language.binary(Ops.SHL, dtypes.uint32, language.binary(Ops.ADD, dtypes.uint32, a, b), c)
    assert shifted.text == "(a + b) << c"


def test_signed_arithmetic_wraps_where_it_may() -> None:
    language, a, b = Language(), Expression("a"), Expression("b")
    assert language.binary(Ops.ADD, dtypes.int32, a, b).text == "(int)((unsigned int)a + b)"
    assert language.binary(Ops.ADD, dtypes.int32, a, b, wraps=False).text == "a + b"
    assert language.binary(Ops.MUL, dtypes.uint16, a, b).text == "(unsigned short)((unsigned int)a * b)"
    # In int, which C promotes narrow operands to, NVRTC computes -(-32768) as 32768 whatever it is cast to.
    assert language.unary(Ops.NEG, dtypes.int16, a).text == "(short)((unsigned int)0 - a)"
    assert language.binary(Ops.MUL, dtypes.int8, a, b).text == "(signed char)((unsigned int)a * b)"
    assert language.binary(Ops.SHL, dtypes.int16, a, b, wraps=False).text == "(short)((unsigned int)a << b)"
    assert language.binary(Ops.ADD, dtypes.int16, a, b, wraps=False).text == "a + b"


def test_a_name_that_the_language_keeps_for_itself_is_changed() -> None:
    program = program_of("kernel", leaf(0, 4) + leaf(1, 4), (), GRID)
    assert OpenCLLanguage(program).kernel_name(program) == "kernel_kernel"


def test_a_dtype_that_the_device_lacks_is_refused() -> None:
    target = Target("SMALL", has_local=True, native=frozenset(dtypes.all) - {dtypes.float64}, native_ops=_OPS)
    with pytest.raises(UnsupportedError, match="SMALL does not compute with float64"):
        program_of("doubles", leaf(0, 4, dtype=dtypes.float64) + leaf(1, 4, dtype=dtypes.float64), (), target)


# ---------------------------------------------------------------- addresses and launches


def _range(size: int, number: int, kind: AxisType) -> UOp:
    return UOp(Ops.RANGE, dtypes.int32, (const(dtypes.int32, size),), Axis((number,), kind))


def test_alignment() -> None:
    i = _range(10, 0, AxisType.LOOP)
    assert alignment(i) == 1
    assert alignment(i * 12) == 4
    assert alignment(i * 8 + 4) == 4
    assert alignment(i * 8 + i * 2) == 2
    assert alignment(const(dtypes.int32, 0)) == alignment(None) == MAX_ALIGNMENT
    assert alignment(i & 48) == 16


def launched(sizes: tuple[int, ...], limits: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """What each work-group computes for the axes, by the places of the launch."""
    axes = tuple(_range(size, number, AxisType.GLOBAL) for number, size in enumerate(sizes))
    launch = plan_launch(Program("k", (), (), axes, (), Target("T", max_grid=limits)))
    assert all(size <= limit for size, limit in zip(launch.grid, limits, strict=True))
    width, height, _ = launch.grid
    found = []
    for number in range(math.prod(launch.grid)):
        at = (number % width, number // width % height, number // width // height)
        values = {}
        for place in launch.grid_places:
            value = (number if place.dimension is None else at[place.dimension]) // place.stride
            values[place.axis] = value if place.is_last else value % size_of(place.axis)
        if not (launch.has_surplus and number >= launch.count):
            found.append(tuple(values[axis] for axis in axes))
    return found


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ((), (9, 9, 9)),
        ((6,), (9, 9, 9)),
        ((2, 3, 4), (9, 9, 9)),
        ((2, 3, 4, 5), (9, 9, 9)),
        ((2, 3, 4, 5, 2), (99, 9, 9)),
        ((40, 3), (50, 9, 9)),
        ((40, 3), (9, 9, 9)),
        ((7, 13), (10, 4, 3)),
    ],
)
def test_every_element_of_a_grid_runs_once(sizes: tuple[int, ...], limits: tuple[int, int, int]) -> None:
    assert sorted(launched(sizes, limits)) == list(np.ndindex(*sizes))


# ---------------------------------------------------------------- values

COMPILED = [setting for setting in settings() if setting.label != "PYTHON"]
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": lambda x: -x,
    "to bool": lambda x: x.cast("bool"),
    "to int8": lambda x: x.cast("int8"),
    "to uint16": lambda x: x.cast("uint16"),
    "to int32": lambda x: x.cast("int32"),
    "to uint32": lambda x: x.cast("uint32"),
    "to int64": lambda x: x.cast("int64"),
    "to uint64": lambda x: x.cast("uint64"),
    "to float32": lambda x: x.cast("float32"),
    "to float64": lambda x: x.cast("float64"),
    "to float16": lambda x: x.cast("float16"),
    "to bfloat16": lambda x: x.cast("bfloat16"),
}
FLOAT_UNARY: dict[str, Callable[[Tensor], Tensor]] = {"sqrt": lambda x: x.sqrt(), "trunc": lambda x: x.trunc()}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": lambda x, y: x.maximum(y),
    "min": lambda x, y: x.minimum(y),
    "less": lambda x, y: x < y,
    "equal": lambda x, y: x == y,
    "unequal": lambda x, y: x != y,
    "where": lambda x, y: (x < y).where(x, y),
}
FLOAT_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"divide": lambda x, y: x / y}
INTEGER_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "floor divide": lambda x, y: x // y,
    "modulo": lambda x, y: x % y,
    "shift left": lambda x, y: x << 3,
    "shift right": lambda x, y: x >> 3,
}
DTYPES = [dtype.name for dtype in dtypes.all if dtype is not dtypes.bool]


def edge_values(dtype: DType) -> list[float]:
    if dtype.is_float:
        tiny = 2.0 ** (2 - (1 << (dtype.exponent_bits - 1)))
        ordinary = [0.0, -0.0, 1.0, -1.5, 2.75, -3.0, 100.0, -130.0, math.nan]
        return [*ordinary, dtype.max, dtype.min, tiny, -tiny / 2]
    return [
        0,
        1,
        2,
        3,
        7,
        100,
        int(dtype.max),
        int(dtype.max) - 1,
        int(dtype.min),
        int(dtype.min) + 1,
        int(dtype.max) // 3,
    ]


def operations(dtype: DType) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    unary = UNARY | (FLOAT_UNARY if dtype.is_float else {})
    found = {name: (lambda x, y, call=call: call(x)) for name, call in unary.items()}
    return found | BINARY | (FLOAT_BINARY if dtype.is_float else INTEGER_BINARY)


def bits(x: Tensor) -> Tensor:
    """The bits of each element, of every NaN the same ones."""
    if x.dtype.is_float:
        unsigned = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"}[x.dtype.bits]
        return (x != x).where(7, x.bitcast(unsigned).cast("uint64"))
    return x.cast("uint64")


def folded(name: str, device: str, wanted: Sequence[str]) -> list[int]:
    """The bits of the ops of a dtype over all pairs of edge values, folded into one number a pair."""
    dtype = to_dtype(name)
    values = edge_values(dtype)
    x = Tensor([[value] * len(values) for value in values], dtype=dtype, device=device).contiguous().realize()
    y = Tensor([values] * len(values), dtype=dtype, device=device).contiguous().realize()
    calls = operations(dtype)
    total = Tensor.zeros(x.shape, dtype="uint64", device=device)
    for operation in wanted:
        total = total * 1000003 + bits(calls[operation](x, y))
    return list(total.flatten().tolist())


@functools.lru_cache(maxsize=2)  # the devices of one dtype come one after the other
def emulated(name: str, wanted: tuple[str, ...]) -> list[int]:
    return folded(name, "PYTHON", wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("setting", COMPILED, ids=lambda setting: setting.label)
@pytest.mark.parametrize("name", DTYPES)
def test_every_op_agrees_with_the_emulator(setting: Setting, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spare_compilers(monkeypatch)
    if reason := setting.lacking([name]):
        pytest.skip(reason)
    lacking = f"to {dtypes.float64.name}" if setting.lacking([dtypes.float64]) else ""
    wanted = tuple(op for op in operations(to_dtype(name)) if op != lacking)
    # Without tiles: what is compared is one element, and C compilers take seconds for sixteen.
    with setting.options(), Context(NOOPT=1):
        if folded(name, setting.device, wanted) == emulated(name, wanted):
            return
        wrong = [op for op in wanted if folded(name, setting.device, [op]) != folded(name, "PYTHON", [op])]
    pytest.fail(f"{name} on {setting.label}: {wrong or 'only together'}")


@pytest.mark.parametrize("setting", COMPILED, ids=lambda setting: setting.label)
@pytest.mark.parametrize("name", ["int8", "int16"])
def test_narrow_integers_wrap_before_they_are_widened(setting: Setting, name: str) -> None:
    if reason := setting.lacking([name]):
        pytest.skip(reason)
    dtype = to_dtype(name)
    least, greatest, modulus = int(dtype.min), int(dtype.max), 1 << dtype.bits
    values = [least, least + 1, -1, 0, 1, greatest]
    wanted = {
        "negated": [-value for value in values],
        "times -1": [value * -1 for value in values],
        "minus 1": [value - 1 for value in values],
        "doubled": [value + value for value in values],
        "squared": [value * value for value in values],
        "shifted": [value << 1 for value in values],
    }
    with setting.options(), Context(NOOPT=1):
        x = Tensor(values, dtype=dtype, device=setting.device).realize()
        got = {
            "negated": -x,
            "times -1": x * -1,
            "minus 1": x - 1,
            "doubled": x + x,
            "squared": x * x,
            "shifted": x << 1,
        }
        for operation, result in got.items():
            wrapped = [(value - least) % modulus + least for value in wanted[operation]]
            assert result.cast("int32").tolist() == wrapped, operation
            assert (result.cast("int32") + 1).tolist() == [value + 1 for value in wrapped], operation


@pytest.mark.parametrize("setting", COMPILED, ids=lambda setting: setting.label)
def test_temporary_memory_at_an_offset(setting: Setting) -> None:
    """Two temporaries of one schedule lie in one block of memory, the second at an offset."""
    numbers = np.arange(60, dtype=np.float32).reshape(6, 10)
    with setting.options():
        x = Tensor(numbers, device=setting.device)
        left, right = (x + 1).contiguous().sum(0).contiguous(), (x * 2).contiguous().sum(0).contiguous()
        found = (left * right).numpy()
    np.testing.assert_allclose(found, (numbers + 1).sum(0) * (numbers * 2).sum(0))
