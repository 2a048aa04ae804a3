"""Tests whether masked vectors are whole. In: the masks of the vectors of a tile. Out: one bit that says whether they
hold in every lane of all vectors, and a branch on it. `partial_vectors` emits the accesses.

In a loop over a padded axis nearly every tile is whole: its vectors are plain loads or stores, behind a branch that is
predicted. A tile has one branch: with one per vector, compiling the branches would take most of a kernel's compile
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tilewright.backends.cpu.rendering.instructions import scalar_type
from tilewright.backends.cpu.rendering.values import Values
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

T = TypeVar("T")

# By comparison `variable + offset ? limit`: which offsets decide it for all offsets of the same variable and limit.
_DECISIVE: dict[str, tuple[Callable[[Iterable[int]], int], ...]] = {"slt": (max,), "sge": (min,), "ule": (min, max)}


class Condition(NamedTuple):
    """`variable + offset`, of type `kind`, compared with a limit; without a comparison the variable is a bit."""

    variable: str
    offset: int = 0
    kind: str = ""
    comparison: str = ""
    limit: str = ""


# ---------------------------------------------------------------- conditions


def whole_conditions(values: Values, mask: UOp, at: dict[UOp, int], axis: UOp) -> list[Condition] | None:
    """Conditions that together say that the mask holds in all lanes; None where its first and last lane do not decide
    that."""
    found = []
    for part in parts_of(mask, Ops.AND):
        if axis in values.facts.axes(part):
            condition = _holds_everywhere(values, part, at, axis)
            if condition is None:
                return None
            found.append(condition)
        else:
            found.append(Condition(values.operand(part, at, None)))
    return found


def _holds_everywhere(values: Values, part: UOp, at: dict[UOp, int], axis: UOp) -> Condition | None:
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
    kind = scalar_type(compared.dtype)
    found = _in_lane(values, position, {**at, axis: lane}, axis, kind)
    if not step or found is None:
        return None
    return Condition(*found, kind, "sge" if is_least else "slt", values.operand(bound, at, None))


def _in_lane(values: Values, position: Affine, at: dict[UOp, int], axis: UOp, kind: str) -> tuple[str, int] | None:
    """The value of a sum in one lane, as a variable and an offset; None where the sum is not affine in the lane."""
    offset, total = int(position.constant), ""
    for atom, step in position.terms.items():
        if atom in at:
            offset += step * at[atom]
        elif axis in values.facts.axes(atom):
            return None
        else:
            name = values.operand(atom, at, None)
            name = _reused(values, f"mul {kind} {name}, {step}") if step != 1 else name
            total = _reused(values, f"add {kind} {total}, {name}") if total else name
    return total or "0", offset


def _reused(values: Values, text: str) -> str:
    """The result of an instruction, emitted once for all vectors that need it."""
    return values.emitter.once((text, 0), text, len(values.emitter.loops)).name


def inside_condition(values: Values, index: UOp, at: dict[UOp, int], axis: UOp, stride: int) -> Condition | None:
    """The condition that the elements of all lanes are inside the buffer, so that a load may read masked-off lanes."""
    last = memory_of(index).arg.size - 1 - abs(stride) * (size_of(axis) - 1)
    lane, kind = size_of(axis) - 1 if stride < 0 else 0, scalar_type(index.src[1].dtype)
    first = _in_lane(values, affine(index.src[1]), {**at, axis: lane}, axis, kind)
    return None if first is None or last < 0 else Condition(*first, kind, "ule", str(last))


def all_hold(values: Values, conditions: Iterable[Condition]) -> str:
    """The conjunction of the conditions as one bit. Of several comparisons of one variable with one limit, only the
    decisive ones are emitted."""
    offsets: dict[Condition, set[int]] = {}
    for condition in conditions:
        offsets.setdefault(condition._replace(offset=0), set()).add(condition.offset)
    bits = []
    for (variable, _, kind, comparison, limit), found in offsets.items():
        if not comparison:
            bits.append(variable)
        for offset in sorted({choose(found) for choose in _DECISIVE.get(comparison, ())}):
            compared = _reused(values, f"add {kind} {variable}, {offset}") if offset else variable
            bits.append(_reused(values, f"icmp {comparison} {kind} {compared}, {limit}"))
    total, *others = bits
    for bit in others:
        total = _reused(values, f"and i1 {total}, {bit}")
    return total


# ---------------------------------------------------------------- branches


def branch(values: Values, condition: str, whole: Callable[[], T], partial: Callable[[], T]) -> tuple[T, str, T, str]:
    """Emits both sides of a branch. Returns the result of each side and the label of its last block, as a phi takes
    them."""
    emitter, label = values.emitter, values.emitter.fresh("vector")
    emitter.line(f"  br i1 {condition}, label %{label}.whole, label %{label}.partial")
    made: list[tuple[T, str]] = []
    for name, emit in (("whole", whole), ("partial", partial)):
        emitter.begin_block(f"{label}.{name}")
        # A name that one block defines is not defined in the other, nor after both.
        reused = dict(emitter.reused)
        result = emit()
        made.append((result, f"%{emitter.label}"))
        emitter.reused = reused
        emitter.line(f"  br label %{label}.done")
    emitter.begin_block(f"{label}.done")
    return (*made[0], *made[1])
