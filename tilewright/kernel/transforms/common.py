"""The record of a transform, and the checks that several of them share. In: a kernel, an axis, an amount. Out: None,
or the reason that names the rule, the axis and its size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, quotient_of


class Transform(NamedTuple):
    """One kernel transform. `check` gives the reason why it may not be applied, or None;
    `apply` gives the kernel after it, and is called only where `check` allowed it; `candidates` proposes axes and
    arguments for search, which are checked like those that a user gives. All three may read `view.target`. A transform
    that takes no axis is given the kernel's SINK in its place."""

    op: OptOps
    check: Callable[[KernelView, UOp, Any], str | None]
    apply: Callable[[KernelView, UOp, Any], UOp]
    candidates: Callable[[KernelView], Iterator[tuple[UOp, Any]]]
    argument: str  # what `Opt.arg` means
    takes_axis: bool = True
    needs_groups: bool = False  # whether the target must have work-groups

    @property
    def example(self) -> str:
        """The program before and after, from the docstring of the transform's file."""
        text = sys.modules[self.apply.__module__].__doc__ or ""
        lines = text.splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("    before:")), len(lines))
        return "\n".join(lines[first:]).rstrip()


SPLITTABLE = (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL, AxisType.THREAD)


def check_amount(view: KernelView, axis: UOp, amount: object, name: str) -> str | None:
    """An axis can be split by a divisor of its size."""
    position = view.axes.index(axis)
    if not is_uniform(axis):
        return f"{name} needs a loop of known size, the size of axis {position} is computed"
    inner = next(iter(view.sized_by(axis)), None)
    if inner is not None and name != "THREAD":
        return f"{name} needs equal iterations, the size of axis {view.axes.index(inner)} depends on axis {position}"
    if not isinstance(amount, int) or isinstance(amount, bool):
        return f"{name} amount {amount!r} is not a number"
    if amount < 1 or quotient_of(axis, amount) is None:
        size = size_of(axis) if is_counted(axis) else "a variable"
        return f"{name} amount {amount} does not divide size {size} of axis {position}"
    return None


def check_output_loop(view: KernelView, axis: UOp, amount: object, name: str) -> str | None:
    """An output loop whose iterations are given to threads."""
    position = view.axes.index(axis)
    if axis in view.reduce_axes:
        return f"{name} needs an output loop, axis {position} is reduced"
    if axis.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL):
        return f"{name} needs a loop, axis {position} is {axis.arg.kind.name}"
    return check_amount(view, axis, amount, name)


def prefixed(name: str, reason: str | None) -> str | None:
    return None if reason is None else f"{name}: {reason}"


def divisors(axis: UOp, amounts: tuple[int, ...]) -> list[int]:
    """The amounts that divide the size of the axis; none where it is computed."""
    return [amount for amount in amounts if is_counted(axis) and size_of(axis) % amount == 0]
