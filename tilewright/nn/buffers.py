"""Tensors of a model that are not parameters. In: a tensor. Out: the same one, marked, which savers and optimisers see.
Beside the layers, so that a model with layers of its own loads no others."""

from __future__ import annotations

from tilewright.base.errors import UnsupportedError
from tilewright.tensor.core.base import check_tensors
from tilewright.tensor.tensor import Tensor


def as_buffer(tensor: Tensor) -> Tensor:
    """Marks a tensor of a model that is not a parameter: a running statistic, a mask, a table. It is saved, loaded and
    moved with the model, and optimisers do not change it."""
    check_tensors("as_buffer", tensor)
    if tensor.requires_grad:
        message = f"a tensor ({tensor._described()}) that has a gradient"
        raise UnsupportedError("as_buffer", message, "detach() it first")
    tensor._is_buffer = True
    return tensor
