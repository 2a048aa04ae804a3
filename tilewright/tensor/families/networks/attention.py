"""Attention. In: queries, keys and values. Out: for each query the sum of the values weighted by the softmax of its
scores. Where the matrix of all scores is large, only some of its rows are in memory at a time, since a query needs its
own scores alone. The gradients of such parts recompute the scores."""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar

from tilewright.base.dtype import DType, dtypes, promote
from tilewright.base.errors import ShapeError
from tilewright.base.records import NamedTuple
from tilewright.graph import build, marks
from tilewright.graph.sizes import is_symbolic, smaller_size
from tilewright.graph.spec import max_count
from tilewright.runtime.device import target_of
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import broadcast_shape
from tilewright.tensor.core.gradient import checkpoint
from tilewright.tensor.core.modes import modes
from tilewright.tensor.families.linalg.products import ProductsMixin
from tilewright.tensor.families.random import RandomMixin
from tilewright.tensor.primitives.reduce import accumulate_dtype

# Maximum number of scores in memory: 128 MiB in float32. Each part is compiled for its own range of queries, which
# takes about as long as computing this number of scores.
MAX_SCORES = 1 << 25

# The rows of a part are a multiple of this where there are many, so that they are aligned and fill the tiles of tensor
# cores.
ROW_MULTIPLE = 64

T = TypeVar("T", bound=ProductsMixin)


class Drawn(NamedTuple):
    """The random numbers for dropout: the state of the generator after all of them, the shape of all scores, and the
    first row of a part."""

    state: Any
    shape: tuple[int, ...]
    first: int


