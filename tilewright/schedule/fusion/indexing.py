"""Pushing indices through views. In: a node and the index of one of its elements. Out: the index of the element of each
source that it is made from, and the condition under which that element exists. Views cost nothing because of this."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape, max_count
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import substitute

TRUE = const(dtypes.bool, True)
ZERO = index_const(0)


class Element(NamedTuple):
    """One element: an index per axis, and the condition under which it exists (elsewhere it must not be touched)."""

    indices: tuple[UOp, ...]
    valid: UOp


def flatten_index(index: tuple[UOp, ...], shape: Shape) -> UOp:
    """The row-major position of an element."""
    position = ZERO
    stride = 1
    terms = []
    for idx, size in zip(reversed(index), reversed(shape), strict=True):
        if size != 1:
            terms.append(idx * stride if stride != 1 else idx)
        stride *= size
    for term in reversed(terms):
        position = term if position is ZERO else position + term
    return simplify(position)


def unflatten_index(position: UOp, shape: Shape) -> tuple[UOp, ...]:
    """The index per axis of a row-major position."""
    index: list[UOp] = []
    stride = 1
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if size == 1:
            index.append(ZERO)
            continue
        quotient = position // stride if stride != 1 else position
        is_outermost = all(s == 1 for s in shape[:axis])
        index.append(simplify(quotient if is_outermost else quotient % size))
        stride *= size
    return tuple(reversed(index))


def reshape_index(index: tuple[UOp, ...], from_shape: Shape, to_shape: Shape) -> tuple[UOp, ...]:
    """The index into `to_shape` of the element at `index` of `from_shape`. Runs of axes with equal products are mapped
    separately, so that an axis that is only moved, split or merged needs no superfluous division."""
    result: list[UOp] = []
    start_from = start_to = 0
    while start_from < len(from_shape) or start_to < len(to_shape):
        stop_from, stop_to = start_from, start_to
        count_from = count_to = 1
        while True:
            is_behind = max_count((count_from,)) <= max_count((count_to,))
            if stop_from < len(from_shape) and (is_behind or stop_to == len(to_shape)):
                count_from *= from_shape[stop_from]
                stop_from += 1
            elif stop_to < len(to_shape):
                count_to *= to_shape[stop_to]
                stop_to += 1
            # Products of symbolic sizes may be equal without a proof; the products of the whole shapes are.
            if count_from == count_to or (stop_from == len(from_shape) and stop_to == len(to_shape)):
                break
        run_from, run_to = from_shape[start_from:stop_from], to_shape[start_to:stop_to]
        run_index = index[start_from:stop_from]
        if run_from == run_to:
            result.extend(run_index)
        else:
            result.extend(unflatten_index(flatten_index(run_index, run_from), run_to))
        start_from, start_to = stop_from, stop_to
    return tuple(result)


def both(first: UOp, second: UOp) -> UOp:
    """The conjunction of two conditions."""
    if first is TRUE or first is second:
        return second
    return first if second is TRUE else simplify(first & second)


def within(idx: UOp, start: int, stop: int) -> UOp:
    """The condition start <= idx < stop, without the comparisons that the bounds of idx already prove."""
    condition = TRUE
    if idx.vmin < index_const(start).vmax:
        condition = simplify((idx < start).logical_not())
    if idx.vmax >= index_const(stop).vmin:
        condition = both(condition, simplify(idx < stop))
    return condition


def touched_span(position: UOp, size: int, step: int, first: int = 0) -> tuple[int, int]:
    """The elements [start, stop) of memory that a position may name, by its bounds; the position counts from element
    `first` of the memory, of which it may name `size` elements. The start is rounded down to a multiple of `step`.
    Where less than a step of an aligned memory remains, the span includes it: the last vector of a padded row may be
    loaded whole. A position that may be out of range is masked, and stays out of range of the span."""
    start = (first + min(max(int(position.vmin), 0), size - 1)) // step * step
    stop = max(first + min(int(position.vmax) + 1, size), start + 1)
    is_end = (first + size) % step == 0 and first + size - stop < step
    return start, first + size if is_end else stop


def push_movement(node: UOp, element: Element) -> Element:
    """The element of a view's source."""
    index, valid = element
    source = node.src[0].shape
    if node.op is Ops.RESHAPE:
        return Element(reshape_index(index, node.shape, source), valid)
    if node.op is Ops.EXPAND:
        return Element(tuple(ZERO if size == 1 else idx for idx, size in zip(index, source, strict=True)), valid)
    if node.op is Ops.PERMUTE:
        moved: list[UOp] = [ZERO] * len(index)
        for idx, axis in zip(index, node.arg, strict=True):
            moved[axis] = idx
        return Element(tuple(moved), valid)
    if node.op is Ops.SHRINK:
        return Element(
            tuple(simplify(idx + start) if start else idx for idx, (start, _) in zip(index, node.arg, strict=True)),
            valid,
        )
    if node.op is Ops.FLIP:
        flipped = tuple(
            simplify(size - 1 - idx) if axis in node.arg else idx
            for axis, (idx, size) in enumerate(zip(index, source, strict=True))
        )
        return Element(flipped, valid)
    if node.op is Ops.PAD:
        return _push_pad(node, element)
    raise InternalError(f"{node.op!r} is not a view")


