"""Attention as a layer, and the layers of a transformer. In: sequences (steps, batch, features), or (batch, steps,
features) with `batch_first`, or without a batch. Out: the same layout. Names of weights and arguments are torch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import ShapeError
from tilewright.nn.functions import Dropout
from tilewright.nn.layers import Linear, ModuleList, check_sizes, in_dtype_of, optional_in_dtype_of, uniform_parameter
from tilewright.nn.normalisation import LayerNorm
from tilewright.tensor.tensor import Tensor

__all__: list[str] = [
    "MultiheadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": Tensor.relu, "gelu": lambda x: x.gelu("none")}


class MultiheadAttention:
    """Attention with several heads: `output, weights = attention(query, key, value)`. The weights, a mean over the
    heads unless `average_attn_weights=False`, are None where `need_weights=False`. In masks, True means masked out, and
    numbers are added to the scores."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        check_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            message = f"{embed_dim} features in {num_heads} heads"
            raise ShapeError("MultiheadAttention", message, "give a divisor of the features as the number of heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        if kdim in (None, embed_dim) and vdim in (None, embed_dim):
            self.in_proj_weight: Tensor | None = uniform_parameter(
                math.sqrt(6 / (4 * embed_dim)), 3 * embed_dim, embed_dim
            )
        else:
            self.in_proj_weight = None
            for name, width in (("q", embed_dim), ("k", kdim or embed_dim), ("v", vdim or embed_dim)):
                bound = math.sqrt(6 / (embed_dim + width))
                setattr(self, f"{name}_proj_weight", uniform_parameter(bound, embed_dim, width))
        self.in_proj_bias = Tensor.zeros(3 * embed_dim).requires_grad_() if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Tensor.zeros(embed_dim).requires_grad_()

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        is_batched = query.ndim == 3
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            message = f"shapes {query.shape}, {key.shape} and {value.shape}"
            raise ShapeError("MultiheadAttention", message, "give three sequences with a batch, or three without")
        moves_batch = is_batched and not self.batch_first
        given = [x.transpose(0, 1) if moves_batch else x if is_batched else x.unsqueeze(0) for x in (query, key, value)]
        heads = [self._head(x, number) for number, x in enumerate(given)]
        mask = self._mask(heads[0], heads[1], key_padding_mask, attn_mask, is_causal)
        weights: Tensor | None = None
        if need_weights:
            scores = heads[0] @ heads[1].transpose(-2, -1) * (1 / math.sqrt(heads[0].shape[-1]))
            found = (scores if mask is None else scores + mask).softmax(-1)
            mixed = found.dropout(self.dropout) @ heads[2]
            weights = found.mean(1) if average_attn_weights else found
            weights = weights if is_batched else weights.squeeze(0)
        else:
            mixed = heads[0].scaled_dot_product_attention(heads[1], heads[2], mask, self.dropout)
        joined = mixed.transpose(1, 2).reshape((mixed.shape[0], mixed.shape[2], self.embed_dim))
        output = self.out_proj(joined)
        if moves_batch:
            return output.transpose(0, 1), weights
        return output if is_batched else output.squeeze(0), weights

    def _head(self, x: Tensor, number: int) -> Tensor:
        """The query, the key or the value as (batch, heads, steps, features of a head)."""
        rows = slice(number * self.embed_dim, (number + 1) * self.embed_dim)
        if self.in_proj_weight is None:
            weight: Tensor = getattr(self, f"{'qkv'[number]}_proj_weight")
        else:
            weight = self.in_proj_weight[rows]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        projected = x.linear(in_dtype_of(x, weight).transpose(), optional_in_dtype_of(x, bias))
        return projected.reshape((*projected.shape[:2], self.num_heads, -1)).transpose(1, 2)

    def _mask(
        self, query: Tensor, key: Tensor, padding: Tensor | None, mask: Tensor | None, is_causal: bool
    ) -> Tensor | None:
        """The number to add to each score: minus infinity where a key is masked out."""
        batch, _, steps, _ = query.shape
        if is_causal and mask is None:
            mask = Tensor.ones(steps, key.shape[2], device=query.device).triu(1).cast("bool")
        total = None
        if mask is not None:
            shape = (1, 1, *mask.shape) if mask.ndim == 2 else (batch, self.num_heads, *mask.shape[1:])
            total = _added(mask, query).reshape(shape)
        if padding is not None:
            row = padding if padding.ndim == 2 else padding.unsqueeze(0)
            part = _added(row, query).reshape((row.shape[0], 1, 1, row.shape[1]))
            total = part if total is None else total + part
        return total


def _added(mask: Tensor, like: Tensor) -> Tensor:
    return mask.where(-math.inf, 0.0).cast(like.dtype) if mask.dtype.is_bool else mask.cast(like.dtype)


def _activation(layer: str, activation: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise ShapeError(layer, f"activation={activation!r}", "give 'relu', 'gelu' or a function")
    return _ACTIVATIONS[activation]


class _TransformerLayer:
    """Attentions, then two linear layers, each with a residual connection and a normalisation: after the sum, or before
    the layer with `norm_first`."""

    attentions: tuple[str, ...] = ("self_attn",)
    self_attn: MultiheadAttention

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        for name in self.attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first))
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        for number in range(1, len(self.attentions) + 2):
            setattr(self, f"norm{number}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first
        self.activation = _activation(type(self).__name__, activation)

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _through(self, x: Tensor, *parts: Callable[[Tensor], Tensor]) -> Tensor:
        for number, part in enumerate(parts, 1):
            norm: LayerNorm = getattr(self, f"norm{number}")
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then two linear layers, each with a residual connection and a normalisation: after the sum, or
    before the layer with `norm_first`."""

    def __call__(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            found, _ = self.self_attn(
                x, x, x, src_key_padding_mask, need_weights=False, attn_mask=src_mask, is_causal=is_causal
            )
            return self.dropout(found)

        return self._through(src, attend, self._feed)


class TransformerEncoder:
    """A stack of encoder layers: copies of one, or what a function gives that is called once for each."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: LayerNorm | None = None) -> None:
        self.layers = _stacked("TransformerEncoder", encoder_layer, TransformerEncoderLayer, num_layers)
        self.norm = norm

    def __call__(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


def _stacked(name: str, layer: Any, kind: type, count: int) -> ModuleList:
    check_sizes(name, num_layers=count)
    return ModuleList(copy.deepcopy(layer) if isinstance(layer, kind) else layer() for _ in range(count))


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to what an encoder gives, then two linear layers, each with a residual connection and
    a normalisation: after the sum, or before the layer with `norm_first`."""

    attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention

    def __call__(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout(
                self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]
            )

        def remember(x: Tensor) -> Tensor:
            return self.dropout(self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask)[0])

        return self._through(tgt, attend, remember, self._feed)


class TransformerDecoder:
    """A stack of decoder layers: copies of one, or what a function gives that is called once for each."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: LayerNorm | None = None) -> None:
        self.layers = _stacked("TransformerDecoder", decoder_layer, TransformerDecoderLayer, num_layers)
        self.norm = norm

    def __call__(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
    ) -> Tensor:
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer:
    """An encoder and a decoder: `output = transformer(src, tgt)`. Masks are those of their layers."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        facts = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias)

        self.encoder: Any = custom_encoder or TransformerEncoder(
            lambda: TransformerEncoderLayer(*facts), num_encoder_layers, norm()
        )
        self.decoder: Any = custom_decoder or TransformerDecoder(
            lambda: TransformerDecoderLayer(*facts), num_decoder_layers, norm()
        )
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def __call__(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        output: Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal)
        return output

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: str | None = None) -> Tensor:
        """The float mask of a sequence that sees no later step: minus infinity above the diagonal, else 0."""
        return Tensor.full((sz, sz), -math.inf, device=device).triu(1)
