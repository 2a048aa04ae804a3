"""Rows of the op table: indexing and assignment in brackets, gathering, scattering, picking by truth."""

from __future__ import annotations

import numpy as np

from tests.ops.rows import ALL, FEW, INTS, NUMBERS, WIDE_FLOATS, Input, Row

CUBE = Input((3, 4, 5))
ROWS_INDEX = Input(values=[2, 0, -1, 2], dtype="int64")
COLUMNS_INDEX = Input(values=[[1], [3]], dtype="int32")
MASK = Input((3, 4), dtype="bool")


def indexed(label, index, *more, dtypes=FEW, torch="call"):
    """t[index(...)]: the index is made from the other inputs."""
    return Row(
        "getitem",
        lambda x, *given: x[index(*given)],
        lambda x, *given: x[index(*given)],
        (CUBE, *more),
        dtypes,
        label=label,
        torch=torch,
    )


def stored(label, index, value, *more, dtypes=("float32", "int64"), torch="call"):
    """t[index] = value on a copy."""

    def reference(x, *given):
        result = x.copy()
        is_given = isinstance(value, Input)
        result[index(*given[: len(given) - is_given])] = given[-1] if is_given else value
        return result

    def call(x, *given):
        result = x.clone() if hasattr(x, "clone") else x.copy()
        is_given = isinstance(value, Input)
        result[index(*given[: len(given) - is_given])] = given[-1] if is_given else value
        return result

    inputs = (CUBE, *more, *((value,) if isinstance(value, Input) else ()))
    return Row("setitem", call, reference, inputs, dtypes, label=label, torch=torch)


def scattered(x, dim, index, src, combine):
    result = x.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim] = index[place]
        result[tuple(target)] = combine(result[tuple(target)], src[place])
    return result


def reduced_scatter(x, dim, index, src, reduce, include_self):
    """All the values for each place, then combined."""
    found = {}
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim] = index[place]
        found.setdefault(tuple(target), []).append(src[place])
    combine = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "mean": np.mean}[reduce]
    result = x.copy()
    for target, values in found.items():
        value = combine(np.array([*([x[target]] if include_self else []), *values]))
        result[target] = np.floor(value) if x.dtype.kind in "iu" and reduce == "mean" else value
    return result


INTO = (Input((4, 3)), Input(values=[[0, 1, 3], [2, 1, 3]], dtype="int64"), Input((2, 3)))
ONCE = (Input((4, 3)), Input(values=[[0, 1, 3], [2, 0, 1]], dtype="int64"), Input((2, 3)))
LARGER = (Input((4, 4)), Input(values=[[0, 1, 3], [2, 1, 1]], dtype="int64"), Input((3, 3)))


def reduce_row(reduce, include_self=True, dtypes=INTS + WIDE_FLOATS):
    return Row(
        "scatter_reduce",
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        lambda x, i, s: reduced_scatter(x, 0, i, s, reduce, include_self),
        INTO,
        dtypes,
        label=f"{reduce}{'' if include_self else ' without self'}",
    )


