"""Calls of attention, and their results and gradients in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import Tensor, Variable, dtypes, jit
from tilewright.base.dtype import DType
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    query: tuple[int, ...]
    key: tuple[int, ...]
    is_causal: bool = False
    mask: str = ""  # of `arrays`
    value_features: int = 0
    dtype: DType = dtypes.float32

    def arrays(self) -> list[Array]:
        generator = np.random.default_rng(3)
        width = self.value_features or self.key[-1]
        shapes = (self.query, self.key, (*self.key[:-1], width), (*self.query[:-1], width))
        made = [generator.standard_normal(shape) for shape in shapes]
        sizes = self.query[-2], self.key[-2]
        masks = {
            "bool": (generator.random(sizes) < 0.6) | (np.arange(sizes[1]) == 0),
            "heads": generator.standard_normal((self.query[-3] if len(self.query) > 2 else 1, 1, sizes[1])),
            "keys": np.arange(sizes[1])[None] >= sizes[1] - 7,
            "padding": np.where(np.arange(sizes[0])[:, None] < 5, float(np.finfo(np.float32).min), np.zeros(sizes)),
            "large": 100 + 10 * generator.random((1, sizes[1])),
        }
        return [*made, *([masks[self.mask]] if self.mask else [])]

    def tensors(self, device: str = "CPU") -> list[Tensor]:
        kinds = [dtypes.bool if each.dtype == bool else self.dtype for each in self.arrays()]
        arrays = [each if each.dtype == bool else each.astype(self.held) for each in self.arrays()]
        return [Tensor(each, device=device).cast(kind).realize() for each, kind in zip(arrays, kinds)]

    @property
    def held(self) -> type:
        """Some devices have no float64 to convert from."""
        return np.float64 if self.dtype is dtypes.float64 else np.float32

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *mask: Tensor, dropout: float = 0.0) -> Tensor:
        has_heads = query.ndim > 2
        return query.scaled_dot_product_attention(
            key, value, mask[0] if mask else None, dropout, self.is_causal, enable_gqa=has_heads
        )


def expected(case: Case, given: list[Array]) -> tuple[Array, list[Array]]:
    """The result, and the gradients of queries, keys, values and a float mask, in float64."""
    query, key, value, slope, *masks = given
    shared = query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1
    keys, values = (np.repeat(each, shared, -3) if shared > 1 else each for each in (key, value))
    scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ np.swapaxes(keys, -1, -2) * scale
    if case.is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    for mask in masks:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result = weights @ values
    slopes = weights * (slope @ np.swapaxes(values, -1, -2) - (slope * result).sum(-1, keepdims=True))

    def of_heads(array: Array) -> Array:
        if shared > 1:
            array = array.reshape(*key.shape[:-2], shared, *array.shape[-2:]).sum(-3)
        return array if array.shape[0] == key.shape[0] else array.sum(0, keepdims=True)

    gradients = [
        slopes @ keys * scale,
        of_heads(np.swapaxes(slopes, -1, -2) @ query * scale),
        of_heads(np.swapaxes(weights, -1, -2) @ slope),
    ]
    if masks and masks[0].dtype != bool:
        of_mask = slopes.sum(tuple(range(slopes.ndim - masks[0].ndim)))
        shared_axes = tuple(axis for axis, size in enumerate(masks[0].shape) if size == 1)
        gradients.append(of_mask.sum(shared_axes, keepdims=True))
    return result, gradients


def names(*values: Tensor) -> list[str]:
    return [item.ast.arg.name for item in values[0].schedule(*values[1:]) if item.ast is not None]


def close(found: Tensor, wanted: Array, tolerance: float) -> bool:
    array = (found if found.dtype is dtypes.float64 else found.float()).numpy()
    return bool(np.abs(array - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max()))


def exact(given: list[Tensor]) -> list[Array]:
    """The operands as they were rounded, in float64; masks of bools as they are."""
    arrays = [(each.float() if each.dtype.itemsize == 2 else each).numpy() for each in given]
    return [each.astype(np.float64) if each.dtype != bool else each for each in arrays]


def compare(case: Case, device: str, length: tuple[int, int] | None = None) -> tuple[Tensor, list[Tensor]]:
    """Attention and its gradients on a device, compared with float64. With a `length`, the first that many queries and
    keys, by variables; by one where there are as many queries as keys."""
    given = case.tensors(device)
    query, key, value, slope, *mask = given
    views, wanted = list(given), exact(given)
    if length is not None:
        most = query.shape[-2], key.shape[-2]
        sizes = [Variable(name, 1, size).bind(own) for name, size, own in zip(("n", "m"), most, length)]
        same = sizes[0] if most[0] == most[1] else sizes[1]
        ends = [(sizes[0], length[0]), (same, length[1]), (same, length[1]), (sizes[0], length[0])]
        views = [each[..., :size, :] for each, (size, _) in zip(given, ends)]
        wanted[:4] = [each[..., :size, :] for each, (_, size) in zip(wanted, ends)]
        if mask:
            rows = slice(0, sizes[0]) if mask[0].shape[-2] > 1 else slice(None)
            views.append(mask[0][..., rows, :same])
            wanted[4] = wanted[4][..., : length[0], : length[1]]
    found = case.attend(*views[:3], *views[4:])
    targets = [query, key, value, *(each for each in mask if each.dtype.is_float)]
    gradients = list(found.gradient(*targets, gradient=views[3]))
    found.realize(*gradients)  # each by itself would compute what it shares with the others
    result, slopes = expected(case, wanted)
    tolerance = {dtypes.float32: 5e-6, dtypes.float64: 1e-12}.get(case.dtype, 0.01)
    tolerance *= 10 if case.mask == "large" else 1  # scores of 100 are rounded so
    assert close(found, result, tolerance)
    for gradient, slope in zip(gradients, slopes, strict=True):
        whole = np.zeros(gradient.shape)
        whole[tuple(slice(0, size) for size in slope.shape)] = slope
        assert close(gradient, whole, tolerance)
    return found, gradients


def compare_dropout(case: Case, device: str) -> None:
    """The weights that are dropped are those that `dropout` would drop, in the result and in the gradients, and others
    in another call."""
    query, key, value, slope = case.tensors(device)
    probability = 0.4

    def run() -> list[Tensor]:
        with Tensor.train():
            found = case.attend(query, key, value, dropout=probability)
        results = [found, *found.gradient(query, key, value, gradient=slope)]
        results[0].realize(*results[1:])
        return results

    Tensor.manual_seed(5)
    found = run()
    Tensor.manual_seed(5)
    keys, values = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    weights = (query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1)
    kept = Tensor.rand(*weights.shape, device=device) >= probability
    plain = kept.where(weights / (1 - probability), 0) @ values
    wanted = [plain, *plain.gradient(query, key, value, gradient=slope)]
    for one, other in zip(found, wanted):
        assert np.abs(one.numpy() - other.numpy()).max() < 1e-5
    captured = jit(run)
    results = [captured()[0].numpy() for _ in range(4)]
    assert len({each.tobytes() for each in results}) == 4
    assert all(abs(np.mean(each)) < 1 for each in results)


def memory_of(time: int, device: str, is_causal: bool, dropout: float) -> tuple[int, int]:
    """The elements of the largest buffer that attention and its gradients use, and of the memory that their kernels
    declare."""
    query, key, value = (Tensor.empty(1, 2, time, 16, device=device) for _ in range(3))
    with Tensor.train():
        found = query.scaled_dot_product_attention(key, value, dropout_p=dropout, is_causal=is_causal)
    items = found.schedule(*found.gradient(query, key, value, gradient=query))
    nodes = [node for item in items if item.ast is not None for node in toposort(item.ast)]
    sizes = {op: [node.arg.size for node in nodes if node.op is op] for op in (Ops.PARAM, Ops.DEFINE_LOCAL)}
    return max(sizes[Ops.PARAM]), sum(sizes[Ops.DEFINE_LOCAL])
