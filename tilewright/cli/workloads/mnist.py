"""A training step of a convolutional network for handwritten digits, on 128 made-up images. In: nothing. Out: a
function that does one step: forward, loss, gradients, Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import Tensor, dtypes, nn
from tilewright.nn.state import get_parameters

BATCH = 128


class Model:
    """Four convolutions with batch norm, and a linear layer on top."""

    def __init__(self) -> None:
        self.layers: list[Any] = [
            nn.Conv2d(1, 32, 5),
            Tensor.relu,
            nn.Conv2d(32, 32, 5),
            Tensor.relu,
            nn.BatchNorm2d(32),
            Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            Tensor.relu,
            nn.Conv2d(64, 64, 3),
            Tensor.relu,
            nn.BatchNorm2d(64),
            Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(576, 10),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        scores: Tensor = x.sequential(self.layers)
        return scores


def prepare() -> Callable[[], Tensor]:
    model = Model()
    optimizer = nn.optim.Adam(get_parameters(model))
    images = Tensor.randn(BATCH, 1, 28, 28).realize()
    labels = Tensor.randint(BATCH, low=0, high=10, dtype=dtypes.int32).realize()

    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(images).sparse_categorical_crossentropy(labels)
        loss.backward()
        optimizer.step()
        return loss.realize()

    return step
