"""Sums of gradients. In: the gradients of one node, one from each of its uses. Out: few nodes whose sum they are.

A value that every step of a sequence uses gets a gradient from each step. A chain of as many additions would make
kernels that grow with the number of steps, so two kinds of sums are written as what they are:
  slices    gradients of slices that do not overlap, zeros around each, are one join of them
  products  gradients of a value that is repeated, and products each, are one product that is summed over the steps too:
            sum of x[t].T @ g[t] is x.T @ g with the steps beside the rows
Few large products are summed one by one, and their sums added."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.slices import MAX_SELECTED_PARTS, cat, replace_axis
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp

# Slices that overlap are joined in layers, each of slices that do not.
MAX_LAYERS = 4
# A value with at least this ratio of elements to those of its sources is a product to be summed, and never stored.
MIN_REPEATED = 16
# Multiplications of a product that gains more from a kernel of its own than adding its result costs.
MIN_SEPARATE = 1 << 20
_MOVED = frozenset({Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE})


def gather_terms(node: UOp, parts: Sequence[UOp], sizes: dict[UOp, int]) -> list[UOp]:
    """Few nodes whose sum is the gradient of `node`, where `parts` come from its uses, the last use first. `sizes` has
    what `_distinct` finds: one table for all nodes of a graph, whose gradients are made from each other."""
    if len(parts) > MAX_SELECTED_PARTS:
        parts = join_slices(parts)
        joined = join_products(parts, sizes) if node.op is Ops.EXPAND else []
        if joined:
            return joined
    return separate_products(parts, sizes) if node.op is Ops.EXPAND else [fold(parts)]


def fold(parts: Sequence[UOp]) -> UOp:
    return functools.reduce(lambda left, right: build.alu(Ops.ADD, left, right), parts)


# ---------------------------------------------------------------- slices


def join_slices(parts: Sequence[UOp]) -> list[UOp]:
    """The parts with as many slices as possible joined."""
    pads = [part for part in parts if part.op is Ops.PAD]
    axis = next((axis for axis in range(len(parts[0].shape)) if len({pad.arg[axis] for pad in pads}) > 1), None)
    if axis is None or len(pads) <= MAX_SELECTED_PARTS:
        return list(parts)
    layers: list[list[UOp]] = []
    left = [part for part in parts if part.op is not Ops.PAD]
    for pad in sorted(pads, key=lambda found: found.arg[axis]):
        start = pad.arg[axis][0]
        fitting = next((layer for layer in layers if _stop(layer[-1], axis) <= start), None)
        if fitting is not None:
            fitting.append(pad)
        elif len(layers) < MAX_LAYERS:
            layers.append([pad])
        else:
            left.append(pad)
    for layer in layers:
        if len(layer) > MAX_SELECTED_PARTS:
            left.append(_joined(layer, axis))
        else:
            left.extend(layer)
    return left


def _stop(pad: UOp, axis: int) -> int:
    return int(pad.shape[axis] - pad.arg[axis][1])


def _joined(pads: Sequence[UOp], axis: int) -> UOp:
    """Slices in order, zeros between them."""
    shape, dtype = pads[0].shape, pads[0].dtype
    pieces: list[UOp] = []
    reached = 0
    for pad in pads:
        start, stop = pad.arg[axis][0], _stop(pad, axis)
        if start > reached:
            pieces.append(build.const(dtype, 0, replace_axis(shape, axis, start - reached)))
        pieces.append(build.pad(pad.src[0], replace_axis(pad.arg, axis, (0, 0))))
        reached = stop
    if reached < shape[axis]:
        pieces.append(build.const(dtype, 0, replace_axis(shape, axis, shape[axis] - reached)))
    return cat(pieces, axis)


# ---------------------------------------------------------------- products


def join_products(parts: Sequence[UOp], sizes: dict[UOp, int]) -> list[UOp]:
    """The parts with those that are built alike as one sum each; empty where none are."""
    alike: dict[object, list[UOp]] = {}
    for part in reversed(parts):  # the first step first, as its slices lie in memory
        alike.setdefault(_outline(part, sizes), []).append(part)
    alone = alike.pop(None, [])
    summed = [_summed(group) for group in alike.values() if len(group) > MAX_SELECTED_PARTS]
    alone += [part for group in alike.values() if len(group) <= MAX_SELECTED_PARTS for part in group]
    if not summed:
        return []
    return summed + [fold(alone)] if alone else summed


def separate_products(parts: Sequence[UOp], sizes: dict[UOp, int]) -> list[UOp]:
    """Large products of a value that is repeated, each a term: the sum of each is a contraction, and the sum of their
    sum would be none. All other parts are one term."""
    count = max_count(parts[0].shape)
    if count < MIN_SEPARATE:
        return [fold(parts)]
    products = [part for part in parts if count >= MIN_REPEATED * _distinct(part, sizes)]
    others = [part for part in parts if part not in products]
    return [*products, fold(others)] if others else products


def _is_followed(node: UOp) -> bool:
    """Whether a node is taken apart: it repeats what is below it, or multiplies what does."""
    if node.op is Ops.EXPAND:
        return True
    if node.op is Ops.MUL or node.op is Ops.CAST:
        return all(src.op is Ops.CONST or (src.shape == node.shape and _is_followed(src)) for src in node.src)
    return False


def _outline(node: UOp, sizes: dict[UOp, int]) -> object:
    """What two parts have in common that can be one sum; None where the part is stored as it is by nobody."""
    if _is_followed(node):
        inner = tuple(src if src.op is Ops.CONST else _outline(src, sizes) for src in node.src)
        return None if None in inner else (node.op, node.arg, node.dtype, inner)
    if node.op in _MOVED and node.src[0].shape:
        inner_one = _outline(node.src[0], sizes)
        return None if inner_one is None else (node.op, node.arg, inner_one)
    if not node.shape or max_count(node.shape) >= MIN_REPEATED * _distinct(node, sizes):
        return None
    return (node.dtype, node.shape)


def _distinct(node: UOp, sizes: dict[UOp, int]) -> int:
    """The elements of the largest value that a node is made from, view by view and element by element."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top in sizes:
            stack.pop()
            continue
        if not top.op.is_elementwise and top.op.kind is not Kind.MOVEMENT:
            sizes[top] = 0 if top.op in (Ops.CONST, Ops.IOTA) else max_count(top.shape)
            continue
        missing = [src for src in top.src if src not in sizes]
        if missing:
            stack.extend(missing)
        else:
            sizes[top] = min(max_count(top.shape), max(sizes[src] for src in top.src))
    return sizes[node]


