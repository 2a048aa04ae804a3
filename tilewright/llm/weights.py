"""The weights that a network is built from, by GGUF's names. In: the tensors of a file. Out: a weight of the shape that
the configuration requires, or an error that names the file and the tensor. Names of other formats are mapped to these
before."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tilewright.base.dtype import dtypes
from tilewright.base.errors import StateError
from tilewright.graph.spec import Devices
from tilewright.llm.quantised.types import PLAIN, block_type
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


class RandomWeights(Weights):
    """Random weights of any network, made when they are asked for: to train it, or to measure it. Matrices whose rows
    are whole blocks of the format `kind` are of that format, all else is float32. `made` has what was asked for; biases
    are made where their names end in one of `biases`."""

    def __init__(
        self, kind: str = "F32", seed: int = 0, biases: Collection[str] = (), device: Devices | None = None
    ) -> None:
        import numpy

        self.made: dict[str, Tensor | QuantisedWeight] = {}
        super().__init__(self.made, "random weights")
        self.type = block_type("RandomWeights", kind)
        self.biases = tuple(biases)
        self.device = device
        self.generator = numpy.random.default_rng(seed)

    def has(self, name: str) -> bool:
        return name in self.made or name.endswith(self.biases)

    def matrix(self, name: str, *shape: int) -> Tensor | QuantisedWeight:
        if name not in self.made:
            is_quantised = len(shape) > 1 and self.type.name not in PLAIN and shape[-1] % self.type.size == 0
            self.made[name] = (
                self._blocks(shape) if is_quantised else self._numbers(shape, name.endswith("norm.weight"))
            )
        return super().matrix(name, *shape)

    def _numbers(self, shape: tuple[int, ...], is_norm: bool) -> Tensor:
        """Normal numbers that keep the size of what they multiply; norms around 1."""
        values = self.generator.standard_normal(shape, dtype="float32")
        scaled = 1 + 0.1 * values if is_norm else values * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
        return Tensor(scaled, device=self.device, dtype=dtypes.float32)

    def _blocks(self, shape: tuple[int, ...]) -> QuantisedWeight:
        """Blocks of any bytes but for float16 scales, which are small in the formats that begin with one."""
        count = math.prod(shape) // self.type.size
        blocks = self.generator.integers(0, 256, (count, self.type.nbytes), dtype="uint8")
        scales = (self.generator.uniform(0.5, 1, (count, 1)) * 0.2 * shape[-1] ** -0.5).astype("float16")
        blocks[:, :2] = scales.view("uint8")
        made = Tensor(blocks, device=self.device, dtype=dtypes.uint8)
        return QuantisedWeight(self.type.name, shape, made)
