"""Rows of the op table: movement, joining, creation, random numbers, and facts about tensors."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np

from tests.ops.rows import ALL, FLOATS, INTS, NUMBERS, WIDE_FLOATS, Input, Row, fact, made, moved, random_row
from tilewright import Device, Tensor


def windows(x: np.ndarray, size: int, step: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]


MOVEMENT = [
    moved("T", lambda x: x.T, lambda x: x.T, (2, 3)),
    moved("reshape", lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1)),
    moved("reshape", lambda x: x.reshape(shape=(6, 4)), lambda x: x.reshape(6, 4), label="named"),
    moved("reshape", lambda x: x.reshape(()), lambda x: x.reshape(()), (1, 1), label="to 0-d"),
    moved("reshape", lambda x: x.reshape(None, -1), lambda x: x.reshape(2, 12), torch=None, label="None"),
    moved("view", lambda x: x.view(4, 6), lambda x: x.reshape(4, 6)),
    moved("flatten", lambda x: x.flatten(1), lambda x: x.reshape(2, 12)),
    moved("flatten", lambda x: x.flatten(), lambda x: x.reshape(1), (), label="0-d"),
    moved("unflatten", lambda x: x.unflatten(-1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2)),
    moved("squeeze", lambda x: x.squeeze(), np.squeeze, (2, 1, 3, 1)),
    moved("squeeze", lambda x: x.squeeze(-1), lambda x: x[..., 0], (2, 1, 3, 1), label="dim"),
    moved("unsqueeze", lambda x: x.unsqueeze(-2), lambda x: x[:, :, None]),
    moved("expand", lambda x: x.expand(5, -1, 4), lambda x: np.broadcast_to(x, (5, 3, 4)), (3, 1)),
    moved("permute", lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    moved("permute", lambda x: x.permute((-1, 0, 1)), lambda x: x.transpose(2, 0, 1), label="negative"),
    moved("transpose", lambda x: x.transpose(0, -1), lambda x: x.swapaxes(0, 2)),
    moved("transpose", lambda x: np.transpose(x), lambda x: x.T, torch=None, label="of NumPy"),
    moved("transpose", lambda x: np.moveaxis(x, 0, 2), lambda x: x.transpose(1, 2, 0), torch=None, label="moveaxis"),
    moved("flip", lambda x: x.flip(0, -1), lambda x: x[::-1, :, ::-1]),
    moved("flip", lambda x: x.flip((1,)), lambda x: x[:, ::-1], label="tuple"),
    moved("shrink", lambda x: x.shrink(((0, 1), None, (1, 3))), lambda x: x[:1, :, 1:3], torch=None),
    moved("split", lambda x: x.split(2, dim=-1), lambda x: np.split(x, 2, -1), result=("same",) * 2),
    moved(
        "split",
        lambda x: x.split([1, 3], dim=2),
        lambda x: (x[..., :1], x[..., 1:]),
        result=("same",) * 2,
        label="sizes",
    ),
    moved("chunk", lambda x: x.chunk(2, 1), lambda x: (x[:, :2], x[:, 2:]), result=("same",) * 2),
    moved(
        "pad",
        lambda x: x.pad((1, 2, 0, 1)),
        lambda x: np.pad(x, ((0, 0), (0, 1), (1, 2))),
        torch=lambda t, x: t.nn.functional.pad(x, (1, 2, 0, 1)),
    ),
    moved(
        "pad",
        lambda x: x.pad((1, 1), value=3),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1)), constant_values=3),
        dtypes=NUMBERS,
        label="value",
        torch=lambda t, x: t.nn.functional.pad(x, (1, 1), value=3),
    ),
    moved(
        "pad",
        lambda x: x.pad((2, 1), mode="reflect"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), "reflect"),
        label="reflect",
        torch=lambda t, x: t.nn.functional.pad(x, (2, 1), "reflect"),
        dtypes=NUMBERS,
    ),
    moved(
        "pad",
        lambda x: x.pad((2, 1), mode="replicate"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), "edge"),
        label="replicate",
        torch=lambda t, x: t.nn.functional.pad(x, (2, 1), "replicate"),
        dtypes=FLOATS,
    ),
    moved(
        "pad",
        lambda x: x.pad((2, 1), mode="circular"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), "wrap"),
        label="circular",
        torch=lambda t, x: t.nn.functional.pad(x, (2, 1), "circular"),
        dtypes=FLOATS,
    ),
    moved(
        "pad",
        lambda x: x.pad((-1, 2)),
        lambda x: np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 2))),
        label="negative",
        torch=lambda t, x: t.nn.functional.pad(x, (-1, 2)),
        dtypes=FLOATS,
    ),
    moved("repeat", lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    moved("repeat_interleave", lambda x: x.repeat_interleave(2, 1), lambda x: np.repeat(x, 2, 1)),
    moved("repeat_interleave", lambda x: x.repeat_interleave(3), lambda x: np.repeat(x, 3), label="flat"),
    moved("roll", lambda x: x.roll((1, -2), (0, 2)), lambda x: np.roll(x, (1, -2), (0, 2))),
    moved("roll", lambda x: x.roll(5), lambda x: np.roll(x, 5), label="flat"),
    moved("unfold", lambda x: x.unfold(1, 3, 2), lambda x: windows(x, 3, 2), (2, 8)),
    moved("diagonal", lambda x: x.diagonal(1), lambda x: np.diagonal(x, 1), (3, 4)),
    moved("diagonal", lambda x: x.diagonal(-1, 0, 2), lambda x: np.diagonal(x, -1, 0, 2), (3, 2, 4), label="dims"),
    moved("diag", lambda x: x.diag(), np.diag, (3,)),
    moved("diag", lambda x: x.diag(), np.diag, (3, 4), label="of a matrix"),
    moved("tril", lambda x: x.tril(1), lambda x: np.tril(x, 1)),
    moved("triu", lambda x: x.triu(-1), lambda x: np.triu(x, -1)),
    moved(
        "cat",
        lambda x, y: x.cat(y, dim=-1),
        lambda x, y: np.concatenate((x, y), -1),
        (2, 3),
        (2, 1),
        torch=lambda t, x, y: t.cat((x, y), -1),
    ),
    moved(
        "cat",
        lambda x, y: Tensor.cat(x, y, x),
        lambda x, y: np.concatenate((x, y, x)),
        (0, 3),
        (2, 3),
        torch=None,
        label="empty",
        gradient=False,
    ),
    moved(
        "stack",
        lambda x, y: x.stack(y, dim=1),
        lambda x, y: np.stack((x, y), 1),
        (2, 3),
        (2, 3),
        torch=lambda t, x, y: t.stack((x, y), 1),
    ),
    moved(
        "meshgrid",
        lambda x, y: x.meshgrid(y),
        lambda x, y: np.meshgrid(x, y, indexing="ij"),
        (3,),
        (2,),
        result=("same",) * 2,
        torch=lambda t, x, y: t.meshgrid(x, y, indexing="ij"),
    ),
    moved(
        "meshgrid",
        lambda x, y: x.meshgrid(y, indexing="xy"),
        lambda x, y: np.meshgrid(x, y),
        (3,),
        (2,),
        result=("same",) * 2,
        torch=lambda t, x, y: t.meshgrid(x, y, indexing="xy"),
        label="xy",
    ),
    moved(
        "rearrange",
        lambda x: x.rearrange("a (b c) d -> d (a c) b", c=3),
        lambda x: x.reshape(2, 2, 3, 4).transpose(3, 0, 2, 1).reshape(4, 6, 2),
        (2, 6, 4),
        torch=None,
    ),
    moved(
        "rearrange",
        lambda x: x.rearrange("... a 1 -> a (...)"),
        lambda x: x[..., 0].reshape(6, 4).T,
        (2, 3, 4, 1),
        torch=None,
        label="ellipsis",
    ),
    moved("contiguous", lambda x: x.transpose(0, 1).contiguous(), lambda x: x.swapaxes(0, 1)),
    moved("contiguous_backward", lambda x: x.contiguous_backward(), np.array, torch=None),
    moved("clone", lambda x: x.clone(), np.array),
    moved("detach", lambda x: x.detach(), np.array, gradient=False),
]


def assigned(x: Tensor, y: Tensor) -> Tensor:
    result = x.clone()
    result.assign(y)
    return result


def replaced(x: Tensor, y: Tensor) -> Tensor:
    return x.clone().replace(y)


PLACES = [
    moved("assign", assigned, lambda x, y: y, (2, 3), (2, 3), gradient=False, torch=None),
    moved("replace", replaced, lambda x, y: y, (2, 3), (2, 3), gradient=False, torch=None),
    moved("to", lambda x: x.to("CPU").to("PYTHON").to(x.device), np.array, gradient=False, torch=None),
    moved("to_", lambda x: x.clone().to_("PYTHON").to_(x.device), np.array, gradient=False, torch=None),
    moved("realize", lambda x: (x.flip(0)).realize(), lambda x: x[::-1], gradient=False, torch=None),
    moved("synchronize", lambda x: x.clone().synchronize(), np.array, gradient=False, torch=None),
    fact("schedule", lambda x: len((x + 1).schedule(x + 1).items), lambda x: 1),
    moved("requires_grad_", lambda x: x.clone().requires_grad_(False), np.array, gradient=False, torch=None),
    moved("sequential", lambda x: x.sequential([lambda t: t.flip(0), lambda t: t.T]), lambda x: x[::-1].T, torch=None),
    moved("pickle", lambda x: pickle.loads(pickle.dumps(x.T)), lambda x: x.T, gradient=False, torch=None),
    moved("copy", copy.copy, np.array, torch=None),
    moved("deepcopy", copy.deepcopy, np.array, torch=None),
]

NO_GRAD = Tensor.no_grad()

FACTS = [
    fact("shape", lambda x: x.shape, lambda x: x.shape),
    fact("dtype", lambda x: x.dtype.name, lambda x: "float32"),
    fact("ndim", lambda x: x.ndim, lambda x: 2),
    fact("device", lambda x: x.device in set(Device), lambda x: True),
    fact("numel", lambda x: x.numel(), lambda x: x.size),
    fact("nbytes", lambda x: x.nbytes(), lambda x: x.size * 4),
    fact("element_size", lambda x: x.element_size(), lambda x: 4),
    fact("size", lambda x: (x.size(-1), x.size(0)), lambda x: (4, 3)),
    fact("is_floating_point", lambda x: x.is_floating_point(), lambda x: True),
    fact("item", lambda x: x.item(), lambda x: 1.5, inputs=(Input(values=[[1.5]]),)),
    fact("tolist", lambda x: (x.tolist(),), lambda x: (x.tolist(),), inputs=(Input((2, 2)),)),
    fact("numpy", lambda x: x.numpy().tolist() == x.tolist(), lambda x: True),
    fact("data", lambda x: x.data().tolist() == x.tolist(), lambda x: True),
    fact("allclose", lambda x: (x.allclose(x + 1e-7), x.allclose(x + 1)), lambda x: (True, False)),
    fact(
        "requires_grad", lambda x: (x.requires_grad, x.clone().requires_grad_().requires_grad), lambda x: (False, True)
    ),
    fact("no_grad", lambda x: NO_GRAD(lambda: (x.clone().requires_grad_() * 2).requires_grad)(), lambda x: False),
    fact("train", lambda x: Tensor.train()(lambda: Tensor.training)(), lambda x: True),
    fact("training", lambda x: Tensor.training, lambda x: False),
    fact(
        "protocols",
        lambda x: (len(x), len(list(x)), bool(x[0, 0] == x[0, 0]), x[0, 0].item() in x),
        lambda x: (3, 3, True, True),
    ),
    fact(
        "protocols",
        lambda x: (float(x), int(x), f"{x!r}"[:11]),
        lambda x: (2.5, 2, "Tensor(2.50"),
        inputs=(Input(values=2.5),),
        label="number",
    ),
    fact(
        "protocols",
        lambda x: (np.asarray(x).tolist(), np.from_dlpack(x).tolist()),
        lambda x: (x.tolist(),) * 2,
        label="arrays",
    ),
]

CREATION = [
    made("zeros", lambda device, dtype: Tensor.zeros(2, 3, device=device, dtype=dtype), lambda: np.zeros((2, 3)), ALL),
    made("ones", lambda device, dtype: Tensor.ones((2, 3), device=device, dtype=dtype), lambda: np.ones((2, 3)), ALL),
    made("full", lambda device, dtype: Tensor.full((2, 3), 1, dtype, device), lambda: np.ones((2, 3)), ALL),
    made(
        "empty",
        lambda device, dtype: Tensor.empty(2, 3, device=device, dtype=dtype).assign(
            Tensor.ones(2, 3, device=device, dtype=dtype)
        ),
        lambda: np.ones((2, 3)),
        ALL,
    ),
    made("Tensor", lambda device, dtype: Tensor([[1, 0], [0, 1]], device=device, dtype=dtype), lambda: np.eye(2), ALL),
    made(
        "arange",
        lambda device, dtype: Tensor.arange(1, 8, 2, dtype=dtype, device=device),
        lambda: np.arange(1, 8, 2),
        NUMBERS,
    ),
    made(
        "arange",
        lambda device, dtype: Tensor.arange(0, 1, 0.25, dtype=dtype, device=device),
        lambda: np.arange(0, 1, 0.25),
        WIDE_FLOATS,
        label="fractions",
    ),
    made(
        "arange",
        lambda device, dtype: Tensor.arange(5, -1, -2, dtype=dtype, device=device),
        lambda: np.arange(5, -1, -2),
        NUMBERS,
        label="down",
    ),
    made(
        "linspace",
        lambda device, dtype: Tensor.linspace(0, 1, 5, dtype=dtype, device=device),
        lambda: np.linspace(0, 1, 5),
        FLOATS,
    ),
    made(
        "from_url",
        lambda device, dtype: Tensor.from_url(Path(__file__).as_uri(), progress=False, device=device, dtype=dtype)[:40],
        lambda: np.fromfile(__file__, np.uint8, 40),
        ("uint8",),
    ),
    made("eye", lambda device, dtype: Tensor.eye(3, 4, dtype=dtype, device=device), lambda: np.eye(3, 4), ALL),
    moved("zeros_like", lambda x: x.zeros_like(), np.zeros_like, gradient=False, torch=lambda t, x: t.zeros_like(x)),
    moved("ones_like", lambda x: x.ones_like(), np.ones_like, gradient=False, torch=lambda t, x: t.ones_like(x)),
    moved("full_like", lambda x: x.full_like(1), np.ones_like, gradient=False, torch=None),
    moved("empty_like", lambda x: x.empty_like().assign(x), np.array, gradient=False, torch=None),
    Row(
        "one_hot",
        lambda x: x.one_hot(4),
        lambda x: np.eye(4)[x],
        (Input((5,), 0, 3),),
        INTS,
        False,
        "int64",
        torch=lambda t, x: t.nn.functional.one_hot(x.long(), 4),
    ),
]

COUNT = 4096


def spread(low: float, high: float):
    """Uniform numbers: inside, with the right mean, and not all alike."""

    def check(x: np.ndarray) -> bool:
        x = x.astype(np.float64)
        error = 5 * (high - low) / math.sqrt(12 * x.size) + (high - low) / 100
        return x.min() >= low and x.max() <= high and abs(x.mean() - (low + high) / 2) < error and len(np.unique(x)) > 8

    return check


def bell(mean: float, std: float):
    def check(x: np.ndarray) -> bool:
        x = x.astype(np.float64)
        return abs(x.mean() - mean) < 0.1 * std and abs(x.std() - std) < 0.1 * std

    return check


def is_permutation(x: np.ndarray) -> bool:
    return np.array_equal(np.sort(x), np.arange(x.size)) and not np.array_equal(x, np.arange(x.size))


def kept_half(x: np.ndarray) -> bool:
    return set(np.unique(x.astype(np.float64))) == {0.0, 2.0} and abs(float((x != 0).mean()) - 0.5) < 0.05


GLOROT = math.sqrt(6 / (64 + 64))
KAIMING = math.sqrt(2 / (1 + 0.01**2)) / 8
TRAIN = Tensor.train()

RANDOM = [
    random_row("rand", lambda device, dtype: Tensor.rand(COUNT, device=device, dtype=dtype), spread(0, 1), WIDE_FLOATS),
    random_row(
        "rand_like",
        lambda device, dtype: Tensor.zeros(COUNT, device=device, dtype=dtype).rand_like(),
        spread(0, 1),
        WIDE_FLOATS,
    ),
    random_row("randn", lambda device, dtype: Tensor.randn(COUNT, device=device, dtype=dtype), bell(0, 1), WIDE_FLOATS),
    random_row(
        "randn_like",
        lambda device, dtype: Tensor.zeros(COUNT, device=device, dtype=dtype).randn_like(),
        bell(0, 1),
        WIDE_FLOATS,
    ),
    random_row(
        "normal",
        lambda device, dtype: Tensor.normal(COUNT, mean=3, std=0.5, device=device, dtype=dtype),
        bell(3, 0.5),
        WIDE_FLOATS,
    ),
    random_row(
        "uniform",
        lambda device, dtype: Tensor.uniform(COUNT, low=-1, high=3, device=device, dtype=dtype),
        spread(-1, 3),
        WIDE_FLOATS,
    ),
    random_row(
        "randint",
        lambda device, dtype: Tensor.randint(COUNT, low=3, high=20, device=device, dtype=dtype),
        spread(3, 19),
        INTS,
    ),
    random_row(
        "randperm",
        lambda device, dtype: Tensor.randperm(100, device=device, dtype=dtype),
        is_permutation,
        ("int32", "int64", "uint8"),
    ),
    random_row(
        "scaled_uniform",
        lambda device, dtype: Tensor.scaled_uniform(64, 64, device=device, dtype=dtype),
        spread(-1 / 64, 1 / 64),
        WIDE_FLOATS,
    ),
    random_row(
        "glorot_uniform",
        lambda device, dtype: Tensor.glorot_uniform(64, 64, device=device, dtype=dtype),
        spread(-GLOROT - 1e-3, GLOROT + 1e-3),
        WIDE_FLOATS,
    ),
    random_row(
        "kaiming_uniform",
        lambda device, dtype: Tensor.kaiming_uniform(64, 64, device=device, dtype=dtype),
        spread(-KAIMING * math.sqrt(3) - 2e-3, KAIMING * math.sqrt(3) + 2e-3),
        WIDE_FLOATS,
    ),
    random_row(
        "kaiming_normal",
        lambda device, dtype: Tensor.kaiming_normal(64, 64, device=device, dtype=dtype),
        bell(0, KAIMING),
        WIDE_FLOATS,
    ),
    random_row(
        "multinomial",
        lambda device, dtype: Tensor([1.0, 0.0, 3.0], device=device, dtype=dtype).multinomial(COUNT, replacement=True),
        lambda x: not (x == 1).any() and abs(float((x == 2).mean()) - 0.75) < 0.05,
        WIDE_FLOATS,
    ),
    random_row(
        "multinomial",
        lambda device, dtype: Tensor([[1.0, 0.0, 3.0, 1.0]] * 2, device=device, dtype=dtype).multinomial(3),
        lambda x: x.shape == (2, 3) and np.array_equal(np.sort(x, -1), [[0, 2, 3]] * 2),
        WIDE_FLOATS,
        label="once",
    ),
    random_row(
        "dropout",
        lambda device, dtype: TRAIN(lambda: Tensor.ones(COUNT, device=device, dtype=dtype).dropout(0.5))(),
        kept_half,
        WIDE_FLOATS,
    ),
    moved("dropout", lambda x: x.dropout(0.5), np.array, label="not training", torch=None),
    random_row(
        "manual_seed",
        lambda device, dtype: (
            Tensor.manual_seed(7),
            Tensor.rand(8, device=device, dtype=dtype).realize(),
            Tensor.manual_seed(7),
            Tensor.rand(8, device=device, dtype=dtype).realize(),
        )[1::2],
        np.array_equal,
        WIDE_FLOATS,
    ),
]

ROWS = MOVEMENT + PLACES + FACTS + CREATION + RANDOM
