"""Sums over images of windows of each channel, in parts on a card: the gradient of a depthwise convolution's weights.
In: such a sum. Out: sums of parts of the images, stored with the channels last, and their sum.

    weight[c, kh, kw] = sum over b, h, w of slope[b, h, w, c] * x[b, h + kh, w + kw, c]

A thread has several taps of one channel, whose windows overlap, and adjacent threads have adjacent channels. That
leaves few threads unless the sum is in parts; with a group of threads for each tap, every term is loaded again for
every tap. `product_parts.py` is for products that tensor cores compute."""

from __future__ import annotations

import itertools
import math

from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import without_casts
from tilewright.schedule.preparation.contiguous import contiguous_axis

# The threads of a core that hide the latency of its cache; the taps that one of them has, at most; the fewest terms of
# a part, the most partial sums, and the fewest channels, which adjacent threads have.
THREADS_PER_CORE = 1024
MAX_TAPS = 8
MIN_TERMS = 64
MAX_PARTIAL_SUMS = 1 << 20
MIN_CHANNELS = 32


def windows_in_parts(node: UOp, target: Target) -> UOp | None:
    """None where the sum is another one, or has threads enough without parts."""
    channel = _channel_of_windows(node)
    if channel is None:
        return None
    (_, axes), source = node.arg, node.src[0]
    results = max_count(node.shape)
    taps = max((size for axis, size in enumerate(node.shape) if axis != channel), default=1)
    wanted = target.cores * THREADS_PER_CORE * min(taps, MAX_TAPS) // results
    most = min(wanted, max_count(source.shape) // (results * MIN_TERMS), MAX_PARTIAL_SUMS // results)
    counts = _parts_of_axes([source.shape[axis] if axis in axes else 1 for axis in range(len(source.shape))], most)
    if math.prod(counts) < 2:
        return None
    rank = len(counts)
    split = build.reshape(source, tuple(n for count, size in zip(counts, source.shape) for n in (count, size // count)))
    first = build.permute(split, (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)))
    whole = build.reshape(first, (math.prod(counts), *first.shape[rank:]))
    sums = build.reduce_axis(Ops.ADD, whole, tuple(axis + 1 for axis in axes))
    order = (*(axis for axis in range(rank + 1) if axis != channel + 1), channel + 1)
    # Stored, because a short sum of sums would be fused into one kernel again.
    total = build.reduce_axis(Ops.ADD, build.contiguous(build.permute(sums, order)), (0,))
    return build.reshape(build.permute(total, tuple(map(order.index, range(len(order))))), node.shape)


def _parts_of_axes(sizes: list[int], most: int) -> tuple[int, ...]:
    """How many equal parts each of the axes has: as many as possible of one or two of them, up to `most` together. The
    last axis stays whole where there is another: windows overlap along it."""
    long = [axis for axis, size in enumerate(sizes) if size > 1]
    best = [1] * len(sizes)
    for one, other in itertools.combinations_with_replacement(long[:-1] or long, 2):
        for count in (number for number in range(1, min(sizes[one], most) + 1) if sizes[one] % number == 0):
            found = [1] * len(sizes)
            found[one] = count
            if other != one:
                found[other] = _largest_divisor(sizes[other], most // count)
            best = max(best, found, key=math.prod)
    return tuple(best)


def _channel_of_windows(node: UOp) -> int | None:
    """The axis of the channels, along which both factors are contiguous; None for other sums. One factor is the same
    for all taps, the other is windows."""
    (op, axes), product = node.arg, without_casts(node.src[0])
    if op is not Ops.ADD or node.dtype is not dtypes.float32 or product.op is not Ops.MUL:
        return None
    bare = [without_casts(factor) for factor in product.src]
    repeated = [factor for factor in bare if factor.op is Ops.EXPAND]
    if len(repeated) != 1:
        return None
    given = repeated[0].src[0]
    kept = [axis for axis, size in enumerate(node.shape) if size > 1]
    taps = [axis for axis in kept if given.shape[axis] == 1]
    channels = [axis for axis in kept if axis not in taps]
    if not taps or len(channels) != 1 or node.shape[channels[0]] < MIN_CHANNELS:
        return None
    return channels[0] if contiguous_axis(given) == channels[0] and channels[0] not in axes else None


def _largest_divisor(size: int, most: int) -> int:
    return max((number for number in range(1, min(size, most) + 1) if size % number == 0), default=1)
