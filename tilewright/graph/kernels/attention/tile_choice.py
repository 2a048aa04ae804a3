"""Tiles of attention on tensor cores. In: the facts of a call and of its target. Out: the call with the rows and
columns of its tiles, and the order in which work-groups take them."""

from __future__ import annotations

from tilewright.base.records import replace
from tilewright.graph.kernels.attention.attention import QUERY, Attention
from tilewright.graph.kernels.attention.split import Split
from tilewright.graph.kernels.origin import greatest

# Queries, and keys, of a tile. Two work-groups with tiles of 64 share a core: one computes its softmax while the
# other multiplies. Wide tiles are fetched by a warp group of their own, and halve what is read from the cache: 1.1 to
# 1.5 times as fast where all cores have work of the same length (measured on an H200).
TILE, WIDE_TILE = 64, 128
# Maximum features of a head for gradients, and for tiles with as many keys as queries.
MAX_GRADIENT_FEATURES = 128
# Where operands are in parts, a tile takes three times the memory. Keys of a tile, with one line of features and with
# two: a tile of queries and two of keys fit into local memory, and so do the tiles of the gradients.
PART_KEYS = {1: 64, 2: 32}
# Where the lengths differ, and the next free core takes a tile, wide ones pay with many features and many tiles.
MIN_UNEQUAL_FEATURES, MIN_UNEQUAL_TILES = 65, 4
# Pairs of causal tiles have the same length, so that some cores may have nothing to do in the end: the time of all, at
# most, as a multiple of what it would be with all at work.
MAX_IDLE = 1.2
CACHE_PART = 2


def choose_tiles(call: Attention, is_narrow: bool = False) -> Attention:
    """The call with its tiles: those of the forward kernel, or narrow ones."""
    rows, is_paired = _choose_rows(call)
    columns = _keys_of_tile(call, rows)
    if is_narrow:
        rows, columns, is_paired = TILE, min(TILE, columns), False
    return replace(call, rows=rows, columns=columns, is_paired=is_paired, together=_heads_together(call))


def _choose_rows(call: Attention) -> tuple[int, bool]:
    """The rows of a tile of the forward kernel, and whether a work-group takes pairs of tiles: where each tile has a
    partner with which it has as many keys as any other pair, and the pairs are not just too many for the cores to do at
    once. Tiles of symbolic sizes are not fetched by a warp group of their own."""
    queries, keys = call.queries, call.keys
    if not isinstance(queries, int) or not isinstance(keys, int):
        return TILE, False
    count = -(-queries // WIDE_TILE)
    tiles, pairs = call.batch * call.heads * count, call.batch * call.heads * (count // 2)
    if 2 * tiles <= call.cores:
        return TILE, False
    if not call.is_causal:
        return WIDE_TILE, False
    if count % 2 == 0 and keys >= queries and -(-pairs // call.cores) * call.cores <= MAX_IDLE * pairs:
        return WIDE_TILE, True
    is_wide = call.core.parts > 1 or (call.features >= MIN_UNEQUAL_FEATURES and tiles >= MIN_UNEQUAL_TILES * call.cores)
    return WIDE_TILE if is_wide else TILE, False


def _keys_of_tile(call: Attention, rows: int) -> int:
    """Keys of a tile: as many as queries, unless local memory has room for fewer."""
    if call.core.parts > 1:
        return PART_KEYS[Split(call.core, (1, 1, 1, call.features), call.steps[QUERY]).lines]
    return rows if call.features <= MAX_GRADIENT_FEATURES else TILE


def _heads_together(call: Attention) -> int:
    """How many heads are processed together so that their keys and values fit into a part of the cache: all, or a power
    of two."""
    nbytes = 2 * greatest(call.keys) * call.features * call.core.parts * call.core.multiplied.itemsize
    heads, room = call.batch * call.heads, call.cache_bytes // CACHE_PART // nbytes * call.shared
    return heads if room >= heads else 1 << max(0, room.bit_length() - 1)
