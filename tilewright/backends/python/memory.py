"""Memory with checks. In: buffers, accesses (which cells, by which threads). Out: the first access that breaks a rule,
as a `Conflict`, or None. Values are accessed through a `View`, which is checked by its `Shadow` first.

A cell is the unit of checking: an element, or less where buffers of different dtypes share memory. For each cell the
shadow keeps whether it was written, and which thread last wrote and read it in which epoch. An epoch
is the time between two barriers. Two threads of a group conflict within an epoch; two work-groups conflict in any
epoch, since nothing in a launch orders them. Accesses of one thread never conflict."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.backends.python.launch import Launch
from tilewright.base.records import NamedTuple, mutable_record
from tilewright.graph.interpreter.numpy_math import Array, numpy_dtype
from tilewright.graph.uop import UOp

# Slots begin at multiples of the largest dtype, as they do on every device.
SLOT_ALIGNMENT = 8
# All ones: NaN as a float and -1 as an integer, so that a read of it shows even where nothing is checked.
POISON = 0xFF


class Conflict(NamedTuple):
    """The first element of an access that breaks a rule: its position in the access, the other thread, and its
    access."""

    position: int
    other: int
    other_wrote: bool


class Shadow:
    """The state of some cells. Thread codes are those of `Launch`. Memory `is_own` if each cell is one work-group's."""

    def __init__(self, cells: int, launch: Launch, is_written: bool, is_own: bool = False) -> None:
        self.written = np.zeros(cells, np.bool_)
        self.is_complete = False
        self._launch = launch
        self._codes_per_group = launch.codes_per_group
        self._is_own = is_own
        # Memory that a launch does not write has no races.
        self.tracks_threads = is_written and launch.is_parallel
        size = cells if self.tracks_threads else 0
        self._writer = np.full(size, Launch.NOBODY, np.int64)
        self._write_epoch = np.zeros(size, np.int32)
        self._reader = np.full(0, Launch.NOBODY, np.int64)
        self._read_epoch = np.zeros(0, np.int32)

    def first_unwritten(self, cells: Array) -> int | None:
        """The position of the first cell that was not written."""
        if self.is_complete:
            return None
        written = self.written[cells]
        return None if np.count_nonzero(written) == written.size else int(written.argmin())

    def mark_written(self, cells: Array) -> None:
        if not self.is_complete:
            self.written[cells] = True

    def forget_written(self) -> None:
        """The contents are undefined from here on."""
        self.written[:] = False
        self.is_complete = False

    def read(self, cells: Array, codes: Array, epoch: int) -> Conflict | None:
        """Records that threads read cells."""
        conflict = self._conflict(self._writer, self._write_epoch, cells, codes, epoch, wrote=True)
        if conflict is not None:
            return conflict
        if self._reader.size == 0:
            self._reader = np.full(self._writer.size, Launch.NOBODY, np.int64)
            self._read_epoch = np.zeros(self._writer.size, np.int32)
        previous = self._reader[cells]
        previous_epoch = self._read_epoch[cells]
        self._reader[cells] = codes
        self._read_epoch[cells] = epoch
        # Of several threads that read one cell in this access, the array keeps one; for the others `kept` differs.
        kept = self._reader[cells]
        known = previous != Launch.NOBODY
        several_threads = (kept != codes) | (known & (previous_epoch == epoch) & (previous != codes))
        own_group = codes[several_threads] // self._codes_per_group
        self._reader[cells[several_threads]] = own_group * self._codes_per_group + self._launch.group_size
        if not self._is_own:
            several_groups = self._differ_in_group(kept, codes) | (known & self._differ_in_group(previous, codes))
            self._reader[cells[several_groups]] = Launch.SEVERAL_GROUPS
        return None

    def write(self, cells: Array, codes: Array, epoch: int) -> Conflict | None:
        """Records that threads write cells."""
        conflict = self._conflict(self._writer, self._write_epoch, cells, codes, epoch, wrote=True)
        if conflict is None and self._reader.size:
            conflict = self._conflict(self._reader, self._read_epoch, cells, codes, epoch, wrote=False)
        if conflict is not None:
            return conflict
        self._writer[cells] = codes
        self._write_epoch[cells] = epoch
        kept = self._writer[cells]
        position = _first(kept != codes)
        return None if position is None else Conflict(position, int(kept[position]), True)

    def _conflict(
        self, previous: Array, previous_epoch: Array, cells: Array, codes: Array, epoch: int, wrote: bool
    ) -> Conflict | None:
        others = previous[cells]
        same_epoch = previous_epoch[cells] == epoch
        wrong = (others != Launch.NOBODY) & (self._differ_in_group(others, codes) | (same_epoch & (others != codes)))
        position = _first(wrong)
        return None if position is None else Conflict(position, int(others[position]), wrote)

    def _differ_in_group(self, left: Array, right: Array) -> Array:
        if self._is_own:
            return np.asarray(False)
        unknown = (left == Launch.SEVERAL_GROUPS) | (right == Launch.SEVERAL_GROUPS)
        return np.asarray(unknown | (left // self._codes_per_group != right // self._codes_per_group))


def _first(wrong: Array) -> int | None:
    """The position of the first True."""
    return int(wrong.argmax()) if np.count_nonzero(wrong) else None


@mutable_record
class View:
    """Memory as elements of one dtype. `data` is flat and holds one instance of the buffer, or one per work-group or
    thread, which begins at its offset. Element k lies in cells `origin + k * width` up to the next element's."""

    node: UOp
    data: Array
    size: int
    shadow: Shadow
    offsets: Array | None = None
    origin: int = 0
    width: int = 1

    @property
    def label(self) -> str:
        return f"{self.node.op.name} {self.node.arg.slot} ({self.node.dtype.name}, {self.size} elements)"

    def cells(self, addresses: Array) -> Array:
        """The cells of flat addresses, `width` of them for each."""
        first = self.origin + addresses * self.width
        if self.width == 1:
            return first
        return np.asarray((first[:, None] + np.arange(self.width)).reshape(-1))

    def per_cell(self, codes: Array) -> Array:
        return codes if self.width == 1 else np.repeat(codes, self.width)


def make_parameter_views(
    nodes: Sequence[UOp], arrays: Sequence[Array], written: set[int], launch: Launch
) -> list[View]:
    """A view per buffer argument. Buffers that overlap in memory share one shadow; `written` are positions of those the
    program writes."""
    starts = [array.__array_interface__["data"][0] for array in arrays]
    views: dict[int, View] = {}
    for cluster in _overlapping(starts, [array.nbytes for array in arrays]):
        base = min(starts[position] for position in cluster)
        stop = max(starts[position] + arrays[position].nbytes for position in cluster)
        unit = math.gcd(*(arrays[position].itemsize for position in cluster), *(starts[k] - base for k in cluster))
        shadow = Shadow((stop - base) // unit, launch, not written.isdisjoint(cluster))
        for position in cluster:
            array = arrays[position]
            origin = (starts[position] - base) // unit
            views[position] = View(nodes[position], array, array.size, shadow, None, origin, array.itemsize // unit)
    return [views[position] for position in range(len(arrays))]


def _overlapping(starts: list[int], lengths: list[int]) -> list[list[int]]:
    """Positions of byte ranges, gathered where they overlap."""
    clusters: list[list[int]] = []
    reached = -1
    for position in sorted(range(len(starts)), key=starts.__getitem__):
        if clusters and starts[position] < reached:
            clusters[-1].append(position)
        else:
            clusters.append([position])
        reached = max(reached, starts[position] + lengths[position])
    return clusters


def make_slot_views(nodes: Sequence[UOp], offsets: Array, launch: Launch, is_shared: bool) -> dict[UOp, View]:
    """Views of local memory or registers, undefined at first: one instance per element of `offsets`, which numbers them
    (`is_shared`: the threads of a group share an instance). Nodes with one slot share its memory, whatever their
    dtypes."""
    views: dict[UOp, View] = {}
    for slot in dict.fromkeys(node.arg.slot for node in nodes):
        sharers = [node for node in nodes if node.arg.slot == slot]
        unit = math.gcd(*(node.dtype.itemsize for node in sharers))
        length = max(node.arg.size * node.dtype.itemsize for node in sharers)
        length = -(-length // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        storage = np.full(offsets.size * length, POISON, np.uint8)
        shadow = Shadow(storage.size // unit, launch, is_shared, is_own=True)
        for node in sharers:
            itemsize = node.dtype.itemsize
            data = storage.view(numpy_dtype(node.dtype))
            views[node] = View(node, data, node.arg.size, shadow, offsets * (length // itemsize), 0, itemsize // unit)
    return views
