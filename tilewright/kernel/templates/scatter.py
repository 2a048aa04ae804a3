"""Opts for sums by index: scatter, the gradient of a gather, the last writer of an element. In: a kernel for a target.
Out: SCATTER and the opts that parallelise it, or None where comparing every output with every term takes less time.

The terms of an output are combined in their order in either case: the choice does not change results."""

from __future__ import annotations

import math

from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import check_cores
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.opt_builder import INDEPENDENT_VECTORS, OptBuilder
from tilewright.kernel.templates.template import Plan, Template
from tilewright.kernel.transforms.distribute import check_distribute
from tilewright.kernel.transforms.local import check_local
from tilewright.kernel.transforms.scatter import Terms, check_scatter, match_terms

# The cost of one indexed read-modify-write, in vector comparisons: of a term whose row is a loop of vectors, with the
# start of that loop; and of an element that has an output of its own (measured: 1.7 ns, where a comparison takes 1).
COMPARISONS_PER_TERM = 32
COMPARISONS_PER_ELEMENT = 2
# Maximum blocks per core of a row that is divided among cores, and minimum elements of a block.
BLOCKS_PER_CORE = 4
MIN_BLOCK = 4
# The cost of an element that has an output of its own and a mask, in such elements without one.
MASKED_ELEMENT = 2
# With rows of fewer vectors, cores that each skip the others' terms are no faster than one core.
MIN_VECTORS = 4
# On a target with work-groups: comparisons that a core does in one step, which also load a row's value; the steps of a
# thread for a term of another part, for a term of its own, which it loads, changes and stores, and to fill an output,
# alone or beside threads whose outputs are adjacent; and the threads per core that loop over the terms, as each of them
# reads all terms.
COMPARISONS_PER_CORE = 32
STEPS_PER_TERM = 64
STEPS_PER_UPDATE = 600
STEPS_TO_FILL = 64
STEPS_TO_FILL_TOGETHER = 4
MIN_ADJACENT = 8
WALKING_THREADS = 256
GROUP_THREADS = 256
# Parts of fewer outputs are not worth reading all terms for.
MIN_OUTPUTS = 16


def match_scatter(view: KernelView) -> UOp | None:
    """The output loop whose iterations are the rows that an index selects."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes and is_counted(axis)]
    return next((axis for axis in loops if check_scatter(view, axis, 1) is None), None)


def scatter_plans(view: KernelView, axis: UOp) -> tuple[Plan, ...]:
    share = share_among_groups if view.target.has_local else share_among_cores
    reason = "stores at computed indices: a loop over the terms, each added to its output"
    return (Plan("loop over terms", reason, lambda: share(view, axis)),)


def shared_loops(view: KernelView) -> list[UOp]:
    """The loops that may be parallel."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if is_counted(loop)]
    return [loop for loop in loops if check_cores(view, loop) is None]


def takes_longer(compared: int, walked: int) -> bool:
    """Whether comparing every output with a term costs more than the loop over the terms. Tests replace this."""
    return compared > walked


