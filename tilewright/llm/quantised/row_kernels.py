"""Kernels of products of one token, or a few, with quantised weights. In: a layout, and activations quantised to 8
bits. Out: UOps of kernels whose lanes lie along the rows of weights. Stands beside `kernels.py`, whose kernels multiply
many tokens.

    for row: for block:                          one token: the lanes lie along a part
      for part:  dot[lane] = sum of 4 products   a dot-product instruction
                 acc[lane] += scale * x_scale * dot[lane]
                 rest      += minimum * x_sum    the sum of a part's activations, times their scale

Where a vector has 4 lanes, the dot products of 4 or more parts are added up pairwise to one vector with a lane for each
(`sums_in_lanes`, `parts_in_lanes`), which is converted and scaled at once: a conversion takes as long as four dot
products.

Where a vector has more lanes than a part, `rows_in_lanes` and `runs_in_lanes` take several rows at once: their scales
are converted as one vector, which is a large part of the work for 32 weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import AddrSpace, AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const
from tilewright.llm.quantised.activations import BASE, RUN, TERMS
from tilewright.llm.quantised.kernels import Tile, add_up, bytes_at
from tilewright.llm.quantised.layouts import Bytes, Layout, Steps


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
    """As `one_token`, for a format whose parts have one scale, with a lane for each of 4 blocks."""
    blocks = 4

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
            scaled = UOp.range(count, next(ids), AxisType.UPCAST)  # a lane for each scale
            part = UOp.range(layout.parts, next(ids), AxisType.UNROLL)
            block = scaled + first
            step = UOp.range(layout.length // TERMS // width, next(ids), AxisType.UNROLL)
            lane = UOp.range(width, next(ids), AxisType.UPCAST)
            term = UOp.range(TERMS, next(ids), AxisType.UNROLL)
            data = bytes_at(weights, nbytes, block, expert, row)
            element = (step * width + lane) * TERMS + term
            field = layout.field(data, part, element)
            activation = values[token, source, (block * layout.parts + part) * layout.length + element].load()
            product = field.cast(dtypes.int32) * activation.cast(dtypes.int32)
            dot = add_up(product, part, step, lane, term).cast(dtypes.float32)
            found = dot * scales[token, source, block].load()
            if layout.offset:
                found = found - sums[token, source, block].load() * layout.offset
            found = add_up(found * layout.scale(data, part), *loops, scaled)
            if layout.minimum is None or layout.offset:
                return found
            return found + add_up(layout.minimum(data, part) * sums[token, source, block].load(), *loops, scaled)

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


def parts_in_lanes(layout: Layout, nbytes: int, tile: Tile, name: str) -> Callable[..., UOp]:
    """As `one_token`, for a format whose parts have several scales: `tile.lanes` lanes belong to as many parts, a few
    consecutive ones of each row of the tile. Scales and minima are numbers of steps; the products of all parts are
    added up before they are multiplied by the unit of their row. Sums come multiplied by the negative offset where
    there is one. A minimum is multiplied with BASE added to it, which takes no conversion, and the product starts from
    what that adds."""
    scale, (offset, lowest) = layout.scale, layout.apart
    assert isinstance(scale, Steps)
    lanes, turns = tile.lanes // tile.rows, layout.parts * tile.rows // tile.lanes

    def kernel(out: UOp, weights: UOp, chosen: UOp | None, values: UOp, scales: UOp, sums: UOp) -> UOp:
        tokens, picks, rows = out.shape
        streams, width = rows // tile.rows, min(tile.width, layout.length // TERMS)
        tile_row = UOp.range(streams, 0, AxisType.THREAD)
        token, pick = (UOp.range(size, id) if size > 1 else index_const(0) for id, size in ((1, tokens), (2, picks)))
        source = pick if values.shape[1] > 1 else 0
        expert = chosen[token, pick].load().cast(dtypes.index) if chosen is not None else 0
        block = UOp.range(values.shape[2] // (layout.parts * layout.length), 3, AxisType.REDUCE)
        each = UOp.range(tile.lanes, 4, AxisType.UPCAST)
        ids = itertools.count(5)

        def data(stream: UOp | int) -> Bytes:
            return bytes_at(weights, nbytes, block, expert, stream * streams + tile_row)

        def number_of(turn: UOp) -> UOp:
            return block * layout.parts + turn * lanes + each % lanes

        def products(turn: UOp) -> UOp:
            """The integer products of the parts of a turn, times the scales of their activations."""
            step = UOp.range(layout.length // TERMS // width, next(ids), AxisType.UNROLL)
            lane, term = UOp.range(width, next(ids), AxisType.UPCAST), UOp.range(TERMS, next(ids), AxisType.UNROLL)
            part, element = turn * lanes + each % lanes, (step * width + lane) * TERMS + term
            field = layout.field(data(each // lanes), part, element)
            activation = values[token, source, number_of(turn) * layout.length + element].load()
            dot = add_up(field.cast(dtypes.int32) * activation.cast(dtypes.int32), step, lane, term)
            found = dot.cast(dtypes.float32) * scales[token, source, number_of(turn)].load()
            return found + sum_of(turn) if offset else found

        def sum_of(turn: UOp) -> UOp:
            return sums[token, source, number_of(turn)].load()

        def numbers(steps: Steps, turn: UOp) -> UOp:
            return steps.number(data(each // lanes), turn * lanes + each % lanes).cast(dtypes.float32)

        def summed(steps: Steps, total: UOp, times: float = 1.0) -> UOp:
            """The sum over all blocks, times the unit of the row."""
            found = [steps.unit(data(index_const(row))) for row in range(tile.rows)]
            unit = found[0] if times == 1.0 else found[0] * times
            for row in range(1, tile.rows):
                unit = (each < row * lanes).where(unit, found[row] if times == 1.0 else found[row] * times)
            return add_up(total * unit, block)

        each_turn = [index_const(turn) for turn in range(turns)]
        if tile.rows == 1:  # the dot products of one row hide each other's latencies; those of two need more registers
            turn = UOp.range(turns, next(ids), AxisType.UNROLL)
            total = add_up(products(turn) * numbers(scale, turn), turn)
        else:
            terms = [products(turn) * numbers(scale, turn) for turn in each_turn]
            total = sum(terms[1:], terms[0])
        loops = tuple(loop for loop in (tile_row, token, pick) if loop.op is Ops.RANGE)
        total = summed(scale, total)
        if lowest is not None:
            count = layout.parts * (values.shape[2] // (layout.parts * layout.length))
            least = sums[token, source, block * lanes + each % lanes + count].load()
            for turn in each_turn:
                least = least + sum_of(turn) * (numbers(lowest, turn) + BASE)
            total = total + summed(lowest, least, -1 / offset if offset else 1.0)
        folded = UOp.placeholder((tile.lanes,), dtypes.float32, 0, AddrSpace.LOCAL).after(*loops)
        folded = staged(folded, each, total)
        stored, inner = UOp.range(tile.rows, next(ids), AxisType.UNROLL), UOp.range(lanes, next(ids), AxisType.UPCAST)
        result = add_up(folded[stored * lanes + inner].load(), inner)
        end = (*loops, stored)
        return out[token, pick, stored * streams + tile_row].set(result, end=end).sink(arg=KernelInfo(name, ()))

    return kernel


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
