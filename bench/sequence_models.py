"""Networks of sequences beyond those of `bench/models.py`, for `bench/networks.py`: encoders, mixtures of experts,
dilated convolutions, recurrences with attention, speech. In: a `Kit` and sizes. Out: a model of that library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.models import Kit, Sizes, gelu_layers


def heads_of(x: Any, heads: int) -> Any:
    """(batch, time, width) as (batch, heads, time, width / heads)."""
    batch, time, width = x.shape
    return x.reshape(batch, time, heads, width // heads).transpose(1, 2)


def without_heads(x: Any) -> Any:
    batch, heads, time, size = x.shape
    return x.transpose(1, 2).reshape(batch, time, heads * size)


def bert(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time) to the logits of the masked ones, every eighth. Tokens under `padding` are padding, which no
    other attends to. Normalisation follows the residual sum."""
    nn, width, heads, time, batch = kit.nn, sizes["width"], sizes["heads"], sizes["time"], sizes["batch"]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Linear(width, width)
            self.keys = nn.Linear(width, width)
            self.values = nn.Linear(width, width)
            self.leaving = nn.Linear(width, width)
            self.norm_attention = nn.LayerNorm(width)
            self.perceptron = gelu_layers(kit, width, 4 * width)
            self.norm_perceptron = nn.LayerNorm(width)

        def forward(self, x: Any, mask: Any) -> Any:
            q, k, v = (heads_of(layer(x), heads) for layer in (self.queries, self.keys, self.values))
            x = self.norm_attention(x + self.leaving(without_heads(kit.attention(q, k, v, False, mask))))
            return self.norm_perceptron(x + self.perceptron(x))

    class Bert(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.positions = nn.Embedding(time, width)
            self.norm = nn.LayerNorm(width)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.head = nn.Linear(width, width)
            self.norm_head = nn.LayerNorm(width)
            self.register_buffer("masked", kit.integers(np.arange(0, batch * time, 8)))

        def forward(self, tokens: Any) -> Any:
            x = self.norm(self.tokens(tokens) + self.positions.weight)
            mask = ((tokens < sizes["padding"]).type_as(x) * -1e4).reshape(batch, 1, 1, time)
            for block in self.blocks:
                x = block(x, mask)
            found = x.reshape(-1, width)[self.masked]
            return self.norm_head(kit.gelu(self.head(found))) @ self.tokens.weight.transpose(0, 1)

    return Bert()


def t5(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time), of which an encoder reads the first half and a decoder the second: logits of the second.
    Scores have a trained bias by relative position, which all layers share; the hidden layers are gated."""
    nn, width, heads, hidden = kit.nn, sizes["width"], sizes["heads"], sizes["hidden"]
    half, buckets = sizes["time"] // 2, sizes["buckets"]

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Linear(width, width, bias=False)
            self.keys = nn.Linear(width, width, bias=False)
            self.values = nn.Linear(width, width, bias=False)
            self.leaving = nn.Linear(width, width, bias=False)

        def forward(self, x: Any, read: Any, bias: Any) -> Any:
            q, k, v = heads_of(self.queries(x), heads), heads_of(self.keys(read), heads), self.values(read)
            scores = q @ k.transpose(2, 3)
            scores = scores if bias is None else scores + bias
            shares = scores.float().softmax(-1).type_as(x)
            return self.leaving(without_heads(shares @ heads_of(v, heads)))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, crosses: bool) -> None:
            super().__init__()
            self.norm_attention = nn.RMSNorm(width, eps=1e-6)
            self.attention = Attention()
            self.crosses = crosses
            if crosses:
                self.norm_crossing = nn.RMSNorm(width, eps=1e-6)
                self.crossing = Attention()
            self.norm_gates = nn.RMSNorm(width, eps=1e-6)
            self.gate = nn.Linear(width, hidden, bias=False)
            self.up = nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any, read: Any, bias: Any) -> Any:
            normal = self.norm_attention(x)
            x = x + self.attention(normal, normal, bias)
            if self.crosses:
                x = x + self.crossing(self.norm_crossing(x), read, None)
            normal = self.norm_gates(x)
            return x + self.down(kit.gelu(self.gate(normal)) * self.up(normal))

    class T5(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.bias_encoder = nn.Embedding(buckets, heads)
            self.bias_decoder = nn.Embedding(buckets, heads)
            self.encoder = nn.ModuleList([Block(False) for _ in range(sizes["layers"])])
            self.decoder = nn.ModuleList([Block(True) for _ in range(sizes["layers"])])
            self.norm_encoder = nn.RMSNorm(width, eps=1e-6)
            self.norm_decoder = nn.RMSNorm(width, eps=1e-6)
            self.head = nn.Linear(width, sizes["vocabulary"], bias=False)
            distance = np.arange(half)[:, None] - np.arange(half)
            self.register_buffer("buckets_both", kit.integers(bucket_of(distance, buckets)))
            self.register_buffer("buckets_past", kit.integers(bucket_of(distance.clip(0), buckets)))
            self.register_buffer("later", kit.integers(np.array(distance < 0, np.int64)))

        def forward(self, tokens: Any) -> Any:
            read = self.tokens(tokens[:, :half])
            bias = self.bias_encoder(self.buckets_both).permute(2, 0, 1)
            for block in self.encoder:
                read = block(read, None, bias)
            read = self.norm_encoder(read)
            x = self.tokens(tokens[:, half:])
            bias = self.bias_decoder(self.buckets_past).permute(2, 0, 1) + self.later.type_as(x) * -1e4
            for block in self.decoder:
                x = block(x, read, bias)
            return self.head(self.norm_decoder(x)).reshape(-1, sizes["vocabulary"])

    return T5()


def bucket_of(distance: Any, buckets: int) -> Any:
    """T5's: near distances have a bucket each, far ones share them by their logarithm; half are for later positions."""
    half, near = buckets // 2, buckets // 4
    length = np.abs(distance)
    far = near + np.log(np.maximum(length, 1) / near) / math.log(128 / near) * (half - near)
    found = np.where(length < near, length, np.minimum(far, half - 1))
    return (found + half * (distance < 0)).astype(np.int64)


def experts(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time) to logits (batch * time, vocabulary). Each token goes to two of the experts of a layer, each
    of which takes at most `capacity` of them, in their order."""
    nn, width, hidden, count = kit.nn, sizes["width"], sizes["hidden"], sizes["experts"]
    tokens_of_all, capacity = sizes["batch"] * sizes["time"], sizes["capacity"]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.router = nn.Linear(width, count, bias=False)
            self.entering = nn.Parameter(kit.zeros(count, width, hidden))
            self.leaving = nn.Parameter(kit.zeros(count, hidden, width))
            self.register_buffer("numbers", kit.integers(np.arange(count)))

        def forward(self, x: Any) -> Any:
            normal = self.norm(x)
            shares, chosen = self.router(normal).softmax(-1).topk(2, -1)
            chosen = chosen.reshape(-1, 1)
            is_chosen = (chosen == self.numbers).int()
            place = ((is_chosen.cumsum(0) - 1) * is_chosen).sum(1)
            # What an expert has no place for goes to a row after all of them, which nothing computes.
            is_taken = place < capacity
            row = (chosen.reshape(-1) * capacity + place) * is_taken.int() + count * capacity * (~is_taken).int()
            twice = normal.reshape(tokens_of_all, 1, width).expand(tokens_of_all, 2, width).reshape(-1, width)
            # Rows have one token each, but for the last one.
            placed = (twice[:1] * 0).expand(count * capacity + 1, width).index_add(0, row, twice)
            found = placed[: count * capacity].reshape(count, capacity, width) @ self.entering
            found = (kit.gelu(found) @ self.leaving).reshape(count * capacity, width)
            found = kit.concatenate([found, found[:1] * 0], 0)[row].reshape(tokens_of_all, 2, width)
            return x + (found * (shares / shares.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)

    class Experts(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, sizes["vocabulary"])

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens).reshape(tokens_of_all, width)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Experts()


def wavenet(kit: Kit, sizes: Sizes) -> Any:
    """Sounds as tokens (batch, time) to logits (batch * time, vocabulary): gated convolutions, dilations doubling."""
    nn, width, skip, time = kit.nn, sizes["width"], sizes["skip"], sizes["time"]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.gates = nn.Conv1d(width, 2 * width, 2, padding=dilation, dilation=dilation)
            self.leaving = nn.Conv1d(width, width, 1)
            self.skip = nn.Conv1d(width, skip, 1)

        def forward(self, x: Any) -> Any:
            value, gate = self.gates(x)[:, :, :time].chunk(2, 1)
            y = value.tanh() * gate.sigmoid()
            return x + self.leaving(y), self.skip(y)

    class WaveNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.blocks = nn.ModuleList([Block(1 << number % 8) for number in range(sizes["layers"])])
            self.hidden = nn.Conv1d(skip, skip, 1)
            self.head = nn.Conv1d(skip, sizes["vocabulary"], 1)

        def forward(self, tokens: Any) -> Any:
            x, total = self.tokens(tokens).transpose(1, 2), 0
            for block in self.blocks:
                x, skipped = block(x)
                total = total + skipped
            found = self.head(self.hidden(total.relu()).relu())
            return found.transpose(1, 2).reshape(-1, sizes["vocabulary"])

    return WaveNet()


def translator(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time): a GRU reads the first half in both directions, another one writes the second with attention
    to it at every step. Out: logits of the second half."""
    nn, width, half = kit.nn, sizes["width"], sizes["time"] // 2

    class Translator(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
            self.keys = nn.Linear(width, width)
            self.queries = nn.Linear(width, width)
            self.scores = nn.Linear(width, 1, bias=False)
            self.decoder = nn.GRUCell(2 * width, width)
            self.head = nn.Linear(2 * width, sizes["vocabulary"])

        def forward(self, tokens: Any) -> Any:
            read, _ = self.encoder(self.tokens(tokens[:, :half]))
            keys, given = self.keys(read), self.tokens(tokens[:, half:])
            state, found = read.mean(1), []
            for step in range(half):
                scores = self.scores((keys + self.queries(state).unsqueeze(1)).tanh())
                context = (scores.softmax(1) * read).sum(1)
                state = self.decoder(kit.concatenate([given[:, step], context], 1), state)
                found.append(kit.concatenate([state, context], 1).unsqueeze(1))
            return self.head(kit.concatenate(found, 1).reshape(-1, 2 * width))

    return Translator()


def conformer(kit: Kit, sizes: Sizes) -> Any:
    """Spectra (batch, time, features) to logits of a quarter as many frames, (batch * time / 4, classes)."""
    nn, width, heads, features = kit.nn, sizes["width"], sizes["heads"], sizes["features"]

    class Perceptron(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.entering = nn.Linear(width, 4 * width)
            self.leaving = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            return x + 0.5 * self.leaving(kit.silu(self.entering(self.norm(x))))

    class Convolution(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            size = sizes["window"]
            self.norm = nn.LayerNorm(width)
            self.entering = nn.Conv1d(width, 2 * width, 1)
            self.depthwise = nn.Conv1d(width, width, size, padding=size // 2, groups=width)
            self.norm_depthwise = nn.BatchNorm1d(width)
            self.leaving = nn.Conv1d(width, width, 1)

        def forward(self, x: Any) -> Any:
            value, gate = self.entering(self.norm(x).transpose(1, 2)).chunk(2, 1)
            y = kit.silu(self.norm_depthwise(self.depthwise(value * gate.sigmoid())))
            return x + self.leaving(y).transpose(1, 2)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = Perceptron()
            self.norm_attention = nn.LayerNorm(width)
            self.entering = nn.Linear(width, 3 * width)
            self.leaving = nn.Linear(width, width)
            self.convolution = Convolution()
            self.last = Perceptron()
            self.norm = nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            q, k, v = (heads_of(part, heads) for part in self.entering(self.norm_attention(x)).chunk(3, 2))
            x = x + self.leaving(without_heads(kit.attention(q, k, v, False)))
            return self.norm(self.last(self.convolution(x)))

    class Conformer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, width, 3, stride=2, padding=1)
            self.conv2 = nn.Conv2d(width, width, 3, stride=2, padding=1)
            self.entering = nn.Linear(width * features // 4, width)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.head = nn.Linear(width, sizes["classes"])

        def forward(self, spectra: Any) -> Any:
            x = self.conv2(self.conv1(spectra.unsqueeze(1)).relu()).relu()
            x = self.entering(x.transpose(1, 2).flatten(2))
            for block in self.blocks:
                x = block(x)
            return self.head(x).reshape(-1, sizes["classes"])

    return Conformer()
