"""Graphs that the fuzzer found to be wrong, as small as it could make them, each with its story. The text of a graph is
what `tilewright.graph.text.show` writes; the contents of its leaves are given by slot. Devices agree with it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.error_bounds import evaluate_bounds, mismatches
from tests.fuzz.execute import check_case
from tests.fuzz.generate import Case
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.text.parse import parse
from tilewright.graph.walk import toposort

FINDS: dict[str, tuple[str, dict[int, list[float]]]] = {
    # Both updates were made in the memory of the version they start from, so each saw the other's element.
    "two updates of one version": (
        """
        %0 = PARAM int32 ParamArg(0, 6, "")
        %1 = SHRINK int32 %0 ((0, 1),)
        %2 = CONST int32 7
        %3 = RESHAPE int32 %2 (1,)
        %4 = ASSIGN int32 %0 %1 %3
        %5 = SHRINK int32 %0 ((4, 6),)
        %6 = EXPAND int32 %3 (2,)
        %7 = ASSIGN int32 %0 %5 %6
        %8 = SINK void %4 %7
        """,
        {0: [0, 1, 2, 3, 4, 5]},
    ),
    # The remainder of an index that may be any int64 was shifted to be positive by more than an int64 holds.
    "a gather from a padded source by int64": (
        """
        %0 = PARAM int32 ParamArg(0, 12, "")
        %1 = RESHAPE int32 %0 (6, 2)
        %2 = PAD int32 %1 ((3, 2), (0, 3))
        %3 = RESHAPE int32 %2 (55,)
        %4 = NEG int32 %3
        %5 = PARAM int64 ParamArg(1, 8, "")
        %6 = GATHER int32 %4 %5
        %7 = SINK void %6
        """,
        {0: list(range(1, 13)), 1: [22, 0, 16, -1, 17, 54, 55, 41]},
    ),
    # LLVM has no bitcast between vectors of bits and vectors of bytes.
    "a bool read as a byte": (
        """
        %0 = PARAM bool ParamArg(0, 40, "")
        %1 = BITCAST float8_e5m2 %0
        %2 = BITCAST bool %1
        %3 = NEG float8_e5m2 %1
        %4 = BITCAST bool %3
        %5 = SINK void %2 %4
        """,
        {0: [n % 3 == 0 for n in range(40)]},
    ),
    # The kernel does not read its buffer once it is simplified, and the emulator paired places with what was left.
    "a parameter that is simplified away": (
        """
        %0 = PARAM bool ParamArg(0, 1, "")
        %1 = CONST int64 0
        %2 = RESHAPE int64 %1 (1,)
        %3 = EXPAND int64 %2 (2,)
        %4 = REDUCE_AXIS int64 %3 (Ops.ADD, (0,))
        %5 = WHERE int64 %0 %4 %2
        %6 = SINK void %5
        """,
        {0: [False]},
    ),
    # No kernel is written for it, so it has no value to look for reads in.
    "an update of nothing": (
        """
        %0 = PARAM uint16 ParamArg(0, 0, "")
        %1 = RESHAPE uint16 %0 (0, 1)
        %2 = ASSIGN uint16 %0 %1 %1
        %3 = SINK void %2
        """,
        {0: []},
    ),
    # As an index of 64 bits with a sign, the greatest numbers are negative, and nothing asked whether they were.
    "an index that only uint64 holds": (
        """
        %0 = PARAM int32 ParamArg(0, 4, "")
        %1 = PARAM uint64 ParamArg(1, 5, "")
        %2 = GATHER int32 %0 %1
        %3 = SINK void %2
        """,
        {0: [1, 2, 3, 4], 1: [0, 3, 2**64 - 1, 2**63, 4]},
    ),
    # The remainder was taken of the negative number instead.
    "a remainder of uint64 as an index": (
        """
        %0 = PARAM int32 ParamArg(0, 7, "")
        %1 = PARAM uint64 ParamArg(1, 4, "")
        %2 = CONST uint64 7
        %3 = MOD uint64 %1 %2
        %4 = GATHER int32 %0 %3
        %5 = SINK void %4
        """,
        {0: [1, 2, 3, 4, 5, 6, 7], 1: [5, 2**64 - 1, 2**63, 2**63 + 3]},
    ),
    # The place times the row's length is a constant that 64 bits do not hold; it is only used where it is masked off.
    "a place far outside": (
        """
        %0 = PARAM int64 ParamArg(0, 72, "")
        %1 = RESHAPE int64 %0 (8, 9)
        %2 = IOTA int32 (4,)
        %3 = CAST int64 %2
        %4 = CONST int64 1251882040698721275
        %5 = MUL int64 %3 %4
        %6 = PARAM int32 ParamArg(1, 4, "")
        %7 = GATHER int64 %1 %5 %6
        %8 = SINK void %7
        """,
        {0: list(range(72)), 1: [2, 1, 5, 7]},
    ),
    # The interpreter wrote into a copy, because the array of a repeated value is not laid out row by row.
    "an update of something repeated": (
        """
        %0 = PARAM float32 ParamArg(0, 2, "")
        %1 = RESHAPE float32 %0 (1, 2)
        %2 = EXPAND float32 %1 (3, 2)
        %3 = CONTIGUOUS float32 %2
        %4 = SHRINK float32 %3 ((1, 3), (0, 1))
        %5 = CONST float32 5.0
        %6 = RESHAPE float32 %5 (1, 1)
        %7 = EXPAND float32 %6 (2, 1)
        %8 = ASSIGN float32 %3 %4 %7
        %9 = SINK void %8
        """,
        {0: [1.0, 2.0]},
    ),
    # The interpreter took whichever zero NumPy came upon last.
    "the least of zeros of both signs": (
        """
        %0 = PARAM float32 ParamArg(0, 15, "")
        %1 = RESHAPE float32 %0 (3, 5)
        %2 = REDUCE_AXIS float32 %1 (Ops.MIN, (0, 1))
        %3 = REDUCE_AXIS float32 %1 (Ops.MAX, (0,))
        %4 = SINK void %2 %3
        """,
        {0: [0.0, 0.0, 0.0, 0.08, 0.0, 1.47, -0.0, 0.4, -0.0, 0.4, -0.0, -0.0, 0.5, -0.6, -0.0]},
    ),
    # The sum was taken apart, sum(a) + sum(b): large a and b cancel in each element and do not cancel in the sums.
    "a sum of rounded sums": (
        """
        %0 = PARAM float32 ParamArg(0, 4, "")
        %1 = RESHAPE float32 %0 (4, 1)
        %2 = EXPAND float32 %1 (4, 8)
        %3 = IOTA int32 (4,)
        %4 = RESHAPE int32 %3 (4, 1)
        %5 = EXPAND int32 %4 (4, 8)
        %6 = IOTA int32 (8,)
        %7 = RESHAPE int32 %6 (1, 8)
        %8 = EXPAND int32 %7 (4, 8)
        %9 = CMPEQ bool %5 %8
        %10 = CONST float32 0.0
        %11 = WHERE float32 %9 %2 %10
        %12 = PARAM float32 ParamArg(1, 8, "")
        %13 = RESHAPE float32 %12 (1, 8)
        %14 = EXPAND float32 %13 (4, 8)
        %15 = ADD float32 %11 %14
        %16 = REDUCE_AXIS float32 %15 (Ops.ADD, (1,))
        %17 = SINK void %16
        """,
        {0: [1e8, 1e8, 1e8, 1e8], 1: [1.0, 1.0, 1.0, -1e8, 1.0, 1.0, 1.0, 1.0]},
    ),
    # A sum starts from 0.0, so it is never -0.0; folded to a load it was.
    "a one-hot sum of negative zeros": (
        """
        %0 = PARAM uint8 ParamArg(0, 3, "")
        %1 = RESHAPE uint8 %0 (3, 1)
        %2 = EXPAND uint8 %1 (3, 4)
        %3 = IOTA uint8 (4,)
        %4 = RESHAPE uint8 %3 (1, 4)
        %5 = EXPAND uint8 %4 (3, 4)
        %6 = CMPEQ bool %2 %5
        %7 = PARAM float32 ParamArg(1, 12, "")
        %8 = RESHAPE float32 %7 (3, 4)
        %9 = CONST float32 0.0
        %10 = WHERE float32 %6 %8 %9
        %11 = REDUCE_AXIS float32 %10 (Ops.ADD, (1,))
        %12 = SINK void %11
        """,
        {0: [1, 3, 9], 1: [-0.0] * 12},
    ),
    # The first was stored by the kernel of the last, which waits for a copy of the first.
    "an output that is copied to another device and comes back": (
        """
        %0 = PARAM int32 ParamArg(0, 6, "")
        %1 = NEG int32 %0
        %2 = COPY int32 %1 "AWAY"
        %3 = COPY int32 %2 "HOME"
        %4 = FLIP int32 %3 (0,)
        %5 = ADD int32 %1 %4
        %6 = SINK void %5 %1
        """,
        {0: [1, 2, 3, 4, 5, 6]},
    ),
    # The last product inside exp2 overflows when it is rounded; joined with the difference it was not rounded.
    "the difference of two infinities, one of them from exp2": (
        """
        %0 = PARAM float32 ParamArg(0, 20, "")
        %1 = PARAM float32 ParamArg(1, 20, "")
        %2 = EXP2 float32 %0
        %3 = SUB float32 %2 %1
        %4 = SINK void %3
        """,
        {0: [128.0, 130.0, 200.0, 1e20, 127.5] * 4, 1: [float("inf")] * 20},
    ),
    # Folding left one sum over both loops beside one over the inner loop alone, which has then no place.
    "two sums that share one of their loops": (
        """
        %0 = PARAM int64 ParamArg(0, 486, "")
        %1 = RESHAPE int64 %0 (9, 6, 1, 9)
        %2 = PARAM float32 ParamArg(1, 2, "")
        %3 = CONST float32 1.0
        %4 = CMPEQ bool %2 %3
        %5 = CAST int64 %4
        %6 = RESHAPE int64 %5 (1, 2)
        %7 = EXPAND int64 %6 (243, 2)
        %8 = RESHAPE int64 %7 (9, 6, 1, 9)
        %9 = ADD int64 %1 %8
        %10 = REDUCE_AXIS int64 %9 (Ops.ADD, (0, 1))
        %11 = SINK void %10 %4
        """,
        {0: list(range(486)), 1: [0.0, 1.0]},
    ),
    # LLVM made a shift by 63 bits the scale of an address and stopped the process.
    "places that are 2 to the power of 63 apart": (
        """
        %0 = PARAM float32 ParamArg(0, 16, "")
        %1 = IOTA int64 (9,)
        %2 = CONST int64 -9223372036854775808
        %3 = MUL int64 %1 %2
        %4 = GATHER float32 %0 %3
        %5 = SINK void %4
        """,
        {0: [float(number) for number in range(16)]},
    ),
    # LLVM takes the lesser of a value and itself for the value, and contracts it. That is allowed, and was not known.
    "a product by another name": (
        """
        %0 = PARAM float64 ParamArg(0, 1, "")
        %1 = PARAM float64 ParamArg(1, 1, "")
        %2 = MUL float64 %0 %1
        %3 = MIN float64 %2 %2
        %4 = SUB float64 %3 %0
        %5 = SINK void %4
        """,
        {0: [-0.5017437393461261], 1: [-0.6256138582989562]},
    ),
    # A product that is too small for its dtype is a zero by itself, and has a sign where it is contracted: 0 - x*x is
    # rounded once, to -0.0. That is allowed, and was not known; where x is zero there is nothing to round.
    "a product that underflows, taken from zero": (
        """
        %0 = CONST float32 0.0
        %1 = RESHAPE float32 %0 (1,)
        %2 = EXPAND float32 %1 (4,)
        %3 = PARAM float32 ParamArg(0, 4, "")
        %4 = MUL float32 %3 %3
        %5 = SUB float32 %2 %4
        %6 = SINK void %5
        """,
        {0: [0.0, 1.4700451334765284e-33, -0.0, 1.0]},
    ),
    "a sum of products that underflow": (
        """
        %0 = PARAM float32 ParamArg(0, 12, "")
        %1 = RESHAPE float32 %0 (3, 2, 2)
        %2 = PARAM float32 ParamArg(1, 12, "")
        %3 = RESHAPE float32 %2 (3, 2, 2)
        %4 = MUL float32 %1 %3
        %5 = REDUCE_AXIS float32 %4 (Ops.ADD, (1,))
        %6 = SINK void %5
        """,
        {0: [*[0.0] * 11, 5.691935633539439e-39], 1: [*[0.0] * 11, -6.860904137413366e-38]},
    ),
}


def case_of(text: str, contents: dict[int, list[float]]) -> Case:
    sink = parse("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
    bindings = {
        node: np.array(contents[node.arg.slot], numpy_dtype(node.dtype))
        for node in toposort(sink)
        if node.op is Ops.PARAM
    }
    return Case(1, sink.src, bindings)


@pytest.mark.parametrize(
    ("value", "got", "is_right"),
    [(1.5e-33, -0.0, True), (1.5e-33, 0.0, True), (0.0, 0.0, True), (0.0, -0.0, False), (1e-19, 0.0, False)],
)
def test_the_sign_of_a_zero_is_free_only_where_a_product_underflows(value: float, got: float, is_right: bool) -> None:
    """0 - x*x: contracted, it is rounded once."""
    text, _ = FINDS["a product that underflows, taken from zero"]
    case = case_of(text, {0: [value] * 4})
    (output,) = case.outputs
    expected, bound = evaluate_bounds(case.outputs, case.bindings)[output]
    wrong = mismatches(np.full(4, got, np.float32), np.asarray(expected), bound, output.dtype)
    assert wrong.any() != is_right


@pytest.mark.parametrize("name", FINDS)
def test_a_find_of_the_fuzzer(name: str) -> None:
    failure = check_case(case_of(*FINDS[name]))
    assert failure is None, f"{failure.kind}: {failure.text}"
