"""The weights that a network is built from, by GGUF's names. In: the tensors of a file. Out: a weight of the shape that
the configuration requires, or an error that names the file and the tensor. Names of other formats are mapped to these
before."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import StateError
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.tensor.tensor import Tensor


class Weights:
    """Named weights of a file called `source`."""

    def __init__(self, held: Mapping[str, Tensor | QuantisedWeight], source: str) -> None:
        self.held = held
        self.source = source

    def has(self, name: str) -> bool:
        return name in self.held

    def matrix(self, name: str, *shape: int) -> Tensor | QuantisedWeight:
        """A weight of a product, (rows, columns) or (experts, rows, columns)."""
        if name not in self.held:
            raise self._refused(f"{name!r} is missing")
        found = self.held[name]
        if tuple(found.shape) != shape:
            raise self._refused(f"{name!r} has the shape {tuple(found.shape)} where {shape} is expected")
        if isinstance(found, Tensor) and not found.dtype.is_float:
            raise self._refused(f"{name!r} has the dtype {found.dtype.name}")
        return found

    def vector(self, name: str, size: int) -> Tensor:
        """A weight that is small and used as numbers: a norm or a bias."""
        found = self.matrix(name, size)
        return found.decode() if isinstance(found, QuantisedWeight) else found

    def optional_vector(self, name: str, size: int) -> Tensor | None:
        return self.vector(name, size) if self.has(name) else None

    def _refused(self, what: str) -> StateError:
        return StateError("load_model", f"{self.source}: {what}", "take the file of a model of a known architecture")
