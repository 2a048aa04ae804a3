"""Programs as C. In: a `Program` and the dialect to write. Out: the text of one kernel, for a compiler and for people.

Tiles are unrolled here and nowhere earlier: a value is one variable per element of its tile. A value with one use, in
the block that computes it, is inlined there; every other value gets a name. OpenCL, CUDA, HIP, Metal, WGSL and the C
compiler of the CPU share this file; what differs between them is their `Language`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError
from tilewright.codegen.c_style.emitter import Emitter, element_name
from tilewright.codegen.c_style.expressions import UNARY, Expression
from tilewright.codegen.c_style.language import COMPARISONS, Language
from tilewright.codegen.c_style.launch import AxisPlace, Sizes, plan_launch
from tilewright.codegen.c_style.memory import CStyleMemory
from tilewright.codegen.tiles import Coordinates, TileFacts, may_wrap, shifted_base, tile_part
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort

# A longer expression gets a name even with one use.
MAX_INLINE_LENGTH = 72


class CStyleRenderer:
    """Writes one program. A backend with ops of its own overrides `emit_node`."""

    def __init__(self, program: Program, language: Language) -> None:
        self.program = program
        self.language = language
        self.facts = TileFacts(program)
        self.launch = plan_launch(program)
        self.emitter = Emitter(language, self.facts, self._find_index_dtype())
        self.memory = CStyleMemory(self.emitter)
        self.inlined = self._find_inlined()
        self.positions = self._find_positions()
        self.early: set[UOp] = set(program.variables)  # values that exist before the body

    def render(self) -> str:
        params = [(param, self._param_name(param)) for param in self.program.params]
        self._name_memory({param.slot: name for param, name in params})
        for number, variable in enumerate(self.program.variables):
            self.emitter.values[variable] = {(): Expression(self.language.variable_name(number))}
        self.open_launch()
        self.emit_body(self.program.body)
        self.close_launch()
        signature = self.language.signature(self.program, self.launch, params)
        head = self.language.prelude(self.program)
        helpers = list(self.language.helpers.values())
        parts = [head, helpers, [self.describe(), *signature, *self.emitter.lines, "}"]]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def emit_body(self, body: Sequence[UOp]) -> None:
        for node in body:
            if node.op is Ops.RANGE:
                if node.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
                    self.open_loop(node)
            elif node.op is Ops.END:
                self.close_loop()
            elif self.facts.is_needed(node) and node not in self.early:
                self.emit_node(node)

    def emit_in_parts(self, body: Sequence[UOp], axes: Sequence[UOp]) -> None:
        """Nodes without loops, one after the other for each element along some tile axes: a large tile that is computed
        op by op would need registers for all of its elements. What does not depend on the axes comes first. Elements
        that share most loads, such as those of a column with a bias, follow each other."""
        if not axes or any(node.op in (Ops.RANGE, Ops.END, Ops.BARRIER) for node in body):
            self.emit_body(body)
            return
        self.emit_body([node for node in body if not set(axes) & set(self.facts.axes(node))])
        rest = [node for node in body if set(axes) & set(self.facts.axes(node))]
        loads = [self.facts.axes(node) for node in rest if node.op is Ops.LOAD]
        axes = sorted(axes, key=lambda axis: sum(axis not in own for own in loads))
        for place in itertools.product(*(range(size_of(axis)) for axis in axes)):
            self.emitter.part = dict(zip(axes, place, strict=True))
            self.emitter.line("{")
            self.emitter.depth += 1
            self.emit_body(rest)
            self.emitter.depth -= 1
            self.emitter.line("}")
        self.emitter.part = {}

    def split_around(self, body: Sequence[UOp], end: int, axes: Sequence[UOp]) -> tuple[list[UOp], list[UOp]]:
        """The nodes to emit with the tile that those before `end` compute, and the others, which are emitted in parts.
        What the tile is not computed from is left to the parts: loaded before, elements for the whole tile would take
        the registers of its sums."""
        needed: set[UOp] = set()
        loops = 0
        for node in reversed(body[:end]):
            loops += (node.op is Ops.END) - (node.op is Ops.RANGE)
            if loops or node in needed or not (node.op.is_elementwise or node.op in (Ops.LOAD, Ops.INDEX)):
                needed |= {node, *node.src}
        late = {node for node in body[:end] if node not in needed and set(axes) & set(self.facts.axes(node))}
        early = [node for node in body[:end] if node not in late]
        return early, [node for node in body[:end] if node in late] + list(body[end:])

    def describe(self) -> str:
        """A comment with the axes of the kernel: GLOBAL 64 x 16, LOCAL 8, UPCAST 4."""
        tiles = {axis for node in self.program.body for axis in self.facts.axes(node)}
        loops = [n for n in self.program.body if n.op is Ops.RANGE and n.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]
        axes = [*self.program.global_ranges, *self.program.local_ranges, *loops]
        axes += sorted(tiles, key=lambda axis: axis.arg.id)
        words = []
        for kind in AxisType:
            sizes = [str(size_of(axis)) for axis in dict.fromkeys(axes) if axis.arg.kind is kind]
            if sizes:
                words.append(f"{kind.name} {' x '.join(sizes)}")
        return f"// {self.program.name}: {', '.join(words) or 'one element'}"

    def _param_name(self, param: Param) -> str:
        kind = "inout" if param.is_read and param.is_written else "out" if param.is_written else "in"
        return f"{kind}{param.slot}"

    def _name_memory(self, params: dict[int, str]) -> None:
        """Buffers are parameters; local memory and arrays of registers are declared first."""
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
                self.emitter.line(self.language.declare_local(name, memory.dtype, memory.arg.size))
            else:
                name = self.memory.names[memory] = f"reg{memory.arg.slot}"
                self.emitter.line(self.language.declare_register(name, memory.dtype, memory.arg.size))

    # ------------------------------------------------------------ launch

    def open_launch(self) -> None:
        """Declares the axes of the grid and of the work-group, computed from the device's indices."""
        self.open_grid()
        self.open_group()

    def open_grid(self) -> None:
        launch, language = self.launch, self.language
        grid = [language.group_index(dimension) for dimension in range(3)]
        self._open_axes(launch.grid_places, launch.grid, grid, "block")
        if launch.has_surplus:
            self.emitter.line(f"if (block >= {launch.count}) {language.leave}")
        for place in launch.grid_places:
            self._leave_outside(place.axis)
        if self.program.section is not None:
            section = self.emitter.axis_name(self.program.section)
            for param in self.program.params:
                self.emitter.line(language.select_section(self.program, param, self._param_name(param), section))

    def _leave_outside(self, axis: UOp) -> None:
        """The grid covers the maximum sizes; work-groups beyond the size that a launch gives leave at once. All threads
        of a work-group leave, so no barrier waits for one."""
        if axis.src[0].is_const:
            return
        self.emit_size(axis)
        name, stop = self.emitter.axis_name(axis), self.emitter.operand(axis.src[0], {}).text
        self.emitter.line(f"if ({name} >= {stop}) {self.language.leave}")

    def emit_size(self, axis: UOp) -> None:
        """Computes the symbolic size of an axis, before the body."""
        below = set(toposort(axis.src[0])) - self.early
        for node in self.program.body:
            if node in below:
                self.emit_node(node)
        self.early |= below

    def open_group(self) -> None:
        launch = self.launch
        for line in self.language.thread_bounds(self.program, launch):
            self.emitter.line(line)
        group = [self.language.thread_index(dimension) for dimension in range(3)]
        self._open_axes(launch.group_places, launch.group, group, "thread")

    def _open_axes(self, places: tuple[AxisPlace, ...], sizes: Sizes, names: list[str], together: str) -> None:
        language = self.language
        if any(place.dimension is None for place in places):
            dtype = dtypes.int32 if math.prod(sizes) <= dtypes.int32.max else dtypes.int64
            x, y, z = (language.cast_text(dtype, Expression(name)).text for name in names)
            self.emitter.line(f"{language.constant(dtype, together)} = ({z} * {sizes[1]} + {y}) * {sizes[0]} + {x};")
        for place in reversed(places):
            axis = place.axis
            text = together if place.dimension is None else names[place.dimension]
            if place.stride > 1:
                text = f"{text} / {place.stride}"
            if not place.is_last:
                text = f"{text} % {size_of(axis)}"
            declared = language.constant(axis.dtype, self.emitter.axis_name(axis))
            comment = f"// {axis.arg.kind.name} {size_of(axis)}"
            self.emitter.line(f"{declared} = {language.launch_number(axis.dtype, text)};  {comment}")
            self.emitter.values[axis] = {(): Expression(self.emitter.axis_name(axis))}

    def close_launch(self) -> None:
        return

    # ------------------------------------------------------------ loops

    def open_loop(self, axis: UOp, start: str = "0", stop: str = "") -> None:
        name, stop = self.emitter.axis_name(axis), stop or self.stop_of(axis)
        self.emitter.line(f"for ({self.language.variable(axis.dtype, name)} = {start}; {name} < {stop}; {name}++) {{")
        self.emitter.values[axis] = {(): Expression(name)}
        self.emitter.depth += 1

    def stop_of(self, axis: UOp) -> str:
        """The number of iterations as text."""
        return str(size_of(axis)) if axis.src[0].is_const else self.emitter.operand(axis.src[0], {}).text

    def close_loop(self) -> None:
        self.emitter.depth -= 1
        self.emitter.line("}")

    # ------------------------------------------------------------ analysis

    def _find_inlined(self) -> set[UOp]:
        """Elementwise nodes with one use, in the same block and over the same tile."""
        blocks: dict[UOp, int] = {}
        users: dict[UOp, list[UOp]] = {}
        block, stack, numbers = 0, [0], itertools.count(1)
        for node in self.program.body:
            if node.op is Ops.RANGE:
                # A loop count is not inlined: it counts as two uses.
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
        """The integers that indices are computed from."""
        found: set[UOp] = set()
        for node in reversed(self.program.body):
            if node.op is Ops.INDEX:
                found.update((node.src[1], *([] if (base := tile_part(node.src[1])[0]) is None else [base])))
            elif node in found and node.op.is_elementwise:
                found.update(source for source in node.src if source.dtype.is_int)
        return found

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
            self.emitter.line(self.language.barrier())
        elif node.op is Ops.WARP_FOLD:
            self._emit_warp_fold(node)
        elif node.op not in (Ops.INDEX, Ops.DEFINE_LOCAL, Ops.DEFINE_REG):
            raise InternalError(f"the C renderer cannot write {node.op!r}")

    def _emit_elementwise(self, node: UOp) -> None:
        stem = "idx" if node in self.positions else "is" if node.dtype.is_bool else "alu"
        name = ""
        values: dict[Coordinates, Expression] = {}
        known: dict[str, Expression] = {}  # elements that are written alike are one variable
        base, steps = shifted_base(node)
        for coordinates, at in self.emitter.elements(node):
            if base is None:
                value = self._spell(node, [self.emitter.operand(src, at) for src in node.src])
            else:
                offset = sum(step * at[axis] for axis, step in steps.items())
                value = self._shifted(node.dtype, self.emitter.operand(base, at), offset)
            text = value.text
            if text in known:
                value = known[text]
            elif node not in self.inlined or len(text) > MAX_INLINE_LENGTH:
                name = name or self.emitter.fresh(stem)
                value = self.emitter.declare(node.dtype, value, name, coordinates)
            values[coordinates] = known[text] = value
        self.emitter.values[node] = values

    def _shifted(self, dtype: DType, base: Expression, offset: int) -> Expression:
        by = self.language.literal(dtype, offset)
        return self.language.binary(Ops.ADD, dtype, base, by, wraps=False) if offset else base

    def _emit_check(self, node: UOp) -> None:
        """The value, and a store of it where it is out of range; of several such elements any one may remain."""
        language, dtype, arg = self.language, node.dtype, node.arg
        word = dtypes.int64 if arg.bits == 64 else dtypes.int32
        words = next(self._param_name(param) for param in self.program.params if param.slot == arg.slot)
        name = self.emitter.fresh("idx")
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.emitter.elements(node):
            value, valid = (self.emitter.operand(src, at) for src in node.src)
            value = values[coordinates] = self.emitter.declare(dtype, value, name, coordinates)
            conditions = [] if valid.text == "true" else [valid.within(UNARY)]
            bounds = [] if dtype.is_unsigned else [f"{value.text} < {language.literal(dtype, 0).text}"]
            outside = " || ".join([*bounds, f"{value.text} >= {language.literal(dtype, arg.size).text}"])
            mask = Expression(" && ".join([*conditions, f"({outside})"]))
            stored = language.cast(dtype, word, value).text
            self.emitter.masked(mask, [f"{words}[{arg.number}] = {stored};"])
        self.emitter.values[node] = values

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
        if node.op is Ops.FDIV and is_estimated(node.src[1]):
            return language.quotient(node.dtype, *operands)
        dtype = node.src[0].dtype if node.op in COMPARISONS else node.dtype
        return language.binary(node.op, dtype, operands[0], operands[1], may_wrap(node))

    # ------------------------------------------------------------ accumulators

    def _emit_accumulator(self, node: UOp) -> None:
        start = self.language.literal(node.dtype, node.src[0].arg).text
        names = {at: element_name(f"acc{node.arg}", at) for at, _ in self.emitter.elements(node)}
        starts = ", ".join(f"{name} = {start}" for name in names.values())
        self.emitter.line(f"{self.language.type_name(node.dtype)} {starts};")
        self.emitter.values[node] = {coordinates: Expression(name) for coordinates, name in names.items()}

    def _emit_accumulate(self, node: UOp) -> None:
        """acc = acc op value, element by element along the axes that the accumulator does not have."""
        acc, value = node.src
        unrolled = [axis for axis in self.facts.axes(value) if axis not in self.facts.axes(acc)]
        for coordinates, at in self.emitter.elements(acc):
            for step in itertools.product(*(range(size_of(axis)) for axis in unrolled)):
                operand = self.emitter.operand(value, {**at, **dict(zip(unrolled, step, strict=True))})
                self._update(node.arg, acc.dtype, self.emitter.values[acc][coordinates], operand)

    def _update(self, op: Op, dtype: DType, variable: Expression, operand: Expression) -> None:
        adds = dtype.is_float or (dtype.is_unsigned and dtype.bits >= 32)
        if op is Ops.ADD and adds and dtype in self.program.target.native:
            self.emitter.line(f"{variable.text} += {operand.text};")
        else:
            self.emitter.line(f"{variable.text} = {self._join(op, dtype, variable, operand).text};")

    def _emit_combine(self, node: UOp) -> None:
        acc, *folded = node.src
        name = ""
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.emitter.elements(node):
            steps = itertools.product(*(range(size_of(axis)) for axis in folded))
            parts = [self.emitter.operand(acc, {**at, **dict(zip(folded, step, strict=True))}) for step in steps]
            total = self._fold(node.arg, acc.dtype, parts)
            if len(parts) > 1:
                name = name or self.emitter.fresh("sum" if node.arg is Ops.ADD else "fold")
                total = self.emitter.declare(node.dtype, total, name, coordinates)
            values[coordinates] = total
        self.emitter.values[node] = values

    def _fold(self, op: Op, dtype: DType, parts: list[Expression]) -> Expression:
        """Folds the parts as a balanced tree, whose additions are independent."""
        while len(parts) > 1:
            pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
            parts = [self._join(op, dtype, *pair) for pair in pairs]
        return parts[0]

    def _join(self, op: Op, dtype: DType, left: Expression, right: Expression | None = None) -> Expression:
        return left if right is None else self.language.binary(op, dtype, left, right)

    def _emit_warp_fold(self, node: UOp) -> None:
        op, width = node.arg
        name = self.emitter.fresh("warp")
        values: dict[Coordinates, Expression] = {}
        for coordinates, at in self.emitter.elements(node):
            folded = self.language.warp_fold(op, node.dtype, width, self.emitter.operand(node.src[0], at))
            values[coordinates] = self.emitter.declare(node.dtype, folded, name, coordinates)
        self.emitter.values[node] = values


# Ops that pass on the error of an operand.
_PASSED_ON = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG})


def is_estimated(node: UOp, depth: int = 4) -> bool:
    """Whether a number is computed from a power that a device function estimates, such as the divisor of a sigmoid: the
    estimate's error remains, so an exactly rounded quotient gains nothing."""
    if node.op is Ops.EXP2:
        return True
    sources = node.src if node.op in _PASSED_ON else node.src[1:] if node.op is Ops.WHERE else ()
    return depth > 0 and any(is_estimated(source, depth - 1) for source in sources)
