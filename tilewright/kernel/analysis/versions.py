"""The value of memory after stores. In: a version of memory (the memory or an AFTER of it) and an index. Out: the value
at that index, where a single store is known to have written it; and whether index expressions can be equal.

The search goes back from version to version. A store to the same index is the answer, a store to a provably different
index is skipped, and at any other store the value is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import map_graph, toposort


class Write(NamedTuple):
    """A store and the ranges that END closes around it."""

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
    """The stores of an effect, without those that it only comes after."""
    if effect.op is Ops.STORE:
        return [Write(effect, ended)]
    if effect.op is Ops.END:
        return writes_of(effect.src[0], (*ended, *effect.src[1:]))
    if effect.op is Ops.GROUP:
        return [write for source in effect.src for write in writes_of(source, ended)]
    return []


def value_at(version: UOp, position: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """The value of `version` at `position`; None where no single store is known to be the last one there. `written_in`
    gives for each memory the ranges around its stores: it may change in every iteration of these."""
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


def loads_from(value: UOp, memory: UOp) -> bool:
    return any(node.op is Ops.LOAD and memory_of(node.src[0]) is memory for node in toposort(value))


def later_version(first: UOp, others: Iterable[UOp]) -> UOp:
    """The last of several versions of one memory, each made from the one before."""
    for other in others:
        if memory_of(other) is memory_of(first) and _follows(other, first):
            first = other
    return first


def _follows(version: UOp, earlier: UOp) -> bool:
    while version is not earlier and version.op is Ops.AFTER:
        version = version.src[0]
    return version is earlier


def value_written(write: Write, position: UOp) -> UOp | None:
    """The value that a store wrote at `position`, in the iteration that wrote there; None where that is unknown."""
    if write.store.arg is not None:
        return None
    inner = [axis for axis in write.ended if axis in write.store.ranges]
    if not inner:
        return write.store.src[1] if write.position is position else None
    if any(axis not in write.position.ranges for axis in inner) or not is_injective(write.position, inner):
        return None
    iteration = iteration_of(write.position, position, frozenset(inner))
    return None if iteration is None else exchange_ranges(write.store.src[1], iteration)


def exchange_ranges(value: UOp, exchanges: dict[UOp, UOp]) -> UOp | None:
    """The value with its open ranges replaced; None where a reduction inside would capture a new range, or a new range
    is replaced itself."""
    exchanges = {axis: new for axis, new in exchanges.items() if axis is not new}
    closed = {axis for node in toposort(value) if node.op is Ops.REDUCE for axis in node.src[1:]}
    for new in exchanges.values():
        if not new.ranges.isdisjoint(closed) or not new.ranges.isdisjoint(exchanges):
            return None
    for axis, new in exchanges.items():
        value = exchange_range(value, axis, new)
    return value


def exchange_range(value: UOp, axis: UOp, new: UOp) -> UOp:
    """The value with `new` for the open range `axis`; a reduction inside that closes `axis` keeps it."""
    nodes = toposort(value, stop=lambda each: each is axis or axis not in each.ranges)
    free = [node for node in nodes if axis in node.ranges]
    return map_graph(value, lambda node, src: new if node is axis else None, free)


def iteration_of(pattern: UOp, position: UOp, axes: frozenset[UOp]) -> dict[UOp, UOp] | None:
    """The values of `axes` for which the expression `pattern` is `position`, found by matching node by node."""
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
            # The same node over the same axes: the load is inside the loops of the store, in the same iteration.
            found.update({axis: axis for axis in axes & left.ranges})
    return found if len(found) == len(axes) else None


# ---------------------------------------------------------------- positions


def are_apart(one: UOp, other: UOp) -> bool:
    """Whether two index expressions are never equal, in any iterations."""
    (low, high), (other_low, other_high) = one.bounds, other.bounds
    if high < other_low or other_high < low:
        return True
    left, right = affine(one), affine(other)
    steps = math.gcd(*left.terms.values(), *right.terms.values())
    return steps != 0 and (left.constant - right.constant) % steps != 0


def is_injective(position: UOp, axes: Iterable[UOp]) -> bool:
    """Whether different iterations of `axes` give different positions, all else being equal: each stride is larger than
    the range that all smaller strides cover together."""
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
    """(step, over) where the axis is a mixed-radix digit of the position: `position % over // step`, for all values of
    the other loops. over is 0 where it is the highest digit; a negative step counts from the other end. None where it
    is not a digit, or that is not proved."""
    return digit_of_form(affine(position), axis)


def digit_of_form(form: Affine, axis: UOp) -> tuple[int, int] | None:
    signed = form.terms.get(axis, 0)
    step, last = abs(signed), int(axis.bounds[1])
    if step == 0:
        return None
    greater = math.gcd(*(count for count in form.terms.values() if abs(count) > step))
    smaller = {atom: count for atom, count in form.terms.items() if atom is not axis and abs(count) <= step}
    rest = Affine(smaller, form.constant + min(signed, 0) * last)
    for over in (greater, math.gcd(greater, form.constant)):  # a constant may be of the digits above
        low, high = -greatest_value(rest.scaled(-1)), greatest_value(rest)
        if over:
            low, high = low % over, high - low + low % over
        is_apart = 0 <= low and high < step and (over == 0 or step * (last + 1) <= over)
        if is_apart and (over == 0 or over % step == 0):
            return signed, over
    return None


def greatest_value(form: Affine) -> int:
    """An upper bound. A loop of computed size is bounded by that expression: `k + 1 + i` with i below `n - 1 - k` is
    less than n."""
    while True:
        computed = [
            atom
            for atom, count in form.terms.items()
            if count > 0 and atom.op is Ops.RANGE and atom.src[0].op is not Ops.CONST
        ]
        if not computed:
            return form.bounds[1]
        last = max(
            computed, key=lambda atom: len(atom.ranges)
        )  # the loops that its size depends on are replaced after it
        count = form.terms[last]
        form = form.plus(Affine({last: 1}, 0), -count).plus(affine(last.src[0]), count).plus(Affine({}, -count))


def share_digit(positions: Iterable[UOp], axis: UOp) -> bool:
    """Whether equal positions imply the same iteration of the axis."""
    return share_digit_of_forms([affine(position) for position in positions], axis)


def share_digit_of_forms(forms: Sequence[Affine], axis: UOp) -> bool:
    digits = [digit_of_form(form, axis) for form in forms]
    found = [digit for digit in digits if digit is not None]
    if len(found) != len(digits):
        return False
    over = math.gcd(*(digit[1] for digit in found))
    step = found[0][0]
    is_within = over == 0 or abs(step) * (int(axis.bounds[1]) + 1) <= over
    return is_within and all(digit[0] == step for digit in found)


def share_masked_digit(accesses: Iterable[UOp], axis: UOp) -> bool:
    """Whether equal addresses imply the same iteration, where loops run over the ends of rows and the rest is masked:
    each expression that every access bounds by the same limit is one variable below that limit. The axis is then a
    digit of the position, or of an expression that is one."""
    accesses = list(accesses)
    masks = [parts_of(access.src[2], Ops.AND) if len(access.src) > 2 else [] for access in accesses]
    shared = [condition for condition in masks[0] if all(condition in others for others in masks)]
    forms = [affine(access.src[1]) for access in accesses]
    wanted = axis
    for number, condition in enumerate(shared):
        if condition.op is not Ops.CMPLT or condition.src[1].op is not Ops.CONST or condition.src[0].vmin < 0:
            continue
        within, limit = condition.src
        variable = UOp(Ops.VARIABLE, dtypes.index, (), (f"within{number}", 0, limit.arg - 1))
        replaced = [_with_variable(form, affine(within), variable) for form in forms]
        kept = [form for form in replaced if form is not None]
        if len(kept) != len(forms):
            continue
        if axis in within.ranges:
            if digit_of(within, axis) is None:
                return False
            wanted = variable
        forms = kept
    return share_digit_of_forms(forms, wanted)


def _with_variable(form: Affine, within: Affine, variable: UOp) -> Affine | None:
    """The form with a variable for a multiple of the expression; None where it is not a multiple plus independent
    terms."""
    atom, count = next(iter(within.terms.items()))
    scale, left = divmod(form.terms.get(atom, 0), count)
    rest = form.plus(within, -scale)
    if scale == 0 or left or not rest.terms.keys().isdisjoint(within.terms):
        return None
    return rest.plus(Affine({variable: 1}, 0), scale)


def _hides(form: Affine, axes: list[UOp]) -> bool:
    """Whether an atom of the form depends on one of the axes without being it."""
    return any(atom is not axis and axis in atom.ranges for atom in form.terms for axis in axes)
