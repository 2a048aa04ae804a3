"""The text of docs/dtypes.md. In: the types and the promotion table of tilewright/base/dtype.py. Out: Markdown."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, cast_scalar, dtypes, promote

# Column heads must be narrow for the table to be read; the rows carry the full names.
_SHORT = {"bool": "b", "int": "i", "uint": "u", "float": "f"}

_INTRODUCTION = """\
# Element types

Made from `tilewright/base/dtype.py` by `make docs`.

| type | aliases | bits | least | greatest |
|---|---|---|---|---|
"""

_PROMOTION = """
`index` is the integer of index maths. It has no fixed width until codegen picks 32 or 64 bits, and no tensor has it.

## Promotion

An operation on two tensors of different types is computed in the least type that both can be widened to. The order of
two operands does not matter. Where torch promotes two types the answer is torch's. With a signed integer `uint64` gives
`float64`, as in NumPy, since no integer type holds both. The two 8-bit floats meet in `float16`, and `float16` and
`bfloat16` in `float32`, because neither holds the other.

Three or more types are promoted from left to right. The grouping does not matter, with two exceptions: `uint64` beside
a signed integer, and the two 8-bit floats beside `bfloat16`.

{examples}

A Python number is weak: it changes the kind (bool, integer, float) where its own is higher, and never the width. So
`int8 + 1` is `int8`, `bool + 1` is `int32`, `float16 + 1.5` is `float16` and `int64 + 1.5` is `float32`. An integer
that the tensor's dtype cannot represent is refused, as NumPy refuses it (`int32 + 2**40`, which torch wraps);
the negative of an unsigned number is taken modulo 2 to the width (`uint8 * -1`), and a comparison uses the exact value
of the number.

A tensor made of Python integers (`Tensor`, `full`, `arange`) is `int32` where that holds them, else `int64`, else
`uint64`, else an error. A number that a given dtype cannot represent (`Tensor(300, dtype="uint8")`) is an error too;
`Tensor(300).cast("uint8")` wraps, see below.

"""

_CASTS = """
## Casts

`cast_scalar` says what CAST means; the interpreter and the emulator agree with it, and every device is held to it.

| from | to | result |
|---|---|---|
| anything | bool | False for 0, 0.0 and -0.0; True for the rest, NaN too |
| bool | a number | 0 or 1 |
| integer | integer | the value modulo 2 to the width of the target: it wraps |
| integer | float | rounded once, to nearest, ties to even; too large gives infinity |
| float | integer | truncated towards zero; outside of the target's range the nearest end of it; NaN gives 0 |
| float | float | rounded once, to nearest, ties to even, subnormal numbers kept; too large gives infinity |
| float | `float8_e4m3` | the same, but the type has no infinity: too large, and infinity itself, give NaN |

A cast is always performed: `x.cast(float16).cast(float32)` rounds `x`.

Subnormal (denormal) numbers are kept by every operation, except that on the CPU sums of products take them as zero
(`FLUSH_DENORMALS`, [decision 32](decisions/0032-denormals-in-contractions-are-zero.md)).

A product may be contracted with the addition that takes it in (FMA): the two are then rounded once. Where the product
by itself would underflow, the result keeps its sign: `0 - x*x` of a tiny `x` may be -0.0, and is 0.0 where `x` is 0.

| value | cast to | gives |
|---|---|---|
"""

_UNGROUPED = (
    (dtypes.uint64, dtypes.int8, dtypes.float16),
    (dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.bfloat16),
)

_EXAMPLES: tuple[tuple[float | int, DType], ...] = (
    (300, dtypes.uint8),
    (200, dtypes.int8),
    (-1, dtypes.uint32),
    (-1.9, dtypes.int32),
    (300.7, dtypes.int8),
    (-5.0, dtypes.uint8),
    (math.nan, dtypes.int32),
    (math.inf, dtypes.int64),
    (math.nan, dtypes.bool),
    (-0.0, dtypes.bool),
    (65519.0, dtypes.float16),
    (65520.0, dtypes.float16),
    (16777217, dtypes.float32),
    (1.00390625, dtypes.bfloat16),
    (464.0, dtypes.float8_e4m3),
    (465.0, dtypes.float8_e4m3),
    (math.inf, dtypes.float8_e4m3),
    (61440.0, dtypes.float8_e5m2),
    (1e-45, dtypes.float16),
)


def _aliases(dtype: DType) -> str:
    names = sorted(name for name, value in vars(dtypes).items() if value is dtype and name != dtype.name)
    # The defaults are settings of the namespace and no names of a type.
    return ", ".join(f"`{name}`" for name in names if not name.startswith("default_"))


def _limit(dtype: DType, value: float | int) -> str:
    if dtype.is_float and math.isinf(value):
        # The infinities say nothing about a type that has them; its greatest finite number does.
        largest = math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), (1 << (dtype.exponent_bits - 1)) - 1)
        return f"{math.copysign(largest, value):.8g} and {value}"
    return str(value)


def _short_name(dtype: DType) -> str:
    if dtype is dtypes.bfloat16:
        return "bf16"
    tail = dtype.name.partition("_")[2]
    return f"{_SHORT[dtype.kind]}{dtype.bits}{tail and ' ' + tail}" if not dtype.is_bool else "bool"


def _grouping(first: DType, second: DType, third: DType) -> str:
    left = promote(promote(first, second), third)
    right = promote(first, promote(second, third))
    return (
        f"- `({first.name} + {second.name}) + {third.name}` is `{left.name}`, "
        f"`{first.name} + ({second.name} + {third.name})` is `{right.name}`"
    )


def _type_row(dtype: DType) -> str:
    limits = f"{_limit(dtype, dtype.min)} | {_limit(dtype, dtype.max)}"
    return f"| `{dtype.name}` | {_aliases(dtype)} | {dtype.bits} | {limits} |"


def dtypes_markdown() -> str:
    """The whole of docs/dtypes.md."""
    types = dtypes.all
    lines = [_type_row(dtype) for dtype in types]
    groupings = "\n".join(_grouping(*trio) for trio in _UNGROUPED)
    table = [
        "| | " + " | ".join(_short_name(dtype) for dtype in types) + " |",
        "|---" * (len(types) + 1) + "|",
        *(
            f"| **{row.name}** | " + " | ".join(_short_name(promote(row, column)) for column in types) + " |"
            for row in types
        ),
    ]
    examples = [f"| {value!r} | `{dtype.name}` | {cast_scalar(value, dtype)!r} |" for value, dtype in _EXAMPLES]
    return (
        _INTRODUCTION
        + "\n".join(lines)
        + "\n"
        + _PROMOTION.format(examples=groupings)
        + "\n".join(table)
        + "\n"
        + _CASTS
        + "\n".join(examples)
        + "\n"
    )
