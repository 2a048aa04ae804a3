"""The activations of feed-forward layers. In: a gate, as a tensor or as a value of a kernel. Out: its activation."""

from __future__ import annotations

import math

from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.tensor import Tensor


def activate(x: Tensor, activation: str) -> Tensor:
    return x.gelu() if activation == "gelu" else x.silu()


def activate_value(x: UOp, activation: str) -> UOp:
    """The same inside a kernel: both are x * sigmoid(u)."""
    inner = (x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)) if activation == "gelu" else x
    scaled = inner * -math.log2(math.e)
    return x / (UOp(Ops.EXP2, x.dtype, (scaled,)) + 1.0)
