"""One LOAD or STORE at a time. In: an access of all threads of a batch. Out: the values loaded, memory changed, or an
error that names the program, the node, the buffer, the index and the thread. The emulator calls this for memory ops."""

from __future__ import annotations

import numpy as np

from tilewright.backends.python.launch import FIRST_TILE_AXIS, Launch
from tilewright.backends.python.memory import Conflict, View
from tilewright.base.errors import EmulatorError, InternalError, OutOfBoundsError, RaceError, UninitialisedReadError
from tilewright.base.records import mutable_record, record
from tilewright.graph.interpreter.numpy_math import Array, put
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@record
class Site:
    """Where and when an access happens: the node at a position of a program's body, in an epoch, by some groups."""

    program: str
    position: int
    node: UOp
    launch: Launch
    groups: Array
    epoch: int
    check: bool

    def error(self, kind: type[EmulatorError], message: str, remedy: str = "") -> EmulatorError:
        """An error about this site, at the user's line where the node or a source of it has one."""
        lines = [node.line for node in (self.node, *self.node.src) if node.line is not None]
        text = f"body[{self.position}] {self.node.op.name} {message}"
        return kind(self.program, text, remedy, location=lines[0] if lines else None)


@mutable_record
class Selection:
    """The elements of an access that are not masked off, flat: positions in the access's shape, indices as the program
    wrote them, addresses in the view's data."""

    shape: tuple[int, ...]
    positions: Array | None
    indices: Array
    addresses: Array

    def position_of(self, element: int) -> int:
        return element if self.positions is None else int(self.positions[element])


def load(site: Site, view: View, index: Array, valid: Array | None, otherwise: Array | None) -> Array:
    """The values at `index` where `valid`, and `otherwise` (0 where None) elsewhere."""
    shape = _shape_of_both(index.shape, index.shape if valid is None else valid.shape)
    if view.offsets is not None:
        shape = _shape_of_both(shape, view.offsets.shape)
    selection = _select(site, view, index, valid, shape)
    if site.check:
        _check_read(site, view, selection)
    if selection.positions is None:
        return np.asarray(view.data[selection.addresses].reshape(shape))
    if otherwise is None:
        otherwise = np.zeros((1,) * len(shape), view.data.dtype)
    loaded = np.zeros(selection.shape, view.data.dtype)
    loaded.reshape(-1)[selection.positions] = view.data[selection.addresses]
    assert valid is not None
    return np.where(valid, loaded, otherwise)


def store(site: Site, view: View, index: Array, valid: Array | None, value: Array) -> None:
    """Write `value` at `index` where `valid`. Every thread of the batch takes part, whatever the value depends on."""
    if value.dtype != view.data.dtype:
        raise InternalError(f"{site.program}: body[{site.position}] stores {value.dtype} into {view.label}")
    threads = (site.groups.size, site.launch.group_size) + (1,) * (index.ndim - FIRST_TILE_AXIS)
    where = _shape_of_both(_shape_of_both(index.shape, threads), threads if valid is None else valid.shape)
    if site.check and site.node.arg is None:
        _check_tile_broadcast(site, view, where, value.shape)
    selection = _select(site, view, index, valid, _shape_of_both(where, value.shape))
    values = _in_a_line(value, selection.shape)
    if selection.positions is not None:
        values = values[selection.positions]
    if site.check:
        _check_write(site, view, selection)
    put(site.node.arg, view.data, selection.addresses, values)
    if site.check and site.node.arg is None and any(size > 1 for size in selection.shape[FIRST_TILE_AXIS:]):
        _check_tile_agrees(site, view, selection, values)


def _select(site: Site, view: View, index: Array, valid: Array | None, shape: tuple[int, ...]) -> Selection:
    """The elements where `valid`; their indices must be inside the buffer."""
    indices = _in_a_line(index, shape).astype(np.int64, copy=False)
    positions = None
    if valid is not None:
        positions = np.flatnonzero(_in_a_line(valid, shape))
        indices = indices[positions]
    selection = Selection(shape, positions, indices, indices)
    outside = indices.view(np.uint64) >= view.size  # as uint64 an index below 0 is a large one
    if np.count_nonzero(outside):
        element = int(outside.argmax())
        raise site.error(
            OutOfBoundsError,
            f"of {view.label}: index {indices[element]} is outside, by {_thread(site, selection, element)}",
            "mask the access, or pad the buffer",
        )
    if view.offsets is not None:
        offsets = _in_a_line(view.offsets, shape)
        selection.addresses = indices + (offsets if positions is None else offsets[positions])
    return selection


