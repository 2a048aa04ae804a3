"""Reads the text form of a graph. In: text such as `%2 = ADD float32 %0 %1`. Out: the very node it was written from,
since nodes are interned; or a ParseError that points at the character and says why. Text is read by a small tokeniser
and never evaluated, so a file from anywhere may be parsed. `arguments.py` says what may stand in an argument."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tilewright.base.dtype import DType
from tilewright.base.errors import ParseError
from tilewright.base.records import NamedTuple
from tilewright.graph.spec import Op
from tilewright.graph.text.arguments import (
    DTYPES,
    ENUMS,
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    OPS,
    RECORDS,
    WORDS,
    field_names,
    literal,
)
from tilewright.graph.uop import UOp
from tilewright.graph.verification.kernel_nodes import KERNEL_RULES
from tilewright.graph.verification.tensor_nodes import TENSOR_RULES

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
        if depth > MAX_DEPTH:
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
        if len(token.text) > MAX_INTEGER_BITS or int(token.text).bit_length() > MAX_INTEGER_BITS:
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
        if token.text in WORDS:
            return WORDS[token.text]
        if token.text in RECORDS:
            return self._read_record(token, depth)
        if token.text == "graph":
            self.take("mark", "(")
            inner = self._read_text(self.take("text"))
            self.take("mark", ")")
            return parse(inner)
        family, _, name = token.text.partition(".")
        if family == "Ops" and name in OPS:
            return OPS[name]
        if family == "dtypes" and name in DTYPES:
            return DTYPES[name]
        if family in ENUMS and name in ENUMS[family].__members__:
            return ENUMS[family][name]
        return self.fail(f"{token.text!r} is not an argument that a node can have", token.position)

    def _read_record(self, token: Token, depth: int) -> Any:
        record = RECORDS[token.text]
        self.take("mark", "(")
        values: list[Any] = []
        for name in field_names(record):
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
    if op_token.text not in OPS:
        reader.fail(f"no op is called {op_token.text!r}", op_token.position)
    dtype_token = reader.take("word")
    if dtype_token.text not in DTYPES:
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
    op = OPS[op_token.text]
    dtype = DTYPES[dtype_token.text]
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
