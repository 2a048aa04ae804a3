"""Threads and tiles as axes of arrays. In: a program's launch ranges and tile ranges. Out: a `Launch`: the value of
each range as an array, the grid cut into batches, names of threads for messages. The emulator computes on these arrays.

Axis 0 counts the work-groups of a batch, axis 1 the threads of a group, and each tile range has a further axis. A value
has size 1 along axes that it does not depend on, so NumPy's broadcasting is the rule for every op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from tilewright.base.errors import InternalError
from tilewright.graph.interpreter.numpy_math import Array, numpy_dtype
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp

GROUP_AXIS = 0
THREAD_AXIS = 1
FIRST_TILE_AXIS = 2

# NumPy has 64 axes at most.
TILE_LIMIT = 62


class Launch:
    """The shape of one launch. A thread's code is `group * codes_per_group + local`; the last two codes of each
    group stand for several of its threads at once, and for those that combine values atomically. `SEVERAL_GROUPS` are
    threads of more than one group."""

    NOBODY = -1
    SEVERAL_GROUPS = -2

    def __init__(self, program: Program, tile_ranges: tuple[UOp, ...], size_of: Callable[[UOp], int]) -> None:
        if len(tile_ranges) > TILE_LIMIT:
            raise InternalError(f"{program.name}: {len(tile_ranges)} tile axes; the emulator has {TILE_LIMIT}")
        self.global_ranges = program.global_ranges
        self.local_ranges = program.local_ranges
        self.tile_ranges = tile_ranges
        self.global_sizes = tuple(size_of(node) for node in program.global_ranges)
        self.local_sizes = tuple(size_of(node) for node in program.local_ranges)
        self.tile_sizes = tuple(size_of(node) for node in tile_ranges)
        self.group_count = math.prod(self.global_sizes)
        self.group_size = math.prod(self.local_sizes)
        self.codes_per_group = self.group_size + 2
        self.tile_axes = {node: FIRST_TILE_AXIS + position for position, node in enumerate(tile_ranges)}
        self.dimensions = FIRST_TILE_AXIS + max(len(tile_ranges), 1)  # TILE_DOT reads a line of elements
        self._coded: tuple[Array, dict[tuple[int, ...], Array]] | None = None

    @property
    def is_parallel(self) -> bool:
        return self.group_count * self.group_size > 1

    def along(self, values: Array, axis: int) -> Array:
        """A line of values as an array that varies along one axis."""
        shape = [1] * self.dimensions
        shape[axis] = values.size
        return values.reshape(shape)

    def single(self, value: object, node: UOp) -> Array:
        """One value of the node's dtype, the same for all threads."""
        return np.full((1,) * self.dimensions, value, numpy_dtype(node.dtype))

    def tile_size(self, node: UOp) -> int:
        """How many elements of the node's value one thread computes."""
        sizes = dict(zip(self.tile_ranges, self.tile_sizes))
        return math.prod(sizes.get(found, 1) for found in node.ranges)

    def batches(self, elements_per_group: int, limit: int, kinds: Array | None = None) -> Iterator[Array]:
        """The numbers of the work-groups, in portions that keep one value below `limit` elements where possible. Where
        `kinds` has a row for each work-group, those of a portion have equal rows."""
        portion = max(1, limit // max(elements_per_group, 1))
        for groups in [np.arange(self.group_count)] if kinds is None else self._groups_by_kind(kinds):
            for start in range(0, groups.size, portion):
                yield groups[start : start + portion]

    @staticmethod
    def _groups_by_kind(kinds: Array) -> Iterator[Array]:
        found, numbers = np.unique(kinds, axis=0, return_inverse=True)
        for number in range(len(found)):
            yield np.flatnonzero(numbers.reshape(-1) == number)

    def range_values(self, groups: Array) -> dict[UOp, Array]:
        """The value of every launch range and tile range, for the given work-groups."""
        values: dict[UOp, Array] = {}
        # Unravelling needs at least one axis; an axis of size 1 in front changes no index.
        grid = np.unravel_index(groups, (1, *self.global_sizes))[1:]
        local = np.unravel_index(np.arange(self.group_size), (1, *self.local_sizes))[1:]
        for node, indices in zip(self.global_ranges, grid):
            values[node] = self.along(indices.astype(numpy_dtype(node.dtype)), GROUP_AXIS)
        for node, indices in zip(self.local_ranges, local):
            values[node] = self.along(indices.astype(numpy_dtype(node.dtype)), THREAD_AXIS)
        for node, size in zip(self.tile_ranges, self.tile_sizes):
            values[node] = self.along(np.arange(size, dtype=numpy_dtype(node.dtype)), self.tile_axes[node])
        return values

    def codes_in_a_line(self, groups: Array, shape: tuple[int, ...]) -> Array:
        """The codes of the threads that make an access of this shape, one per element, made once for a batch."""
        if self._coded is None or self._coded[0] is not groups:
            self._coded = groups, {}
        known = self._coded[1]
        if shape not in known:
            known[shape] = np.broadcast_to(self.thread_codes(groups, shape), shape).reshape(-1)
        return known[shape]

    def thread_codes(self, groups: Array, shape: tuple[int, ...]) -> Array:
        """The codes of the threads that make an access of this shape. An access that does not vary along the threads is
        made by all of them, for which there is one code."""
        if shape[GROUP_AXIS] == 1 and groups.size > 1:
            return self.along(np.array([self.SEVERAL_GROUPS]), GROUP_AXIS)
        locals_ = np.arange(self.group_size)
        if shape[THREAD_AXIS] == 1 and self.group_size > 1:
            locals_ = np.array([self.group_size])
        return self.along(groups * self.codes_per_group, GROUP_AXIS) + self.along(locals_, THREAD_AXIS)

    def combining(self, op: str, codes: Array, is_own: bool) -> Array:
        """One code for all threads that combine values by `op` atomically. In memory that only one work-group has
        (`is_own`) it is a code of the group, which a barrier orders with others. Elsewhere it is after the
        codes of all work-groups: any other access to the same cell conflicts with it."""
        if is_own:
            return np.asarray(codes - codes % self.codes_per_group + self.group_size + 1)
        return np.full_like(codes, self._first_atomic + ("ADD", "MAX", "MIN").index(op))

    @property
    def _first_atomic(self) -> int:
        return self.group_count * self.codes_per_group

    def is_several(self, code: int) -> bool:
        if code >= self._first_atomic:
            return True
        return code == self.SEVERAL_GROUPS or code % self.codes_per_group >= self.group_size

    def name_code(self, code: int) -> str:
        """A thread, or several, in words."""
        if code == self.SEVERAL_GROUPS:
            return "threads of several work-groups"
        if code >= self._first_atomic or code % self.codes_per_group > self.group_size:
            return "threads that combine values there atomically"
        group, local = divmod(code, self.codes_per_group)
        if local == self.group_size:
            return f"several threads of grid {self._unravel(group, self.global_sizes)}"
        return self._name(group, local)

    def name_element(self, groups: Array, shape: tuple[int, ...], position: int) -> str:
        """The thread, and the element of its tile, at a flat position of an array of this shape, in words."""
        group, local, *tile = (int(index) for index in np.unravel_index(position, shape))
        text = self._name(int(groups[group]), local)
        if any(size > 1 for size in shape[FIRST_TILE_AXIS:]):
            text += f", tile {tuple(tile)}"
        return text

    def _name(self, group: int, local: int) -> str:
        grid = self._unravel(group, self.global_sizes)
        return f"thread grid {grid} local {self._unravel(local, self.local_sizes)}"

    @staticmethod
    def _unravel(position: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(index) for index in np.unravel_index(position, (1, *sizes))[1:])
