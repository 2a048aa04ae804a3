"""The random cases of `bench/sweep.py` that move data more than they compute: expressions with broadcasts, gathers and
scatters, pools. In and out as in `bench/sweep_cases.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.sweep_cases import Case, Function, Random, Scale, normal, pick, shape, size, times


def elementwise(random: Random, scale: Scale) -> Case:
    """An expression of two or three operands, some of which are broadcast along some axes; or a movement of one."""
    rank = int(random.integers(1, 5))
    sizes = shape(random, scale.elements // 2, rank)
    if random.random() < 0.35:
        return movement(random, sizes)
    others = [tuple(n if random.random() < 0.6 else 1 for n in sizes) for _ in range(2)]
    given = [normal(random, *sizes), *(normal(random, *other) for other in others)]
    name = pick(
        random,
        "x*y+z",
        "x*sigmoid(y)+z",
        "(x-y)/(1+z*z)",
        "gelu(x+y)*z",
        "where",
        "exp(-x*x)*y+tanh(z)",
        "sin(x)*y+cos(z)",
    )
    ways: dict[str, Function] = {
        "x*y+z": lambda x, y, z: x * y + z,
        "x*sigmoid(y)+z": lambda x, y, z: x * y.sigmoid() + z,
        "(x-y)/(1+z*z)": lambda x, y, z: (x - y) / (1 + z * z),
        "exp(-x*x)*y+tanh(z)": lambda x, y, z: (-x * x).exp() * y + z.tanh(),
        "sin(x)*y+cos(z)": lambda x, y, z: x.sin() * y + z.cos(),
    }
    gradient = pick(random, 0, 0, 3)
    shown = ", ".join(times(array.shape) for array in given)
    if name == "where":
        return Case(f"where(y>z, x, y) of {shown}", tuple(given), lambda x, y, z: (y > z).where(x, y), _torch_where, 0)
    if name == "gelu(x+y)*z":
        return Case(f"{name} of {shown}", tuple(given), lambda x, y, z: (x + y).gelu() * z, _torch_gelu, gradient)
    return Case(f"{name} of {shown}", tuple(given), ways[name], ways[name], gradient)


def _torch_where(x: Any, y: Any, z: Any) -> Any:
    import torch

    return torch.where(y > z, x, y)


def _torch_gelu(x: Any, y: Any, z: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x + y, approximate="tanh") * z


def movement(random: Random, sizes: tuple[int, ...]) -> Case:
    """A copy in another order: what a backend does at the speed of memory."""
    import torch

    rank = len(sizes)
    order = tuple(int(n) for n in random.permutation(rank))
    axis = int(random.integers(rank))
    shift = int(random.integers(1, sizes[axis] + 1))
    name = pick(random, "permute", "permute", "flip", "roll", "cat", "stack", "pad", "repeat", "slice")
    pads = (1, 2) * rank
    ours: dict[str, Function] = {
        "permute": lambda x: x.permute(*order).contiguous(),
        "flip": lambda x: x.flip(axis).contiguous(),
        "roll": lambda x: x.roll(shift, axis).contiguous(),
        "cat": lambda x: x.cat(x * 2, x, dim=axis).contiguous(),
        "stack": lambda x: x.stack(x * 2, dim=axis).contiguous(),
        "pad": lambda x: x.pad(pads).contiguous(),
        "repeat": lambda x: x.repeat_interleave(2, axis).contiguous(),
        "slice": lambda x: x[(slice(None),) * axis + (slice(None, None, 2),)].contiguous(),
    }
    theirs: dict[str, Function] = {
        "permute": lambda x: x.permute(order).contiguous(),
        "flip": lambda x: x.flip(axis),
        "cat": lambda x: torch.cat([x, x * 2, x], axis),
        "stack": lambda x: torch.stack([x, x * 2], axis),
        "pad": lambda x: torch.nn.functional.pad(x, pads),
    }
    shown = order if name == "permute" else axis
    return Case(
        f"{name} {shown} of {times(sizes)}", (normal(random, *sizes),), ours[name], theirs.get(name, ours[name])
    )


def gather_or_scatter(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    name = pick(
        random, "embedding", "embedding", "gather", "index_select", "scatter", "scatter_add", "index_add", "one_hot"
    )
    rows, width = shape(random, scale.elements // 4, 2)
    table = normal(random, rows, width)
    if name == "embedding":
        count = size(random, 1, max(1, scale.elements // 4 // width))
        picks = random.integers(0, rows, count)
        title = f"embedding, {count} of {rows}x{width}"
        return Case(
            title, (table, picks), lambda x, i: x[i], lambda x, i: functional.embedding(i, x), pick(random, 0, 1)
        )
    if name == "index_select":
        axis = int(random.integers(2))
        picks = random.integers(0, table.shape[axis], size(random, 1, max(1, table.shape[axis])))
        title = f"index_select {len(picks)} along {axis} of {rows}x{width}"
        return Case(title, (table, picks), *((lambda x, i: x.index_select(axis, i)),) * 2, pick(random, 0, 1))
    axis = int(random.integers(2))
    picks = random.integers(0, table.shape[axis], (rows, width))
    if name == "gather":
        way: Function = lambda x, i: x.gather(axis, i)  # noqa: E731 - both libraries have the method
        return Case(f"gather along {axis} of {rows}x{width}", (table, picks), way, way, pick(random, 0, 1))
    if name == "one_hot":
        classes = size(random, 2, 1024)
        labels = random.integers(0, classes, max(1, scale.elements // 4 // classes))
        title = f"one_hot {len(labels)} of {classes}"
        return Case(title, (labels,), lambda x: x.one_hot(classes), lambda x: functional.one_hot(x, classes))
    source = normal(random, rows, width)
    if name == "scatter":
        # Every target once: where two elements go to one place, which of them stays is not defined.
        order = np.argsort(random.random((rows, width)), axis=axis)
        way = lambda x, i, s: x.scatter(axis, i, s)  # noqa: E731
        return Case(f"scatter along {axis} of {rows}x{width}", (table, order, source), way, way)
    if name == "index_add":
        count = size(random, 1, max(1, scale.elements // 4 // width))
        lines, added = random.integers(0, rows, count), normal(random, count, width)
        title = f"index_add of {count} to {rows}x{width}"
        way = lambda x, i, s: x.index_add(0, i, s)  # noqa: E731
        return Case(title, (table, lines, added), way, way)
    title = f"scatter_add along {axis} of {rows}x{width}"
    return Case(title, (table, picks, source), *((lambda x, i, s: x.scatter_add(axis, i, s)),) * 2)


def pool(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    batch, channels = size(random, 1, 16), size(random, 1, 128)
    side = max(8, round(math.sqrt(scale.elements / 2 / batch / channels)))
    height, width = size(random, max(8, side // 2), side), size(random, max(8, side // 2), side)
    x = normal(random, batch, channels, height, width)
    name = pick(random, "max_pool2d", "max_pool2d", "avg_pool2d", "avg_pool2d", "nearest", "bilinear", "adaptive")
    title = f"{batch}x{channels}x{height}x{width}"
    gradient = pick(random, 0, 1)
    if name in ("nearest", "bilinear"):
        factor = pick(random, 2, 2, 3)
        way = "nearest" if name == "nearest" else "linear"
        return Case(
            f"{name} upsample by {factor} of {title}",
            (x[..., : height // factor + 1, : width // factor + 1].copy(),),
            lambda x: x.interpolate(tuple(n * factor for n in x.shape[2:]), mode=way),
            lambda x: functional.interpolate(x, scale_factor=factor, mode=name),
            gradient,
        )
    if name == "adaptive":
        target = size(random, 1, 7)
        return Case(
            f"adaptive_avg_pool2d to {target} of {title}",
            (x,),
            lambda x: x.adaptive_avg_pool2d(target),
            lambda x: functional.adaptive_avg_pool2d(x, target),
            gradient,
        )
    window = pick(random, 2, 2, 3, 3, 5)
    stride = pick(random, window, 1, 2)
    padding = pick(random, 0, window // 2)
    options = {"kernel_size": window, "stride": stride, "padding": padding}
    return Case(
        f"{name} {window}, stride {stride}, padding {padding} of {title}",
        (x,),
        lambda x: getattr(x, name)(**options),
        lambda x: getattr(functional, name)(x, **options),
        gradient,
    )
