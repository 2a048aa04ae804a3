"""Networks that make pictures or read them in windows, for `bench/networks.py`. In: a `Kit` and sizes. Out: a model of
that library, as in `bench/models.py`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from bench.image_models import normalised
from bench.models import Kit, Sizes, gelu_layers


def dcgan(kit: Kit, sizes: Sizes) -> Any:
    """Pictures (batch, 3, side, side) to two scores each, of the picture and of one made from noise. Side is 4 times a
    power of two, which is how often the generator doubles it and the discriminator halves it."""
    nn, base, latent = kit.nn, sizes["base"], sizes["latent"]
    levels = int(math.log2(sizes["side"] // 4))
    widths = [base << level for level in range(levels)]

    def generator() -> Any:
        layers = [nn.ConvTranspose2d(latent, widths[-1], 4, bias=False), nn.BatchNorm2d(widths[-1]), nn.ReLU()]
        for wide, narrow in zip(widths[:0:-1], widths[-2::-1]):
            layers += [nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(narrow), nn.ReLU()]
        return nn.Sequential(*layers, nn.ConvTranspose2d(base, 3, 4, stride=2, padding=1, bias=False), nn.Tanh())

    def discriminator() -> Any:
        layers = [nn.Conv2d(3, base, 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2)]
        for narrow, wide in pairwise(widths):
            layers += [nn.Conv2d(narrow, wide, 4, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(wide), nn.LeakyReLU(0.2)]
        return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, bias=False), nn.Flatten())

    class Adversaries(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.generator = generator()
            self.discriminator = discriminator()
            self.register_buffer("noise", kit.zeros(sizes["batch"], latent, 1, 1))

        def forward(self, pictures: Any) -> Any:
            made = self.generator(self.noise)
            return kit.concatenate([self.discriminator(pictures), self.discriminator(made)], 1)

    return Adversaries()


def diffusion(kit: Kit, sizes: Sizes) -> Any:
    """Noisy pictures (batch, 3, side, side) to what is predicted of each pixel. Blocks know the time of their picture;
    the lowest levels have attention over all pixels."""
    nn, base, groups = kit.nn, sizes["base"], sizes["groups"]
    widths = [base << level for level in range(sizes["levels"])]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, leaving: int) -> None:
            super().__init__()
            self.norm1 = nn.GroupNorm(groups, entering)
            self.conv1 = nn.Conv2d(entering, leaving, 3, padding=1)
            self.time = nn.Linear(4 * base, leaving)
            self.norm2 = nn.GroupNorm(groups, leaving)
            self.conv2 = nn.Conv2d(leaving, leaving, 3, padding=1)
            self.shortcut = nn.Conv2d(entering, leaving, 1) if entering != leaving else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            y = self.conv1(kit.silu(self.norm1(x)))
            y = y + self.time(time).unsqueeze(2).unsqueeze(3)
            return self.shortcut(x) + self.conv2(kit.silu(self.norm2(y)))

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(groups, width)
            self.entering = nn.Conv2d(width, 3 * width, 1)
            self.leaving = nn.Conv2d(width, width, 1)

        def forward(self, x: Any) -> Any:
            batch, width, high, wide = x.shape
            parts = self.entering(self.norm(x)).reshape(batch, 3, sizes["heads"], width // sizes["heads"], high * wide)
            q, k, v = (parts[:, number].transpose(2, 3) for number in range(3))
            found = kit.attention(q, k, v, False).transpose(2, 3).reshape(batch, width, high, wide)
            return x + self.leaving(found)

    class Diffusion(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("times", kit.zeros(sizes["batch"], 1))
            self.register_buffer("frequencies", kit.zeros(1, base // 2))
            self.time1 = nn.Linear(base, 4 * base)
            self.time2 = nn.Linear(4 * base, 4 * base)
            self.stem = nn.Conv2d(3, base, 3, padding=1)
            down = list(zip([base, *widths[:-1]], widths))
            self.down = nn.ModuleList([Block(entering, leaving) for entering, leaving in down])
            self.halve = nn.ModuleList([nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths[:-1]])
            self.middle1 = Block(widths[-1], widths[-1])
            self.attention = Attention(widths[-1])
            self.middle2 = Block(widths[-1], widths[-1])
            self.up = nn.ModuleList([Block(2 * leaving, entering) for entering, leaving in reversed(down)])
            self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
            self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for width in widths[-2::-1]])
            self.norm = nn.GroupNorm(groups, base)
            self.head = nn.Conv2d(base, sizes["classes"], 3, padding=1)

        def forward(self, pictures: Any) -> Any:
            angles = 100 * self.times * self.frequencies
            time = self.time1(kit.concatenate([angles.sin(), angles.cos()], 1))
            time = kit.silu(self.time2(kit.silu(time)))
            x, kept = self.stem(pictures), []
            for number, block in enumerate(self.down):
                x = block(self.halve[number - 1](x) if number else x, time)
                kept.append(x)
            x = self.middle2(self.attention(self.middle1(x, time)), time)
            for number, block in enumerate(self.up):
                x = self.smooth[number - 1](self.enlarge(x)) if number else x
                x = block(kit.concatenate([x, kept.pop()], 1), time)
            return self.head(kit.silu(self.norm(x)))

    return Diffusion()


def swin(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits: attention inside windows, which every other block shifts by half of
    one; scores have a trained bias by relative position. Four patches are merged into one between stages."""
    nn, base, window, size = kit.nn, sizes["base"], sizes["window"], sizes["head"]

    def split(x: Any) -> Any:
        """(batch, high, wide, ...) as (batch, windows, places, ...)."""
        batch, high, wide = x.shape[:3]
        x = x.reshape(batch, high // window, window, wide // window, window, -1)
        return x.transpose(2, 3).reshape(batch, (high // window) * (wide // window), window * window, -1)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int, side: int, shift: int) -> None:
            super().__init__()
            self.heads, self.shift = width // size, shift
            self.norm_attention = nn.LayerNorm(width)
            self.entering = nn.Linear(width, 3 * width)
            self.bias = nn.Embedding((2 * window - 1) ** 2, self.heads)
            self.leaving = nn.Linear(width, width)
            self.norm_perceptron = nn.LayerNorm(width)
            self.perceptron = gelu_layers(kit, width, 4 * width)
            places = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
            apart = places[:, :, None] - places[:, None] + window - 1
            self.register_buffer("apart", kit.integers(apart[0] * (2 * window - 1) + apart[1]))
            # Of places that the shift brought together from two sides of the image neither attends to the other.
            region = np.digitize(np.arange(side), [side - window, side - window // 2])
            self.register_buffer("regions", kit.integers(3 * region[:, None] + region))

        def attention(self, x: Any) -> Any:
            batch, windows, count, width = x.shape
            parts = self.entering(x).reshape(batch, windows, count, 3, self.heads, size).permute(3, 0, 1, 4, 2, 5)
            scores = (parts[0] * size**-0.5) @ parts[1].transpose(3, 4)
            scores = scores + self.bias(self.apart).permute(2, 0, 1)
            if self.shift:
                regions = split(self.regions.unsqueeze(0)).reshape(windows, 1, count)
                is_apart = regions != regions.transpose(1, 2)
                scores = scores + (is_apart.type_as(x) * -100.0).unsqueeze(1)
            found = scores.softmax(-1) @ parts[2]
            return self.leaving(found.transpose(2, 3).reshape(batch, windows, count, width))

        def forward(self, x: Any) -> Any:
            batch, high, wide, width = x.shape
            y = self.norm_attention(x)
            y = self.attention(split(y.roll((-self.shift, -self.shift), (1, 2)) if self.shift else y))
            y = y.reshape(batch, high // window, wide // window, window, window, width).transpose(2, 3)
            y = y.reshape(batch, high, wide, width)
            x = x + (y.roll((self.shift, self.shift), (1, 2)) if self.shift else y)
            return x + self.perceptron(self.norm_perceptron(x))

    class Merge(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4 * width)
            self.leaving = nn.Linear(4 * width, 2 * width, bias=False)

        def forward(self, x: Any) -> Any:
            parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            return self.leaving(self.norm(kit.concatenate(parts, 3)))

    class Swin(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, base, 4, stride=4)
            self.norm_stem = nn.LayerNorm(base)
            layers = []
            for stage, count in enumerate((2, 2, 6, 2)[: sizes["stages"]]):
                width, side = base << stage, sizes["side"] // 4 >> stage
                layers += [Merge(width // 2)] if stage else []
                # One window for the whole image is not shifted.
                shift = window // 2 if side > window else 0
                layers += [Block(width, side, shift * (number % 2)) for number in range(count)]
            self.layers = nn.Sequential(*layers)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, sizes["classes"])

        def forward(self, images: Any) -> Any:
            x = self.layers(self.norm_stem(self.stem(images).permute(0, 2, 3, 1)))
            return self.head(self.norm(x).mean((1, 2)))

    return Swin()


# Of EfficientNet-B0's stages: how much wider the middle of a block is, channels, blocks, stride and size of a window.
_EFFICIENT_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits: EfficientNet-B0 with its channels divided by `shrink`."""
    nn, shrink = kit.nn, sizes["shrink"]

    class Excite(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int, narrow: int) -> None:
            super().__init__()
            self.entering = nn.Conv2d(width, narrow, 1)
            self.leaving = nn.Conv2d(narrow, width, 1)

        def forward(self, x: Any) -> Any:
            return x * self.leaving(kit.silu(self.entering(x.mean((2, 3), keepdim=True)))).sigmoid()

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, leaving: int, wider: int, stride: int, size: int) -> None:
            super().__init__()
            width = wider * entering
            layers = [*normalised(nn, entering, width, 1), nn.SiLU()] if wider > 1 else []
            layers += [
                *normalised(nn, width, width, size, stride, width),
                nn.SiLU(),
                Excite(width, max(1, entering // 4)),
            ]
            self.layers = nn.Sequential(*layers, *normalised(nn, width, leaving, 1))
            self.is_residual = stride == 1 and entering == leaving

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.is_residual else self.layers(x)

    class EfficientNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            width = 32 // shrink
            layers = [*normalised(nn, 3, width, 3, 2), nn.SiLU()]
            for wider, channels, count, stride, size in _EFFICIENT_STAGES[: sizes["stages"]]:
                for number in range(count):
                    layers.append(Block(width, channels // shrink, wider, 1 if number else stride, size))
                    width = channels // shrink
            self.features = nn.Sequential(*layers, *normalised(nn, width, 1280 // shrink, 1), nn.SiLU())
            self.head = nn.Linear(1280 // shrink, sizes["classes"])

        def forward(self, images: Any) -> Any:
            return self.head(self.features(images).mean((2, 3)))

    return EfficientNet()