INDEXED = [
    indexed("int", lambda: 1, dtypes=ALL),
    indexed("negative", lambda: (-1, slice(None), -2)),
    indexed("slices", lambda: (slice(1, 3), slice(None, None, 2)), dtypes=ALL),
    indexed("backwards", lambda: (slice(None, None, -1), slice(3, 0, -2), slice(None, None, -3)), torch=None),
    indexed("ellipsis", lambda: (..., 1)),
    indexed("none", lambda: (None, 1, None, ..., None)),
    indexed("list", lambda: [2, 0, 1, 1]),
    indexed("tensor", lambda i: i, ROWS_INDEX, dtypes=ALL),
    indexed("two tensors", lambda i, j: (i, j), ROWS_INDEX, COLUMNS_INDEX, dtypes=NUMBERS),
    indexed("apart", lambda i, j: (i, slice(None), j), ROWS_INDEX, COLUMNS_INDEX, dtypes=WIDE_FLOATS),
    Row(
        "getitem",
        lambda x, j: x[0, ::2, j, None],
        lambda x, j: x[0][::2, j, None],
        (CUBE, COLUMNS_INDEX),
        WIDE_FLOATS,
        label="mixed",
    ),
    indexed("mask", lambda m: m, MASK, dtypes=ALL),
    indexed("mask and slice", lambda m: (m, slice(1, 3)), MASK, dtypes=WIDE_FLOATS),
    indexed(
        "mask of an axis",
        lambda m: (slice(None), m),
        Input(values=[True, False, True, True], dtype="bool"),
        dtypes=WIDE_FLOATS,
    ),
    indexed("no true", lambda m: m, Input(values=[False] * 3, dtype="bool"), dtypes=("float32",)),
    indexed("truth", lambda: (slice(None), True, 1), dtypes=WIDE_FLOATS),
    indexed("empty", lambda: slice(2, 2), dtypes=("float32",)),
    stored("int", lambda: (1, -1), 2),
    stored("slices", lambda: (slice(None), slice(1, 3)), Input((2, 5)), dtypes=NUMBERS),
    stored("backwards", lambda: (slice(None, None, -2), ..., slice(4, 1, -2)), Input((4, 2)), torch=None),
    stored("list", lambda: ([0, 2],), Input((2, 4, 5))),
    stored("tensors", lambda i, j: (i, j), Input((2, 3, 5)), Input(values=[2, 0, 1], dtype="int64"), COLUMNS_INDEX),
    stored("tensors twice", lambda i, j: (i, j), Input((2, 4, 5)), ROWS_INDEX, COLUMNS_INDEX, torch=None),
    stored("mask", lambda m: m, 1, MASK, dtypes=NUMBERS),
    stored("mask rows", lambda m: m, Input((5,)), MASK),
    stored(
        "mask values",
        lambda m: m,
        Input((7, 5)),
        Input(values=[[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 1]], dtype="bool"),
        torch="call",
    ),
    stored(
        "mask of an axis",
        lambda m: (slice(None), m),
        Input((3, 3, 5)),
        Input(values=[True, False, True, True], dtype="bool"),
    ),
    Row(
        "gather",
        lambda x, i: x.gather(1, i),
        lambda x, i: np.take_along_axis(x, i, 1),
        (Input((3, 4)), Input((3, 5), 0, 3, "int64")),
        ALL,
    ),
    Row(
        "gather",
        lambda x, i: x.gather(0, i),
        lambda x, i: np.take_along_axis(x[:, :2], i, 0),
        (Input((3, 4)), Input((2, 2), 0, 2, "int64")),
        label="smaller",
    ),
    Row("masked_select", lambda x, m: x.masked_select(m), lambda x, m: x[m], (Input((3, 4)), MASK), ALL),
    Row(
        "masked_select",
        lambda x, m: x.masked_select(m, size=14, fill_value=1),
        lambda x, m: np.concatenate((x[np.broadcast_to(m, x.shape)], np.ones(14, x.dtype)))[:14],
        (Input((3, 4)), Input((4,), dtype="bool")),
        NUMBERS,
        label="size",
        torch=None,
    ),
    Row("nonzero", lambda x: x.nonzero(), np.argwhere, (Input((3, 4), 0, 1),), INTS + ("bool",), False, "int64"),
    Row(
        "nonzero",
        lambda x: x.nonzero(size=3, fill_value=7),
        lambda x: np.array([[0, 1], [1, 0], [7, 7]]),
        (Input(values=[[0, 1], [2, 0]]),),
        NUMBERS,
        False,
        "int64",
        "size",
        None,
    ),
    Row(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s),
        lambda x, i, s: scattered(x, 0, i, s, lambda old, new: new),
        LARGER,
        FEW,
        label="larger, twice",
        torch=None,
    ),
    Row(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s),
        lambda x, i, s: scattered(x, 0, i, s, lambda old, new: new),
        ONCE,
        ALL,
    ),
    Row(
        "scatter",
        lambda x, i: x.scatter(1, i, 1),
        lambda x, i: scattered(x, 1, i, np.ones(i.shape, x.dtype), lambda old, new: new),
        (Input((3, 4)), Input((3, 2), 0, 3, "int64")),
        NUMBERS,
        label="number",
    ),
    Row(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s, reduce="add"),
        lambda x, i, s: scattered(x, 0, i, s, lambda old, new: old + new),
        INTO,
        INTS + WIDE_FLOATS,
        label="add",
        torch=lambda t, x, i, s: x.scatter_add(0, i, s),
    ),
    Row(
        "scatter",
        lambda x, i, s: x.scatter(0, i, s, reduce="multiply"),
        lambda x, i, s: scattered(x, 0, i, s, lambda old, new: old * new),
        INTO,
        INTS + WIDE_FLOATS,
        label="multiply",
        torch=lambda t, x, i, s: x.scatter_reduce(0, i, s, "prod"),
    ),
    *(reduce_row(reduce) for reduce in ("sum", "prod", "mean", "amax", "amin")),
    *(reduce_row(reduce, False, WIDE_FLOATS) for reduce in ("sum", "prod", "mean", "amax", "amin")),
]

ROWS = INDEXED