def _push_pad(node: UOp, element: Element) -> Element:
    """The element of the source; it exists where every index is in range."""
    for axis, ((before, after), size) in enumerate(zip(node.arg, node.src[0].shape, strict=True)):
        if before or after:
            element = divide_within(element, axis, before, before + size)
            indices, valid = element
            idx = simplify(indices[axis] - before) if before else indices[axis]
            valid = both(valid, within(indices[axis], before, before + size))
            element = Element((*indices[:axis], idx, *indices[axis + 1 :]), valid)
    return element


def divide_within(element: Element, axis: int, start: int, stop: int) -> Element:
    """The element where start <= index < stop, with less division.

    before: index (24*c + y) % 25, another (24*c + y) // 25, stop = 20     (0 <= y < 24, 0 <= c < 6)
    after:  index y - c, the other c

    The dividend is divisor * quotient + rest. A rest that reaches less than `divisor - stop` below 0, and less than
    `start` beyond the divisor, has a remainder in the interval only where it is the remainder itself."""
    indices, valid = element
    idx = indices[axis]
    if idx.op is not Ops.MOD or idx.src[1].op is not Ops.CONST or is_symbolic((start, stop)):
        return element
    dividend, divisor = idx.src[0], int(idx.src[1].arg)
    form = affine(dividend)
    quotient = Affine({atom: (count + divisor // 2) // divisor for atom, count in form.terms.items()}, 0)
    rest = form.plus(quotient, -divisor)
    more = (rest.bounds[0] - (stop - divisor)) // divisor
    quotient, rest = Affine(quotient.terms, more), rest.plus(Affine({}, more), -divisor)
    if rest.bounds[1] >= divisor + start:
        return element
    whole = simplify(from_affine(quotient))
    exchanges = {idx: simplify(from_affine(rest)), dividend // divisor: whole}
    indices = tuple(simplify(substitute(each, exchanges)) for each in indices)
    parts = [_divided_bound(part, form, divisor, whole) for part in parts_of(valid, Ops.AND)]
    return Element(indices, functools.reduce(both, parts, TRUE))


def _divided_bound(part: UOp, form: Affine, divisor: int, quotient: UOp) -> UOp:
    """A bound on the dividend as an equivalent bound on the quotient, where there is one. The bound may have been
    divided: 2*i + r < 2*n is i < n, where r is 0 or 1."""
    if part.op is not Ops.CMPLT or part.src[1].op is not Ops.CONST or part.src[0].dtype is not dtypes.index:
        return part
    limited = affine(part.src[0])
    atom = next(iter(limited.terms), None)
    factor = 0 if atom is None else form.terms.get(atom, 0) // limited.terms[atom]
    if factor < 1:
        return part
    dropped = Affine(form.terms, 0).plus(Affine(limited.terms, 0), -factor)
    limit = factor * (int(part.src[1].arg) - limited.constant) + form.constant
    if dropped.bounds[0] < 0 or dropped.bounds[1] >= factor or limit % divisor:
        return part
    return simplify(quotient < limit // divisor)
