"""Kernels of products with quantised weights. In: a layout, and activations quantised to 8 bits (`activations.py`).
Out: UOps of kernels in which integer dot products of fields and activations are scaled once for each part of a block.

    for row: for block:                          one token: the lanes lie along a part
      for part:  dot[lane] = sum of 4 products   a dot-product instruction
                 acc[lane] += scale * x_scale * dot[lane]
                 rest      += minimum * x_sum    the sum of a part's activations, times their scale

Where a vector has 4 lanes, the dot products of 4 or more parts are added up pairwise to one vector with a lane for each
(`sums_in_lanes`), which is converted and scaled at once: a conversion takes as long as four dot products.

Where a vector has more lanes than a part, `rows_in_lanes` and `runs_in_lanes` take several rows at once: their scales
are converted as one vector, which is a large part of the work for 32 weights.

With a few tokens the lanes are rows of weights, which are transposed in registers as they are loaded and unpacked once
for all tokens (`shared_rows`).

With many tokens the lanes are tokens: the groups of 4 activations of neighbouring tokens are neighbours in memory, and
each group of 4 weights is broadcast."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AddrSpace, AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const
from tilewright.llm.quantised.activations import RUN, TERMS
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


def one_token(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """out (tokens, picks, rows), weights (experts, rows, bytes), chosen (tokens, picks), quantised activations
    (tokens, 1 or picks, columns), and their scales and sums for each part."""

    def kernel(out: UOp, weights: UOp, chosen: UOp | None, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, picks, rows = out.shape
        tile_row, inner_row = UOp.range(rows // tile.rows, 0, AxisType.THREAD), UOp.range(tile.rows, 7, AxisType.UNROLL)
        tile_token, inner_token = UOp.range(tokens // tile.tokens, 1), UOp.range(tile.tokens, 8, AxisType.UNROLL)
        pick = UOp.range(picks, 2)
        # Rows at a distance, each the next row of a long stream: processors prefetch few short ones.
        row, token = inner_row * (rows // tile.rows) + tile_row, tile_token * tile.tokens + inner_token
        source = pick if values.shape[1] > 1 else 0
        block = UOp.range(values.shape[2] // (layout.parts * layout.length), 3, AxisType.REDUCE)
        kind = AxisType.UPCAST if layout.scales > 1 and tile.tokens == 1 else AxisType.UNROLL
        part = UOp.range(layout.parts, 4, kind)
        width = min(tile.width, layout.length // TERMS)
        step = UOp.range(layout.length // TERMS // width, 9, AxisType.UNROLL)
        lane = UOp.range(width, 5, AxisType.UPCAST)
        term = UOp.range(TERMS, 6, AxisType.UNROLL)
        expert = chosen[token, pick].load().cast(dtypes.index) if chosen is not None else 0
        data = bytes_at(weights, nbytes, block, expert, row)
        number = block * layout.parts + part
        element = (step * width + lane) * TERMS + term
        field = layout.field(data, part, element)
        activation = values[token, source, number * layout.length + element].load()
        summed = (step, term) if layout.scales > 1 else (part, step, term)
        dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), *summed).cast(dtypes.float32)
        first = block * layout.scales + (part if layout.scales > 1 else 0)
        scale = layout.scale(data, part) * scales[token, source, first].load()
        parts = (part,) if layout.scales > 1 else ()
        total = add_up(dot * scale, block, lane, *parts)
        if layout.minimum is not None:
            total = total + add_up(layout.minimum(data, part) * sums[token, source, first].load(), block, *parts)
        end = (tile_row, tile_token, pick, inner_row, inner_token)
        return out[token, pick, row].set(total, end=end).sink(arg=KernelInfo(name, ()))

    return kernel


def sums_in_lanes(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """As `one_token`, with a lane for each scale of a block, or for each of 4 blocks that have one scale."""
    blocks = 4 if layout.scales == 1 else 1

    def kernel(out: UOp, weights: UOp, chosen: UOp | None, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, picks, rows = out.shape
        tile_row, inner_row = UOp.range(rows // tile.rows, 0, AxisType.THREAD), UOp.range(tile.rows, 1, AxisType.UNROLL)
        token, pick = UOp.range(tokens, 2), UOp.range(picks, 3)
        source = pick if values.shape[1] > 1 else 0
        row = inner_row * (rows // tile.rows) + tile_row
        expert = chosen[token, pick].load().cast(dtypes.index) if chosen is not None else 0
        width = min(tile.width, layout.length // TERMS)

        def total(first: UOp, count: int, ids: Iterator[int], *loops: UOp) -> UOp:
            """The sum over `count` blocks from `first` on, and over loops."""
            scaled = UOp.range(count * layout.scales, next(ids), AxisType.UPCAST)  # a lane for each scale
            inner = UOp.range(layout.parts // layout.scales, next(ids), AxisType.UNROLL)
            block, part = (first, scaled) if layout.scales > 1 else (scaled + first, inner)
            step = UOp.range(layout.length // TERMS // width, next(ids), AxisType.UNROLL)
            lane = UOp.range(width, next(ids), AxisType.UPCAST)
            term = UOp.range(TERMS, next(ids), AxisType.UNROLL)
            data = bytes_at(weights, nbytes, block, expert, row)
            element = (step * width + lane) * TERMS + term
            field = layout.field(data, part, element)
            activation = values[token, source, (block * layout.parts + part) * layout.length + element].load()
            product = field.cast(dtypes.int32) * activation.cast(dtypes.int32)
            dot = add_up(product, inner, step, lane, term).cast(dtypes.float32)
            number = first * layout.scales + scaled
            found = dot * scales[token, source, number].load()
            if layout.offset:
                found = found - sums[token, source, number].load() * layout.offset
            found = add_up(found * layout.scale(data, part), *loops, scaled)
            if layout.minimum is None or layout.offset:
                return found
            return found + add_up(layout.minimum(data, part) * sums[token, source, number].load(), *loops, scaled)

        ids = itertools.count(5)
        groups, rest = divmod(values.shape[2] // (layout.parts * layout.length), blocks)
        parts = [total(index_const(groups * blocks), rest, ids)] if rest else []
        if groups:
            group = UOp.range(groups, 4, AxisType.REDUCE)
            parts.append(total(group * blocks, blocks, ids, group))
        end = (tile_row, token, pick, inner_row)
        return out[token, pick, row].set(sum(parts[1:], parts[0]), end=end).sink(arg=KernelInfo(name, ()))

    return kernel


def staged(memory: UOp, at: UOp, value: UOp) -> UOp:
    """The memory once a vector is in it. The barrier says that the vector is stored and loaded, lane by lane: each lane
    would be computed where it is used otherwise."""
    return memory.after(UOp.barrier(memory[at].store(value).end(at)))


def rows_in_lanes(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """As `one_token`, for a format whose parts have one scale: the lanes of a vector belong to several rows, whose
    scales are converted together."""

    def kernel(out: UOp, weights: UOp, chosen: UOp | None, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, picks, rows = out.shape
        streams, width = rows // tile.rows, layout.length // TERMS
        tile_row = UOp.range(streams, 0, AxisType.THREAD)
        token, pick = UOp.range(tokens, 1), UOp.range(picks, 2)
        source = pick if values.shape[1] > 1 else 0
        expert = chosen[token, pick].load().cast(dtypes.index) if chosen is not None else 0
        block = UOp.range(values.shape[2] // (layout.parts * layout.length), 3, AxisType.REDUCE)
        part, term = UOp.range(layout.parts, 4, AxisType.UNROLL), UOp.range(TERMS, 5, AxisType.UNROLL)
        lane = UOp.range(tile.rows * width, 6, AxisType.UPCAST)

        def data(stream: UOp) -> Bytes:
            return bytes_at(weights, nbytes, block, expert, stream * streams + tile_row)

        loops = (tile_row, token, pick)
        row = UOp.range(tile.rows, 7, AxisType.UPCAST)
        memory = UOp.placeholder((tile.rows,), dtypes.float32, 0, AddrSpace.LOCAL).after(*loops, block)
        scale = layout.scale(data(row), part.const_like(0)) * scales[token, source, block].load()
        scaled = staged(memory, row, scale)
        element = lane % width * TERMS + term
        field = layout.field(data(lane // width), part, element)
        activation = values[token, source, (block * layout.parts + part) * layout.length + element].load()
        dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), part, term).cast(dtypes.float32)
        folded = UOp.placeholder((tile.rows * width,), dtypes.float32, 1, AddrSpace.LOCAL).after(*loops)
        folded = staged(folded, lane, add_up(dot * scaled[lane // width].load(), block))
        stored, inner = UOp.range(tile.rows, 8, AxisType.UNROLL), UOp.range(width, 9, AxisType.UPCAST)
        total = add_up(folded[stored * width + inner].load(), inner)
        if layout.minimum is not None:
            other = UOp.range(tile.rows, 10, AxisType.UPCAST)
            rest = UOp.placeholder((tile.rows,), dtypes.float32, 2, AddrSpace.LOCAL).after(*loops)
            least = layout.minimum(data(other), part.const_like(0)) * sums[token, source, block].load()
            rest = staged(rest, other, add_up(least, block))
            total = total + rest[stored].load()
        end = (*loops, stored)
        return out[token, pick, stored * streams + tile_row].set(total, end=end).sink(arg=KernelInfo(name, ()))

    return kernel


def runs_in_lanes(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """As `one_token`, for a format whose parts have several scales: a vector holds the same run of 32 elements of
    several rows. The scales of all parts of these rows are converted as one vector, and the minima are
    added in the lanes of their row."""

    def kernel(out: UOp, weights: UOp, chosen: UOp | None, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, picks, rows = out.shape
        streams, width = rows // tile.rows, RUN // TERMS
        tile_row = UOp.range(streams, 0, AxisType.THREAD)
        token, pick = UOp.range(tokens, 1), UOp.range(picks, 2)
        source = pick if values.shape[1] > 1 else 0
        expert = chosen[token, pick].load().cast(dtypes.index) if chosen is not None else 0
        size = layout.parts * layout.length
        block = UOp.range(values.shape[2] // size, 3, AxisType.REDUCE)
        run, term = UOp.range(size // RUN, 4, AxisType.UNROLL), UOp.range(TERMS, 5, AxisType.UNROLL)
        lane = UOp.range(tile.rows * width, 6, AxisType.UPCAST)

        def data(stream: UOp) -> Bytes:
            return bytes_at(weights, nbytes, block, expert, stream * streams + tile_row)

        loops = (tile_row, token, pick)
        each = UOp.range(tile.rows * layout.parts, 7, AxisType.UPCAST)
        memory = UOp.placeholder((tile.rows * layout.parts,), dtypes.float32, 0, AddrSpace.LOCAL).after(*loops, block)
        number = each % layout.parts
        scale = layout.scale(data(each // layout.parts), number)
        scaled = staged(memory, each, scale * scales[token, source, block * layout.parts + number].load())
        element = lane % width * TERMS + term
        part = run * (RUN // layout.length) + lane % width // (layout.length // TERMS)
        field = layout.field(data(lane // width), part, element % layout.length)
        activation = values[token, source, block * size + run * RUN + element].load()
        dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), term).cast(dtypes.float32)
        total = add_up(dot * scaled[lane // width * layout.parts + part].load(), run)
        if layout.minimum is not None:
            turn = UOp.range(layout.parts // width, 8, AxisType.UNROLL)
            number = turn * width + lane % width
            least = layout.minimum(data(lane // width), number)
            total = total + add_up(least * sums[token, source, block * layout.parts + number].load(), turn)
        folded = UOp.placeholder((tile.rows * width,), dtypes.float32, 1, AddrSpace.LOCAL).after(*loops)
        folded = staged(folded, lane, add_up(total, block))
        stored, inner = UOp.range(tile.rows, 9, AxisType.UNROLL), UOp.range(width, 10, AxisType.UPCAST)
        result = add_up(folded[stored * width + inner].load(), inner)
        end = (*loops, stored)
        return out[token, pick, stored * streams + tile_row].set(result, end=end).sink(arg=KernelInfo(name, ()))

    return kernel


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
        if layout.is_packed:
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
            # With a scale for each part, a sum of its own saves an addition for each. Only vectors of 4 lanes have
            # accumulators left for it.
            if is_scaled and tile.lanes == TERMS:
                rests.append(add_up(rest, *loops, *parts))
            else:
                value = value + rest
        total = sum(rests, add_up(value, *loops, *parts))
        end = (tile_token, tile_row, inner_row, inner_token, lane)
        return out[row, token * tile.lanes + lane].set(total, end=end).sink(arg=KernelInfo(name, ()))

    return kernel