def columns_of(view: KernelView, axis: UOp) -> list[UOp]:
    """The other output loops, those of the largest stride first."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if loop not in view.reduce_axes and loop is not axis]
    return by_steps(loops, view)


def by_steps(loops: list[UOp], view: KernelView) -> list[UOp]:
    return sorted(loops, key=lambda loop: -max(abs(stride(store, loop) or 0) for store in view.stores))


def divisor(axis: UOp, most: int) -> int:
    return max(amount for amount in range(1, most + 1) if size_of(axis) % amount == 0)


# ---------------------------------------------------------------- cores


def share_among_cores(view: KernelView, axis: UOp) -> tuple[Opt, ...] | None:
    """Vectors along the columns; a core for each part of the outputs, or for other loops that are long enough."""
    target = view.target
    columns = columns_of(view, axis)
    lanes = min(target.lanes(store.dtype) for store in view.stores)
    row = columns[-1] if columns and all(stride(store, columns[-1]) == 1 for store in view.stores) else None
    width = size_of(row) if row is not None else 1
    # Where the index depends on the row's loop, every lane has its own output, and lanes are handled one by one.
    is_spread = row is not None and any(row in terms.output_index.ranges for terms in terms_of(view, axis))
    vectors = 1 if is_spread else -(-width // lanes)
    others = math.prod(map(size_of, columns)) // width
    has_parts = vectors >= MIN_VECTORS and others < target.cores
    is_shared = has_parts or is_spread or others >= target.cores
    is_vector = row is not None and not is_spread
    term = COMPARISONS_PER_TERM + 2 * vectors if is_vector else COMPARISONS_PER_ELEMENT * width
    walked = term * (1 if is_shared else target.cores)
    # What is compared for the last term has to be gathered, element by element.
    is_last = any(terms.op is None for terms in terms_of(view, axis))
    if not is_last and not takes_longer(size_of(axis) * width // lanes, walked):
        return None
    builder = OptBuilder(view)
    parts = max(1, min(target.cores, size_of(axis) // MIN_OUTPUTS)) if has_parts else 1
    builder.apply(OptOps.SCATTER, axis, parts)
    if row is not None and parts * others < target.cores and (is_spread or has_parts):
        row = block_for_cores(builder, row, lanes, is_spread)
    loops = [loop for loop in shared_loops(builder.view) if loop is not row]
    if target.has_threads and loops:
        loop = next((loop for loop in loops if size_of(loop) >= target.cores), max(loops, key=size_of))
        if size_of(loop) > 1:
            builder.apply(OptOps.THREAD, loop, size_of(loop))
    if row is not None and check_distribute(builder.view, row, None) is None:
        builder.apply(OptOps.DISTRIBUTE, row)
    vectorise_nests(builder, lanes)
    return tuple(builder.opts)


def block_for_cores(builder: OptBuilder, row: UOp, lanes: int, is_spread: bool) -> UOp:
    """A row in equal blocks, at least one for each core, of whole vectors unless lanes are handled one by one; the loop
    inside a block. A row that has no such blocks is padded."""
    cores, unit = builder.target.cores, MIN_BLOCK if is_spread else lanes
    if cores == 1 or size_of(row) < cores * unit:
        return row
    counts = range(cores, BLOCKS_PER_CORE * cores + 1)
    count = next((n for n in counts if size_of(row) % (n if is_spread else n * lanes) == 0), None)
    if count is None and is_spread and cores <= MASKED_ELEMENT:
        return row
    if count is None:
        count = cores
        row = builder.pad(row, count * lanes)
    return builder.block(row, size_of(row) // count)[1] if size_of(row) // count >= unit else row


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
        builder.vectorise(found, INDEPENDENT_VECTORS, lanes)
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


def share_among_groups(view: KernelView, axis: UOp) -> tuple[Opt, ...] | None:
    """A thread for each column of each part of the outputs, adjacent threads on adjacent columns. Comparing has a
    thread for each output, and takes no longer as long as its comparisons are few. A part along memory is filled by
    one thread, whose stores are not those of its neighbours."""
    columns = columns_of(view, axis)
    threads = math.prod(map(size_of, columns))
    terms = max(math.prod(map(size_of, reduce.src[1:])) for reduce in view.reduces)
    outputs = threads * size_of(axis)
    compared = outputs * terms // (view.target.cores * COMPARISONS_PER_CORE)
    wanted = min(view.target.cores * WALKING_THREADS // threads, size_of(axis) // MIN_OUTPUTS)
    adjacent = min(abs(stride(store, axis) or 1) for store in view.stores)
    fill = STEPS_TO_FILL_TOGETHER if adjacent >= MIN_ADJACENT else STEPS_TO_FILL
    filled = outputs // (view.target.cores * WALKING_THREADS) * fill
    looped = terms * STEPS_PER_TERM + terms // max(1, wanted) * STEPS_PER_UPDATE
    if not takes_longer(compared, looped + filled):
        return None
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
    """The number of parts, near the one that is wanted. Parts fill an inner loop without a remainder: a part that ends
    behind the loop would reach into the next row, and no loop could be parallel."""
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
