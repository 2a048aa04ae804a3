"""Attention in blocks that a core's cache holds, for devices whose threads are CPU cores. In: the facts of a call. Out:
a kernel in which a core has a block of the queries of one head and loops over blocks of keys:

    scores   = queries * c @ keys.T                              c = log2(e) / sqrt(features)
    maximum' = max(maximum, row maximum of the scores)
    weights  = exp2(scores - maximum')
    total    = total * exp2(maximum - maximum') + row sum of the weights
    result   = result * exp2(maximum - maximum') + weights @ values
    out = result / total;  maximum and 1 / total of each row, for the gradient

The products are register tiles. The queries, scores and results of a block are in memory that a core has to itself.
Keys are read from transposed panels. Rows are taken in strips: in a causal call, keys after the last row of a strip are
not visited. The order of every sum depends on the shapes and the target's registers alone."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple, record
from tilewright.graph.kernels.attention.attention import LOG2_E, MINUS_INFINITY, finite_base
from tilewright.graph.kernels.attention.block_builder import (
    BASED,
    FOLDED,
    SCORED,
    SUMMED,
    WEIGHED,
    AttentionCall,
    Builder,
    Rows,
)
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, ceil_div, greatest, is_multiple
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const

# Rows of a strip: a multiple of the rows of every register tile.
STRIP = 24
# Strips of a block of queries. The scores of a block take 72 KiB in float32, a part of a core's cache.
MIN_STRIPS, MAX_STRIPS = 2, 5
# Rows that are reduced at a time: independent chains of instructions.
FOLDED_ROWS = 4
# Tasks of a head that has a symbolic number of blocks.
MAX_TASKS = 16


class Tile(NamedTuple):
    """A register tile of accumulators."""

    rows: int
    columns: int


@record
class BlockAttention(AttentionCall):
    """Facts of a call whose operands have `dtype`, with features padded to whole vectors."""

    width: int  # features of queries and keys, padded
    value_width: int
    lanes: int
    score_tile: Tile
    query_tile: Tile  # of the products that have a row for each query, and the width of the queries or of the values
    value_tile: Tile
    columns: int  # keys of a block
    groups: int = 1  # of keys, whose gradients are separate tasks

    @property
    def rows(self) -> int:
        """Queries of a block: the number of whole strips with the fewest rows beyond the last query."""
        sizes = [strips * STRIP for strips in range(MAX_STRIPS, MIN_STRIPS - 1, -1)]
        return min(sizes, key=lambda rows: -(-greatest(self.queries) // rows) * rows)

    @property
    def panel(self) -> int:
        """Keys of a transposed panel: those of one register tile of scores."""
        return self.score_tile.columns

    @property
    def panels(self) -> Size:
        return ceil_div(self.keys, self.panel)

    @property
    def blocks(self) -> Size:
        """Blocks of queries of a head."""
        return ceil_div(self.queries, self.rows)


class KeyBlock(NamedTuple):
    """A block of the keys that a block of queries looks at: its first key, and the number of its keys up to the last
    one that any of these queries sees."""

    start: UOp
    size: UOp


@record
class Scores:
    """Where the scores of a block of queries and a block of keys are computed: the head and the rows."""

    call: BlockAttention
    build: Builder
    batch: UOp
    head: UOp
    rows: Rows

    @property
    def query_head(self) -> UOp:
        return self.batch * self.call.heads + self.head

    @property
    def key_head(self) -> UOp:
        return self.batch * self.call.key_heads + self.head // self.call.shared

    def limit(self) -> UOp:
        """The number of keys that the block looks at."""
        keys = index_const(self.call.keys) if isinstance(self.call.keys, int) else self.call.keys
        return (self.rows.first + self.rows.size).minimum(keys) if self.call.is_causal else keys

    def key_block(self, number: UOp) -> KeyBlock:
        start = number * self.call.columns
        return KeyBlock(start, (self.limit() - start).minimum(index_const(self.call.columns)))

    def seen(self, keys: KeyBlock, strip: UOp) -> UOp:
        """The number of keys of a block that a strip of rows looks at."""
        if not self.call.is_causal:
            return keys.size
        last = self.rows.first + (strip + 1) * STRIP - keys.start
        return last.minimum(keys.size).maximum(index_const(0))

    def seen_panels(self, keys: KeyBlock, strip: UOp) -> UOp:
        return (self.seen(keys, strip) + (self.call.panel - 1)) // self.call.panel

    def skipped_strips(self, key: UOp) -> UOp:
        """The strips whose rows do not look at the key."""
        if not self.call.is_causal:
            return index_const(0)
        return (key - self.rows.first).maximum(index_const(0)) // STRIP

    def products(self, left: UOp, panels: UOp, keys: KeyBlock, features: int, width: int) -> Products:
        """Register tiles of rows of `left`, memory of the core, times keys of transposed panels."""
        call, build, tile = self.call, self.build, self.call.score_tile
        panel = build.over((keys.size + (call.panel - 1)) // call.panel)
        in_strip = STRIP // tile.rows
        skipped = self.skipped_strips(keys.start + panel * call.panel) * in_strip
        number = build.over(self.rows.size // tile.rows - skipped)
        own, column, step = build.tile(tile.rows), build.tile(tile.columns), build.summed(features)
        row = (skipped + number) * tile.rows + own
        start = (self.key_head * call.panels + keys.start // call.panel + panel) * features
        factors = load(left, row * width + step), load(panels, (start + step) * call.panel + column)
        value = build.fold(Ops.ADD, factors[0] * factors[1], step)
        return Products(value, row, panel * call.panel + column, (panel, number, own, column))

    def masked(self, score: UOp, row: UOp, key: UOp, mask: UOp | None) -> UOp:
        """The score to base 2, minus infinity where it is masked."""
        call, nothing = self.call, self.build.number(MINUS_INFINITY)
        query = self.rows.first + row
        if mask is not None and call.mask is not None:
            valid = [] if call.mask[3] is None or is_multiple(call.keys, call.panel) else [key < call.keys]
            valid += [] if call.mask[2] is None else self.rows.valid(row)
            score = call.masked(score, mask, (self.batch, self.head, query, key), valid)
        if call.is_causal:
            score = (key < query + 1).where(score, nothing)
        is_symbolic = not (isinstance(call.keys, int) and isinstance(call.queries, int))
        if not is_multiple(call.keys, call.panel) and (not call.is_causal or is_symbolic or call.queries > call.keys):
            score = (key < call.keys).where(score, nothing)
        return score


class RowSums(NamedTuple):
    """Memory of a core with a number for each row of a block, and two with one for each row of a strip."""

    maximum: UOp
    total: UOp
    rescale: UOp
    folded: UOp
    base: UOp


class Products(NamedTuple):
    """The elements of a register tile, their row and column in the blocks, and the loops that make them."""

    value: UOp
    row: UOp
    column: UOp
    loops: tuple[UOp, ...]


def forward_kernel(
    call: BlockAttention, out: UOp, sums: UOp, query: UOp, _key: UOp, panels: UOp, value: UOp, *others: UOp
) -> UOp:
    """`panels` are the keys, (batch, heads, panels, features, keys of a panel), zeros after the last key; `sums` have
    the maximum of the scores to base 2, and 1 / the sum of the weights, of all queries of all heads. The two are apart:
    a maximum can be so large that their logsumexp would be the maximum. Keys as they are are for the gradient; `others`
    are the mask, and the state of the random numbers."""
    build = Builder(call.dtype)
    mask, state = call.extra_arguments(others)
    head, block, axes = _blocks_of(call, build)
    rows = Rows(block * call.rows, call.rows, call.queries, axes)
    at = Scores(call, build, head // call.heads, head % call.heads, rows)
    zero, width = index_const(0), call.value_width
    sizes = (call.rows * call.width, call.rows * call.columns, call.rows * width)
    queries, scores, result = (build.scratch(size) for size in sizes)
    maximum, total, rescale, folded, base = (build.scratch(size) for size in (*(call.rows,) * 3, STRIP, STRIP))
    queries = build.copied(queries, query, head * call.queries, rows, call.width, call.lanes, call.scale * LOG2_E)
    maximum = build.filled(maximum, zero, call.rows, STRIP, MINUS_INFINITY, *axes)
    total = build.filled(total, zero, call.rows, STRIP, 0.0, *axes)
    result = build.filled(result, zero, call.rows * width, call.lanes, 0.0, *axes)

    step = build.over((at.limit() + (call.columns - 1)) // call.columns)
    keys = at.key_block(step)
    found = at.products(queries, panels, keys, call.features, call.width)
    score = at.masked(found.value, found.row, keys.start + found.column, mask)
    scores = after(scores, step)
    scored = end(store(scores, found.row * call.columns + found.column, score), loops=found.loops)
    scores = after(scores, barrier(SCORED, scored))
    of_rows = RowSums(maximum, total, rescale, folded, base)
    softmax, weights = _softmax(at, keys, state, step, scores, of_rows)
    update = weighted_sum(
        at, call.value_tile, keys, weights, value, width, (after(result, step), after(rescale, softmax))
    )
    done = end(update, loops=(step,))

    maximum, total, result = (after(each, done) for each in (maximum, total, result))
    row, part, lane = build.over(call.rows), build.over(width // call.lanes), build.tile(call.lanes)
    column = part * call.lanes + lane
    quotient = load(result, row * width + column) / load(total, row)
    position = (head * call.queries + rows.first + row) * width + column
    stored = end(store(out, position, quotient, *rows.valid(row)), loops=(row, part, lane, *axes))
    effects = [stored]
    for kind in range(2):
        row = build.over(call.rows)
        number = build.number(1.0) / load(total, row) if kind else finite_base(load(maximum, row))
        position = (head + kind * (call.batch * call.heads)) * call.queries + rows.first + row
        effects.append(end(store(sums, position, number, *rows.valid(row)), loops=(row, *axes)))
    return UOp(Ops.SINK, dtypes.void, tuple(effects), KernelInfo("attention_blocks", ()))


def _blocks_of(call: BlockAttention, build: Builder) -> tuple[UOp, UOp, tuple[UOp, ...]]:
    """The head and the block of a task, and the loops of tasks. Where the number of blocks is symbolic, a fixed number
    of tasks takes the blocks of a head in turns. In a causal call the blocks with the most keys come first."""
    blocks = call.blocks
    tasks = min(greatest(blocks), MAX_TASKS) if isinstance(blocks, UOp) else blocks
    head, number = (build.over(size, AxisType.THREAD) for size in (call.batch * call.heads, tasks))
    if isinstance(blocks, int):
        return head, (blocks - 1) - number if call.is_causal else number, (head, number)
    turn = build.over((blocks - number + (tasks - 1)) // tasks)
    taken = turn * tasks + number
    return head, (blocks - 1) - taken if call.is_causal else taken, (head, number, turn)


def _softmax(
    at: Scores, keys: KeyBlock, state: UOp | None, step: UOp, scores: UOp, of_rows: RowSums
) -> tuple[UOp, UOp]:
    """The effect that turns scores into weights and updates the maximum, the total and the factor of each row; and the
    memory of the weights. Rows are folded several at a time, and what follows a fold is vectorised over rows."""
    call, build = at.call, at.build
    strip = build.over(call.rows // STRIP)
    first, count = strip * STRIP, at.seen_panels(keys, strip)
    folded = after(of_rows.folded, step, strip)

    def elements(row: UOp) -> tuple[UOp, tuple[UOp, UOp]]:
        panel, lane = build.summed(count), build.tile(call.panel)
        return row * call.columns + panel * call.panel + lane, (panel, lane)

    def fold_rows(op: Op, memory: UOp, folded: UOp) -> UOp:
        """The effect that reduces each row of a strip."""
        number, own = build.over(STRIP // FOLDED_ROWS), build.tile(FOLDED_ROWS)
        inner = number * FOLDED_ROWS + own
        place, loops = elements(first + inner)
        return end(store(folded, inner, build.fold(op, load(memory, place), *loops)), loops=(number, own))

    tallest = after(folded, barrier(FOLDED, fold_rows(Ops.MAX, scores, folded)))
    lane = build.tile(STRIP)
    maximum, rescale, bases = (after(each, step, strip) for each in (of_rows.maximum, of_rows.rescale, of_rows.base))
    before = load(maximum, first + lane)
    largest = before.maximum(load(tallest, lane))
    base = finite_base(largest)
    stores = [
        store(maximum, first + lane, largest),
        store(bases, lane, base),
        store(rescale, first + lane, (before - base).alu(Ops.EXP2)),
    ]
    based = barrier(BASED, end(*stores, loops=(lane,)))
    inner = build.over(STRIP)
    place, loops = elements(first + inner)
    weights = (load(scores, place) - load(after(bases, based), inner)).alu(Ops.EXP2)
    weighed = after(scores, barrier(WEIGHED, end(store(scores, place, weights), loops=(*loops, inner))))
    sums = after(tallest, barrier(FOLDED, fold_rows(Ops.ADD, weighed, after(tallest, based))))
    lane, total = build.tile(STRIP), after(of_rows.total, step, strip)
    rescaled = load(total, first + lane) * load(after(rescale, based), first + lane)
    effects = [end(store(total, first + lane, rescaled + load(sums, lane)), loops=(lane,))]
    if state is not None:
        inner = build.over(STRIP)
        place, loops = elements(first + inner)
        row = at.rows.first + first + inner
        kept = call.kept(state, at.query_head, row, keys.start + place - (first + inner) * call.columns)
        effects.append(end(store(weighed, place, load(weighed, place) * kept), loops=(*loops, inner)))
    done = barrier(SUMMED, end(*effects, loops=(strip,)))
    return done, after(scores, done)


def weighted_sum(
    at: Scores,
    tile: Tile,
    keys: KeyBlock,
    weights: UOp,
    values: UOp,
    width: int,
    result: tuple[UOp, UOp | None],
) -> UOp:
    """The effect result = result * factor + weights @ values, in register tiles. `result` are the memory of the core
    and that of a factor for each row."""
    call, build = at.call, at.build
    memory, factors = result
    strip, number = build.over(call.rows // STRIP), build.over(STRIP // tile.rows)
    part, own, lane = build.over(width // tile.columns), build.tile(tile.rows), build.tile(tile.columns)
    row, column = strip * STRIP + number * tile.rows + own, part * tile.columns + lane
    key = build.summed(at.seen(keys, strip))
    start = (at.key_head * call.keys + keys.start + key) * width
    added = build.fold(Ops.ADD, load(weights, row * call.columns + key) * load(values, start + column), key)
    before = load(memory, row * width + column)
    scaled = before if factors is None else before * load(factors, row)
    return end(store(memory, row * width + column, scaled + added), loops=(strip, number, part, own, lane))
