"""What memory holds after which effects. In: a version of memory (itself, or an AFTER of it) and a position. Out: the
value that is there, where one store is known to have put it there. `prepare/accumulators.py` asks.

A store is found by going back from version to version. One that wrote the same position is the answer, one that
provably wrote elsewhere is passed by, and at anything else the search ends without an answer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort


class Write(NamedTuple):
    """A store and the ranges that were ended over it."""

    store: UOp
    ended: tuple[UOp, ...]

    @property
    def position(self) -> UOp:
        return self.store.src[0].src[1]

    @property
    def version(self) -> UOp:
        return self.store.src[0].src[0]

    @property
    def memory(self) -> UOp:
        return memory_of(self.store.src[0])

    @property
    def is_masked(self) -> bool:
        return len(self.store.src[0].src) > 2


def writes_of(effect: UOp, ended: tuple[UOp, ...] = ()) -> list[Write]:
    """The stores that an effect is made of; none of those that it merely comes after."""
    if effect.op is Ops.STORE:
        return [Write(effect, ended)]
    if effect.op is Ops.END:
        return writes_of(effect.src[0], (*ended, *effect.src[1:]))
    if effect.op is Ops.GROUP:
        return [write for source in effect.src for write in writes_of(source, ended)]
    return []


def value_at(version: UOp, position: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """What `version` holds at `position`; None where no single store is known to be the last one there. `written_in`
    gives for each memory the ranges that stores to it lie in: in each iteration of one of them it may hold another
    value."""
    memory = memory_of(version)
    while version.op is Ops.AFTER:
        earlier = version.src[0]
        found: UOp | None = None
        for each in version.src[1:]:
            if each.op is Ops.BARRIER or (each.op is Ops.RANGE and each in written_in.get(memory, ())):
                return None
            for write in writes_of(each):
                if write.memory is not memory or are_apart(write.position, position):
                    continue
                value = None if write.is_masked else value_written(write, position)
                if value is None or found is not None:
                    return None
                found = value
            if any(write.memory is memory for write in writes_of(each)):
                earlier = later_version(earlier, [write.version for write in writes_of(each)])
        if found is not None:
            return found
        version = earlier
    return None


def later_version(first: UOp, others: Iterable[UOp]) -> UOp:
    """Of versions of one memory that follow from one another the last one."""
    for other in others:
        if memory_of(other) is memory_of(first) and _follows(other, first):
            first = other
    return first


def _follows(version: UOp, earlier: UOp) -> bool:
    while version is not earlier and version.op is Ops.AFTER:
        version = version.src[0]
    return version is earlier


def value_written(write: Write, position: UOp) -> UOp | None:
    """The value that a store put at `position`: that of the iteration which wrote there, if it can be told."""
    inner = [axis for axis in write.ended if axis in write.store.ranges]
    if not inner:
        return write.store.src[1] if write.position is position else None
    if any(axis not in write.position.ranges for axis in inner) or not is_injective(write.position, inner):
        return None
    iteration = iteration_of(write.position, position, frozenset(inner))
    return None if iteration is None else exchange_ranges(write.store.src[1], iteration)


def exchange_ranges(value: UOp, exchanges: dict[UOp, UOp]) -> UOp | None:
    """The value with each range exchanged where it is open; None where a new one would be closed by a reduction that it
    has no part in, or is exchanged itself."""
    exchanges = {axis: new for axis, new in exchanges.items() if axis is not new}
    closed = {axis for node in toposort(value) if node.op is Ops.REDUCE for axis in node.src[1:]}
    for new in exchanges.values():
        if not new.ranges.isdisjoint(closed) or not new.ranges.isdisjoint(exchanges):
            return None
    for axis, new in exchanges.items():
        value = exchange_range(value, axis, new)
    return value


def exchange_range(value: UOp, axis: UOp, new: UOp) -> UOp:
    """The value with `new` for `axis`. What a reduction over the axis counts with it stays its own."""
    done: dict[UOp, UOp] = {axis: new}
    for node in toposort(value, stop=lambda each: each is axis or axis not in each.ranges):
        if node not in done:
            is_free = axis in node.ranges
            done[node] = node.with_src(tuple(done[source] for source in node.src)) if is_free else node
    return done[value]


def iteration_of(pattern: UOp, position: UOp, axes: frozenset[UOp]) -> dict[UOp, UOp] | None:
    """The values of `axes` with which `pattern` reads as `position`, found by comparing the two texts."""
    found: dict[UOp, UOp] = {}
    pending = [(pattern, position)]
    while pending:
        left, right = pending.pop()
        if left in axes:
            low, high = right.bounds
            if found.setdefault(left, right) is not right or low < 0 or high > left.bounds[1]:
                return None
        elif left is not right:
            if left.op is not right.op or left.arg != right.arg or len(left.src) != len(right.src) or not left.src:
                return None
            if left.op is Ops.RANGE:
                return None
            pending.extend(zip(left.src, right.src, strict=True))
        elif not axes.isdisjoint(left.ranges):
            # The same text over the same axes: a place inside of the loops that wrote it, in the same iteration.
            found.update({axis: axis for axis in axes & left.ranges})
    return found if len(found) == len(axes) else None


# ---------------------------------------------------------------- positions


def are_apart(one: UOp, other: UOp) -> bool:
    """Whether two positions are never the same, in whatever iterations."""
    (low, high), (other_low, other_high) = one.bounds, other.bounds
    if high < other_low or other_high < low:
        return True
    left, right = affine(one), affine(other)
    steps = math.gcd(*left.terms.values(), *right.terms.values())
    return steps != 0 and (left.constant - right.constant) % steps != 0


def is_injective(position: UOp, axes: Iterable[UOp]) -> bool:
    """Whether different iterations of `axes` give different positions, everything else being equal: each step is
    longer than the way that all shorter steps go together."""
    form = affine(position)
    wanted = [axis for axis in axes if int(axis.bounds[1]) > 0]
    if any(axis not in form.terms for axis in wanted) or _hides(form, wanted):
        return False
    reach = 0
    for axis in sorted(wanted, key=lambda each: abs(form.terms[each])):
        step = abs(form.terms[axis])
        if step <= reach:
            return False
        reach += step * int(axis.bounds[1])
    return True


def digit_of(position: UOp, axis: UOp) -> tuple[int, int] | None:
    """(step, over) where the axis can be read off a position, as `position % over // step`, whatever else the position
    depends on; over is 0 where nothing lies above. None where it cannot, or is not seen."""
    form = affine(position)
    step = form.terms.get(axis, 0)
    if step <= 0:
        return None
    over = math.gcd(*(count for count in form.terms.values() if abs(count) > step))
    smaller = {atom: count for atom, count in form.terms.items() if atom is not axis and abs(count) <= step}
    rest = Affine(smaller, form.constant)
    low, high = -greatest_value(rest.scaled(-1)), greatest_value(rest)
    if over:
        low, high = low % over, high - low + low % over
    is_apart = 0 <= low and high < step and (over == 0 or step * (int(axis.bounds[1]) + 1) <= over)
    return (step, over) if is_apart and (over == 0 or over % step == 0) else None


def greatest_value(form: Affine) -> int:
    """An upper bound. A loop whose size is computed from other loops ends where they are now, so that `k + 1 + i` with
    i below `n - 1 - k` is less than n."""
    while True:
        computed = [
            atom
            for atom, count in form.terms.items()
            if count > 0 and atom.op is Ops.RANGE and atom.src[0].op is not Ops.CONST
        ]
        if not computed:
            return form.bounds[1]
        last = max(computed, key=lambda atom: len(atom.ranges))  # what its size is made of is replaced after it
        count = form.terms[last]
        form = form.plus(Affine({last: 1}, 0), -count).plus(affine(last.src[0]), count).plus(Affine({}, -count))


def share_digit(positions: Iterable[UOp], axis: UOp) -> bool:
    """Whether the same place is only ever reached in the same iteration of the axis."""
    digits = [digit_of(position, axis) for position in positions]
    found = [digit for digit in digits if digit is not None]
    if len(found) != len(digits):
        return False
    over = math.gcd(*(digit[1] for digit in found))
    step = found[0][0]
    return all(digit[0] == step for digit in found) and (over == 0 or step * (int(axis.bounds[1]) + 1) <= over)


def _hides(form: Affine, axes: list[UOp]) -> bool:
    """Whether an atom of the form depends on one of the axes without being it."""
    return any(atom is not axis and axis in atom.ranges for atom in form.terms for axis in axes)
