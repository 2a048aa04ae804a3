"""Attention in blocks. In: queries, keys, values and a mask on a device whose threads are CPU cores. Out: the result of
a custom kernel, or None where it does not support the call; then `attention.py` computes it from products and a
softmax. No matrix of scores is stored, neither for the result nor for its gradients. The kernels are in
`graph/kernels/attention/block_attention.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph.kernels.attention.block_attention import STRIP, BlockAttention, Tile, forward_kernel
from tilewright.graph.kernels.attention.block_attention_gradient import gradient_kernel
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Shape
from tilewright.graph.symbolic import capacity
from tilewright.runtime.device import open_driver
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

# Keys of a block: a multiple of every panel.
COLUMNS = 192
# With fewer queries most of a block would be unused. Products and a softmax, which store scores, are faster below this
# number of scores of a head, since a core's cache holds them, but not of causal calls, of which they compute twice as
# many scores, nor with few features, when a score takes longer to store and load than to compute. They are taken up to
# MAX_STORED scores of all heads, 128 MiB in float32.
MIN_QUERIES = 2 * STRIP
MIN_SCORES = 1 << 18
MIN_CHEAP_SCORES = 1 << 15
FEW_FEATURES = 16
MAX_STORED = 1 << 25
# With more features a block of queries and one of keys do not fit into a core's cache: blocks save memory, not time.
MANY_FEATURES = 512
# Vectors of a register tile, and rows for that many, with 32 and with 16 registers. Rows divide a strip, and the panel
# of scores.
MANY_ROWS = {1: 8, 2: 8, 3: 8, 4: 6, 5: 4}
FEW_ROWS = {1: 8, 2: 6, 3: 4}
MANY_REGISTERS = 32
PANEL_VECTORS = 3
# Fewer heads than this are divided into groups of keys, for the gradients. The numbers do not depend on the cores, so
# that the order of sums does not.
MIN_TASKS = 16
MAX_GROUPS = 4
MIN_GROUP_KEYS = 1024


def blocked_attention(
    query: T, key: T, value: T, mask: T | None, is_causal: bool, dropout: float, plain: Plain
) -> T | None:
    """The result of one kernel, or None where it does not support the call. `plain` is attention from other
    operations, for the gradients of gradients."""
    if not fits(query, key, value, mask) or not _is_long(query.shape, key.shape[-2], is_causal) or dropout == 1:
        return None
    if dropout and is_symbolic((query.shape[-2], key.shape[-2])):
        return None
    assert isinstance(query.device, str)
    facts = call_facts(query, key, value, mask, is_causal, dropout)
    call = _plan(open_driver(query.device).target, facts, key.shape)
    key, value = (each.expand(*query.shape[:-3], *each.shape[-3:]) for each in (key, value))
    operands = [_padded(as_heads(each).cast(call.dtype), call.lanes) for each in (query, key, value)]
    others = extra_operands(query, key, mask, dropout)
    padded_query, padded_key, padded_value = operands
    shape = padded_query.shape[:-1]
    outputs = [(call.dtype, (*shape, call.value_width)), (call.dtype, (2, *shape))]
    given = (padded_query, padded_key, _panels(padded_key, call, call.features), padded_value, *others)
    found: Any = call_kernel(forward_kernel, call, outputs, given, _Gradient(call, plain))[0]
    result: T = _narrowed(found, value.shape[-1]).cast(query.dtype)
    return result.reshape(*query.shape[:-1], value.shape[-1])


def _is_long(query: tuple[int, ...], keys: int, is_causal: bool) -> bool:
    """Whether blocks are faster than products and a softmax, or need less memory where that is much."""
    queries = capacity(query[-2])
    scores = queries * capacity(keys)
    if queries < MIN_QUERIES or scores < MIN_CHEAP_SCORES:
        return False
    is_cheap = is_causal or query[-1] <= FEW_FEATURES
    is_faster = (is_cheap or scores >= MIN_SCORES) and query[-1] <= MANY_FEATURES
    return is_faster or scores * math.prod(query[:-2]) > MAX_STORED


def _plan(target: Target, facts: dict[str, Any], key: Shape) -> BlockAttention:
    """The call with its tiles and blocks."""
    lanes = max(2, target.lanes(facts["dtype"]))
    tasks = facts["batch"] * facts["heads"] // facts["shared"]
    panel = PANEL_VECTORS * lanes
    known = MANY_ROWS if target.vector_registers >= MANY_REGISTERS else FEW_ROWS
    choices = {vectors: rows if panel % rows == 0 else panel // 2 for vectors, rows in known.items()}
    widths = [-(-features // lanes) * lanes for features in (facts["features"], facts["value_features"])]
    query_tile, value_tile = (_tile(width // lanes, lanes, choices) for width in widths)
    return BlockAttention(
        **facts,
        width=widths[0],
        value_width=widths[1],
        lanes=lanes,
        score_tile=Tile(choices[PANEL_VECTORS], panel),
        query_tile=query_tile,
        value_tile=value_tile,
        columns=COLUMNS,
        groups=min(MAX_GROUPS, -(-MIN_TASKS // tasks), max(1, capacity(key[-2]) // MIN_GROUP_KEYS)),
    )


def _tile(vectors: int, lanes: int, choices: dict[int, int]) -> Tile:
    """The register tile with the most accumulators for rows of that many vectors."""
    best = max((n for n in choices if vectors % n == 0), key=lambda n: n * choices[n])
    return Tile(choices[best], best * lanes)


def _padded(tensor: T, lanes: int) -> T:
    """Whole vectors of features."""
    missing = -tensor.shape[-1] % lanes
    return tensor.pad((0, missing)) if missing else tensor


def _narrowed(tensor: Any, features: int) -> Any:
    if tensor.shape[-1] == features:
        return tensor
    return tensor.shrink((*((0, size) for size in tensor.shape[:-1]), (0, features)))


def _panels(tensor: Any, call: BlockAttention, features: int) -> Any:
    """Keys or values as (batch, heads, panels, features, keys of a panel), zeros after the last key."""
    tensor = _narrowed(tensor, features)
    keys = tensor.shape[-2]
    panels = -(-keys // call.panel)
    whole = tensor if keys == panels * call.panel else tensor.pad((0, 0, 0, panels * call.panel - keys))
    parts = whole.reshape(call.batch, call.key_heads, panels, call.panel, features)
    return parts.transpose(-1, -2).contiguous()


# ---------------------------------------------------------------- kernels and gradients


@record
class _Rule(Rule):
    def attend(self, query: Any, key: Any, value: Any, others: Sequence[Any]) -> Any:
        """The result from other operations, of padded operands."""
        features, value_features = self.call.features, self.call.value_features
        own = (_narrowed(query, features), _narrowed(key, features), _narrowed(value, value_features))
        return _padded(Rule.attend(self, *own, others), self.call.lanes)


@record
class _Gradient(_Rule):
    """The gradient rule of the kernel, whose arguments are: out, maxima and totals, queries, keys, panels, values, mask
    and random state."""

    def __call__(self, upstream: Any, out: Any, sums: Any, query: Any, key: Any, *rest: Any) -> Any:
        call, (_, value, *others), slope = self.call, rest, upstream[0]
        block = call.columns * call.groups
        keyed = (call.batch, call.key_heads, -(-key.shape[2] // block) * block)
        shapes = ((call.groups, *query.shape), (*keyed, call.width), (*keyed, call.value_width))
        rows = [held_rows(numbers, sums, call.mask) for numbers in (sums, (slope * out).sum(-1))]
        sides = (_panels(key, call, call.features), _panels(value, call, call.value_features))
        of_query, of_key, of_value = call_kernel(
            gradient_kernel,
            call,
            [(call.dtype, shape) for shape in shapes],
            (query, key, value, slope, *rows, *sides, *others),
            _SecondGradient(call, self.plain),
        )
        total = of_query.sum(0) if call.groups > 1 else of_query.reshape(*query.shape)
        of_masks = self.mask_gradients(query, key, value, others, slope)
        of_key, of_value = (_of_keys(each, key.shape[2]) for each in (of_key, of_value))
        return (None, None, total, of_key, None, of_value, *of_masks)


@record
class _SecondGradient(_Rule):
    """The gradient rule of the gradient kernel, whose arguments are: three outputs, queries, keys, values, the gradient
    of the result, maxima and totals, deltas, two panels, mask and random state. It differentiates attention built from
    other operations."""

    def __call__(self, upstream: Any, *given: Any) -> tuple[Any, ...]:
        query, key, value, slope = (set_apart(each) for each in given[3:7])
        others = [set_apart(each) for each in given[11:]]
        firsts = self.attend(query, key, value, others).gradient(query, key, value, gradient=slope)
        # All parts of the queries' gradient have the same slope, that of their sum.
        slopes = (upstream[0][0], *(_of_keys(each, key.shape[2]) for each in upstream[1:]))
        total = sum((first * each).sum() for first, each in zip(firsts, slopes))
        wanted: list[Any] = []
        self.of_masks(others, wanted.append)
        of_query, of_key, of_value, of_slope, *rest = total.gradient(query, key, value, slope, *wanted)
        of_masks = self.of_masks(others, lambda _: rest[0])
        return (*(None,) * 3, of_query, of_key, of_value, of_slope, *(None,) * 4, *of_masks)


def _of_keys(tensor: Any, keys: int) -> Any:
    batch, heads, time, width = tensor.shape
    return tensor if time == keys else tensor.shrink(((0, batch), (0, heads), (0, keys), (0, width)))
