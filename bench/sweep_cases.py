"""Random operations of ten families, each for tilewright and for torch. In: a family, a generator of random numbers and
a scale. Out: a `Case`: its inputs as arrays, and the function of either library. The same numbers give the same case in
every process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Random = np.random.Generator
Function = Callable[..., Any]  # takes tensors, gives one or a tuple


@dataclass(frozen=True)
class Scale:
    """The sizes that suit a device: elements of the largest operand, and multiplications of a product."""

    elements: int
    products: int


SCALES = {"host": Scale(1 << 21, 1 << 28), "card": Scale(1 << 26, 1 << 36), "tiny": Scale(1 << 8, 1 << 12)}


@dataclass(frozen=True)
class Case:
    """`differentiated` is how many of the inputs, from the first on, the gradients are taken of; 0 is the result
    alone. The gradient that comes in from behind is the result's own value, so that it is no constant."""

    title: str
    inputs: tuple[Array, ...]
    ours: Function
    theirs: Function
    differentiated: int = 0

    @property
    def name(self) -> str:
        return f"gradients of {self.title}" if self.differentiated else self.title

    def our_results(self) -> Function:
        """What jit is given. It reaches nothing of torch: jit walks through all that a function reaches."""
        return functools.partial(_our_results, self.ours, self.differentiated)

    def their_results(self, *given: Any) -> tuple[Any, ...]:
        import torch

        if not self.differentiated:
            with torch.no_grad():
                found = self.theirs(*given)
            return found if isinstance(found, tuple) else (found,)
        leaves = [tensor.detach().requires_grad_() for tensor in given[: self.differentiated]]
        found = self.theirs(*leaves, *given[self.differentiated :])
        return tuple(torch.autograd.grad(found, leaves, found.detach()))


def _our_results(ours: Function, differentiated: int, *given: Any) -> tuple[Any, ...]:
    found = ours(*given)
    if differentiated:
        results = tuple(found.gradient(*given[:differentiated], gradient=found.detach()))
    else:
        results = found if isinstance(found, tuple) else (found,)
    results[0].realize(*results[1:])
    return results


# ---------------------------------------------------------------- sizes


