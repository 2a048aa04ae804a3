"""A weight that stays quantised. In: a block format, a logical shape, the bytes of its rows. Out: its values, some of
its rows, and products with activations. The weights of a quantised file are these."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph.spec import Devices
from tilewright.llm.quantised import product
from tilewright.llm.quantised.types import block_type
from tilewright.tensor.tensor import Tensor


class QuantisedWeight:
    """Weights (rows, columns) or (experts, rows, columns) in blocks along the columns. `kind` is GGUF's name of the
    format, `blocks` the bytes: uint8 (..., rows, bytes of a row)."""

    def __init__(self, kind: str, shape: tuple[int, ...], blocks: Tensor) -> None:
        self.type = block_type("QuantisedWeight", kind)
        self.kind = kind
        self.shape = tuple(shape)
        if blocks.dtype is not dtypes.uint8:
            raise DTypeError("QuantisedWeight", f"the blocks are {blocks.dtype.name}", "give the bytes, as uint8")
        if len(self.shape) < 1 or self.shape[-1] % self.type.size:
            message = f"rows of shape {self.shape} are not whole blocks of {self.type.size} elements of {kind}"
            raise ShapeError("QuantisedWeight", message, "give rows of a whole number of blocks")
        expected = (*self.shape[:-1], self.type.row_bytes(self.shape[-1]))
        if math.prod(blocks.shape) != math.prod(expected):
            given, needed = math.prod(blocks.shape), math.prod(expected)
            message = f"the blocks have {given} bytes, and {kind}{list(self.shape)} has {needed}"
            raise ShapeError("QuantisedWeight", message, "give all blocks of the weight")
        self.blocks = blocks if blocks.shape == expected else blocks.reshape(expected)

    def __repr__(self) -> str:
        return f"<QuantisedWeight {self.kind}{list(self.shape)} on {self.blocks.device}>"

    @property
    def device(self) -> Devices:
        return self.blocks.device

    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.blocks.nbytes()

    def decode(self, dtype: DType = dtypes.float32) -> Tensor:
        """All values, of the logical shape: bit by bit those of `gguf.dequantize`, then cast."""
        return product.decode(self.type, self.blocks, dtype)

    def rows(self, index: Tensor, dtype: DType = dtypes.float32) -> Tensor:
        """The rows of an index of integers, as an embedding takes them: only these are read and decoded."""
        return product.decode(self.type, self.blocks[index], dtype)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x (..., columns) times the transpose of the weight, plus a bias: (..., rows)."""
        self._check("linear", x, 2)
        found = product.linear(self.type, self.blocks, x)
        return found if bias is None else found + bias.cast(found.dtype)

    def expert_linear(self, x: Tensor, chosen: Tensor) -> Tensor:
        """For each token the product with each of its chosen experts: x (tokens, k or 1, columns), chosen int32
        (tokens, k), weights (experts, rows, columns); the result is (tokens, k, rows)."""
        self._check_choice("expert_linear", x, chosen)
        return product.expert_linear(self.type, self.blocks, x, chosen)

    def mixed_experts(self, x: Tensor, chosen: Tensor, shares: Tensor, normalise: bool = False) -> Tensor:
        """The sum of what `expert_linear` gives for each token, times shares (tokens, k), which `normalise` divides by
        their sum: (tokens, rows)."""
        self._check_choice("mixed_experts", x, chosen)
        if shares.shape != chosen.shape:
            message = f"shares have shape {shares.shape} and chosen experts {chosen.shape}"
            raise ShapeError("mixed_experts", message, "give a share for each chosen expert")
        return product.mixed_experts(self.type, self.blocks, x, chosen, shares, normalise)

    def gated(self, up: QuantisedWeight, x: Tensor, activation: str, chosen: Tensor | None = None) -> Tensor | None:
        """activation(x times this weight) * (x times `up`), of the shapes of `linear`, or of `expert_linear` with
        `chosen`; None where the device has no kernel for both at once."""
        if chosen is None:
            self._check("gated", x, 2)
        else:
            self._check_choice("gated", x, chosen)
        if up.kind != self.kind or up.shape != self.shape:
            return None
        return product.gated(self.type, (self.blocks, up.blocks), x, activation, chosen)

    def _check_choice(self, operation: str, x: Tensor, chosen: Tensor) -> None:
        self._check(operation, x, 3)
        if chosen.ndim != 2 or x.ndim != 3 or x.shape[0] != chosen.shape[0] or x.shape[1] not in (1, chosen.shape[1]):
            message = f"x has shape {x.shape} and chosen {chosen.shape}"
            raise ShapeError(operation, message, "give x (tokens, k or 1, columns) and chosen (tokens, k)")

    def _check(self, operation: str, x: Tensor, axes: int) -> None:
        if len(self.shape) != axes or x.ndim < 1 or x.shape[-1] != self.shape[-1]:
            message = f"x has shape {x.shape} and the weight {self.shape}"
            raise ShapeError(operation, message, f"give a weight of {axes} axes whose columns are the last axis of x")
        if not x.dtype.is_float:
            raise DTypeError(operation, f"x is {x.dtype.name}", "give floats")
