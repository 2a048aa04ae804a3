"""`nn.functional` against torch's: every function with torch's positional arguments and with their names. And what
`print` shows of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.nn.functional as F
from tilewright import Tensor, nn
from tilewright.base.errors import DTypeError, ShapeError

_RNG = np.random.default_rng(0)


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape).astype(np.float32)


X, Y, IMAGE = _random(4, 6), _random(4, 6), _random(2, 4, 6, 5)
ROW, SIGNS, PART = _random(2, 4, 9), np.sign(_random(4)), 1 / (1 + np.exp(-X))
CLASSES = np.array([1, 5, -100, 0])
PICTURE = np.arange(6).reshape(2, 3)
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(
        (name, (X,), {})
        for name in (*F._PLAIN, "softsign", "tanhshrink", "gelu", "softplus", "hardshrink", "softshrink")
    ),
    *((name, (X, 0), {}) for name in ("softmax", "log_softmax", "softmin", "glu")),
    ("softmax", (X,), {"dim": 1}),
    ("elu", (X, 0.5), {}),
    ("celu", (X, 0.5), {}),
    ("leaky_relu", (X, 0.2), {"inplace": True}),
    ("leaky_relu", (X,), {"negative_slope": 0.3}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("hardtanh", (X, -0.5, 0.3), {}),
    ("threshold", (X, 0.1, 7.0), {}),
    ("prelu", (X, _random(6)), {}),
    ("linear", (X, _random(3, 6), _random(3)), {}),
    ("linear", (IMAGE, _random(3, 5)), {}),
    ("embedding", (np.array([[0, 2], [3, 3]]), X), {}),
    ("one_hot", (PICTURE,), {}),
    ("one_hot", (PICTURE, 7), {}),
    ("conv1d", (ROW, _random(6, 2, 3), _random(6), 2, 1, 2, 2), {}),
    ("conv2d", (IMAGE, _random(4, 2, 3, 2), None, (2, 1), 1), {"groups": 2}),
    ("conv3d", (_random(1, 2, 4, 3, 3), _random(3, 2, 2, 2, 2)), {"padding": 1}),
    ("conv_transpose1d", (ROW, _random(4, 2, 3), _random(2), 2, 1, 1), {}),
    ("conv_transpose2d", (IMAGE, _random(4, 1, 3, 2), None, 2, 1, 1, 2, 2), {}),
    ("avg_pool1d", (ROW, 3, 2, 1), {"count_include_pad": False}),
    ("avg_pool2d", (IMAGE, 2, 1, 1, True), {}),
    ("max_pool1d", (ROW, 3, 2, 1), {}),
    ("max_pool2d", (IMAGE, 2, 1, 1, 2), {}),
    ("max_pool3d", (_random(1, 2, 4, 3, 3), 2), {"ceil_mode": True}),
    ("adaptive_avg_pool2d", (IMAGE, (3, 2)), {}),
    ("adaptive_max_pool2d", (IMAGE, 2), {}),
    ("mse_loss", (X, Y), {"reduction": "sum"}),
    ("l1_loss", (X, Y), {}),
    ("smooth_l1_loss", (X, Y), {"beta": 0.5}),
    ("huber_loss", (X, Y, "sum", 0.7), {}),
    ("kl_div", (X, PART), {"reduction": "batchmean"}),
    ("binary_cross_entropy", (PART, PART[::-1].copy()), {}),
    ("binary_cross_entropy", (PART, PART[::-1].copy(), np.abs(X)), {"reduction": "sum"}),
    ("binary_cross_entropy_with_logits", (X, PART, np.abs(Y[0])), {}),
    ("instance_norm", (IMAGE, None, None, _random(4), _random(4)), {"eps": 1e-2}),
    ("instance_norm", (IMAGE, _random(4), np.abs(_random(4)), None, None, False), {}),
    ("affine_grid", (_random(2, 2, 3), (2, 4, 6, 5)), {"align_corners": True}),
    ("affine_grid", (_random(2, 3, 4), (2, 4, 6, 1, 5), False), {}),
    ("binary_cross_entropy_with_logits", (X, PART), {"pos_weight": np.abs(X[0])}),
    ("cross_entropy", (X, CLASSES), {}),
    ("cross_entropy", (X, CLASSES, np.abs(X[1])), {"label_smoothing": 0.1, "reduction": "sum"}),
    ("nll_loss", (X, CLASSES, np.abs(X[1])), {"ignore_index": 5 - 105}),
    ("poisson_nll_loss", (X, PART), {}),
    ("gaussian_nll_loss", (X, Y, PART), {}),
    ("hinge_embedding_loss", (X[:, 0].copy(), SIGNS), {}),
    ("cosine_embedding_loss", (X, Y, SIGNS), {"margin": 0.1}),
    ("margin_ranking_loss", (X[:, 0].copy(), Y[:, 0].copy(), SIGNS, 0.2), {}),
    ("triplet_margin_loss", (X, Y, PART, 0.5), {}),
    ("cosine_similarity", (X, Y, 0), {}),
    ("pairwise_distance", (X, Y, 1.0), {"keepdim": True}),
    ("normalize", (X, 1.0, 0), {}),
    ("pad", (X, (1, 2, 0, 1)), {"value": 3.0}),
    ("pad", (ROW, (1, 2), "circular"), {}),
    ("pixel_shuffle", (IMAGE, 2), {}),
    ("pixel_unshuffle", (IMAGE[:, :, :, :4].copy(), 2), {}),
    ("interpolate", (IMAGE, (9, 3)), {}),
    ("interpolate", (IMAGE, None, 2.0, "bilinear"), {"align_corners": True}),
    ("grid_sample", (IMAGE, PART[:2, :4].reshape(2, 2, 1, 2).copy()), {"align_corners": False}),
    ("layer_norm", (IMAGE, (6, 5), _random(6, 5), _random(6, 5)), {}),
    ("layer_norm", (X, (6,)), {"bias": _random(6)}),
    ("rms_norm", (X, (6,), _random(6)), {}),
    ("rms_norm", (IMAGE, (6, 5)), {"eps": 1e-2}),
    ("group_norm", (IMAGE, 2, _random(4)), {}),
    ("scaled_dot_product_attention", (IMAGE, IMAGE + 1, IMAGE - 1), {"is_causal": True}),
    ("dropout", (X, 0.5, False), {}),
]


def _converted(value: Any, make: Any) -> Any:
    return make(value) if isinstance(value, np.ndarray) else value


@pytest.mark.torch
@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{k}-{case[0]}" for k, case in enumerate(CASES)])
def test_like_torch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import torch
    import torch.nn.functional

    expected = getattr(torch.nn.functional, name)(
        *(_converted(value, torch.tensor) for value in args),
        **{key: _converted(value, torch.tensor) for key, value in kwargs.items()},
    )
    found = getattr(F, name)(
        *(_converted(value, Tensor) for value in args),
        **{key: _converted(value, Tensor) for key, value in kwargs.items()},
    )
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-6)


def test_what_is_not_taken_is_refused() -> None:
    x = Tensor(X)
    with pytest.raises(DTypeError, match="relu: 0 arguments after the tensor and beta by name"):
        F.relu(x, beta=1)  # type: ignore[attr-defined]
    with pytest.raises(DTypeError, match="give dim dtype, each once"):
        F.softmax(x, 1, dim=0)  # type: ignore[attr-defined]
    with pytest.raises(DTypeError, match="elu: 2 arguments"):
        F.elu(x, 1.0, 2.0)  # type: ignore[attr-defined]
    with pytest.raises(DTypeError, match="relu: input is a list"):
        F.relu([1.0])  # type: ignore[attr-defined]
    with pytest.raises(ShapeError, match="layer_norm"):
        F.layer_norm(x, (5,))
    with pytest.raises(ShapeError, match="group_norm"):
        F.group_norm(x, 4)
    with pytest.raises(DTypeError, match="embedding"):
        F.embedding(x, x)


def test_dropout_drops_also_outside_of_training_mode() -> None:
    dropped = F.dropout(Tensor.ones(1000), 0.25)
    assert 150 < (dropped.numpy() == 0).sum() < 350
    assert not Tensor.training


def test_samples_of_a_gumbel_softmax() -> None:
    Tensor.manual_seed(0)
    logits = Tensor([0.1, 0.2, 0.7]).log().expand(4000, 3).contiguous().requires_grad_()
    hard = F.gumbel_softmax(logits, hard=True)
    (slopes,) = (hard * Tensor([1.0, 2.0, 3.0])).sum().gradient(logits)
    Tensor.realize(hard, slopes)
    assert set(np.unique(hard.numpy().round(6))) == {0.0, 1.0}
    np.testing.assert_allclose(hard.numpy().mean(0), [0.1, 0.2, 0.7], atol=0.03)
    assert np.abs(slopes.numpy()).sum() > 100


def test_an_affine_grid_of_the_identity_samples_the_image_itself() -> None:
    theta = Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]).expand(2, 2, 3)
    sampled = F.grid_sample(Tensor(IMAGE), F.affine_grid(theta, IMAGE.shape))  # type: ignore[attr-defined]
    np.testing.assert_allclose(sampled.numpy(), IMAGE, atol=1e-5)
    with pytest.raises(ShapeError, match="affine_grid"):
        F.affine_grid(theta, (2, 4, 6))


def test_every_name_is_there() -> None:
    assert sorted(F.__all__) == sorted(set(F.__all__))
    assert {name for name, _, _ in CASES} <= set(F.__all__)
    for name in F.__all__:
        assert getattr(nn.functional, name).__doc__


class _Block(nn.Module):
    def __init__(self, size: int) -> None:
        self.norm = nn.LayerNorm(size)
        self.forward_part = nn.Sequential(nn.Linear(size, 8), Tensor.relu)
        self.table = {"a": Tensor.zeros(2)}
        self.scale = 0.5
        self.parent = self


def test_a_model_prints_its_layers() -> None:
    assert repr(_Block(3)) == "\n".join(
        (
            "_Block(scale=0.5",
            "  (norm): LayerNorm(normalized_shape=(3,), eps=1e-05, elementwise_affine=True, "
            "weight=float32[3], bias=float32[3])",
            "  (forward_part): Sequential(",
            "    (0): Linear(weight=float32[8, 3], bias=float32[8])",
            "    (1): relu",
            "  )",
            "  (table): dict(a=float32[2])",
            "  (parent): ...",
            ")",
        )
    )
    assert repr(nn.ModuleDict(a=nn.Dropout(0.1))) == "ModuleDict(\n  (a): Dropout(p=0.1)\n)"
    assert repr(nn.ModuleList()) == "ModuleList()"
    assert str(nn.Module()) == "Module()"
