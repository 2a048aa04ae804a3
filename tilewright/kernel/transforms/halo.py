"""Copies of windows that overlap. In: the access of an operand and the axes of its tile. Out: the box that the windows
cover, in which each element is once. STAGE asks for it where a panel of the axes would hold elements several times.

Axes that walk memory by the same steps, or that one mask counts together, go along one side of the box: of a row of
pixels with a window of 3 around each, x and kx. What a mask leaves out is 0 in the box, so a kernel that reads the box
needs no mask: the border of a padded image is part of it.

    before: for x in 6: for k in 3: acc[x] += a[x + k - 1 if 0 <= x + k - 1 < 6] * w[k]
    after:  for b in 8: box[b] = a[b - 1 if 0 <= b - 1 < 6]
            for x in 6: for k in 3: acc[x] += box[x + k] * w[k]"""

from __future__ import annotations

import functools
from typing import NamedTuple

from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import substitute
from tilewright.kernel.axes import ADDED_ID, make_range, size_of, stride


class Side(NamedTuple):
    """One side of a box: the axes that go along it with their steps in its own elements, how far before element 0 of
    the walk it begins, its length, and how far apart its elements lie in the buffer."""

    steps: dict[UOp, int]
    before: int
    length: int
    unit: int

    @property
    def leader(self) -> UOp:
        """An axis that walks the side element by element."""
        return next(axis for axis, step in self.steps.items() if abs(step) == 1)


class Box(NamedTuple):
    """The axes of the copy, where it reads and under which mask, where it writes, where the kernel reads instead, and
    how many elements it has."""

    axes: list[UOp]
    source: tuple[UOp, ...]
    target: UOp
    position: UOp
    size: int


def find_sides(tile: list[UOp], place: UOp) -> list[Side] | None:
    """The sides of the box, the slowest first; None where a panel of the axes holds no element twice, or where no box
    is known."""
    steps = {axis: stride(place, axis) for axis in tile}
    known = {axis: step for axis, step in steps.items() if step}
    if len(known) < len(tile):
        return None
    sides = [_side(group, known) for group in _groups(known, place)]
    found = [side for side in sides if side is not None]
    is_overlapping = any(side.length < functools.reduce(lambda n, a: n * size_of(a), side.steps, 1) for side in found)
    are_vectors_whole = all(
        abs(step) == 1 for side in found for axis, step in side.steps.items() if axis.arg.kind is AxisType.UPCAST
    )
    if len(found) < len(sides) or not is_overlapping or not are_vectors_whole:
        return None
    return sorted(found, key=lambda side: -side.unit) if _masks_follow(found, place) else None


def make_box(sides: list[Side], place: UOp, lanes: int, slot: int) -> Box:
    """The copy, along the fastest side as vectors. Its rows are whole vectors: what is behind the end of one is 0."""
    made: list[UOp] = []
    exchanges: dict[UOp, UOp] = {}
    target, position = index_const(0), index_const(0)
    conditions = []
    pitches: list[int] = []
    size = 1
    for side in reversed(sides):
        pitches.insert(0, size)
        size *= side.length if side is not sides[-1] else -(-side.length // lanes) * lanes

    def loop(count: int, kind: AxisType) -> UOp:
        made.append(make_range(count, (ADDED_ID + slot, len(made)), kind))
        return made[-1]

    for side, pitch in zip(sides, pitches, strict=True):
        if side is sides[-1]:
            rounds = -(-side.length // lanes)
            at = loop(rounds, AxisType.LOOP) * lanes + loop(lanes, AxisType.UPCAST)
            if side.length % lanes:
                conditions.append(at < side.length)
        else:
            at = loop(side.length, AxisType.LOOP)
        exchanges |= {axis: index_const(0) for axis in side.steps}
        exchanges[side.leader] = (at - side.before) * side.steps[side.leader]
        target = target + at * pitch
        walk = functools.reduce(UOp.__add__, (axis * step for axis, step in side.steps.items()))
        position = position + (walk + side.before) * pitch
    where, *mask = (substitute(each, exchanges) for each in place.src[1:])
    valid = [simplify(functools.reduce(UOp.__and__, [*mask, *conditions]))] if mask or conditions else []
    return Box(made, (simplify(where), *valid), simplify(target), simplify(position), size)


def _groups(steps: dict[UOp, int], place: UOp) -> list[list[UOp]]:
    """The axes of each side: those that a mask counts together, and those of which one steps among the elements that
    others walk."""
    groups: list[list[UOp]] = []
    for part in parts_of(place.src[2], Ops.AND) if len(place.src) > 2 else ():
        counted = [axis for axis in steps if axis in part.ranges]
        joined = [group for group in groups if any(axis in group for axis in counted)]
        merged = list(dict.fromkeys(axis for group in [*joined, counted] for axis in group))
        groups = [group for group in groups if group not in joined] + ([merged] if merged else [])
    masked = {axis for group in groups for axis in group}
    free: list[list[UOp]] = []
    for axis in sorted((each for each in steps if each not in masked), key=lambda each: abs(steps[each])):
        last = _side(free[-1], steps) if free else None
        if last is not None and steps[axis] % last.unit == 0 and abs(steps[axis]) < last.unit * last.length:
            free[-1].append(axis)
        else:
            free.append([axis])
    return groups + free


def _side(group: list[UOp], steps: dict[UOp, int]) -> Side | None:
    unit = min(abs(steps[axis]) for axis in group)
    if any(steps[axis] % unit for axis in group):
        return None
    own = {axis: steps[axis] // unit for axis in group}
    before = -sum(step * (size_of(axis) - 1) for axis, step in own.items() if step < 0)
    length = 1 + sum(abs(step) * (size_of(axis) - 1) for axis, step in own.items())
    return Side(own, before, length, unit)


def _masks_follow(sides: list[Side], place: UOp) -> bool:
    """Whether an element of the box tells all that the masks ask of the axes: they count an axis by its steps."""
    for part in parts_of(place.src[2], Ops.AND) if len(place.src) > 2 else ():
        while part.op is Ops.XOR and part.src[1].op is Ops.CONST:
            part = part.src[0]
        counted = [side for side in sides if any(axis in part.ranges for axis in side.steps)]
        if not counted:
            continue
        if len(counted) > 1 or part.op is not Ops.CMPLT:
            return False
        form = affine(part.src[0]).plus(affine(part.src[1]), -1)
        side = counted[0]
        rate = form.terms.get(side.leader, 0) * side.steps[side.leader]
        if any(form.terms.get(axis, 0) != rate * step for axis, step in side.steps.items()):
            return False
        if any(axis in atom.ranges for atom in form.terms for axis in side.steps if atom is not axis):
            return False
    return True
