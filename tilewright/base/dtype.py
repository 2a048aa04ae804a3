"""The element types. In: a name, an alias or a Python value. Out: one `DType` object per type, compared by identity.
Casting a Python number to a type, and the one promotion table, are defined here and used by every stage.
Nothing outside the standard library is needed, so importing this module is cheap."""

from __future__ import annotations

import builtins
import math
import struct
from typing import Final

from tilewright.base.records import NamedTuple, field, record

Scalar = bool | int | float


@record
class DType:
    """One element type; `kind` is bool, int, uint, float or index, `code` its struct character where it has one."""

    name: str
    kind: str
    bits: int
    code: str = ""
    exponent_bits: int = 0
    mantissa_bits: int = 0
    # Derived from the others once: every stage asks for them, for nearly every node.
    itemsize: int = field(init=False)  # bytes
    is_float: bool = field(init=False)
    is_int: bool = field(init=False)  # signed, unsigned or index
    is_unsigned: bool = field(init=False)
    is_bool: bool = field(init=False)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", (self.bits + 7) // 8)
        object.__setattr__(self, "is_float", self.kind == "float")
        object.__setattr__(self, "is_int", self.kind in ("int", "uint", "index"))
        object.__setattr__(self, "is_unsigned", self.kind == "uint")
        object.__setattr__(self, "is_bool", self.kind == "bool")

    @property
    def min(self) -> Scalar:
        """The least value; for floats minus infinity, or the least finite value where the type has no infinity."""
        if self.is_bool:
            return False
        if self.is_float:
            return -448.0 if self is dtypes.float8_e4m3 else -math.inf
        return 0 if self.is_unsigned else -(1 << (self.bits - 1))

    @property
    def max(self) -> Scalar:
        if self.is_bool:
            return True
        if self.is_float:
            return 448.0 if self is dtypes.float8_e4m3 else math.inf
        return (1 << self.bits) - 1 if self.is_unsigned else (1 << (self.bits - 1)) - 1

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return to_dtype, (self.name,)


class IntegerLimits(NamedTuple):
    """What an integer dtype holds."""

    bits: int
    max: int
    min: int
    dtype: DType


