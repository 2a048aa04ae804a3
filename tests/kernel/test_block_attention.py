"""The kernels of attention in blocks, on the emulator: every index is checked, and every value against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.backends.python.emulator import run_program
from tilewright.codegen.pipeline import lower
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.kernels.attention.block_attention import BlockAttention, Tile, forward_kernel
from tilewright.graph.kernels.attention.block_attention_gradient import gradient_kernel, padded_keys
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver

# A block of 72 queries and a short one, two groups of keys of one panel each, the second masked at its end.
CALL = BlockAttention(
    dtypes.float32,
    batch=1,
    heads=1,
    shared=1,
    queries=130,
    keys=14,
    features=1,
    width=4,
    value_features=3,
    value_width=4,
    lanes=4,
    score_tile=Tile(6, 12),
    query_tile=Tile(4, 4),
    value_tile=Tile(6, 4),
    columns=12,
    scale=0.7,
    is_causal=True,
    mask=None,
    dropout=0.0,
    groups=2,
)
Array = np.ndarray[Any, Any]


def run(kernel: Any, call: BlockAttention, outputs: list[Array], given: list[Array]) -> None:
    arrays = [np.ascontiguousarray(each, np.float32) for each in (*outputs, *given)]
    target = replace(open_driver("CPU").target, vector_bytes=16)
    params = [UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, each.size)) for slot, each in enumerate(arrays)]
    program = lower(optimise(kernel(call, *params), target), target)
    buffers = [each.reshape(-1).astype(numpy_dtype(dtypes.float32)) for each in arrays]
    run_program(program, [buffers[param.slot] for param in program.params])
    for output, buffer in zip(outputs, buffers):
        output[...] = buffer.reshape(output.shape)


def panels_of(array: Array, call: BlockAttention, features: int) -> Array:
    missing = call.panels * call.panel - call.keys
    whole = np.pad(array[..., :features], ((0, 0), (0, 0), (0, missing), (0, 0)))
    parts = whole.reshape(call.batch, call.key_heads, call.panels, call.panel, features)
    return np.swapaxes(parts, -1, -2)


def test_on_the_emulator() -> None:
    call = CALL
    generator = np.random.default_rng(2)
    asked, known = (1, call.heads, call.queries), (1, call.key_heads, call.keys)
    shapes = ((*asked, 1), (*known, 1), (*known, 3), (*asked, 3))
    query, key, value, slope = (generator.standard_normal(shape) for shape in shapes)
    keys, values = (np.repeat(each, call.shared, 1) for each in (key, value))
    scores = query @ np.swapaxes(keys, -1, -2) * call.scale
    if call.is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = weights @ values
    slopes = weights * (slope @ np.swapaxes(values, -1, -2) - (slope * wanted).sum(-1, keepdims=True))
    shared = (1, call.key_heads, call.shared, call.keys)
    gradients = (
        slopes @ keys * call.scale,
        (np.swapaxes(slopes, -1, -2) @ query * call.scale).reshape(*shared, 1).sum(2),
        (np.swapaxes(weights, -1, -2) @ slope).reshape(*shared, 3).sum(2),
    )

    def padded(array: Array) -> Array:
        return np.pad(array, ((0, 0),) * 3 + ((0, 4 - array.shape[-1]),))

    out, sums = np.full((*asked, 4), np.nan), np.full((2, *asked), np.nan)
    given = [padded(query), padded(key), panels_of(key, call, 1), padded(value)]
    run(forward_kernel, call, [out, sums], given)
    assert np.abs(out[..., :3] - wanted).max() < 1e-5

    delta = (slope * wanted).sum(-1)
    outputs = [np.full((call.groups, *asked, 4), np.nan)]
    outputs += [np.full((1, call.key_heads, padded_keys(call), 4), np.nan) for _ in range(2)]
    given = [padded(query), padded(key), padded(value), padded(slope), sums, delta]
    run(gradient_kernel, call, outputs, [*given, panels_of(key, call, 1), panels_of(value, call, 3)])
    found = (outputs[0].sum(0), *(each[:, :, : call.keys] for each in outputs[1:]))
    for one, other in zip(found, gradients):
        assert np.abs(one[..., : other.shape[-1]] - other).max() < 1e-5
