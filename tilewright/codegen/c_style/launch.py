"""The shape of a launch. In: a `Program`. Out: how many work-groups and threads run along x, y and z, and how each axis
of the program is computed from their numbers. Renderer and device both use it, so that they agree."""

from __future__ import annotations

import math

from tilewright.base.records import record
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

Sizes = tuple[int, int, int]


@record
class AxisPlace:
    """An axis is `index // stride % size` of the index along a dimension; `is_last` where no modulo is needed.
    `dimension` is None where the index is linear over all dimensions, x the fastest."""

    axis: UOp
    dimension: int | None
    stride: int
    is_last: bool


@record
class Launch:
    """`grid` work-groups of `group` threads each, along x, y and z. Where `count` is less than the product of the grid,
    work-groups from number `count` on have nothing to do."""

    grid: Sizes
    group: Sizes
    grid_places: tuple[AxisPlace, ...]
    group_places: tuple[AxisPlace, ...]
    count: int

    @property
    def has_surplus(self) -> bool:
        return self.count < math.prod(self.grid)


def has_groups(program: Program) -> bool:
    """Whether the program depends on which threads form a work-group: it has axes of threads, or local memory."""
    return bool(program.local_ranges) or any(node.op in (Ops.DEFINE_LOCAL, Ops.BARRIER) for node in program.body)


def argument_slots(program: Program) -> tuple[int, ...]:
    """The slot of each buffer that a launch gives, in order: the first parameter of every section, then the second of
    every section, and so on."""
    starts = [number * program.section_buffers for number in range(program.sections)]
    return tuple(start + param.slot for param in program.params for start in starts)


def plan_launch(program: Program) -> Launch:
    target = program.target
    sections = () if program.section is None else (program.section,)
    axes = (*sections, *program.global_ranges)
    grid, grid_places = _fold(axes, target.max_grid)
    group, group_places = _fold(program.local_ranges, target.max_group)
    count = math.prod(size_of(axis) for axis in axes)
    return Launch(grid, group, grid_places, group_places, count)


def _fold(axes: tuple[UOp, ...], limits: Sizes) -> tuple[Sizes, tuple[AxisPlace, ...]]:
    """Axes, outermost first, onto three dimensions: the last is x. Outer ones share z where there are more than three;
    all share one index where a dimension would be too long."""
    x, y, *rest = [[axis] for axis in reversed(axes)] + [[], []]
    dimensions = [x, y, [axis for group in rest for axis in group]]
    sizes = [math.prod(size_of(axis) for axis in found) for found in dimensions]
    if all(size <= limit for size, limit in zip(sizes, limits, strict=True)):
        places = [place for number, found in enumerate(dimensions) for place in _places(found, number)]
        return (sizes[0], sizes[1], sizes[2]), tuple(places)
    total = math.prod(sizes)
    height = -(-total // limits[0])
    width = -(-total // height)
    depth = -(-height // limits[1])
    return (width, -(-height // depth), depth), tuple(_places(list(reversed(axes)), None))


def _places(axes: list[UOp], dimension: int | None) -> list[AxisPlace]:
    """Axes of one index, the fastest first."""
    places = []
    stride = 1
    for number, axis in enumerate(axes):
        places.append(AxisPlace(axis, dimension, stride, number == len(axes) - 1))
        stride *= size_of(axis)
    return places
