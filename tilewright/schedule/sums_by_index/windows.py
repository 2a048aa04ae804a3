"""Sums by an index that rises with the position: gradients of resampling, repeating and replicated borders. In: the
numbers and values of a reduction by index. Out: the values of the window of positions that name each output, or None
where there are no such windows.

Such an index is composed of steps that never fall (a constant added, a product or floor division by a positive
constant, a maximum or minimum with a constant), so the positions that name output n are those from the first whose
index is at least n to the first whose index is at least n + 1. Both follow from the inverses of the steps. An output
then reads its window, where otherwise terms are compared, sorted or combined atomically."""

from __future__ import annotations

import itertools
import math
from typing import TypeVar

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op, Shape
from tilewright.graph.uop import UOp

# The most positions whose indices are computed here to find the widest window; and the most reads per value, since
# every output has a loop as long as the widest window.
MAX_POSITIONS = 1 << 14
MAX_READS = 4

Value = TypeVar("Value", int, UOp)


class Step(NamedTuple):
    """One operation with a constant, and the dtype that its result has to fit into."""

    op: Op
    amount: int
    dtype: DType

    def __call__(self, value: int) -> int:
        match self.op:
            case Ops.ADD:
                return value + self.amount
            case Ops.MUL:
                return value * self.amount
            case Ops.IDIV:
                return value // self.amount
            case Ops.MAX:
                return max(value, self.amount)
        return min(value, self.amount)


def windows_of(numbers: UOp, values: UOp, output: int, terms: int, outputs: int) -> UOp | None:
    """
    before: where(numbers[p] == n, values[p], 0), over n and p
    after:  where(first(n) + k < first(n + 1), values[first(n) + k], 0), over n and k

    `terms` is the axis of p and then of k, `output` that of n, along which the values have size 1."""
    steps = find_steps(numbers)
    if steps is None:
        return None
    positions = values.shape[terms]
    width = widest_window(steps, positions, outputs)
    if width is None or width * outputs > MAX_READS * max(positions, outputs):
        return None
    whole = tuple(
        width if axis == terms else outputs if axis == output else size for axis, size in enumerate(values.shape)
    )
    first, behind = (first_position(steps, positions, outputs, offset) for offset in (0, 1))
    position = _spread(first, output, whole) + build.axis_iota(whole, terms)
    position = (position < _spread(behind, output, whole)).where(position, -1)  # outside, which reads 0
    zero = build.const(dtypes.int32, 0, whole)
    return build.gather(
        values,
        *(
            position if axis == terms else zero if size == 1 else build.axis_iota(whole, axis)
            for axis, size in enumerate(values.shape)
        ),
    )


def find_steps(numbers: UOp) -> list[Step] | None:
    """The steps from the position to the number, or None where it is computed in any other way. Axes of size 1 come
    and go on the way."""
    steps: list[Step] = []
    node = numbers
    while node.op is not Ops.IOTA:
        if node.op is Ops.CAST and node.dtype.is_int and node.src[0].dtype.is_int:
            steps.append(Step(Ops.ADD, 0, node.dtype))
        elif node.op is not Ops.RESHAPE and not (node.op is Ops.PERMUTE and max(node.shape) == math.prod(node.shape)):
            step = _step(node)
            if step is None:
                return None
            steps.append(step)
        node = node.src[0]
    return steps[::-1] if node.arg[0] == math.prod(numbers.shape) else None


def _step(node: UOp) -> Step | None:
    if node.op not in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MAX, Ops.MIN) or not node.dtype.is_int:
        return None
    constant = build.scalar_of(node.src[1])
    if constant is None or not constant.is_const:
        return None
    amount = int(constant.arg)
    if node.op in (Ops.MUL, Ops.IDIV) and amount < 1:
        return None
    return Step(Ops.ADD, -amount, node.dtype) if node.op is Ops.SUB else Step(node.op, amount, node.dtype)


def widest_window(steps: list[Step], positions: int, size: int) -> int | None:
    """The most positions that read one output; None where the steps overflow, or are too many to go through."""
    if positions > MAX_POSITIONS:
        return None
    for value in (0, positions - 1):  # a monotonic function is smallest and largest at its ends
        for step in steps:
            value = step(value)
            if not step.dtype.min <= value <= step.dtype.max:
                return None

    def index_of(position: int) -> int:
        for step in steps:
            position = step(position)
        return position

    runs = itertools.groupby(index_of(position) for position in range(positions))
    return max((sum(1 for _ in run) for number, run in runs if 0 <= number < size), default=0) or None


def first_position(steps: list[Step], positions: int, size: int, offset: int) -> UOp:
    """For each output n, the first position whose index is at least n + offset."""
    ends = [offset, size - 1 + offset]
    is_narrow = True
    for step in reversed(steps):
        ends = [_before(step, end) for end in ends]
        is_narrow &= all(dtypes.int32.min <= end <= dtypes.int32.max for end in ends)
    bound = build.iota(size, dtypes.int32 if is_narrow else dtypes.int64) + offset
    decided: list[tuple[UOp, int]] = []  # outputs decided by a maximum or minimum alone: all positions, or none
    for step in reversed(steps):
        if step.op is Ops.MAX:
            decided.append((bound < step.amount + 1, 0))
        elif step.op is Ops.MIN:
            decided.append((bound < step.amount + 1, positions))
        bound = _before(step, bound)
    found = bound.maximum(0).minimum(positions)
    for condition, position in reversed(decided):  # the step that is applied last decides first
        found = condition.where(position, found) if position == 0 else condition.where(found, position)
    return found


def _before(step: Step, bound: Value) -> Value:
    """The least value for which the step gives at least the bound, unless the constant alone decides that."""
    match step.op:
        case Ops.ADD:
            return bound - step.amount if step.amount else bound
        case Ops.MUL:
            return (bound + (step.amount - 1)) // step.amount if step.amount > 1 else bound
        case Ops.IDIV:
            return bound * step.amount if step.amount > 1 else bound
    return bound


def _spread(x: UOp, axis: int, whole: Shape) -> UOp:
    return build.expand(build.reshape(x, tuple(x.shape[0] if each == axis else 1 for each in range(len(whole)))), whole)
