"""Networks that are written once and run in tilewright and in torch. In: a `Kit`, which names a library's layers and
the few functions that the two spell differently, and sizes. Out: a model of that library, whose tensors have the same
names in both. `bench/networks.py` measures them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Sizes = dict[str, int]


@dataclass(frozen=True)
class Kit:
    """What a model needs of a library. `attention(q, k, v, causal, mask)` shares heads of k and v among those of q; the
    mask, where there is one, is added to the scores. `integers` makes a tensor of an array."""

    nn: Any
    gelu: Callable[[Any], Any]
    silu: Callable[[Any], Any]
    attention: Callable[..., Any]
    concatenate: Callable[[list[Any], int], Any]
    zeros: Callable[..., Any]
    integers: Callable[[Any], Any]


def our_kit() -> Kit:
    from tilewright import Tensor, nn

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None) -> Tensor:
        return q.scaled_dot_product_attention(k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)

    def concatenate(parts: list[Tensor], axis: int) -> Tensor:
        return Tensor.cat(*parts, dim=axis)

    def integers(array: Any) -> Tensor:
        return Tensor(array.astype("int32"))

    return Kit(nn, Tensor.gelu, Tensor.silu, attention, concatenate, Tensor.zeros, integers)


def torch_kit() -> Kit:
    import torch

    functional = torch.nn.functional

    def attention(q: Any, k: Any, v: Any, causal: bool, mask: Any = None) -> Any:
        shares = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=shares)

    def gelu(x: Any) -> Any:
        return functional.gelu(x, approximate="tanh")

    def integers(array: Any) -> Any:
        return torch.tensor(array)

    return Kit(torch.nn, gelu, functional.silu, attention, torch.cat, torch.zeros, integers)


# ---------------------------------------------------------------- transformers


def attention_layer(kit: Kit, width: int, heads: int, causal: bool) -> Any:
    """Attention over (batch, time, width) with one product for queries, keys and values."""
    nn = kit.nn

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.entering = nn.Linear(width, 3 * width)
            self.leaving = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, time = x.shape[:2]
            parts = self.entering(x).reshape(batch, time, 3, heads, width // heads)
            q, k, v = (parts[:, :, number].transpose(1, 2) for number in range(3))
            found = kit.attention(q, k, v, causal)
            return self.leaving(found.transpose(1, 2).reshape(batch, time, width))

    return Attention()


def gelu_layers(kit: Kit, width: int, hidden: int) -> Any:
    """Two products with gelu between them."""
    nn = kit.nn

    class Perceptron(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.entering = nn.Linear(width, hidden)
            self.leaving = nn.Linear(hidden, width)

        def forward(self, x: Any) -> Any:
            return self.leaving(kit.gelu(self.entering(x)))

    return Perceptron()


def transformer_block(kit: Kit, width: int, heads: int, causal: bool) -> Any:
    nn = kit.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_attention = nn.LayerNorm(width)
            self.attention = attention_layer(kit, width, heads, causal)
            self.norm_perceptron = nn.LayerNorm(width)
            self.perceptron = gelu_layers(kit, width, 4 * width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm_attention(x))
            return x + self.perceptron(self.norm_perceptron(x))

    return Block()


def gpt2(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time) to logits (batch * time, vocabulary); the table of tokens is the last product's weight."""
    nn, width, time = kit.nn, sizes["width"], sizes["time"]

    class GPT2(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.positions = nn.Embedding(time, width)
            blocks = [transformer_block(kit, width, sizes["heads"], True) for _ in range(sizes["layers"])]
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x).reshape(-1, width) @ self.tokens.weight.transpose(0, 1)

    return GPT2()


