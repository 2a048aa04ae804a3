"""64-bit integers as pairs of words, against the interpreter's own: every op and conversion at the edges of words and
at random, whole programs on the emulator, and what is left of 64 bits for a renderer to write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.texts import leaf, program_of
from tilewright.backends.python.driver import PythonDriver
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.target import ALL_DTYPES, SMALL_FLOATS, WIDE_INTEGERS, Target
from tilewright.codegen.emulation.decompose import decompose
from tilewright.codegen.emulation.wide_integers import RESIDUE, combine_words, split_wide_integers
from tilewright.codegen.tiles import tile_part
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import cast_array, numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import Opt, OptOps, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import toposort

LACKING = ALL_DTYPES - WIDE_INTEGERS - {dtypes.float64}
TARGET = Target("words", native=LACKING, native_ops=frozenset({"MAX", "MIN"}))
EMULATOR = PythonDriver()
# The emulator without its 64-bit integers: it has all else, so that what differs is this lowering.
WORDS = dataclasses.replace(EMULATOR.target, native=LACKING, is_reference=False)
WIDE = (dtypes.int64, dtypes.uint64)

_ROUND = [0, 1, 2, 3, 7, 10, 255, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1]
_ROUND += [2**32 - 1, 2**32, 2**32 + 1, 2**33 + 5, 2**40, 2**48 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_ROUND += [0x00000001_00000000, 0xFFFFFFFF_00000001, 0x7FFFFFFF_FFFFFFFF, 0x80000000_80000000, 0x12345678_9ABCDEF0]


def edges(dtype: DType) -> np.ndarray:
    """Numbers around the ends of words and of the dtype, of both signs."""
    values = np.array([*_ROUND, *((2**64 - n) % 2**64 for n in _ROUND)], np.uint64)
    return np.unique(values).view(numpy_dtype(dtype))


def pairs(dtype: DType, count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of those, and random ones of every length in bits."""
    rng = np.random.default_rng(4)
    left, right = (side.ravel() for side in np.meshgrid(edges(dtype), edges(dtype)))
    drawn = [rng.integers(0, 2**64, count, np.uint64) >> rng.integers(0, 64, count, np.uint64) for _ in range(2)]
    left, right = (np.concatenate([a, b.view(a.dtype)]) for a, b in zip((left, right), drawn, strict=True))
    return left, right


