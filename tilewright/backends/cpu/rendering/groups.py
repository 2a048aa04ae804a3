"""Groups of a few elements. In: vectors whose lanes lie a short group apart in memory, and the renderer. Out: the text
that interleaves them, so that the groups are neighbours, and stores whole vectors of groups. Panels that dot-product
instructions read are packed so: a row of the panel is made of several rows of a matrix. Results that are computed as
vectors apart, one for each of a few in turn, are stored so as well."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.backends.cpu.rendering.instructions import of_lanes, value_type
from tilewright.backends.cpu.rendering.transpose import Emit, shuffle_mask
from tilewright.codegen.tiles import axis_size, tile_part
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of

if TYPE_CHECKING:
    from tilewright.backends.cpu.rendering.renderer import Renderer

# What instructions take as one group, in bytes.
GROUP_BYTES = 4
# Elements of a group of results.
RESULT_GROUPS = (2, 4)


def find_group(renderer: Renderer, store: UOp) -> UOp | None:
    """The axis of the groups, where a store has them side by side and its value is vectors across them."""
    place, value = store.src
    base, steps = tile_part(place.src[1])
    lanes = renderer.facts.vector_axis(value)
    if lanes is None or len(place.src) > 2 or (base is not None and renderer.facts.axes(base)):
        return None
    sizes: tuple[int, ...] = ()
    if memory_of(place).op is Ops.DEFINE_LOCAL and value.dtype.is_int:
        sizes = (GROUP_BYTES // value.dtype.itemsize,)
    elif memory_of(place).op is Ops.PARAM and not value.dtype.is_bool:
        sizes = RESULT_GROUPS
    for axis, step in steps.items():
        if step == 1 and steps.get(lanes) == axis_size(axis) and axis_size(axis) in sizes:
            return axis
    return None


def store_groups(renderer: Renderer, store: UOp, group: UOp) -> None:
    """Stores a vector of groups for each of the other coordinates."""
    place, value = store.src
    lanes = renderer.facts.vector_axis(value)
    assert lanes is not None
    axes = [axis for axis in renderer.facts.axes(store) if axis not in (lanes, group)]
    bits, count = value.dtype.bits, axis_size(lanes)
    kind = of_lanes(f"i{bits}", count * axis_size(group))
    for coordinates in itertools.product(*(range(axis_size(axis)) for axis in axes)):
        at = {**dict(zip(axes, coordinates, strict=True)), lanes: 0}
        rows = [renderer.operand(value, {**at, group: term}, lanes) for term in range(axis_size(group))]
        if value.dtype.is_float:
            given, wanted = value_type(value.dtype, count), of_lanes(f"i{bits}", count)
            rows = [renderer.emit(f"bitcast {given} {row} to {wanted}").name for row in rows]
        name = interleaved(lambda text: renderer.emit(text).name, bits, rows, count)
        pointer = renderer.memory.pointer(place, {**at, group: 0}).name
        renderer.line(f"  store {kind} {name}, ptr {pointer}, align {value.dtype.itemsize}")


def interleaved(emit: Emit, bits: int, rows: Sequence[str], lanes: int) -> str:
    """
    rows:    a0 a1 a2 a3   b0 b1 b2 b3   c0 c1 c2 c3   d0 d1 d2 d3
    result:  a0 b0 c0 d0   a1 b1 c1 d1   a2 b2 c2 d2   a3 b3 c3 d3

    A power of two of rows; a round zips two of them, whose pairs are then elements of twice as many bits."""
    found, width = list(rows), bits
    while len(found) > 1:
        kind, pairs = of_lanes(f"i{width}", lanes), of_lanes(f"i{width}", 2 * lanes)
        order = shuffle_mask([place for lane in range(lanes) for place in (lane, lanes + lane)])
        zipped = [
            emit(f"shufflevector {kind} {left}, {kind} {right}, {order}")
            for left, right in zip(found[::2], found[1::2], strict=True)
        ]
        width *= 2
        found = [emit(f"bitcast {pairs} {name} to {of_lanes(f'i{width}', lanes)}") for name in zipped]
    result = of_lanes(f"i{bits}", lanes * len(rows))
    return emit(f"bitcast {of_lanes(f'i{width}', lanes)} {found[0]} to {result}")
