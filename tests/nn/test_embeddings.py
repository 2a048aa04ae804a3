"""Tables of vectors beside torch: rows of a padding, bags with and without offsets, their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import ShapeError
from tilewright.nn import functional as F

RNG = np.random.default_rng(0)


def test_a_padding_is_zero_and_has_no_gradient() -> None:
    layer = nn.Embedding(6, 3, padding_idx=-2)
    assert layer.padding_idx == 4
    assert layer.weight[4].tolist() == [0.0, 0.0, 0.0]
    index = Tensor([[0, 4, 5], [4, 5, 5]])
    assert (layer(index)[0, 1] == 0).all().item()
    (layer(index) * Tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert layer.weight.grad[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 8.0]
    optimizer = nn.optim.SGD([layer.weight], lr=1.0)
    optimizer.step()
    assert layer.weight[4].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ShapeError, match="padding_idx=6 of 6 rows"):
        nn.Embedding(6, 3, padding_idx=6)


BAGS: list[tuple[str, bool, dict[str, Any]]] = [
    (mode, has_offsets, arguments)
    for mode in ("sum", "mean", "max")
    for has_offsets in (False, True)
    for arguments in ({}, {"padding_idx": 2})
]


@pytest.mark.torch
@pytest.mark.parametrize(("mode", "has_offsets", "arguments"), BAGS)
def test_bags_are_those_of_torch(mode: str, has_offsets: bool, arguments: dict[str, Any]) -> None:
    import torch

    weight = RNG.standard_normal((7, 4)).astype(np.float32)
    index = np.array([2, 0, 6, 5, 2, 2, 1, 0, 0, 2, 2, 2])
    given = [index] if has_offsets else [index.reshape(3, 4)]
    given += [np.array([0, 3, 3, 8])] if has_offsets else []
    theirs, ours = (owner.EmbeddingBag(7, 4, mode=mode, **arguments) for owner in (torch.nn, nn))
    theirs.weight.data = torch.tensor(weight)
    ours.weight.assign(Tensor(weight))
    wanted, found = theirs(*map(torch.tensor, given)), ours(*map(Tensor, given))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5)
    scale = RNG.standard_normal(found.shape).astype(np.float32)
    (wanted * torch.tensor(scale)).sum().backward()
    (found * Tensor(scale)).sum().backward()
    if mode != "max":  # equal rows share the gradient of a maximum here, in torch one has it
        np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.torch
def test_weights_of_rows_in_a_bag() -> None:
    import torch

    weight, scale = RNG.standard_normal((5, 2)).astype(np.float32), RNG.standard_normal((2, 3)).astype(np.float32)
    index = np.array([[0, 4, 4], [1, 2, 3]])
    wanted = torch.nn.functional.embedding_bag(
        torch.tensor(index), torch.tensor(weight), mode="sum", per_sample_weights=torch.tensor(scale)
    )
    found = F.embedding_bag(Tensor(index), Tensor(weight), mode="sum", per_sample_weights=Tensor(scale))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)
    with pytest.raises(ShapeError, match="give them with mode='sum'"):
        F.embedding_bag(Tensor(index), Tensor(weight), per_sample_weights=Tensor(scale))
    with pytest.raises(ShapeError, match="without offsets"):
        F.embedding_bag(Tensor([1, 2]), Tensor(weight))


@pytest.mark.torch
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_is_that_of_torch(norm_first: bool) -> None:
    import torch

    arguments: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": norm_first}
    theirs = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, **arguments), 2)
    ours = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **arguments), 2)
    assert ours.layers[0].linear1.weight is not ours.layers[1].linear1.weight
    nn.state.load_state_dict(ours, {key: Tensor(value.detach().numpy()) for key, value in theirs.state_dict().items()})
    x, memory = (RNG.standard_normal((2, steps, 8)).astype(np.float32) for steps in (5, 3))
    padding = np.array([[False, False, True], [False, True, True]])
    causal = np.triu(np.ones((5, 5), bool), 1)
    wanted = theirs(
        torch.tensor(x),
        torch.tensor(memory),
        tgt_mask=torch.tensor(causal),
        memory_key_padding_mask=torch.tensor(padding),
    )
    found = ours(Tensor(x), Tensor(memory), tgt_mask=Tensor(causal), memory_key_padding_mask=Tensor(padding))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
