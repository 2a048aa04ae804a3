"""Products of activations with quantised weights. In: a block format, blocks of uint8 (..., rows, bytes of a row) and
activations. Out: the product, decoding fused into it. Stands between `weight.py` and the kernels."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.llm.quantised.types import BlockType
from tilewright.tensor.tensor import Tensor


def decode(kind: BlockType, blocks: Tensor, dtype: DType) -> Tensor:
    """Blocks (..., bytes of a row) as numbers (..., columns)."""
    return kind.decode(blocks.unflatten(-1, (-1, kind.nbytes))).flatten(-2).cast(dtype)


def linear(kind: BlockType, blocks: Tensor, x: Tensor) -> Tensor:
    """x (..., columns) times the transpose of weights (rows, columns)."""
    return x @ decode(kind, blocks, x.dtype).transpose()


def expert_linear(kind: BlockType, blocks: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
    """x (tokens, k or 1, columns), chosen (tokens, k), weights (experts, rows, columns): (tokens, k, rows). Only the
    blocks of chosen experts are read."""
    picked = decode(kind, blocks[chosen], x.dtype)
    return (picked * x.unsqueeze(-2)).sum(-1)
