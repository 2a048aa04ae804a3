"""Whole vectors of masked accesses. In: the mask of an access along a vector axis. Out: one bit that says whether it
holds in every lane, and a branch on it.

A processor without masked vector loads and stores tests and moves lane by lane. In a loop over a padded axis nearly
every vector is whole: behind a branch, which is predicted, it is one plain load or store. A load of another vector
reads all lanes where they are in the buffer, and selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.backends.cpu.rendering.instructions import scalar_type
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of


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
    """A comparison with a bound holds in all lanes if it holds in the lane with the greatest value, or the least. None
    for other conditions."""
    is_least = part.op is Ops.XOR and part.src[1].is_const and part.src[1].arg is True
    comparison = part.src[0] if is_least else part
    if comparison.op is not Ops.CMPLT or not comparison.src[0].dtype.is_int or comparison.src[0].dtype.is_unsigned:
        return None
    compared, bound = comparison.src
    if axis in values.facts.axes(bound):
        return None
    position = affine(compared)
    step = position.terms.get(axis, 0)
    lane = size_of(axis) - 1 if (step > 0) != is_least else 0
    value = _scalar(values, position, {**at, axis: lane}, axis, scalar_type(compared.dtype))
    if not step or value is None:
        return None
    limit = values.operand(bound, at, None)
    return values.emitter.assign(f"icmp {'sge' if is_least else 'slt'} {scalar_type(compared.dtype)} {value}, {limit}")


def _scalar(values: Values, position: Affine, at: dict[UOp, int], axis: UOp, kind: str) -> str | None:
    """The value of a sum in one lane; None where the sum is not affine in the lane."""
    offset, total = position.constant, None
    for atom, step in position.terms.items():
        if atom in at:
            offset += step * at[atom]
        elif axis in values.facts.axes(atom):
            return None
        else:
            name = values.operand(atom, at, None)
            name = values.emitter.assign(f"mul {kind} {name}, {step}") if step != 1 else name
            total = name if total is None else values.emitter.assign(f"add {kind} {total}, {name}")
    return str(offset) if total is None else values.emitter.assign(f"add {kind} {total}, {offset}")


def is_inside(values: Values, index: UOp, at: dict[UOp, int], axis: UOp, stride: int) -> str | None:
    """Whether the elements of all lanes are in the memory, so that loads may read those that are masked off."""
    last = memory_of(index).arg.size - 1 - abs(stride) * (size_of(axis) - 1)
    lane, kind = size_of(axis) - 1 if stride < 0 else 0, scalar_type(index.src[1].dtype)
    first = _scalar(values, affine(index.src[1]), {**at, axis: lane}, axis, kind)
    return None if first is None or last < 0 else values.emitter.assign(f"icmp ule {kind} {first}, {last}")


def branch(values: Values, condition: str, whole: Callable[[], Any], partial: Callable[[], Any]) -> tuple[Any, ...]:
    """Emits both behind a branch. Out: the result of each, followed by the label of its block, as a phi takes them."""
    emitter, label = values.emitter, values.emitter.fresh("vector")
    emitter.line(f"  br i1 {condition}, label %{label}.whole, label %{label}.partial")
    made: list[Any] = []
    for name, emit in (("whole", whole), ("partial", partial)):
        emitter.begin_block(f"{label}.{name}")
        # A name that one block defines is not defined in the other, nor after both.
        reused = dict(emitter.reused)
        made += emit(), f"%{emitter.label}"
        emitter.reused = reused
        emitter.line(f"  br label %{label}.done")
    emitter.begin_block(f"{label}.done")
    return tuple(made)


class PartialLoad(NamedTuple):
    """A masked load for a processor without them. `plain` emits it without the mask; `masked` emits it lane by lane,
    and is used only for vectors that cross the end of the buffer. `mask` is the mask with its type."""

    kind: str
    mask: str
    plain: Callable[[], str]
    masked: Callable[[], str]

    def emit(self, values: Values, whole: str, inside: str | None) -> str:
        return self._phi(values, branch(values, whole, self.plain, lambda: self._emit_part(values, inside)))

    def _emit_part(self, values: Values, inside: str | None) -> str:
        if inside is None:
            return self.masked()
        return self._phi(values, branch(values, inside, lambda: self._read_and_select(values), self.masked))

    def _read_and_select(self, values: Values) -> str:
        return values.emitter.assign(f"select {self.mask}, {self.kind} {self.plain()}, {self.kind} zeroinitializer")

    def _phi(self, values: Values, found: tuple[str, ...]) -> str:
        return values.emitter.assign("phi {} [ {}, {} ], [ {}, {} ]".format(self.kind, *found))
