"""CLIP: the bounds of a summed loop are tightened to the mask of its terms. In: a kernel and an axis of such a sum.
Out: the kernel whose loop begins and ends where the mask does; a sum of sums becomes one sum.

    before: for k in 5: acc += (sum over c of a[c, y - k] * w[c, k]) if 0 <= y - k < 20 else 0
    after:  for c: for k in max(0, y - 19) to min(5, y + 1): acc += a[c, y - k] * w[c, k]

An unrolled axis keeps its part of the mask: for tile elements whose mask is known at compile time, no code is emitted
for the terms it excludes. CLIP comes after the opts that need a constant loop size: it makes the size an expression of
the outer loops."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of, substitute, toposort
from tilewright.kernel.axes import KernelView, is_counted
from tilewright.kernel.transforms.common import Transform


class Bound(NamedTuple):
    """One conjunct of a mask: the axis is at least `value` (`is_least`), or less than it."""

    value: UOp
    is_least: bool


def check_clip(view: KernelView, axis: UOp, argument: None) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"CLIP takes no argument, {argument!r} is one"
    if axis.arg.kind not in (AxisType.REDUCE, AxisType.UNROLL) or axis not in view.reduce_axes or not is_counted(axis):
        return f"CLIP needs a summed loop of constant size, axis {position} is {axis.arg.kind.name}"
    total = masked_sum(view, axis)
    if total is None:
        return f"CLIP needs one sum with masked terms over axis {position}"
    parts = [part for part in parts_of(total.src[0].src[0], Ops.AND) if axis in part.ranges]
    if axis.arg.kind is AxisType.UNROLL:
        is_nested = total.src[0].src[1].op is Ops.REDUCE
        return None if is_nested else f"CLIP: the sum over axis {position}, which is unrolled, is not nested"
    if not any(bound_of(part, axis, total) for part in parts):
        return f"CLIP: no mask bounds axis {position} by loops around the sum"
    return None


def apply_clip(view: KernelView, axis: UOp, argument: None = None) -> UOp:
    total = masked_sum(view, axis)
    assert total is not None
    return substitute(view.sink, {total: _clipped_sum(total, axis)})


def _clipped_sum(total: UOp, axis: UOp) -> UOp:
    """The sum with tightened bounds of the axis, merged with the sum that is its term."""
    mask, term, other = total.src[0].src
    bounds = {part: bound_of(part, axis, total) for part in parts_of(mask, Ops.AND)}
    known = {part: bound for part, bound in bounds.items() if bound is not None}
    loops = {each: each for each in total.src[1:]}
    if term.op is Ops.REDUCE and term.arg is total.arg:
        loops |= {each: each for each in term.src[1:]}
        term = term.src[0]
    done = dict(loops)
    if known:
        least = [bound.value for bound in known.values() if bound.is_least]
        ends = [bound.value for bound in known.values() if not bound.is_least]
        first = functools.reduce(UOp.maximum, least, index_const(0))
        end = functools.reduce(UOp.minimum, ends, index_const(size_of(axis)))
        count = simplify(end - first)
        loops[axis] = axis.replace(src=(simplify(count.maximum(0)) if count.vmin < 0 else count,))
        done[axis] = simplify(loops[axis] + first)

    def without_known(condition: UOp) -> list[UOp]:
        """A mask without the conjuncts that the new bounds imply, as one node or none."""
        parts = [done[part] for part in parts_of(condition, Ops.AND) if part not in known]
        return [functools.reduce(UOp.__and__, parts)] if parts else []

    for node in toposort(mask, term):
        if node not in done:
            src = tuple(done[each] for each in node.src)
            is_masked = node.op is Ops.INDEX and len(src) > 2
            done[node] = node.with_src((*src[:2], *without_known(node.src[2])) if is_masked else src)
    value = done[term]
    for rest in without_known(mask):
        value = rest.where(value, other)
    return total.with_src((value, *loops.values()))


def masked_sum(view: KernelView, axis: UOp) -> UOp | None:
    """The one reduction over the axis, if its terms are its identity where a mask does not hold."""
    totals = [node for node in view.reduces if axis in node.src[1:]]
    if len(totals) != 1 or totals[0].src[0].op is not Ops.WHERE:
        return None
    total, other = totals[0], totals[0].src[0].src[2]
    is_identity = other.is_const and other.arg == reduce_identity(total.arg, total.dtype)
    return total if is_identity and _is_used_alone(view, axis, total) else None


def _is_used_alone(view: KernelView, axis: UOp, total: UOp) -> bool:
    """Whether nothing outside the reduction depends on the axis."""
    inside = set(toposort(total))
    return all(node in inside for node in view.nodes if axis in node.ranges)


def bound_of(part: UOp, axis: UOp, total: UOp) -> Bound | None:
    """The bound that a conjunct puts on the axis; None where it is not a bound, or differs between elements of a tile
    or threads of a work-group, which run a loop together."""
    negated = False
    while part.op is Ops.XOR and part.src[1].is_const:
        negated ^= bool(part.src[1].arg)
        part = part.src[0]
    if axis.arg.kind is not AxisType.REDUCE or part.op is not Ops.CMPLT or not part.src[0].dtype.is_int:
        return None
    form = affine(part.src[0]).plus(affine(part.src[1]), -1)
    step = form.terms.get(axis, 0)
    rest = Affine({atom: times for atom, times in form.terms.items() if atom is not axis}, form.constant)
    around = {found for atom in rest.terms for found in atom.ranges}
    is_one_bound = all(found in total.ranges and not _differs_in_group(found) for found in around)
    if step == 0 or not is_one_bound:
        return None
    # step * axis + rest < 0, or not: with a step of n the axis ends, or begins, at -rest / n rounded up; with one of
    # -n at the first number greater than rest / n. Both are a sum divided by n and rounded down.
    size = abs(step)
    above = rest.scaled(-1) if step > 0 else rest
    value = from_affine(Affine(above.terms, above.constant + (size - 1 if step > 0 else size)))
    return Bound(value // size if size > 1 else value, (step > 0) is negated)


def _differs_in_group(axis: UOp) -> bool:
    return axis.arg.kind.is_tile or axis.arg.kind in (AxisType.LOCAL, AxisType.GROUP)


def clip_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.REDUCE, AxisType.UNROLL):
        if axis in view.reduce_axes and check_clip(view, axis, None) is None:
            yield axis, None


CLIP = Transform(OptOps.CLIP, check_clip, apply_clip, clip_candidates, "no argument")
