"""Memory layouts of the operands of attention. In: a tensor of (batch, heads, time, features), often a view of the
result of a projection. Out: the stored node, and the strides of the view in it. A kernel that reads through the view
needs no copy, also where queries, keys and values are parts of one product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tilewright.base.records import NamedTuple
from tilewright.graph import build, marks
from tilewright.graph.kernels.attention.attention import Steps
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.tensor.families.base import Family

T = TypeVar("T", bound=Family)

_EXCHANGE = (0, 2, 1, 3)  # of heads and times
_MOVES = (Ops.PERMUTE, Ops.SHRINK, Ops.RESHAPE)
# Elements per vector that kernels copy: strides and offsets are multiples of it.
VECTOR = 8


class Layout(NamedTuple):
    """The layout of a view; `moves` make the view from the stored node."""

    moves: tuple[tuple[Op, Any], ...]
    steps: Steps

    def view(self, memory: T) -> T:
        for op, argument in self.moves:
            if op is Ops.PERMUTE:
                memory = memory.permute(*argument)
            else:
                memory = memory.shrink(argument) if op is Ops.SHRINK else memory.reshape(*argument)
        return memory


class _Strides(NamedTuple):
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    start: int


def find_layouts(tensors: Sequence[T]) -> list[tuple[T, Layout]]:
    """The stored node of each tensor, and the tensor's layout in it. A node that is larger than its view is used only
    where all tensors together cover it: else it might be computed in vain."""
    candidates = [list(_candidates(tensor.uop)) for tensor in tensors]
    deepest = [found[0] for found in candidates]
    memory = deepest[0][0]
    is_shared = all(node is memory for node, _ in deepest)
    if not is_shared or sum(math.prod(tensor.shape) for tensor in tensors) != math.prod(memory.shape):
        sizes = [math.prod(tensor.shape) for tensor in tensors]
        deepest = [
            next(one for one in found if math.prod(one[0].shape) == size) for found, size in zip(candidates, sizes)
        ]
    return [(tensor._new(node), layout) for tensor, (node, layout) in zip(tensors, deepest)]


def find_symbolic_layouts(tensors: Sequence[T]) -> list[tuple[T, Layout]]:
    """The same of tensors of symbolic sizes: what their heads and times were exchanged in, or the tensor itself."""
    found = []
    for tensor in tensors:
        node, is_exchanged = tensor.uop, tensor.uop.op is Ops.PERMUTE and tensor.uop.arg == _EXCHANGE
        moves = ((Ops.PERMUTE, _EXCHANGE),) if is_exchanged else ()
        steps = dense_steps(tensor.shape, is_time_first=is_exchanged)
        found.append((tensor._new(node.src[0] if is_exchanged else node), Layout(moves, steps)))
    return found


def find_stored(tensor: T) -> tuple[T, Layout] | None:
    """The stored node of one tensor and the layout in it. A view may be any part of memory that exists, also one of
    symbolic size. A computed tensor is its own node, and has no layout where its size is symbolic."""
    chain = [tensor.uop]
    while chain[-1].op in _MOVES and not _reshapes_symbolic(chain[-1]):
        chain.append(chain[-1].src[0])
    node = chain[-1]
    is_whole = not is_symbolic(tensor.shape) and math.prod(node.shape) == math.prod(tensor.shape)
    if is_symbolic(node.shape) or not (is_whole or build.is_stored(node)):
        if is_symbolic(tensor.shape):
            return None
        chain = chain[:1]
    moves = tuple((each.op, each.arg) for each in reversed(chain[:-1]))
    found = _strides_of(chain[-1].shape, moves)
    if found is None or (found.steps[3] != 1 and found.shape[3] != 1):
        moves, found = (), None if is_symbolic(tensor.shape) else _strides_of(tensor.shape, ())
    if found is None or is_symbolic((found.start, *found.steps)):
        return None
    node = chain[-1] if moves else tensor.uop
    batch, head, time, _ = found.steps
    return tensor._new(node), Layout(moves, Steps(batch, head, time, found.start))


def _reshapes_symbolic(node: UOp) -> bool:
    return node.op is Ops.RESHAPE and is_symbolic((*node.shape, *node.src[0].shape))


def dense_steps(shape: tuple[int, ...], is_time_first: bool) -> Steps:
    _, heads, time, features = shape
    if is_time_first:
        return Steps(heads * time * features, features, heads * features)
    return Steps(heads * time * features, time * features, features)


def broadcast_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The stride of each axis, 0 for axes of size 1."""
    is_long = (is_symbolic((size,)) or size > 1 for size in shape)
    return tuple(math.prod(shape[axis + 1 :]) if flag else 0 for axis, flag in enumerate(is_long))


