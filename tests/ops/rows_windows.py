"""Rows of the op table: convolution, pooling, resizing. References are loops over the outputs."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.ops.rows import NUMBERS, WIDE_FLOATS, Input, Row


def pairs(value, count):
    return (value,) * count if isinstance(value, int) else tuple(value)


def conv(x, w, b=None, groups=1, stride=1, dilation=1, padding=0):
    """By loops over the outputs."""
    space = w.ndim - 2
    stride, dilation, padding = (pairs(value, space) for value in (stride, dilation, padding))
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    sizes = [(x.shape[2 + k] - dilation[k] * (w.shape[2 + k] - 1) - 1) // stride[k] + 1 for k in range(space)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes))
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for place in itertools.product(*map(range, sizes)):
        cut = tuple(
            slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, d, k in zip(place, stride, dilation, w.shape[2:])
        )
        for group in range(groups):
            window = x[(slice(None), slice(group * inputs, (group + 1) * inputs), *cut)]
            kernel = w[group * outputs : (group + 1) * outputs]
            value = np.tensordot(window, kernel, (range(1, 2 + space), range(1, 2 + space)))
            result[(slice(None), slice(group * outputs, (group + 1) * outputs), *place)] = value
    return result if b is None else result + b.reshape(1, -1, *(1,) * space)


def conv_transpose(x, w, b=None, groups=1, stride=1, dilation=1, padding=0, output_padding=0):
    """Each input element adds its kernel to the output."""
    space = w.ndim - 2
    stride, dilation, padding, more = (pairs(value, space) for value in (stride, dilation, padding, output_padding))
    sizes = [(x.shape[2 + k] - 1) * stride[k] + dilation[k] * (w.shape[2 + k] - 1) + 1 + more[k] for k in range(space)]
    result = np.zeros((x.shape[0], w.shape[1] * groups, *sizes))
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    for place in itertools.product(*map(range, x.shape[2:])):
        cut = tuple(
            slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, d, k in zip(place, stride, dilation, w.shape[2:])
        )
        for group in range(groups):
            value = x[(slice(None), slice(group * inputs, (group + 1) * inputs), *place)]
            added = np.tensordot(value, w[group * inputs : (group + 1) * inputs], 1)
            result[(slice(None), slice(group * outputs, (group + 1) * outputs), *cut)] += added
    cut = tuple(slice(p, size - p) for p, size in zip(padding, sizes))
    result = result[(slice(None), slice(None), *cut)]
    return result if b is None else result + b.reshape(1, -1, *(1,) * space)


def conv_rows(op, reference, torch_name):
    """Plain, with every option, grouped, and in 1 and 3 dimensions."""
    is_transposed = op != "conv2d"
    more = {"output_padding": 1} if is_transposed else {}
    options = {"groups": 2, "stride": (2, 3), "dilation": (2, 1), "padding": (1, 2), **more}
    image, kernel = Input((2, 4, 5, 6)), Input((4, 2, 3, 2) if not is_transposed else (4, 3, 2, 2))
    bias = Input((4,) if not is_transposed else (6,))

    def row(label, inputs, keywords):
        dimensions = len(inputs[0].shape) - 2

        def torch(t, *given):
            function = getattr(t.nn.functional, f"{torch_name}{dimensions}d")
            return function(*given, **keywords)

        def call(x, w, b=None):
            return getattr(x, op)(w, b, **keywords)

        return Row(op, call, lambda *given: reference(*given, **keywords), inputs, label=label, torch=torch)

    return [
        row("", (Input((2, 3, 4, 5)), Input((2, 3, 3, 2)) if not is_transposed else Input((3, 2, 3, 2))), {}),
        row("options", (image, kernel, bias), options),
        row(
            "1d",
            (Input((2, 2, 7)), Input((3, 2, 3)) if not is_transposed else Input((2, 3, 3))),
            {"stride": 2, "padding": 1},
        ),
        row("3d", (Input((1, 2, 3, 3, 4)), Input((2, 2, 2, 2, 2))), {"padding": 1}),
    ]


def windows_of(x, kernel, stride, dilation, pads):
    """For each output: the places of the valid elements of its window; the last axes are space."""
    space = x.shape[-len(kernel) :]
    sizes = [
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (before, after) in zip(space, kernel, stride, dilation, pads)
    ]
    for output in itertools.product(*map(range, sizes)):
        found = []
        for offset in itertools.product(*map(range, kernel)):
            place = [o * s + k * d - b for o, s, k, d, (b, _) in zip(output, stride, offset, dilation, pads)]
            if all(0 <= p < n for p, n in zip(place, space)):
                found.append(tuple(place))
        yield output, found


def ceil_pads(x, kernel, stride, dilation, padding, ceil_mode):
    pads = []
    for n, k, s, d, p in zip(x.shape[-len(kernel) :], kernel, stride, dilation, padding):
        after = p
        if ceil_mode:
            count = math.ceil((n + 2 * p - d * (k - 1) - 1) / s) + 1
            count -= (count - 1) * s >= n + p
            after = max(p, (count - 1) * s + d * (k - 1) + 1 - n - p)
        pads.append((p, after))
    return pads


def pool_setup(x, kernel, stride, dilation, padding, ceil_mode):
    count = len(kernel)
    stride = kernel if stride is None else pairs(stride, count)
    dilation, padding = pairs(dilation, count), pairs(padding, count)
    pads = ceil_pads(x, kernel, stride, dilation, padding, ceil_mode)
    sizes = [
        (n + b + a - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (b, a) in zip(x.shape[-count:], kernel, stride, dilation, pads)
    ]
    return stride, dilation, padding, pads, (*x.shape[:-count], *sizes)


def max_pool(x, kernel=(2, 2), stride=None, dilation=1, padding=0, ceil_mode=False):
    stride, dilation, _, pads, shape = pool_setup(x, kernel, stride, dilation, padding, ceil_mode)
    value, index = np.zeros(shape, x.dtype), np.zeros(shape, np.int64)
    for output, places in windows_of(x, kernel, stride, dilation, pads):
        stacked = np.stack([x[(..., *place)] for place in places], -1)
        best = stacked.argmax(-1)
        flat = np.array([np.ravel_multi_index(place, x.shape[-len(kernel) :]) for place in places])
        value[(..., *output)] = stacked.max(-1)
        index[(..., *output)] = flat[best]
    return value, index


def avg_pool(x, kernel=(2, 2), stride=None, dilation=1, padding=0, ceil_mode=False, count_include_pad=True):
    stride, dilation, padding, pads, shape = pool_setup(x, kernel, stride, dilation, padding, ceil_mode)
    result = np.zeros(shape)
    padded = np.pad(np.zeros(x.shape[-len(kernel) :]), [(p, p) for p in padding])
    for (output, places), (_, counted) in zip(
        windows_of(x, kernel, stride, dilation, pads),
        windows_of(padded, kernel, stride, dilation, [(0, after - p) for p, (_, after) in zip(padding, pads)]),
    ):
        total = sum(x[(..., *place)] for place in places)
        result[(..., *output)] = total / len(counted if count_include_pad else places)
    return result


def unpool(x, index, shape):
    result = np.zeros((*x.shape[:2], math.prod(shape)), x.dtype)
    for n, c in np.ndindex(x.shape[:2]):
        result[n, c, index[n, c].reshape(-1)] = x[n, c].reshape(-1)
    return result.reshape(*x.shape[:2], *shape)


IMAGE = (Input((2, 2, 5, 6)),)
POOL = {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0), "ceil_mode": True}
TORCH_POOL = {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0), "ceil_mode": True}
MEAN = {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0), "ceil_mode": True}
UNPOOLED = (Input((1, 2, 2, 2)), Input(values=[[[[0, 3], [8, 15]], [[5, 2], [13, 10]]]], dtype="int64"))


def renamed(options):
    return {("kernel" if key == "kernel_size" else key): value for key, value in options.items()}


WINDOWED = [
    *conv_rows("conv2d", conv, "conv"),
    *conv_rows("conv_transpose2d", conv_transpose, "conv_transpose"),
    Row(
        "conv2d",
        lambda x, w: x.conv2d(w, dtype="float32"),
        conv,
        (Input((1, 2, 4, 4)), Input((2, 2, 2, 2))),
        ("float16", "bfloat16"),
        False,
        "float32",
        "dtype",
        None,
    ),
    Row(
        "max_pool2d",
        lambda x: x.max_pool2d(),
        lambda x: max_pool(x)[0],
        IMAGE,
        NUMBERS,
        torch=lambda t, x: t.max_pool2d(x, 2),
    ),
    Row(
        "max_pool2d",
        lambda x: x.max_pool2d(**POOL, return_indices=True),
        lambda x: max_pool(x, **renamed(POOL)),
        IMAGE,
        WIDE_FLOATS,
        result=("same", "int64"),
        label="options",
        torch=lambda t, x: t.nn.functional.max_pool2d(x, **TORCH_POOL, return_indices=True),
    ),
    Row(
        "max_pool2d",
        lambda x: x.max_pool2d((5, 5), 1, return_indices=True),
        lambda x: max_pool(x, (5, 5), 1),
        IMAGE,
        WIDE_FLOATS,
        result=("same", "int64"),
        label="large",
        torch=lambda t, x: t.nn.functional.max_pool2d(x, (5, 5), 1, return_indices=True),
    ),
    Row(
        "max_pool2d",
        lambda x: x.max_pool2d((3,), 2),
        lambda x: max_pool(x, (3,), 2)[0],
        (Input((2, 2, 9)),),
        label="1d",
        torch=lambda t, x: t.max_pool1d(x, 3, 2),
    ),
    Row("avg_pool2d", lambda x: x.avg_pool2d(), avg_pool, IMAGE, torch=lambda t, x: t.nn.functional.avg_pool2d(x, 2)),
    Row(
        "avg_pool2d",
        lambda x: x.avg_pool2d(**MEAN),
        lambda x: avg_pool(x, **renamed(MEAN)),
        IMAGE,
        label="options",
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, **MEAN),
    ),
    Row(
        "avg_pool2d",
        lambda x: x.avg_pool2d(**MEAN, count_include_pad=False),
        lambda x: avg_pool(x, **renamed(MEAN), count_include_pad=False),
        IMAGE,
        label="without padding",
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, **MEAN, count_include_pad=False),
    ),
    Row(
        "max_unpool2d",
        lambda x, i: x.max_unpool2d(i),
        lambda x, i: unpool(x, i, (4, 4)),
        UNPOOLED,
        NUMBERS,
        torch=lambda t, x, i: t.nn.functional.max_unpool2d(x, i, 2),
    ),
    Row(
        "max_unpool2d",
        lambda x, i: x.max_unpool2d(i, output_size=(5, 5)),
        lambda x, i: unpool(x, i, (5, 5)),
        UNPOOLED,
        label="size",
        torch=lambda t, x, i: t.nn.functional.max_unpool2d(x, i, 2, output_size=(5, 5)),
    ),
]


def resize(x, size, align=False):
    """Linear, along the last axes."""
    for axis, new in zip(range(x.ndim - len(size), x.ndim), size):
        old = x.shape[axis]
        number = np.arange(new)
        place = number * (old - 1) / max(new - 1, 1) if align else np.maximum((number + 0.5) * old / new - 0.5, 0)
        low = np.minimum(np.floor(place).astype(int), old - 1)
        high = np.minimum(low + 1, old - 1)
        share = (place - low).reshape(-1, *(1,) * (x.ndim - axis - 1))
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def nearest(x, size, exact=False):
    for axis, new in zip(range(x.ndim - len(size), x.ndim), size):
        old = x.shape[axis]
        number = np.arange(new)
        x = np.take(x, (2 * number + 1) * old // (2 * new) if exact else number * old // new, axis)
    return x


def cubic(x, size):
    """Cubic convolution with a slope of -0.75, a row of weights per new element."""
    for axis, new in zip(range(x.ndim - len(size), x.ndim), size):
        old = x.shape[axis]
        weights = np.zeros((new, old))
        for number in range(new):
            position = (number + 0.5) * old / new - 0.5
            low = int(np.floor(position))
            for tap in range(low - 1, low + 3):
                d = abs(position - tap)
                weight = 1.25 * d**3 - 2.25 * d**2 + 1 if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
                weights[number, min(max(tap, 0), old - 1)] += weight
        x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
    return x


RESIZED = [
    Row(
        "interpolate",
        lambda x: x.interpolate((3, 8), "bicubic"),
        lambda x: cubic(x, (3, 8)),
        IMAGE,
        label="bicubic",
        torch=lambda t, x: t.nn.functional.interpolate(x, (3, 8), mode="bicubic"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((7,)),
        lambda x: resize(x, (7,)),
        (Input((2, 2, 4)),),
        torch=lambda t, x: t.nn.functional.interpolate(x, (7,), mode="linear"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((3, 8), "bilinear"),
        lambda x: resize(x, (3, 8)),
        IMAGE,
        label="bilinear",
        torch=lambda t, x: t.nn.functional.interpolate(x, (3, 8), mode="bilinear"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((8, 4), align_corners=True),
        lambda x: resize(x, (8, 4), True),
        IMAGE,
        label="corners",
        torch=lambda t, x: t.nn.functional.interpolate(x, (8, 4), mode="bilinear", align_corners=True),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((7, 4), "nearest"),
        lambda x: nearest(x, (7, 4)),
        IMAGE,
        NUMBERS,
        label="nearest",
        torch=lambda t, x: t.nn.functional.interpolate(x, (7, 4), mode="nearest"),
    ),
    Row(
        "interpolate",
        lambda x: x.interpolate((7, 4), "nearest-exact"),
        lambda x: nearest(x, (7, 4), True),
        IMAGE,
        NUMBERS,
        label="exact",
        torch=lambda t, x: t.nn.functional.interpolate(x, (7, 4), mode="nearest-exact"),
    ),
]

ROWS = WINDOWED + RESIZED
