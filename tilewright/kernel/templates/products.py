"""Opts for matrix products. In: a kernel for a target without work-groups. Out: opts that block it for registers and
caches; None where it is not a product, or is too small or too narrow to gain from them.

A product is a sum of products of two loads. The output loops that only one factor depends on are its columns, if one of
them has stride 1 in the stores; those that only the other factor depends on are its rows.

    for part of the rows: for block of columns:         parallel; rows have parts where there are too few blocks; the
                                                        block of the right factor is packed, into L2
      for rows of a tile:                               the left factor in place, or packed
        for columns of a tile, in the block:
          for k: a tile of accumulators in registers    a row of the panel as vectors, the left factor as scalars

A sum whose panel is too large for L2 is taken in blocks outside the rows, with accumulators spilled between blocks; any
other accumulates in registers over all of k (long float sums in levels, `graph/kernels/levels.py`). In both cases terms
are added in the order of k, in blocks that depend on shapes and caches but not on the number of cores. The epilogue (a
bias, an activation) is computed where the whole sum is in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tilewright.base.costs import seconds_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.analysis.dot_terms import product_dots
from tilewright.kernel.axes import KernelView, is_counted, stride, symbolic_loops
from tilewright.kernel.templates.blocked_products import make_blocked_opts, match_blocked
from tilewright.kernel.templates.dot_tiles import Dots, make_dot_opts, match_dots
from tilewright.kernel.templates.measured import MIN_DOT_VECTORS, MIN_LANES, MIN_PACKED_ROWS, MIN_PRODUCTS, MIN_TILES
from tilewright.kernel.templates.packed_products import PackedProduct, takes_symbolic_rows
from tilewright.kernel.templates.product_costs import (
    blocked_clocks,
    column_clocks,
    dot_clocks,
    is_left_to_columns,
    padded_clocks,
    short_clocks,
    streamed_clocks,
)
from tilewright.kernel.templates.product_match import (
    Product,
    count_products,
    factors_of,
    find_product,
    own_axes,
    sum_dtype,
)
from tilewright.kernel.templates.short_products import make_short_opts, match_short
from tilewright.kernel.templates.streamed_products import (
    fills_registers,
    is_one_block,
    make_padded_opts,
    make_streamed_opts,
    match_streamed,
)
from tilewright.kernel.templates.template import Opts, Plan, Template


def match_factors(view: KernelView) -> list[UOp] | None:
    """The accesses of the two factors, of a product that is large enough for a tile."""
    if not view.target.has_threads or has_effects(view) or not _has_known_sizes(view):
        return None
    accesses = factors_of(view)
    return accesses if accesses and count_products(view) >= MIN_PRODUCTS else None


def _has_known_sizes(view: KernelView) -> bool:
    """Whether all sizes are constants but those of loops around the product, and that of the rows, of which there is a
    tile at least."""
    symbolic = symbolic_loops(view)
    if not symbolic:
        return symbolic is not None
    product = find_product(view)
    if product is None or product.columns in symbolic:
        return False
    return product.rows not in symbolic or takes_symbolic_rows(view, product)


def product_plans(view: KernelView, accesses: list[UOp]) -> Iterator[Plan]:
    lanes, product = view.target.lanes(sum_dtype(view)), find_product(view)
    if product is None or size_of(product.columns) < MIN_LANES * lanes:
        yield from _narrow_plans(view, accesses, product, lanes)
        return
    has_instruction = bool(product_dots(view))
    if not has_instruction and is_counted(product.rows):
        yield from _plans_in_place(view, product, lanes)
    yield from _packed_plans(view, product, has_instruction)
    if is_left_to_columns(view, product):
        reason = "vectors of columns, and a divisor of the rows"
        yield Plan("columns", reason, None, _estimate(view, column_clocks, product))


def _estimate(view: KernelView, clocks: Callable[..., float], *given: object) -> Callable[[], float]:
    return lambda: seconds_of(clocks(view, *given), view.target)


def _packed_plan(name: str, reason: str, packed: PackedProduct) -> Plan:
    return Plan(name, reason, packed.choose, lambda: seconds_of(packed.clocks(), packed.target))


def _narrow_plans(view: KernelView, accesses: list[UOp], product: Product | None, lanes: int) -> Iterator[Plan]:
    """Plans for fewer columns than a vector has lanes."""
    dots = _match_dots(view, accesses, lanes)
    if dots is not None:
        reason = "both factors have stride 1 along the sum: a tile of dot products"
        yield Plan("dot products", reason, partial(make_dot_opts, view, dots), _estimate(view, dot_clocks, dots))
    # Columns of stride 1 that fill only a part of a vector are left to the template of columns (`vectors.py`).
    if product is not None and stride(product.right, product.columns) != 1:
        packed = PackedProduct(view, product)
        if packed.dot is None:
            reason = "strided columns, fewer than a vector has lanes: transposed on their way into a panel"
            yield _packed_plan("packed panels", reason, packed)


def _plans_in_place(view: KernelView, product: Product, lanes: int) -> Iterator[Plan]:
    """Plans that read the right factor in place."""
    made: Callable[[], Opts | None]
    streamed = match_streamed(view, product)
    if streamed is not None and streamed.tiles >= 2 * MIN_TILES:
        is_short = is_one_block(streamed, view.target)
        order = "all rows for one tile of columns" if is_short else "the sum in short blocks outside of the columns"
        reason = f"few rows and a matrix that is read once: {order}"
        made = partial(make_streamed_opts, view, streamed)
        yield Plan("streamed", reason, made, _estimate(view, streamed_clocks, streamed))
    short = match_short(view, product)
    if short is not None:
        reason = "a short sum: both factors in place, and few rows of results written at a time"
        made = partial(make_short_opts, view, short)
        yield Plan("short sum", reason, made, _estimate(view, short_clocks, short))
    blocked = match_blocked(view, product)
    if blocked is not None:
        reason = "two small sides and a long sum: both factors in place, in blocks of the sum that the L1 holds"
        made = partial(make_blocked_opts, view, blocked)
        yield Plan("blocked", reason, made, _estimate(view, blocked_clocks, blocked))
    if streamed is not None and fills_registers(streamed):
        reason = "a tile of all rows, and columns padded to whole registers"
        made = partial(make_padded_opts, view, streamed)
        yield Plan("padded columns", reason, made, _estimate(view, padded_clocks, streamed))
    # A tile of dot products is not blocked for caches: every tile of rows would read the right factor again.
    if size_of(product.rows) < MIN_PACKED_ROWS:
        sides = ([product.rows], [product.columns], product.left, product.right)
        dots = match_dots(view, *sides, lanes, view.target.independent_vectors * lanes)
        if dots is not None:
            reason = "stride 1 along the sum: a tile of dot products"
            yield Plan("dot products", reason, partial(make_dot_opts, view, dots), _estimate(view, dot_clocks, dots))


def _packed_plans(view: KernelView, product: Product, has_instruction: bool) -> Iterator[Plan]:
    packed = PackedProduct(view, product)
    # A dot-product instruction needs adjacent terms, which only a packed panel has.
    if packed.packs_right or not has_instruction:
        reason = "a sum of products of rows and columns: a tile of accumulators in registers, large factors packed"
        yield _packed_plan("packed panels", reason, packed)
    if not is_counted(product.rows):
        return
    few = PackedProduct(view, product, packs_few=True)
    is_few = MIN_PACKED_ROWS <= 4 * size_of(product.rows) < 4 * MIN_PACKED_ROWS
    if is_few and few.packs_right and not packed.packs_right:
        yield _packed_plan("few rows", "the right factor is packed for few rows", few)


def _match_dots(view: KernelView, accesses: list[UOp], lanes: int) -> Dots | None:
    left, right = accesses
    dots = product_dots(view)
    lanes *= max((dot.instruction.terms for dot in dots), default=1)
    # With few columns any other plan reduces vectors to scalars as well, so a plain sum may have any length.
    vectors = MIN_DOT_VECTORS if dots or len(view.reduce_axes) > 1 else 1
    rows = own_axes(view, left, right)
    columns = [axis for axis in own_axes(view, right, left) if size_of(axis) > 1]
    return match_dots(view, rows, columns, left, right, lanes, vectors * lanes)


CONTRACTION = Template(
    "contraction", "a sum of products of two loads that is large enough for a tile", match_factors, product_plans
)