def _candidates(node: UOp) -> Iterator[tuple[UOp, Layout]]:
    """The nodes that a view can be read from, from the outermost source to the view itself."""
    chain = [node]
    while chain[-1].op in _MOVES:
        chain.append(chain[-1].src[0])
    for position in range(len(chain) - 1, -1, -1):
        moves = [(each.op, each.arg) for each in reversed(chain[:position])]
        found = _strides_of(chain[position].shape, moves)
        if found is not None and (position == 0 or _is_readable(found)):
            batch, head, time, _ = found.steps
            yield chain[position], Layout(tuple(moves), Steps(batch, head, time, found.start))


def _is_readable(found: _Strides) -> bool:
    features = found.steps[3] == 1 or found.shape[3] == 1
    return features and not any(step % VECTOR for step in (found.start, *found.steps[:3]))


def _strides_of(shape: tuple[int, ...], moves: Sequence[tuple[Op, Any]]) -> _Strides | None:
    view = _Strides(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))), 0)
    for op, argument in moves:
        if op is Ops.PERMUTE:
            view = _Strides(
                tuple(view.shape[axis] for axis in argument), tuple(view.steps[axis] for axis in argument), view.start
            )
        elif op is Ops.SHRINK:
            start = sum(first * step for (first, _), step in zip(argument, view.steps))
            view = _Strides(tuple(stop - first for first, stop in argument), view.steps, view.start + start)
        else:
            steps = _reshaped(view, argument)
            if steps is None:
                return None
            view = _Strides(tuple(argument), steps, view.start)
    return view


def _reshaped(view: _Strides, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides after a reshape; None where no strides express it."""
    axes = [[size, step] for size, step in zip(view.shape, view.steps) if size > 1]
    merged: list[list[int]] = []  # axes that are contiguous with each other
    for size, step in axes:
        if merged and merged[-1][1] == size * step:
            merged[-1] = [merged[-1][0] * size, step]
        else:
            merged.append([size, step])
    steps: list[int] = []
    for size in reversed(shape):
        if size == 1:
            steps.append(0)
            continue
        while merged and merged[-1][0] == 1:
            merged.pop()
        if not merged or merged[-1][0] % size:
            return None
        steps.append(merged[-1][1])
        merged[-1] = [merged[-1][0] // size, merged[-1][1] * size]
    return tuple(reversed(steps))


def with_heads(mask: T, dimensions: int) -> T:
    """The mask as (batch, heads, queries, keys); each size may be 1."""
    mask = mask.reshape(*(1,) * (dimensions - mask.ndim), *mask.shape)
    return mask if dimensions == 4 else mask.unsqueeze(1)


def set_apart(tensor: Any) -> Any:
    """The tensor as a separate input, also where it is computed from another operand or is the same tensor."""
    return tensor._new(marks.set_apart(marks.detach(tensor.uop)))


def separate_use(tensor: Any) -> Any:
    """The tensor as a separate input whose own gradient is wanted; gradients of that gradient pass on to the tensor."""
    return tensor._new(marks.identical(tensor.uop))
