"""The arguments of nodes as text. In: an argument, or a node. Out: text such as `Axis((0,), AxisType.LOOP)`, or the
line of a node. `RECORDS` lists the classes that may stand in an argument and what their fields may hold; `parse.py`
reads the same table, and `show.py` writes whole graphs with `literal`."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base import records
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError
from tilewright.base.records import NamedTuple
from tilewright.base.target import TileLayout
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.ops import (
    ALL_OPS,
    AddrSpace,
    Axis,
    AxisType,
    BufferArg,
    CheckArg,
    DotArg,
    MultiArg,
    ParamArg,
    TileDotArg,
    ViewArg,
)
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.sizes import is_int, is_int_tuple
from tilewright.graph.spec import Op
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

OPS: dict[str, Op] = {op.name: op for op in ALL_OPS}
DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*dtypes.all, dtypes.index, dtypes.void)}
ENUMS: dict[str, type[enum.Enum]] = {kind.__name__: kind for kind in (AxisType, AddrSpace, OptOps)}
WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}

# Nobody writes arguments this deep; the limit keeps hostile text from exhausting the stack.
MAX_DEPTH = 40
# Bits of the largest integer: beyond every dtype, and short enough for Python to print.
MAX_INTEGER_BITS = 1024


def _is_opts(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and all(isinstance(item, Opt) for item in value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _is_bindings(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and _is_text(pair[0]) and type(pair[1]) is int for pair in value
    )


class Record(NamedTuple):
    """A class that may stand in an argument, its fields by position; each test says what a field may hold. An optional
    field is one of the last: it is left out where it and those after it have their defaults. A hidden one never is
    written."""

    make: Callable[..., Any]
    tests: dict[str, Callable[[Any], bool]]
    optional: Mapping[str, Any] = {}
    hidden: frozenset[str] = frozenset()


RECORDS: dict[str, Record] = {
    "Axis": Record(Axis, {"id": is_int_tuple, "kind": lambda value: isinstance(value, AxisType)}),
    "BufferArg": Record(BufferArg, {"uid": is_int, "size": is_int, "device": _is_text}),
    "CheckArg": Record(
        CheckArg,
        {
            "wraps": _is_truth,
            **dict.fromkeys(("size", "number", "slot", "bits"), is_int),
            **dict.fromkeys(("operation", "of_what"), _is_text),
        },
    ),
    "DotArg": Record(
        DotArg,
        {
            "core": _is_text,
            "rows": is_int,
            "columns": is_int,
            "length": is_int,
            "left": is_int_tuple,
            "right": is_int_tuple,
        },
    ),
    "MultiArg": Record(MultiArg, {"axis": lambda value: value is None or is_int(value), "devices": _is_texts}),
    "ParamArg": Record(ParamArg, {"slot": is_int, "size": is_int, "device": _is_text}),
    "TileDotArg": Record(
        TileDotArg,
        {
            "core": _is_text,
            "length": is_int,
            "left": lambda value: value is None or isinstance(value, TileLayout),
            "right": lambda value: isinstance(value, TileLayout),
            "parts": is_int,
        },
        optional={"parts": 1},
    ),
    "TileLayout": Record(TileLayout, dict.fromkeys(TileLayout._fields, is_int)),
    "ViewArg": Record(ViewArg, {"shape": is_int_tuple, "strides": is_int_tuple}),
    "CustomKernel": Record(
        CustomKernel,
        {
            "ast": lambda value: isinstance(value, UOp),
            "output": is_int,
            "shapes": lambda value: isinstance(value, tuple) and all(map(is_int_tuple, value)),
            "dtypes": lambda value: isinstance(value, tuple) and all(isinstance(item, DType) for item in value),
            "written": is_int_tuple,
            "sources": lambda value: isinstance(value, tuple) and all(item is None or is_int(item) for item in value),
            "sizes": is_int_tuple,
        },
        optional={"sizes": ()},
        hidden=frozenset({"gradient", "origin"}),  # a function has no text
    ),
    "KernelInfo": Record(
        KernelInfo,
        {
            "name": _is_text,
            "opts_to_apply": _is_opts,
            "applied": _is_opts,
            "fills": is_int_tuple,
            "sections": is_int,
            "section_buffers": is_int,
            "streams": is_int_tuple,
        },
        optional={"fills": (), "sections": 1, "section_buffers": 0, "streams": ()},
    ),
    "SymbolicInt": Record(
        SymbolicInt,
        {"node": lambda value: isinstance(value, UOp), "bindings": lambda value: value is None or _is_bindings(value)},
    ),
    "Opt": Record(
        Opt,
        {
            "op": lambda value: isinstance(value, OptOps),
            "axis": lambda value: value is None or is_int(value),
        },
    ),
}


def field_names(record: Record) -> tuple[str, ...]:
    return tuple(name for name in records.field_names(record.make) if name not in record.hidden)


def _written_fields(value: Any, record: Record) -> list[Any]:
    names = list(field_names(record))
    while names and names[-1] in record.optional and getattr(value, names[-1]) == record.optional[names[-1]]:
        names.pop()
    return [getattr(value, name) for name in names]


def axis_name(node: UOp) -> str:
    """The name of a RANGE: `g0`, `R1`, `u2_0`; the letter is that of its AxisType."""
    return str(node.arg.kind.value) + "_".join(map(str, node.arg.id))


# ---------------------------------------------------------------- writing


def literal(value: Any, depth: int = 0) -> str:
    """An argument as text that `parse` reads back as an equal value of the same type."""
    if depth > MAX_DEPTH:
        raise InternalError("an argument is nested too deeply to be written as text")
    if value is None or type(value) in (bool, float):
        return repr(value)
    if isinstance(value, enum.Enum) and type(value).__name__ in ENUMS:
        return f"{type(value).__name__}.{value.name}"
    if type(value) is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise InternalError("an argument holds too large an integer to be written as text")
        return str(value)
    if type(value) is str:
        return json.dumps(value)
    if isinstance(value, Op):
        return f"Ops.{value.name}"
    if isinstance(value, DType):
        return f"dtypes.{value.name}"
    if type(value).__name__ in RECORDS:
        fields = [literal(field, depth + 1) for field in _written_fields(value, RECORDS[type(value).__name__])]
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, UOp):  # a kernel, which a graph may call hundreds of times
        found: str | None = value.cache.get("text")
        if found is None:
            found = value.cache["text"] = f"graph({json.dumps(graph_text(value))})"
        return found
    if type(value) is tuple:
        items = ", ".join(literal(item, depth + 1) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    raise InternalError(f"an argument of type {type(value).__name__} has no text form")


def graph_text(root: UOp) -> str:
    """One node a line, sources first, without what is for the reader alone."""
    numbers: dict[UOp, int] = {}
    return "".join(node_text(node, numbers) + "\n" for node in toposort(root))


def node_text(node: UOp, numbers: dict[UOp, int]) -> str:
    """The line of a node, which gets the next number."""
    numbers[node] = len(numbers)
    words = [f"%{numbers[node]} = {node.op.name} {node.dtype.name}", *(f"%{numbers[src]}" for src in node.src)]
    return " ".join(words if node.arg is None else [*words, literal(node.arg)])
