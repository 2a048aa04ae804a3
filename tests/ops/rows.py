"""What a row of the op table is made of: `Row`, its inputs, the groups of dtypes.

A row is one case of one name of docs/api/tensor.txt: the call on tensors, the same on NumPy arrays, the inputs, the
dtypes that the op accepts and whether it has a gradient. test_table.py runs it on every device, test_torch.py against
torch.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtype import to_dtype
from tilewright.graph.interpreter.numpy_math import numpy_dtype

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")
# Products and sums of several values are compared in floats that hold them; float8 is for storage.
WIDE_FLOATS = FLOATS[:4]
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
BOOL = ("bool",)
NUMBERS = INTS + FLOATS
ALL = BOOL + NUMBERS
# For further cases of an op, whose first row has them all.
FEW = ("float32", "bfloat16", "int64", "bool")

# Relative and absolute, for a result of that dtype; integers and bools are exact.
TOLERANCES = {
    "float64": 1e-9,
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float8_e4m3": 0.13,
    "float8_e5m2": 0.26,
}
# Of a finite difference of the reference in float64, relative to the greatest element of the gradient.
GRADIENT_TOLERANCE = 2e-5
STEP = 1e-5


@dataclass(frozen=True)
class Input:
    """Random numbers in low..high (whole ones for an integer dtype), or given `values`; `dtype` None is the row's."""

    shape: tuple[int, ...] = (3, 4)
    low: float = -2.0
    high: float = 2.0
    dtype: str | None = None
    values: Any = None
    constant: bool = False  # the op has no gradient with respect to it
    constant_in_torch: bool = False  # torch's has none

    @property
    def has_gradient(self) -> bool:
        return not self.constant and (self.dtype is None or self.dtype in FLOATS)

    def array(self, seed: int, row_dtype: str) -> np.ndarray:
        """The numbers, in the NumPy dtype of the row (or of this input)."""
        dtype = to_dtype(self.dtype or row_dtype)
        rng = np.random.default_rng(seed)
        if self.values is not None:
            return np.asarray(self.values).astype(numpy_dtype(dtype))
        if dtype.is_bool:
            return rng.random(self.shape) > 0.5
        if dtype.is_float:
            return rng.uniform(self.low, self.high, self.shape).astype(numpy_dtype(dtype))
        least = max(int(np.ceil(self.low)), 0 if dtype.is_unsigned else int(dtype.min))
        greatest = max(least, min(int(np.floor(self.high)), int(dtype.max)))
        return rng.integers(least, greatest + 1, self.shape).astype(numpy_dtype(dtype))


@dataclass(frozen=True)
class Row:
    """One case. `result` is the dtype of what comes out: "same", "float" (integers become float32), "sum" (integers
    become int64), "abs" (bool and unsigned stay), or a name; a tuple for several outputs. `torch` is the call on torch
    tensors where it is not `call` itself; None where torch has no such thing."""

    op: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Input, ...] = (Input(),)
    dtypes: tuple[str, ...] = WIDE_FLOATS
    gradient: bool = True
    result: str | tuple[str, ...] = "same"
    label: str = ""
    torch: Any = "call"
    # Given the values instead of comparing them: for random numbers.
    check: Callable[..., bool] | None = None
    # The call is given device and dtype instead of tensors.
    creates: bool = False
    seed: int = field(default=0)

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    def arrays(self, dtype: str) -> list[np.ndarray]:
        seed = zlib.crc32(self.name.encode()) + self.seed
        return [given.array(seed + number, dtype) for number, given in enumerate(self.inputs)]

    def result_dtypes(self, dtype: str, count: int) -> list[str]:
        kinds = (self.result,) * count if isinstance(self.result, str) else self.result
        assert len(kinds) == count, f"{self.name} gives {count} results, its row says {kinds}"
        return [result_dtype(kind, dtype) for kind in kinds]


def result_dtype(kind: str, dtype: str) -> str:
    if kind == "same":
        return dtype
    if kind == "float":
        return dtype if dtype in FLOATS else "float32"
    if kind == "sum":
        return dtype if dtype in FLOATS or dtype == "uint64" else "int64"
    return kind


def as_float64(array: np.ndarray) -> np.ndarray:
    """Short floats as float64, where the reference is computed; integers and bools as they are."""
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


# ---------------------------------------------------------------- rows that look alike


def unary(
    op: str,
    reference: Callable[..., Any],
    low: float = -2.0,
    high: float = 2.0,
    dtypes: tuple[str, ...] = ALL,
    result: str = "float",
    torch: Any = "call",
    **more: Any,
) -> Row:
    """A method without arguments."""
    inputs = (Input((3, 5), low, high),)
    return Row(op, operator.methodcaller(op), reference, inputs, dtypes, result=result, torch=torch, **more)


def binary(op: str, reference: Callable[..., Any], dtypes: tuple[str, ...] = NUMBERS, **more: Any) -> Row:
    """A method of two tensors that broadcast."""
    inputs = more.pop("inputs", (Input((3, 4), -3, 3), Input((4,), 1, 3)))
    call = more.pop("call", lambda x, y: getattr(x, op)(y))
    return Row(op, call, reference, inputs, dtypes, **more)


def moved(
    op: str, call: Callable[..., Any], reference: Callable[..., Any], *shapes: tuple[int, ...], **more: Any
) -> Row:
    """A movement: every dtype, exact; a few for the further cases of one."""
    inputs = tuple(Input(shape) for shape in shapes or ((2, 3, 4),))
    return Row(op, call, reference, inputs, more.pop("dtypes", FEW if "label" in more else ALL), **more)


def fact(op: str, call: Callable[..., Any], reference: Callable[..., Any], **more: Any) -> Row:
    """Something said about a tensor, not a tensor."""
    return Row(op, call, reference, more.pop("inputs", (Input(),)), ("float32",), False, torch=None, **more)


def made(op: str, call: Callable[..., Any], reference: Callable[..., Any], dtypes: Sequence[str], **more: Any) -> Row:
    """A tensor from nothing: the call is given a device and a dtype."""
    return Row(op, call, reference, (), tuple(dtypes), False, torch=None, creates=True, **more)


def random_row(
    op: str, call: Callable[..., Any], check: Callable[..., bool], dtypes: Sequence[str], **more: Any
) -> Row:
    """Random numbers, of which a check says whether they can be right."""
    return Row(op, call, check, (), tuple(dtypes), False, torch=None, creates=True, check=check, **more)
