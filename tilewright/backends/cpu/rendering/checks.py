"""CHECK as LLVM text. In: a CHECK node, and the renderer that knows its operands. Out: its value, which is the index as
it is, and a branch, hardly ever taken, to a block that stores an index which is out of range. All elements of a tile
share one branch; the comparison that the mask of a gather makes is the same instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpu.rendering.instructions import constant, of_lanes, scalar_type, value_type
from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Renderer

# LLVM keeps the block of a failure out of the way of the loop.
_SELDOM = "!1"
_WEIGHTS = '!1 = !{!"branch_weights", i32 1, i32 1048575}'


def emit_check(renderer: Renderer, node: UOp) -> None:
    facts, instructions = renderer.facts, renderer.instructions
    axis, lanes = facts.vector_axis(node), facts.lanes(node)
    kind, bits = value_type(node.dtype, lanes), of_lanes("i1", lanes)
    size = constant(node.dtype, node.arg.size, lanes)
    values, failures = {}, []
    for coordinates, at in renderer.elements(node):
        value = renderer.operand(node.src[0], at, axis)
        values[coordinates] = renderer.here(value)
        holds = holds_at(node.src[1], at)
        if holds is False:
            continue
        # A negative number, read without its sign, is larger than any size.
        failed = renderer.emit(f"icmp uge {kind} {value}, {size}").name
        if holds is None:
            valid = renderer.operand(node.src[1], at, axis)
            failed = renderer.emit(f"and {bits} {failed}, {valid}").name
        failures.append((failed, value))
    renderer.values[node] = values
    if not failures:
        return
    any_failed = failures[0][0]
    for failed, _ in failures[1:]:
        any_failed = renderer.emit(f"or {bits} {any_failed}, {failed}").name
    if lanes:
        any_failed = renderer.emit(instructions.fold_lanes(Ops.MAX, dtypes.bool, lanes, any_failed)).name
    label = f"check{next(renderer.counter)}"
    instructions.declarations[_SELDOM] = _WEIGHTS
    renderer.line(f"  br i1 {any_failed}, label %{label}.failed, label %{label}.passed, !prof {_SELDOM}")
    renderer.line(f"{label}.failed:")
    _store_first(renderer, node, lanes, failures)
    renderer.line(f"  br label %{label}.passed")
    renderer.line(f"{label}.passed:")
    renderer.label = f"{label}.passed"


def _store_first(renderer: Renderer, node: UOp, lanes: int, failures: list[tuple[str, str]]) -> None:
    """Stores one of the values that failed to the word of the check."""
    kind, one = value_type(node.dtype, lanes), scalar_type(node.dtype)
    chosen = constant(node.dtype, 0, 0)
    for failed, value in failures:
        is_here = failed
        if lanes:
            mask = renderer.emit(f"bitcast <{lanes} x i1> {failed} to i{lanes}").name
            is_here = renderer.emit(f"icmp ne i{lanes} {mask}, 0").name
            first = renderer.instructions.call(f"llvm.cttz.i{lanes}", f"i{lanes}", (f"i{lanes}", mask), ("i1", "false"))
            lane = renderer.emit(f"zext i{lanes} {renderer.emit(first).name} to i64" if lanes < 64 else first).name
            value = renderer.emit(f"extractelement {kind} {value}, i64 {lane}").name
        chosen = renderer.emit(f"select i1 {is_here}, {one} {value}, {one} {chosen}").name
    word = dtypes.int64 if node.arg.bits == 64 else dtypes.int32
    if node.dtype is not word:
        chosen = renderer.emit(renderer.instructions.cast(node.dtype, word, 0, chosen)).name
    words = renderer.memory.buffers[Ops.PARAM, node.arg.slot].name
    place = renderer.emit(f"getelementptr {scalar_type(word)}, ptr {words}, i64 {node.arg.number}").name
    renderer.line(f"  store {scalar_type(word)} {chosen}, ptr {place}, align {word.itemsize}")
