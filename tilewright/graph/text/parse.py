"""The text form of a graph, read and written. In: text such as `%2 = ADD float32 %0 %1`. Out: the very node it was
written from, since nodes are interned; or a ParseError that points at the place and says why. Text is read by a small
tokeniser and never evaluated, so a file from anywhere may be parsed. `show.py` writes whole graphs with `literal`."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError, ParseError
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
from tilewright.graph.spec import Op
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.graph.verification.kernel_nodes import KERNEL_RULES
from tilewright.graph.verification.tensor_nodes import TENSOR_RULES, is_int, is_int_tuple
from tilewright.graph.walk import toposort

_OPS: dict[str, Op] = {op.name: op for op in ALL_OPS}
_DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*dtypes.all, dtypes.index, dtypes.void)}
_ENUMS: dict[str, type[enum.Enum]] = {kind.__name__: kind for kind in (AxisType, AddrSpace, OptOps)}
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}

# Nobody writes arguments this deep; the limit keeps hostile text from exhausting the stack.
_DEEPEST = 40
# Bits of the largest integer: beyond every dtype, and short enough for Python to print.
_WIDEST = 1024


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
    field is one of the last: it is left out where it and those behind it have their defaults. A hidden one never is
    written."""

    make: Callable[..., Any]
    tests: dict[str, Callable[[Any], bool]]
    optional: Mapping[str, Any] = {}
    hidden: frozenset[str] = frozenset()


_RECORDS: dict[str, Record] = {
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
        },
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
        },
        hidden=frozenset({"gradient"}),  # a function has no text
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
        },
        optional={"fills": (), "sections": 1, "section_buffers": 0},
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


def _field_names(record: Record) -> tuple[str, ...]:
    made: Any = record.make
    names = [field.name for field in dataclasses.fields(made)] if dataclasses.is_dataclass(made) else made._fields
    return tuple(name for name in names if name not in record.hidden)


def _written_fields(value: Any, record: Record) -> list[Any]:
    names = list(_field_names(record))
    while names and names[-1] in record.optional and getattr(value, names[-1]) == record.optional[names[-1]]:
        names.pop()
    return [getattr(value, name) for name in names]


# ---------------------------------------------------------------- writing


def literal(value: Any, depth: int = 0) -> str:
    """An argument as text that `parse` reads back as an equal value of the same type."""
    if depth > _DEEPEST:
        raise InternalError("an argument is nested too deeply to be written as text")
    if value is None or type(value) in (bool, float):
        return repr(value)
    if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
        return f"{type(value).__name__}.{value.name}"
    if type(value) is int:
        if value.bit_length() > _WIDEST:
            raise InternalError("an argument holds too large an integer to be written as text")
        return str(value)
    if type(value) is str:
        return json.dumps(value)
    if isinstance(value, Op):
        return f"Ops.{value.name}"
    if isinstance(value, DType):
        return f"dtypes.{value.name}"
    if type(value).__name__ in _RECORDS:
        fields = [literal(field, depth + 1) for field in _written_fields(value, _RECORDS[type(value).__name__])]
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


# ---------------------------------------------------------------- reading

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<node>%[0-9]+)
      | (?P<text>"(?:[^"\\\n]|\\[^\n])*")
      | (?P<float>-?[0-9]+(?:\.[0-9]*(?:e[-+]?[0-9]+)?|e[-+]?[0-9]+)|-inf)
      | (?P<int>-?[0-9]+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)?)
      | (?P<mark>[(),=])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """One piece of the text; `kind` names the alternative of `_TOKEN` that matched."""

    kind: str
    text: str
    position: int


