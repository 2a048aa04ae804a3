"""Kernels of products with quantised weights. In: a layout, and activations quantised to 8 bits (`activations.py`).
Out: UOps of kernels in which integer dot products of fields and activations are scaled once for each part of a block.
Those of one token are in `row_kernels.py`.

With a few tokens the lanes are rows of weights, which are transposed in registers as they are loaded and unpacked once
for all tokens (`shared_rows`).

With many tokens the lanes are tokens: the groups of 4 activations of neighbouring tokens are neighbours in memory, and
each group of 4 weights is broadcast."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AddrSpace, AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const
from tilewright.llm.quantised.activations import TERMS
from tilewright.llm.quantised.layouts import Bytes, Layout


class Tile(NamedTuple):
    """How a product is cut: rows of weights at a time, tokens at a time, and the lanes that tokens or several rows
    fill. `width` are the most lanes of a vector along a row: a longer part is added up in several steps."""

    rows: int
    tokens: int
    lanes: int = 1
    width: int = 16


def add_up(value: UOp, *ranges: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *ranges), Ops.ADD)


def bytes_at(weights: UOp, nbytes: int, block: UOp, *rows: UOp | int) -> Bytes:
    """The bytes of one block of a row."""

    def byte(position: UOp | int) -> UOp:
        return weights[(*rows, block * nbytes + position)].load()

    return Bytes(byte)


def shared_rows(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """out (tokens, rows), weights (rows, bytes), activations (tokens, columns), and their scales and sums (tokens,
    parts). The lanes are rows of weights: a block of as many rows is unpacked once for all tokens of the tile, and
    each group of 4 activations is broadcast."""

    def kernel(out: UOp, weights: UOp, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, rows = out.shape
        tile_row = UOp.range(rows // tile.lanes, 0, AxisType.THREAD)
        tile_token, inner_token = UOp.range(tokens // tile.tokens, 1), UOp.range(tile.tokens, 7, AxisType.UNROLL)
        block = UOp.range(values.shape[1] // (layout.parts * layout.length), 2, AxisType.REDUCE)
        lane = UOp.range(tile.lanes, 3, AxisType.UPCAST)
        is_scaled = layout.scales > 1
        turns = layout.parts // layout.together
        outer = UOp.range(turns, 9, AxisType.REDUCE) if turns > 1 else index_const(0)
        loops = (block, outer) if turns > 1 else (block,)
        inner = UOp.range(layout.together, 4, AxisType.UNROLL)
        part = layout.part(outer, inner)
        group, term = UOp.range(layout.length // TERMS, 5, AxisType.UNROLL), UOp.range(TERMS, 6, AxisType.UNROLL)
        row, token = tile_row * tile.lanes + lane, tile_token * tile.tokens + inner_token
        data = bytes_at(weights, nbytes, block, row)
        element = group * TERMS + term
        field = layout.field(data, part, element)
        activation = values[token, (block * layout.parts + part) * layout.length + element].load()
        summed = (group, term) if is_scaled else (inner, group, term)
        dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), *summed).cast(dtypes.float32)
        first = block * layout.scales + (part if is_scaled else 0)

        def number(slot: int, value: Callable[[Bytes, UOp], UOp]) -> UOp:
            """A scale or minimum of the part for each row. Those of all parts are made at once, from whole words."""
            if not is_scaled:
                return value(data, inner.const_like(0))
            at, each = (
                UOp.range(layout.parts, 10 + 2 * slot, AxisType.UNROLL),
                UOp.range(tile.lanes, 11 + 2 * slot, AxisType.UPCAST),
            )
            memory = UOp.placeholder((layout.parts, tile.lanes), dtypes.float32, slot, AddrSpace.LOCAL)
            memory = memory.after(tile_row, tile_token, block)
            found = value(bytes_at(weights, nbytes, block, tile_row * tile.lanes + each), at)
            return memory.after(UOp.barrier(memory[at, each].store(found).end(at, each)))[part, lane].load()

        total = dot * (number(0, layout.scale) * scales[token, first].load())
        if layout.minimum is not None:
            total = total + number(1, layout.minimum) * sums[token, first].load()
        total = add_up(total, *loops, *((inner,) if is_scaled else ()))
        end = (tile_row, tile_token, inner_token, lane)
        return out[token, row].set(total, end=end).sink(arg=KernelInfo(name, ()))

    return kernel


def staged_fields(
    layout: Layout, weights: UOp, nbytes: int, tile: Tile, tile_row: UOp, outer: UOp, loops: tuple[UOp, ...]
) -> UOp:
    """The fields of the parts that share bytes, unpacked in whole vectors once for all tokens of a tile: memory of the
    thread, from which groups of 4 are broadcast as they are loaded."""
    row, inner = UOp.range(tile.rows, 10, AxisType.UNROLL), UOp.range(layout.together, 11, AxisType.UNROLL)
    element = UOp.range(layout.length, 12, AxisType.UPCAST)
    data = bytes_at(weights, nbytes, loops[0], tile_row * tile.rows + row)
    field = layout.field(data, layout.part(outer, inner), element)
    memory = UOp.placeholder((tile.rows, layout.together, layout.length), field.dtype, 0).after(*loops)
    return memory[row, inner, element].set(field, end=(row, inner, element))


def many_tokens(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """out (rows, tokens), weights (rows, bytes), activations (tiles, columns // 4, lanes, 4), and their scales and sums
    (tiles, parts, lanes). A tile of activations stays in a near cache while all rows are multiplied by it."""

    def kernel(out: UOp, weights: UOp, values: UOp, scales: UOp, sums: UOp) -> UOp:
        rows, tiles = weights.shape[0], values.shape[0]
        tile_token = UOp.range(tiles // tile.tokens, 0, AxisType.THREAD)
        tile_row = UOp.range(rows // tile.rows, 1, AxisType.THREAD)
        block = UOp.range(values.shape[1] * TERMS // (layout.parts * layout.length), 2, AxisType.REDUCE)
        lane = UOp.range(tile.lanes, 3, AxisType.UPCAST)
        turns = layout.parts // layout.together
        outer = UOp.range(turns, 9, AxisType.REDUCE) if turns > 1 else index_const(0)
        loops = (block, outer) if turns > 1 else (block,)
        inner = UOp.range(layout.together, 4, AxisType.UNROLL)
        part = layout.part(outer, inner)
        group = UOp.range(layout.length // TERMS, 5, AxisType.UNROLL)
        term = UOp.range(TERMS, 6, AxisType.UNROLL)
        inner_row, inner_token = UOp.range(tile.rows, 7, AxisType.UNROLL), UOp.range(tile.tokens, 8, AxisType.UNROLL)
        row, token = tile_row * tile.rows + inner_row, tile_token * tile.tokens + inner_token
        data = bytes_at(weights, nbytes, block, row)
        number = block * layout.parts + part
        # Instructions for vectors of 4 lanes take a group of 4 weights from a register, so whole bytes are staged too.
        if layout.is_packed or tile.lanes == TERMS:
            fields = staged_fields(layout, weights, nbytes, tile, tile_row, outer, loops)
            field = fields[inner_row, inner, group * TERMS + term].load()
        else:
            field = layout.field(data, part, group * TERMS + term)
        activation = values[token, number * (layout.length // TERMS) + group, lane, term].load()
        is_scaled = layout.scales > 1
        summed = (group, term) if is_scaled else (inner, group, term)
        dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), *summed).cast(dtypes.float32)
        first = block * layout.scales + (part if is_scaled else 0)
        value = dot * (layout.scale(data, part) * scales[token, first, lane].load())
        parts = (inner,) if is_scaled else ()
        rests = []
        if layout.minimum is not None:
            rest = layout.minimum(data, part) * sums[token, first, lane].load()
            if not is_scaled:  # two steps of one sum: each multiplies and adds in one instruction
                addend = UOp.range(2, 13, AxisType.UNROLL)
                value, parts = (addend < 1).where(value, rest), (addend,)
            # With a scale for each part, a sum of its own saves an addition for each. Only vectors of 4 lanes have
            # accumulators left for it.
            elif tile.lanes == TERMS:
                rests.append(add_up(rest, *loops, *parts))
            else:
                value = value + rest
        total = sum(rests, add_up(value, *loops, *parts))
        end = (tile_token, tile_row, inner_row, inner_token, lane)
        return out[row, token * tile.lanes + lane].set(total, end=end).sink(arg=KernelInfo(name, (), streams=(1,)))

    return kernel