class FloatLimits(NamedTuple):
    """What a float dtype holds; `eps` is the distance from 1 to the next number."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        """`smallest_normal`."""
        return self.smallest_normal


def _integer_limits(dtype: object) -> IntegerLimits:
    """The limits of an integer dtype."""
    wanted = to_dtype(dtype)
    if not wanted.is_int:
        from tilewright.base.errors import DTypeError

        raise DTypeError("iinfo", f"{wanted!r} is not an integer dtype", "use finfo for floats")
    return IntegerLimits(wanted.bits, int(wanted.max), int(wanted.min), wanted)


def _float_limits(dtype: object) -> FloatLimits:
    """The limits of a float dtype."""
    wanted = to_dtype(dtype)
    if not wanted.is_float:
        from tilewright.base.errors import DTypeError

        raise DTypeError("finfo", f"{wanted!r} is not a float dtype", "use iinfo for integers")
    bias = (1 << (wanted.exponent_bits - 1)) - 1
    eps = math.ldexp(1.0, -wanted.mantissa_bits)
    greatest = 448.0 if wanted is dtypes.float8_e4m3 else math.ldexp(2.0 - eps, bias)
    return FloatLimits(wanted.bits, eps, greatest, -greatest, math.ldexp(1.0, 1 - bias), wanted)


class dtypes:  # noqa: N801 (users write dtypes.float32)
    """The namespace of types. `index` is the integer of index maths: unbounded until codegen picks 32 or 64 bits."""

    bool: Final = DType("bool", "bool", 8, "?")
    int8: Final = DType("int8", "int", 8, "b")
    uint8: Final = DType("uint8", "uint", 8, "B")
    int16: Final = DType("int16", "int", 16, "h")
    uint16: Final = DType("uint16", "uint", 16, "H")
    int32: Final = DType("int32", "int", 32, "i")
    uint32: Final = DType("uint32", "uint", 32, "I")
    int64: Final = DType("int64", "int", 64, "q")
    uint64: Final = DType("uint64", "uint", 64, "Q")
    float8_e4m3: Final = DType("float8_e4m3", "float", 8, "", 4, 3)
    float8_e5m2: Final = DType("float8_e5m2", "float", 8, "", 5, 2)
    float16: Final = DType("float16", "float", 16, "e", 5, 10)
    bfloat16: Final = DType("bfloat16", "float", 16, "", 8, 7)
    float32: Final = DType("float32", "float", 32, "f", 8, 23)
    float64: Final = DType("float64", "float", 64, "d", 11, 52)
    index: Final = DType("index", "index", 64, "q")
    void: Final = DType("void", "void", 0)

    char = int8
    uchar = uint8
    short = int16
    ushort = uint16
    int = int32
    uint = uint32
    long = int64
    ulong = uint64
    half = float16
    float = float32
    double = float64
    fp8e4m3 = float8_e4m3
    fp8e5m2 = float8_e5m2

    sints = (int8, int16, int32, int64)
    uints = (uint8, uint16, uint32, uint64)
    ints = sints + uints
    fp8s = (float8_e4m3, float8_e5m2)
    floats = (*fp8s, float16, bfloat16, float32, float64)
    all = (bool, *ints, *floats)
    default_int = int32
    default_float = float32

    iinfo = staticmethod(_integer_limits)
    finfo = staticmethod(_float_limits)

    @staticmethod
    def is_float(dtype: object) -> builtins.bool:
        """Whether a dtype, or the dtype of a name, is a float type."""
        return to_dtype(dtype).is_float

    @staticmethod
    def is_int(dtype: object) -> builtins.bool:
        """Whether a dtype is an integer type, signed or unsigned; bool is not."""
        return to_dtype(dtype).is_int

    @staticmethod
    def is_unsigned(dtype: object) -> builtins.bool:
        """Whether a dtype is an unsigned integer type."""
        return to_dtype(dtype).is_unsigned

    @staticmethod
    def is_bool(dtype: object) -> builtins.bool:
        """Whether a dtype is bool."""
        return to_dtype(dtype).is_bool

    @staticmethod
    def min(dtype: object) -> Scalar:
        """The least value of a dtype."""
        return to_dtype(dtype).min

    @staticmethod
    def max(dtype: object) -> Scalar:
        """The greatest value of a dtype."""
        return to_dtype(dtype).max

    @staticmethod
    def from_py(value: Scalar) -> DType:
        """The dtype that a Python number has as a tensor."""
        return dtype_of_scalar(value)


_BY_NAME: dict[str, DType] = {name: value for name, value in vars(dtypes).items() if isinstance(value, DType)}


# Names of the same types in other libraries: NumPy's scalar types, ml_dtypes, Python's own types as torch reads them.
_FOREIGN_NAMES = {"bool_": "bool", "float8_e4m3fn": "float8_e4m3", "float": "float64", "int": "int64"}


def to_dtype(value: object) -> DType:
    """The type of a name or alias ('float32', 'half', ...), of a dtype of NumPy or torch, or of Python's bool, int and
    float (which are 64 bits wide there); a `DType` is returned as it is."""
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else _foreign_name(value)
    if name not in _BY_NAME:
        from tilewright.base.errors import DTypeError

        known = ", ".join(sorted(_BY_NAME))
        raise DTypeError("dtype", f"{value!r} is not the name of a dtype", f"use one of: {known}")
    return _BY_NAME[name]


def is_dtype(value: object) -> bool:
    """Whether `to_dtype` knows a value."""
    return (value if isinstance(value, str) else _foreign_name(value)) in _BY_NAME


def _foreign_name(value: object) -> str:
    """The name here of another library's dtype; the text of the value where it is not a dtype."""
    if isinstance(value, type):
        name = value.__name__  # np.float32, ml_dtypes.bfloat16, float
    else:
        # `np.dtype('float32').name` and `str(torch.float32) == 'torch.float32'`.
        name = str(getattr(value, "name", value)).removeprefix("torch.")
    return _FOREIGN_NAMES.get(name, name)


# ---------------------------------------------------------------- casting one Python number


def round_to_small_float(value: float, dtype: DType) -> float:
    """`value` rounded to nearest even in a float type of at most 16 bits, directly from double."""
    if value != value or math.isinf(value) or value == 0.0:
        if dtype is dtypes.float8_e4m3 and math.isinf(value):
            return math.nan
        return value
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    _, exponent = math.frexp(value)
    unit = math.ldexp(1.0, max(exponent - 1, 1 - bias) - dtype.mantissa_bits)
    rounded = round(value / unit) * unit
    if rounded == 0.0:
        return math.copysign(0.0, value)
    largest = 448.0 if dtype is dtypes.float8_e4m3 else math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), bias)
    if abs(rounded) > largest:
        return math.nan if dtype is dtypes.float8_e4m3 else math.copysign(math.inf, value)
    return rounded


def round_to_float(value: float, dtype: DType) -> float:
    """`value` as the float type holds it."""
    if dtype is dtypes.float64:
        return value
    if dtype is not dtypes.float32:
        return round_to_small_float(value, dtype)
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _round_to_odd(value: int) -> int:
    """`value` truncated to the 53 bits of a double, with the last bit set where the truncation lost any (round to odd).
    Rounding the result to fewer bits then gives what rounding `value` itself would; rounding to a double first would
    round twice."""
    excess = value.bit_length() - 53
    if excess <= 0:
        return value
    kept = value >> excess
    return (kept if kept << excess == value else kept | 1) << excess