# Most accesses are to a few elements, and cost what NumPy's calls cost: ten microseconds to find that nothing is to be
# broadcast, three for `any` and half of one for `count_nonzero`.


def _shape_of_both(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return left if left == right else np.broadcast_shapes(left, right)


def _in_a_line(values: Array, shape: tuple[int, ...]) -> Array:
    """A value for each element of the shape."""
    return (values if values.shape == shape else np.broadcast_to(values, shape)).reshape(-1)


def _thread(site: Site, selection: Selection, element: int) -> str:
    return site.launch.name_element(site.groups, selection.shape, selection.position_of(element))


def _codes(site: Site, view: View, selection: Selection) -> Array:
    codes = site.launch.codes_in_a_line(site.groups, selection.shape)
    return view.per_cell(codes if selection.positions is None else codes[selection.positions])


def _check_read(site: Site, view: View, selection: Selection) -> None:
    shadow = view.shadow
    if shadow.is_complete and not shadow.tracks_threads:
        return
    cells = view.cells(selection.addresses)
    if shadow.tracks_threads:
        # A race explains why memory is not written yet, so it is looked for first.
        codes = _codes(site, view, selection)
        conflict = shadow.read(cells, codes, site.epoch)
        if conflict is not None:
            raise _race(site, view, selection, conflict, int(codes[conflict.position]), "read")
    unwritten = shadow.first_unwritten(cells)
    if unwritten is not None:
        element = unwritten // view.width
        raise site.error(
            UninitialisedReadError,
            f"of {view.label}: nobody wrote index {selection.indices[element]}, which "
            f"{_thread(site, selection, element)} reads",
            "store to it first, or tell the emulator that the caller initialised the buffer",
        )


def _check_write(site: Site, view: View, selection: Selection) -> None:
    cells = view.cells(selection.addresses)
    if view.shadow.tracks_threads:
        codes = _codes(site, view, selection)
        if site.node.arg is not None:
            # Combining by one op commutes: it counts as done by one thread, which is none of the others.
            is_own = view.node.op is Ops.DEFINE_LOCAL or site.launch.group_count == 1
            codes = site.launch.combining(site.node.arg.name, codes, is_own)
        conflict = view.shadow.write(cells, codes, site.epoch)
        if conflict is not None:
            raise _race(site, view, selection, conflict, int(codes[conflict.position]), "written")
    view.shadow.mark_written(cells)


def _race(site: Site, view: View, selection: Selection, conflict: Conflict, code: int, does: str) -> EmulatorError:
    element = conflict.position // view.width
    # Where all threads make one access, the first of them may be the other party itself.
    who = site.launch.name_code(code) if site.launch.is_several(code) else _thread(site, selection, element)
    did = "written" if conflict.other_wrote else "read"
    return site.error(
        RaceError,
        f"of {view.label}: index {selection.indices[element]} is {does} by {who} and {did} by "
        f"{site.launch.name_code(conflict.other)}, and nothing orders the two",
        "put a BARRIER between the two where one work-group makes both; give each work-group addresses of its own",
    )


def _check_tile_broadcast(site: Site, view: View, where: tuple[int, ...], value: tuple[int, ...]) -> None:
    """An address must depend on every tile axis the value depends on: otherwise the elements overwrite each other."""
    for axis in range(FIRST_TILE_AXIS, len(value)):
        if value[axis] > 1 and where[axis] == 1:
            node = site.launch.tile_ranges[axis - FIRST_TILE_AXIS]
            raise site.error(
                RaceError,
                f"of {view.label}: the value has {value[axis]} elements along the tile axis {node.arg.id}, "
                "which all have one address",
                "index the buffer by that axis, or reduce over it",
            )


def _check_tile_agrees(site: Site, view: View, selection: Selection, values: Array) -> None:
    """Elements of one thread's tile that share an address must agree to the bit: nothing orders them."""
    bits = _BITS[values.itemsize]
    wrong = view.data[selection.addresses].view(bits) != np.ascontiguousarray(values).view(bits)
    if wrong.any():
        element = int(np.argmax(wrong))
        raise site.error(
            RaceError,
            f"of {view.label}: two elements of a tile write different values to index {selection.indices[element]}, "
            f"one of them is {_thread(site, selection, element)}",
            "give each element of the tile an address of its own",
        )
