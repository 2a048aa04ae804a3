"""Attention of one query per head as one kernel: a decoded token and the keys before it. In: queries, keys and values
and a mask on a device whose work-groups run in warps; the number of keys may be symbolic. Out: the result of a custom
kernel, or None where it does not support the call. The kernel is in `graph/kernels/attention/row_attention.py`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph.kernels.attention.attention import LOG2_E
from tilewright.graph.kernels.attention.row_attention import (
    KEYS_AT_A_TIME,
    RowAttention,
    combine_kernel,
    local_bytes,
    row_kernel,
)
from tilewright.graph.kernels.nodes import call as kernel_call
from tilewright.graph.kernels.nodes import param
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.graph.symbolic import capacity, size_node
from tilewright.graph.uop import UOp
from tilewright.runtime.device import target_of
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.networks.attention_calls import fits
from tilewright.tensor.families.networks.attention_layout import Layout, dense_steps, find_stored, set_apart, with_heads

T = TypeVar("T", bound=Family)
_DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
# Threads of a work-group, and the number of partial results that it adds up at its end.
MAX_THREADS = 512
MAX_TEAMS = 32
# Up to this many keys one work-group takes less time than a second kernel; beyond this number of splits the second
# kernel takes as long as the first.
MIN_SPLIT_KEYS = 1024
MAX_SPLITS = 16
# Maximum features of a key per thread: their sums are in registers.
MAX_OWN_FEATURES = 32


def row_attention(query: T, key: T, value: T, mask: T | None, plain: Callable[..., Any]) -> T | None:
    """The result of one kernel, or None where it does not support the call. `plain` computes attention from other
    operations."""
    target = target_of(query.device)
    if target is None or not target.has_local or target.has_threads or target.warp_size == 1:
        return None
    if not _fits(query, key, value, mask):
        return None
    operands = [each if each.ndim == 4 else each.unsqueeze(1) for each in (query, key, value)]
    found = [find_stored(each) for each in operands]
    masks = () if mask is None else (with_heads(mask, query.ndim),)
    layouts = tuple(each[1] for each in found if each is not None)
    batch, heads, _, features = operands[0].shape
    keys = operands[1].shape[2]
    threads = _threads_of(target, query.dtype, features, capacity(keys))
    if threads is None or len(layouts) < len(found) or not _are_aligned(layouts, threads[0]):
        return None
    call = RowAttention(
        batch,
        heads,
        heads // operands[1].shape[1],
        size_node(keys),
        features,
        (*(layout.steps for layout in layouts), dense_steps(operands[0].shape, False)),
        LOG2_E / math.sqrt(features),
        _mask_strides(masks[0].shape) if masks else None,
        *threads,
        _splits_of(target, batch * heads, capacity(keys)),
    )
    if local_bytes(call) > target.max_local_bytes:
        return None
    sources = tuple(each[0].uop for each in found if each is not None) + tuple(each.uop for each in masks)
    sizes = (keys,) if is_symbolic((keys,)) else ()
    given: Any = query
    gradient = given._gradient_of(_Gradient(layouts, call.shared, len(sources), plain))
    shape = operands[0].shape
    if call.splits == 1:
        node = _call_kernel(row_kernel, call, (query.dtype, shape), sources, sizes, gradient)
    else:
        parts = (dtypes.float32, (batch * heads * call.splits * call.part,))
        node = _call_kernel(row_kernel, call, parts, sources, sizes)
        # The operands are passed for the gradient.
        node = _call_kernel(combine_kernel, call, (query.dtype, shape), (node, *sources), (), gradient)
    result: T = query._new(node, key, value, *masks)
    return result.reshape(*query.shape)


def _call_kernel(
    write: Callable[..., UOp],
    call: RowAttention,
    output: tuple[DType, tuple[int, ...]],
    sources: tuple[UOp, ...],
    sizes: tuple[int, ...],
    gradient: Any = None,
) -> UOp:
    memories = (output, *((each.dtype, each.shape) for each in sources))
    ast = _written_kernel(write, call, tuple((kind, max_count(each)) for kind, each in memories))
    return kernel_call(ast, (output,), sources, sizes, gradient)[0]


@functools.lru_cache(64)
def _written_kernel(write: Callable[..., UOp], call: RowAttention, memories: tuple[tuple[DType, int], ...]) -> UOp:
    """Cached, since the layers of a model call the same kernel."""
    params = [param(n, kind, size) for n, (kind, size) in enumerate(memories)]
    return write(call, *(params[:2] if write is combine_kernel else params))


def _threads_of(target: Target, dtype: DType, features: int, keys: int) -> tuple[int, int, int] | None:
    """The width of a vector, the threads that share a key, and the number of such teams: together at least a warp."""
    width = target.vector_bytes // dtype.itemsize
    if features % width:
        return None
    lanes = math.gcd(features // width, target.warp_size)
    lanes &= -lanes
    if features // lanes > MAX_OWN_FEATURES:
        return None
    least = target.warp_size // lanes
    most = min(MAX_TEAMS, min(MAX_THREADS, target.max_group_size) // lanes)
    wanted = 1 << max(0, -(-keys // KEYS_AT_A_TIME) - 1).bit_length()
    return width, lanes, max(least, min(most, wanted))


def _splits_of(target: Target, heads: int, keys: int) -> int:
    """The number of work-groups that share the keys of a head: no more than fill the device, each with enough keys to
    be worth a second kernel."""
    most = min(target.cores // heads, keys // MIN_SPLIT_KEYS, MAX_SPLITS)
    return 1 << max(0, most.bit_length() - 1)


def _are_aligned(layouts: Sequence[Layout], width: int) -> bool:
    return not any(step % width for layout in layouts for step in layout.steps)


def _fits(query: Family, key: Family, value: Family, mask: Family | None) -> bool:
    if not fits(query, key, value, mask) or query.ndim not in (3, 4) or query.dtype not in _DTYPES:
        return False
    if query.shape[-2] != 1 or key.shape != value.shape or query.shape[0] != key.shape[0]:
        return False
    # With a symbolic number of keys only a single row of a mask has constant strides.
    return mask is None or not is_symbolic(mask.shape) or math.prod(mask.shape[:-1]) == 1


def _mask_strides(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The strides of a mask along batch, head and key; 0 for an axis of size 1."""
    batch, heads, _, keys = shape
    of_head = 0 if heads == 1 else keys
    return 0 if batch == 1 else heads * keys, of_head, 0 if keys == 1 else 1


@record
class _Gradient:
    """The gradient rule of the kernel: it differentiates attention built from other operations."""

    layouts: tuple[Layout, ...]
    shared: int
    count: int  # gradients of operands and masks
    plain: Callable[..., Any]

    def __call__(self, upstream: Any, out: Any, *arguments: Any) -> tuple[Any, ...]:
        before = len(arguments) - self.count
        given = arguments[before:]  # partial results come before them
        own = [set_apart(each) for each in given]
        query, *keyed = (layout.view(each) for layout, each in zip(self.layouts, own))
        keyed = [each.repeat_interleave(self.shared, 1) for each in keyed]
        result = self.plain(query, *keyed, *(own[3:] or (None,)), False)
        wanted = [each for each in own if each.dtype.is_float]
        found = iter(result.gradient(*wanted, gradient=upstream))
        return (*(None,) * (1 + before), *(next(found) if each.dtype.is_float else None for each in own))
