"""Models in torch's style: a base class with `forward`, losses and activations as layers, beside torch itself."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor, nn
from tilewright.base.errors import ShapeError, UnsupportedError

RNG = np.random.default_rng(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.25))
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(Tensor.ones(3))
        self.register_buffer("offset", Tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x)) * self.scale + self.offset


def test_a_model_is_trained_saved_and_moved() -> None:
    Tensor.manual_seed(0)
    net = Net()
    x, y = Tensor(RNG.standard_normal((32, 4)).astype(np.float32)), Tensor(RNG.integers(0, 3, 32))
    optimizer = nn.optim.AdamW(net.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    try:
        assert net.train() is net
        assert net.training
        for _ in range(12):
            net.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    finally:
        net.eval()
    assert not Tensor.training
    assert losses[-1] < 0.75 * losses[0]
    names = [name for name, _ in net.named_parameters()]
    assert names == ["features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias"] + [
        "head.weight",
        "head.bias",
        "scale",
    ]
    assert net.offset.tolist() == [1.0, 2.0, 3.0]
    assert {"offset", "features.1.running_mean", "features.1.num_batches_tracked"} <= set(net.state_dict())
    other = Net()
    other.load_state_dict(net.state_dict())
    np.testing.assert_allclose(other(x).numpy(), net(x).numpy(), rtol=1e-5)
    expected = net(x).numpy()
    assert net.to("PYTHON").head.weight.device == "PYTHON"
    np.testing.assert_allclose(net(x.to("PYTHON")).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert net.head.weight.requires_grad


def test_a_parameter_is_its_own() -> None:
    source = Tensor([1.0, 2.0])
    first, second = nn.Parameter(source), nn.Parameter([1.0, 2.0])
    (first * second * 3).sum().backward()
    assert first.grad.tolist() == [3.0, 6.0]
    first.assign([5, 6])
    assert source.tolist() == second.tolist() == [1.0, 2.0]
    assert not nn.Parameter(source, requires_grad=False).requires_grad


def test_a_model_without_forward_says_so() -> None:
    class Empty(nn.Module):
        pass

    with pytest.raises(UnsupportedError, match="Empty: the class has no forward"):
        Empty()(1)


ACTIVATIONS = ["CELU", "ELU", "GELU", "GLU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish"]
ACTIVATIONS += ["ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh", "PReLU", "Hardshrink"]
ACTIVATIONS += ["Softshrink", "Tanhshrink"]
LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    *((name, {}, (3, 6)) for name in ACTIVATIONS),
    ("ELU", {"alpha": 0.5, "inplace": True}, (3, 6)),
    ("LeakyReLU", {"negative_slope": 0.2}, (3, 6)),
    ("LogSoftmax", {"dim": 1}, (3, 6)),
    ("Softmax", {"dim": 0}, (3, 6)),
    ("PReLU", {"num_parameters": 4, "init": 0.1}, (3, 4, 5)),
    ("AdaptiveAvgPool1d", {"output_size": 3}, (2, 3, 8)),
    ("AdaptiveAvgPool2d", {"output_size": (2, 3)}, (2, 3, 8, 7)),
    ("AdaptiveMaxPool2d", {"output_size": 2}, (2, 3, 8, 7)),
    ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 8)),
    ("AvgPool2d", {"kernel_size": 3, "padding": 1, "count_include_pad": False}, (2, 3, 8, 8)),
    ("AvgPool3d", {"kernel_size": 2}, (2, 3, 4, 4, 4)),
    ("MaxPool1d", {"kernel_size": 3, "stride": 1, "padding": 1}, (2, 3, 8)),
    ("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, (2, 3, 8, 8)),
    ("MaxPool3d", {"kernel_size": 2}, (2, 3, 4, 4, 4)),
    ("LPPool1d", {"norm_type": 3.0, "kernel_size": 3, "stride": 2, "ceil_mode": True}, (2, 3, 8)),
    ("LPPool2d", {"norm_type": 2, "kernel_size": (2, 3)}, (2, 3, 8, 7)),
    ("LPPool2d", {"norm_type": float("-inf"), "kernel_size": 2}, (2, 3, 8, 8)),
    ("LPPool3d", {"norm_type": 1, "kernel_size": 2, "stride": 1}, (2, 3, 4, 4, 4)),
    ("PixelShuffle", {"upscale_factor": 2}, (2, 8, 3, 3)),
    ("Unflatten", {"dim": 1, "unflattened_size": (2, 3)}, (2, 6)),
    ("Upsample", {"scale_factor": 2}, (2, 3, 4, 5)),
    ("Upsample", {"size": (7, 9), "mode": "bilinear", "align_corners": True}, (2, 3, 4, 5)),
    ("ZeroPad2d", {"padding": (1, 2, 0, 3)}, (2, 3, 4, 5)),
    ("ZeroPad2d", {"padding": 2}, (2, 3, 4, 5)),
    ("Flatten", {}, (2, 3, 4)),
    ("Softmin", {"dim": 1}, (3, 6)),
    ("Threshold", {"threshold": 0.5, "value": -1.0}, (3, 6)),
    ("AdaptiveAvgPool3d", {"output_size": 2}, (2, 3, 5, 4, 6)),
    ("AdaptiveMaxPool1d", {"output_size": 3}, (2, 3, 8)),
    ("AdaptiveMaxPool3d", {"output_size": (2, 1, 3)}, (2, 3, 5, 4, 6)),
    ("ChannelShuffle", {"groups": 3}, (2, 6, 4, 4)),
    ("PixelUnshuffle", {"downscale_factor": 2}, (2, 3, 4, 6)),
    ("ConstantPad1d", {"padding": (1, 2), "value": 3.5}, (2, 3, 4)),
    ("ConstantPad3d", {"padding": 1, "value": -1.0}, (1, 2, 3, 4, 5)),
    ("ZeroPad1d", {"padding": 2}, (2, 3, 4)),
    ("ReflectionPad1d", {"padding": (2, 1)}, (2, 3, 4)),
    ("ReflectionPad2d", {"padding": (1, 2, 0, 3)}, (2, 3, 4, 5)),
    ("ReplicationPad2d", {"padding": 2}, (2, 3, 4, 5)),
    ("ReplicationPad3d", {"padding": (1, 0, 2, 1, 0, 3)}, (1, 2, 3, 4, 5)),
    ("CircularPad2d", {"padding": (1, 2, 3, 0)}, (2, 3, 4, 5)),
    ("InstanceNorm1d", {"num_features": 3}, (2, 3, 9)),
    ("InstanceNorm2d", {"num_features": 3, "affine": True, "eps": 1e-3}, (2, 3, 4, 5)),
    ("InstanceNorm3d", {"num_features": 2}, (1, 2, 3, 4, 5)),
    ("LayerNorm", {"normalized_shape": 6, "bias": False}, (3, 6)),
    ("Dropout1d", {"p": 0.5}, (2, 3, 4)),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "arguments", "shape"), LAYERS)
def test_a_layer_is_that_of_torch(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    import torch

    x = RNG.standard_normal(shape).astype(np.float32) * 3
    expected = getattr(torch.nn, name)(**arguments).eval()(torch.tensor(x)).detach().numpy()
    layer = pickle.loads(pickle.dumps(getattr(nn, name)(**arguments)))
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert type(layer).__doc__


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("BCELoss", {}),
    ("BCEWithLogitsLoss", {"reduction": "sum"}),
    ("HuberLoss", {"delta": 0.5}),
    ("KLDivLoss", {"reduction": "batchmean"}),
    ("L1Loss", {}),
    ("MSELoss", {"reduction": "none"}),
    ("SmoothL1Loss", {"beta": 0.3}),
    ("PoissonNLLLoss", {"log_input": False}),
    ("CosineSimilarity", {"dim": 0}),
    ("PairwiseDistance", {"p": 1.0}),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "arguments"), LOSSES)
def test_a_loss_is_that_of_torch(name: str, arguments: dict[str, Any]) -> None:
    import torch

    x, y = (RNG.uniform(0.1, 0.9, (5, 4)).astype(np.float32) for _ in range(2))
    expected = getattr(torch.nn, name)(**arguments)(torch.tensor(x), torch.tensor(y)).numpy()
    np.testing.assert_allclose(getattr(nn, name)(**arguments)(Tensor(x), Tensor(y)).numpy(), expected, rtol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["CrossEntropyLoss", "NLLLoss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_are_weighted_as_in_torch(name: str, reduction: str, smoothing: float, weighted: bool) -> None:
    import torch

    x = RNG.standard_normal((6, 4, 3)).astype(np.float32)
    labels = RNG.integers(0, 4, (6, 3))
    labels[0, 0] = -100
    weight = np.array([0.5, 1, 2, 3], np.float32) if weighted else None
    arguments: dict[str, Any] = {"reduction": reduction}
    if name == "CrossEntropyLoss":
        arguments["label_smoothing"] = smoothing
    targets: list[np.ndarray] = [labels]
    if name == "CrossEntropyLoss":
        targets.append(RNG.dirichlet(np.ones(4), (6, 3)).transpose(0, 2, 1).astype(np.float32))
    for target in targets:
        torch_weight = None if weight is None else torch.tensor(weight)
        expected = getattr(torch.nn, name)(torch_weight, **arguments)(torch.tensor(x), torch.tensor(target)).numpy()
        found = getattr(nn, name)(None if weight is None else Tensor(weight), **arguments)(Tensor(x), Tensor(target))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_weights_that_fit_no_class() -> None:
    x, y = Tensor.ones(2, 3), Tensor([0, 1])
    for target in (y, Tensor.ones(2, 3)):
        with pytest.raises(ShapeError, match="weights of shape"):
            x.cross_entropy(target, weight=Tensor([1.0, 2.0]))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["Conv3d", "ConvTranspose3d"])
def test_convolutions_of_space(name: str) -> None:
    import torch

    theirs, ours = (getattr(owner, name)(2, 3, 3, stride=2, padding=1) for owner in (torch.nn, nn))
    nn.state.load_state_dict(ours, {key: Tensor(value.detach().numpy()) for key, value in theirs.state_dict().items()})
    x = RNG.standard_normal((2, 2, 5, 6, 7)).astype(np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, (2, 1), "same"])
def test_convolutions_of_padded_images(mode: str, padding: Any) -> None:
    import torch

    arguments = {"padding": padding, "padding_mode": mode, "dilation": (1, 2)}
    theirs, ours = (owner.Conv2d(2, 3, (4, 3), **arguments) for owner in (torch.nn, nn))
    nn.state.load_state_dict(ours, {key: Tensor(value.detach().numpy()) for key, value in theirs.state_dict().items()})
    x = RNG.standard_normal((2, 2, 6, 7)).astype(np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_losses_of_three_tensors() -> None:
    import torch

    a, b, c = (RNG.standard_normal((5, 4)).astype(np.float32) for _ in range(3))
    sign = np.array([1, -1, 1, 1, -1], np.float32)
    for name, given in {
        "TripletMarginLoss": (a, b, c),
        "CosineEmbeddingLoss": (a, b, sign),
        "MarginRankingLoss": (a[:, 0], b[:, 0], sign),
        "GaussianNLLLoss": (a, b, np.abs(c) + 0.1),
        "HingeEmbeddingLoss": (a[:, 0], sign),
    }.items():
        expected = getattr(torch.nn, name)()(*map(torch.tensor, given)).numpy()
        np.testing.assert_allclose(getattr(nn, name)()(*map(Tensor, given)).numpy(), expected, rtol=1e-5, err_msg=name)


def test_layers_of_a_model() -> None:
    net = Net()
    assert [name for name, _ in net.named_children()] == ["features", "head"]
    names = [name for name, _ in net.named_modules()]
    assert names == ["", "features", "features.0", "features.1", "features.2", "features.3", "head"]
    assert sum(isinstance(layer, nn.Linear) for layer in net.modules()) == 2
    order: list[object] = []

    def start(layer: object) -> None:
        order.append(layer)
        if isinstance(layer, nn.Linear):
            nn.init.ones_(layer.weight)

    assert net.apply(start) is net
    assert order[-1] is net
    assert net.head.weight.tolist() == [[1.0] * 8] * 3
    assert [name for name, _ in net.named_buffers()] == [
        *(f"features.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")),
        "offset",
    ]
    assert net.requires_grad_(False) is net
    assert not any(tensor.requires_grad for tensor in net.parameters())
    with pytest.raises(ShapeError, match="give the momentum by name"):
        nn.BatchNorm2d(4, 1e-3, 0.01)


def test_channels_are_dropped_as_a_whole() -> None:
    Tensor.manual_seed(0)
    x = Tensor.ones(8, 50, 3, 3)
    with Tensor.train():
        found = nn.Dropout2d(0.4)(x).numpy()
    kept = found.reshape(400, 9)
    assert (kept == kept[:, :1]).all()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.6)}
    assert (kept[:, 0] == 0).mean() == pytest.approx(0.4, abs=0.08)
    assert nn.Dropout2d(0.4)(x).numpy().min() == 1
    with pytest.raises(ShapeError, match="Dropout2d: p=2"):
        nn.Dropout2d(2)


# ---------------------------------------------------------------- how parameters start

INITIAL: list[tuple[str, dict[str, Any], float, float]] = [  # name, arguments, mean and deviation of (60, 40, 3)
    ("uniform_", {"a": -1.0, "b": 3.0}, 1.0, 4 / np.sqrt(12)),
    ("normal_", {"mean": 2.0, "std": 0.5}, 2.0, 0.5),
    ("trunc_normal_", {"std": 0.02, "a": -1.0, "b": 1.0}, 0.0, 0.02),
    ("trunc_normal_", {}, 0.0, 0.8796),
    ("xavier_uniform_", {"gain": 2.0}, 0.0, 2 * np.sqrt(2 / 300)),
    ("xavier_normal_", {}, 0.0, np.sqrt(2 / 300)),
    ("kaiming_uniform_", {"a": np.sqrt(5)}, 0.0, np.sqrt(2 / 6 / 120)),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}, 0.0, np.sqrt(2 / 180)),
    ("constant_", {"val": 3.0}, 3.0, 0.0),
    ("zeros_", {}, 0.0, 0.0),
    ("ones_", {}, 1.0, 0.0),
]


@pytest.mark.parametrize(("name", "arguments", "mean", "deviation"), INITIAL)
def test_how_a_parameter_starts(name: str, arguments: dict[str, Any], mean: float, deviation: float) -> None:
    Tensor.manual_seed(0)
    parameter = nn.Parameter(np.full((60, 40, 3), 9, np.float32))
    assert getattr(nn.init, name)(parameter, **arguments) is parameter
    assert parameter.requires_grad
    found = parameter.numpy()
    assert found.mean() == pytest.approx(mean, abs=0.05 * deviation + 1e-6)
    assert found.std() == pytest.approx(deviation, rel=0.03)
    low, high = arguments.get("a", -np.inf), arguments.get("b", np.inf)
    if name in ("uniform_", "trunc_normal_"):
        assert found.min() >= low
        assert found.max() <= high


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 2, 4)])
def test_orthogonal_rows(shape: tuple[int, ...]) -> None:
    matrix = nn.init.orthogonal_(nn.Parameter(np.zeros(shape, np.float32)), gain=2.0).numpy().reshape(shape[0], -1)
    gram = matrix.T @ matrix if matrix.shape[0] > matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_what_cannot_start_so() -> None:
    with pytest.raises(ShapeError, match="kaiming_uniform_: shape"):
        nn.init.kaiming_uniform_(Tensor.zeros(3))
    with pytest.raises(ShapeError, match="mode='in'"):
        nn.init.kaiming_normal_(Tensor.zeros(3, 3), mode="in")
    with pytest.raises(ShapeError, match="calculate_gain"):
        nn.init.calculate_gain("gelu2")


def test_gradients_set_to_zero() -> None:
    weight = nn.Parameter([1.0, 2.0])
    optimizer = nn.optim.SGD([weight], lr=0.5)
    (weight * 3).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad(set_to_none=True)
    assert weight.grad is None
    assert nn.ReLU(True)(weight).tolist() == [1.0, 2.0]
    assert nn.LeakyReLU(0.5, True)(-weight).tolist() == [-0.5, -1.0]


def test_values_and_indices_by_name() -> None:
    x = Tensor([[3.0, 1.0, 2.0]])
    assert x.topk(2, sorted=True).values.tolist() == [[3.0, 2.0]]
    assert x.sort().indices.tolist() == [[1, 2, 0]]
    assert x.cummax(1).values.tolist() == [[3.0, 3.0, 3.0]]
    values, indices = x.sort(descending=True)
    assert (values.tolist(), indices.tolist()) == ([[3.0, 2.0, 1.0]], [[0, 2, 1]])
    assert x.flip(dims=(1,)).tolist() == [[2.0, 1.0, 3.0]]
    assert Tensor([0, 1, 0]).multinomial(4, replacement=True).tolist() == [1, 1, 1, 1]
