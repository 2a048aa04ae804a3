"""Tensors of a model that are not trained. In: a tensor. Out: the same one, marked. Optimisers ask for the mark; names,
files and devices treat a buffer as they treat a parameter."""

from __future__ import annotations

from tilewright.base.errors import UnsupportedError
from tilewright.tensor.core.base import check_tensors
from tilewright.tensor.tensor import Tensor


def as_buffer(tensor: Tensor) -> Tensor:
    """Marks a tensor of a model that is no parameter: a running statistic, a mask, a table. It is saved, loaded and
    moved along with the model, and optimisers leave it alone."""
    check_tensors("as_buffer", tensor)
    if tensor.requires_grad:
        message = f"a tensor ({tensor._described()}) that has a gradient"
        raise UnsupportedError("as_buffer", message, "detach() it first")
    tensor._is_buffer = True
    return tensor