def cast_scalar(value: Scalar, dtype: DType) -> Scalar:
    """A Python number as the type holds it: integers wrap, floats round to nearest even, float to integer truncates
    and saturates with NaN giving 0, anything non-zero (NaN too) is True. This is what CAST means on every device."""
    if dtype.is_bool:
        return bool(value)
    if dtype.is_float:
        try:
            if isinstance(value, int) and dtype is not dtypes.float64:
                value = _round_to_odd(value)
            return round_to_float(float(value), dtype)
        except OverflowError:
            return round_to_float(math.inf if value > 0 else -math.inf, dtype)
    if isinstance(value, float):
        if value != value:
            return 0
        if math.isinf(value):
            return dtype.max if value > 0 else dtype.min
        return max(int(dtype.min), min(int(dtype.max), int(value)))
    return wrap_int(int(value), dtype)


def wrap_int(value: int, dtype: DType) -> int:
    """An integer modulo 2**bits, in the range of the type. Index maths is unbounded and is left alone."""
    if dtype is dtypes.index:
        return value
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if not dtype.is_unsigned and value >> (dtype.bits - 1) else value


# ---------------------------------------------------------------- promotion

# A type's wider neighbours; two types promote to the nearest type both can reach. docs/dtypes.md prints the result.
_WIDER: dict[DType, tuple[DType, ...]] = {
    dtypes.bool: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.int16: (dtypes.int32,),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.int32: (dtypes.int64,),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.int64: (dtypes.float8_e4m3, dtypes.float8_e5m2),
    dtypes.uint64: (dtypes.float8_e4m3, dtypes.float8_e5m2),
    dtypes.float8_e4m3: (dtypes.float16, dtypes.bfloat16),
    dtypes.float8_e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


def _reachable(dtype: DType) -> set[DType]:
    found = {dtype}
    for wider in _WIDER[dtype]:
        found |= _reachable(wider)
    return found


_RANK = {dtype: rank for rank, dtype in enumerate(_WIDER)}
_PROMOTION: dict[tuple[DType, DType], DType] = {}


def promote(*operands: DType) -> DType:
    """The type that an operation on these types computes in."""
    result = operands[0]
    for other in operands[1:]:
        if other is result:
            continue
        key = (result, other)
        if key not in _PROMOTION:
            _PROMOTION[key] = _least_upper(result, other)
        result = _PROMOTION[key]
    return result


def _least_upper(left: DType, right: DType) -> DType:
    if dtypes.index in (left, right):
        return right if left is dtypes.index else left
    # No integer holds both uint64 and a signed type: NumPy's answer is float64, torch has none.
    for unsigned, signed in ((left, right), (right, left)):
        if unsigned is dtypes.uint64 and signed.kind == "int":
            return dtypes.float64
    return min(_reachable(left) & _reachable(right), key=_RANK.__getitem__)


def dtype_of_scalar(value: Scalar) -> DType:
    """The default type of a Python number; a wider integer type for one that the default type does not hold."""
    if isinstance(value, bool):
        return dtypes.bool
    if isinstance(value, float):
        return dtypes.default_float
    return dtype_for_range(value, value) if isinstance(value, int) else dtype_for_range(value.least, value.greatest)


def bits_dtype(dtype: DType) -> DType:
    """The unsigned integer with as many bits."""
    return next(unsigned for unsigned in dtypes.uints if unsigned.bits == dtype.bits)


def dtype_for_range(least: int, greatest: int) -> DType:
    """The integer type that holds all of least..greatest: the default one, or a wider one."""
    for dtype in (dtypes.default_int, dtypes.int64, dtypes.uint64):
        if dtype.min <= least and greatest <= dtype.max:
            return dtype
    from tilewright.base.errors import DTypeError

    numbers = str(least) if least == greatest else f"{least}..{greatest}"
    raise DTypeError("Tensor", f"no integer dtype holds {numbers}", "give a float dtype")


def can_hold(dtype: DType, value: Scalar) -> bool:
    """Whether a Python number may be an operand of that type. An integer type refuses infinity, NaN and numbers out of
    its range; an unsigned one takes the negatives of its numbers too, so that `x * -1` and `x & ~1` work modulo
    2**bits."""
    if isinstance(value, bool) or not dtype.is_int:
        return True
    least = -dtype.max if dtype.is_unsigned else dtype.min
    return least - 1 < value < dtype.max + 1


def promote_with_scalar(dtype: DType, value: Scalar) -> DType:
    """The type of `tensor op number`: a Python number is weak, it only lifts the kind (bool < int < float)."""
    if isinstance(value, bool) or dtype.is_float:
        return dtype
    if isinstance(value, float):
        return dtypes.default_float
    return dtypes.default_int if dtype.is_bool else dtype
