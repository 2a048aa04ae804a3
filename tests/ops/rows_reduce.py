"""Rows of the op table: reductions, running reductions, sorting, softmax, normalisation, losses."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tests.ops.rows import ALL, BOOL, INTS, NUMBERS, WIDE_FLOATS, Input, Row

CUBE = (Input((2, 3, 4)),)
SMALL = (Input((2, 3, 4), 0.5, 1.5),)
LONG = 700  # longer than one block of a running reduction
SORTED_LONG = 300  # and of a sort


def reduced(op, reference, dtypes, result="same", **more):
    """The op over all axes, one axis, and two axes kept."""
    inputs = more.pop("inputs", CUBE)
    options = more.pop("options", {})
    torch = more.pop("torch", {})

    def row(label, call, ref, name):
        known = torch.get(name, "call") if isinstance(torch, dict) else torch
        return Row(op, call, ref, inputs, dtypes, result=result, label=label, torch=known, **more)

    return [
        row("", lambda x: getattr(x, op)(**options), lambda x: reference(x, None, False), "all"),
        row("axis", lambda x: getattr(x, op)(-2, **options), lambda x: reference(x, 1, False), "axis"),
        row("keepdim", lambda x: getattr(x, op)((0, 2), True, **options), lambda x: reference(x, (0, 2), True), "two"),
    ]


def sums(function):
    def reference(x, axis, keepdims):
        wide = x.astype(np.int64) if x.dtype.kind in "bi" else x
        return function(wide, axis=axis, keepdims=keepdims)

    return reference


def plain(function):
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims)


def last_place(x, best):
    """Where the running extreme was last taken."""
    places = np.where(x == best, np.arange(x.shape[1]), -1)
    return np.maximum.accumulate(places, 1)


def logsumexp(x, axis, keepdims):
    return special.logsumexp(x, axis=axis, keepdims=keepdims)


NO_TUPLE = {"two": None}
FIRST = [
    *reduced("sum", sums(np.sum), ALL, "sum"),
    *reduced("prod", sums(np.prod), BOOL + INTS + WIDE_FLOATS, "sum", inputs=SMALL, torch=NO_TUPLE),
    *reduced(
        "max", plain(np.max), ALL, torch={"axis": lambda t, x: x.amax(-2), "two": lambda t, x: x.amax((0, 2), True)}
    ),
    *reduced(
        "min", plain(np.min), ALL, torch={"axis": lambda t, x: x.amin(-2), "two": lambda t, x: x.amin((0, 2), True)}
    ),
    *reduced("any", plain(np.any), ALL, "bool", gradient=False),
    *reduced("all", plain(np.all), ALL, "bool", gradient=False),
    *reduced("mean", plain(np.mean), WIDE_FLOATS),
    *reduced(
        "var",
        lambda x, a, k: np.var(x, axis=a, ddof=1, keepdims=k),
        WIDE_FLOATS,
        torch={"two": lambda t, x: x.var((0, 2), keepdim=True)},
    ),
    *reduced(
        "std",
        lambda x, a, k: np.std(x, axis=a, ddof=0, keepdims=k),
        WIDE_FLOATS,
        options={"correction": 0},
        torch={"two": lambda t, x: x.std((0, 2), keepdim=True, correction=0)},
    ),
    *reduced("logsumexp", logsumexp, WIDE_FLOATS, torch={"all": lambda t, x: x.logsumexp((0, 1, 2))}),
    Row(
        "var_mean",
        lambda x: x.var_mean(1),
        lambda x: (np.var(x, 1, ddof=1), np.mean(x, 1)),
        CUBE,
        result=("same",) * 2,
        torch=lambda t, x: t.var_mean(x, 1),
    ),
    Row(
        "std_mean",
        lambda x: x.std_mean((0, 1)),
        lambda x: (np.std(x, (0, 1), ddof=1), np.mean(x, (0, 1))),
        CUBE,
        result=("same",) * 2,
        torch=lambda t, x: t.std_mean(x, (0, 1)),
    ),
    Row("argmax", lambda x: x.argmax(), np.argmax, (Input((3, 40)),), NUMBERS, False, "int64"),
    Row(
        "argmax",
        lambda x: x.argmax(1, keepdim=True),
        lambda x: np.argmax(x, 1, keepdims=True),
        CUBE,
        NUMBERS,
        False,
        "int64",
        "axis",
        torch=None,
    ),
    Row("argmin", lambda x: x.argmin(-1), lambda x: np.argmin(x, -1), CUBE, NUMBERS, False, "int64", torch=None),
    Row("sum", lambda x: x.sum(1), lambda x: np.sum(x, 1), (Input((2, 0, 3)),), WIDE_FLOATS, False, label="empty"),
    Row(
        "sum",
        lambda x: x.sum(dtype="float64"),
        lambda x: np.sum(x),
        CUBE,
        ("float32", "int32"),
        False,
        "float64",
        "dtype",
        torch=None,
    ),
    Row("sum", lambda x: x.sum(), lambda x: np.sum(x), (Input((), -3, 3),), WIDE_FLOATS, label="0-d"),
    Row(
        "sum",
        lambda x: x.sum(),
        lambda x: np.asarray(70000.0),
        (Input(values=np.ones(70000)),),
        ("float16", "bfloat16"),
        False,
        label="many ones",
        torch=None,
    ),
    Row(
        "logsumexp",
        lambda x: x.logsumexp(-1),
        lambda x: special.logsumexp(x, axis=-1),
        (Input(values=[[900.0, 901.0], [-math.inf, -math.inf], [math.inf, 0.0]]),),
        ("float64", "float32", "bfloat16"),
        False,
        label="special",
    ),
]

SOFTMAX = [
    Row("softmax", lambda x: x.softmax(1), lambda x: special.softmax(x, 1), CUBE),
    Row(
        "softmax",
        lambda x: x.softmax(),
        lambda x: special.softmax(x, -1),
        (Input(values=[[900.0, 901.0, -900.0]]),),
        ("float64", "float32"),
        label="large",
        torch=lambda t, x: x.softmax(-1),
    ),
    Row("log_softmax", lambda x: x.log_softmax(-1), lambda x: special.log_softmax(x, -1), CUBE),
    Row(
        "softmin",
        lambda x: x.softmin(-1),
        lambda x: special.softmax(-x, -1),
        CUBE,
        torch=lambda t, x: t.nn.functional.softmin(x, -1),
    ),
    Row(
        "layernorm",
        lambda x: x.layernorm(-1),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        CUBE,
        torch=lambda t, x: t.nn.functional.layer_norm(x, (4,)),
    ),
    Row(
        "layernorm",
        lambda x: x.layernorm((1, 2), 0.1),
        lambda x: (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 0.1),
        CUBE,
        label="axes",
        torch=lambda t, x: t.nn.functional.layer_norm(x, (3, 4), eps=0.1),
    ),
    Row(
        "normalize",
        lambda x: x.normalize(),
        lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)),
        CUBE,
        torch=lambda t, x: t.nn.functional.normalize(x),
    ),
    Row(
        "normalize",
        lambda x: x.normalize(1, -1),
        lambda x: x / np.abs(x).sum(-1, keepdims=True),
        CUBE,
        label="p1",
        torch=lambda t, x: t.nn.functional.normalize(x, 1, -1),
    ),
    Row(
        "normalize",
        lambda x: x.normalize(3.0, 0),
        lambda x: x / (np.abs(x) ** 3).sum(0, keepdims=True) ** (1 / 3),
        CUBE,
        label="p3",
        torch=lambda t, x: t.nn.functional.normalize(x, 3.0, 0),
    ),
    Row(
        "normalize",
        lambda x: x.normalize(),
        lambda x: x,
        (Input(values=np.zeros((2, 3))),),
        gradient=False,
        label="zeros",
        torch=lambda t, x: t.nn.functional.normalize(x),
    ),
    Row(
        "batchnorm",
        lambda x, w, b, m, s: x.batchnorm(w, b, m, s),
        lambda x, w, b, m, s: (x - m[:, None, None]) * (s * w)[:, None, None] + b[:, None, None],
        (
            Input((2, 3, 2, 2)),
            Input((3,)),
            Input((3,)),
            Input((3,), constant_in_torch=True),
            Input((3,), 0.5, 2, constant_in_torch=True),
        ),
        torch=lambda t, x, w, b, m, s: t.nn.functional.batch_norm(x, m, s**-2, w, b, eps=0.0),
    ),
    Row(
        "batchnorm",
        lambda x, m, s: x.batchnorm(None, None, m, s, axis=-1),
        lambda x, m, s: (x - m) * s,
        (Input((2, 3)), Input((3,)), Input((3,), 0.5, 2)),
        label="plain",
        torch=None,
    ),
]

RUNNING = [
    Row(
        "cumsum",
        lambda x: x.cumsum(1),
        lambda x: np.cumsum(x.astype(np.int64) if x.dtype.kind in "bi" else x, 1),
        CUBE,
        BOOL + INTS + WIDE_FLOATS,
        result="sum",
    ),
    Row(
        "cumsum",
        lambda x: x.cumsum(-1),
        lambda x: np.cumsum(x, -1),
        (Input((2, LONG), -1, 1),),
        ("float64", "float32", "int32"),
        False,
        "sum",
        "long",
    ),
    Row(
        "cumprod",
        lambda x: x.cumprod(-1),
        lambda x: np.cumprod(x.astype(np.int64) if x.dtype.kind in "bi" else x, -1),
        SMALL,
        BOOL + INTS + WIDE_FLOATS,
        result="sum",
    ),
    Row(
        "cummax",
        lambda x: x.cummax(1),
        lambda x: (b := np.maximum.accumulate(x, 1), last_place(x, b)),
        (Input((2, 6)),),
        ALL,
        result=("same", "int64"),
    ),
    Row(
        "cummin",
        lambda x: x.cummin(1),
        lambda x: (b := np.minimum.accumulate(x, 1), last_place(x, b)),
        (Input((2, 6)),),
        ALL,
        result=("same", "int64"),
    ),
    Row(
        "cummax",
        lambda x: x.cummax(1),
        lambda x: (b := np.maximum.accumulate(x, 1), last_place(x, b)),
        (Input((2, 67), -1000, 1000),),
        ("float32", "int32"),
        False,
        ("same", "int64"),
        "long",
    ),
    Row(
        "cummax",
        lambda x: x.cummax(0),
        lambda x: (x, np.int64(0)),
        (Input(()),),
        ("float32",),
        False,
        ("same", "int64"),
        "0-d",
    ),
    Row(
        "logcumsumexp",
        lambda x: x.logcumsumexp(1),
        lambda x: np.logaddexp.accumulate(x, 1),
        (Input((2, 6)),),
        WIDE_FLOATS,
    ),
    Row(
        "logcumsumexp",
        lambda x: x.logcumsumexp(0),
        lambda x: np.logaddexp.accumulate(x, 0),
        (Input(values=[-math.inf, 900.0, 901.0, -900.0, math.inf]),),
        ("float64", "float32"),
        False,
        label="special",
    ),
    Row(
        "logcumsumexp",
        lambda x: x.logcumsumexp(-1),
        lambda x: np.logaddexp.accumulate(x, -1),
        (Input((2, LONG)),),
        ("float64", "float32"),
        False,
        label="long",
    ),
]


def order(x, axis=-1, descending=False):
    keys = -x.astype(np.float64) if descending else x
    return np.argsort(keys, axis, kind="stable")


def taken(x, places, axis):
    return np.take_along_axis(x, places, axis), places


def stable(t, x, **more):
    return t.sort(x, stable=True, **more)


SORTING = [
    Row(
        "sort",
        lambda x: x.sort(),
        lambda x: taken(x, order(x), -1),
        (Input((3, 7)),),
        ALL,
        result=("same", "int64"),
        torch=stable,
    ),
    Row(
        "sort",
        lambda x: x.sort(1, descending=True),
        lambda x: taken(x, order(x, 1, True), 1),
        (Input((2, 7, 2)),),
        ALL,
        result=("same", "int64"),
        label="descending",
        torch=lambda t, x: stable(t, x, dim=1, descending=True),
    ),
    Row(
        "sort",
        lambda x: x.sort(),
        lambda x: taken(x, order(x), -1),
        (Input((2, SORTED_LONG), -1000, 1000),),
        ("float32", "uint8"),
        False,
        ("same", "int64"),
        "long",
        stable,
    ),
    Row(
        "sort",
        lambda x: x.sort(),
        lambda x: taken(x, order(x), -1),
        (Input(values=[2.0, math.nan, -math.inf, 0.0, -0.0, math.inf]),),
        WIDE_FLOATS,
        False,
        ("same", "int64"),
        "special",
        stable,
    ),
    Row(
        "sort",
        lambda x: x.sort(),
        lambda x: (x, np.int64(0)),
        (Input(()),),
        ("float32",),
        False,
        ("same", "int64"),
        "0-d",
        stable,
    ),
    Row(
        "argsort",
        lambda x: x.argsort(0),
        lambda x: order(x, 0),
        (Input((5, 3)),),
        ALL,
        False,
        "int64",
        torch=lambda t, x: t.argsort(x, dim=0, stable=True),
    ),
    Row("argsort", lambda x: x.argsort(), lambda x: order(x), (Input((3, 1)),), ("float32",), False, "int64", "one"),
    Row(
        "topk",
        lambda x: x.topk(3),
        lambda x: taken(x, order(x, -1, True)[..., :3], -1),
        (Input((2, 7), -100, 100),),
        NUMBERS,
        result=("same", "int64"),
        torch=None,
    ),
    Row(
        "topk",
        lambda x: x.topk(2, 0, largest=False),
        lambda x: taken(x, order(x, 0)[:2], 0),
        (Input((5, 2)),),
        WIDE_FLOATS,
        result=("same", "int64"),
        label="least",
        torch=lambda t, x: x.topk(2, 0, largest=False),
    ),
]

LOGITS = Input((4, 5), -3, 3)
CLASSES = Input(values=[1, 4, 0, 2], dtype="int64")
IGNORING = Input(values=[1, -100, 0, 2], dtype="int64")
TRUTH = Input((3, 4), 0, 1)


def nll(logs, y, weight=None, ignored=None, smoothing=0.0):
    weight = np.ones(logs.shape[1]) if weight is None else weight
    kept = y != ignored
    safe = np.where(kept, y, 0)
    rows = np.arange(len(y))
    loss = -logs[rows, safe] * weight[safe] * (1 - smoothing) - smoothing / logs.shape[1] * (logs * weight).sum(1)
    return np.where(kept, loss, 0), np.where(kept, weight[safe], 0)


def mean_nll(*args, **kwargs):
    loss, weight = nll(*args, **kwargs)
    return loss.sum() / weight.sum()


def bce(p, y):
    return -(y * np.log(p) + (1 - y) * np.log(1 - p))


def bce_logits(x, y, positive=1.0):
    return -(positive * y * special.log_expit(x) + (1 - y) * special.log_expit(-x))


def log_softmax(x):
    return special.log_softmax(x, 1)


LOSSES = [
    Row(
        "binary_crossentropy",
        lambda p, y: p.binary_crossentropy(y),
        lambda p, y: bce(p, y).mean(),
        (Input((3, 4), 0.1, 0.9), TRUTH),
        torch=lambda t, p, y: t.nn.functional.binary_cross_entropy(p, y),
    ),
    Row(
        "binary_crossentropy",
        lambda p, y: p.binary_crossentropy(y, "none"),
        lambda p, y: np.array([100.0, 0.0, 0.0, 100.0]),
        (Input(values=[0.0, 0.0, 1.0, 1.0]), Input(values=[1.0, 0.0, 1.0, 0.0])),
        gradient=False,
        label="limits",
        torch=lambda t, p, y: t.nn.functional.binary_cross_entropy(p, y, reduction="none"),
    ),
    Row(
        "binary_crossentropy_logits",
        lambda x, y: x.binary_crossentropy_logits(y),
        lambda x, y: bce_logits(x, y).mean(),
        (Input((3, 4), -3, 3), TRUTH),
        torch=lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y),
    ),
    Row(
        "binary_crossentropy_logits",
        lambda x, y, w: x.binary_crossentropy_logits(y, "sum", w),
        lambda x, y, w: bce_logits(x, y, w).sum(),
        (Input((3, 4), -3, 3), TRUTH, Input((4,), 1, 2, constant_in_torch=True)),
        label="weight",
        torch=lambda t, x, y, w: t.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="sum", pos_weight=w),
    ),
    Row(
        "binary_crossentropy_logits",
        lambda x, y: x.binary_crossentropy_logits(y, "none"),
        bce_logits,
        (Input(values=[900.0, -900.0]), Input(values=[0.0, 1.0])),
        ("float64", "float32"),
        label="large",
        torch=lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    Row(
        "nll_loss",
        lambda x, y: x.nll_loss(y),
        lambda x, y: mean_nll(x, y),
        (LOGITS, CLASSES),
        torch=lambda t, x, y: t.nn.functional.nll_loss(x, y),
    ),
    Row(
        "nll_loss",
        lambda x, y, w: x.nll_loss(y, w, ignore_index=0),
        lambda x, y, w: mean_nll(x, y, w, 0),
        (LOGITS, CLASSES, Input((5,), 0.5, 2, constant_in_torch=True)),
        label="weight",
        torch=lambda t, x, y, w: t.nn.functional.nll_loss(x, y, w, ignore_index=0),
    ),
    Row(
        "nll_loss",
        lambda x, y: x.nll_loss(y, reduction="none"),
        lambda x, y: -np.take_along_axis(x, y[:, None], 1)[:, 0],
        (Input((2, 3, 2)), Input(values=[[0, 2], [1, 1]], dtype="int64")),
        label="space",
        torch=lambda t, x, y: t.nn.functional.nll_loss(x, y, reduction="none"),
    ),
    Row(
        "cross_entropy",
        lambda x, y: x.cross_entropy(y),
        lambda x, y: mean_nll(log_softmax(x), y, ignored=-100),
        (LOGITS, IGNORING),
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y),
    ),
    Row(
        "cross_entropy",
        lambda x, y: x.cross_entropy(y, "sum", 0.1),
        lambda x, y: nll(log_softmax(x), y, smoothing=0.1)[0].sum(),
        (LOGITS, CLASSES),
        label="smooth",
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y, reduction="sum", label_smoothing=0.1),
    ),
    Row(
        "cross_entropy",
        lambda x, y: x.cross_entropy(y, label_smoothing=0.2),
        lambda x, y: -((y * 0.8 + 0.2 / 5) * log_softmax(x)).sum(1).mean(),
        (LOGITS, Input((4, 5), 0, 1)),
        label="probabilities",
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y, label_smoothing=0.2),
    ),
    Row(
        "cross_entropy",
        lambda x, y: x.cross_entropy(y, "none"),
        lambda x, y: nll(log_softmax(x), y)[0],
        (Input(values=[[900.0, -900.0], [-900.0, 900.0]]), Input(values=[0, 0], dtype="int64")),
        ("float64", "float32"),
        label="large",
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y, reduction="none"),
    ),
    Row(
        "sparse_categorical_crossentropy",
        lambda x, y: x.sparse_categorical_crossentropy(y),
        lambda x, y: mean_nll(log_softmax(x), y),
        (LOGITS, CLASSES),
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y),
    ),
    Row(
        "sparse_categorical_crossentropy",
        lambda x, y: x.sparse_categorical_crossentropy(y, label_smoothing=0.1),
        lambda x, y: mean_nll(log_softmax(x), y, ignored=-1, smoothing=0.1),
        (LOGITS, Input(values=[1, -1, 0, 2], dtype="int32")),
        label="smooth",
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y.long(), ignore_index=-1, label_smoothing=0.1),
    ),
    Row(
        "sparse_categorical_crossentropy",
        lambda x, y: x.sparse_categorical_crossentropy(y, reduction="sum"),
        lambda x, y: -np.take_along_axis(special.log_softmax(x, -1), y[..., None], -1).sum(),
        (Input((2, 3, 4)), Input((2, 3), 0, 3, "int64")),
        label="axes",
        torch=None,
    ),
]

ROWS = FIRST + SOFTMAX + RUNNING + SORTING + LOSSES
