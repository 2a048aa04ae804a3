"""The small parts of a network: products and embeddings with float or quantised weights, norms, rotary positions. In:
weights as a file has them. Out: callables. Activations have one dtype throughout; norms and angles are in float32."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.graph.spec import Devices
from tilewright.llm.gates import activate
from tilewright.llm.network.cache import Position
from tilewright.llm.network.config import Rope
from tilewright.llm.network.weights import Weights
from tilewright.llm.quantised.product import normalised
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.nn.buffers import as_buffer
from tilewright.tensor.tensor import Tensor

Weight = Tensor | QuantisedWeight


class Linear:
    """x times the transpose of (outputs, inputs), plus a bias."""

    def __init__(self, weight: Weight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, QuantisedWeight):
            return self.weight.linear(x, self.bias)
        product = x @ self.weight.cast(x.dtype).transpose(-2, -1)
        return product if self.bias is None else product + self.bias.cast(x.dtype)


def linear_of(weights: Weights, name: str, rows: int, columns: int) -> Linear:
    """The product of a weight of a file, with a bias where the file has one."""
    return Linear(weights.matrix(f"{name}.weight", rows, columns), weights.optional_vector(f"{name}.bias", rows))


class FeedForward:
    """down(activation(gate(x)) * up(x)), with the weights `prefix.ffn_gate` and so on, `suffix` after each name."""

    def __init__(
        self, weights: Weights, prefix: str, suffix: str, hidden_size: int, size: int, activation: str
    ) -> None:
        self.activation = activation
        self.gate = linear_of(weights, f"{prefix}.ffn_gate{suffix}", size, hidden_size)
        self.up = linear_of(weights, f"{prefix}.ffn_up{suffix}", size, hidden_size)
        self.down = linear_of(weights, f"{prefix}.ffn_down{suffix}", hidden_size, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._inner(x))

    def _inner(self, x: Tensor) -> Tensor:
        # An adapter computes more than the product with its weight.
        if all(type(part) is Linear and part.bias is None for part in (self.gate, self.up)):
            found = gated_at_once(self.gate.weight, self.up.weight, x, self.activation)
            if found is not None:
                return found
        return activate(self.gate(x), self.activation) * self.up(x)


class Embedding:
    """Rows of a table; only those that are asked for are read. Of a model on several `devices` one has the table and
    sends the rows to the others."""

    def __init__(self, weight: Weight, devices: tuple[str, ...] = ()) -> None:
        self.weight = weight
        self.devices = devices

    @property
    def device(self) -> Devices:
        return self.devices or self.weight.device

    def __call__(self, tokens: Tensor) -> Tensor:
        index = tokens.to(self.weight.device) if self.devices else tokens
        rows = self.weight.rows(index) if isinstance(self.weight, QuantisedWeight) else self.weight[index]
        return rows.shard(self.devices) if self.devices else rows


class Norm:
    """RMS norm over the last axis: x / sqrt(mean(x * x) + eps), times a weight to which `shift` is added."""

    def __init__(self, weight: Tensor, eps: float, shift: float = 0.0) -> None:
        self.weight = weight
        self.eps = eps
        self.shift = shift

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.cast(dtypes.float32)
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        weight = self.weight.cast(dtypes.float32)
        return (wide * scale * (weight + self.shift if self.shift else weight)).cast(x.dtype)


def expert_product(weight: Weight, x: Tensor, chosen: Tensor) -> Tensor:
    """x (tokens, k or 1, inputs) times each token's chosen experts (tokens, k) of (experts, outputs, inputs): (tokens,
    k, outputs). Of the weights only the chosen are read."""
    if isinstance(weight, QuantisedWeight):
        return weight.expert_linear(x, chosen)
    return (weight[chosen].cast(x.dtype) * x.unsqueeze(-2)).sum(-1)


def mixed_experts(weight: Weight, x: Tensor, chosen: Tensor, shares: Tensor, normalise: bool) -> Tensor:
    """The sum of `expert_product` over each token's experts, times their shares (tokens, k), which `normalise` divides
    by their sum: (tokens, outputs)."""
    if isinstance(weight, QuantisedWeight):
        return weight.mixed_experts(x, chosen, shares, normalise)
    shares = normalised(shares) if normalise else shares
    return (expert_product(weight, x, chosen) * shares.cast(x.dtype).unsqueeze(-1)).sum(1)


def gated_experts(gate: Weight, up: Weight, x: Tensor, chosen: Tensor, activation: str) -> Tensor:
    """activation(gate) * up, each an `expert_product`."""
    found = gated_at_once(gate, up, x, activation, chosen)
    if found is not None:
        return found
    return activate(expert_product(gate, x, chosen), activation) * expert_product(up, x, chosen)


def gated_at_once(gate: Weight, up: Weight, x: Tensor, activation: str, chosen: Tensor | None = None) -> Tensor | None:
    """activation(gate) * up in one kernel; None where there is none for these weights."""
    if isinstance(gate, QuantisedWeight) and isinstance(up, QuantisedWeight):
        return gate.gated(up, x, activation, chosen)
    return None


# ---------------------------------------------------------------- positions


def steps_from(position: Position, time: int, device: Devices) -> Tensor:
    """The positions of tokens, int32: (time,), or (batch, time) where every row has its own first one."""
    steps: Tensor = Tensor.arange(time, dtype=dtypes.int32, device=device)
    if isinstance(position, Tensor):
        return position.cast(dtypes.int32).unsqueeze(-1) + steps
    first: Any = position
    return steps.__add__(first)


class Rotary:
    """The frequencies of a rotary embedding; they belong to the model and are not trained."""

    def __init__(self, rope: Rope, device: Devices) -> None:
        self.rope = rope
        values = Tensor(rope.frequencies(), dtype=dtypes.float32)
        self.frequencies = as_buffer(values.to(device) if isinstance(device, str) else values.shard(device))

    def at(self, steps: Tensor) -> Rotation:
        """The rotation of tokens at the positions `steps`."""
        return Rotation(self.rope, self.frequencies, steps)


class Rotation:
    """The rotation of tokens at given positions, computed once and applied in every layer: cosines, and sines with the
    sign of the feature they are for, each (time, size) or (batch, 1, time, size)."""

    def __init__(self, rope: Rope, frequencies: Tensor, steps: Tensor) -> None:
        self.rope = rope
        angles = steps.cast(dtypes.float32).unsqueeze(-1) * frequencies
        if steps.ndim == 2:
            angles = angles.unsqueeze(1)
        cosines, sines = angles.cos() * rope.magnitude, angles.sin() * rope.magnitude
        axis = -1 if rope.interleaved else -2
        self.cosines = cosines.stack(cosines, dim=axis).flatten(-2).contiguous()
        self.sines = (-sines).stack(sines, dim=axis).flatten(-2).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """x (batch, heads, time, features) with its first `size` features rotated."""
        size = self.rope.size
        first = x if size == x.shape[-1] else x[..., :size]
        pairs = first.unflatten(-1, (-1, 2) if self.rope.interleaved else (2, -1))
        partner = pairs.flip(-1 if self.rope.interleaved else -2).flatten(-2)
        found = (first * self.cosines + partner * self.sines).cast(x.dtype)
        return found if size == x.shape[-1] else found.cat(x[..., size:], dim=-1)
