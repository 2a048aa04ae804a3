"""Networks of images whose convolutions go channel by channel, for `bench/networks.py`. In: a `Kit` and sizes. Out: a
model of that library, as in `bench/models.py`."""

from __future__ import annotations

from typing import Any

from bench.models import Kit, Sizes

# Of MobileNetV2's stages: how much wider the middle of a block is, channels, blocks and the first one's stride.
_MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def normalised(nn: Any, entering: int, leaving: int, size: int, stride: int = 1, groups: int = 1) -> list[Any]:
    """A convolution and a normalisation of its batch."""
    convolution = nn.Conv2d(entering, leaving, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(leaving)]


def mobilenet(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits: MobileNetV2 with its channels divided by `shrink`."""
    nn, shrink = kit.nn, sizes["shrink"]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, entering: int, leaving: int, wider: int, stride: int) -> None:
            super().__init__()
            width = wider * entering
            layers = [*normalised(nn, entering, width, 1), nn.ReLU6()] if wider > 1 else []
            layers += [*normalised(nn, width, width, 3, stride, width), nn.ReLU6(), *normalised(nn, width, leaving, 1)]
            self.layers = nn.Sequential(*layers)
            self.is_residual = stride == 1 and entering == leaving

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.is_residual else self.layers(x)

    class MobileNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            width = 32 // shrink
            layers = [*normalised(nn, 3, width, 3, 2), nn.ReLU6()]
            for wider, channels, count, stride in _MOBILE_STAGES[: sizes["stages"]]:
                for number in range(count):
                    layers.append(Block(width, channels // shrink, wider, 1 if number else stride))
                    width = channels // shrink
            self.features = nn.Sequential(*layers, *normalised(nn, width, 1280 // shrink, 1), nn.ReLU6())
            self.head = nn.Linear(1280 // shrink, sizes["classes"])

        def forward(self, images: Any) -> Any:
            return self.head(self.features(images).mean((2, 3)))

    return MobileNet()


def convnext(kit: Kit, sizes: Sizes) -> Any:
    """Images (batch, 3, side, side) to logits: ConvNeXt with `base` channels in its first stage, 96 in ConvNeXt-T."""
    nn, base = kit.nn, sizes["base"]

    class ChannelNorm(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm = nn.LayerNorm(width)
            self.entering = nn.Linear(width, 4 * width)
            self.leaving = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            return x + self.leaving(kit.gelu(self.entering(y))).permute(0, 3, 1, 2)

    class ConvNext(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Conv2d(3, base, 4, stride=4), ChannelNorm(base)]
            for stage, count in enumerate((3, 3, 9, 3)[: sizes["stages"]]):
                width = base << stage
                if stage:
                    layers += [ChannelNorm(width // 2), nn.Conv2d(width // 2, width, 2, stride=2)]
                layers += [Block(width) for _ in range(min(count, sizes["layers"]))]
            self.features = nn.Sequential(*layers)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, sizes["classes"])

        def forward(self, images: Any) -> Any:
            return self.head(self.norm(self.features(images).mean((2, 3))))

    return ConvNext()
