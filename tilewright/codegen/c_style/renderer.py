"""Programs as C. In: a `Program` and the dialect to write. Out: the text of one kernel, for a compiler and for people.

Tiles are written out here and nowhere earlier: a value is one variable per element of its tile. A value that is used
once, in the block that computes it, is written where it is used; every other one gets a name. OpenCL, CUDA, HIP, Metal
and the C compiler of the CPU share this file; what differs between them is their `Language`."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError
from tilewright.codegen.c_style.language import COMPARISONS, UNARY, Expression, Language
from tilewright.codegen.c_style.launch import AxisPlace, Sizes, plan_launch
from tilewright.codegen.c_style.memory import CStyleMemory
from tilewright.codegen.tiles import Coordinates, TileFacts, axis_size, tile_part
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of

# An expression longer than this gets a name also where it is used once.
LONGEST_INLINE = 72
LINE_LENGTH = 120
MOST_AXES = 10_000
_AXIS_NAMES = {
    AxisType.GLOBAL: "global",
    AxisType.THREAD: "thread",
    AxisType.LOCAL: "local",
    AxisType.GROUP: "group",
    AxisType.LOOP: "loop",
    AxisType.REDUCE: "reduce",
}


class CStyleRenderer:
    """Writes one program. A backend with ops of its own overrides `emit_node`."""

    def __init__(self, program: Program, language: Language) -> None:
        self.program = program
        self.language = language
        self.facts = TileFacts(program)
        self.launch = plan_launch(program)
        self.values: dict[UOp, dict[Coordinates, Expression]] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.counts: dict[str, int] = {}
        self.axis_names: dict[UOp, str] = {}
        self.memory = CStyleMemory(self)
        self.inlined = self._find_inlined()
        self.index_dtype = self._find_index_dtype()
        self.positions = self._find_positions()

    # ------------------------------------------------------------ text

    def line(self, text: str) -> None:
        indent = "  " * self.depth
        if len(indent) + len(text) <= LINE_LENGTH or '"' in text or "//" in text:
            self.lines.append(indent + text)
        else:
            # A space that the wrapping does not know keeps a name and its value on one line.
            joined = text.replace(" = ", "\u00a0=\u00a0")
            wrapped = textwrap.wrap(joined, LINE_LENGTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
            self.lines += [line.replace("\u00a0", " ") for line in wrapped]

    def fresh(self, stem: str) -> str:
        """A name that is not taken."""
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        return f"{stem}{number}"

    def element_name(self, name: str, coordinates: Coordinates) -> str:
        return "_".join([name, *map(str, coordinates)])

    def declare(self, dtype: DType, value: Expression, name: str) -> Expression:
        self.line(f"{self.language.constant(dtype, name)} = {value.text};")
        return Expression(name)

    def define(self, dtype: DType, value: Expression, stem: str) -> Expression:
        return self.declare(dtype, value, self.fresh(stem))

    # ------------------------------------------------------------ the whole

    def render(self) -> str:
        params = [(param, self._param_name(param)) for param in self.program.params]
        self._name_memory({param.slot: name for param, name in params})
        self.open_launch()
        for node in self.program.body:
            if node.op is Ops.RANGE:
                if node.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
                    self.open_loop(node)
            elif node.op is Ops.END:
                self.close_loop()
            elif self.facts.is_needed(node):
                self.emit_node(node)
        self.close_launch()
        signature = self.language.signature(self.program, self.launch, params)
        head = self.language.prelude(self.program)
        helpers = list(self.language.helpers.values())
        parts = [head, helpers, [self.describe(), *signature, *self.lines, "}"]]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def describe(self) -> str:
        """A comment with the axes of the kernel: GLOBAL 64 x 16, LOCAL 8, UPCAST 4."""
        tiles = {axis for node in self.program.body for axis in self.facts.axes(node)}
        loops = [n for n in self.program.body if n.op is Ops.RANGE and n.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]
        axes = [*self.program.global_ranges, *self.program.local_ranges, *loops]
        axes += sorted(tiles, key=lambda axis: axis.arg.id)
        words = []
        for kind in AxisType:
            sizes = [str(axis_size(axis)) for axis in dict.fromkeys(axes) if axis.arg.kind is kind]
            if sizes:
                words.append(f"{kind.name} {' x '.join(sizes)}")
        return f"// {self.program.name}: {', '.join(words) or 'one element'}"

    def _param_name(self, param: Param) -> str:
        kind = "inout" if param.is_read and param.is_written else "out" if param.is_written else "in"
        return f"{kind}{param.slot}"

    def _name_memory(self, params: dict[int, str]) -> None:
        """Buffers are parameters; local memory and arrays of registers are declared in front of everything."""
        for node in self.program.body:
            if node.op is not Ops.INDEX:
                continue
            memory = memory_of(node)
            if memory in self.memory.names:
                continue
            if memory.op is Ops.PARAM:
                self.memory.names[memory] = params[memory.arg.slot]
            elif memory.op is Ops.DEFINE_LOCAL:
                name = self.memory.names[memory] = f"shared{memory.arg.slot}"
                self.line(self.language.declare_local(name, memory.dtype, memory.arg.size))
            else:
                name = self.memory.names[memory] = f"reg{memory.arg.slot}"
                self.line(self.language.declare_register(name, memory.dtype, memory.arg.size))

    # ------------------------------------------------------------ launch

    def open_launch(self) -> None:
        """The axes of the grid and of the work-group, from the numbers that the device gives."""
        self.open_grid()
        self.open_group()

    def open_grid(self) -> None:
        launch, language = self.launch, self.language
        grid = [language.group_index(dimension) for dimension in range(3)]
        self._open_axes(launch.grid_places, launch.grid, grid, "block")
        if launch.has_surplus:
            self.line(f"if (block >= {launch.count}) {language.leave}")

    def open_group(self) -> None:
        launch = self.launch
        group = [self.language.thread_index(dimension) for dimension in range(3)]
        self._open_axes(launch.group_places, launch.group, group, "thread")

    def _open_axes(self, places: tuple[AxisPlace, ...], sizes: Sizes, names: list[str], together: str) -> None:
        language = self.language
        if any(place.dimension is None for place in places):
            dtype = dtypes.int32 if math.prod(sizes) <= dtypes.int32.max else dtypes.int64
            x, y, z = (language.cast_text(dtype, Expression(name)).text for name in names)
            self.line(f"{language.constant(dtype, together)} = ({z} * {sizes[1]} + {y}) * {sizes[0]} + {x};")
        for place in reversed(places):
            axis = place.axis
            text = together if place.dimension is None else names[place.dimension]
            if place.stride > 1:
                text = f"{text} / {place.stride}"
            if not place.is_last:
                text = f"{text} % {axis_size(axis)}"
            declared = language.constant(axis.dtype, self.axis_name(axis))
            comment = f"// {axis.arg.kind.name} {axis_size(axis)}"
            self.line(f"{declared} = {language.launch_number(axis.dtype, text)};  {comment}")
            self.values[axis] = {(): Expression(self.axis_name(axis))}

    def close_launch(self) -> None:
        return

    # ------------------------------------------------------------ loops

    def axis_name(self, axis: UOp) -> str:
        """By its number in the kernel. Axes that codegen adds have numbers far above, and are named in their order."""
        name = self.axis_names.get(axis)
        if name is None:
            stem = _AXIS_NAMES[axis.arg.kind]
            is_added = max(axis.arg.id) > MOST_AXES
            name = self.fresh(f"{stem}_added") if is_added else stem + "_".join(map(str, axis.arg.id))
            self.axis_names[axis] = name
        return name

    def open_loop(self, axis: UOp, start: str = "0", stop: str = "") -> None:
        name, size = self.axis_name(axis), axis.src[0]
        stop = stop or (str(axis_size(axis)) if size.is_const else self.operand(size, {}).text)
        self.line(f"for ({self.language.variable(axis.dtype, name)} = {start}; {name} < {stop}; {name}++) {{")
        self.values[axis] = {(): Expression(name)}
        self.depth += 1

    def close_loop(self) -> None:
        self.depth -= 1
        self.line("}")

    # ------------------------------------------------------------ what is written where it is used

    def _find_inlined(self) -> set[UOp]:
        """Elementwise nodes with one use, as often as they are computed and in the same block."""
        blocks: dict[UOp, int] = {}
        users: dict[UOp, list[UOp]] = {}
        block, stack, numbers = 0, [0], itertools.count(1)
        for node in self.program.body:
            if node.op is Ops.RANGE:
                # A count that is used elsewhere as well is a value of its own.
                users.setdefault(node.src[0], []).extend((node, node))
                block = next(numbers)
                stack.append(block)
            elif node.op is Ops.END:
                stack.pop()
                block = stack[-1]
            elif self.facts.is_needed(node):
                blocks[node] = block
                base = tile_part(node.src[1])[0] if node.op is Ops.INDEX else None
                for src in node.src if base is None else (base, *node.src[2:]):
                    users.setdefault(src, []).append(node)
        return {
            node
            for node, found in users.items()
            if len(found) == 1
            and node.op.is_elementwise
            and node.op is not Ops.CHECK
            and blocks.get(node) == blocks[found[0]]
            and set(self.facts.axes(node)) == set(self.facts.axes(found[0]))
        }

    def _find_index_dtype(self) -> DType:
        positions = [node.src[1].dtype for node in self.program.body if node.op is Ops.INDEX]
        return dtypes.int64 if dtypes.int64 in positions else dtypes.int32

    def _find_positions(self) -> set[UOp]:
        """The integers that positions are computed from."""
        found: set[UOp] = set()
        for node in reversed(self.program.body):
            if node.op is Ops.INDEX:
                found.update((node.src[1], *([] if (base := tile_part(node.src[1])[0]) is None else [base])))
            elif node in found and node.op.is_elementwise:
                found.update(source for source in node.src if source.dtype.is_int)
        return found

    # ------------------------------------------------------------ operands

    def elements(self, node: UOp) -> Iterator[tuple[Coordinates, dict[UOp, int]]]:
        axes = self.facts.axes(node)
        for coordinates in itertools.product(*(range(axis_size(axis)) for axis in axes)):
            yield coordinates, dict(zip(axes, coordinates, strict=True))

    def operand(self, node: UOp, at: dict[UOp, int]) -> Expression:
        """The element of `node` at the coordinates `at`."""
        if node.op is Ops.CONST:
            return self.language.literal(node.dtype, node.arg)
        if node.op is Ops.RANGE and node.arg.kind.is_tile:
            return self.language.literal(node.dtype, at[node])
        return self.values[node][tuple(at[axis] for axis in self.facts.axes(node))]

    # ------------------------------------------------------------ nodes

    def emit_node(self, node: UOp) -> None:
        if node.op is Ops.CHECK:
            self._emit_check(node)
        elif node.op.is_elementwise:
            self._emit_elementwise(node)
        elif node.op is Ops.LOAD:
            self.memory.load(node)
        elif node.op is Ops.STORE:
            self.memory.store(node)
        elif node.op is Ops.ACC:
            self._emit_accumulator(node)
        elif node.op is Ops.ACCUMULATE:
            self._emit_accumulate(node)
        elif node.op is Ops.COMBINE:
            self._emit_combine(node)
        elif node.op is Ops.BARRIER:
            self.line(self.language.barrier())
        elif node.op is Ops.WARP_FOLD:
            self._emit_warp_fold(node)
        elif node.op not in (Ops.INDEX, Ops.DEFINE_LOCAL, Ops.DEFINE_REG):
            raise InternalError(f"the C renderer cannot write {node.op!r}")

    def _emit_elementwise(self, node: UOp) -> None:
        stem = "idx" if node in self.positions else "is" if node.dtype.is_bool else "alu"
        name = ""
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.elements(node):
            value = self._spell(node, [self.operand(src, at) for src in node.src])
            if node not in self.inlined or len(value.text) > LONGEST_INLINE:
                name = name or self.fresh(stem)
                value = self.declare(node.dtype, value, self.element_name(name, coordinates))
            values[coordinates] = value
        self.values[node] = values

    def _emit_check(self, node: UOp) -> None:
        """The value, and a store of it where it is out of range; of several such elements any one may stay."""
        language, dtype, arg = self.language, node.dtype, node.arg
        word = dtypes.int64 if arg.bits == 64 else dtypes.int32
        place = next(self._param_name(param) for param in self.program.params if param.slot == arg.slot)
        name = self.fresh("idx")
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.elements(node):
            value, valid = (self.operand(src, at) for src in node.src)
            value = values[coordinates] = self.declare(dtype, value, self.element_name(name, coordinates))
            conditions = [] if valid.text == "true" else [valid.within(UNARY)]
            bounds = [] if dtype.is_unsigned else [f"{value.text} < {language.literal(dtype, 0).text}"]
            outside = " || ".join([*bounds, f"{value.text} >= {language.literal(dtype, arg.size).text}"])
            mask = Expression(" && ".join([*conditions, f"({outside})"]))
            stored = language.cast(dtype, word, value).text
            self.memory.store_under(mask, [f"{place}[{arg.number}] = {stored};"])
        self.values[node] = values

    def _spell(self, node: UOp, operands: list[Expression]) -> Expression:
        language = self.language
        if node.op is Ops.CAST:
            return language.cast(node.src[0].dtype, node.dtype, operands[0])
        if node.op is Ops.BITCAST:
            return language.bitcast(node.src[0].dtype, node.dtype, operands[0])
        if node.op is Ops.WHERE:
            return language.where(node.dtype, *operands)
        if len(operands) == 1:
            return language.unary(node.op, node.dtype, operands[0])
        dtype = node.src[0].dtype if node.op in COMPARISONS else node.dtype
        return language.binary(node.op, dtype, operands[0], operands[1], may_wrap(node))

    # ------------------------------------------------------------ accumulators

    def _emit_accumulator(self, node: UOp) -> None:
        name = f"acc{node.arg}"
        start = self.language.literal(node.dtype, node.src[0].arg).text
        kind = self.language.type_name(node.dtype)
        variables = {coordinates: self.element_name(name, coordinates) for coordinates, _ in self.elements(node)}
        self.line(f"{kind} {', '.join(f'{variable} = {start}' for variable in variables.values())};")
        self.values[node] = {coordinates: Expression(variable) for coordinates, variable in variables.items()}

    def _emit_accumulate(self, node: UOp) -> None:
        """acc = acc op value, element after element along the axes that the accumulator does not have."""
        acc, value = node.src
        unrolled = [axis for axis in self.facts.axes(value) if axis not in self.facts.axes(acc)]
        for coordinates, at in self.elements(acc):
            for step in itertools.product(*(range(axis_size(axis)) for axis in unrolled)):
                operand = self.operand(value, {**at, **dict(zip(unrolled, step, strict=True))})
                self._update(node.arg, acc.dtype, self.values[acc][coordinates], operand)

    def _update(self, op: Op, dtype: DType, variable: Expression, operand: Expression) -> None:
        adds = dtype.is_float or (dtype.is_unsigned and dtype.bits >= 32)
        if op is Ops.ADD and adds and dtype in self.program.target.native:
            self.line(f"{variable.text} += {operand.text};")
        else:
            self.line(f"{variable.text} = {self._join(op, dtype, variable, operand).text};")

    def _emit_combine(self, node: UOp) -> None:
        acc, *folded = node.src
        name = ""
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.elements(node):
            parts = []
            for step in itertools.product(*(range(axis_size(axis)) for axis in folded)):
                parts.append(self.operand(acc, {**at, **dict(zip(folded, step, strict=True))}))
            total = self._fold(node.arg, acc.dtype, parts)
            if len(parts) > 1:
                name = name or self.fresh("sum" if node.arg is Ops.ADD else "fold")
                total = self.declare(node.dtype, total, self.element_name(name, coordinates))
            values[coordinates] = total
        self.values[node] = values

    def _fold(self, op: Op, dtype: DType, parts: list[Expression]) -> Expression:
        """In pairs, so that the additions do not wait for one another."""
        while len(parts) > 1:
            pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
            parts = [self._join(op, dtype, *pair) for pair in pairs]
        return parts[0]

    def _join(self, op: Op, dtype: DType, left: Expression, right: Expression | None = None) -> Expression:
        return left if right is None else self.language.binary(op, dtype, left, right)

    def _emit_warp_fold(self, node: UOp) -> None:
        op, width = node.arg
        name = self.fresh("warp")
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.elements(node):
            folded = self.language.warp_fold(op, node.dtype, width, self.operand(node.src[0], at))
            values[coordinates] = self.declare(node.dtype, folded, self.element_name(name, coordinates))
        self.values[node] = values


def may_wrap(node: UOp) -> bool:
    """Whether an integer op may leave the range of its dtype, as far as the bounds of its sources tell."""
    if not node.dtype.is_int or node.op not in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG):
        return True
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if node.op is Ops.ADD:
        found = (low + other_low, high + other_high)
    elif node.op is Ops.SUB:
        found = (low - other_high, high - other_low)
    else:
        products = [left * right for left in (low, high) for right in (other_low, other_high)]
        found = (min(products), max(products))
    return not (node.dtype.min <= found[0] and found[1] <= node.dtype.max)


__all__ = ["CStyleRenderer", "Expression", "Language", "may_wrap"]
