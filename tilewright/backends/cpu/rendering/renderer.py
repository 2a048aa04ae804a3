"""Programs as LLVM IR. In: a `Program`. Out: the text of one function `void name(ptr buffers, i64 lo, i64 hi)`.

Tiles are written out here and nowhere earlier. A value is a set of elements, one per coordinate of its tile axes; along
one of them, its vector axis, the elements are the lanes of an LLVM vector. A value that does not depend on an axis is
computed once and splatted where it meets one that does, in front of the outermost loop that leaves it unchanged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tilewright.backends.cpu.code.llvm import FUNCTION_ATTRIBUTES
from tilewright.backends.cpu.rendering.checks import emit_check
from tilewright.backends.cpu.rendering.dot_products import DotProducts
from tilewright.backends.cpu.rendering.instructions import (
    Instructions,
    constant,
    is_exact,
    literal,
    of_lanes,
    operand_dtype,
    scalar_type,
    value_type,
)
from tilewright.backends.cpu.rendering.memory_access import MemoryAccess
from tilewright.backends.cpu.rendering.slow_paths import Detours
from tilewright.backends.cpu.rendering.transpose import vector_across
from tilewright.base.errors import InternalError
from tilewright.codegen.tiles import Coordinates, TileFacts, axis_size
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp


class Element:
    """One element of a value: its name in the text and how many loops are open where it is defined."""

    __slots__ = ("depth", "name")

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth


class _Loop:
    def __init__(self, axis: UOp, label: str, before: list[str]) -> None:
        self.axis = axis
        self.label = label
        self.before = before
        self.phis: list[tuple[UOp, Coordinates, list[str], int, str]] = []
        # The count where it is not a constant, and the block that skips the loop where it is 0.
        self.count: str | None = None
        self.skipped_from = ""
        self.entering: dict[tuple[UOp, Coordinates], str] = {}


class Renderer:
    """Writes one program."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name
        self.facts = TileFacts(program)
        self.instructions = Instructions(saturating="SATURATING_CAST" in program.target.native_ops)
        self.values: dict[UOp, dict[Coordinates, Element]] = {}
        self.splats: dict[tuple[str, int], Element] = {}
        self.chunks: list[list[str]] = [[]]
        self.loops: list[_Loop] = []
        self.counter = itertools.count()
        self.label = "entry"
        self.memory = MemoryAccess(self)
        self.dots = DotProducts(self)
        self.detours = Detours(self)

    # ------------------------------------------------------------ text

    def emit(self, text: str, depth: int | None = None) -> Element:
        """A new value from an instruction, placed in front of the loop that first encloses `depth`."""
        name = f"%v{next(self.counter)}"
        if depth is None or depth >= len(self.loops):
            self.chunks[-1].append(f"  {name} = {text}")
            return Element(name, len(self.loops))
        self.loops[depth].before.append(f"  {name} = {text}")
        return Element(name, depth)

    def on_entry(self, name: str) -> Element:
        """What is defined in front of all loops."""
        return Element(name, 0)

    def here(self, name: str) -> Element:
        """What is defined inside the loops that are open."""
        return Element(name, len(self.loops))

    def line(self, text: str) -> None:
        self.chunks[-1].append(text)

    def render(self) -> str:
        thread = next((axis for axis in self.program.global_ranges if axis.arg.kind is AxisType.THREAD), None)
        for param in self.program.params:
            pointer = self.emit(f"getelementptr ptr, ptr %buffers, i64 {param.slot}")
            self.memory.buffers[Ops.PARAM, param.slot] = self.emit(f"load ptr, ptr {pointer.name}")
        if thread is not None:
            self._open_loop(thread, "%lo")
        for node in self.program.body:
            if node.op is Ops.RANGE:
                if not node.arg.kind.is_tile and node is not thread:
                    self._open_loop(node, "0")
            elif node.op is Ops.END:
                self._close_loop()
            elif node.op is Ops.DEFINE_REG or node.op is Ops.DEFINE_LOCAL:
                self.memory.define(node)
            elif self.facts.is_needed(node) and node not in self.detours.postponed:
                self._emit_node(node)
        if thread is not None:
            self._close_loop("%hi")
        header = f"define void @{self.name}(ptr %buffers, i64 %lo, i64 %hi) {FUNCTION_ATTRIBUTES} {{\nentry:"
        body = [text for chunk in self.chunks for text in chunk]
        declarations = list(self.instructions.declarations.values())
        return "\n".join(
            [header, *self.memory.scratch(), *body, *self.memory.releases, "  ret void", "}", *declarations, ""]
        )

    # ------------------------------------------------------------ loops

    @property
    def loop_axes(self) -> list[UOp]:
        """Those that are open, the innermost last."""
        return [loop.axis for loop in self.loops]

    def _open_loop(self, axis: UOp, start: str) -> None:
        label = f"loop{next(self.counter)}"
        loop = _Loop(axis, label, [])
        self.chunks.append(loop.before)
        inside: list[str] = []
        self.chunks.append(inside)
        kind = "i64" if start != "0" else scalar_type(axis.dtype)
        if not axis.src[0].is_const:
            self._guard_loop(loop, inside)
        else:
            inside.append(f"  br label %{label}")
        inside.append(f"{label}:")
        counter = f"%{label}.i"
        inside.append(f"  {counter} = phi {kind} [ {start}, %{self.label} ], [ {counter}.next, %{label}.end ]")
        for acc in self.facts.updated_in(axis):
            for coordinates, element in self.values[acc].items():
                position = len(inside)
                name = f"%v{next(self.counter)}"
                inside.append("")
                loop.phis.append(
                    (acc, coordinates, inside, position, f"{name} = phi {{}} [ {element.name}, %{self.label} ]")
                )
                loop.entering[acc, coordinates] = element.name
                self.values[acc][coordinates] = Element(name, len(self.loops) + 1)
        self.loops.append(loop)
        self.label = label
        if kind != scalar_type(axis.dtype):
            counter = self.emit(f"trunc i64 {counter} to {scalar_type(axis.dtype)}").name
        self.values[axis] = {(): Element(counter, len(self.loops))}

    def _guard_loop(self, loop: _Loop, inside: list[str]) -> None:
        """A loop whose count is computed may have none: it is then jumped over."""
        axis, label = loop.axis, loop.label
        count = self.operand(axis.src[0], {}, None)
        if axis.src[0].dtype is not axis.dtype:
            inside.append(f"  %{label}.count = {self.instructions.cast(axis.src[0].dtype, axis.dtype, 0, count)}")
            count = f"%{label}.count"
        loop.count = count
        loop.skipped_from = self.label
        inside.append(f"  %{label}.any = icmp sgt {scalar_type(axis.dtype)} {count}, 0")
        inside.append(f"  br i1 %{label}.any, label %{label}, label %{label}.exit")

    def _close_loop(self, limit: str | None = None) -> None:
        loop = self.loops.pop()
        label, axis = loop.label, loop.axis
        counter = f"%{label}.i"
        kind = "i64" if limit is not None else scalar_type(axis.dtype)
        self.line(f"  br label %{label}.end")
        self.line(f"{label}.end:")
        self.line(f"  {counter}.next = add nuw nsw {kind} {counter}, 1")
        self.line(f"  %{label}.more = icmp ult {kind} {counter}.next, {limit or loop.count or axis_size(axis)}")
        self.line(f"  br i1 %{label}.more, label %{label}, label %{label}.exit")
        self.line(f"{label}.exit:")
        for acc, coordinates, chunk, position, text in loop.phis:
            last = self.values[acc][coordinates].name
            lanes = self.facts.lanes(acc)
            kind = value_type(acc.dtype, lanes)
            chunk[position] = f"  {text.format(kind)}, [ {last}, %{label}.end ]"
            if loop.count is not None:
                start = loop.entering[acc, coordinates]
                last = self.emit(f"phi {kind} [ {start}, %{loop.skipped_from} ], [ {last}, %{label}.end ]").name
            self.values[acc][coordinates] = Element(last, len(self.loops))
        self.label = f"{label}.exit"
        self.splats = {key: made for key, made in self.splats.items() if made.depth <= len(self.loops)}

    # ------------------------------------------------------------ operands

    def operand(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> str:
        """The element of `node` at the coordinates `at`, as a vector along `axis` where that is given."""
        lanes = axis_size(axis) if axis is not None else 0
        if node.op is Ops.CONST:
            return constant(node.dtype, node.arg, lanes)
        if node.op is Ops.RANGE and node.arg.kind.is_tile:
            return self._tile_index(node, at, axis)
        own_axis = self.facts.vector_axis(node)
        if axis is not None and own_axis is not axis and axis in self.facts.axes(node):
            return vector_across(self, node, at, axis)
        element = self.values[node][self.facts.coordinates(node, at)]
        if own_axis is axis:
            return element.name
        one = element if own_axis is None else self._lane(element, node, own_axis, at[own_axis])
        return self._splat(one, node, lanes).name if lanes else one.name

    def _tile_index(self, node: UOp, at: dict[UOp, int], axis: UOp | None) -> str:
        if node is axis:
            kind = scalar_type(node.dtype)
            return "<" + ", ".join(f"{kind} {lane}" for lane in range(axis_size(node))) + ">"
        return constant(node.dtype, at[node], axis_size(axis) if axis is not None else 0)

    def _splat(self, element: Element, node: UOp, lanes: int) -> Element:
        key = (element.name, lanes)
        made = self.splats.get(key)
        if made is None:
            one, many = scalar_type(node.dtype), value_type(node.dtype, lanes)
            first = self.emit(f"insertelement {many} poison, {one} {element.name}, i64 0", element.depth)
            text = f"shufflevector {many} {first.name}, {many} poison, <{lanes} x i32> zeroinitializer"
            made = self.splats[key] = self.emit(text, element.depth)
        return made

    def _lane(self, element: Element, node: UOp, axis: UOp, lane: int) -> Element:
        key = (f"{element.name}[{lane}]", 0)
        made = self.splats.get(key)
        if made is None:
            kind = value_type(node.dtype, axis_size(axis))
            made = self.splats[key] = self.emit(f"extractelement {kind} {element.name}, i64 {lane}", element.depth)
        return made

    # ------------------------------------------------------------ nodes

    def _emit_node(self, node: UOp) -> None:
        if node in self.dots.loads:
            self.dots.load(node)
        if node in self.dots.unwritten:
            return
        if node.op is Ops.CHECK:
            emit_check(self, node)
        elif node.op.is_elementwise:
            self._emit_elementwise(node)
        elif node.op is Ops.INDEX:
            self.memory.place(node)
        elif node.op is Ops.LOAD:
            self.memory.load(node)
        elif node.op is Ops.STORE:
            self.memory.store(node)
        elif node.op is Ops.ACC:
            lanes = self.facts.lanes(node)
            start = constant(node.dtype, node.src[0].arg, lanes)
            places = [*self.facts.all_coordinates(node), *self.dots.starts(node)]
            self.values[node] = {place: Element(start, 0) for place in places}
        elif node in self.dots.dots:
            self.dots.accumulate(node)
        elif node.op is Ops.ACCUMULATE:
            self._emit_accumulate(node)
        elif node.op is Ops.COMBINE:
            self._emit_combine(node)
        elif node.op is not Ops.BARRIER:  # the one thread of a task waits for nobody
            raise InternalError(f"the CPU renderer cannot write {node.op!r}")

    def elements(self, node: UOp) -> Iterator[tuple[Coordinates, dict[UOp, int]]]:
        axes = self.facts.outer_axes(node)
        for coordinates in self.facts.all_coordinates(node):
            yield coordinates, dict(zip(axes, coordinates, strict=True))

    def _emit_elementwise(self, node: UOp) -> None:
        self.values[node] = {coordinates: self.element(node, at) for coordinates, at in self.elements(node)}

    def element(self, node: UOp, at: dict[UOp, int]) -> Element:
        """One element of what is computed element by element."""
        axis, lanes = self.facts.vector_axis(node), self.facts.lanes(node)
        holds = holds_at(node.src[0], at) if node.op is Ops.WHERE else None
        if holds is not None:
            return self.here(self.operand(node.src[1 if holds else 2], at, axis))
        if node in self.detours.choices:
            return self.detours.choose(node, at)
        operands = [self.operand(src, at, axis) for src in node.src]
        return self.emit(self._spell(node, lanes, operands))

    def _spell(self, node: UOp, lanes: int, operands: list[str]) -> str:
        if node.op is Ops.CAST:
            return self.instructions.cast(node.src[0].dtype, node.dtype, lanes, operands[0])
        if node.op is Ops.BITCAST:
            return self.instructions.bitcast(node.src[0].dtype, node.dtype, lanes, operands[0])
        if node.op is Ops.WHERE:
            return self.instructions.select(node.dtype, lanes, *operands)
        if len(operands) == 1:
            return self.instructions.unary(node.op, node.dtype, lanes, operands[0])
        left, right = operands
        return self.instructions.binary(node.op, operand_dtype(node), lanes, left, right, is_exact(node))

    def _emit_accumulate(self, node: UOp) -> None:
        """acc = acc op value, element after element along the axes that the accumulator does not have. What is known
        not to count is left out."""
        acc, value = node.src
        axis, lanes = self.facts.vector_axis(acc), self.facts.lanes(acc)
        unrolled = [a for a in self.facts.axes(value) if a not in self.facts.axes(acc)]
        for coordinates, at in self.elements(acc):
            for step in itertools.product(*(range(axis_size(a)) for a in unrolled)):
                place = {**at, **dict(zip(unrolled, step, strict=True))}
                is_chosen = value.op is Ops.WHERE and value.src[2] is acc.src[0]
                if is_chosen and holds_at(value.src[0], place) is False:
                    continue
                operand = self.operand(value, place, axis)
                current = self.values[acc][coordinates].name
                text = self.instructions.binary(node.arg, acc.dtype, lanes, current, operand)
                self.values[acc][coordinates] = self.emit(text)

    def _emit_combine(self, node: UOp) -> None:
        acc, *folded = node.src
        self.dots.settle(acc)
        axis, lanes = self.facts.vector_axis(acc), self.facts.lanes(acc)
        own_lanes = self.facts.lanes(node)
        others = [a for a in folded if a is not axis]
        values: dict[Coordinates, Element] = {}
        for coordinates, at in self.elements(node):
            total: Element | None = None
            for step in itertools.product(*(range(axis_size(a)) for a in others)):
                place = {**at, **dict(zip(others, step, strict=True))}
                part = self.values[acc][self.facts.coordinates(acc, place)]
                if total is None:
                    total = part
                else:
                    total = self.emit(self.instructions.binary(node.arg, acc.dtype, lanes, total.name, part.name))
            assert total is not None
            if axis is not None and axis in folded:
                total = self.emit(self.instructions.fold_lanes(node.arg, acc.dtype, lanes, total.name))
            values[coordinates] = total
        assert own_lanes == 0 or axis not in folded
        self.values[node] = values


def render(program: Program, name: str) -> str:
    return Renderer(program, name).render()


__all__ = ["Renderer", "literal", "of_lanes", "render"]
