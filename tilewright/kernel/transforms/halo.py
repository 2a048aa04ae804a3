"""Copies of overlapping windows. In: the access of an operand and the axes of its tile. Out: the box that the windows
cover, in which each element is stored once. STAGE uses it where a panel over the axes would hold elements repeatedly.

Axes with the same stride, or whose sum one mask bounds, share one dimension of the box: for windows of 3 along a row of
pixels, x and kx. Elements outside the mask are 0 in the box, so the kernel that reads it needs no mask: the
padding of an image is part of the box.

    before: for x in 6: for k in 3: acc[x] += a[x + k - 1 if 0 <= x + k - 1 < 6] * w[k]
    after:  for b in 8: box[b] = a[b - 1 if 0 <= b - 1 < 6]
            for x in 6: for k in 3: acc[x] += box[x + k] * w[k]"""

from __future__ import annotations

import functools
import math

from tilewright.base.records import NamedTuple
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of, substitute
from tilewright.kernel.axes import KernelView, add_range, stride


class Side(NamedTuple):
    """One dimension of a box: the axes along it with their strides in the box, the offset of their origin in it, its
    length, and the stride of its elements in the buffer."""

    steps: dict[UOp, int]
    before: int
    length: int
    unit: int

    @property
    def reads(self) -> int:
        """The elements that the axes read, some of them repeatedly."""
        return math.prod(map(size_of, self.steps))

    @property
    def unit_move(self) -> dict[UOp, int]:
        """Iterations of the axes that together move by 1 along the side; the strides have no common divisor. Of windows
        with gaps of 2 at a stride of 3, that is one window further and one element of it back."""
        moved, counts = 0, dict.fromkeys(self.steps, 0)
        for axis, step in sorted(self.steps.items(), key=lambda each: abs(each[1])):
            divisor = math.gcd(moved, step)
            if divisor == moved:
                continue
            # a * moved + b * step == divisor, with b the inverse of the step modulo what was reached before.
            own = pow(step // divisor, -1, moved // divisor) if moved else step // divisor
            before = (divisor - own * step) // moved if moved else 0
            counts = {each: count * before for each, count in counts.items()}
            counts[axis], moved = own, divisor
        return counts


class Box(NamedTuple):
    """The axes of the copy, the index and mask of its load, the index of its store, the index that the kernel then
    reads, and the number of elements."""

    axes: list[UOp]
    source: tuple[UOp, ...]
    target: UOp
    position: UOp
    size: int


def without_store_mask(view: KernelView, access: UOp) -> UOp:
    """The access without the conjuncts of its mask that every store has too, such as the end of a padded row: elements
    that are not stored may have any value. Where no other conjunct keeps the windows inside the buffer, one that ends
    with the last window takes the place of each."""
    if len(access.src) < 3:
        return access
    dropped = parts_of_stores(view, access)
    kept = [part for part in parts_of(access.src[2], Ops.AND) if part not in dropped]
    for part in dropped:
        if not any(_ends_before(each, part) for each in kept):
            end = _end_of_windows(part, access)
            if end is None:
                return access
            kept.append(end)
    if not dropped:
        return access
    return access.replace(src=(*access.src[:2], functools.reduce(UOp.__and__, kept)))


def parts_of_stores(view: KernelView, access: UOp) -> list[UOp]:
    """The conjuncts of the mask of an access that every store has too."""
    shared = [set(parts_of(store.src[2], Ops.AND)) if len(store.src) > 2 else set() for store in view.stores]
    return [part for part in parts_of(access.src[2], Ops.AND) if all(part in each for each in shared)]


def _end_of_windows(part: UOp, access: UOp) -> UOp | None:
    """
    before: x < 28                 x the first element of a window, k an element of it
    after:  x + k < 28 + 4         for windows of 5

    None where the mask is not the end of a row of windows."""
    if part.op is not Ops.CMPLT or part.src[1].op is not Ops.CONST:
        return None
    own, steps = affine(part.src[0]), affine(access.src[1]).terms
    if own.constant or any(axis.op is not Ops.RANGE or size_of(axis) < 1 for axis in steps):
        return None
    rates = {steps.get(axis, 0) / step for axis, step in own.terms.items()}
    rate = int(min(rates, default=0))
    if rate < 1 or rates != {rate}:
        return None
    reach, walk = (int(part.src[1].arg) - 1) * rate, part.src[0] * rate
    for axis, step in sorted(steps.items(), key=lambda each: abs(each[1])):
        if axis not in own.terms and 0 < step <= reach:
            reach, walk = reach + step * (size_of(axis) - 1), walk + axis * step
    return walk < reach + 1 if walk.ranges > part.ranges else None


def _ends_before(end: UOp, part: UOp) -> bool:
    """Whether `end` depends on the loops of `part` too, and masks off some elements of the last window that `part`
    admits: `end` then bounds the windows after it as well."""
    if end.op is not Ops.CMPLT or part.op is not Ops.CMPLT or not part.ranges < end.ranges:
        return False
    own, all_terms = affine(part.src[0]).terms, affine(end.src[0]).terms
    if not own:
        return False
    apart = min(all_terms.get(axis, 0) // step for axis, step in own.items())
    further = simplify(end.src[0] - part.src[0] * apart)
    last = (part.src[1].vmin - 1) * apart + further.vmax
    return bool(apart > 0 and further.ranges.isdisjoint(part.ranges) and last >= end.src[1].vmax)


def find_sides(tile: list[UOp], access: UOp) -> list[Side] | None:
    """The dimensions of the box, the slowest first; None where a panel over the axes holds no element twice, or the
    accesses form no box."""
    steps = {axis: stride(access, axis) for axis in tile}
    known = {axis: step for axis, step in steps.items() if step}
    if len(known) < len(tile):
        return None
    sides = [_side(group, known) for group in _groups(known, access)]
    is_overlapping = any(side.length < side.reads for side in sides)
    are_vectors_whole = all(
        abs(step) == 1 for side in sides for axis, step in side.steps.items() if axis.arg.kind is AxisType.UPCAST
    )
    # Where no axis has stride 1 the windows leave gaps: most of the box should be read.
    are_dense = all(side.length < 2 * side.reads or 1 in map(abs, side.steps.values()) for side in sides)
    if not is_overlapping or not are_vectors_whole or not are_dense:
        return None
    return sorted(sides, key=lambda side: -side.unit) if _masks_follow(sides, access) else None


def make_box(sides: list[Side], access: UOp, lanes: int, slot: int) -> Box:
    """The copy, vectorised along the fastest dimension, which is padded with 0 to whole vectors."""
    made: list[UOp] = []
    exchanges: dict[UOp, UOp] = {}
    target, position = index_const(0), index_const(0)
    conditions = []
    pitches: list[int] = []
    size = 1
    for side in reversed(sides):
        pitches.insert(0, size)
        size *= side.length if side is not sides[-1] else -(-side.length // lanes) * lanes
    loop = functools.partial(add_range, made, slot)
    for side, pitch in zip(sides, pitches, strict=True):
        if side is sides[-1]:
            rounds = -(-side.length // lanes)
            at = loop(rounds, AxisType.LOOP) * lanes + loop(lanes, AxisType.UPCAST)
            if side.length % lanes:
                conditions.append(at < side.length)
        else:
            at = loop(side.length, AxisType.LOOP)
        exchanges |= {axis: (at - side.before) * count for axis, count in side.unit_move.items()}
        target = target + at * pitch
        walk = functools.reduce(UOp.__add__, (axis * step for axis, step in side.steps.items()))
        position = position + (walk + side.before) * pitch
    where, *mask = (substitute(each, exchanges) for each in access.src[1:])
    valid = [simplify(functools.reduce(UOp.__and__, [*mask, *conditions]))] if mask or conditions else []
    return Box(made, (simplify(where), *valid), simplify(target), simplify(position), size)


def _groups(steps: dict[UOp, int], access: UOp) -> list[list[UOp]]:
    """The axes of each dimension: axes whose sum one mask bounds, and axes whose strides fall into the range of
    others."""
    groups: list[list[UOp]] = []
    for part in parts_of(access.src[2], Ops.AND) if len(access.src) > 2 else ():
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


def _side(group: list[UOp], steps: dict[UOp, int]) -> Side:
    unit = math.gcd(*(steps[axis] for axis in group))
    own = {axis: steps[axis] // unit for axis in group}
    before = -sum(step * (size_of(axis) - 1) for axis, step in own.items() if step < 0)
    length = 1 + sum(abs(step) * (size_of(axis) - 1) for axis, step in own.items())
    return Side(own, before, length, unit)


def _masks_follow(sides: list[Side], access: UOp) -> bool:
    """Whether the masks are functions of the index in the box: each depends on the axes in proportion to their
    strides."""
    for part in parts_of(access.src[2], Ops.AND) if len(access.src) > 2 else ():
        while part.op is Ops.XOR and part.src[1].op is Ops.CONST:
            part = part.src[0]
        counted = [side for side in sides if any(axis in part.ranges for axis in side.steps)]
        if not counted:
            continue
        if len(counted) > 1 or part.op is not Ops.CMPLT:
            return False
        form = affine(part.src[0]).plus(affine(part.src[1]), -1)
        side = counted[0]
        rate = sum(form.terms.get(axis, 0) * count for axis, count in side.unit_move.items())
        if any(form.terms.get(axis, 0) != rate * step for axis, step in side.steps.items()):
            return False
        if any(axis in atom.ranges for atom in form.terms for axis in side.steps if atom is not axis):
            return False
    return True
