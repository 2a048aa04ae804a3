"""SCATTER: a reduction that selects its terms by an index becomes a loop over the terms that accumulates each into its
output. In: a kernel, the output loop that the index is compared with, a number of parts. Out: a kernel of
terms + outputs steps, where the comparison takes terms * outputs. The terms of an output are combined in their order.

    before: for n in 32000: out[n] = REDUCE(where(index[p] == n, x[p], 0), p)
    after:  for g in 4:                                         by 4: each part of the outputs reads all terms
                for n in 8000: out[g*8000 + n] = 0
                for p: if g*8000 <= index[p] < (g+1)*8000: out[index[p]] += x[p]

Other output loops stay outside, as threads and vectors: they have no output in common (docs/decisions/0016). DISTRIBUTE
moves them inside."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import from_affine
from tilewright.graph.ops import Axis, AxisType, Ops, reduce_identity
from tilewright.graph.records import OptOps
from tilewright.graph.simplify.common import both, opposite
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.simplify.reduce import difference_in_index, split_range
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import map_graph, size_of, substitute, toposort
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.analysis.versions import exchange_range, loads_from
from tilewright.kernel.axes import KernelView, is_counted, make_range, stride
from tilewright.kernel.transforms.common import Transform

_OUTPUT = (AxisType.LOOP, AxisType.GLOBAL)


class Terms(NamedTuple):
    """The terms of one store's reduction: `value` is accumulated at iteration `output_index` of the axis, where the
    `conditions` hold; without an `op` it replaces what is there. `own` is the value that an output starts with, None
    where that is the identity."""

    store: UOp
    op: Op | None
    value: UOp
    output_index: UOp
    conditions: tuple[UOp, ...]
    axes: tuple[UOp, ...]
    own: UOp | None


def check_scatter(view: KernelView, axis: UOp, parts: object) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in _OUTPUT or axis in view.reduce_axes or not is_counted(axis):
        return f"SCATTER needs an output loop of known size, axis {position} is {axis.arg.kind.name}"
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= size_of(axis):
        return f"SCATTER takes 1 to {size_of(axis)} parts of axis {position}, not {parts!r}"
    if has_effects(view):
        return "SCATTER needs a kernel that does not order its stores"
    if any(loop.arg.kind not in (*_OUTPUT, AxisType.REDUCE) for loop in view.axes):
        return "SCATTER comes before the opts that split loops"
    for store in view.sink.src:
        found = match_terms(store, axis)
        if isinstance(found, str):
            return f"SCATTER: {found.format(axis=position)}"
    return None


def match_terms(store: UOp, axis: UOp) -> Terms | str:
    """The terms of what is stored, each with an index along the axis; or the reason why there are none."""
    access, stored = store.src
    written = last_written(stored)
    value, own = reduction_and_own(stored) if written is None else (written.number, written.own)
    if value.op is not Ops.REDUCE:
        return "what is stored is not a reduction"
    if len(access.src) != 2 or not stride(access, axis):
        return "a store does not depend on axis {axis}"
    if loads_from(store.src[1], memory_of(access)):
        return "a store goes to memory that the kernel reads"
    found = masked_term(value.src[0], value.arg)
    if found is None:
        return "the terms are not selected by a condition"
    conditions, term = found
    if written is not None:
        term = substitute(written.value, {value: term})
    for chosen in conditions:
        output_index = index_compared(chosen, axis)
        others = tuple(other for other in conditions if other is not chosen)
        if output_index is not None:
            if any(axis in other.ranges for other in (term, *others)):
                return "the terms depend on axis {axis} in more than their index"
            op = value.arg if written is None else None
            return Terms(store, op, term, output_index, others, value.src[1:], own)
    return "no condition compares an index with axis {axis}"


class LastWritten(NamedTuple):
    """The value that the last term writes, or `own` where no term writes. `number` is the number of the last term,
    negative where there is none; `value` is computed from it."""

    number: UOp
    own: UOp
    value: UOp


def last_written(stored: UOp) -> LastWritten | None:
    """
    where(number < 0, own, values[number]), number = REDUCE(where(index[p] == n, p, least), p, MAX)"""
    if stored.op is not Ops.WHERE:
        return None
    condition, own, value = stored.src
    if condition.op is Ops.XOR and condition.src[1].is_const:
        condition, own, value = condition.src[0], value, own
    number = condition.src[0]
    is_none = condition.op is Ops.CMPLT and condition.src[1].is_const and condition.src[1].arg == 0
    if not is_none or number.op is not Ops.REDUCE or number.arg is not Ops.MAX or len(number.src) != 2:
        return None
    found = masked_term(number.src[0], Ops.MAX)
    counted = None if found is None else found[1]
    if counted is not None and counted.op is Ops.CAST and counted.dtype.is_int:
        counted = counted.src[0]
    if counted is not number.src[1] or reduce_identity(Ops.MAX, number.dtype) >= 0:
        return None
    is_alone = not any(node.op is Ops.REDUCE and node is not number for node in toposort(value))
    return LastWritten(number, own, value) if is_alone and number not in toposort(own) else None


def reduction_and_own(stored: UOp) -> tuple[UOp, UOp | None]:
    """The reduction r and `own` of a stored `own + r`, or of `where(r == 0, own, own + r)`, which leaves `own` as it is
    where a sum is 0. The stored value and None where it is neither."""
    whole, other = stored, None
    if stored.op is Ops.WHERE and stored.src[0].op in (Ops.CMPEQ, Ops.CMPNE):
        whole, other = stored.src[1:] if stored.src[0].op is Ops.CMPNE else stored.src[:0:-1]
    if whole.op not in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN):
        return stored, None
    for own, found in (whole.src, whole.src[::-1]):
        is_alone = (
            found.op is Ops.REDUCE and found.arg is whole.op and not any(n.op is Ops.REDUCE for n in toposort(own))
        )
        is_kept = other is None or (other is own and whole.op is Ops.ADD and _is_with_zero(stored.src[0], found))
        if is_alone and is_kept:
            return found, own
    return stored, None


def _is_with_zero(comparison: UOp, value: UOp) -> bool:
    return value in comparison.src and any(each.op is Ops.CONST and each.arg == 0 for each in comparison.src)


def masked_term(term: UOp, op: Op) -> tuple[tuple[UOp, ...], UOp] | None:
    """The conditions of a term and its value where they hold; elsewhere it is the identity of the reduction."""
    identity = reduce_identity(op, term.dtype)
    if term.dtype.is_bool and op is Ops.MAX:
        return tuple(parts_of(term, Ops.AND)), const(dtypes.bool, True)
    if term.op is Ops.CAST and term.src[0].dtype.is_bool and op is Ops.ADD:
        return tuple(parts_of(term.src[0], Ops.AND)), const(term.dtype, 1)
    if term.op is Ops.CAST and op is Ops.ADD and term.src[0].dtype.is_float:  # the cast of 0 is 0
        found = masked_term(term.src[0], op)
        return None if found is None else (found[0], UOp(Ops.CAST, term.dtype, (found[1],)))
    if term.op is not Ops.WHERE:
        return None
    condition, yes, no = term.src
    if no.op is Ops.CONST and no.arg == identity:
        return tuple(parts_of(condition, Ops.AND)), yes
    if yes.op is Ops.CONST and yes.arg == identity:
        return tuple(opposite(part) for part in parts_of(condition, Ops.OR)), no
    return None


def index_compared(condition: UOp, axis: UOp) -> UOp | None:
    """The value of the axis where the condition holds."""
    if condition.op is not Ops.CMPEQ or axis not in condition.ranges:
        return None
    difference = difference_in_index(condition)
    split = None if difference is None else split_range(difference, axis)
    if split is None or abs(split[0]) != 1:
        return None
    scale, rest = split
    return from_affine(rest.scaled(-1) if scale > 0 else rest)


# ---------------------------------------------------------------- the loop over the terms


def apply_scatter(view: KernelView, axis: UOp, parts: int) -> UOp:
    fresh = max(loop.arg.id[0] for loop in view.axes) + 1
    part = make_range(parts, (*axis.arg.id, 0), axis.arg.kind)
    effects = []
    for number, store in enumerate(view.sink.src):
        terms = match_terms(store, axis)
        assert isinstance(terms, Terms)
        effects.append(scattered(terms, axis, part, fresh + number, view.target.has_local))
        fresh += len(terms.axes)
    return view.sink.replace(src=tuple(effects))


def scattered(terms: Terms, axis: UOp, part: UOp, fresh: int, skips_loads: bool) -> UOp:
    """One store: its part of the outputs is initialised, then every term is accumulated. Where a mask costs less than a
    load, only terms of the part are loaded."""
    size, parts = size_of(axis), size_of(part)
    length = -(-size // parts)
    memory, position = terms.store.src[0].src
    filled = _initialised(
        terms, axis, part * length, make_range(length, (fresh,), AxisType.LOOP), length * parts > size
    )
    # Every store has loops of its own, which are not reduce axes.
    loops = {
        loop: UOp(Ops.RANGE, loop.dtype, loop.src, Axis((fresh + 1 + number,), AxisType.LOOP))
        for number, loop in enumerate(terms.axes)
    }

    def walked(node: UOp) -> UOp:
        for loop, own in loops.items():
            node = exchange_range(node, loop, own)
        return node

    output_index, value = walked(index_in_range(terms.output_index, size)), walked(terms.value)
    clamped = _clamped(output_index, part * length, length, parts)
    mask = clamped.eq(output_index)
    if length * parts > size:
        mask = both(mask, output_index < size)
    for condition in terms.conditions:
        mask = both(mask, walked(condition))
    version = UOp(Ops.AFTER, memory.dtype, (memory, filled))
    version = UOp(Ops.AFTER, memory.dtype, (version, *loops.values()))
    output = exchange_range(position, axis, clamped)
    has_row = not value.ranges <= output_index.ranges
    if parts == 1 and terms.op is not None and has_row:
        # Nearly every term is in range. Of a row, one that is not accumulates the identity, which takes no branch. Of a
        # single element the store is masked instead: selecting an address costs less than selecting a float.
        target = UOp(Ops.INDEX, memory.dtype, (version, output))
        value = mask.where(value, _identity(terms))
    else:
        target = UOp(Ops.INDEX, memory.dtype, (version, output, mask))
        if skips_loads:
            value = masked_loads(value, mask)
    if terms.op is not None:
        # A clamped index of one part is in range for all values.
        read = UOp(Ops.INDEX, memory.dtype, (version, output)) if parts == 1 else target
        value = UOp(Ops.LOAD, memory.dtype, (read,)).alu(terms.op, value)
    return UOp(Ops.END, dtypes.void, (UOp(Ops.STORE, dtypes.void, (target, value)), *loops.values()))


def _initialised(terms: Terms, axis: UOp, start: UOp, inner: UOp, is_padded: bool) -> UOp:
    """The loop that stores what the outputs of a part start with. Where the parts are padded, outputs past the end are
    masked off."""
    memory, position = terms.store.src[0].src
    number = start + inner
    whole = (number < size_of(axis),) if is_padded else ()
    begun = _identity(terms)
    if terms.own is not None:
        begun = exchange_range(terms.own, axis, number)
        begun = masked_loads(begun, *whole) if whole else begun
    first = UOp(Ops.INDEX, memory.dtype, (memory, exchange_range(position, axis, number), *whole))
    return UOp(Ops.END, dtypes.void, (UOp(Ops.STORE, dtypes.void, (first, begun)), inner))


def _identity(terms: Terms) -> UOp:
    """The value that leaves an output as it is: masked-off terms accumulate it, and outputs without an own value start
    with it."""
    dtype = terms.store.src[0].src[0].dtype
    if terms.op is Ops.ADD and dtype.is_float and terms.own is not None:
        return const(dtype, -0.0)  # adding 0.0 would change an output of -0.0
    return const(dtype, 0 if terms.op is None else reduce_identity(terms.op, dtype))


def _clamped(output_index: UOp, start: UOp, length: int, parts: int) -> UOp:
    """The index clamped to its part, so that parts are provably disjoint. It is clamped to 0 first: without negative
    values the difference needs no wider integers."""
    within = output_index.maximum(0)
    if parts > 1:
        within = (within - start).maximum(0)
    return start + within.minimum(length - 1)


def index_in_range(index: UOp, size: int) -> UOp:
    """An index without its replacement where it is out of range, such as `where((x < size) & (x >= 0), x, -1)`: the
    mask of the term says the same."""
    if index.op is Ops.CAST and index.src[0].op is Ops.WHERE:
        index = index.src[0]
    if index.op is not Ops.WHERE:
        return index
    condition, inside, outside = index.src
    while inside.op is Ops.CAST and inside.src[0].dtype.is_int:
        inside = inside.src[0]
    limits = {inside < size, opposite(inside < 0)}
    is_outside = outside.is_const and not 0 <= outside.arg < size
    is_range = is_outside and set(parts_of(condition, Ops.AND)) == limits
    return inside.cast(dtypes.index) if is_range else index


def masked_loads(value: UOp, mask: UOp) -> UOp:
    """The value with its loads restricted to where the mask holds, except those that the mask is computed from."""
    known = set(toposort(mask))

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.LOAD or node in known or memory_of(node.src[0]).op is not Ops.PARAM:
            return None
        address = src[0]
        both_masks = both(address.src[2], mask) if len(address.src) > 2 else mask
        return node.with_src((address.with_src((*address.src[:2], both_masks)), *src[1:]))

    return map_graph(value, visit)


def scatter_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*_OUTPUT):
        for parts in (1, 2, 3, 8):
            if check_scatter(view, axis, parts) is None:
                yield axis, parts


SCATTER = Transform(OptOps.SCATTER, check_scatter, apply_scatter, scatter_candidates, "the number of parts")