def vit(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits (batch, classes), by the token of the class."""
    nn, width, patch = kit.nn, sizes["width"], sizes["patch"]
    count = (sizes["side"] // patch) ** 2 + 1

    class ViT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, stride=patch)
            self.first = nn.Embedding(1, width)
            self.positions = nn.Embedding(count, width)
            blocks = [transformer_block(kit, width, sizes["heads"], False) for _ in range(sizes["layers"])]
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, sizes["classes"])

        def forward(self, images: Any) -> Any:
            patches = self.patches(images).flatten(2).transpose(1, 2)
            first = self.first.weight.reshape(1, 1, width).expand(images.shape[0], 1, width)
            x = kit.concatenate([first, patches], 1) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    return ViT()


def mixer(kit: Kit, sizes: Sizes) -> Any:
    """Images to logits by products over the patches and over the channels in turn."""
    nn, width, patch = kit.nn, sizes["width"], sizes["patch"]
    count = (sizes["side"] // patch) ** 2

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_patches = nn.LayerNorm(width)
            self.patches = gelu_layers(kit, count, width // 2)
            self.norm_channels = nn.LayerNorm(width)
            self.channels = gelu_layers(kit, width, 4 * width)

        def forward(self, x: Any) -> Any:
            x = x + self.patches(self.norm_patches(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm_channels(x))

    class Mixer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, width, patch, stride=patch)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, sizes["classes"])

        def forward(self, images: Any) -> Any:
            x = self.stem(images).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x).mean(1))

    return Mixer()


def llama(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time) to the logits of the last one. The tokens stand at the end of `context` positions, of which
    the keys and values of the earlier ones are in a cache: all but one when decoding, none in a prefill."""
    nn, width, heads, shared = kit.nn, sizes["width"], sizes["heads"], sizes["key_heads"]
    size, time, context, batch = width // sizes["heads"], sizes["time"], sizes["context"], sizes["batch"]
    first = context - time

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_attention = nn.RMSNorm(width, eps=1e-5)
            self.queries = nn.Linear(width, width, bias=False)
            self.keys = nn.Linear(width, shared * size, bias=False)
            self.values = nn.Linear(width, shared * size, bias=False)
            self.leaving = nn.Linear(width, width, bias=False)
            self.norm_gates = nn.RMSNorm(width, eps=1e-5)
            self.gate = nn.Linear(width, sizes["hidden"], bias=False)
            self.up = nn.Linear(width, sizes["hidden"], bias=False)
            self.down = nn.Linear(sizes["hidden"], width, bias=False)
            if first:
                self.register_buffer("old_keys", kit.zeros(batch, shared, context, size))
                self.register_buffer("old_values", kit.zeros(batch, shared, context, size))

        def heads_of(self, x: Any, count: int) -> Any:
            return x.reshape(batch, time, count, size).transpose(1, 2)

        def forward(self, x: Any, cosines: Any, sines: Any) -> Any:
            normal = self.norm_attention(x)
            q = rotated(kit, self.heads_of(self.queries(normal), heads), cosines, sines)
            k = rotated(kit, self.heads_of(self.keys(normal), shared), cosines, sines)
            v = self.heads_of(self.values(normal), shared)
            if first:
                self.old_keys[:, :, first:] = k
                self.old_values[:, :, first:] = v
                k, v = self.old_keys, self.old_values
            found = kit.attention(q, k, v, time > 1)
            x = x + self.leaving(found.transpose(1, 2).reshape(batch, time, width))
            normal = self.norm_gates(x)
            return x + self.down(kit.silu(self.gate(normal)) * self.up(normal))

    class Llama(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.blocks = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.norm = nn.RMSNorm(width, eps=1e-5)
            self.register_buffer("cosines", kit.zeros(context, size // 2))
            self.register_buffer("sines", kit.zeros(context, size // 2))

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens)
            for block in self.blocks:
                x = block(x, self.cosines[first:], self.sines[first:])
            return self.norm(x[:, -1]) @ self.tokens.weight.transpose(0, 1)

    return Llama()


def rotated(kit: Kit, x: Any, cosines: Any, sines: Any) -> Any:
    """(batch, heads, time, size) turned by the angles of its positions, the halves of a head being the two axes."""
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return kit.concatenate([left * cosines - right * sines, right * cosines + left * sines], -1)


def rotation_angles(context: int, half: int) -> list[list[float]]:
    return [
        [position * math.exp(-math.log(500000.0) * number / half) for number in range(half)]
        for position in range(context)
    ]


# ---------------------------------------------------------------- convolutions


def resnet50(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits. `base` is the width of the first stage, 64 in ResNet-50."""
    nn = kit.nn

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, width: int, stride: int) -> None:
            super().__init__()
            leaving = 4 * width
            self.conv1 = nn.Conv2d(entering, width, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, leaving, 1, bias=False)
            self.norm3 = nn.BatchNorm2d(leaving)
            self.changes_shape = stride != 1 or entering != leaving
            if self.changes_shape:
                self.shortcut = nn.Conv2d(entering, leaving, 1, stride=stride, bias=False)
                self.norm_shortcut = nn.BatchNorm2d(leaving)

        def forward(self, x: Any) -> Any:
            y = self.norm1(self.conv1(x)).relu()
            y = self.norm2(self.conv2(y)).relu()
            y = self.norm3(self.conv3(y))
            return (y + (self.norm_shortcut(self.shortcut(x)) if self.changes_shape else x)).relu()

    class ResNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            width = sizes["base"]
            self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            blocks, entering = [], width
            for stage, count in enumerate((3, 4, 6, 3)):
                for number in range(count if sizes["deep"] else 1):
                    blocks.append(Bottleneck(entering, width << stage, 2 if stage and not number else 1))
                    entering = 4 * width << stage
            self.blocks = nn.ModuleList(blocks)
            self.head = nn.Linear(entering, sizes["classes"])

        def forward(self, images: Any) -> Any:
            x = self.pool(self.norm(self.stem(images)).relu())
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((2, 3)))

    return ResNet()


def unet(kit: Kit, sizes: Sizes) -> Any:
    """Images to the logits of each pixel, (batch, classes, side, side)."""
    nn = kit.nn

    class Pair(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, leaving: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(leaving)
            self.conv2 = nn.Conv2d(leaving, leaving, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(leaving)

        def forward(self, x: Any) -> Any:
            return self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())).relu()

    class UNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            widths = [sizes["base"] << level for level in range(sizes["levels"])]
            self.pool = nn.MaxPool2d(kernel_size=2)
            self.down = nn.ModuleList([Pair(a, b) for a, b in zip([3, *widths[:-1]], widths)])
            rising = list(zip(widths[:0:-1], widths[-2::-1]))
            self.grow = nn.ModuleList([nn.ConvTranspose2d(wide, narrow, 2, stride=2) for wide, narrow in rising])
            self.up = nn.ModuleList([Pair(2 * narrow, narrow) for _, narrow in rising])
            self.head = nn.Conv2d(widths[0], sizes["classes"], 1)

        def forward(self, images: Any) -> Any:
            x, kept = images, []
            for number, pair in enumerate(self.down):
                x = pair(self.pool(x) if number else x)
                kept.append(x)
            for grow, pair, skip in zip(self.grow, self.up, kept[-2::-1]):
                x = pair(kit.concatenate([grow(x), skip], 1))
            return self.head(x)

    return UNet()


def mnist(kit: Kit, sizes: Sizes) -> Any:
    """The network of examples/mnist.py, its widths divided by `shrink`."""
    nn = kit.nn
    narrow, wide = 32 // sizes["shrink"], 64 // sizes["shrink"]
    layers = [nn.Conv2d(1, narrow, 5), nn.ReLU(), nn.Conv2d(narrow, narrow, 5), nn.ReLU(), nn.BatchNorm2d(narrow)]
    layers += [nn.MaxPool2d(kernel_size=2), nn.Conv2d(narrow, wide, 3), nn.ReLU(), nn.Conv2d(wide, wide, 3), nn.ReLU()]
    layers += [nn.BatchNorm2d(wide), nn.MaxPool2d(kernel_size=2), nn.Flatten(), nn.Linear(9 * wide, 10)]
    return nn.Sequential(*layers)


# ---------------------------------------------------------------- recurrent


def lstm(kit: Kit, sizes: Sizes) -> Any:
    """Tokens (batch, time) to logits (batch * time, vocabulary)."""
    nn, width = kit.nn, sizes["width"]

    class Language(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], width)
            self.recurrent = nn.LSTM(width, width, num_layers=sizes["layers"], batch_first=True)
            self.head = nn.Linear(width, sizes["vocabulary"])

        def forward(self, tokens: Any) -> Any:
            found, _ = self.recurrent(self.tokens(tokens))
            return self.head(found.reshape(-1, width))

    return Language()