def parameter(dtype: DType, size: int, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def check_residue(root: UOp) -> None:
    """Only moves, and the making and taking apart of pairs, are left of 64 bits."""
    for node in toposort(root):
        if not node.op.is_elementwise:
            continue
        used = {node.dtype, *(source.dtype for source in node.src)} & WIDE_INTEGERS
        if used:
            assert node.op in RESIDUE, f"{node.op.name} of {used} is left"
            if node.op in (Ops.SHL, Ops.SHR):
                assert node.dtype is dtypes.uint64
                assert node.src[1].arg == 32
            elif node.op is Ops.CAST:
                assert {node.dtype, node.src[0].dtype} <= {dtypes.int64, dtypes.uint64, dtypes.uint32}


def lowered(root: UOp) -> UOp:
    made = split_wide_integers(UOp(Ops.SINK, dtypes.void, (decompose(root, TARGET),)), TARGET).src[0]
    check_residue(made)
    return made


def assert_equal(root: UOp, *arrays: np.ndarray) -> None:
    """The lowered expression and the expression itself, PARAM k bound to array k."""
    bindings = {node: arrays[node.arg.slot] for node in toposort(root) if node.op is Ops.PARAM}
    with np.errstate(all="ignore"):
        expected = evaluate(root, bindings)
        found = evaluate(lowered(root), bindings)
    assert found.dtype == expected.dtype
    wrong = (found != expected) & ~((found != found) & (expected != expected))
    assert not wrong.any(), [(*(a[wrong][:3] for a in arrays), found[wrong][:3], expected[wrong][:3])]


BINARY = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR)
COMPARISONS = (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", BINARY + COMPARISONS, ids=lambda op: op.name)
def test_binary_ops(op: Op, dtype: DType) -> None:
    left, right = pairs(dtype)
    x, y = parameter(dtype, left.size), parameter(dtype, left.size, 1)
    assert_equal(x.alu(op, y), left, right)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", BINARY + COMPARISONS, ids=lambda op: op.name)
def test_binary_ops_with_constants(op: Op, dtype: DType) -> None:
    """A word that is known is left out of the arithmetic."""
    left, _ = pairs(dtype, 300)
    x = parameter(dtype, left.size)
    for value in [*edges(dtype).tolist()[::3], 0, 1, 10, 2**16, 2**32, 2**32 - 1]:
        assert_equal(x.alu(op, const(dtype, value)), left)
        if op in (Ops.SUB, Ops.IDIV, Ops.MOD, Ops.CMPLT):
            assert_equal(const(dtype, value).alu(op, x), left)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", [Ops.SHL, Ops.SHR], ids=lambda op: op.name)
def test_shifts(op: Op, dtype: DType) -> None:
    """By every amount, constant or not; one outside the width gives 0, or the sign."""
    values = pairs(dtype, 200)[0]
    x, y = parameter(dtype, values.size), parameter(dtype, values.size, 1)
    for amount in [*range(0, 66, 3), 31, 32, 63, 64]:
        assert_equal(x.alu(op, const(dtype, amount)), values)
        assert_equal(x.alu(op, y), values, np.full_like(values, amount))
    assert_equal(x.alu(op, y), values, np.full_like(values, dtype.max))


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
def test_negation_and_choice(dtype: DType) -> None:
    left, right = pairs(dtype)
    x, y = parameter(dtype, left.size), parameter(dtype, left.size, 1)
    assert_equal(UOp(Ops.NEG, dtype, (x,)), left)
    assert_equal((x < y).where(x, y * 3), left, right)
    assert_equal((x ^ -1) & y, left, right)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "other", [dtypes.bool, *dtypes.ints, dtypes.float32, dtypes.float16], ids=lambda dtype: dtype.name
)
def test_conversions(other: DType, dtype: DType) -> None:
    values = np.concatenate(pairs(dtype))
    # Half way between two neighbours in float32, one beside it, and the last number that rounds down.
    near = [sign * ((0x1000001 << k) + d) for k in range(39) for d in (-1, 0, 1) for sign in (1, -1)]
    values = np.concatenate([values, np.array([n % 2**64 for n in near], np.uint64).view(values.dtype)])
    assert_equal(parameter(dtype, values.size).cast(other), values)
    with np.errstate(all="ignore"):
        back = cast_array(values, other)
    assert_equal(parameter(other, back.size).cast(dtype), back)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
def test_floats_saturate_and_nan_gives_0(dtype: DType) -> None:
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.99, 1e-45, 1.5, -1.5, 2.0**24 + 2, 2.0**31, -(2.0**31)]
    special += [2.0**32, 2.0**32 - 256, 2.0**63, -(2.0**63), 2.0**63 - 2.0**39, 2.0**64, 2.0**64 - 2.0**40, -1e30, 3e38]
    patterns = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    values = np.concatenate([np.array(special, np.float32), patterns])
    assert_equal(parameter(dtypes.float32, values.size).cast(dtype), values)


def test_threefry() -> None:
    left, right = pairs(dtypes.uint64)
    assert_equal(
        parameter(dtypes.uint64, left.size).alu(Ops.THREEFRY, parameter(dtypes.uint64, left.size, 1)), left, right
    )


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2), st.sampled_from(WIDE), st.data())
def test_expressions(values: list[int], dtype: DType, data: Any) -> None:
    """Random expressions of a few ops over two numbers: small parts and whole ones together."""
    arrays = [np.array([value], np.uint64).view(numpy_dtype(dtype)) for value in values]
    terms = [parameter(dtype, 1, slot) for slot in range(2)]
    terms += [
        const(dtype, data.draw(st.sampled_from(_ROUND))),
        (terms[0] & 0xFFFF),
        terms[1].cast(dtypes.int32).cast(dtype),
    ]
    for _ in range(data.draw(st.integers(1, 5))):
        op = data.draw(st.sampled_from((*BINARY, Ops.SHL, Ops.SHR, Ops.CMPLT)))
        left, right = (data.draw(st.sampled_from(terms)) for _ in range(2))
        made = left.alu(op, right)
        terms.append(made.where(left, right) if op is Ops.CMPLT else made)
    assert_equal(terms[-1], *arrays)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN], ids=lambda op: op.name)