def size(random: Random, low: int, high: int) -> int:
    """Log-uniform in low..high; half of them are multiples of 8 or more, where that many fit, the others anything."""
    found = round(math.exp(random.uniform(math.log(low), math.log(max(low, high)))))
    if random.random() < 0.5:
        step = 1 << max(0, found.bit_length() - 3)
        found = max(low, found // step * step)
    return int(min(max(found, low), max(low, high)))


def shape(random: Random, elements: int, rank: int) -> tuple[int, ...]:
    """Sizes whose product is near `elements`, at most."""
    total = size(random, max(1, elements // 16), elements)
    found = []
    for left in range(rank, 1, -1):
        found.append(size(random, 1, max(1, round(total ** (1.5 / left)))))
        total = max(1, total // found[-1])
    found.append(total)
    return tuple(int(n) for n in random.permutation(found))


def normal(random: Random, *sizes: int) -> Array:
    return random.standard_normal(sizes, dtype=np.float32)


def pick(random: Random, *choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


def times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


# ---------------------------------------------------------------- products


def product_sizes(random: Random, products: int) -> tuple[int, int, int]:
    """Rows, summed, columns; one of them is often small."""
    total = size(random, max(1, products // 64), products)
    small = size(random, 1, 64) if random.random() < 0.4 else size(random, 1, max(1, round(total ** (1 / 3))))
    middle = size(random, 1, max(1, round(math.sqrt(total / small))))
    last = max(1, min(total // small // middle, 1 << 15))
    return tuple(int(n) for n in random.permutation([small, middle, last]))  # type: ignore[return-value]


def matmul(random: Random, scale: Scale) -> Case:
    rows, summed, columns = product_sizes(random, scale.products)
    way = pick(random, "plain", "plain", "left transposed", "right transposed", "batched", "vector", "chain")
    if way == "vector":
        rows = 1
    if way == "chain":
        side = size(random, 2, max(2, round((scale.products / 4) ** (1 / 3))))
        given = (normal(random, side, side) / np.float32(math.sqrt(side)),)
        return Case(f"((a @ a) @ a) @ a {side}", given, _chain, _chain, pick(random, 0, 1))
    if way == "batched":
        count = size(random, 2, 64)
        rows, summed, columns = product_sizes(random, max(64, scale.products // count))
        given = (normal(random, count, rows, summed), normal(random, count, summed, columns))
        return Case(f"{count} products {rows}x{summed}x{columns}", given, _matmul, _matmul)
    left = normal(random, *((summed, rows) if way == "left transposed" else (rows, summed)))
    right = normal(random, *((columns, summed) if way == "right transposed" else (summed, columns)))
    function = {"left transposed": _left_transposed, "right transposed": _right_transposed}.get(way, _matmul)
    return Case(f"matmul {rows}x{summed}x{columns}, {way}", (left, right), function, function)


def _matmul(x: Any, y: Any) -> Any:
    return x @ y


def _left_transposed(x: Any, y: Any) -> Any:
    return x.transpose(0, 1) @ y


def _right_transposed(x: Any, y: Any) -> Any:
    return x @ y.transpose(0, 1)


def _chain(x: Any) -> Any:
    return ((x @ x) @ x) @ x


def linear(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    rows, summed, columns = product_sizes(random, scale.products // 2)
    given = [normal(random, rows, summed), normal(random, columns, summed) / np.float32(math.sqrt(summed))]
    given.append(normal(random, columns))
    activation = pick(random, "none", "relu", "gelu", "tanh", "silu")
    theirs: dict[str, Function] = {
        "none": lambda x: x,
        "relu": functional.relu,
        "gelu": lambda x: functional.gelu(x, approximate="tanh"),
        "tanh": lambda x: x.tanh(),
        "silu": functional.silu,
    }
    return Case(
        f"linear {rows}x{summed}x{columns}, {activation}",
        tuple(given),
        lambda x, w, b: _activated(x.linear(w.transpose(0, 1), b), activation),
        lambda x, w, b: theirs[activation](functional.linear(x, w, b)),
        pick(random, 0, 3, 3),
    )


def _activated(x: Any, name: str) -> Any:
    return x if name == "none" else getattr(x, name)()


def convolution(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    axes = pick(random, 2, 2, 2, 1)
    window, stride = pick(random, 1, 3, 3, 5, 7), pick(random, 1, 1, 2, 2, 3)
    dilation = pick(random, 1, 1, 1, 2)
    most = min(256, math.isqrt(scale.elements))  # channels
    kind = pick(random, "plain", "plain", "grouped", "depthwise", "transposed")
    groups = {"grouped": pick(random, 2, 4, 8), "depthwise": size(random, 4, most)}.get(kind, 1)
    entering = groups * (1 if kind == "depthwise" else size(random, 1, max(1, most // groups)))
    leaving = groups * (1 if kind == "depthwise" else size(random, 1, max(1, most // groups)))
    padding = pick(random, 0, dilation * (window // 2))
    per_pixel = entering * leaving // groups * window**axes
    pixels = max(64, min(scale.products // max(1, per_pixel), scale.elements // max(entering, leaving)))
    batch = size(random, 1, 16)
    side = max(dilation * (window - 1) + 1, round((pixels / batch) ** (1 / axes)))
    sides = tuple(max(dilation * (window - 1) + 1, size(random, side // 2 or 1, side)) for _ in range(axes))
    x = normal(random, batch, entering, *sides)
    bound = np.float32(math.sqrt(entering // groups * window**axes))
    title = f"{window}-window, stride {stride}, dilation {dilation}, groups {groups}, padding {padding}"
    title += f" of {batch}x{entering}x{times(sides)} to {leaving}"
    if kind == "transposed":
        w = normal(random, entering, leaving, *(window,) * axes) / bound
        torch_way = functional.conv_transpose2d if axes == 2 else functional.conv_transpose1d
        padding = min(padding, dilation * (window - 1))
        return Case(
            f"transposed convolution, {title}",
            (x, w),
            lambda x, w: x.conv_transpose2d(w, None, groups, stride, dilation, padding),
            lambda x, w: torch_way(x, w, None, stride, padding, 0, groups, dilation),
            pick(random, 0, 2),
        )
    w = normal(random, leaving, entering // groups, *(window,) * axes) / bound
    torch_conv = functional.conv2d if axes == 2 else functional.conv1d
    return Case(
        f"convolution, {title}",
        (x, w),
        lambda x, w: x.conv2d(w, None, groups, stride, dilation, padding),
        lambda x, w: torch_conv(x, w, None, stride, padding, dilation, groups),
        pick(random, 0, 2),
    )


def attention(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    head, batch, heads = pick(random, 16, 32, 40, 64, 64, 80, 128), size(random, 1, 8), pick(random, 1, 4, 8, 12)
    room = max(4, round(math.sqrt(scale.products / (2 * head * batch * heads))))
    time = size(random, max(2, room // 8), room)
    causal, shared = bool(random.integers(2)), heads // 4 if heads % 4 == 0 and random.random() < 0.3 else heads
    keys = time if causal or random.random() < 0.7 else size(random, max(2, time // 4), time)
    q = normal(random, batch, heads, time, head)
    k, v = normal(random, batch, shared, keys, head), normal(random, batch, shared, keys, head)
    gqa = shared != heads
    title = f"attention {batch}x{heads}x{time}x{head}, {shared} x {keys} keys{', causal' if causal else ''}"
    return Case(
        title,
        (q, k, v),
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal, enable_gqa=gqa),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa),
        pick(random, 0, 0, 3),
    )


# ---------------------------------------------------------------- along axes


def reduction(random: Random, scale: Scale) -> Case:
    rank = int(random.integers(1, 5))
    sizes = shape(random, scale.elements, rank)
    axes = tuple(sorted(int(n) for n in random.permutation(rank)[: int(random.integers(1, rank + 1))]))
    name = pick(random, "sum", "mean", "amax", "amin", "var", "std", "logsumexp", "argmax", "norm")
    if name in ("var", "std") and math.prod(sizes[axis] for axis in axes) < 2:
        name = "mean"
    ours: dict[str, Function] = {
        "sum": lambda x: x.sum(axes),
        "mean": lambda x: x.mean(axes),
        "amax": lambda x: x.max(axes),
        "amin": lambda x: x.min(axes),
        "var": lambda x: x.var(axes),
        "std": lambda x: x.std(axes),
        "logsumexp": lambda x: x.logsumexp(axes),
        "argmax": lambda x: x.argmax(axes[0]),
        "norm": lambda x: x.square().sum(axes).sqrt(),
    }
    theirs: dict[str, Function] = {
        "amax": lambda x: x.amax(axes),
        "amin": lambda x: x.amin(axes),
        "norm": lambda x: x.pow(2).sum(axes).sqrt(),
    }
    gradient = pick(random, 0, 0, 1) if name in ("sum", "mean", "var", "std", "logsumexp", "norm") else 0
    shown = axes[:1] if name == "argmax" else axes
    return Case(
        f"{name} over {shown} of {times(sizes)}",
        (normal(random, *sizes),),
        ours[name],
        theirs.get(name, ours[name]),
        gradient,
    )


def norm(random: Random, scale: Scale) -> Case:
    import torch.nn.functional as functional

    name = pick(random, "layernorm", "rmsnorm", "batchnorm", "groupnorm", "softmax", "log_softmax", "cross_entropy")
    if name in ("batchnorm", "groupnorm"):
        batch, channels = size(random, 1, 32), 8 * size(random, 1, 32)
        side = max(2, round(math.sqrt(scale.elements / 2 / batch / channels)))
        x, weight, bias = (
            normal(random, batch, channels, side, side),
            normal(random, channels),
            normal(random, channels),
        )
        batch_way = name == "batchnorm"
        return Case(
            f"{name} {batch}x{channels}x{side}x{side}",
            (x, weight, bias),
            _our_batchnorm if batch_way else lambda x, w, b: _our_groupnorm(x, w, b, 8),
            (lambda x, w, b: functional.batch_norm(x, None, None, w, b, True))
            if batch_way
            else (lambda x, w, b: functional.group_norm(x, 8, w, b)),
            pick(random, 0, 3),
        )
    rows, width = shape(random, scale.elements // 2, 2)
    width = max(width, 2)
    x = normal(random, rows, width)
    if name == "cross_entropy":
        target = random.integers(0, width, rows)
        title = f"cross entropy {rows}x{width}"
        return Case(title, (x, target), lambda x, t: x.cross_entropy(t), functional.cross_entropy, pick(random, 0, 1))
    if name in ("layernorm", "rmsnorm"):
        weight, bias = normal(random, width), normal(random, width)
        ours = (lambda x, w, b: x.layernorm(-1, 1e-5) * w + b) if name == "layernorm" else _rmsnorm
        theirs = (lambda x, w, b: functional.layer_norm(x, (width,), w, b)) if name == "layernorm" else _rmsnorm
        return Case(f"{name} {rows}x{width}", (x, weight, bias), ours, theirs, pick(random, 0, 3))
    axis = pick(random, -1, -1, 0)
    ours = lambda x: getattr(x, name)(axis)  # noqa: E731 - both libraries have the method
    return Case(f"{name} over {axis} of {rows}x{width}", (x,), ours, ours, pick(random, 0, 1))


def _our_batchnorm(x: Any, weight: Any, bias: Any) -> Any:
    variance, mean = x.var_mean((0, 2, 3), correction=0)
    return x.batchnorm(weight, bias, mean, (variance + 1e-5).rsqrt())


def _our_groupnorm(x: Any, weight: Any, bias: Any, groups: int) -> Any:
    normalised = x.reshape(x.shape[0], groups, -1).layernorm(-1, 1e-5).reshape(x.shape)
    return normalised * weight.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


def _rmsnorm(x: Any, weight: Any, bias: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias


def scan_or_sort(random: Random, scale: Scale) -> Case:
    rank = int(random.integers(1, 4))
    name = pick(random, "cumsum", "cumsum", "cumprod", "cummax", "logcumsumexp", "sort", "sort", "argsort", "topk")
    sizes = shape(random, scale.elements // (2 if name in ("cumsum", "cumprod", "cummax") else 16), rank)
    axis = int(random.integers(rank))
    x = normal(random, *sizes)
    if name == "cumprod":
        x = 1 + x / np.float32(1 + sizes[axis])
    k = min(sizes[axis], size(random, 1, 64))
    ways: dict[str, Function] = {
        "cummax": lambda x: x.cummax(axis)[0],
        "sort": lambda x: x.sort(axis)[0],
        # The order as one sees it: equal elements may stand in any order.
        "argsort": lambda x: x.gather(axis, x.argsort(axis)),
        "topk": lambda x: x.topk(k, axis)[0],
    }
    way = ways.get(name, lambda x: getattr(x, name)(axis))
    gradient = pick(random, 0, 0, 1) if name in ("cumsum", "sort", "topk") else 0
    return Case(f"{name}{f' {k}' if name == 'topk' else ''} along {axis} of {times(sizes)}", (x,), way, way, gradient)
