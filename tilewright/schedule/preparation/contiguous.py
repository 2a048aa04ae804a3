"""The order of a value in memory, as far as its movements tell. In: a value. Out: the axis along which what it reads is
contiguous."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.graph.ops import Ops
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import without_casts

# The tensors whose order is looked at; the views through which the axis of adjacent elements is known.
MAX_READ = 8
_VIEWS = frozenset({Ops.PERMUTE, Ops.RESHAPE, Ops.SHRINK, Ops.PAD})


def contiguous_axis(node: UOp, stored: Collection[UOp] = ()) -> int:
    """The axis along which most of the tensors that a value reads as a whole have stride 1, where its movements tell;
    of the first few of them. Those of `stored` are read from memory."""
    pending: list[tuple[UOp, tuple[UOp, ...]]] = [(node, ())]
    seen = {node}
    found: list[int] = []
    while pending and len(found) < MAX_READ:
        value, views = pending.pop()
        if value.op in _VIEWS:
            pending.append((value.src[0], (*views, value)))
        elif value.op.is_elementwise and value not in stored:
            sources = [each for each in value.src if each.shape == value.shape and each not in seen]
            seen.update(sources)
            pending += [(source, views) for source in reversed(sources)]
        elif value.op not in (Ops.EXPAND, Ops.CONST):
            axis = len(value.shape) - 1
            for view in reversed(views):
                axis = _axis_of_view(view, axis)
            found.append(axis)
    return max(found, key=found.count, default=len(node.shape) - 1)


def _axis_of_view(view: UOp, axis: int) -> int:
    """The axis of a view along which its elements are those along an axis of its source."""
    if view.op is Ops.PERMUTE:
        return int(view.arg.index(axis))
    if view.op is not Ops.RESHAPE:
        return axis
    step = max_count(view.src[0].shape[axis + 1 :])
    wider = [number for number in range(len(view.shape)) if max_count(view.shape[number:]) > step]
    return max(wider, default=len(view.shape) - 1)


def contiguous_axes(source: UOp, stored: Collection[UOp] = ()) -> list[int]:
    """The contiguous axis of a value, or of each of the two factors of a product."""
    value = without_casts(source)
    factors = value.src if value.op is Ops.MUL else (value,)
    bare = [without_casts(factor) for factor in factors]
    return [contiguous_axis(factor.src[0] if factor.op is Ops.EXPAND else factor, stored) for factor in bare]