def test_what_accumulators_are_combined_with(op: Op, dtype: DType) -> None:
    left, right = pairs(dtype)
    x, y = parameter(dtype, left.size), parameter(dtype, left.size, 1)
    made = combine_words(op, x, y)
    check_residue(made)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(made, {x: left, y: right}), evaluate(x.alu(op, y), {x: left, y: right}))


# ---------------------------------------------------------------- what is not computed in words


def test_a_graph_of_words_comes_back_as_it_is() -> None:
    root = parameter(dtypes.int32, 4) * 3 + 1
    assert split_wide_integers(root, TARGET) is root
    wide = parameter(dtypes.int64, 4) * 3 + 1
    assert split_wide_integers(wide, Target("whole")) is wide


def test_values_that_fit_are_computed_in_one_word() -> None:
    """Bounds tell: index maths in 64 bits, and sums of what is small, cost no more than 32 bits."""
    loop = UOp(Ops.RANGE, dtypes.int64, (const(dtypes.int64, 1000),), Axis((0,), AxisType.REDUCE))
    position = (loop * 8 + 3) // 5 % 70
    made = split_wide_integers(UOp(Ops.SINK, dtypes.void, (position.cast(dtypes.float32),)), TARGET)
    assert {node.dtype for node in toposort(made)} == {dtypes.int32, dtypes.float32, dtypes.void}
    total = UOp(Ops.REDUCE, dtypes.int64, ((loop < 5).cast(dtypes.int64), loop), Ops.ADD)
    made = split_wide_integers(UOp(Ops.SINK, dtypes.void, (total.cast(dtypes.float32),)), TARGET)
    assert not {node.dtype for node in toposort(made)} & WIDE_INTEGERS
    total = UOp(Ops.REDUCE, dtypes.int64, (loop * 3_000_000, loop), Ops.ADD)
    made = split_wide_integers(UOp(Ops.SINK, dtypes.void, (total.cast(dtypes.float32),)), TARGET)
    assert any(node.op is Ops.REDUCE and node.dtype is dtypes.int64 for node in toposort(made))


def test_a_loop_that_32_bits_cannot_count_is_two() -> None:
    loop = UOp(Ops.RANGE, dtypes.int64, (const(dtypes.int64, 3 << 32),), Axis((0,), AxisType.REDUCE))
    total = UOp(Ops.REDUCE, dtypes.int64, (loop & 1, loop), Ops.ADD)
    made = split_wide_integers(UOp(Ops.SINK, dtypes.void, (total.cast(dtypes.float32),)), TARGET)
    loops = [node for node in toposort(made) if node.op is Ops.RANGE]
    assert math.prod(int(found.src[0].arg) for found in loops) == 3 << 32
    assert [found.dtype for found in loops] == [dtypes.int32] * 2
    prime = loop.replace(src=(const(dtypes.int64, (1 << 61) - 1),))
    with pytest.raises(UnsupportedError, match="iterations"):
        split_wide_integers(UOp(Ops.SINK, dtypes.void, (prime.cast(dtypes.float32),)), TARGET)


def test_memory_that_32_bits_cannot_address_is_refused() -> None:
    memory = UOp(Ops.PARAM, dtypes.uint8, (), ParamArg(0, (1 << 31) + 1))
    place = UOp(Ops.INDEX, dtypes.uint8, (memory, parameter(dtypes.int64, 1, 1)))
    with pytest.raises(UnsupportedError, match="2147483649 elements"):
        split_wide_integers(UOp(Ops.SINK, dtypes.void, (UOp(Ops.LOAD, dtypes.uint8, (place,)),)), TARGET)


def test_float64_is_refused_by_name() -> None:
    doubles = build.alu(Ops.ADD, leaf(0, 4, dtype=dtypes.float64), leaf(1, 4, dtype=dtypes.float64))
    with pytest.raises(UnsupportedError, match="words does not compute with float64"):
        program_of("doubles", doubles, (), TARGET)


def test_a_target_computes_with_what_is_emulated() -> None:
    bare = Target("bare", native=frozenset({dtypes.bool, dtypes.int32, dtypes.uint32, dtypes.float32}))
    assert all(bare.computes(dtype) for dtype in (*SMALL_FLOATS, *WIDE_INTEGERS))
    assert not bare.computes(dtypes.float64)


