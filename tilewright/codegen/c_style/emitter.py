"""The text of one C kernel under construction. In: lines, and the expressions of nodes. Out: the lines of the body.

A value is one expression for each element of its tile. It depends neither on the renderer, which decides what to emit,
nor on `memory`, which writes loads and stores."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from tilewright.base.dtype import DType
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.tiles import Coordinates, TileFacts
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

LINE_LENGTH = 120
# Axes that codegen adds have numbers from here on.
MAX_AXES = 10_000
_AXIS_NAMES = {
    AxisType.GLOBAL: "global",
    AxisType.THREAD: "thread",
    AxisType.LOCAL: "local",
    AxisType.GROUP: "group",
    AxisType.LOOP: "loop",
    AxisType.REDUCE: "reduce",
}


class Emitter:
    """Names, lines and indentation of one kernel, and the expressions of its values."""

    def __init__(self, language: Language, facts: TileFacts, index_dtype: DType) -> None:
        self.language = language
        self.facts = facts
        self.index_dtype = index_dtype
        self.values: dict[UOp, dict[Coordinates, Expression]] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.part: dict[UOp, int] = {}  # the element along some tile axes, where only that is written
        self._counts: dict[str, int] = {}
        self._axis_names: dict[UOp, str] = {}

    def line(self, text: str) -> None:
        indent = "  " * self.depth
        if len(indent) + len(text) <= LINE_LENGTH or '"' in text or "//" in text:
            self.lines.append(indent + text)
        else:
            # A no-break space keeps a name and its value on one line.
            joined = text.replace(" = ", "\u00a0=\u00a0")
            wrapped = textwrap.wrap(joined, LINE_LENGTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
            self.lines += [line.replace("\u00a0", " ") for line in wrapped]

    def masked(self, mask: Expression | None, lines: list[str]) -> None:
        """Lines that run where the mask is true."""
        if mask is not None:
            lines = self.language.conditional(mask, lines)
        for line in lines:
            self.line(line)

    def fresh(self, stem: str) -> str:
        """A name that is not taken."""
        number = self._counts.get(stem, 0)
        self._counts[stem] = number + 1
        return f"{stem}{number}"

    def axis_name(self, axis: UOp) -> str:
        """The name of an axis, by its number in the kernel; axes that codegen adds are numbered in the order of their
        first use."""
        name = self._axis_names.get(axis)
        if name is None:
            stem = _AXIS_NAMES[axis.arg.kind]
            is_added = max(axis.arg.id) > MAX_AXES
            name = self.fresh(f"{stem}_added") if is_added else stem + "_".join(map(str, axis.arg.id))
            self._axis_names[axis] = name
        return name

    def declare(self, dtype: DType, value: Expression, name: str, coordinates: Coordinates = ()) -> Expression:
        """Declares a variable for a value: for a whole tile, or for its element at some coordinates."""
        name = element_name(name, coordinates)
        self.line(f"{self.language.constant(dtype, name)} = {value.text};")
        return Expression(name)

    def elements(self, node: UOp) -> Iterator[tuple[Coordinates, dict[UOp, int]]]:
        """The coordinates of each element of a node, as a tuple and by axis."""
        axes = self.facts.axes(node)
        part = self.part
        ranges = ((part[axis],) if axis in part else range(size_of(axis)) for axis in axes)
        for coordinates in itertools.product(*ranges):
            yield coordinates, dict(zip(axes, coordinates, strict=True))

    def operand(self, node: UOp, at: dict[UOp, int]) -> Expression:
        """The element of `node` at the coordinates `at`."""
        if node.op is Ops.CONST:
            return self.language.literal(node.dtype, node.arg)
        if node.op is Ops.RANGE and node.arg.kind.is_tile:
            return self.language.literal(node.dtype, at[node])
        return self.values[node][tuple(at[axis] for axis in self.facts.axes(node))]


def element_name(name: str, coordinates: Coordinates) -> str:
    return "_".join([name, *map(str, coordinates)])
