"""Layers that hold layers. In: layers or functions. Out: one of them. Names of weights are torch's: those of a
`Sequential` begin with the number of the layer. Any plain list or dict of a model works as well; these say what they
are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import ShapeError

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class ModuleList(list[Any]):
    """A list of layers."""


class ModuleDict(dict[str, Any]):
    """Layers by name."""


class Sequential(ModuleList):
    """Layers called one behind the other: `Sequential(Linear(4, 8), Tensor.relu, Linear(8, 2))`. Functions of a tensor
    count as layers."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for number, layer in enumerate(layers):
            if not callable(layer):
                message = f"entry {number} is a {type(layer).__name__}, which cannot be called"
                raise ShapeError("Sequential", message, "give layers and functions, one by one")
        super().__init__(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x
