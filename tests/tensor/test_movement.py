"""Movement operations against NumPy: odd sizes, size 1, size 0, negative axes, and bits that must come through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.tensor.tensor import Tensor

Check = Callable[..., None]

A = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
F = np.array([[1.5, -0.0, np.nan], [np.inf, 0.0, -2.0]], np.float32)
ROW = np.arange(7, dtype=np.float32)
SQUARE = np.arange(25, dtype=np.int32).reshape(5, 5)
EMPTY = np.zeros((2, 0, 3), np.float32)

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "reshape": (lambda t: t.reshape(4, 6), lambda x: x.reshape(4, 6), (A,)),
    "reshape tuple": (lambda t: t.reshape((6, -1)), lambda x: x.reshape(6, -1), (A,)),
    "reshape empty": (lambda t: t.reshape(3, 0, 7), lambda x: x.reshape(3, 0, 7), (EMPTY,)),
    "reshape to scalar": (lambda t: t.reshape(()), lambda x: x.reshape(()), (ROW[:1],)),
    "view": (lambda t: t.view(-1), lambda x: x.reshape(-1), (A,)),
    "flatten": (lambda t: t.flatten(1), lambda x: x.reshape(2, 12), (A,)),
    "flatten middle": (lambda t: t.flatten(0, -2), lambda x: x.reshape(6, 4), (A,)),
    "flatten scalar": (lambda t: t.flatten(), lambda x: x.reshape(1), (ROW[0],)),
    "unflatten": (lambda t: t.unflatten(-1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2), (A,)),
    "squeeze": (lambda t: t.squeeze(), np.squeeze, (A[:1, :, :1],)),
    "squeeze axis": (lambda t: t.squeeze(-1), lambda x: x[..., 0], (A[:1, :, :1],)),
    "squeeze other": (lambda t: t.squeeze(1), lambda x: x, (A,)),
    "unsqueeze": (lambda t: t.unsqueeze(-1), lambda x: x[..., None], (A,)),
    "unsqueeze front": (lambda t: t.unsqueeze(0), lambda x: x[None], (ROW,)),
    "expand": (lambda t: t.expand(5, -1, 3), lambda x: np.broadcast_to(x, (5, 7, 3)), (ROW[:, None],)),
    "expand to zero": (lambda t: t.expand(0, 7), lambda x: np.zeros((0, 7), np.float32), (ROW[None],)),
    "permute": (lambda t: t.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1), (A,)),
    "permute twice": (lambda t: t.permute((2, 0, 1)).permute(-1, 0, 1), lambda x: x.transpose(1, 2, 0), (A,)),
    "transpose": (lambda t: t.transpose(), lambda x: x.swapaxes(0, 1), (A,)),
    "transpose negative": (lambda t: t.transpose(-1, 0), lambda x: x.swapaxes(-1, 0), (A,)),
    "T": (lambda t: t.T, lambda x: x.T, (A,)),
    "flip": (lambda t: t.flip(0, -1), lambda x: np.flip(x, (0, -1)), (A,)),
    "flip of flip": (lambda t: t.flip(0, 1).flip((1, 2)), lambda x: np.flip(x, (0, 2)), (A,)),
    "shrink": (lambda t: t.shrink(((0, 1), None, (1, 3))), lambda x: x[0:1, :, 1:3], (A,)),
    "shrink of shrink": (lambda t: t.shrink(((2, 7),)).shrink(((1, 3),)), lambda x: x[3:5], (ROW,)),
    "shrink to nothing": (lambda t: t.shrink(((3, 3),)), lambda x: x[3:3], (ROW,)),
    "pad flat": (lambda t: t.pad((1, 2)), lambda x: np.pad(x, ((0, 0), (1, 2))), (SQUARE,)),
    "pad flat two axes": (lambda t: t.pad((1, 2, 3, 0)), lambda x: np.pad(x, ((3, 0), (1, 2))), (SQUARE,)),
    "pad pairs": (lambda t: t.pad(((1, 0), None)), lambda x: np.pad(x, ((1, 0), (0, 0))), (SQUARE,)),
    "pad value": (lambda t: t.pad((2, 1), value=-7), lambda x: np.pad(x, (2, 1), constant_values=-7), (ROW,)),
    "pad infinite": (
        lambda t: t.pad((1, 1), value=-math.inf),
        lambda x: np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf),
        (F,),
    ),
    "pad minus zero": (lambda t: t.pad((1, 0), value=-0.0), lambda x: np.append(np.float32(-0.0), x), (ROW,)),
    "pad negative": (lambda t: t.pad((-2, 1)), lambda x: np.append(x[2:], np.float32(0)), (ROW,)),
    "pad of pad": (lambda t: t.pad((1, 0)).pad((0, 2)), lambda x: np.pad(x, (1, 2)), (ROW,)),
    "pad empty": (lambda t: t.pad((0, 0, 1, 1)), lambda x: np.zeros((2, 2, 3), np.float32), (EMPTY,)),
    "pad reflect": (lambda t: t.pad((3, 2), "reflect"), lambda x: np.pad(x, (3, 2), "reflect"), (ROW,)),
    "pad replicate": (lambda t: t.pad((3, 9), "replicate"), lambda x: np.pad(x, (3, 9), "edge"), (ROW,)),
    "pad reflect, cut": (lambda t: t.pad((-3, 4), "reflect"), lambda x: np.pad(x, (0, 4), "reflect")[3:], (ROW,)),
    "pad reflect, cut behind": (
        lambda t: t.pad((4, -6), "reflect"),
        lambda x: np.pad(x, (4, 0), "reflect")[:-6],
        (ROW,),
    ),
    "pad replicate, cut": (lambda t: t.pad((-7, 2), "replicate"), lambda x: np.pad(x, (0, 2), "edge")[7:], (ROW,)),
    "pad circular, cut": (lambda t: t.pad((-2, 3), "circular"), lambda x: np.pad(x[2:], (0, 3), "wrap"), (ROW,)),
    "pad circular": (lambda t: t.pad((3, 7), "circular"), lambda x: np.pad(x, (3, 7), "wrap"), (ROW,)),
    "repeat": (lambda t: t.repeat(2, 3), lambda x: np.tile(x, (2, 3)), (SQUARE,)),
    "repeat new axis": (lambda t: t.repeat((2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), (SQUARE,)),
    "repeat never": (lambda t: t.repeat(0), lambda x: x[:0], (ROW,)),
    "repeat_interleave": (lambda t: t.repeat_interleave(3, 1), lambda x: np.repeat(x, 3, 1), (A,)),
    "repeat_interleave flat": (lambda t: t.repeat_interleave(2), lambda x: np.repeat(x, 2), (A,)),
    "roll": (lambda t: t.roll(2, -1), lambda x: np.roll(x, 2, -1), (A,)),
    "roll two": (lambda t: t.roll((1, -5), (0, 2)), lambda x: np.roll(x, (1, -5), (0, 2)), (A,)),
    "roll flat": (lambda t: t.roll(-3), lambda x: np.roll(x, -3), (A,)),
    "split": (lambda t: t.split(3), lambda x: [x[:3], x[3:6], x[6:]], (ROW,)),
    "split sizes": (lambda t: t.split([1, 3], 2), lambda x: [x[..., :1], x[..., 1:]], (A,)),
    "chunk": (lambda t: t.chunk(3), lambda x: [x[:3], x[3:6], x[6:]], (ROW,)),
    "chunk more": (lambda t: t.chunk(5, 1), lambda x: [x[:, :1], x[:, 1:2], x[:, 2:]], (A,)),
    "unfold": (
        lambda t: t.unfold(0, 3, 2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3)[::2],
        (ROW,),
    ),
    "unfold middle": (
        lambda t: t.unfold(1, 2, 1),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 1),
        (A,),
    ),
    "diagonal": (lambda t: t.diagonal(), lambda x: x.diagonal(), (SQUARE,)),
    "diagonal above": (lambda t: t.diagonal(2), lambda x: x.diagonal(2), (SQUARE[:3],)),
    "diagonal below": (lambda t: t.diagonal(-1), lambda x: x.diagonal(-1), (SQUARE[:3],)),
    "diagonal axes": (lambda t: t.diagonal(1, 2, 0), lambda x: x.diagonal(1, 2, 0), (A,)),
    "diagonal outside": (lambda t: t.diagonal(9), lambda x: x.diagonal(9), (SQUARE,)),
    "tril": (lambda t: t.tril(), np.tril, (SQUARE,)),
    "triu": (lambda t: t.triu(2), lambda x: np.triu(x, 2), (A,)),
    "tril negative": (lambda t: t.tril(-1), lambda x: np.tril(x, -1), (A,)),
    "cat": (lambda a, b: Tensor.cat(a, b, dim=1), lambda a, b: np.concatenate([a, b], 1), (A, A[:, 1:])),
    "cat many": (
        lambda t: t.cat(t[:1], t.flip(0), t[:2], dim=0),
        lambda x: np.concatenate([x, x[:1], x[::-1], x[:2]]),
        (A,),
    ),
    "cat list": (lambda a, b: Tensor.cat([a, b], dim=-1), lambda a, b: np.concatenate([a, b], -1), (A, A)),
    "cat empty": (lambda a, b: a.cat(b), lambda a, b: np.concatenate([a, b]), (ROW[:0], ROW)),
    "cat keeps bits": (lambda a, b: a.cat(b), lambda a, b: np.concatenate([a, b]), (F, -F)),
    "cat promotes": (lambda a, b: a.cat(b), lambda a, b: np.concatenate([a, b]).astype(np.float32), (ROW, A[0, 0])),
    "stack": (lambda a, b: Tensor.stack(a, b, dim=-1), lambda a, b: np.stack([a, b], -1), (A, A + 1)),
    "stack scalars": (lambda a, b: a.stack(b), lambda a, b: np.stack([a, b]), (ROW[1], ROW[2])),
    "meshgrid": (lambda a, b: a.meshgrid(b), lambda a, b: np.meshgrid(a, b, indexing="ij"), (ROW, ROW[:3])),
    "meshgrid xy": (lambda a, b: a.meshgrid(b, indexing="xy"), lambda a, b: np.meshgrid(a, b), (ROW, ROW[:3])),
    "many": (
        lambda t: t.permute(1, 2, 0).flip(1).reshape(3, 8).pad((1, 1)).shrink(((1, 3), (0, 9))).T,
        lambda x: np.pad(x.transpose(1, 2, 0)[:, ::-1].reshape(3, 8), ((0, 0), (1, 1)))[1:3, :9].T,
        (A,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_movement(name: str, check: Check) -> None:
    operation, reference, arrays = CASES[name]
    check(operation, reference, *arrays, tolerance=0)


def test_bits_of_nan_survive_joining(run: Any, device: str) -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000], np.uint32)
    part = Tensor(bits, device=device).bitcast("float32")
    joined = part.cat(part.flip(0)).pad((1, 0), value=1.0)
    np.testing.assert_array_equal(run(joined.bitcast("uint32"))[1:], np.concatenate([bits, bits[::-1]]))


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 20])
def test_windows_of_every_kind(size: int, step: int) -> None:
    """unfold for all window lengths and steps, through the interpreter alone."""
    from tilewright.graph.interpreter.evaluate import evaluate
    from tilewright.tensor.core import nodes

    node = Tensor.arange(size).uop
    for window in range(1, size + 1):
        for dilation in (1, 2, 3, 4):
            if dilation * (window - 1) >= size:
                continue
            found = evaluate(nodes.pool(node, (window,), (step,), (dilation,)))
            starts = range(0, size - dilation * (window - 1), step)
            expected = [[start + k * dilation for k in range(window)] for start in starts]
            np.testing.assert_array_equal(found, expected)
