"""Training programs of attention and of layers that stand in its place, for `bench/programs.py`. In: a library, its
`F`, what a program is given, and sizes. Out: the loss."""

from __future__ import annotations

import math
from typing import Any

from bench.program_kit import Given, Library, program


def heads_of(F: Any, given: Given, x: Any, heads: int) -> tuple[Any, Any, Any]:
    """Queries, keys and values (batch, heads, time, features) of a sequence, by one product."""
    batch, time, width = x.shape
    parts = F.linear(x, given.parameter("enter", 3 * width, width)).reshape(batch, time, 3, heads, width // heads)
    parts = parts.permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


def loss_of_heads(ops: Library, F: Any, given: Given, y: Any) -> Any:
    """The mean square of a product of what the heads (batch, heads, time, features) found."""
    batch, heads, time, features = y.shape
    width = heads * features
    y = y.transpose(1, 2).reshape(batch, time, width)
    return (ops.widen(F.linear(y, given.parameter("leave", width, width))) ** 2).mean()


@program(batch=(16, 1, 1), time=(1024, 512, 64), width=(512, 256, 32), heads=(8, 4, 2), window=(128, 64, 16))
def local_attention(
    ops: Library, F: Any, given: Given, batch: int, time: int, width: int, heads: int, window: int
) -> Any:
    """Attention to a window of the past, with relative biases."""
    x = given.values("sequence", batch, time, width)
    q, k, v = heads_of(F, given, x, heads)
    at = ops.arange(time)
    distance = at.reshape(-1, 1) - at.reshape(1, -1)
    is_seen = (distance >= 0) & (distance < window)
    bias = given.parameter("biases", heads, window)[:, distance.clamp(0, window - 1)]
    scores = ops.widen(q @ k.transpose(-1, -2)) / math.sqrt(width // heads) + ops.widen(bias)
    scores = ops.where(is_seen, scores, ops.full((1,), -1e9, dtype=ops.wide))
    return loss_of_heads(ops, F, given, ops.softmax(scores, -1).to(x.dtype) @ v)


@program(batch=(16, 1, 1), time=(4096, 1024, 128), width=(512, 256, 32), heads=(8, 4, 2))
def linear_attention(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, heads: int) -> Any:
    """Linear attention: positive features of queries and keys instead of a softmax."""
    x = given.values("sequence", batch, time, width)
    q, k, v = heads_of(F, given, x, heads)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = ops.einsum("bhnd,bhne->bhde", k, v)
    scale = 1 / (ops.widen(ops.einsum("bhnd,bhd->bhn", q, k.sum(2))) + 1e-6)
    return loss_of_heads(ops, F, given, ops.einsum("bhnd,bhde->bhne", q, state) * scale.unsqueeze(-1).to(x.dtype))


@program(batch=(16, 1, 1), time=(1024, 256, 32), width=(512, 256, 32), heads=(8, 4, 2))
def rotary_alibi(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, heads: int) -> Any:
    """Causal attention with rotary positions and ALiBi biases."""
    features = width // heads
    x = given.values("sequence", batch, time, width)
    q, k, v = heads_of(F, given, F.rms_norm(x, (width,)), heads)
    rates = 10000.0 ** (-ops.widen(ops.arange(features // 2)) / (features // 2))
    angles = ops.widen(ops.arange(time)).reshape(-1, 1) * rates.reshape(1, -1)
    cosine, sine = ops.cos(angles), ops.sin(angles)

    def rotate(tensor: Any) -> Any:
        even, odd = ops.widen(tensor)[..., 0::2], ops.widen(tensor)[..., 1::2]
        pairs = ops.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
        return pairs.reshape(batch, heads, time, features).to(x.dtype)

    at = ops.arange(time)
    slopes = (2.0 ** (-ops.widen(ops.arange(heads)))).reshape(heads, 1, 1)
    bias = -slopes * ops.widen(at.reshape(-1, 1) - at.reshape(1, -1))
    mask = ops.where(at.reshape(-1, 1) >= at.reshape(1, -1), bias, bias * 0 - 1e9).to(x.dtype).unsqueeze(0)
    return loss_of_heads(ops, F, given, F.scaled_dot_product_attention(rotate(q), rotate(k), v, attn_mask=mask))


@program(batch=(8, 1, 1), side=(64, 32, 8), width=(128, 64, 16), heads=(4, 4, 2))
def axial_attention(ops: Library, F: Any, given: Given, batch: int, side: int, width: int, heads: int) -> Any:
    """Axial attention: along the rows of an image, then along its columns."""
    x = given.values("images", batch, side, side, width)
    # Rows or columns, heads, and the axis of attention; and back.
    for layer, (there, back) in enumerate((((0, 1, 3, 2, 4), (0, 1, 3, 2, 4)), ((0, 2, 3, 1, 4), (0, 3, 1, 2, 4)))):
        parts = F.linear(F.layer_norm(x, (width,)), given.parameter(f"enter{layer}", 3 * width, width))
        parts = parts.reshape(batch, side, side, 3, heads, width // heads)
        q, k, v = (parts[:, :, :, number].permute(*there) for number in range(3))
        y = F.scaled_dot_product_attention(q, k, v).permute(*back).reshape(batch, side, side, width)
        x = x + F.linear(y, given.parameter(f"leave{layer}", width, width))
    return (ops.widen(x) ** 2).mean()


@program(batch=(32, 2, 2), time=(2048, 256, 32), width=(256, 128, 16))
def retention(ops: Library, F: Any, given: Given, batch: int, time: int, width: int) -> Any:
    """Retention: decayed attention without a softmax, in chunks."""
    heads, chunk = 4, min(128, time // 2)
    chunks, features = time // chunk, width // heads
    x = given.values("sequence", batch, time, width)
    parts = F.linear(x, given.parameter("enter", 3 * width, width)).reshape(batch, chunks, chunk, 3, heads, features)
    parts = parts.permute(3, 0, 1, 4, 2, 5)
    q, k, v = parts[0], parts[1], parts[2]
    decay = (1 - 2.0 ** (-5 - ops.widen(ops.arange(heads)))).reshape(-1, 1, 1)
    at = ops.widen(ops.arange(chunk))
    distance = at.reshape(-1, 1) - at.reshape(1, -1)
    weights = ops.where(distance >= 0, decay ** distance.clamp(min=0), distance * 0)
    inner = (ops.widen(q @ k.transpose(-1, -2)) * weights).to(x.dtype) @ v
    left = (decay ** (chunk - 1 - at).reshape(1, -1, 1)).to(x.dtype)
    added = (k * left).transpose(-1, -2) @ v
    state, states = added[:, 0] * 0, []
    for number in range(chunks):
        states.append(state)
        state = state * (decay**chunk).to(x.dtype) + added[:, number]
    passed = (decay ** (at + 1).reshape(1, -1, 1)).to(x.dtype)
    y = inner + (q * passed) @ ops.stack(states, 1)
    y = ops.widen(y.permute(0, 1, 3, 2, 4).reshape(batch, time, heads, features))
    y = (y * ops.rsqrt((y**2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return (ops.widen(F.linear(y.reshape(batch, time, width), given.parameter("leave", width, width))) ** 2).mean()


@program(objects=(256, 64, 16), width=(128, 32, 8))
def triangle_update(ops: Library, F: Any, given: Given, objects: int, width: int) -> Any:
    """AlphaFold's triangle update: a pair of objects is changed by all pairs that share one of them."""

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, given.parameter(name, width, width))

    pairs = given.values("pairs", objects, objects, width)
    normed = F.layer_norm(pairs, (width,))
    left = ops.sigmoid(linear(normed, "left_gate")) * linear(normed, "left")
    right = ops.sigmoid(linear(normed, "right_gate")) * linear(normed, "right")
    outgoing = ops.einsum("ikd,jkd->ijd", left, right)
    outgoing = linear(F.layer_norm(outgoing, (width,)), "leave") * ops.sigmoid(linear(normed, "gate"))
    incoming = ops.einsum("kid,kjd->ijd", left, right)
    return (ops.widen(pairs + outgoing) ** 2).mean() + (ops.widen(incoming) ** 2).mean()


@program(batch=(64, 4, 2), side=(32, 16, 8), width=(128, 128, 16))
def gmlp(ops: Library, F: Any, given: Given, batch: int, side: int, width: int) -> Any:
    """gMLP: gates that are mixed over all positions."""
    positions = side * side
    x = given.values("patches", batch, positions, width)
    for layer in range(2):
        y = F.gelu(F.linear(F.layer_norm(x, (width,)), given.parameter(f"enter{layer}", 4 * width, width)))
        values, gate = y.chunk(2, -1)
        mixing = given.parameter(f"mix{layer}", positions, positions)
        gate = ops.einsum("ij,bjc->bic", mixing, F.layer_norm(gate, (2 * width,)))
        gate = gate + given.parameter(f"mix_bias{layer}", positions, 1)
        x = x + F.linear(values * gate, given.parameter(f"leave{layer}", width, 2 * width))
    return (ops.widen(x) ** 2).mean()


@program(batch=(8, 1, 2), time=(1024, 128, 32), width=(1024, 512, 64), rank=(16, 8, 4))
def lora(ops: Library, F: Any, given: Given, batch: int, time: int, width: int, rank: int) -> Any:
    """LoRA: frozen layers with trained products of low rank beside them."""

    def adapted(x: Any, name: str, entering: int, leaving: int) -> Any:
        frozen = given.values(f"{name}.frozen", leaving, entering) * 0.03
        inner = F.linear(x, given.parameter(f"{name}.down", rank, entering))
        return F.linear(x, frozen) + F.linear(inner, given.parameter(f"{name}.up", leaving, rank))

    x = given.values("sequence", batch, time, width)
    for layer in range(4):
        hidden = F.silu(adapted(x, f"enter{layer}", width, 4 * width))
        x = F.rms_norm(x + adapted(hidden, f"leave{layer}", 4 * width, width), (width,))
    return (ops.widen(x) ** 2 * ops.widen(given.values("weights", width))).mean()