class _Reader:
    """The tokens of a text, and where it stands among them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(f"{text[position]!r} starts nothing that stands in a graph", position)
            if match.lastgroup != "space":
                self.tokens.append(Token(match.lastgroup or "", match[0], position))
            position = match.end()
        self.tokens.append(Token("newline", "", len(text)))
        self.place = 0

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        at = self.tokens[self.place].position if position is None else position
        remedy = "write one node a line, such as `%2 = ADD float32 %0 %1`, its sources above it, argument last"
        raise ParseError("parse", reason, remedy, text=self.text, position=at)

    def peek(self) -> Token:
        return self.tokens[self.place]

    def take(self, kind: str, text: str | None = None) -> Token:
        token = self.tokens[self.place]
        if token.kind != kind or (text is not None and token.text != text):
            found = "the end of the line" if token.kind == "newline" else repr(token.text)
            self.fail(f"{found} stands where {kind if text is None else repr(text)} must")
        # The last newline stays, so that reading past the end always finds a token.
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def at_mark(self, text: str) -> bool:
        token = self.tokens[self.place]
        return token.kind == "mark" and token.text == text

    # ------------------------------------------------------------ arguments

    def read_value(self, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            self.fail("the argument is nested too deeply")
        token = self.peek()
        if token.kind == "int":
            return self._read_int(self.take("int"))
        if token.kind == "float":
            return float(self.take("float").text)
        if token.kind == "text":
            return self._read_text(self.take("text"))
        if token.kind == "word":
            return self._read_word(self.take("word"), depth)
        if self.at_mark("("):
            return self._read_items(depth)
        return self.fail("no argument can start here")

    def _read_int(self, token: Token) -> int:
        # The first test is for Python, which refuses to read very long integers.
        if len(token.text) > _WIDEST or int(token.text).bit_length() > _WIDEST:
            self.fail("the integer is too large", token.position)
        return int(token.text)

    def _read_text(self, token: Token) -> str:
        try:
            return str(json.loads(token.text))
        except ValueError as error:
            return self.fail(f"the text is not a JSON string: {error}", token.position)

    def _read_items(self, depth: int) -> tuple[Any, ...]:
        """`(a, b)`; a single item needs its comma, as in Python."""
        start = self.take("mark", "(")
        items: list[Any] = []
        commas = 0
        while not self.at_mark(")"):
            if items and commas < len(items):
                self.take("mark", ",")
                commas += 1
                continue
            items.append(self.read_value(depth + 1))
        self.take("mark", ")")
        if len(items) == 1 and not commas:
            self.fail("a tuple of one item is written `(item,)`", start.position)
        return tuple(items)

    def _read_word(self, token: Token, depth: int) -> Any:
        if token.text in _WORDS:
            return _WORDS[token.text]
        if token.text in _RECORDS:
            return self._read_record(token, depth)
        if token.text == "graph":
            self.take("mark", "(")
            inner = self._read_text(self.take("text"))
            self.take("mark", ")")
            return parse(inner)
        family, _, name = token.text.partition(".")
        if family == "Ops" and name in _OPS:
            return _OPS[name]
        if family == "dtypes" and name in _DTYPES:
            return _DTYPES[name]
        if family in _ENUMS and name in _ENUMS[family].__members__:
            return _ENUMS[family][name]
        return self.fail(f"{token.text!r} is no argument that a node can have", token.position)

    def _read_record(self, token: Token, depth: int) -> Any:
        record = _RECORDS[token.text]
        self.take("mark", "(")
        values: list[Any] = []
        for name in _field_names(record):
            if name in record.optional and self.at_mark(")"):
                continue
            if values:
                self.take("mark", ",")
            position = self.peek().position
            values.append(self.read_value(depth + 1))
            if name in record.tests and not record.tests[name](values[-1]):
                self.fail(f"{token.text}.{name} cannot be {literal(values[-1])}", position)
        self.take("mark", ")")
        return record.make(*values)


def parse(text: str, check: bool = True) -> UOp:
    """The node that the last line of `text` names: the same object that `show` was given, while that is alive.

    `check` holds each node to the rules of its op; without it, a broken graph comes back broken, to be looked at.
    """
    reader = _Reader(text)
    nodes: dict[str, UOp] = {}
    root: UOp | None = None
    while reader.place < len(reader.tokens) - 1:
        if reader.peek().kind == "newline":
            reader.take("newline")
            continue
        root = _read_node(reader, nodes, check)
    if root is None:
        reader.fail("the text holds no node")
    return root


def _read_node(reader: _Reader, nodes: dict[str, UOp], check: bool) -> UOp:
    label = reader.take("node")
    if label.text in nodes:
        reader.fail(f"{label.text} is written twice", label.position)
    reader.take("mark", "=")
    op_token = reader.take("word")
    if op_token.text not in _OPS:
        reader.fail(f"no op is called {op_token.text!r}", op_token.position)
    dtype_token = reader.take("word")
    if dtype_token.text not in _DTYPES:
        reader.fail(f"no dtype is called {dtype_token.text!r}", dtype_token.position)
    sources: list[UOp] = []
    while reader.peek().kind == "node":
        source = reader.take("node")
        if source.text not in nodes:
            reader.fail(f"{source.text} is not written above", source.position)
        sources.append(nodes[source.text])
    argument = None if reader.peek().kind == "newline" else reader.read_value()
    if reader.peek().kind != "newline":
        reader.fail("the line goes on after the argument")
    op = _OPS[op_token.text]
    dtype = _DTYPES[dtype_token.text]
    if check:
        complaint = _complaint(op, dtype, tuple(sources), argument)
        if complaint is not None:
            reader.fail(f"{op.name} {complaint}", op_token.position)
    nodes[label.text] = UOp(op, dtype, tuple(sources), argument)
    return nodes[label.text]


def _complaint(op: Op, dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    """What the rules have against the node, found on a stand-in that is not interned: a wrong argument may equal a
    right one (True and 1, a tuple and an Axis), and must not be handed to the next who asks for that node."""
    probe = object.__new__(UOp)
    probe.op = op
    probe.dtype = dtype
    probe.src = src
    probe.arg = arg
    probe.line = None
    probe._shape = None
    probe._bounds = None
    probe._ranges = None
    probe._cache = None
    for rule in (*TENSOR_RULES, *KERNEL_RULES):
        if op in rule.ops:
            complaint = rule.check(probe)
            if complaint is not None:
                return complaint
    return None