def _summed(parts: Sequence[UOp]) -> UOp:
    """The sum of parts that are built alike, over a new axis. A small float is carried in float32."""
    dtype, shape = parts[0].dtype, parts[0].shape
    carrier = dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype
    terms = build.cast(_stacked(parts), carrier)
    return build.cast(build.reshape(build.reduce_axis(Ops.ADD, terms, (0,)), shape), dtype)


def _stacked(nodes: Sequence[UOp]) -> UOp:
    """Nodes that are built alike as one, along a new first axis: what they have in common is done once for all."""
    first, count = nodes[0], len(nodes)
    shape = (count, *first.shape)
    if first.op is Ops.CONST:
        return first
    if all(node is first for node in nodes):
        return build.expand(build.reshape(first, (1, *first.shape)), shape)
    if _is_followed(first) or (first.op in _MOVED and first.src[0].shape):
        src = tuple(_stacked([node.src[k] for node in nodes]) for k in range(len(first.src)))
        if first.op is Ops.PERMUTE:
            return build.permute(src[0], (0, *(axis + 1 for axis in first.arg)))
        if first.op in _MOVED:
            return build.movement(first.op, src[0], (count, *first.arg))
        return UOp(first.op, first.dtype, src, first.arg)
    return _neighbours(nodes) or cat([build.reshape(node, (1, *first.shape)) for node in nodes], 0)


def _neighbours(slices: Sequence[UOp]) -> UOp | None:
    """Slices that lie one after another along one axis of a value, as a view of it; None where they do not."""
    first, count = slices[0], len(slices)
    if any(node.op is not Ops.SHRINK or node.src != first.src for node in slices):
        return None
    moving = [axis for axis in range(len(first.shape)) if len({node.arg[axis] for node in slices}) > 1]
    if len(moving) != 1:
        return None
    axis = moving[0]
    start, stop = first.arg[axis]
    size = stop - start
    if any(node.arg[axis] != (start + k * size, stop + k * size) for k, node in enumerate(slices)):
        return None
    whole = build.shrink(first.src[0], replace_axis(first.arg, axis, (start, start + count * size)))
    divided = build.reshape(whole, replace_axis(whole.shape, axis, count, size))
    order = (axis, *(k for k in range(len(divided.shape)) if k != axis))
    return build.permute(divided, order)


def sum_behind(x: UOp) -> UOp | None:
    """What `_summed` has summed over its first axis; None where the node is something else."""
    if x.op is Ops.CAST and x.src[0].dtype is dtypes.float32:
        x = x.src[0]
    if x.op is not Ops.RESHAPE or x.src[0].op is not Ops.REDUCE_AXIS:
        return None
    summed = x.src[0]
    is_first = summed.arg == (Ops.ADD, (0,)) and summed.shape[1:] == x.shape
    return summed.src[0] if is_first else None
