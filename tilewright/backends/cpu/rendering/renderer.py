"""Programs as LLVM IR. In: a `Program`. Out: the text of one function `void name(ptr buffers, i64 lo, i64 hi)`.

Tiles are unrolled here and nowhere earlier. A value that does not depend on a tile axis is computed once, before the
outermost loop in which it is invariant, and splatted where it meets one that does. Stands on `emitter` (the text),
`values` (the operands) and a helper for each family of ops; none of them knows the renderer."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tilewright.backends.cpu.code.llvm import FUNCTION_ATTRIBUTES
from tilewright.backends.cpu.rendering.checks import checked_once, emit_check, guarded_stores
from tilewright.backends.cpu.rendering.denormals import INNER, flushes_denormals, wrap_llvm
from tilewright.backends.cpu.rendering.dot_products import DotProducts
from tilewright.backends.cpu.rendering.elementwise import Elementwise
from tilewright.backends.cpu.rendering.emitter import Element, Emitter
from tilewright.backends.cpu.rendering.forwarded import forward_stores
from tilewright.backends.cpu.rendering.instructions import constant, scalar_type, value_type
from tilewright.backends.cpu.rendering.joined_bytes import JoinedBytes
from tilewright.backends.cpu.rendering.memory_access import MemoryAccess
from tilewright.backends.cpu.rendering.operand_order import ordered
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.errors import InternalError
from tilewright.base.records import NamedTuple, field, mutable_record
from tilewright.codegen.tiles import Coordinates, TileFacts
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of


class _Phi(NamedTuple):
    """One element of an accumulator that a loop updates: its name before the loop, and the beginning of its phi,
    whose line is filled in when the loop closes."""

    acc: UOp
    coordinates: Coordinates
    start: str
    text: str
    fill: Callable[[str], None]


@mutable_record
class _Loop:
    axis: UOp
    label: str
    kind: str  # of the counter
    phis: list[_Phi] = field(default_factory=list)
    updates: dict[str, int] = field(default_factory=dict)  # of accumulators: for each the number of its term
    # The count where it is not a constant, and the block that skips the loop where it is 0.
    count: str = ""
    skipped_from: str = ""


class Renderer:
    """Writes one program."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name
        self.emitter = Emitter(saturating="SATURATING_CAST" in program.target.native_ops)
        self.facts = TileFacts(program, loads_broadcast=not program.target.has_lane_operands)
        self.values = Values(self.emitter, self.facts, program.target)
        self.elementwise = Elementwise(self.values, program.body)
        self.memory = MemoryAccess(self.values, program)
        self.dots = DotProducts(self.memory)
        self.joined = JoinedBytes(self.memory)
        self.loops: list[_Loop] = []
        self.far_loops = _far_loops(program)
        self.guarded = guarded_stores(program)
        self.skipped: dict[UOp, str] = {}  # the label of the check that jumps over each store

    def render(self) -> str:
        emitter, memory = self.emitter, self.memory
        thread = next((axis for axis in self.program.global_ranges if axis.arg.kind is AxisType.THREAD), None)
        for param in self.program.params:
            pointer = emitter.assign(f"getelementptr ptr, ptr %buffers, i64 {param.slot}")
            memory.buffers[Ops.PARAM, param.slot] = emitter.emit(f"load ptr, ptr {pointer}")
        for number, variable in enumerate(self.program.variables, self.program.first_variable):
            self._load_variable(variable, number)
        checked = checked_once(self.program) if thread is not None else {}
        for node in checked:
            self._emit_if_needed(node)
        if thread is not None:
            self._open_loop(thread, "%lo")
        for node in self.program.body:
            if node in checked:
                continue
            if node.op is Ops.RANGE:
                if not node.arg.kind.is_tile and node is not thread:
                    self._open_loop(node, "0")
            elif node.op is Ops.END:
                self._close_loop()
            elif node.op is Ops.DEFINE_REG or node.op is Ops.DEFINE_LOCAL:
                memory.define(node)
            elif node.op is not Ops.VARIABLE:
                self._emit_if_needed(node)
        if thread is not None:
            self._close_loop("%hi")
        is_flushed = flushes_denormals(self.program)
        start = f"define internal void @{INNER}" if is_flushed else f"define void @{self.name}"
        attributes = f"noinline {FUNCTION_ATTRIBUTES}" if is_flushed else FUNCTION_ATTRIBUTES
        header = f"{start}(ptr %buffers, i64 %lo, i64 %hi) {attributes} {{\nentry:"
        body = forward_stores([*memory.entry_lines(), *emitter.body(), *memory.releases])
        around = [wrap_llvm(self.name)] if is_flushed else []
        return "\n".join([header, *body, "  ret void", "}", *around, *emitter.declarations.values(), ""])

    def _load_variable(self, variable: UOp, number: int) -> None:
        """Loads a variable from its word after the addresses of the buffers."""
        emitter, kind = self.emitter, scalar_type(variable.dtype)
        pointer = emitter.assign(f"getelementptr i64, ptr %buffers, i64 {number}")
        word = emitter.assign(f"load i64, ptr {pointer}")
        self.values[variable] = {(): emitter.emit(f"trunc i64 {word} to {kind}") if kind != "i64" else Element(word, 0)}

    # ------------------------------------------------------------ loops

    def _open_loop(self, axis: UOp, start: str) -> None:
        emitter, entered_from = self.emitter, self.emitter.label
        loop = _Loop(axis, emitter.fresh("loop"), "i64" if start != "0" else scalar_type(axis.dtype))
        label, counter = loop.label, f"%{loop.label}.i"
        always = axis.src[0].is_const and axis.src[0].arg > 0
        count = "" if always else self.values.operand(axis.src[0], {}, None)
        emitter.open_loop(axis)
        self.loops.append(loop)
        if count:
            self._guard_loop(loop, count)
        else:
            emitter.line(f"  br label %{label}")
        emitter.begin_block(label)
        emitter.line(f"  {counter} = phi {loop.kind} [ {start}, %{entered_from} ], [ {counter}.next, %{label}.end ]")
        for acc in self.facts.updated_in(axis):
            kind = value_type(acc.dtype, self.facts.lanes(acc))
            for coordinates, element in self.values[acc].items():
                name = emitter.fresh("%v")
                text = f"  {name} = phi {kind} [ {element.name}, %{entered_from} ]"
                loop.phis.append(_Phi(acc, coordinates, element.name, text, emitter.reserve_line()))
                self.values[acc][coordinates] = emitter.here(name)
        emitter.begin_body(entered_from, label)
        # LLVM's loop strength reduction changes only innermost loops, but analyses how every address depends on all
        # loops around them. For far loops that takes a quarter of the time of a kernel, and changes nothing.
        if axis in self.far_loops:
            counter = emitter.hidden(loop.kind, counter)
        if loop.kind != scalar_type(axis.dtype):
            counter = emitter.assign(f"trunc i64 {counter} to {scalar_type(axis.dtype)}")
        self.values[axis] = {(): emitter.here(counter)}

    def _guard_loop(self, loop: _Loop, count: str) -> None:
        """Skips a loop whose count, known at run time, is 0."""
        emitter, axis, label = self.emitter, loop.axis, loop.label
        if axis.src[0].dtype is not axis.dtype:
            emitter.line(f"  %{label}.count = {emitter.cast(axis.src[0].dtype, axis.dtype, 0, count)}")
            count = f"%{label}.count"
        loop.count = count
        loop.skipped_from = emitter.label
        emitter.line(f"  %{label}.any = icmp sgt {scalar_type(axis.dtype)} {count}, 0")
        emitter.line(f"  br i1 %{label}.any, label %{label}, label %{label}.exit")

    def _close_loop(self, limit: str = "") -> None:
        emitter, loop = self.emitter, self.loops.pop()
        label, counter = loop.label, f"%{loop.label}.i"
        if loop.updates:
            self._order_operands(loop)
        emitter.close_loop()
        emitter.line(f"  br label %{label}.end")
        emitter.line(f"{label}.end:")
        for step in emitter.end_body():
            emitter.line(step)
        emitter.line(f"  {counter}.next = add nuw nsw {loop.kind} {counter}, 1")
        limit = limit or loop.count or str(size_of(loop.axis))
        emitter.line(f"  %{label}.more = icmp ult {loop.kind} {counter}.next, {limit}")
        emitter.line(f"  br i1 %{label}.more, label %{label}, label %{label}.exit")
        emitter.begin_block(f"{label}.exit")
        for acc, coordinates, start, text, fill in loop.phis:
            last = self.values[acc][coordinates].name
            fill(f"{text}, [ {last}, %{label}.end ]")
            if loop.count:
                kind = value_type(acc.dtype, self.facts.lanes(acc))
                last = emitter.assign(f"phi {kind} [ {start}, %{loop.skipped_from} ], [ {last}, %{label}.end ]")
            self.values[acc][coordinates] = emitter.here(last)

    def _order_operands(self, loop: _Loop) -> None:
        """One term after the other, each for all accumulators: the terms of one accumulator wait for one another."""
        target, updates = self.program.target, sorted(loop.updates, key=lambda update: loop.updates[update])
        sizes = [max(self.facts.lanes(acc), 1) * acc.dtype.itemsize for acc, *_ in loop.phis]
        free = target.vector_registers - sum(-(-size // target.vector_bytes) for size in sizes)
        # An instruction that loads a pair of elements of a row holds a register for the second, until the next term.
        firsts = {loop.updates[update]: update for update in reversed(updates)}
        fenced = [firsts[term] for term in firsts if term > min(firsts)] if target.has_lane_operands else []
        self.emitter.reorder_body(lambda lines: ordered(lines, updates, target.vector_bytes, free, fenced))

    # ------------------------------------------------------------ nodes

    def _emit_if_needed(self, node: UOp) -> None:
        if self.facts.is_needed(node) and node not in self.elementwise.postponed:
            self._emit_node(node)

    def _emit_node(self, node: UOp) -> None:
        if node in self.dots.members:
            self.dots.emit_member(node)
        if node in self.dots.replaced or node in self.joined.replaced:
            return
        if node in self.joined.loads:
            self.joined.emit(node)
            return
        if node.op is Ops.CHECK:
            self._emit_check(node)
        elif node.op.is_elementwise:
            self.elementwise.emit(node)
        elif node.op is Ops.INDEX:
            self.memory.emit_base(node)
        elif node.op is Ops.LOAD:
            self.memory.load(node)
        elif node.op is Ops.STORE:
            self.memory.store(node)
            if node in self.skipped:
                self.emitter.line(f"  br label %{self.skipped[node]}.skipped")
                self.emitter.begin_block(f"{self.skipped[node]}.skipped")
        elif node.op is Ops.ACC:
            first, zero = (
                Element(constant(node.dtype, value, self.facts.lanes(node)), 0) for value in (node.src[0].arg, 0)
            )
            self.values[node] = dict.fromkeys(self.facts.all_coordinates(node), first)
            self.values[node].update(dict.fromkeys(self.dots.starts(node), zero))
        elif node in self.dots.dots:
            self.dots.accumulate(node)
        elif node.op is Ops.ACCUMULATE:
            self._emit_accumulate(node)
        elif node.op is Ops.COMBINE:
            self._emit_combine(node)
        elif node.op is not Ops.BARRIER:  # a work-group is one thread
            raise InternalError(f"the CPU renderer cannot write {node.op!r}")

    def _emit_check(self, node: UOp) -> None:
        """A check whose failure jumps over a store takes the place of the store's mask."""
        words, store = self.memory.buffers[Ops.PARAM, node.arg.slot].name, self.guarded.get(node)
        if store is None:
            emit_check(self.values, node, words)
            return
        self.skipped[store] = emit_check(self.values, node, words, behind="skipped")
        self.memory.holding.add(store.src[0])

    # ------------------------------------------------------------ reductions

    def _emit_accumulate(self, node: UOp) -> None:
        """acc = acc op value, element by element along the axes that the accumulator does not have. An element that is
        known to be masked off is left out."""
        emitter, facts, (acc, value) = self.emitter, self.facts, node.src
        axis, lanes, sums = facts.vector_axis(acc), facts.lanes(acc), self.values[acc]
        unrolled = [a for a in facts.axes(value) if a not in facts.axes(acc)]
        is_masked = value.op is Ops.WHERE and value.src[2] is acc.src[0]
        for coordinates, at in self.values.elements(acc):
            for term, step in enumerate(itertools.product(*(range(size_of(a)) for a in unrolled))):
                element = {**at, **dict(zip(unrolled, step, strict=True))}
                if is_masked and holds_at(value.src[0], element) is False:
                    continue
                operand = self.values.operand(value, element, axis)
                text = emitter.binary(node.arg, acc.dtype, lanes, sums[coordinates].name, operand)
                sums[coordinates] = emitter.emit(text)
                if self.loops:
                    self.loops[-1].updates[sums[coordinates].name] = term

    def _emit_combine(self, node: UOp) -> None:
        """The accumulator's elements along the folded axes, combined into one."""
        emitter, facts, (acc, *folded) = self.emitter, self.facts, node.src
        self.dots.subtract_offsets(acc)
        axis, lanes = facts.vector_axis(acc), facts.lanes(acc)
        others = [a for a in folded if a is not axis]
        values: dict[Coordinates, Element] = {}
        unfolded: dict[Coordinates, Element] = {}
        for coordinates, at in self.values.elements(node):
            steps = itertools.product(*(range(size_of(a)) for a in others))
            elements = ({**at, **dict(zip(others, step, strict=True))} for step in steps)
            total, *parts = [self.values[acc][facts.coordinates(acc, element)] for element in elements]
            for part in parts:
                total = emitter.emit(emitter.binary(node.arg, acc.dtype, lanes, total.name, part.name))
            if axis is not None and axis in folded:
                unfolded[coordinates] = total
                total = emitter.emit(emitter.fold_lanes(node.arg, acc.dtype, lanes, total.name))
            values[coordinates] = total
        self.values[node] = values
        # Where products take lanes, pairs of lanes are added in the order in which a single vector is folded.
        is_pairwise = node.dtype.is_int or (node.dtype.bits >= 32 and self.values.target.has_lane_operands)
        if unfolded and node.arg is Ops.ADD and is_pairwise:
            self.values.unfolded[node] = unfolded


def _far_loops(program: Program) -> set[UOp]:
    """The axes of the loops with at least three more nested loops inside."""
    found: set[UOp] = set()
    opened = [axis for axis in program.global_ranges if axis.arg.kind is AxisType.THREAD]
    for node in program.body:
        if node.op is Ops.RANGE and not node.arg.kind.is_tile and node not in opened:
            found.update(opened[:-2])
            opened.append(node)
        elif node.op is Ops.END:
            opened.pop()
    return found


def render(program: Program, name: str) -> str:
    return Renderer(program, name).render()
