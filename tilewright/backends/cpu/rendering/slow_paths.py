"""Choices whose second value few elements need, as jumps. In: the renderer, and a marked choice at a coordinate of its
tile. Out: LLVM text in which the second value is computed in a block of its own, entered where a lane needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpu.rendering.instructions import value_type
from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.slow_path import find_detours
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Element, Renderer


class Detours:
    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        facts = renderer.facts
        found = find_detours(renderer.program.body)
        self.postponed = {node for nodes in found.values() for node in nodes}
        # Values whose lanes lie along different axes are turned tile by tile, not in a block of one element.
        if len({facts.vector_axis(node) for node in (*found, *self.postponed)}) > 1:
            found, self.postponed = {}, set()
        self.choices = found

    def choose(self, choice: UOp, at: dict[UOp, int]) -> Element:
        renderer = self.renderer
        facts, instructions = renderer.facts, renderer.instructions
        axis, lanes = facts.vector_axis(choice), facts.lanes(choice)
        condition, common = (renderer.operand(source, at, axis) for source in choice.src[:2])
        every = condition
        if lanes:
            every = renderer.emit(instructions.fold_lanes(Ops.AND, dtypes.bool, lanes, condition)).name
        label = f"detour{next(renderer.counter)}"
        before = renderer.label
        renderer.line(f"  br i1 {every}, label %{label}.done, label %{label}.taken")
        self._begin(f"{label}.taken")
        known = dict(renderer.splats)
        for node in self.choices[choice]:
            renderer.values.setdefault(node, {})[facts.coordinates(node, at)] = renderer.element(node, at)
        seldom = renderer.operand(choice.src[2], at, axis)
        chosen = renderer.emit(instructions.select(choice.dtype, lanes, condition, common, seldom)).name
        # What the block has splatted is not known where it was jumped over.
        renderer.splats = known
        taken = renderer.label
        renderer.line(f"  br label %{label}.done")
        self._begin(f"{label}.done")
        kind = value_type(choice.dtype, lanes)
        return renderer.emit(f"phi {kind} [ {common}, %{before} ], [ {chosen}, %{taken} ]")

    def _begin(self, label: str) -> None:
        self.renderer.line(f"{label}:")
        self.renderer.label = label
