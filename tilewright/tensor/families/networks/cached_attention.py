"""Attention of one query per head as one kernel: a token of each of several sequences and the keys before it. In:
queries, keys and values on a device whose threads are CPU cores, and the position of the last key of each row. Out: the
result of a custom kernel, or None where it does not support the call. The kernel is in
`graph/kernels/attention/cached_attention.py`."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.base.records import record
from tilewright.graph.kernels.attention.attention import LOG2_E
from tilewright.graph.kernels.attention.cached_attention import CachedAttention, cached_kernel
from tilewright.graph.symbolic import capacity
from tilewright.runtime.device import open_driver
from tilewright.tensor.families.networks.attention_calls import Plain, T, call_kernel, fits
from tilewright.tensor.families.networks.attention_layout import Layout, dense_steps, find_stored, set_apart
from tilewright.tensor.primitives.reduce import accumulate_dtype

MIN_LANES = 4


def cached_attention(query: T, key: T, value: T, positions: T, window: int, plain: Plain) -> T | None:
    """The result of one kernel, or None where it does not support the call. `positions` (batch,) are those of the last
    key of each row; a row sees `window` keys up to it, or all where that is 0. `plain` is attention from other
    operations, for the gradients."""
    if query.ndim != 4 or not fits(query, key, value, None) or query.shape[2] != 1 or key.shape[0] != query.shape[0]:
        return None
    found = [find_stored(each) for each in (query, key, value)]
    layouts = tuple(each[1] for each in found if each is not None)
    call = _plan(query, key, value, layouts, window) if len(found) == len(layouts) else None
    if call is None:
        return None
    sources = [each[0] for each in found if each is not None] + [positions.cast(dtypes.int32)]
    output = (query.dtype, (*query.shape[:-1], value.shape[-1]))
    return call_kernel(cached_kernel, call, (output,), sources, _Gradient(layouts, window, plain))[0]


def _plan(query: T, key: T, value: T, layouts: tuple[Layout, ...], window: int) -> CachedAttention | None:
    """The call with its tiles, in the longest vectors that divide the features; None where those are too short."""
    assert isinstance(query.device, str)
    target, dtype = open_driver(query.device).target, accumulate_dtype(query.dtype)
    (batch, heads, _, features), (_, key_heads, keys, value_features) = query.shape, value.shape
    lanes = math.gcd(target.lanes(dtype), features, value_features)
    if lanes < MIN_LANES:
        return None
    own = _divisor(heads // key_heads, target.vector_registers // 4)
    # Sums take most of the registers; a vector of each operand and the weights take the others. The scores of a block
    # take a quarter of the first-level cache.
    sums = target.vector_registers * 3 // 4 // own
    panel = min(_power_below(sums // 2), _power_below(capacity(keys)))
    columns = max(panel, _power_below(target.l1_bytes // (4 * own * dtype.itemsize)))
    steps = dense_steps((*query.shape[:-1], value_features), False)
    return CachedAttention(
        dtype,
        batch,
        key_heads,
        heads // key_heads // own,
        own,
        capacity(keys),
        features,
        value_features,
        (*(layout.steps for layout in layouts), steps),
        LOG2_E / math.sqrt(features),
        window,
        lanes,
        panel,
        columns,
        _divisor(value_features // lanes, sums),
    )


def _divisor(size: int, limit: int) -> int:
    """The largest divisor of the size that is not above the limit."""
    return max(each for each in range(1, max(1, min(size, limit)) + 1) if size % each == 0)


def _power_below(limit: int) -> int:
    """The largest power of two that is not above the limit."""
    return 1 << (max(1, limit).bit_length() - 1)


@record
class _Gradient:
    """The gradient rule of the kernel: it differentiates attention built from other operations."""

    layouts: tuple[Layout, ...]
    window: int
    plain: Plain

    def __call__(self, upstream: Any, out: Any, *sources: Any) -> tuple[Any, ...]:
        own = [set_apart(each) for each in sources[:3]]
        query, key, value = (layout.view(each) for layout, each in zip(self.layouts, own))
        steps = query._new(sources[3].uop).reshape(-1, 1, 1, 1)
        places = steps.arange(key.shape[-2], dtype=dtypes.int32, device=key.device)
        mask = places <= steps
        if self.window:
            mask = mask & (places > steps - self.window)
        shared = query.shape[1] // key.shape[1]
        keyed = (each.repeat_interleave(shared, 1) for each in (key, value))
        result = self.plain(query, *keyed, mask, False)
        return (None, *result.gradient(*own, gradient=upstream), None)
