"""A list of opts for a target with work-groups, under construction. In: a kernel for such a target. Out: the opts so
far, all within the target's limits, and the facts of loops that the choices are made by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.base.target import Target
from tilewright.graph.kernels.threads import count_threads
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import fits_target
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, quotient_of, stride, view_kernel
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.template import Opts
from tilewright.kernel.transforms.registry import TRANSFORMS


class GroupOptBuilder(OptBuilder):
    """Takes an opt only where the work-group stays within the target's limits of threads and memory."""

    def take(self, op: OptOps, axis: UOp, argument: int) -> bool:
        """Applies an opt if it is legal and within the target's limits."""
        if TRANSFORMS[op].check(self.view, axis, argument) is not None:
            return False
        made = TRANSFORMS[op].apply(self.view, axis, argument)
        if not fits_target(view_kernel(made, self.target)):
            return False
        self.accept(op, axis, argument, made)
        return True

    def split(self, op: OptOps, axis: UOp, amount: int) -> UOp | None:
        """Splits `amount` iterations off an axis. Returns the remaining loop, the axis itself if it was not split, or
        None if nothing remains. An axis of symbolic size is padded to whole parts."""
        if amount <= 1:
            return axis
        if not is_counted(axis):
            axis = self.fill_up(axis, amount)
        if not self.take(op, axis, amount):
            return axis
        return self.find((*axis.arg.id, 0)) if amount < size_of(axis) or not is_counted(axis) else None

    def find(self, identity: tuple[int, ...]) -> UOp | None:
        return next((axis for axis in self.view.axes if axis.arg.id == identity), None)

    def fill_up(self, axis: UOp, multiple: int) -> UOp:
        if quotient_of(axis, multiple) is None and self.take(OptOps.PADTO, axis, multiple):
            found = self.find(axis.arg.id)
            assert found is not None
            return found
        return axis

    @property
    def lanes(self) -> int:
        """Elements of the widest dtype in one vector."""
        widest = max((access.dtype.itemsize for access in self.view.accesses), default=4)
        return max(1, self.target.vector_bytes // widest)

    @property
    def room(self) -> int:
        return self.target.max_group_size // count_threads(self.view.sink)


def tile_groups(view: KernelView, tile: Callable[..., object], *found: Any) -> Opts:
    """The opts of a tile that is made with a builder and what was matched."""
    builder = GroupOptBuilder(view)
    tile(builder, *found)
    return tuple(builder.opts)


def output_loops(view: KernelView) -> list[UOp]:
    """Loops that store results, whose size is the same in all iterations of other loops."""
    loops = view.of_kind(AxisType.LOOP, AxisType.GLOBAL)
    return [axis for axis in loops if axis not in view.reduce_axes and is_uniform(axis)]


def step_of(axis: UOp, accesses: tuple[UOp, ...] | list[UOp]) -> int:
    """The smallest stride along the axis; very large where no access depends on it."""
    steps = [abs(step) for step in (stride(access, axis) for access in accesses) if step]
    return min(steps, default=1 << 62)


def divisor(size: int, most: int, least: int = 1) -> int:
    """The largest divisor up to `most`, or a power of two that is at least half as large; 1 where it is below
    `least`."""
    found = max(d for d in range(1, min(size, most) + 1) if size % d == 0)
    power = math.gcd(size, 1 << max(most.bit_length() - 1, 0))
    best = power if 2 * power >= found else found
    return best if best >= least else 1


def part_of(axis: UOp, most: int) -> int:
    """The iterations of an axis that go to threads at a time: a divisor of its size, or a power of two where that is
    symbolic, and the last part is masked."""
    if is_counted(axis):
        return divisor(size_of(axis), most)
    return 1 << max(0, min(most, size_of(axis)).bit_length() - 1)


def warp_threads(target: Target) -> int:
    """The fewest threads that a group should have: one warp, of the usual size where the target names none."""
    return target.warp_size if target.warp_size > 1 else 32
