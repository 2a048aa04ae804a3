"""Rows of the op table: the families beside the core (tilewright/tensor/families), torch's and NumPy's other names."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from scipy import linalg, ndimage, spatial, special

from tests.ops.rows import FEW, FLOATS, NUMBERS, Input, Row, binary, made, moved, unary
from tilewright import Tensor

# The mechanisms are those of the core ops, whose rows have every dtype: a wide float, the default and a short one here.
SOME = ("float64", "float32", "bfloat16")
EXACT = ("float32", "int64", "bool")
EDGES = Input(values=[0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-4, -1e-4, 0.5], constant=True)
OTHER_EDGES = Input(values=[0.0, 0.0, -1.0, math.inf, math.inf, -1.0, 1.0, -0.0, -math.inf, math.nan], constant=True)
CUBE = (Input((2, 3, 4)),)
PAIR = (Input((3, 4)), Input((3, 4)))
POSITIVE = (Input((3, 4), 0.2, 2.0), Input((3, 4), 0.2, 2.0))


def functional(op, *args, **kwargs):
    """The same of torch.nn.functional."""
    return lambda t, *tensors: getattr(t.nn.functional, op)(*tensors, *args, **kwargs)


def of_torch(op, *args, **kwargs):
    return lambda t, *tensors: getattr(t, op)(*tensors, *args, **kwargs)


POINTWISE = [
    unary("log1p", np.log1p, -0.9, 4, dtypes=("float64", "float32", "bfloat16", "int32")),
    Row("log1p", lambda x: x.log1p(), np.log1p, (EDGES,), SOME, False, label="edges"),
    Row(
        "log1p",
        lambda x: x.log1p(),
        np.log1p,
        (Input((40,), 1e-7, 1e-4),),
        ("float64",),
        label="small",
    ),
    unary("expm1", np.expm1, -3, 3, dtypes=("float64", "float32", "bfloat16", "int32")),
    Row("expm1", lambda x: x.expm1(), np.expm1, (EDGES,), SOME, False, label="edges"),
    unary("erfc", special.erfc, -3, 5, dtypes=SOME),
    Row("erfc", lambda x: x.erfc(), special.erfc, (Input((60,), 5, 20),), ("float64",), False, label="tail"),
    unary("erfinv", special.erfinv, -0.999, 0.999, dtypes=SOME),
    Row(
        "erfinv",
        lambda x: x.erfinv(),
        special.erfinv,
        (Input(values=[0.0, 1.0, -1.0, 1.5, math.nan, 1e-6, 1 - 1e-6, -0.9999], constant=True),),
        ("float64", "float32"),
        False,
        label="edges",
    ),
    unary("lgamma", special.gammaln, 0.1, 20, dtypes=SOME),
    Row("lgamma", lambda x: x.lgamma(), special.gammaln, (Input((60,), -4.9, -0.1),), ("float64",), label="below 0"),
    Row(
        "lgamma",
        lambda x: x.lgamma(),
        lambda x: np.where(np.isinf(x), np.inf, special.gammaln(x)),
        (Input(values=[0.0, -0.0, 1.0, 2.0, -1.0, -7.0, math.inf, -math.inf, math.nan, 1e-30], constant=True),),
        ("float64", "float32"),
        False,
        label="edges",
    ),
    unary("digamma", special.digamma, 0.1, 20, dtypes=SOME),
    Row("digamma", lambda x: x.digamma(), special.digamma, (Input((60,), -4.9, -0.1),), ("float64",), label="below 0"),
    Row(
        "digamma",
        lambda x: x.digamma(),
        special.digamma,
        (Input(values=[0.0, -0.0, 1.0, -1.0, -7.0, math.inf, -math.inf, math.nan, 1e-30], constant=True),),
        ("float64", "float32"),
        False,
        label="edges",
    ),
    unary("logit", special.logit, 0.1, 0.9, dtypes=SOME),
    Row(
        "logit",
        lambda x: x.logit(0.25),
        lambda x: special.logit(np.clip(x, 0.25, 0.75)),
        (Input((3, 5), 0, 1),),
        SOME,
        label="eps",
    ),
    unary("sinc", np.sinc, dtypes=SOME),
    Row("sinc", lambda x: x.sinc(), np.sinc, (Input(values=[0.0, 1e-3, -2e-3, 9.9e-3]),), SOME, label="near 0"),
    unary("deg2rad", np.deg2rad, -200, 200, dtypes=SOME),
    unary("rad2deg", np.rad2deg, dtypes=SOME),
    unary("frac", lambda x: x - np.trunc(x), -3, 3, dtypes=SOME, result="same"),
    unary("positive", np.positive, dtypes=("float32", "int64"), result="same"),
    unary("signbit", np.signbit, dtypes=NUMBERS, result="bool", gradient=False),
    Row("signbit", lambda x: x.signbit(), np.signbit, (EDGES,), FLOATS[:4], False, "bool", "edges", torch=None),
    Row("isposinf", lambda x: x.isposinf(), np.isposinf, (EDGES,), SOME, False, "bool"),
    Row("isneginf", lambda x: x.isneginf(), np.isneginf, (EDGES,), SOME, False, "bool"),
    binary("atan2", np.arctan2, SOME, inputs=(Input((3, 4), -3, 3), Input((4,), -3, 3))),
    Row("atan2", lambda y, x: y.atan2(x), np.arctan2, (EDGES, OTHER_EDGES), SOME, False, label="edges"),
    binary("hypot", np.hypot, SOME, inputs=(Input((3, 4), -3, 3), Input((4,), 1, 3))),
    Row("hypot", lambda y, x: y.hypot(x), np.hypot, (EDGES, OTHER_EDGES), SOME, False, label="edges"),
    Row(
        "hypot",
        lambda x: x.hypot(x * 2),
        lambda x: np.hypot(x, x * 2),
        (Input(values=[3e19, 1e-30, -2e30]),),
        ("float32",),
        False,
        label="scaled",
    ),
    binary("xlogy", special.xlogy, SOME, inputs=(Input((3, 4), -3, 3), Input((4,), 1, 3))),
    Row("xlogy", lambda y, x: y.xlogy(x), special.xlogy, (EDGES, OTHER_EDGES), SOME, False, label="edges"),
    binary("heaviside", np.heaviside, SOME, inputs=(Input(values=[[-1.0, 0.0, 2.0]]), Input((3,))), gradient=False),
    Row("fmax", lambda y, x: y.fmax(x), np.fmax, (EDGES, OTHER_EDGES), SOME, False),
    Row("fmin", lambda y, x: y.fmin(x), np.fmin, (EDGES, OTHER_EDGES), SOME, False),
    Row(
        "nextafter",
        lambda y, x: y.nextafter(x),
        np.nextafter,
        (EDGES, OTHER_EDGES),
        ("float64",),
        False,
    ),
    Row(
        "addcmul",
        lambda x, y, z: x.addcmul(y, z, value=0.5),
        lambda x, y, z: x + 0.5 * y * z,
        (*PAIR, Input((4,))),
        SOME,
    ),
    Row(
        "addcdiv",
        lambda x, y, z: x.addcdiv(y, z, value=0.5),
        lambda x, y, z: x + 0.5 * y / z,
        (*PAIR, Input((4,), 1, 2)),
        SOME,
    ),
    Row("float_power", lambda x: x.float_power(3), lambda x: x**3.0, CUBE, ("float32", "int32"), False, "float64"),
    *(
        Row(op, lambda x, y, op=op: getattr(x, op)(y), reference, PAIR, EXACT, False, "bool")
        for op, reference in (("lt", np.less), ("gt", np.greater), ("le", np.less_equal), ("ge", np.greater_equal))
    ),
    *(
        Row(op, lambda x, y, op=op: getattr(x, op)(y), getattr(np, op), PAIR, ("int32", "bool"), False, "bool")
        for op in ("logical_and", "logical_or", "logical_xor")
    ),
    Row(
        "isin",
        lambda x, y: x.isin(y),
        np.isin,
        (Input((4, 5), -3, 3), Input((3,), -3, 3)),
        ("int32", "int64"),
        False,
        "bool",
        torch=of_torch("isin"),
    ),
    Row("equal", lambda x, y: x.equal(y), np.array_equal, (Input((3,)), Input((3,))), ("float32",), False),
    Row("nan_to_num", lambda x: x.nan_to_num(), np.nan_to_num, (EDGES,), ("float64",), False),
    Row(
        "nan_to_num",
        lambda x: x.nan_to_num(1.0, 2.0, -2.0),
        lambda x: np.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0),
        (EDGES,),
        SOME,
        False,
        label="given",
    ),
    Row(
        "threshold",
        lambda x: x.threshold(0.1, 20.0),
        lambda x: np.where(x > 0.1, x, 20.0),
        CUBE,
        SOME,
        torch=functional("threshold", 0.1, 20.0),
    ),
    Row(
        "hardshrink",
        lambda x: x.hardshrink(),
        lambda x: np.where(np.abs(x) > 0.5, x, 0),
        CUBE,
        SOME,
        torch=functional("hardshrink"),
    ),
    Row(
        "softshrink",
        lambda x: x.softshrink(),
        lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
        CUBE,
        SOME,
        torch=functional("softshrink"),
    ),
    Row(
        "tanhshrink",
        lambda x: x.tanhshrink(),
        lambda x: x - np.tanh(x),
        CUBE,
        ("float64", "float32"),
        torch=functional("tanhshrink"),
    ),
    Row(
        "prelu",
        lambda x, w: x.prelu(w),
        lambda x, w: np.where(x > 0, x, x * w[:, None]),
        (Input((2, 3, 4)), Input((3,), 0.1, 0.4)),
        SOME,
        torch=functional("prelu"),
    ),
    Row(
        "glu",
        lambda x: x.glu(1),
        lambda x: x[:, :2] * special.expit(x[:, 2:]),
        (Input((3, 4, 2)),),
        SOME,
        torch=functional("glu", 1),
    ),
]

# ---------------------------------------------------------------- statistics

NANS = Input(values=[[1.0, math.nan, -2.0, 3.0], [math.nan] * 4, [0.5, 0.25, 1.0, -1.0]], constant=True)
SORTED = Input(values=[-2, -1, -1, 0, 3, 3, 3, 7])


def lower_median(x, axis):
    order = np.sort(x, axis)
    return np.take(order, (x.shape[axis] - 1) // 2, axis)


def place_of_median(x, axis):
    return np.take(np.argsort(x, axis, kind="stable"), (x.shape[axis] - 1) // 2, axis)


STATISTICS = [
    Row("amax", lambda x: x.amax((0, 2)), lambda x: np.max(x, (0, 2)), CUBE, SOME),
    Row("amin", lambda x: x.amin(1, keepdim=True), lambda x: np.min(x, 1, keepdims=True), CUBE, SOME),
    Row(
        "aminmax",
        lambda x: x.aminmax(dim=1),
        lambda x: (np.min(x, 1), np.max(x, 1)),
        CUBE,
        SOME,
        torch=of_torch("aminmax", dim=1),
    ),
    Row(
        "count_nonzero",
        lambda x: x.count_nonzero(1),
        lambda x: np.count_nonzero(x, 1),
        CUBE,
        ("int32", "bool"),
        False,
        "int64",
    ),
    Row("nansum", lambda x: x.nansum(1), lambda x: np.nansum(x, 1), (NANS,), SOME, False),
    Row("nanmean", lambda x: x[:1].nanmean(1), lambda x: np.nanmean(x[:1], 1), (NANS,), SOME, False),
    Row("median", lambda x: x.median(), lambda x: lower_median(x.reshape(-1), 0), CUBE, ("float32", "int64")),
    Row(
        "median",
        lambda x: tuple(x.median(1)),
        lambda x: (lower_median(x, 1), place_of_median(x, 1)),
        (Input((3, 5)),),
        ("float64", "float32"),
        result=("same", "int64"),
        label="axis",
    ),
    Row(
        "median",
        lambda x: x.median(1)[0],
        lambda x: np.array([np.nan, np.nan, 0.25]),
        (NANS,),
        SOME,
        False,
        label="nan",
    ),
    Row(
        "kthvalue",
        lambda x: tuple(x.kthvalue(2, 1)),
        lambda x: (np.sort(x, 1)[:, 1], np.argsort(x, 1)[:, 1]),
        (Input((3, 5)),),
        ("float64", "float32"),
        result=("same", "int64"),
    ),
    Row("quantile", lambda x: x.quantile(0.3), lambda x: np.quantile(x, 0.3), CUBE, ("float64", "float32")),
    Row(
        "quantile",
        lambda x: x.quantile(0.6, 1, keepdim=True),
        lambda x: np.quantile(x, 0.6, 1, keepdims=True),
        CUBE,
        ("float64", "float32"),
        label="axis",
    ),
    Row(
        "quantile",
        lambda x, q: x.quantile(q, -1),
        lambda x, q: np.quantile(x, q, -1),
        (Input((2, 3, 5)), Input(values=[0.0, 0.25, 0.9, 1.0], constant=True)),
        ("float64", "float32"),
        label="several",
    ),
    *(
        Row(
            "quantile",
            lambda x, how=how: x.quantile(0.37, 0, interpolation=how),
            lambda x, how=how: np.quantile(x, 0.37, 0, method=how),
            CUBE,
            ("float64",),
            label=how,
        )
        for how in ("lower", "higher", "nearest", "midpoint")
    ),
    Row("unique", lambda x: x.unique(), np.unique, (Input((4, 6), -3, 3),), ("int32", "int64"), False),
    Row(
        "unique",
        lambda x: x.unique(return_inverse=True, return_counts=True),
        lambda x: np.unique(x, return_inverse=True, return_counts=True),
        (Input((4, 6), -3, 3),),
        ("int64",),
        False,
        ("same", "int64", "int64"),
        "all",
    ),
    Row(
        "unique",
        lambda x: x.unique(dim=1),
        lambda x: np.unique(x, axis=1),
        (Input((2, 9), 0, 1),),
        ("int64",),
        False,
        label="slices",
    ),
    Row(
        "bincount",
        lambda x: x.bincount(minlength=6),
        lambda x: np.bincount(x, minlength=6),
        (Input((20,), 0, 4),),
        ("int64", "int32"),
        False,
        "int64",
    ),
    Row(
        "bincount",
        lambda x, w: x.bincount(w),
        lambda x, w: np.bincount(x, w),
        (Input((20,), 0, 4), Input((20,), dtype="float64", constant=True)),
        ("int64",),
        False,
        "float64",
        "weights",
    ),
    Row(
        "histc",
        lambda x: x.histc(5, -1, 1),
        lambda x: np.histogram(x, 5, (-1, 1))[0].astype(float),
        (Input((40,)),),
        ("float64", "float32"),
        False,
    ),
    Row(
        "histc",
        lambda x: x.histc(4),
        lambda x: np.histogram(x, 4)[0].astype(float),
        (Input((40,)),),
        ("float64",),
        False,
        label="own range",
    ),
    *(
        Row(
            "searchsorted",
            lambda row, x, right=right: row.searchsorted(x, right=right),
            lambda row, x, right=right: np.searchsorted(row, x, "right" if right else "left"),
            (SORTED, Input((3, 5), -4, 9)),
            ("int32", "float32"),
            False,
            "int64",
            "right" if right else "",
            torch=of_torch("searchsorted", right=right),
        )
        for right in (False, True)
    ),
    Row(
        "searchsorted",
        lambda rows, x: rows.searchsorted(x),
        lambda rows, x: np.stack([np.searchsorted(row, y) for row, y in zip(rows, x)]),
        (Input(values=[[1, 2, 5], [0, 0, 4]]), Input((2, 4), -1, 6)),
        ("int64",),
        False,
        "int64",
        "rows",
        torch=of_torch("searchsorted"),
    ),
    Row(
        "bucketize",
        lambda x, row: x.bucketize(row),
        lambda x, row: np.searchsorted(row, x),
        (Input((3, 5), -4, 9), SORTED),
        ("int32", "float32"),
        False,
        "int64",
        torch=of_torch("bucketize"),
    ),
    Row("diff", lambda x: x.diff(), np.diff, CUBE, ("float32", "int64")),
    Row("diff", lambda x: x.diff(2, 1), lambda x: np.diff(x, 2, 1), CUBE, ("float32", "int64"), label="twice"),
    Row(
        "trapezoid",
        lambda x: x.trapezoid(dx=0.5, dim=1),
        lambda x: np.trapezoid(x, dx=0.5, axis=1),
        CUBE,
        SOME,
        torch=of_torch("trapezoid", dx=0.5, dim=1),
    ),
    Row("cov", lambda x: x.cov(), np.cov, (Input((3, 8)),), ("float64", "float32")),
    Row("corrcoef", lambda x: x.corrcoef(), np.corrcoef, (Input((3, 8)),), ("float64", "float32")),
]

# ---------------------------------------------------------------- selecting

PLAIN_ROWS = Input(values=[2, 0, 1, 2], dtype="int64")


def added(x, index, y, axis, alpha=1):
    result = x.copy()
    np.add.at(result, (*(slice(None),) * axis, index), alpha * y)
    return result


def put(x, index, y):
    result = x.copy()
    result[:, index] = y
    return result


def scattered(x, index, y):
    result = x.copy()
    for place in np.ndindex(index.shape):
        result[index[place], place[1]] += y[place]
    return result


def masked_scatter(x, mask, y):
    result = x.copy()
    result[mask] = y.reshape(-1)[: mask.sum()]
    return result


SELECTING = [
    Row("index_select", lambda x, i: x.index_select(1, i), lambda x, i: np.take(x, i, 1), (*CUBE, PLAIN_ROWS), EXACT),
    Row("take", lambda x, i: x.take(i), lambda x, i: np.take(x, i), (*CUBE, Input((3, 2), 0, 23, "int64")), EXACT),
    Row(
        "take_along_dim",
        lambda x, i: x.take_along_dim(i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        (*CUBE, Input((2, 5, 1), 0, 2, "int64")),
        EXACT,
    ),
    Row(
        "scatter_add",
        lambda x, i, y: x.scatter_add(0, i, y),
        scattered,
        (Input((3, 4)), Input((5, 4), 0, 2, "int64"), Input((5, 4))),
        ("float32", "int64"),
    ),
    Row(
        "index_add",
        lambda x, i, y: x.index_add(1, i, y, alpha=2),
        lambda x, i, y: added(x, i, y, 1, 2),
        (*CUBE, PLAIN_ROWS, Input((2, 4, 4))),
        ("float32", "int64"),
    ),
    Row(
        "index_copy",
        lambda x, i, y: x.index_copy(1, i, y),
        put,
        (*CUBE, Input(values=[2, 0], dtype="int64"), Input((2, 2, 4))),
        EXACT,
    ),
    Row(
        "index_fill",
        lambda x, i: x.index_fill(1, i, 1),
        lambda x, i: put(x, i, 1),
        (*CUBE, PLAIN_ROWS),
        ("float32", "int64"),
    ),
    Row(
        "index_put",
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        lambda x, i, y: added(x, i, y, 0),
        (Input((3, 4)), PLAIN_ROWS, Input((4, 4))),
        ("float32", "int64"),
    ),
    Row(
        "masked_scatter",
        lambda x, m, y: x.masked_scatter(m, y),
        masked_scatter,
        (Input((3, 4)), Input((3, 4), dtype="bool"), Input((12,))),
        ("float32", "int64"),
    ),
    moved("unbind", lambda x: x.unbind(1), lambda x: tuple(x[:, k] for k in range(3)), dtypes=FEW, result="same"),
    moved("narrow", lambda x: x.narrow(2, 1, 2), lambda x: x[:, :, 1:3], dtypes=FEW),
    moved("select", lambda x: x.select(1, -1), lambda x: x[:, -1], dtypes=FEW),
    moved("tensor_split", lambda x: x.tensor_split(3, 2), lambda x: tuple(np.array_split(x, 3, 2)), dtypes=FEW),
    moved("tensor_split", lambda x: x.tensor_split([1, 3], 2), lambda x: tuple(np.split(x, [1, 3], 2)), label="places"),
    moved("tile", lambda x: x.tile((2, 3)), lambda x: np.tile(x, (2, 3)), dtypes=FEW),
    moved("movedim", lambda x: x.movedim((0, 1), (2, 0)), lambda x: np.moveaxis(x, (0, 1), (2, 0)), dtypes=FEW),
    moved("rot90", lambda x: x.rot90(1, (0, 1)), lambda x: np.rot90(x, 1, (0, 1)), dtypes=FEW),
    moved("rot90", lambda x: x.rot90(3, (1, 2)), lambda x: np.rot90(x, 3, (1, 2)), label="back"),
    moved("fliplr", lambda x: x.fliplr(), np.fliplr, dtypes=FEW),
    moved("flipud", lambda x: x.flipud(), np.flipud, dtypes=FEW),
    moved("ravel", lambda x: x.ravel(), np.ravel, dtypes=FEW),
    moved("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2), dtypes=FEW),
    moved("t", lambda x: x.t(), np.transpose, (3, 4), dtypes=FEW),
    moved("swapaxes", lambda x: x.swapaxes(0, 2), lambda x: x.swapaxes(0, 2), dtypes=FEW),
    moved(
        "pad_to", lambda x: x.pad_to(None, 5, 4), lambda x: np.pad(x, ((0, 0), (0, 2), (0, 0))), dtypes=FEW, torch=None
    ),
    moved(
        "pad_to",
        lambda x: x.pad_to(2, 4, None, value=1),
        lambda x: np.pad(x, ((0, 0), (0, 1), (0, 0)), constant_values=1),
        dtypes=FEW,
        torch=None,
        label="value",
    ),
    moved("shrink_to", lambda x: x.shrink_to((1, None, 3)), lambda x: x[:1, :, :3], dtypes=FEW, torch=None),
    moved("const_like", lambda x: x.const_like(1), np.ones_like, dtypes=EXACT, torch=None, gradient=False),
    moved("argwhere", lambda x: x.argwhere(), np.argwhere, dtypes=("int64", "bool"), gradient=False, result="int64"),
]

# ---------------------------------------------------------------- products, losses, images


def huber(x, y, delta):
    size = np.abs(x - y)
    return np.where(size < delta, 0.5 * size**2, delta * (size - 0.5 * delta))


def loss(op, reference, inputs=PAIR, label="", **options):
    torch = functional(op, **options)
    return Row(op, lambda *x: getattr(x[0], op)(*x[1:], **options), reference, inputs, SOME, label=label, torch=torch)


SIGNS = Input(values=[1.0, -1.0, 1.0], constant=True)

PRODUCTS = [
    Row("mm", lambda x, y: x.mm(y), np.matmul, (Input((3, 4)), Input((4, 5))), SOME),
    Row("bmm", lambda x, y: x.bmm(y), np.matmul, (Input((2, 3, 4)), Input((2, 4, 5))), SOME),
    Row("mv", lambda x, y: x.mv(y), np.matmul, (Input((3, 4)), Input((4,))), SOME),
    Row(
        "addmm",
        lambda x, y, z: x.addmm(y, z, beta=0.5, alpha=2),
        lambda x, y, z: 0.5 * x + 2 * (y @ z),
        (Input((5,)), Input((3, 4)), Input((4, 5))),
        ("float64", "float32"),
    ),
    Row(
        "addmv",
        lambda x, y, z: x.addmv(y, z),
        lambda x, y, z: x + y @ z,
        (Input((3,)), Input((3, 4)), Input((4,))),
        ("float64", "float32"),
    ),
    Row(
        "baddbmm",
        lambda x, y, z: x.baddbmm(y, z, beta=2),
        lambda x, y, z: 2 * x + y @ z,
        (Input((2, 3, 5)), Input((2, 3, 4)), Input((2, 4, 5))),
        ("float64", "float32"),
    ),
    Row("inner", lambda x, y: x.inner(y), np.inner, (Input((2, 3)), Input((4, 3))), SOME),
    Row("vdot", lambda x, y: x.vdot(y), np.vdot, (Input((5,)), Input((5,))), SOME),
    Row(
        "tensordot",
        lambda x, y: x.tensordot(y, dims=2),
        np.tensordot,
        (Input((2, 3, 4)), Input((3, 4, 5))),
        SOME,
        torch=of_torch("tensordot", dims=2),
    ),
    Row(
        "tensordot",
        lambda x, y: x.tensordot(y, ([0, 2], [1, 0])),
        lambda x, y: np.tensordot(x, y, ([0, 2], [1, 0])),
        (Input((2, 3, 4)), Input((4, 2, 5))),
        SOME,
        label="axes",
        torch=of_torch("tensordot", dims=([0, 2], [1, 0])),
    ),
    Row("kron", lambda x, y: x.kron(y), np.kron, (Input((2, 3)), Input((2, 2))), SOME),
    Row(
        "cdist",
        lambda x, y: x.cdist(y),
        spatial.distance.cdist,
        (Input((4, 3)), Input((5, 3))),
        ("float64", "float32"),
        torch=of_torch("cdist"),
    ),
    Row(
        "pairwise_distance",
        lambda x, y: x.pairwise_distance(y),
        lambda x, y: np.linalg.norm(x - y + 1e-6, axis=1),
        PAIR,
        ("float64", "float32"),
        torch=functional("pairwise_distance"),
    ),
    Row(
        "cosine_similarity",
        lambda x, y: x.cosine_similarity(y),
        lambda x, y: (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)),
        PAIR,
        ("float64", "float32"),
        torch=functional("cosine_similarity"),
    ),
    loss("mse_loss", lambda x, y: np.mean((x - y) ** 2)),
    loss("mse_loss", lambda x, y: (x - y) ** 2, label="none", reduction="none"),
    loss("l1_loss", lambda x, y: np.sum(np.abs(x - y)), reduction="sum"),
    loss("huber_loss", lambda x, y: np.mean(huber(x, y, 0.7)), delta=0.7),
    loss("smooth_l1_loss", lambda x, y: np.mean(huber(x, y, 0.5) / 0.5), beta=0.5),
    loss("kl_div", lambda x, y: np.sum(y * (np.log(y) - x)), POSITIVE, reduction="sum"),
    loss(
        "kl_div",
        lambda x, y: np.sum(np.exp(y) * (y - x)) / 3,
        label="batchmean",
        reduction="batchmean",
        log_target=True,
    ),
    loss("poisson_nll_loss", lambda x, y: np.mean(np.exp(x) - y * x), POSITIVE),
    loss(
        "gaussian_nll_loss",
        lambda x, y, v: np.mean(0.5 * (np.log(v) + (x - y) ** 2 / v)),
        (*PAIR, Input((3, 4), 0.5, 2.0)),
    ),
    loss(
        "margin_ranking_loss",
        lambda x, y, s: np.mean(np.maximum(0, -s * (x - y) + 0.1)),
        (Input((3,)), Input((3,)), SIGNS),
        margin=0.1,
    ),
    loss("hinge_embedding_loss", lambda x, s: np.mean(np.where(s == 1, x, np.maximum(0, 1 - x))), (Input((3,)), SIGNS)),
    loss(
        "triplet_margin_loss",
        lambda x, y, z: np.mean(
            np.maximum(0, np.linalg.norm(x - y + 1e-6, axis=1) - np.linalg.norm(x - z + 1e-6, axis=1) + 1)
        ),
        (*PAIR, Input((3, 4))),
    ),
    loss(
        "cosine_embedding_loss",
        lambda x, y, s: np.mean(
            np.where(
                s == 1,
                1 - (cosine := (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)),
                np.maximum(0, cosine),
            )
        ),
        (*PAIR, SIGNS),
    ),
]


def adaptive(x, sizes, reduce):
    for axis, wanted in zip((-2, -1), sizes):
        own = x.shape[axis]
        parts = [
            reduce(np.take(x, range(k * own // wanted, -(-(k + 1) * own // wanted)), axis), axis=axis, keepdims=True)
            for k in range(wanted)
        ]
        x = np.concatenate(parts, axis)
    return x


def sampled(x, grid, order):
    """By SciPy, of what lies wholly inside."""
    height, width = x.shape[2:]
    rows = ((grid[..., 1] + 1) * height - 1) / 2
    columns = ((grid[..., 0] + 1) * width - 1) / 2
    return np.stack(
        [
            [ndimage.map_coordinates(plane, [r, c], order=order, mode="constant") for plane in image]
            for image, r, c in zip(x, rows, columns)
        ]
    )


IMAGE = Input((2, 3, 5, 6))
GRID = Input((2, 3, 4, 2), -0.7, 0.7)


def resized(x, factor):
    for axis in (2, 3):
        places = np.clip((np.arange(int(x.shape[axis] * factor)) + 0.5) / factor - 0.5, 0, None)
        low = np.minimum(places.astype(int), x.shape[axis] - 1)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        share = (places - low).reshape([-1 if k == axis else 1 for k in range(4)])
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


IMAGES = [
    moved(
        "pixel_shuffle",
        lambda x: x.pixel_shuffle(2),
        lambda x: x.reshape(1, 2, 2, 2, 3, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 6, 6),
        (1, 8, 3, 3),
        dtypes=FEW,
        torch=functional("pixel_shuffle", 2),
    ),
    moved(
        "pixel_unshuffle",
        lambda x: x.pixel_unshuffle(2),
        lambda x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 2, 3),
        (1, 2, 4, 6),
        dtypes=FEW,
        torch=functional("pixel_unshuffle", 2),
    ),
    moved(
        "channel_shuffle",
        lambda x: x.channel_shuffle(2),
        lambda x: x[:, [0, 2, 1, 3]],
        (1, 4, 3, 3),
        dtypes=FEW,
        torch=functional("channel_shuffle", 2),
    ),
    *(
        Row(
            f"adaptive_{name}_pool2d",
            lambda x, name=name, sizes=sizes: getattr(x, f"adaptive_{name}_pool2d")(sizes),
            lambda x, reduce=reduce, sizes=sizes: adaptive(x, sizes, reduce),
            (IMAGE,),
            SOME,
            label=label,
            torch=functional(f"adaptive_{name}_pool2d", sizes),
        )
        for name, reduce in (("avg", np.mean), ("max", np.max))
        for label, sizes in (("", (3, 4)), ("global", (1, 1)), ("larger", (7, 6)))
    ),
    Row(
        "adaptive_avg_pool1d",
        lambda x: x.adaptive_avg_pool1d(2),
        lambda x: adaptive(x[:, :, None], (1, 2), np.mean)[:, :, 0],
        (Input((2, 3, 5)),),
        SOME,
        torch=functional("adaptive_avg_pool1d", 2),
    ),
    Row(
        "adaptive_max_pool1d",
        lambda x: x.adaptive_max_pool1d(3),
        lambda x: adaptive(x[:, :, None], (1, 3), np.max)[:, :, 0],
        (Input((2, 3, 5)),),
        SOME,
        torch=functional("adaptive_max_pool1d", 3),
    ),
    Row(
        "grid_sample",
        lambda x, g: x.grid_sample(g),
        lambda x, g: sampled(x, g, 1),
        (IMAGE, GRID),
        ("float64", "float32"),
        torch=functional("grid_sample", align_corners=False),
    ),
    Row(
        "grid_sample",
        lambda x, g: x.grid_sample(g, "nearest"),
        lambda x, g: sampled(x, g, 0),
        (IMAGE, Input(GRID.shape, -0.7, 0.7, constant=True)),
        ("float64", "float32"),
        label="nearest",
        torch=functional("grid_sample", "nearest", align_corners=False),
    ),
    Row(
        "conv1d",
        lambda x, w: x.conv1d(w, padding=1),
        lambda x, w: np.stack(
            [[sum(np.correlate(np.pad(r, 1), k, "valid") for r, k in zip(rows, kernel)) for kernel in w] for rows in x]
        ),
        (Input((2, 3, 7)), Input((4, 3, 3))),
        ("float64", "float32"),
        torch=functional("conv1d", padding=1),
    ),
    Row(
        "max_pool1d",
        lambda x: x.max_pool1d(2),
        lambda x: x.reshape(2, 3, 4, 2).max(-1),
        (Input((2, 3, 8)),),
        SOME,
        torch=functional("max_pool1d", 2),
    ),
    Row(
        "avg_pool1d",
        lambda x: x.avg_pool1d(2),
        lambda x: x.reshape(2, 3, 4, 2).mean(-1),
        (Input((2, 3, 8)),),
        SOME,
        torch=functional("avg_pool1d", 2),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate(scale_factor=2, mode="nearest"),
        lambda x: x.repeat(2, -1).repeat(2, -2),
        (IMAGE,),
        SOME,
        label="scale",
        torch=functional("interpolate", scale_factor=2, mode="nearest"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((2, 2), mode="area"),
        lambda x: np.stack([x[..., k : k + 2].reshape(2, 3, 2, 2, 2).mean((3, 4)) for k in (0, 1)], -1),
        (Input((2, 3, 4, 3)),),
        SOME,
        label="area",
        torch=functional("interpolate", (2, 2), mode="area"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate(scale_factor=1.5, mode="bilinear"),
        lambda x: resized(x, 1.5),
        (IMAGE,),
        SOME,
        label="fraction",
        torch=functional("interpolate", scale_factor=1.5, mode="bilinear"),
    ),
]

TWO = ((3, 4), (3, 4))


def mode_of(x, axis):
    """The most frequent element, of several the least, and its last place."""

    def of_row(row):
        values, counts = np.unique(row, return_counts=True)
        value = values[counts.argmax()]
        return value, np.flatnonzero(row == value)[-1]

    rows = [of_row(row) for row in np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])]
    shape = np.delete(x.shape, axis)
    return tuple(np.array(each).reshape(shape) for each in zip(*rows))


def stacked(op, reference, *shapes, **more):
    """A method that joins tensors, given as a list."""
    call = more.pop("call", lambda *tensors: getattr(type(tensors[0]), op)(tensors))
    return moved(op, call, lambda *arrays: reference(arrays), *shapes, dtypes=FEW, torch=of_torch_list(op), **more)


def of_torch_list(op):
    return lambda t, *tensors: getattr(t, op)(tensors)


STACKING = [
    stacked("hstack", np.hstack, *TWO),
    stacked("hstack", np.hstack, (3,), (5,), label="vectors"),
    stacked("hstack", np.hstack, (), (), label="numbers"),
    stacked("hstack", np.hstack, (2, 3, 4), (2, 1, 4), label="one by one", call=lambda x, y: x.hstack(y)),
    stacked("vstack", np.vstack, (3, 4), (1, 4)),
    stacked("vstack", np.vstack, (4,), (2, 4), label="vector"),
    stacked("dstack", np.dstack, *TWO),
    stacked("dstack", np.dstack, (4,), (4,), label="vectors"),
    stacked("dstack", np.dstack, (2, 3, 4), (2, 3, 1), label="cubes"),
    stacked("column_stack", np.column_stack, (3,), (3, 2)),
    Row(
        "block_diag",
        lambda *tensors: type(tensors[0]).block_diag(*tensors),
        lambda *arrays: linalg.block_diag(*arrays),
        (Input((2, 3)), Input((4,)), Input((3, 1))),
        ("float64", "float32"),
        torch=lambda t, *tensors: t.block_diag(*tensors),
    ),
    Row(
        "cartesian_prod",
        lambda *tensors: type(tensors[0]).cartesian_prod(*tensors),
        lambda *arrays: np.stack([grid.reshape(-1) for grid in np.meshgrid(*arrays, indexing="ij")], 1),
        (Input((2,)), Input((3,)), Input((4,))),
        FEW,
        torch=lambda t, *tensors: t.cartesian_prod(*tensors),
    ),
    moved("hsplit", lambda x: x.hsplit(3), lambda x: tuple(np.hsplit(x, 3)), dtypes=FEW),
    moved("hsplit", lambda x: x.hsplit([1, 3]), lambda x: tuple(np.hsplit(x, [1, 3])), (5,), label="vector"),
    moved("vsplit", lambda x: x.vsplit(2), lambda x: tuple(np.vsplit(x, 2)), dtypes=FEW),
    moved("dsplit", lambda x: x.dsplit((1, 2)), lambda x: tuple(np.dsplit(x, (1, 2))), dtypes=FEW),
    moved("diag_embed", lambda x: x.diag_embed(), lambda x: x[..., None] * np.eye(4, dtype=x.dtype), dtypes=FEW),
    Row(
        "mode",
        lambda x: tuple(x.mode(1)),
        lambda x: mode_of(x, 1),
        (Input((3, 9, 2), 0, 3),),
        ("int64", "uint8"),
        False,
        result=("same", "int64"),
        torch=None,
    ),
    Row(
        "mode",
        lambda x: tuple(x.mode()),
        lambda x: mode_of(x, 0),
        (Input(values=[2.0, 5.0, 2.0, 5.0, 1.0]),),
        ("float32", "int32"),
        False,
        result=("same", "int64"),
        label="ties",
        torch=None,
    ),
    Row(
        "dist",
        lambda x, y: x.dist(y, 3),
        lambda x, y: (np.abs(x - y) ** 3).sum() ** (1 / 3),
        PAIR,
        ("float64", "float32"),
    ),
    made(
        "logspace",
        lambda device, dtype: Tensor.logspace(-1, 2, 7, 2.0, dtype, device),
        lambda: np.logspace(-1, 2, 7, base=2.0),
        ("float64", "float32", "float16"),
    ),
    made(
        "tril_indices",
        lambda device, dtype: Tensor.tril_indices(3, 5, 1, device).cast(dtype),
        lambda: np.stack(np.tril_indices(3, 1, 5)),
        ("int64",),
    ),
    made(
        "triu_indices",
        lambda device, dtype: Tensor.triu_indices(4, 3, -1, device).cast(dtype),
        lambda: np.stack(np.triu_indices(4, -1, 3)),
        ("int64",),
    ),
]

HASHES = [
    Row(
        "keccak",
        lambda x: x.keccak("sha3_256"),
        lambda x: np.stack([np.frombuffer(hashlib.sha3_256(row.tobytes()).digest(), np.uint8) for row in x]),
        (Input((2, 140), 0, 255),),
        ("uint8",),
        False,
        torch=None,
    ),
]

ROWS = [*POINTWISE, *STATISTICS, *SELECTING, *PRODUCTS, *IMAGES, *STACKING, *HASHES]