class AttentionMixin(RandomMixin, ProductsMixin):
    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(q @ k.T / sqrt(d) + mask) @ v; a bool mask keeps scores where it is true."""
        name = "scaled_dot_product_attention"
        check_devices(name, self, key, value, *(() if attn_mask is None else (attn_mask,)))
        if min(self.ndim, key.ndim, value.ndim) < 2:
            raise ShapeError(name, f"shapes {self.shape}, {key.shape}, {value.shape}", "give (..., time, features)")
        if is_causal and attn_mask is not None:
            raise ShapeError(name, "is_causal with a mask", "give one of the two")
        if enable_gqa:
            if min(self.ndim, key.ndim, value.ndim) < 3 or key.shape[-3] == 0 or self.shape[-3] % key.shape[-3]:
                message = f"the number of heads of {self.shape} is not a multiple of that of {key.shape}"
                raise ShapeError(name, message, "give (..., heads, time, features), the query's heads a multiple")
        has_own_keys = enable_gqa or self.ndim < 3 or key.shape[-3:-2] in ((1,), self.shape[-3:-2])
        if has_own_keys and 0 <= dropout_p <= 1:
            fused = self._fused_attention(key, value, attn_mask, is_causal, dropout_p if modes.training else 0.0)
            if fused is not None:
                return fused
        if enable_gqa:
            repeats = self.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
        return self._attend_in_parts(key, value, attn_mask, is_causal, dropout_p)

    def _fused_attention(
        self, key: Self, value: Self, attn_mask: Self | None, is_causal: bool, dropout_p: float
    ) -> Self | None:
        """The result of one kernel, or None where no kernel takes these operands."""
        if runs_in_blocks(self):
            # Imported late: only devices whose threads are cores use it.
            from tilewright.tensor.families.networks.blocked_attention import blocked_attention

            return blocked_attention(self, key, value, attn_mask, is_causal, dropout_p, _attend_in_parts)
        found = None if dropout_p else self._core_attention(key, value, attn_mask, is_causal)
        if found is not None:
            return found
        # Imported late: only devices with work-groups use it.
        from tilewright.tensor.families.networks.grouped_attention import grouped_attention

        return grouped_attention(self, key, value, attn_mask, is_causal, dropout_p, _attend_in_parts)

    def _cached_attention(self, key: Self, value: Self, positions: Self, window: int) -> Self | None:
        """The result of a kernel for one query per head, where each row sees its keys up to the one at its position,
        all of them or the last `window`. None where it does not support these operands."""
        if not runs_in_blocks(self):
            return None
        # Imported late: only devices whose threads are cores use it.
        from tilewright.tensor.families.networks.cached_attention import cached_attention

        return cached_attention(self, key, value, positions, window, _attend_in_parts)

    def _core_attention(self, key: Self, value: Self, attn_mask: Self | None, is_causal: bool) -> Self | None:
        """The result of a kernel for one query per head, or of one for tensor cores; None where neither takes these
        operands."""
        if self.ndim > 2 and not is_symbolic(self.shape) and self.shape[-2] == 1 and not is_causal:
            # Imported late: only devices with work-groups use it.
            from tilewright.tensor.families.networks.row_attention import row_attention

            return row_attention(self, key, value, attn_mask, _attend_in_parts)
        if self.dtype not in (dtypes.bfloat16, dtypes.float16, dtypes.float32):
            return None
        # Imported late: only devices with tensor cores use it.
        from tilewright.tensor.families.networks.fused_attention import fused_attention

        return fused_attention(self, key, value, attn_mask, is_causal, _attend_in_parts)

    def _attend_in_parts(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None,
        is_causal: bool,
        dropout_p: float = 0.0,
        state: Self | None = None,
    ) -> Self:
        """In parts of as many rows as may have their scores in memory. A `state` is that after the random numbers for
        dropout, of all rows at once."""
        parts = rows_at_a_time(self, key)
        whole = (*self.shape[:-1], key.shape[-2])
        if not parts:
            drawn = None if state is None else Drawn(state, whole, 0)
            return self._attend(key, value, attn_mask, dropout_p, 0 if is_causal else None, drawn)
        results: list[Self] = []
        for first, end in parts:
            given = [take_rows(self, first, end), key, value]
            if is_causal:  # keys after the last of these rows have weight 0
                given[1:] = (take_rows(each, 0, smaller_size(end, each.shape[-2])) for each in (key, value))
            if attn_mask is not None:
                has_rows = attn_mask.ndim >= 2 and attn_mask.shape[-2] != 1
                given.append(take_rows(attn_mask, first, end) if has_rows else attn_mask)
            row = first if is_causal else None
            drawn = None if state is None else Drawn(state, whole, first)
            results.append(
                checkpoint(
                    lambda q, k, v, m=None, row=row, drawn=drawn: q._attend(k, v, m, dropout_p, row, drawn), *given
                )
            )
        return results[0].cat(*results[1:], dim=-2)

    def _attend(
        self,
        key: Self,
        value: Self,
        mask: Self | None,
        dropout_p: float,
        first_row: int | None,
        drawn: Drawn | None = None,
    ) -> Self:
        """All rows of `self` at once. `first_row`, the position of the first row among all queries, makes it causal."""
        carrier: DType = accumulate_dtype(promote(self.dtype, key.dtype))
        # The gradient of the scores is an operand of the products for queries and keys, so it is rounded to their
        # dtype.
        raw = self._new(marks.round_gradient(self.dot(key.transpose(-2, -1), dtype=carrier).uop, self.dtype), key)
        scores = raw * (1 / math.sqrt(self.shape[-1]))
        if first_row is not None:
            keep = nodes.triangle_mask(scores.shape, first_row, upper=False)
            scores = scores._new(build.where(keep, scores.uop, build.const(carrier, -math.inf)))
        elif mask is not None:
            scores = mask.where(scores, -math.inf) if mask.dtype.is_bool else scores + mask
        weights = scores.softmax(-1).cast(self.dtype)
        dropped = weights.dropout(dropout_p) if drawn is None else weights._dropout_before(dropout_p, *drawn)
        return dropped.dot(value)


def _attend_in_parts(query: AttentionMixin, *others: Any) -> AttentionMixin:
    """The method as a module-level function, which compares equal in every call."""
    return query._attend_in_parts(*others)


def runs_in_blocks(query: ProductsMixin) -> bool:
    """Whether the threads of the device are CPU cores, which compute attention in blocks that their caches hold."""
    target = target_of(query.device)
    return target is not None and target.has_threads and not target.has_local


def rows_at_a_time(query: ProductsMixin, key: ProductsMixin) -> list[tuple[int, int]]:
    """The parts of the queries as (first row, end); none where all scores fit at once."""
    if min(query.ndim, key.ndim) < 2:
        return []
    rows, columns = query.shape[-2], key.shape[-2]
    heads = broadcast_shape("scaled_dot_product_attention", query.shape[:-2], key.shape[:-2])
    scores = max_count((*heads, columns))
    if is_symbolic((rows,)) or scores * rows <= MAX_SCORES:
        return []
    step = max(1, MAX_SCORES // scores)
    step -= step % ROW_MULTIPLE if step > ROW_MULTIPLE else 0
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def take_rows(tensor: T, first: int, end: int) -> T:
    return tensor.shrink((*((0, size) for size in tensor.shape[:-2]), (first, end), (0, tensor.shape[-1])))
