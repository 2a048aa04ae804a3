"""What a user gets wrong is told at once: the operation, the thing, and what to do instead.

A row is a call that must fail, the error, and words that its message has to hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.errors import AxisError, DeviceError, DTypeError, IndexingError, ShapeError, UserError

X = Tensor.ones(3, 4)
I = Tensor([[0, 1], [1, 2]])
B = X > 0
IMAGE = Tensor.ones(1, 2, 4, 4)
SCALAR = Tensor(3.0)

CASES: dict[str, tuple[Callable[[], Any], type[UserError], str]] = {
    "einsum: letter": (lambda: Tensor.einsum("i1,jk->ik", X, X), ShapeError, "'1'.*letters"),
    "einsum: unknown letter": (lambda: Tensor.einsum("ij->iz", X), ShapeError, "'z'.*no operand"),
    "einsum: letter twice": (lambda: Tensor.einsum("ij->ii", X), ShapeError, "axis twice"),
    "einsum: sizes": (lambda: Tensor.einsum("ij,jk->ik", X, X), ShapeError, "'j' has sizes 4 and 3"),
    "einsum: operands": (lambda: Tensor.einsum("ij,jk->ik", X), ShapeError, "2 operands, 1 tensors"),
    "einsum: axes": (lambda: Tensor.einsum("ijk->i", X), ShapeError, "3 axes of a tensor that has 2"),
    "einsum: diagonal": (lambda: Tensor.einsum("ii->i", X), ShapeError, "'i' has sizes 3 and 4"),
    "rearrange: arrow": (lambda: X.rearrange("a b"), ShapeError, "no ->"),
    "rearrange: one side": (lambda: X.rearrange("a b -> a c"), ShapeError, "b, c on one side"),
    "rearrange: size": (lambda: X.rearrange("(a c) b -> a b c", c=2), ShapeError, "axis of size 3"),
    "rearrange: unknown": (lambda: X.rearrange("a b -> b a", d=2), ShapeError, "no axis d"),
    "rearrange: axes": (lambda: X.rearrange("a -> a"), ShapeError, r"1 axes of shape \(3, 4\)"),
    "rearrange: bracket": (lambda: X.rearrange("(a b -> a b"), ShapeError, r"\( without"),
    "rearrange: two unknown": (lambda: X.rearrange("(a c) b -> a b c"), ShapeError, "for all but one"),
    "sort: axis": (lambda: X.sort(2), AxisError, "axis 2 is out of range"),
    "topk: k": (lambda: X.topk(5), ShapeError, "5 of the 4"),
    "sum: axes": (lambda: X.sum((0, 0)), AxisError, "twice"),
    "permute: axes": (lambda: X.permute(0, 0), AxisError, "twice"),
    "cummax: axis": (lambda: X.cummax(-3), AxisError, "axis -3"),
    "scatter: shape": (lambda: X.scatter(0, I, Tensor.ones(1, 2)), ShapeError, r"index \(2, 2\).*src \(1, 2\)"),
    "scatter: index dtype": (lambda: X.scatter(0, X, X), IndexingError, "float32"),
    "scatter: dtype": (lambda: X.scatter(0, I, I), DTypeError, "int32 values for a tensor of float32"),
    "scatter: reduce": (lambda: X.scatter(0, I, X, reduce="mean"), DTypeError, "'mean'"),
    "scatter_reduce: reduce": (lambda: X.scatter_reduce(0, I, X, "median"), DTypeError, "'median'.*amax"),
    "scatter: constant index": (
        lambda: X.scatter(0, Tensor.full((1, 1), 7), X),
        IndexingError,
        r"index 7 is out of range for axis 0 of shape \(3, 4\)",
    ),
    "gather: constant index": (lambda: X.gather(1, Tensor.full((3, 1), -9)), IndexingError, "index -9"),
    "getitem: constant index": (lambda: X[Tensor.full((2,), 3)], IndexingError, "index 3.*axis 0"),
    "getitem: int": (lambda: X[0, 4], IndexingError, "index 4.*axis 1"),
    "getitem: list": (lambda: X[[0, 5]], IndexingError, "index 5"),
    "getitem: too many": (lambda: X[0, 0, 0], IndexingError, "3 indices"),
    "getitem: mask": (lambda: X[Tensor([True, False])], IndexingError, "mask with an axis of 2"),
    "getitem: float": (lambda: X[Tensor([0.5])], IndexingError, "float32"),
    "setitem: shape": (lambda: X.clone().__setitem__(0, Tensor.ones(3)), ShapeError, r"\(3,\)"),
    "setitem: mask values": (lambda: X.clone().__setitem__(B, Tensor.ones(5)), ShapeError, r"\(5,\).*\(12,\)"),
    "masked_select: mask": (lambda: X.masked_select(X), DTypeError, "float32"),
    "masked_select: shape": (lambda: X.masked_select(Tensor([True, False])), ShapeError, "do not broadcast"),
    "nonzero: size": (lambda: X.nonzero(size=-1), ShapeError, "size=-1"),
    "diag: axes": (lambda: IMAGE.diag(), ShapeError, "vector or a matrix"),
    "conv_transpose2d: channels": (lambda: IMAGE.conv_transpose2d(Tensor.ones(3, 1, 2, 2)), ShapeError, "3 channels"),
    "conv_transpose2d: output": (
        lambda: IMAGE.conv_transpose2d(Tensor.ones(2, 1, 2, 2), output_padding=1),
        ShapeError,
        "output_padding 1.*stride",
    ),
    "conv_transpose2d: axes": (lambda: IMAGE.conv_transpose2d(X), ShapeError, "numbers of axes"),
    "conv2d: kernel": (lambda: IMAGE.conv2d(Tensor.ones(1, 2, 5, 5)), ShapeError, "kernel of 5"),
    "max_pool2d: kernel": (lambda: IMAGE.max_pool2d((9, 9)), ShapeError, "kernel of 9"),
    "max_unpool2d: indices": (lambda: IMAGE.max_unpool2d(I), ShapeError, r"\(2, 2\)"),
    "interpolate: mode": (lambda: IMAGE.interpolate((2, 2), "nearly"), ShapeError, "'nearly'.*nearest"),
    "interpolate: size": (lambda: IMAGE.interpolate((0,)), ShapeError, "at least 1"),
    "interpolate: dtype": (lambda: I.interpolate((3,)), DTypeError, "int32"),
    "cross_entropy: shape": (lambda: X.cross_entropy(Tensor([0, 1])), ShapeError, r"labels of shape \(2,\)"),
    "cross_entropy: probabilities": (lambda: X.cross_entropy(Tensor.ones(3)), ShapeError, "probabilities"),
    "cross_entropy: smoothing": (lambda: X.cross_entropy(Tensor([0, 1, 2]), label_smoothing=2), ShapeError, "0..1"),
    "cross_entropy: reduction": (lambda: X.cross_entropy(Tensor([0, 1, 2]), "avg"), ShapeError, "'avg'.*mean"),
    "nll_loss: labels": (lambda: X.nll_loss(Tensor([0.0, 1.0, 2.0])), DTypeError, "float32"),
    "nll_loss: weight": (lambda: X.nll_loss(Tensor([0, 1, 2]), Tensor.ones(3)), ShapeError, "4 classes"),
    "binary_crossentropy: dtype": (lambda: I.binary_crossentropy(I), DTypeError, "int32"),
    "binary_crossentropy: shape": (lambda: X.binary_crossentropy(Tensor.ones(5)), ShapeError, "do not broadcast"),
    "batchnorm: mean": (lambda: X.batchnorm(None, None, Tensor.ones(3), Tensor.ones(4)), ShapeError, "mean of shape"),
    "normalize: dtype": (lambda: I.normalize(), DTypeError, "int32"),
    "qr: vector": (lambda: Tensor.ones(3).qr(), ShapeError, "not a matrix"),
    "svd: dtype": (lambda: I.svd(), DTypeError, "int32"),
    "multinomial: samples": (lambda: X.multinomial(9), ShapeError, "9 samples of 4"),
    "multinomial: shape": (lambda: IMAGE.multinomial(), ShapeError, "classes"),
    "logcumsumexp: dtype": (lambda: I.logcumsumexp(), DTypeError, "int32"),
    "cat: 0-d": (lambda: SCALAR.cat(SCALAR), ShapeError, "0-d tensor has no axis"),
    "split: 0-d": (lambda: SCALAR.split(1), ShapeError, "0-d tensor has no axis"),
    "split: sizes": (lambda: X.split([5, -1], dim=1), ShapeError, "sizes=-1"),
    "chunk: number": (lambda: X.chunk(2.5), ShapeError, r"chunks=2\.5"),
    "repeat_interleave: number": (lambda: X.repeat_interleave(-1), ShapeError, "repeats=-1"),
    "unflatten: sizes": (lambda: X.unflatten(0, (2, 2)), ShapeError, "3 elements"),
    "pad: pairs": (lambda: X.pad(((1, 1, 1), None)), ShapeError, "padding="),
    "shrink: ranges": (lambda: X.shrink(((0, 9), None)), ShapeError, r"\(0, 9\)"),
    "topk: fraction": (lambda: X.topk(1.5), ShapeError, r"k=1\.5"),
    "meshgrid: matrix": (lambda: Tensor.meshgrid(X, X), ShapeError, r"\(3, 4\)"),
    "interpolate: fraction": (lambda: IMAGE.interpolate((2.5, 2)), ShapeError, r"2\.5"),
    "max_pool2d: padding": (lambda: IMAGE.max_pool2d((2, 2), padding=2), ShapeError, r"\(2, 2\).*half of the window"),
    "max_pool2d: text": (lambda: IMAGE.max_pool2d("2"), ShapeError, "kernel_size='2'"),
    "conv2d: negative padding": (
        lambda: IMAGE.conv2d(Tensor.ones(1, 2, 1, 1), padding=(0, -1, 0, 0)),
        ShapeError,
        "padding=",
    ),
    "attention: heads": (
        lambda: Tensor.ones(1, 3, 2, 4).scaled_dot_product_attention(
            Tensor.ones(1, 2, 2, 4), Tensor.ones(1, 2, 2, 4), enable_gqa=True
        ),
        ShapeError,
        "heads",
    ),
    "empty: size": (lambda: Tensor.empty(-1, 2), ShapeError, "negative size"),
    "full: value": (lambda: Tensor.full((2,), "a"), DTypeError, "'a' is not a number"),
    "arange: text": (lambda: Tensor.arange("a"), DTypeError, "'a' is not a number"),
    "one_hot: classes": (lambda: I.one_hot(-3), ShapeError, "num_classes=-3"),
    "manual_seed": (lambda: Tensor.manual_seed("a"), DTypeError, "the seed 'a'"),
    "einsum: formula": (lambda: Tensor.einsum(3, X), ShapeError, "of type int"),
    "rearrange: formula": (lambda: X.rearrange(None), ShapeError, "of type NoneType"),
    "no tensor: cat": (lambda: X.cat("a"), DTypeError, "a str stands where a tensor should"),
    "no tensor: gather": (lambda: X.gather(0, [[0]]), DTypeError, "a list stands"),
    "no tensor: masked_fill": (lambda: X.masked_fill(True, 0), DTypeError, "a bool stands"),
    "no tensor: cross_entropy": (lambda: X.cross_entropy([0, 1, 2]), DTypeError, "a list stands"),
    "no tensor: linear": (lambda: X.linear(None), DTypeError, "a NoneType stands"),
    "no tensor: gradient": (lambda: X.sum().gradient([X]), DTypeError, "a list is not a target"),
    "no tensor: replace": (lambda: X.clone().replace(3), DTypeError, "a int is not a tensor"),
    "no tensor: isclose": (lambda: X.isclose("a"), DTypeError, "str"),
    "getitem: tensor of a list": (lambda: X[Tensor([0, 7])], IndexingError, "index 7.*axis 0"),
    "getitem: tensor of an array": (lambda: X[:, Tensor(np.array([1, -5]))], IndexingError, "index -5.*axis 1"),
    "getitem: 0-d tensor": (lambda: X[Tensor(3)], IndexingError, "index 3.*axis 0"),
    "setitem: tensor": (lambda: X.clone().__setitem__(Tensor([8]), 1), IndexingError, "index 8"),
    "gather: list": (lambda: X.gather(0, Tensor([[99]])), IndexingError, "index 99"),
    "devices": (lambda: X.scatter(0, I.to("PYTHON"), X), DeviceError, "CPU.*PYTHON"),
    "randint: shape": (lambda: Tensor.randint(-3, 2), ShapeError, r"\(-3, 2\) has a negative size"),
    "randn: shape": (lambda: Tensor.randn(2, -1), ShapeError, "negative size"),
    "randint: range": (lambda: Tensor.randint(2, low=2, high=2), ShapeError, "no number"),
    "normal: std": (lambda: Tensor.normal(3, std=-1), ShapeError, "std=-1"),
    "normal: NaN": (lambda: Tensor.normal(3, std=float("nan")), ShapeError, "std=nan"),
    "uniform: bounds": (lambda: Tensor.uniform(2, low=5, high=3), ShapeError, "low=5, high=3"),
    "uniform: infinity": (lambda: Tensor.uniform(2, high=float("inf")), ShapeError, "high=inf"),
    "uniform: text": (lambda: Tensor.uniform(2, high="a"), DTypeError, "'a' is not a number"),
    "normalize: norm": (lambda: X.normalize(p="fro"), DTypeError, "p='fro'"),
    "pad: taken away": (lambda: X.pad((-5, 0), mode="replicate"), ShapeError, "removes more"),
    "pad: mirrored": (lambda: X.pad((4, 0), mode="reflect"), ShapeError, "at most 3"),
    "pad: repeated nothing": (lambda: X[:, :0].pad((1, 0), mode="replicate"), ShapeError, "at most 0"),
    "pad: value": (lambda: X.pad((1, 0), value="a"), DTypeError, "'a' is not a number"),
    "from_dlpack": (lambda: Tensor.from_dlpack([1, 2]), DTypeError, "list has no __dlpack__"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_call_says_what_is_wrong_and_what_to_do(name: str) -> None:
    call, error, words = CASES[name]
    with pytest.raises(error) as caught:
        call()
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
    assert caught.value.remedy
    assert f"{__file__}:" in str(caught.value), "the message names the user's line"


def test_a_label_outside_of_the_classes_never_counts_as_right() -> None:
    logits = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for labels in (Tensor([0, 2]), Tensor([0, -1])):
        with pytest.raises(IndexingError, match="out of range for 2 classes"):
            logits.cross_entropy(labels, "none").tolist()
