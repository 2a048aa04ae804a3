"""Recurrent layers, attention and containers: values beside NumPy written out by hand, beside torch with the same
weights, names of weights, one trained step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import ShapeError

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def weights_of(layer: Any) -> dict[str, Array]:
    return {name: tensor.numpy() for name, tensor in nn.state.get_state_dict(layer).items()}


# ---------------------------------------------------------------- by hand


def test_lstm_step_by_step() -> None:
    Tensor.manual_seed(1)
    layer = nn.LSTM(3, 4)
    weights = weights_of(layer)
    x = random(5, 2, 3)
    hidden, cell = np.zeros((2, 4)), np.zeros((2, 4))
    expected = []
    for step in x:
        gates = step @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        gates = gates + hidden @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
        enter, forget, candidate, leave = np.split(gates, 4, -1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
        hidden = sigmoid(leave) * np.tanh(cell)
        expected.append(hidden)
    output, (last, last_cell) = layer(Tensor(x))
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last.numpy()[0], hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last_cell.numpy()[0], cell, rtol=1e-5, atol=1e-6)


def test_gru_step_by_step() -> None:
    Tensor.manual_seed(1)
    layer = nn.GRU(3, 4, batch_first=True)
    weights = weights_of(layer)
    x = random(2, 5, 3)
    hidden = np.zeros((2, 4))
    expected = []
    for step in x.transpose(1, 0, 2):
        own = step @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        back = hidden @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
        (r, z, n), (own_r, own_z, own_n) = np.split(own, 3, -1), np.split(back, 3, -1)
        kept = sigmoid(z + own_z)
        hidden = (1 - kept) * np.tanh(n + sigmoid(r + own_r) * own_n) + kept * hidden
        expected.append(hidden)
    output, last = layer(Tensor(x))
    np.testing.assert_allclose(output.numpy(), np.stack(expected, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last.numpy()[0], hidden, rtol=1e-5, atol=1e-6)


def test_cells_are_one_step_of_their_layers() -> None:
    x = Tensor(random(1, 2, 3))
    for cell_type, layer_type in ((nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU), (nn.RNNCell, nn.RNN)):
        cell, layer = cell_type(3, 4), layer_type(3, 4)
        values = {name.removesuffix("_l0"): tensor for name, tensor in nn.state.get_state_dict(layer).items()}
        nn.state.load_state_dict(cell, values)
        found = cell(x[0])
        found = found[0] if isinstance(found, tuple) else found
        np.testing.assert_allclose(found.numpy(), layer(x)[0].numpy()[0], rtol=1e-5, atol=1e-6)


def test_attention_by_hand() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    weights = weights_of(layer)
    x = random(3, 5, 8)
    projected = x @ weights["in_proj_weight"].T + weights["in_proj_bias"]
    heads = [part.reshape(3, 5, 2, 4).transpose(0, 2, 1, 3) for part in np.split(projected, 3, -1)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2) / 2
    scores = np.where(np.triu(np.ones((5, 5), bool), 1), -np.inf, scores)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    mixed = (share @ heads[2]).transpose(0, 2, 1, 3).reshape(3, 5, 8)
    expected = mixed @ weights["out_proj.weight"].T + weights["out_proj.bias"]
    for need_weights in (True, False):
        found, shown = layer(Tensor(x), Tensor(x), Tensor(x), need_weights=need_weights, is_causal=True)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
        if shown is not None:
            np.testing.assert_allclose(shown.numpy(), share.mean(1), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- containers


def test_sequential_names_and_calls_its_layers() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Tensor.tanh, nn.Dropout(0.5), nn.Linear(8, 2))
    assert sorted(nn.state.get_state_dict(model)) == ["0.bias", "0.weight", "4.bias", "4.weight"]
    x = random(3, 4)
    first, last = model[0], model[4]
    inner = np.tanh(np.maximum(x @ first.weight.numpy().T + first.bias.numpy(), 0))
    np.testing.assert_allclose(
        model(Tensor(x)).numpy(), inner @ last.weight.numpy().T + last.bias.numpy(), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ShapeError, match="cannot be called"):
        nn.Sequential([nn.Linear(2, 2)])


def test_lists_and_dicts_of_layers() -> None:
    class Model:
        def __init__(self) -> None:
            self.blocks = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
            self.heads = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False)})

    names = sorted(nn.state.get_state_dict(Model()))
    assert names == ["blocks.0.weight", "blocks.1.weight", "heads.a.weight"]


def test_dropout_is_active_in_training_alone() -> None:
    ones = Tensor.ones(1000)
    assert nn.Dropout(0.5)(ones).numpy().tolist() == [1.0] * 1000
    with Tensor.train():
        found = nn.Dropout(0.5)(ones).numpy()
    assert set(found.tolist()) == {0.0, 2.0}


# ---------------------------------------------------------------- training and saving


def test_a_sequence_is_learned() -> None:
    Tensor.manual_seed(0)
    x = Tensor(random(6, 8, 3))
    target = x.cumsum(0).tanh().detach()
    model = nn.GRU(3, 16)
    head = nn.Linear(16, 3)
    optimizer = nn.optim.Adam(nn.state.get_parameters([model, head]), lr=0.02, betas=(0.9, 0.99))
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = head(model(x)[0]).mse_loss(target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_state_of_an_optimiser_leaves_the_parameters_out() -> None:
    layer = nn.Linear(2, 3)
    optimizer = nn.optim.AdamW(nn.state.get_parameters(layer))
    names = set(nn.state.get_state_dict(optimizer))
    assert names == {"lr", "correction1", "correction2", *(f"exp_avg{s}.{k}" for s in ("", "_sq") for k in (0, 1))}
    other = nn.optim.AdamW(nn.state.get_parameters(nn.Linear(2, 3)))
    optimizer.exp_avg[0].assign(Tensor.ones(3, 2))
    nn.state.load_state_dict(other, nn.state.get_state_dict(optimizer))
    assert other.exp_avg[0].numpy().tolist() == [[1.0, 1.0]] * 3


def test_muon_takes_its_arguments() -> None:
    for options in ({"nesterov": False}, {"ns_steps": 1}, {"ns_coefficients": (2.0, -1.5, 0.5)}):
        results = []
        for chosen in ({}, options):
            weight = Tensor(random(4, 4)).requires_grad_()
            optimizer = nn.optim.Muon([weight], lr=0.1, **chosen)
            for _ in range(2):
                optimizer.zero_grad()
                (weight * Tensor(random(4, 4, seed=1))).square().sum().backward()
                optimizer.step()
            results.append(weight.numpy())
        assert not np.allclose(*results)
    with pytest.raises(ShapeError, match="three numbers"):
        nn.optim.Muon([Tensor.ones(2, 2)], ns_coefficients=(1.0,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LSTM(3, 4)(Tensor.zeros(5, 2, 7)), "7"),
        (lambda: nn.LSTM(3, 4)(Tensor.zeros(5, 2, 3), (Tensor.zeros(2, 4),) * 2), "layers"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), "sin"),
        (lambda: nn.MultiheadAttention(6, 4), "heads"),
        (lambda: nn.TransformerEncoderLayer(8, 2, activation="sin"), "sin"),
        (lambda: nn.Dropout(1.5), "probability"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


# ---------------------------------------------------------------- beside torch

OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]


@pytest.mark.torch
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_torchs(name: str, options: dict[str, Any]) -> None:
    import torch

    theirs = getattr(torch.nn, name)(3, 4, **options)
    ours = getattr(nn, name)(3, 4, **options)
    nn.state.load_state_dict(ours, {key: Tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    x = random(5, 6, 3)
    wanted, state = theirs(torch.tensor(x))
    found, own = ours(Tensor(x))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
    for left, right in zip(own if isinstance(own, tuple) else [own], state if isinstance(state, tuple) else [state]):
        np.testing.assert_allclose(left.numpy(), right.detach().numpy(), rtol=1e-4, atol=1e-6)
    unbatched, _ = ours(Tensor(x[:, 0]))
    np.testing.assert_allclose(
        unbatched.numpy(), theirs(torch.tensor(x[:, 0]))[0].detach().numpy(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True}], ids=str)
def test_encoder_layers_are_torchs(options: dict[str, Any]) -> None:
    import torch

    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options).train()
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)
    nn.state.load_state_dict(ours, {key: Tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    x = random(5, 6, 8)
    padding = np.zeros((6, 5) if not options.get("batch_first") else (5, 6), bool)
    padding[:, -2:] = True
    wanted = theirs(torch.tensor(x), src_key_padding_mask=torch.tensor(padding))
    found = ours(Tensor(x), src_key_padding_mask=Tensor(padding))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