# ---------------------------------------------------------------- programs


def row_sums(op: Op, dtype: DType) -> Callable[[], UOp]:
    return lambda: build.reduce_axis(op, leaf(0, 6, 64, dtype=dtype), (1,))


def gathered() -> UOp:
    """A position from memory, which may be anything."""
    rows = build.expand(build.reshape(leaf(1, 16, dtype=dtypes.int64), (16, 1)), (16, 8))
    columns = build.expand(build.reshape(UOp(Ops.IOTA, dtypes.int64, (), (8,)), (1, 8)), (16, 8))
    return build.gather(leaf(0, 10, 8), rows, columns)


def products() -> UOp:
    left = build.expand(build.reshape(leaf(0, 8, 24, dtype=dtypes.int64), (8, 24, 1)), (8, 24, 16))
    right = build.expand(build.reshape(leaf(1, 24, 16, dtype=dtypes.int64), (1, 24, 16)), (8, 24, 16))
    return build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, left, right), (1,))


PROGRAMS: dict[str, tuple[Callable[[], UOp], tuple[Opt, ...]]] = {
    "sum": (row_sums(Ops.ADD, dtypes.int64), ()),
    "sum-group": (row_sums(Ops.ADD, dtypes.int64), (Opt(OptOps.GROUP, 1, 8),)),
    "sum-upcast": (row_sums(Ops.ADD, dtypes.uint64), (Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.UPCAST, 1, 4))),
    "product-unroll": (row_sums(Ops.MUL, dtypes.int64), (Opt(OptOps.UNROLL, 1, 4),)),
    "max": (row_sums(Ops.MAX, dtypes.int64), (Opt(OptOps.LOCAL, 0, 3),)),
    "min": (row_sums(Ops.MIN, dtypes.uint64), (Opt(OptOps.GROUP, 1, 4), Opt(OptOps.UNROLL, 2, 2))),
    "gather": (gathered, (Opt(OptOps.UPCAST, 1, 4),)),
    "padded": (lambda: build.pad(leaf(0, 6, 10, dtype=dtypes.uint64), ((0, 0), (1, 2))), (Opt(OptOps.UPCAST, 1, 13),)),
    "products": (products, (Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.UPCAST, 1, 4), Opt(OptOps.LOCAL, 0, 4))),
}


def run(program: Program, arrays: list[np.ndarray]) -> np.ndarray:
    memories = []
    for array in arrays:
        memories.append(EMULATOR.allocate(array.nbytes))
        EMULATOR.copy_in(memories[-1], 0, memoryview(array).cast("B"))
    kernel = EMULATOR.load(EMULATOR.compile(EMULATOR.render(program)), program)
    EMULATOR.prepare([(kernel, [(memory, 0) for memory in memories])]).run()
    result = np.empty_like(arrays[0])
    EMULATOR.copy_out(memories[0], 0, memoryview(result).cast("B"))
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree_with_those_of_64_bits(name: str) -> None:
    build_output, opts = PROGRAMS[name]
    rng = np.random.default_rng(1)
    found = []
    for target in (WORDS, EMULATOR.target):
        program = program_of(name, build_output(), opts, target)
        if target is WORDS:
            check_residue(UOp(Ops.SINK, dtypes.void, program.body))
        if not found:
            arrays = [numbers(rng, param.size, param.dtype) for param in program.params]
        found.append(run(program, arrays))
    np.testing.assert_array_equal(*found)


def numbers(rng: np.random.Generator, size: int, dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(size).astype(numpy_dtype(dtype))
    drawn = rng.integers(0, 2**64, size, np.uint64) >> rng.integers(0, 64, size, np.uint64)
    signs = np.where(rng.random(size) < 0.5, -drawn.astype(np.int64), drawn.astype(np.int64))
    return signs.astype(np.int64).view(numpy_dtype(dtype))


def test_positions_stay_base_and_tile() -> None:
    """The steps of a tile are still constants of the text, though the base came from 64 bits."""
    program = program_of("gather", gathered(), (Opt(OptOps.UPCAST, 1, 4),), WORDS)
    places = [node for node in program.body if node.op is Ops.INDEX]
    assert all(place.src[1].dtype is dtypes.int32 for place in places)
    assert sum(bool(tile_part(place.src[1])[1]) for place in places) == 2
