"""What is given to an optimiser is trained. A parameter that was computed (`Tensor.randn(1, 1, D) * .02`) had not asked
for a gradient: it was listed, given to AdamW, and never changed, without a word."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import UnsupportedError, UserError
from tilewright.nn.state import as_buffer, get_parameters, get_state_dict, load_state_dict

OPTIMIZERS = ["SGD", "Adam", "AdamW", "LAMB", "LARS"]


class Model:
    def __init__(self) -> None:
        self.cls = Tensor.randn(1, 1, 4) * 0.02
        self.positions = Tensor.zeros(1, 5, 4)
        self.scale = Tensor(1.0)
        self.table = as_buffer(Tensor.arange(5).float().reshape(1, 5, 1) / 10)
        self.norm = nn.BatchNorm(5)
        self.head = nn.Linear(4, 2)

    def __call__(self, x: Tensor) -> Tensor:
        joined = self.cls.expand(x.shape[0], 1, 4).cat(x, dim=1)
        return self.head(self.norm((joined + self.positions) * self.scale + self.table))


@pytest.mark.parametrize("kind", [name for name in OPTIMIZERS if hasattr(nn.optim, name)])
def test_every_parameter_of_a_model_is_trained(kind: str) -> None:
    Tensor.manual_seed(1)
    model = Model()
    optimizer = getattr(nn.optim, kind)(get_parameters(model), lr=0.1)
    x = Tensor.randn(3, 4, 4).realize()
    names = {name: tensor.numpy().copy() for name, tensor in get_state_dict(model).items()}
    with Tensor.train():
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    same = {name for name, before in names.items() if np.array_equal(before, get_state_dict(model)[name].numpy())}
    assert same == {"table"}
    assert all(tensor.requires_grad for tensor in optimizer.params)


def weight() -> Tensor:
    return Tensor([1.0, 2.0], requires_grad=True)


def frozen() -> Tensor:
    found = weight()
    found.requires_grad = False
    return found


TIED = Tensor.randn(3, 2).realize()
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "told so": (lambda: [Tensor([1.0], requires_grad=False)], "has requires_grad=False"),
    "told so by zeros": (lambda: [weight(), Tensor.zeros(2, requires_grad=False)], "has requires_grad=False"),
    "told so by randn": (lambda: [weight(), Tensor.randn(2, requires_grad=False)], "has requires_grad=False"),
    "frozen": (lambda: [weight(), frozen()], "has requires_grad=False"),
    "computed from a parameter": (lambda: [weight() * 2], "computed from parameters"),
    "a view of another": (lambda: [TIED, TIED.T], "a view of another"),
    "integers alone": (lambda: [Tensor([1, 2])], "no parameter"),
    "buffers alone": (lambda: [as_buffer(Tensor([1.0]))], "no parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_never_be_trained_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(UserError, match=words) as caught:
        nn.optim.SGD(make(), lr=0.1)
    assert __file__ in str(caught.value)
    assert not TIED.requires_grad


def test_a_tensor_with_a_gradient_is_no_buffer() -> None:
    with pytest.raises(UnsupportedError, match="detach"):
        as_buffer(weight())


def test_a_frozen_layer_is_trained_again_when_it_is_asked_to() -> None:
    found = frozen()
    found.requires_grad = True
    optimizer = nn.optim.SGD([found], lr=1.0)
    found.sum().backward()
    optimizer.step()
    assert found.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_are_trained_as_it_is(copied: Callable[[Any], Any]) -> None:
    model = copied(Model())
    optimizer = nn.optim.SGD(get_parameters(model), lr=0.1)
    buffers = {name for name, tensor in get_state_dict(model).items() if any(tensor is b for b in optimizer.buffers)}
    assert buffers == {"table", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    with pytest.raises(UnsupportedError, match="requires_grad=False"):
        nn.optim.SGD([copied(Tensor([1.0], requires_grad=False))], lr=0.1)


def test_loading_keeps_what_is_trained() -> None:
    model = Model()
    load_state_dict(model, {name: tensor + 0 for name, tensor in get_state_dict(Model()).items()})
    optimizer = nn.optim.SGD(get_parameters(model), lr=0.1)
    assert len(optimizer.params) == 7
    assert len(optimizer.buffers) == 4


def test_lazy_parameters_are_realised_once() -> None:
    """They keep their values: a random one is not drawn again."""
    lazy = Tensor.randn(3) * 0.02
    nn.optim.SGD([lazy], lr=0.1)
    assert lazy.tolist() == lazy.tolist() == (lazy + 0).tolist()
