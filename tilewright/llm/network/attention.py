"""Attention with a cache. In: hidden states (batch, time, features), the positions of the tokens, the keys and values
of earlier ones. Out: the attention of each token to those it may see. Heads may share keys; a layer may be local."""

from __future__ import annotations

import math

from tilewright.llm.network.cache import Cache, Position
from tilewright.llm.network.config import Config
from tilewright.llm.network.layers import Norm, Rotary, Rotation, linear_of, steps_from
from tilewright.llm.network.weights import Weights
from tilewright.tensor.tensor import Tensor


class AttentionContext:
    """The positions of the tokens of a call, and the cache: gives each layer the rotation and the mask of its keys."""

    def __init__(
        self, config: Config, rotaries: list[Rotary], x: Tensor, cache: Cache | None, position: Position
    ) -> None:
        self.config = config
        self.cache = cache
        self.position = position
        self.time = x.shape[1]
        self.steps = steps_from(position, self.time, x.device)
        self.rotations = {rotary.rope: rotary.at(self.steps) for rotary in rotaries}

    def rotation(self, layer: int) -> Rotation:
        return self.rotations[self.config.rope_of(layer)]

    def shared(self) -> list[Tensor]:
        """The tensors that all layers read."""
        return [table for rotation in self.rotations.values() for table in (rotation.cosines, rotation.sines)]

    def mask(self, layer: int, keys: Tensor) -> Tensor | None:
        """True where a query may see a key: (time, keys), or (batch, 1, time, keys). None where all are seen, or
        where the mask is only causal (`is_causal`)."""
        is_local = self.config.is_local_layer(layer)
        has_rows = isinstance(self.position, Tensor)
        if not is_local and not has_rows and (self.time == 1 or self.is_causal(layer)):
            return None
        positions = Tensor.arange(keys.shape[-2], dtype=self.steps.dtype, device=keys.device)
        steps = self.steps.unsqueeze(-1)
        seen = positions <= steps
        if is_local:
            seen = seen & (positions > steps - self.config.window)
        return seen.unsqueeze(1) if has_rows else seen

    def is_causal(self, layer: int) -> bool:
        """Whether query i sees keys 0 to i."""
        is_first = isinstance(self.position, int) and self.position == 0
        return is_first and self.time > 1 and not self.config.is_local_layer(layer)


class Attention:
    """Queries of `head_count` heads, keys and values of `kv_head_count`, with norms of queries and keys where the model
    has them."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        self.config = config
        self.layer = layer
        size, hidden = config.head_size, config.hidden_size
        self.q = linear_of(weights, f"blk.{layer}.attn_q", config.head_count * size, hidden)
        self.k = linear_of(weights, f"blk.{layer}.attn_k", config.kv_head_count * size, hidden)
        self.v = linear_of(weights, f"blk.{layer}.attn_v", config.kv_head_count * size, hidden)
        self.o = linear_of(weights, f"blk.{layer}.attn_output", hidden, config.head_count * size)
        self.q_norm = self.k_norm = None
        if config.has_qk_norm:
            names = (f"blk.{layer}.attn_q_norm.weight", f"blk.{layer}.attn_k_norm.weight")
            self.q_norm, self.k_norm = (
                Norm(weights.vector(name, size), config.norm_eps, config.norm_shift) for name in names
            )

    @staticmethod
    def cached(config: Config) -> tuple[tuple[int, int], ...]:
        """Heads and features of the tensors that the cache has for a layer."""
        return ((config.kv_head_count, config.head_size),) * 2

    def __call__(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        config = self.config
        queries, keys, values = (split_heads(part(x), config.head_size) for part in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        rotate = ctx.rotation(self.layer)
        queries, keys = rotate(queries), rotate(keys)
        if ctx.cache is not None:
            keys, values = ctx.cache.store(self.layer, (keys, values), ctx.position)
            keys, values = keys.cast(x.dtype), values.cast(x.dtype)
        mixed = attend(queries, keys, values, ctx, self.layer, config.attention_scale)
        return self.o(mixed.transpose(1, 2).flatten(2))


def attend(queries: Tensor, keys: Tensor, values: Tensor, ctx: AttentionContext, layer: int, scale: float) -> Tensor:
    """Softmax attention of (batch, heads, time, features), scaled by 1 / sqrt(features) where `scale` is 0."""
    if scale:
        queries = queries * (scale * math.sqrt(queries.shape[-1]))
    if isinstance(ctx.position, Tensor) and ctx.cache is not None:
        window = ctx.config.window if ctx.config.is_local_layer(layer) else 0
        found = queries._cached_attention(keys, values, ctx.position, window)
        if found is not None:
            return found
    return queries.scaled_dot_product_attention(
        keys, values, ctx.mask(layer, keys), is_causal=ctx.is_causal(layer), enable_gqa=True
    )


def split_heads(x: Tensor, size: int) -> Tensor:
    """(batch, time, heads * size) as (batch, heads, time, size)."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)
