"""Sums by index: scatter, the gradient of a gather, the last writer of an element. In: a kernel for a target. Out: a
plan with SCATTER and the opts that parallelise it, beside that of comparing every output with every term.

The terms of an output are combined in their order in either case: the choice does not change results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tilewright.base.costs import seconds_of
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.group_builder import warp_threads
from tilewright.kernel.templates.measured import (
    COMPARISONS_PER_ELEMENT,
    COMPARISONS_PER_TERM,
    MASKED_ELEMENT,
    MIN_BLOCK,
    MIN_SHARED_VECTORS,
    PARTS_PER_CORE,
)
from tilewright.kernel.templates.measured_groups import (
    GROUP_THREADS,
    MIN_ADJACENT,
    MIN_OUTPUTS,
    STEPS_PER_TERM,
    STEPS_PER_UPDATE,
    STEPS_TO_FILL,
    STEPS_TO_FILL_TOGETHER,
)
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.template import Opts, Plan, Template
from tilewright.kernel.transforms.distribute import check_distribute
from tilewright.kernel.transforms.local import check_local
from tilewright.kernel.transforms.scatter import Terms, check_scatter, match_terms


def match_scatter(view: KernelView) -> UOp | None:
    """The output loop whose iterations are the rows that an index selects."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes and is_counted(axis)]
    return next((axis for axis in loops if check_scatter(view, axis, 1) is None), None)


def scatter_plans(view: KernelView, axis: UOp) -> Iterator[Plan]:
    """Two plans: a loop over the terms, and a comparison of every output with every term, which other templates
    make."""
    if view.target.has_local:
        parts = wanted_parts(view, axis)
        looped = loop_clocks_of_groups(view, axis, parts)
        make = partial(share_among_groups, view, axis, parts)
    else:
        shares = shares_of(view, axis)
        looped = loop_clocks_of_cores(view, shares)
        make = partial(share_among_cores, view, axis, shares)
    # On CPU cores, a comparison that looks for the last term gathers its operand element by element.
    if view.target.has_local or all(terms.op is not None for terms in terms_of(view, axis)):
        compared = compared_clocks(view, axis)
        reason = "every output is compared with every term"
        yield Plan("comparisons", reason, None, partial(seconds_of, compared, view.target))
    reason = "stores at computed indices: a loop over the terms, each added to its output"
    yield Plan("loop over terms", reason, make, partial(seconds_of, looped, view.target))


