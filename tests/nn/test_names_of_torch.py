"""Names of torch that users look for, judged by torch; and positional arguments, which mean what torch's mean."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tilewright.nn.functional as F
from tilewright import Tensor, nn
from tilewright.base.errors import TilewrightError

RNG = np.random.default_rng(5)
# Names of arguments that are another word for the same thing.
WORDS = {"sz": "num_features", "vocab_size": "num_embeddings", "embed_size": "embedding_dim", "values": "parameters"}


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_containers_of_parameters() -> None:
    many = nn.ParameterList([Tensor.rand(2)])
    many.append(Tensor.rand(3))
    many.extend([Tensor.rand(4), Tensor([1])])
    many[0] = Tensor.rand(5)
    assert [each.requires_grad for each in many] == [True, True, True, False]
    named = nn.ParameterDict({"a": Tensor.rand(2)})
    named["b"] = Tensor.rand(3)
    named.update(c=Tensor.rand(1))
    assert sorted(nn.state.get_state_dict(named)) == ["a", "b", "c"]
    assert all(each.requires_grad for each in named.values())


def test_positional_arguments_that_mean_something_else_in_torch_are_refused() -> None:
    weight = Tensor.ones(2, 2)
    for call in (
        lambda: nn.MultiheadAttention(8, 2, 0.0, True, True),  # type: ignore[misc]
        lambda: nn.optim.SGD([weight], 0.1, 0.9, 0.0),  # type: ignore[misc]
        lambda: nn.optim.Muon([weight], 0.1, 0.9),  # type: ignore[misc]
        lambda: nn.EmbeddingBag(4, 2, 1.0),  # type: ignore[misc]
        lambda: nn.optim.Adam([weight], 0.1, (0.9, 0.99)),  # type: ignore[arg-type]
        lambda: nn.BatchNorm2d(4, 1e-5, 0.1),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, TilewrightError)):
            call()
    layer = nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 2, False, 3)
    assert (layer.groups, layer.bias, layer.dilation) == (2, None, (3, 3))


def test_operations_in_place() -> None:
    x = Tensor([0.5, -0.25, 4.0])
    assert x.clamp_min_(0.0).clamp_max_(2.0) is x
    assert x.tolist() == [0.5, 0.0, 2.0]
    assert x.cumsum_(0).tolist() == [0.5, 0.5, 2.5]


def test_fold_is_the_sum_of_windows() -> None:
    x = numbers(1, 2, 5, 4)
    counts = F.fold(F.unfold(Tensor.ones(1, 2, 5, 4), 3, padding=1), (5, 4), 3, padding=1)
    found = nn.Fold((5, 4), 3, padding=1)(nn.Unfold(3, padding=1)(Tensor(x)))
    np.testing.assert_allclose(found.numpy(), x * counts.numpy(), rtol=1e-5)
    with pytest.raises(TilewrightError, match="what `unfold` returns"):
        F.fold(Tensor.ones(1, 18, 3), (5, 4), 3)


# ---------------------------------------------------------------- beside torch


def order_of(function: Any) -> list[str]:
    found = []
    for argument in list(inspect.signature(function).parameters.values())[1:]:
        if argument.kind is not argument.POSITIONAL_OR_KEYWORD:
            break
        found.append(WORDS.get(argument.name, argument.name))
    return found


@pytest.mark.torch
def test_positional_arguments_mean_what_torchs_mean() -> None:
    import torch

    known = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Adam", "AdamW"}  # refused where they differ
    wrong = {}
    for theirs, ours in ((torch.nn, nn), (torch.optim, nn.optim), (torch.optim.lr_scheduler, nn.optim)):
        for name in set(dir(theirs)) & set(dir(ours)) - known:
            kinds = [getattr(owner, name) for owner in (theirs, ours)]
            if not all(map(inspect.isclass, kinds)) or name.endswith(("Optimizer", "Pad1d", "Pad2d", "Pad3d")):
                continue
            wanted, found = (order_of(kind.__init__) for kind in kinds)
            if wanted and found != wanted[: len(found)] and name not in ("Module", "RMSNorm"):
                wrong[name] = (wanted, found)
    assert wrong == {}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride", "space"),
    [(3, 1, 1, 2, (7, 6)), ((2, 3), (2, 1), (1, 0), (1, 2), (6, 9))],
)
def test_fold_beside_torch(kernel: Any, dilation: Any, padding: Any, stride: Any, space: tuple[int, int]) -> None:
    import torch

    settings = (kernel, dilation, padding, stride)
    shape = torch.nn.functional.unfold(torch.zeros(2, 3, *space), *settings).shape
    x = numbers(*shape)
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = F.fold(ours, space, *settings), torch.nn.functional.fold(theirs, space, *settings)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), atol=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_beside_torch(training: bool) -> None:
    import torch

    x, mean, weight, bias = numbers(4, 3, 5), numbers(3), numbers(3), numbers(3)
    variance = np.abs(numbers(3))
    ours, theirs = [Tensor(mean), Tensor(variance)], [torch.tensor(mean), torch.tensor(variance)]
    found = F.batch_norm(Tensor(x), *ours, Tensor(weight), Tensor(bias), training)
    wanted = torch.nn.functional.batch_norm(
        torch.tensor(x), *theirs, torch.tensor(weight), torch.tensor(bias), training
    )
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-5)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), atol=1e-5)


DECOUPLED = {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.8, 0.9)}
OPTIMISERS: list[tuple[str, dict[str, Any]]] = [
    *((name, settings) for name in ("NAdam", "RAdam") for settings in ({}, {"weight_decay": 0.1}, DECOUPLED)),
    *((name, settings) for name in ("Adadelta", "Adamax", "ASGD") for settings in ({}, {"weight_decay": 0.1})),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3}),
    ("Adamax", {"lr": 0.1, "betas": (0.8, 0.9)}),
    ("ASGD", {"lr": 0.1, "lambd": 0.5, "alpha": 0.5, "t0": 3}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 2.0), "step_sizes": (0.05, 0.3)}),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "settings"), OPTIMISERS)
def test_optimisers_beside_torch(name: str, settings: dict[str, Any]) -> None:
    import torch

    start = numbers(5, 4)
    ours, theirs = Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    own, other = getattr(nn.optim, name)([ours], **settings), getattr(torch.optim, name)([theirs], **settings)
    for _ in range(10):
        factors = numbers(5, 4)
        own.zero_grad()
        other.zero_grad()
        (ours * Tensor(factors)).sin().sum().backward()
        (theirs * torch.tensor(factors)).sin().sum().backward()
        own.step()
        other.step()
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), atol=1e-5)
    if name == "ASGD":
        np.testing.assert_allclose(own.ax[0].numpy(), other.state[theirs]["ax"].numpy(), atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["triangular", "triangular2", "exp_range"])
def test_cycles_of_rates_beside_torch(mode: str) -> None:
    import torch

    settings: dict[str, Any] = {"base_lr": 0.1, "max_lr": 0.7, "step_size_up": 3, "step_size_down": 2, "mode": mode}
    ours = nn.optim.CyclicLR(nn.optim.SGD([Tensor([1.0])], lr=0.5), **settings, gamma=0.9)
    optimiser = torch.optim.SGD([torch.tensor([1.0], requires_grad=True)], lr=0.5)
    theirs = torch.optim.lr_scheduler.CyclicLR(optimiser, **settings, gamma=0.9, cycle_momentum=False)
    for _ in range(13):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-5)
        optimiser.step()
        ours.step()
        theirs.step()


@pytest.mark.torch
@pytest.mark.parametrize(("axes", "settings"), [(1, (3,)), (2, (2,)), (2, ((2, 3), (2, 1), (1, 0))), (3, (2, 2))])
def test_what_a_pool_took_is_put_back_as_in_torch(axes: int, settings: tuple[Any, ...]) -> None:
    import torch

    x = numbers(2, 3, 6, 6, 4)[..., *[0] * (3 - axes)]
    results: list[Any] = []
    for own, make in ((nn, Tensor), (torch.nn, torch.tensor)):
        pool = getattr(own, f"MaxPool{axes}d")(*settings, return_indices=True)
        unpool = getattr(own, f"MaxUnpool{axes}d")(*settings)
        values, indices = pool(make(x))
        results.append([unpool(values, indices).numpy(), unpool(values, indices, x.shape).numpy()])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("settings", [{"batch_first": True}, {"norm_first": True, "bias": False, "activation": "gelu"}])
def test_transformer_beside_torch(settings: dict[str, Any]) -> None:
    import torch

    theirs = torch.nn.Transformer(16, 4, 2, 1, 32, 0.0, **settings)
    ours = nn.Transformer(16, 4, 2, 1, 32, 0.0, **settings)
    nn.state.load_state_dict(ours, {name: Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    source, target = numbers(3, 4, 16), numbers(3, 4, 16)
    steps = 4 if "batch_first" in settings else 3
    masks = [owner.Transformer.generate_square_subsequent_mask(steps) for owner in (nn, torch.nn)]
    found = ours(Tensor(source), Tensor(target), tgt_mask=masks[0])
    wanted = theirs(torch.tensor(source), torch.tensor(target), tgt_mask=masks[1])
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=1e-5)
