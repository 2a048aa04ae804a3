"""Latent attention. In: hidden states. Out: as attention. A token's keys and values of all heads are products of one
latent vector, so the cache holds that vector and the shared rotated key: the matrices that multiply latents are
applied to the queries and to the result instead.

    score = q . (K latent) = (q K) . latent          result = sum of weight * (V latent) = V (sum of weight * latent)"""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.llm.network.attention import AttentionContext, attend, split_heads
from tilewright.llm.network.config import Config, Latent
from tilewright.llm.network.layers import Linear, Norm, Weight, linear_of
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.tensor.tensor import Tensor


class LatentAttention:
    """Queries of all heads, latents of all tokens, and the matrices between them."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        assert config.latent is not None
        self.config = config
        self.layer = layer
        self.latent = latent = config.latent
        hidden, heads = config.hidden_size, config.head_count
        prefix = f"blk.{layer}"
        q_rows = heads * (latent.plain_size + latent.rope_size)
        self.q_down: Linear | None = None
        self.q_norm: Norm | None = None
        if latent.q_rank:
            self.q_down = linear_of(weights, f"{prefix}.attn_q_a", latent.q_rank, hidden)
            self.q_norm = Norm(weights.vector(f"{prefix}.attn_q_a_norm.weight", latent.q_rank), config.norm_eps)
            self.q = linear_of(weights, f"{prefix}.attn_q_b", q_rows, latent.q_rank)
        else:
            self.q = linear_of(weights, f"{prefix}.attn_q", q_rows, hidden)
        self.kv_down = linear_of(weights, f"{prefix}.attn_kv_a_mqa", latent.kv_rank + latent.rope_size, hidden)
        self.kv_norm = Norm(weights.vector(f"{prefix}.attn_kv_a_norm.weight", latent.kv_rank), config.norm_eps)
        self.key_up, self.value_up = _up_matrices(weights, prefix, heads, latent)
        self.o = linear_of(weights, f"{prefix}.attn_output", hidden, heads * latent.value_size)

    @staticmethod
    def cached(config: Config) -> tuple[tuple[int, int], ...]:
        """One tensor a layer: the latent vector followed by the rotated key."""
        assert config.latent is not None
        return ((1, config.latent.kv_rank + config.latent.rope_size),)

    def __call__(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        latent = self.latent
        narrow = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        queries = split_heads(self.q(narrow), latent.plain_size + latent.rope_size)
        rotate = ctx.rotation(self.layer)
        plain = queries[..., : latent.plain_size] @ self.key_up.numbers(x.dtype)
        queries = plain.cat(rotate(queries[..., latent.plain_size :]), dim=-1)
        made = self.kv_down(x).unsqueeze(1)
        keys = self.kv_norm(made[..., : latent.kv_rank]).cat(rotate(made[..., latent.kv_rank :]), dim=-1)
        if ctx.cache is not None:
            (held,) = ctx.cache.store(self.layer, (keys,), ctx.position)
            keys = held.cast(x.dtype)
        scale = self.config.attention_scale or (latent.plain_size + latent.rope_size) ** -0.5
        mixed = attend(queries, keys, keys[..., : latent.kv_rank], ctx, self.layer, scale)
        values = mixed @ self.value_up.numbers(x.dtype).transpose(-2, -1)
        return self.o(values.transpose(1, 2).flatten(2))


class HeadMatrices:
    """A matrix for each head: some rows of a weight of (heads, rows, columns), or their transpose."""

    def __init__(self, weight: Weight, shape: tuple[int, ...], rows: slice, is_transposed: bool = False) -> None:
        self.weight = weight
        self.shape = shape
        self.rows = rows
        self.is_transposed = is_transposed

    def numbers(self, dtype: DType) -> Tensor:
        weight = self.weight
        whole = weight.decode(dtype) if isinstance(weight, QuantisedWeight) else weight.cast(dtype)
        found = whole.reshape(self.shape)[:, self.rows]
        return found.transpose(-2, -1) if self.is_transposed else found


def _up_matrices(weights: Weights, prefix: str, heads: int, latent: Latent) -> tuple[HeadMatrices, HeadMatrices]:
    """From latents to keys, (heads, plain, kv_rank), and to values, (heads, value, kv_rank). A file has them as one
    weight, head by head, or as two, the keys' transposed."""
    rank, everything = latent.kv_rank, slice(None)
    if weights.has(f"{prefix}.attn_k_b.weight"):
        key_shape, value_shape = (heads, rank, latent.plain_size), (heads, latent.value_size, rank)
        return (
            HeadMatrices(weights.matrix(f"{prefix}.attn_k_b.weight", *key_shape), key_shape, everything, True),
            HeadMatrices(weights.matrix(f"{prefix}.attn_v_b.weight", *value_shape), value_shape, everything),
        )
    rows = latent.plain_size + latent.value_size
    both = weights.matrix(f"{prefix}.attn_kv_b.weight", heads * rows, rank)
    shape = (heads, rows, rank)
    keys, values = slice(latent.plain_size), slice(latent.plain_size, None)
    return HeadMatrices(both, shape, keys), HeadMatrices(both, shape, values)
