"""The network that all families share. In: tokens and their positions. Out: logits of the next token at each of them.

    x = embedding(tokens)
    for each layer:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    logits = head(norm(x))

A plain model of `nn`: it can be called, differentiated and trained where its weights are floats. Families differ by
`Config` alone: norms after attention and feed-forward, norms of queries and keys, local layers, experts, latent
attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import ShapeError
from tilewright.graph.spec import Devices
from tilewright.llm.network.attention import Attention, AttentionContext
from tilewright.llm.network.cache import Cache, Position
from tilewright.llm.network.config import Config
from tilewright.llm.network.layers import Embedding, FeedForward, Linear, Norm, Rotary
from tilewright.llm.network.weights import Weights
from tilewright.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tilewright.llm.network.experts import MixtureOfExperts
    from tilewright.llm.network.latent import LatentAttention


def attention_of(config: Config) -> type[Attention] | type[LatentAttention]:
    if config.latent is None:
        return Attention
    from tilewright.llm.network.latent import LatentAttention  # few models have it

    return LatentAttention


class Layer:
    """Attention, then a feed-forward layer, each behind a norm and added to what came in."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        def norm(name: str) -> Norm:
            weight = weights.vector(f"blk.{layer}.{name}.weight", config.hidden_size)
            return Norm(weight, config.norm_eps, config.norm_shift)

        self.attention_norm = norm("attn_norm")
        self.attention = attention_of(config)(config, weights, layer)
        self.ffn_norm = norm("ffn_norm")
        self.feed_forward: FeedForward | MixtureOfExperts
        if config.has_experts(layer):
            from tilewright.llm.network.experts import MixtureOfExperts  # few models have them

            self.feed_forward = MixtureOfExperts(config, weights, layer)
        else:
            hidden, size = config.hidden_size, config.ffn_size
            self.feed_forward = FeedForward(weights, f"blk.{layer}", "", hidden, size, config.activation)
        self.post_attention_norm = norm("post_attention_norm") if config.has_post_norms else None
        self.post_ffn_norm = norm("post_ffw_norm") if config.has_post_norms else None

    def __call__(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        mixed = self.attention(self.attention_norm(x), ctx)
        x = x + (mixed if self.post_attention_norm is None else self.post_attention_norm(mixed))
        found = self.feed_forward(self.ffn_norm(x))
        return x + (found if self.post_ffn_norm is None else self.post_ffn_norm(found))


class Transformer:
    """A decoder. `dtype` is that of activations; weights keep theirs and are converted where they are read."""

    def __init__(self, config: Config, weights: Weights, dtype: DType = dtypes.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(weights.matrix("token_embd.weight", config.vocab_size, config.hidden_size))
        self.layers = [Layer(config, weights, layer) for layer in range(config.layer_count)]
        self.norm = Norm(weights.vector("output_norm.weight", config.hidden_size), config.norm_eps, config.norm_shift)
        head = self.embedding.weight
        if not config.is_tied:
            head = weights.matrix("output.weight", config.vocab_size, config.hidden_size)
        self.head = Linear(head)
        ropes = [rope for rope in (config.rope, config.local_rope) if rope is not None]
        self.rotaries = [Rotary(rope, self.device) for rope in ropes]

    @property
    def device(self) -> Devices:
        return self.embedding.device

    def make_cache(self, batch: int, length: int, *, clear: bool = True) -> Cache:
        """Memory for the keys and values of `length` tokens in each of `batch` rows; `clear` as `Cache` says."""
        shapes = [attention_of(self.config).cached(self.config)] * self.config.layer_count
        return Cache(shapes, batch, length, self.dtype, self.device, clear=clear)

    def hidden(
        self, tokens: Tensor, cache: Cache | None = None, position: Position = 0, *, by_layer: bool = False
    ) -> Tensor:
        """The states after the last norm, (batch, time, hidden_size); `head` of those that are needed gives logits.
        With `by_layer` each layer is realised on its own, for calls without gradients: equal layers are one small graph
        with one plan, while the graph of all layers takes memory and time in proportion to their number."""
        check_call(tokens, cache, position)
        x = self.embedding(tokens).cast(self.dtype)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        ctx = AttentionContext(self.config, self.rotaries, x, cache, position)
        if by_layer:
            x.realize(*ctx.shared())
        for number, layer in enumerate(self.layers):
            if not by_layer:
                x = layer(x, ctx)
                continue
            # All layers write to the same memory. The cache is realised too: a tensor that is updated and not realised
            # keeps the graph that it was computed from.
            x.assign(layer(x, ctx)).realize(*([] if cache is None else cache.layers[number]))
        return self.norm(x)

    def __call__(self, tokens: Tensor, cache: Cache | None = None, position: Position = 0) -> Tensor:
        """Logits (batch, time, vocab_size) of tokens int32 (batch, time). With a cache the tokens follow those it
        holds: `position` is that of the first of them, an int, a bound Variable, or int32 (batch,) with one for each
        row; they are written to the cache in place."""
        return self.head(self.hidden(tokens, cache, position))


def check_call(tokens: Tensor, cache: Cache | None, position: Position) -> None:
    if tokens.ndim != 2 or not tokens.dtype.is_int or 0 in tokens.shape:
        message = f"the tokens are {tokens._described()}"
        raise ShapeError("Transformer", message, "give integers (batch, time), at least one token a row")
    if isinstance(position, Tensor) and (position.shape != tokens.shape[:1] or not position.dtype.is_int):
        raise ShapeError("Transformer", f"the positions are {position._described()}", "give one integer for each row")
    if cache is None:
        return
    if cache.batch != tokens.shape[0]:
        message = f"{tokens.shape[0]} rows of tokens do not fit a cache of {cache.batch} rows"
        raise ShapeError("Transformer", message, "make the cache for as many rows")
    if isinstance(position, int) and not 0 <= position <= cache.length - tokens.shape[1]:
        message = f"{tokens.shape[1]} tokens at {position} do not fit a cache of {cache.length}"
        raise ShapeError("Transformer", message, "make a longer cache, or drop tokens")
