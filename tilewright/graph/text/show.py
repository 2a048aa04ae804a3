"""Graphs for people. In: a graph or a linear program. Out: text. `show` writes a graph, one node a line, as `parse`
reads it back; the others are shorter and are not parsed: `show_expression` writes index maths as infix, `show_program`
indents a program's loops and names the tile of each value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Kind
from tilewright.graph.text.arguments import axis_name, literal, node_text
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort


def show(root: UOp) -> str:
    """One node a line, sources first, the root last: `%3 = ADD float32 %1 %2  # (4, 4)`. What follows `#` is for the
    reader. The numbers follow from the graph alone, so equal graphs give equal text in every process."""
    numbers: dict[UOp, int] = {}
    return "".join(node_text(node, numbers) + _shape_comment(node) + "\n" for node in toposort(root))


def _shape_comment(node: UOp) -> str:
    try:
        shape = node.shape
    except (AttributeError, IndexError, TypeError, ValueError):
        # A graph that breaks the rules must still be shown: that is when somebody looks.
        return "  # no shape"
    return f"  # {shape}" if shape else ""


# ---------------------------------------------------------------- infix

# How tightly a symbol binds: as in Python, except that `*`, written without spaces, binds tighter than the other
# products, so that what stands close together belongs together. IDIV floors, which Python writes //.
_BINDING = {"<": 1, "==": 1, "!=": 1, "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6, "//": 7, "%": 7}
_BINDING |= {"/": 7, "*": 8}


_UNARY_BINDING = 9
_ATOM_BINDING = 10

Text = tuple[str, int]  # an expression and how tightly its outermost operator binds


def show_expression(node: UOp, limit: int = 2000) -> str:
    """A scalar expression as infix, such as `(i*4 + j) // 3`. A RANGE is the letter of its kind and its id. Parts that
    would be longer than `limit` become `...`: an expression that shares much is exponentially long when written out."""
    texts: dict[UOp, Text] = {}
    for part in toposort(node):
        text, binding = _expression_of(part, [texts[src] for src in part.src])
        texts[part] = (text, binding) if len(text) <= limit else ("...", _ATOM_BINDING)
    return texts[node][0]


def _bound(text: Text, binding: int) -> str:
    return text[0] if text[1] >= binding else f"({text[0]})"


def _expression_of(node: UOp, src: list[Text]) -> Text:
    if node.op is Ops.CONST:
        return literal(node.arg), _UNARY_BINDING if str(node.arg).startswith("-") else _ATOM_BINDING
    if node.op is Ops.VARIABLE:
        return str(node.arg[0]), _ATOM_BINDING
    if node.op is Ops.RANGE:
        return axis_name(node), _ATOM_BINDING
    if node.op in (Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG):
        return _buffer_name(node), _ATOM_BINDING
    if node.op.symbol:
        return _infix_of(node, src)
    if node.op is Ops.NEG:
        return "-" + _bound(src[0], _UNARY_BINDING), _UNARY_BINDING
    if node.op is Ops.AFTER:
        return src[0]
    if node.op is Ops.INDEX:
        mask = f" if {src[2][0]}" if len(src) > 2 else ""
        return f"{src[0][0]}[{src[1][0]}{mask}]", _ATOM_BINDING
    if node.op is Ops.LOAD and len(src) == 1:
        return src[0]
    operands = [text for text, _ in src]
    if node.op.kind is Kind.CAST:
        operands.insert(0, node.dtype.name)
    elif node.arg is not None:
        operands.append(literal(node.arg))
    return f"{node.op.name.lower()}({', '.join(operands)})", _ATOM_BINDING


def _infix_of(node: UOp, src: list[Text]) -> Text:
    symbol = "//" if node.op is Ops.IDIV else node.op.symbol
    middle, binding = "*" if symbol == "*" else f" {symbol} ", _BINDING[symbol]
    left, right = src
    if node.op is Ops.ADD and node.src[1].is_const and right[0].startswith("-"):
        # `i - 3` for i + -3.
        return f"{_bound(left, binding)} - {right[0][1:]}", binding
    # Comparisons do not chain; the others group from the left, so a right operand of equal binding needs brackets. So
    # does a `*` to the right of another product: in Python `i // j*2` divides first.
    right_binding = _UNARY_BINDING if binding == 7 else binding + 1
    return _bound(left, binding + (binding == 1)) + middle + _bound(right, right_binding), binding


def _buffer_name(node: UOp) -> str:
    prefix = {Ops.PARAM: "p", Ops.DEFINE_LOCAL: "local", Ops.DEFINE_REG: "reg"}[node.op]
    return f"{prefix}{node.arg.slot}"


# ---------------------------------------------------------------- trees


# ---------------------------------------------------------------- linear programs


def show_program(program: Program) -> str:
    """The program as it runs: `for` lines indent what their loop holds; `[u1:4]` after a dtype is the tile of a value,
    which the emitter writes out element by element."""
    params = ", ".join(
        f"p{param.slot}: {param.dtype.name}[{param.size}]"
        f"{' read' if param.is_read else ''}{' written' if param.is_written else ''}"
        for param in program.params
    )
    lines = [f"program {program.name}({params})"]
    if program.section is not None:
        lines.append(f"  sections {program.sections}, of {program.section_buffers} buffers each")
    for label, ranges in (("global", program.global_ranges), ("local", program.local_ranges)):
        if ranges:
            axes = ", ".join(f"{axis_name(node)} in 0..{show_expression(node.src[0])}" for node in ranges)
            lines.append(f"  {label} {axes}")
    names: dict[UOp, Text] = {}
    tiles: dict[UOp, tuple[UOp, ...]] = {}
    numbers = itertools.count()
    depth = 1
    for node in program.body:
        sources = [_operand(src, names) for src in node.src]
        tiles[node] = _tile_of(node, tiles)
        if node.op is Ops.END:
            depth -= 1
        elif node.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_REG):
            lines.append("  " * depth + f"{_buffer_name(node)}: {node.dtype.name}[{node.arg.size}]")
        elif node.op is Ops.INDEX:
            # A place is not a value: it is called by what it says, so that loads and stores read as in a program.
            names[node] = _expression_of(node, sources)
        else:
            lines.append("  " * depth + _line_of(node, sources, names, tiles, numbers))
        if node.op is Ops.RANGE and node not in program.global_ranges + program.local_ranges:
            depth += 1
    return "\n".join(lines) + "\n"


def _operand(node: UOp, names: dict[UOp, Text]) -> Text:
    if node.op is Ops.AFTER:
        # A program's order is that of its lines: the memory is called by its name.
        return _buffer_name(memory_of(node)), _ATOM_BINDING
    if node in names:
        return names[node]
    return _expression_of(node, []) if not node.src or node.op is Ops.RANGE else (f"?{node.op.name}", _ATOM_BINDING)


def _tile_of(node: UOp, tiles: dict[UOp, tuple[UOp, ...]]) -> tuple[UOp, ...]:
    """The tile axes a value depends on, in order of appearance; a COMBINE folds away those it names."""
    found: dict[UOp, None] = {}
    sources = node.src[:1] if node.op is Ops.COMBINE else node.src
    for src in sources:
        is_tile = src.op is Ops.RANGE and src.arg.kind.is_tile
        found.update(dict.fromkeys((src,) if is_tile else tiles.get(src, ())))
    folded = node.src[1:] if node.op is Ops.COMBINE else ()
    return tuple(axis for axis in found if axis not in folded)


def _line_of(
    node: UOp,
    src: list[Text],
    names: dict[UOp, Text],
    tiles: dict[UOp, tuple[UOp, ...]],
    numbers: Iterator[int],
) -> str:
    """The line of one node of the body; gives the node the name that later lines call it by."""
    tile = ", ".join(f"{axis_name(axis)}:{show_expression(axis.src[0])}" for axis in tiles[node])
    tile = f"[{tile}]" if tile else ""
    if node.op is Ops.RANGE:
        names[node] = (axis_name(node), _ATOM_BINDING)
        return f"for {axis_name(node)} in 0..{src[0][0]}:"
    if node.op is Ops.STORE:
        return f"{src[0][0]} = {src[1][0]}" + (f"  # {tile}" if tile else "")
    if node.op is Ops.ACCUMULATE:
        return f"{src[0][0]} = {node.arg.name.lower()}({src[0][0]}, {src[1][0]})" + (f"  # {tile}" if tile else "")
    if node.op is Ops.BARRIER:
        return "barrier"
    name = f"acc{node.arg}" if node.op is Ops.ACC else f"v{next(numbers)}"
    right = src[0][0] if node.op is Ops.ACC else _expression_of(node, src)[0]
    names[node] = (name, _ATOM_BINDING)
    return f"{name}: {node.dtype.name}{tile} = {right}"