def compared_clocks(view: KernelView, axis: UOp) -> float:
    """Vector comparisons on CPU cores; on a device with work-groups, comparisons divided by the threads that its cores
    run per clock."""
    terms = max(math.prod(map(size_of, reduce.src[1:])) for reduce in view.reduces)
    columns = columns_of(view, axis)
    if view.target.has_local:
        outputs = math.prod(map(size_of, columns)) * size_of(axis)
        return outputs * terms // (view.target.cores * warp_threads(view.target))
    shares = shares_of(view, axis)
    # A term at a computed index (the gradient of a gathered square) is loaded again by every lane that compares.
    has_vectors = shares.row is None or all(stride(access, shares.row) is not None for access in view.accesses)
    return terms * -(-size_of(axis) * shares.width // (shares.lanes if has_vectors else 1))


def shared_loops(view: KernelView) -> list[UOp]:
    """The loops that may be parallel."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if is_counted(loop)]
    return [loop for loop in loops if check_cores(view, loop) is None]


def columns_of(view: KernelView, axis: UOp) -> list[UOp]:
    """The other output loops, those of the largest stride first."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if loop not in view.reduce_axes and loop is not axis]
    return by_steps(loops, view)


def by_steps(loops: list[UOp], view: KernelView) -> list[UOp]:
    return sorted(loops, key=lambda loop: -max(abs(stride(store, loop) or 0) for store in view.stores))


def divisor(axis: UOp, most: int) -> int:
    return max(amount for amount in range(1, most + 1) if size_of(axis) % amount == 0)


# ---------------------------------------------------------------- cores


class Shares(NamedTuple):
    """How cores may share a sum by index: `row` is the loop of contiguous columns, `width` elements long, and `others`
    counts the iterations of all other columns. `is_spread` says that the index depends on the row's loop: every lane
    has its own output, so lanes are handled one by one. `has_parts` says that a row has enough vectors for each core to
    take a part of the outputs."""

    row: UOp | None
    width: int
    lanes: int
    others: int
    is_spread: bool
    has_parts: bool


def shares_of(view: KernelView, axis: UOp) -> Shares:
    columns = columns_of(view, axis)
    lanes = min(view.target.lanes(store.dtype) for store in view.stores)
    row = columns[-1] if columns and all(stride(store, columns[-1]) == 1 for store in view.stores) else None
    width = size_of(row) if row is not None else 1
    is_spread = row is not None and any(row in terms.output_index.ranges for terms in terms_of(view, axis))
    others = math.prod(map(size_of, columns)) // width
    has_parts = not is_spread and -(-width // lanes) >= MIN_SHARED_VECTORS and others < view.target.cores
    return Shares(row, width, lanes, others, is_spread, has_parts)


def loop_clocks_of_cores(view: KernelView, shares: Shares) -> float:
    """The estimate in vector comparisons of one core; multiplied by the cores where only one of them would work."""
    row, width, lanes, others, is_spread, has_parts = shares
    terms = max(math.prod(map(size_of, reduce.src[1:])) for reduce in view.reduces)
    is_vector = row is not None and not is_spread
    term = COMPARISONS_PER_TERM + 2 * -(-width // lanes) if is_vector else COMPARISONS_PER_ELEMENT * width
    is_shared = has_parts or is_spread or others >= view.target.cores
    return terms * term * (1 if is_shared else view.target.cores)


def share_among_cores(view: KernelView, axis: UOp, shares: Shares) -> Opts:
    """Vectors along the columns; a core for each part of the outputs, or for other loops that are long enough."""
    target = view.target
    row, _, lanes, others, is_spread, has_parts = shares
    builder = OptBuilder(view)
    parts = max(1, min(target.cores, size_of(axis) // MIN_OUTPUTS)) if has_parts else 1
    builder.apply(OptOps.SCATTER, axis, parts)
    cores = target.cores if parts * others < target.cores else 1
    if row is not None and (is_spread or has_parts):
        cached = cached_blocks(view, axis, row) if is_spread else 1
        row = block_row(builder, row, lanes, is_spread, cores, cached)
    loops = [loop for loop in shared_loops(builder.view) if loop is not row]
    if target.has_threads and loops:
        loop = next((loop for loop in loops if size_of(loop) >= target.cores), max(loops, key=size_of))
        if size_of(loop) > 1:
            builder.apply(OptOps.THREAD, loop, size_of(loop))
    if row is not None and check_distribute(builder.view, row, None) is None:
        builder.apply(OptOps.DISTRIBUTE, row)
    vectorise_nests(builder, lanes)
    return tuple(builder.opts)


def cached_blocks(view: KernelView, axis: UOp, row: UOp) -> int:
    """The fewest blocks of a row such that a core's cache holds the outputs of one block and the elements that are read
    at computed indices: the terms access both in any order."""
    indirect = [access for access in view.accesses if access not in view.stores and stride(access, row) is None]
    accessed = (len(view.stores) + len(indirect)) * max(store.dtype.itemsize for store in view.stores)
    return -(-2 * size_of(axis) * size_of(row) * accessed // view.target.core_cache_bytes)


def block_row(builder: OptBuilder, row: UOp, lanes: int, is_spread: bool, cores: int, cached: int) -> UOp:
    """Splits a row into equal blocks: at least `cached` of them, or else one per core, whichever number divides the row
    into whole vectors (into any elements, where lanes are handled one by one). A row that neither divides is padded.
    Returns the loop inside a block."""
    unit = MIN_BLOCK if is_spread else lanes
    count = None
    for least in sorted({max(cores, cached), cores}, reverse=True):
        counts = range(least, min(PARTS_PER_CORE * least, size_of(row) // unit) + 1)
        count = count or next((n for n in counts if size_of(row) % (n if is_spread else n * lanes) == 0), None)
    if count is None and (size_of(row) < cores * unit or (is_spread and cores <= MASKED_ELEMENT)):
        return row
    if count is None:
        count = cores
        row = builder.pad(row, count * lanes)
    return builder.block(row, size_of(row) // count)[1] if count > 1 and size_of(row) // count >= unit else row


def vectorise_nests(builder: OptBuilder, lanes: int) -> None:
    """Vectors along the innermost loop of each nest of stores that walks contiguous memory."""
    done: set[UOp] = set()
    while True:
        view = builder.view
        closed = [loop for loop in view.of_kind(AxisType.LOOP) if view.closers(loop) and loop not in done]
        found = next((loop for loop in closed if size_of(loop) > 1 and is_contiguous(view, loop)), None)
        if found is None:
            return
        done.add(found)
        builder.vectorise(found, view.target.independent_vectors, lanes)
        done.update(loop for loop in builder.view.axes if loop.arg.id[: len(found.arg.id)] == found.arg.id)


def is_contiguous(view: KernelView, loop: UOp) -> bool:
    """Whether a loop has stride 1 in the stores that depend on it, and 0 or 1 in the loads."""
    inside = [access for access in view.accesses if loop in access.ranges]
    stores = [access for access in inside if access in view.stores]
    return bool(stores) and all(stride(access, loop) in ((1,) if access in stores else (0, 1)) for access in inside)


def terms_of(view: KernelView, axis: UOp) -> list[Terms]:
    found = (match_terms(store, axis) for store in view.sink.src)
    return [terms for terms in found if isinstance(terms, Terms)]


# ---------------------------------------------------------------- work-groups


def wanted_parts(view: KernelView, axis: UOp) -> int:
    """Parts of the outputs with which enough threads loop over the terms."""
    threads = math.prod(map(size_of, columns_of(view, axis)))
    return min(view.target.cores * GROUP_THREADS // threads, size_of(axis) // MIN_OUTPUTS)


def loop_clocks_of_groups(view: KernelView, axis: UOp, wanted: int) -> float:
    """Every thread reads all terms and updates the outputs of its part. A part along memory is filled by one thread, so
    that stores of adjacent threads are not adjacent."""
    outputs = math.prod(map(size_of, columns_of(view, axis))) * size_of(axis)
    terms = max(math.prod(map(size_of, reduce.src[1:])) for reduce in view.reduces)
    adjacent = min(abs(stride(store, axis) or 1) for store in view.stores)
    fill = STEPS_TO_FILL_TOGETHER if adjacent >= MIN_ADJACENT else STEPS_TO_FILL
    filled = outputs // (view.target.cores * GROUP_THREADS) * fill
    return terms * STEPS_PER_TERM + terms // max(1, wanted) * STEPS_PER_UPDATE + filled


def share_among_groups(view: KernelView, axis: UOp, wanted: int) -> Opts:
    """A thread for each column of each part of the outputs, adjacent threads on adjacent columns."""
    builder = OptBuilder(view)
    builder.apply(OptOps.SCATTER, axis, part_count(view, axis, wanted))
    room = min(GROUP_THREADS, view.target.max_group_size)
    for loop in reversed(by_steps(shared_loops(builder.view), builder.view)):
        amount = divisor(loop, room)
        if amount > 1 and check_local(builder.view, loop, amount) is None:
            builder.apply(OptOps.LOCAL, loop, amount)
            room //= amount
    return tuple(builder.opts)


def part_count(view: KernelView, axis: UOp, wanted: int) -> int:
    """The number of parts, near the one that is wanted. Parts divide an inner loop without a remainder: a part that
    crossed the end of the loop would continue in the next row, and no loop could be parallel."""
    is_outermost = not any(
        (stride(store, loop) or 0) > (stride(store, axis) or 0)
        for store in view.stores
        for loop in columns_of(view, axis)
    )
    if is_outermost:
        return 1 << max(0, wanted.bit_length() - 1)
    return divisor(axis, max(1, wanted))


SCATTER = Template(
    "scatter", "a sum by index: scatter, the gradient of a gather, the last writer", match_scatter, scatter_plans
)
