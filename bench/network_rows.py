"""The networks that `bench/networks.py` measures: their sizes for a card, for a host and for tests; their inputs and
weights, made from names and seeds, so that every process has the same without a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import image_models, models

Array = np.ndarray
Sizes = dict[str, int]


@dataclass(frozen=True)
class Network:
    """One row. `kind` is what it reads: tokens, images, or images with a class for each pixel. A step trains with the
    named optimiser; without one the row is the result alone. `sizes` by scale: card, host, tiny."""

    title: str
    build: Callable[[models.Kit, Sizes], Any]
    kind: str
    optimizer: str
    sizes: dict[str, Sizes]

    @property
    def is_step(self) -> bool:
        return bool(self.optimizer)

    def inputs(self, sizes: Sizes) -> list[Array]:
        """What the model reads; then, for a step, the classes that it should find."""
        generator = np.random.default_rng(0)
        batch = sizes["batch"]
        if self.kind == "tokens":
            given = generator.integers(0, sizes["vocabulary"], (batch, sizes["time"]))
            count: tuple[int, ...] = (batch * sizes["time"],)
            classes = sizes["vocabulary"]
        else:
            side, classes = sizes["side"], sizes["classes"]
            channels = sizes.get("channels", 3)
            given = generator.standard_normal((batch, channels, side, side), dtype=np.float32)
            count = (batch, side, side) if self.kind == "pixels" else (batch,)
        return [given, generator.integers(0, classes, count)] if self.is_step else [given]


def _of(scales: tuple[str, ...] = ("card", "host", "tiny"), **values: Any) -> dict[str, Sizes]:
    """A number for all scales, or one for each."""
    return {
        scale: {name: value[at] if isinstance(value, tuple) else value for name, value in values.items()}
        for at, scale in enumerate(scales)
    }


_GPT2 = _of(batch=(8, 2, 2), time=(1024, 128, 8), width=(768, 768, 16), heads=(12, 12, 2), layers=(12, 12, 1))
_LLAMA = {"width": (2048, 2048, 32), "heads": (32, 32, 4), "key_heads": (8, 8, 2), "hidden": (8192, 8192, 48)}
_LLAMA |= {"layers": (16, 4, 1), "vocabulary": (128256, 32000, 64)}
_RESNET = {"base": (64, 64, 4), "side": (224, 224, 64), "classes": (1000, 1000, 10), "deep": (1, 1, 0)}
_PATCHES = {"side": (224, 224, 16), "patch": (16, 16, 8), "width": (768, 768, 16), "classes": (1000, 1000, 10)}
_PATCHES |= {"layers": (12, 12, 1)}
_UNET = _of(batch=(16, 2, 2), side=(256, 96, 16), base=(64, 32, 4), levels=(5, 4, 2), classes=(21, 21, 3))
_LSTM = _of(batch=(64, 20, 2), time=(128, 35, 4), width=(1024, 650, 8), layers=(2, 2, 1), vocabulary=(10000, 10000, 32))
_MNIST = _of(batch=(512, 128, 4), side=28, channels=1, classes=10, shrink=(1, 1, 8))

_MOBILE = {"side": (224, 224, 32), "shrink": (1, 1, 4), "stages": (7, 7, 2), "classes": (1000, 1000, 10)}
_CONVNEXT = {"side": (224, 96, 32), "base": (96, 96, 8), "stages": (4, 4, 2), "layers": (9, 2, 1)}

for _scale, _vocabulary in zip(("card", "host", "tiny"), (50257, 50257, 64)):
    _GPT2[_scale]["vocabulary"] = _vocabulary

NETWORKS = {
    "gpt2": Network("GPT-2 small, step", models.gpt2, "tokens", "adamw", _GPT2),
    "llama-decode": Network(
        "LLaMA 1B, one token", models.llama, "tokens", "", _of(**_LLAMA, batch=1, time=1, context=(2048, 512, 8))
    ),
    "llama-prefill": Network(
        "LLaMA 1B, prefill",
        models.llama,
        "tokens",
        "",
        _of(**_LLAMA, batch=1, time=(2048, 64, 8), context=(2048, 64, 8)),
    ),
    "resnet50": Network("ResNet-50", models.resnet50, "images", "", _of(**_RESNET, batch=(64, 4, 2))),
    "resnet50-step": Network("ResNet-50, step", models.resnet50, "images", "sgd", _of(**_RESNET, batch=(64, 4, 2))),
    "vit": Network(
        "ViT-B/16, step", models.vit, "images", "adamw", _of(**_PATCHES, batch=(32, 2, 2), heads=(12, 12, 2))
    ),
    "mobilenet": Network("MobileNetV2", image_models.mobilenet, "images", "", _of(**_MOBILE, batch=(64, 2, 2))),
    "convnext": Network(
        "ConvNeXt, step", image_models.convnext, "images", "adamw", _of(**_CONVNEXT, batch=(32, 4, 2), classes=100)
    ),
    "unet": Network("U-Net, step", models.unet, "pixels", "adamw", _UNET),
    "mixer": Network("MLP-Mixer B/16", models.mixer, "images", "", _of(**_PATCHES, batch=(64, 4, 2))),
    "lstm": Network("LSTM, step", models.lstm, "tokens", "adamw", _LSTM),
    "mnist": Network("MNIST, step", models.mnist, "images", "adamw", _MNIST),
}
SCALES = {"CUDA": "card", "CPU": "host"}
# Small enough that three steps of ResNet-50 do not amplify the error of float32 in its gradients (1.5 % in torch's and
# in ours): at 1e-3 the third loss is right to 0.3 % or to 2 % by chance.
RATES = {"adamw": 1e-3, "sgd": 1e-4}


# ---------------------------------------------------------------- weights

_POOL_SIZE = (1 << 20) - 3  # a prime: rows of a weight that is larger than the pool are not equal


def values(name: str, shape: tuple[int, ...]) -> Array:
    """The weight of a name, the same in every process: large enough to matter, small enough that nothing overflows."""
    if name.endswith(("cosines", "sines")):
        angles = np.asarray(models.rotation_angles(*shape))
        return (np.cos(angles) if name.endswith("cosines") else np.sin(angles)).astype(np.float32)
    pool = np.random.default_rng(1).uniform(-1, 1, _POOL_SIZE).astype(np.float32)
    found = np.resize(np.roll(pool, -sum(map(ord, name)) * 7919), shape)
    if len(shape) > 1:
        return found * np.float32(np.sqrt(3 / np.prod(shape[1:])))
    if name.endswith(("running_var", "weight")):
        return 1 + np.float32(0.1) * found
    return np.float32(0.1) * found
