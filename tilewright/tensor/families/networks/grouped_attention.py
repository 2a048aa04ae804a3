"""Attention in tiles that work-groups share. In: queries, keys, values and a mask on a device with work-groups and
local memory. Out: the result of a custom kernel, or None where it does not support the call; then `attention.py`
computes it from products and a softmax. No matrix of scores is stored, neither for the result nor for its gradients.
The kernels are in `graph/kernels/attention/group_attention.py`."""

from __future__ import annotations

import itertools
import math
from typing import Any

from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph.kernels.attention.group_attention import forward_kernel
from tilewright.graph.kernels.attention.group_attention_gradient import key_gradient_kernel, query_gradient_kernel
from tilewright.graph.kernels.attention.group_builder import GroupAttention
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.runtime.device import target_of
from tilewright.tensor.families.networks.attention_calls import (
    Plain,
    Rule,
    T,
    as_heads,
    call_facts,
    call_kernel,
    extra_operands,
    fits,
    held_rows,
)
from tilewright.tensor.families.networks.attention_layout import set_apart

# Threads of a work-group along the rows and the columns of a tile of scores.
THREADS = ((8, 16), (4, 8), (2, 4))
# Scores of a thread along rows and columns, features that are staged at a time, and rows to be weighed: the first that
# fit into local memory.
OWN_ROWS, OWN_COLUMNS, DEPTHS, STAGED = (4, 2, 1), (4, 2, 1), (16, 8, 4), (16, 8, 4)
# Accumulators of a thread for the gradients of keys and values.
MAX_ACCUMULATORS = 64
# Products and a softmax, which store scores, are taken up to this number of scores of all heads, 128 MiB in float32.
MAX_STORED = 1 << 25


def grouped_attention(
    query: T, key: T, value: T, mask: T | None, is_causal: bool, dropout: float, plain: Plain
) -> T | None:
    """The result of one kernel, or None where it does not support the call. `plain` is attention from other
    operations, for the gradients of gradients."""
    target = target_of(query.device)
    if target is None or not target.has_local or target.has_threads or dropout == 1:
        return None
    is_open = is_symbolic((query.shape[-2], key.shape[-2]))
    if not fits(query, key, value, mask) or not _is_long(target, (*query.shape[:-1], key.shape[-2]), is_open):
        return None
    call = _plan(target, call_facts(query, key, value, mask, is_causal, dropout))
    if call is None or (dropout and is_open):
        return None
    # The key kernel has the most arguments: two outputs, three operands, the gradient, numbers of each row, and others.
    if 7 + (mask is not None) + bool(dropout) > target.max_buffers:
        return None
    key, value = (each.expand(*query.shape[:-3], *each.shape[-3:]) for each in (key, value))
    operands = [as_heads(each) for each in (query, key, value)]
    others = extra_operands(query, key, mask, dropout)
    shape = operands[0].shape[:-1]
    outputs = ((query.dtype, (*shape, value.shape[-1])), (call.dtype, (2, *shape)))
    found = call_kernel(forward_kernel, call, outputs, (*operands, *others), _Gradient(call, plain))[0]
    result: T = found.reshape(*query.shape[:-1], value.shape[-1])
    return result


def _is_long(target: Target, scores: tuple[int, ...], is_open: bool) -> bool:
    """Whether the scores need much memory. More of known lengths are computed in parts, which are faster than these
    kernels where tensor cores multiply."""
    return max_count(scores) > MAX_STORED and (is_open or not target.tensor_cores)


def _plan(target: Target, facts: dict[str, Any]) -> GroupAttention | None:
    """The call with its tiles; None where the device's work-groups are too small."""
    threads = next((pair for pair in THREADS if math.prod(pair) <= target.max_group_size), None)
    if threads is None:
        return None
    for own_rows, own_columns, staged, depth in itertools.product(OWN_ROWS, OWN_COLUMNS, STAGED, DEPTHS):
        call = GroupAttention(
            **facts,
            row_threads=threads[0],
            column_threads=threads[1],
            own_rows=own_rows,
            own_columns=own_columns,
            depth=min(depth, 1 << (max(facts["features"], facts["value_features"]) - 1).bit_length()),
            staged=min(staged, threads[1] * own_columns),
        )
        width = sum(map(call.width, (call.features, call.value_features)))
        is_held = own_rows == OWN_ROWS[-1] or own_rows * width <= MAX_ACCUMULATORS * threads[1]
        if is_held and call.local_bytes() <= target.max_local_bytes:
            return call
    return None


# ---------------------------------------------------------------- gradients


@record
class _Gradient(Rule):
    """The gradient rule of the kernel, whose arguments are: out, maxima and totals, queries, keys, values, mask and
    random state."""

    def __call__(self, upstream: Any, out: Any, sums: Any, query: Any, key: Any, value: Any, *others: Any) -> Any:
        call, slope = self.call, upstream[0]
        delta = (slope.cast(call.dtype) * out.cast(call.dtype)).sum(-1)
        rows = held_rows(sums.cat(delta.unsqueeze(0), dim=0), sums, call.mask)
        sources = (query, key, value, slope, rows, *others)
        shapes = [(each.dtype, each.shape) for each in (query, key, value)]
        rules = [_SecondGradient(call, self.plain, targets) for targets in ((0,), (1, 2))]
        found = call_kernel(query_gradient_kernel, call, shapes[:1], sources, rules[0])
        found += call_kernel(key_gradient_kernel, call, shapes[1:], sources, rules[1])
        return (None, None, *found, *self.mask_gradients(query, key, value, others, slope))


@record
class _SecondGradient(Rule):
    """The gradient rule of a gradient kernel, whose arguments are: outputs, queries, keys, values, the gradient of the
    result, numbers of rows, mask and random state. It differentiates attention built from other operations."""

    targets: tuple[int, ...]

    def __call__(self, upstream: Any, *given: Any) -> tuple[Any, ...]:
        count = len(self.targets)
        query, key, value, slope = operands = [set_apart(each) for each in given[count : count + 4]]
        others = [set_apart(each) for each in given[count + 5 :]]
        firsts = self.attend(query, key, value, others).gradient(*(operands[n] for n in self.targets), gradient=slope)
        upstreams = upstream if count > 1 else (upstream,)
        kind = self.call.dtype
        total = sum((first.cast(kind) * each.cast(kind)).sum() for first, each in zip(firsts, upstreams))
        wanted: list[Any] = []
        self.of_masks(others, wanted.append)
        found = total.gradient(*operands, *wanted)
        return (*(None,) * count, *found[:4], None, *self.of_masks(others, lambda _: found[4]))
