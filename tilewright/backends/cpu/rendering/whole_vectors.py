"""Whole vectors of masked accesses. In: the mask of an access along a vector axis. Out: one bit that says whether it
holds in every lane, and a branch on it.

A processor without masked vector loads and stores tests and moves lane by lane. Of a loop over a padded axis nearly
every vector is whole: behind a branch, which is predicted, it is one plain load or store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.backends.cpu.rendering.instructions import scalar_type
from tilewright.backends.cpu.rendering.values import Values
from tilewright.codegen.tiles import axis_size, tile_part
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp


def is_whole(values: Values, mask: UOp, at: dict[UOp, int], axis: UOp) -> str | None:
    """Whether the mask holds in all lanes, as one bit; None where that does not follow from its first and last lane."""
    bits = []
    for part in parts_of(mask, Ops.AND):
        if axis in values.facts.axes(part):
            bit = _holds_everywhere(values, part, at, axis)
            if bit is None:
                return None
            bits.append(bit)
        else:
            bits.append(values.operand(part, at, None))
    total = bits[0]
    for bit in bits[1:]:
        total = values.emitter.assign(f"and i1 {total}, {bit}")
    return total


def _holds_everywhere(values: Values, part: UOp, at: dict[UOp, int], axis: UOp) -> str | None:
    """Of a comparison with a bound: it holds everywhere where it does in the lane with the greatest value, or the
    least."""
    is_least = part.op is Ops.XOR and part.src[1].is_const and part.src[1].arg is True
    comparison = part.src[0] if is_least else part
    if comparison.op is not Ops.CMPLT or not comparison.src[0].dtype.is_int or comparison.src[0].dtype.is_unsigned:
        return None
    compared, bound = comparison.src
    base, steps = tile_part(compared)
    if axis in values.facts.axes(bound) or axis not in steps or (base is not None and axis in values.facts.axes(base)):
        return None
    lane = axis_size(axis) - 1 if (steps[axis] > 0) != is_least else 0
    offset = sum(step * (lane if each is axis else at[each]) for each, step in steps.items())
    kind = scalar_type(compared.dtype)
    value = str(offset)
    if base is not None:
        value = values.emitter.assign(f"add nsw {kind} {values.operand(base, at, None)}, {offset}")
    limit = values.operand(bound, at, None)
    return values.emitter.assign(f"icmp {'sge' if is_least else 'slt'} {kind} {value}, {limit}")


def branch(values: Values, condition: str, whole: Callable[[], Any], partial: Callable[[], Any]) -> tuple[Any, ...]:
    """Emits both behind a branch. Out: what each gives, followed by the label of its block, as a phi takes them."""
    emitter, label = values.emitter, values.emitter.fresh("vector")
    emitter.line(f"  br i1 {condition}, label %{label}.whole, label %{label}.partial")
    made = []
    for name, emit in (("whole", whole), ("partial", partial)):
        emitter.begin_block(f"{label}.{name}")
        made.append(emit())
        emitter.line(f"  br label %{label}.done")
    emitter.begin_block(f"{label}.done")
    return made[0], f"%{label}.whole", made[1], f"%{label}.partial"
