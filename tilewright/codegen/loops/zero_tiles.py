"""Tiles of zeros. In: a kernel with tiles. Out: the kernel in which a stored tile that is 0 except where a position
equals an index is computed only for tiles that contain the index; all others are the constant 0.

    before: out[i, t*8 + u] = 1 if index[i] == t*8 + u else 0
    after:  out[i, t*8 + u] = (1 if index[i] == t*8 + u else 0) if 0 <= index[i] - t*8 < 8 else 0

The outer condition is the same for a whole tile. It is marked as a slow path (`graph/kernels/slow_path.py`): the
renderer branches around the comparison of vectors. In one_hot, or a diagonal, one tile of a row needs it."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.graph.affine import Affine, from_affine
from tilewright.graph.kernels.slow_path import SLOW_PATH, slow_path
from tilewright.graph.ops import Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.simplify.reduce import difference_in_index
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import size_of, substitute, toposort

# The fewest tiles of a row: in shorter ones the branch is mispredicted more often than it saves time.
MIN_TILES = 8


def skip_zero_tiles(sink: UOp, target: Target) -> UOp:
    if SLOW_PATH not in target.native_ops:
        return sink
    stores = [node for node in toposort(sink) if node.op is Ops.STORE]
    made = {store: store.with_src((store.src[0], found)) for store in stores if (found := _in_tiles(store.src[1]))}
    return substitute(sink, made) if made else sink


def _in_tiles(value: UOp) -> UOp | None:
    """The value with its slow path; None where it has none."""
    is_truth = value.op is Ops.CAST and value.src[0].dtype.is_bool
    is_masked = value.op is Ops.WHERE and value.arg is None and value.src[2].is_const and _is_zero(value.src[2])
    if not is_truth and not is_masked:
        return None
    condition = value.src[0]
    for part in parts_of(condition, Ops.AND):
        found = _tile_misses(part) if part.op is Ops.CMPEQ else None
        if found is not None:
            return slow_path(found, const(value.dtype, 0), value)
    return None


def _is_zero(node: UOp) -> bool:
    return node.arg == 0 and str(node.arg)[0] != "-"  # -0.0 has other bits


def _tile_misses(comparison: UOp) -> UOp | None:
    """Whether no element of a tile is equal to the index."""
    form = difference_in_index(comparison)
    if form is None:
        return None
    tiles = {axis: step for axis, step in form.terms.items() if axis.op is Ops.RANGE and axis.arg.kind.is_tile}
    rest = Affine({atom: step for atom, step in form.terms.items() if atom not in tiles}, form.constant)
    if not tiles or any(axis.arg.kind.is_tile for atom in rest.terms for axis in atom.ranges):
        return None
    positions = [atom for atom in rest.terms if not any(node.op is Ops.LOAD for node in toposort(atom))]
    if max((size_of(axis) for atom in positions for axis in atom.ranges), default=1) < MIN_TILES:
        return None
    ends = [step * (size_of(axis) - 1) for axis, step in tiles.items()]
    low, high = sum(min(0, end) for end in ends), sum(max(0, end) for end in ends)
    # tiles + rest == 0 for some element: -high <= rest <= -low
    start = from_affine(rest)
    return (start < -high) | (start < 1 - low).logical_not()
