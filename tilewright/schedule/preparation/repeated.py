"""Reductions of repeated values. In: a reduction. Out: the reduction that gives each distinct result once; None where
all results may differ.

    before: sum over k of expand(g[b, 1, k]) * w[k, n], for each of b, p and n    the gradient of a mean over p
    after:  expand(sum over k of g[b, k] * w[k, n])

A gradient of a mean is the same at every position, so a product of it with weights is one product for all positions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

Axes = frozenset[int]
_NONE: Axes = frozenset()


class Repeats:
    """Along which axes values repeat, for the nodes of one graph."""

    def __init__(self) -> None:
        self.known: dict[UOp, Axes] = {}

    def reduced_once(self, node: UOp) -> UOp | None:
        """The reduction with each of its repeated axes of size 1."""
        (op, axes), source = node.arg, node.src[0]
        if is_symbolic(source.shape):
            return None
        repeated = self.axes(source).difference(axes)
        return build.reduce_axis(op, single(source, repeated), axes) if repeated else None

    def axes(self, node: UOp) -> Axes:
        """The axes along which all elements are the same, of those with several elements."""
        for each in toposort(node, stop=lambda found: found in self.known or not _is_followed(found)):
            if each not in self.known:
                self.known[each] = self._find(each)
        return self.known[node]

    def _find(self, node: UOp) -> Axes:
        if not _is_followed(node) or is_symbolic(node.shape):
            return _NONE
        if node.op.is_elementwise:
            found = [self.known[source] for source in node.src if source.shape]
            return frozenset.intersection(*found) if found else _NONE
        inner, given = self.known[node.src[0]], node.src[0].shape
        if node.op is Ops.EXPAND:
            return inner | {axis for axis, size in enumerate(node.shape) if size != given[axis]}
        if node.op is Ops.PERMUTE:
            return frozenset(axis for axis, old in enumerate(node.arg) if old in inner)
        return frozenset(new for old, new in kept_axes(given, node.shape) if old in inner)


def _is_followed(node: UOp) -> bool:
    return node.op.is_elementwise or node.op in (Ops.EXPAND, Ops.PERMUTE, Ops.RESHAPE)


def kept_axes(old: Shape, new: Shape) -> Iterator[tuple[int, int]]:
    """The axes with several elements that a reshape neither merges nor divides, by their old and new number."""
    places = {(math.prod(new[:axis]), size): axis for axis, size in enumerate(new) if size > 1}
    for axis, size in enumerate(old):
        place = math.prod(old[:axis]), size
        if place in places:
            yield axis, places[place]


def single(node: UOp, axes: Axes) -> UOp:
    """One element of a value along each of the axes, along which it repeats."""
    made: dict[tuple[UOp, Axes], UOp] = {}
    pending = [(node, axes)]
    while pending:
        key = pending[-1]
        sources = _sources(*key)
        missing = [source for source in sources if source not in made]
        pending += missing
        if not missing:
            made[key] = _over(*key, tuple(made[source] for source in sources))
            pending.pop()
    return made[node, axes]


def _sources(node: UOp, axes: Axes) -> list[tuple[UOp, Axes]]:
    """What one element along the axes is made from: the sources of the node, and the axes of each."""
    if not axes:
        return []
    if node.op.is_elementwise:
        return [(source, axes if source.shape else _NONE) for source in node.src]
    given = node.src[0].shape
    if node.op is Ops.EXPAND:
        return [(node.src[0], frozenset(axis for axis in axes if given[axis] > 1))]
    if node.op is Ops.PERMUTE:
        return [(node.src[0], frozenset(node.arg[axis] for axis in axes))]
    return [(node.src[0], frozenset(old for old, new in kept_axes(given, node.shape) if new in axes))]


def _over(node: UOp, axes: Axes, sources: tuple[UOp, ...]) -> UOp:
    """The node over such sources."""
    if not axes:
        return node
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(node.shape))
    if node.op.is_elementwise:
        return node.with_src(sources)
    return build.movement(node.op, sources[0], node.arg if node.op is Ops.PERMUTE else shape)
