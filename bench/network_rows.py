"""The networks that `bench/networks.py` measures: their sizes for a card, for a host and for tests; their inputs and
weights, made from names and seeds, so that every process has the same without a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import image_models, models, picture_models, sequence_models, set_models

Array = np.ndarray
Sizes = dict[str, int]


@dataclass(frozen=True)
class Network:
    """One row. `kind` is what it reads: tokens, categories, images, images with a class for each pixel, points, frames
    or nodes. A step trains with the named optimiser; without one the row is the result alone. `sizes` by scale: card,
    host, tiny. Of tokens and frames, one of `every` has a class."""

    title: str
    build: Callable[[models.Kit, Sizes], Any]
    kind: str
    optimizer: str
    sizes: dict[str, Sizes]
    every: int = 1

    @property
    def is_step(self) -> bool:
        return bool(self.optimizer)

    def inputs(self, sizes: Sizes) -> list[Array]:
        """What the model reads; then, for a step, the classes that it should find."""
        generator = np.random.default_rng(0)
        shape, count = self._shape(sizes)
        if self.kind in ("tokens", "categories"):
            given = generator.integers(0, sizes["vocabulary"], shape)
        else:
            given = generator.standard_normal(shape, dtype=np.float32)
        classes = sizes["classes"] if "classes" in sizes else sizes["vocabulary"]
        return [given, generator.integers(0, classes, count)] if self.is_step else [given]

    def _shape(self, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of what the model reads, and of the classes."""
        batch = sizes.get("batch", 1)
        if self.kind == "tokens":
            return (batch, sizes["time"]), (batch * sizes["time"] // self.every,)
        if self.kind == "categories":
            return (batch, sizes["tables"] * sizes["bag"]), (batch,)
        if self.kind == "points":
            return (batch, 3, sizes["points"]), (batch,)
        if self.kind == "frames":
            return (batch, sizes["time"], sizes["features"]), (batch * sizes["time"] // self.every,)
        if self.kind == "nodes":
            return (sizes["nodes"], sizes["features"]), (sizes["nodes"],)
        side = sizes["side"]
        return (batch, sizes.get("channels", 3), side, side), (batch, side, side) if self.kind == "pixels" else (batch,)


SCALE_NAMES = ("card", "host", "tiny")


def sizes_of(**values: int | tuple[int, ...]) -> dict[str, Sizes]:
    """By scale: each size is a number for all scales, or one for each of `SCALE_NAMES`."""
    return {
        scale: {name: value[at] if isinstance(value, tuple) else value for name, value in values.items()}
        for at, scale in enumerate(SCALE_NAMES)
    }


_GPT2 = sizes_of(batch=(8, 2, 2), time=(1024, 128, 8), width=(768, 768, 16), heads=(12, 12, 2), layers=(12, 12, 1))
_LLAMA = {"width": (2048, 2048, 32), "heads": (32, 32, 4), "key_heads": (8, 8, 2), "hidden": (8192, 8192, 48)}
_LLAMA |= {"layers": (16, 4, 1), "vocabulary": (128256, 32000, 64)}
_RESNET = {"base": (64, 64, 4), "side": (224, 224, 64), "classes": (1000, 1000, 10), "deep": (1, 1, 0)}
_PATCHES = {"side": (224, 224, 16), "patch": (16, 16, 8), "width": (768, 768, 16), "classes": (1000, 1000, 10)}
_PATCHES |= {"layers": (12, 12, 1)}
_UNET = sizes_of(batch=(16, 2, 2), side=(256, 96, 16), base=(64, 32, 4), levels=(5, 4, 2), classes=(21, 21, 3))
_LSTM = sizes_of(
    batch=(64, 20, 2), time=(128, 35, 4), width=(1024, 650, 8), layers=(2, 2, 1), vocabulary=(10000, 10000, 32)
)
_MNIST = sizes_of(batch=(512, 128, 4), side=28, channels=1, classes=10, shrink=(1, 1, 8))

_MOBILE = {"side": (224, 224, 32), "shrink": (1, 1, 4), "stages": (7, 7, 2), "classes": (1000, 1000, 10)}
_CONVNEXT = {"side": (224, 96, 32), "base": (96, 96, 8), "stages": (4, 4, 2), "layers": (9, 2, 1)}

_BERT = sizes_of(batch=(32, 2, 2), time=(512, 128, 16), width=(768, 768, 16), heads=(12, 12, 2), layers=(12, 4, 1))
_BERT_TOKENS = sizes_of(vocabulary=(30522, 30522, 64), padding=(3000, 3000, 8))
_T5 = sizes_of(batch=(16, 2, 2), time=(1024, 192, 16), width=(512, 512, 16), heads=(8, 8, 2), layers=(6, 3, 1))
_T5_REST = sizes_of(hidden=(1024, 1024, 24), vocabulary=(32128, 32128, 64), buckets=(32, 32, 8))
_EXPERTS = sizes_of(
    batch=(8, 2, 2), time=(1024, 256, 16), width=(1024, 256, 16), hidden=(4096, 1024, 24), layers=(4, 2, 1)
)
_EXPERTS_REST = sizes_of(vocabulary=(32000, 8000, 64), experts=(8, 8, 4), capacity=(2560, 160, 20))
_WAVENET = sizes_of(batch=(8, 2, 2), time=(8192, 2000, 24), width=(128, 64, 8), skip=(256, 128, 12), layers=(24, 12, 3))
_WAVENET_REST = sizes_of(vocabulary=(256, 256, 16))
_TRANSLATOR = sizes_of(batch=(128, 16, 2), time=(64, 40, 8), width=(1024, 256, 8), vocabulary=(32000, 4000, 32))
_CONFORMER = sizes_of(
    batch=(16, 2, 2), time=(1600, 400, 16), features=(80, 80, 8), width=(256, 144, 8), heads=(4, 4, 2)
)
_CONFORMER_REST = sizes_of(layers=(16, 4, 1), window=(31, 31, 5), classes=(1000, 200, 10))
_DCGAN = sizes_of(batch=(128, 16, 4), side=(64, 64, 16), base=(64, 32, 4), latent=(100, 100, 6), classes=2)
_DIFFUSION = sizes_of(batch=(32, 2, 2), side=(64, 32, 8), base=(128, 64, 8), levels=(4, 3, 2), groups=(32, 32, 2))
_DIFFUSION_REST = sizes_of(heads=(4, 4, 2), classes=(3, 3, 3))
_SWIN = sizes_of(batch=(32, 1, 2), side=(224, 224, 32), base=(96, 96, 8), window=(7, 7, 4), head=(32, 32, 4))
_SWIN_REST = sizes_of(stages=(4, 4, 2), classes=(1000, 1000, 10))
_POINTNET = sizes_of(batch=(32, 8, 4), points=(2048, 512, 20), base=(64, 64, 4), classes=(40, 40, 5))
_GRAPH = sizes_of(nodes=(160000, 4000, 20), edges=(1200000, 30000, 60), features=(128, 128, 6), width=(256, 128, 8))
_GRAPH_REST = sizes_of(layers=(3, 3, 2), classes=(40, 40, 4))
_RECOMMENDER = sizes_of(
    batch=(8192, 256, 4), tables=(26, 26, 3), bag=(4, 4, 2), width=(64, 32, 4), hidden=(512, 256, 8)
)
_RECOMMENDER_REST = sizes_of(vocabulary=(100000, 10000, 50), classes=2)


def _joined(first: dict[str, Sizes], second: dict[str, Sizes]) -> dict[str, Sizes]:
    return {scale: first[scale] | second[scale] for scale in first}


for _scale, _vocabulary in zip(SCALE_NAMES, (50257, 50257, 64)):
    _GPT2[_scale]["vocabulary"] = _vocabulary

NETWORKS = {
    "gpt2": Network("GPT-2 small, step", models.gpt2, "tokens", "adamw", _GPT2),
    "llama-decode": Network(
        "LLaMA 1B, one token", models.llama, "tokens", "", sizes_of(**_LLAMA, batch=1, time=1, context=(2048, 512, 8))
    ),
    "llama-prefill": Network(
        "LLaMA 1B, prefill",
        models.llama,
        "tokens",
        "",
        sizes_of(**_LLAMA, batch=1, time=(2048, 64, 8), context=(2048, 64, 8)),
    ),
    "resnet50": Network("ResNet-50", models.resnet50, "images", "", sizes_of(**_RESNET, batch=(64, 4, 2))),
    "resnet50-step": Network(
        "ResNet-50, step", models.resnet50, "images", "sgd", sizes_of(**_RESNET, batch=(64, 4, 2))
    ),
    "vit": Network(
        "ViT-B/16, step", models.vit, "images", "adamw", sizes_of(**_PATCHES, batch=(32, 2, 2), heads=(12, 12, 2))
    ),
    "mobilenet": Network("MobileNetV2", image_models.mobilenet, "images", "", sizes_of(**_MOBILE, batch=(64, 2, 2))),
    "convnext": Network(
        "ConvNeXt, step", image_models.convnext, "images", "adamw", sizes_of(**_CONVNEXT, batch=(32, 4, 2), classes=100)
    ),
    "unet": Network("U-Net, step", models.unet, "pixels", "adamw", _UNET),
    "mixer": Network("MLP-Mixer B/16", models.mixer, "images", "", sizes_of(**_PATCHES, batch=(64, 4, 2))),
    "lstm": Network("LSTM, step", models.lstm, "tokens", "adamw", _LSTM),
    "mnist": Network("MNIST, step", models.mnist, "images", "adamw", _MNIST),
    "bert": Network("BERT, step", sequence_models.bert, "tokens", "adamw", _joined(_BERT, _BERT_TOKENS), every=8),
    "t5": Network("T5, step", sequence_models.t5, "tokens", "adamw", _joined(_T5, _T5_REST), every=2),
    "experts": Network(
        "Mixture of experts, step", sequence_models.experts, "tokens", "adamw", _joined(_EXPERTS, _EXPERTS_REST)
    ),
    "wavenet": Network("WaveNet, step", sequence_models.wavenet, "tokens", "adamw", _joined(_WAVENET, _WAVENET_REST)),
    "translator": Network(
        "GRU with attention, step", sequence_models.translator, "tokens", "adamw", _TRANSLATOR, every=2
    ),
    "conformer": Network(
        "Conformer, step",
        sequence_models.conformer,
        "frames",
        "adamw",
        _joined(_CONFORMER, _CONFORMER_REST),
        every=4,
    ),
    "dcgan": Network("DCGAN, step", picture_models.dcgan, "images", "adamw", _DCGAN),
    "diffusion": Network(
        "Diffusion U-Net, step", picture_models.diffusion, "pixels", "adamw", _joined(_DIFFUSION, _DIFFUSION_REST)
    ),
    "swin": Network("Swin-T, step", picture_models.swin, "images", "adamw", _joined(_SWIN, _SWIN_REST)),
    "efficientnet": Network(
        "EfficientNet-B0, step", picture_models.efficientnet, "images", "sgd", sizes_of(**_MOBILE, batch=(64, 2, 2))
    ),
    "pointnet": Network("PointNet, step", set_models.pointnet, "points", "adamw", _POINTNET),
    "graph": Network("Graph network, step", set_models.graph_network, "nodes", "adamw", _joined(_GRAPH, _GRAPH_REST)),
    "recommender": Network(
        "DLRM, step", set_models.recommender, "categories", "adamw", _joined(_RECOMMENDER, _RECOMMENDER_REST)
    ),
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
