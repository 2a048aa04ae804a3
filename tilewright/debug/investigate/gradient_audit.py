"""Gradient rules against difference quotients. In: nodes whose gradient a program took. Out: the ops whose rule differs
from the slope of their value. Both are computed by the interpreter in float64, on random sources."""

from __future__ import annotations

import math

import numpy as np

from tilewright.base.dtype import DType, dtypes
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.sum_order import CANNOT, Array
from tilewright.graph import build
from tilewright.graph.gradients.rules import gradients_of
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp

MAX_ELEMENTS = 1 << 14
STEP = 1e-6
TOLERANCE = 1e-3
POSITIONS = 6


def check_gradient(node: UOp) -> Finding | None:
    """What is wrong with the rule of the node's op; None where it is right, or cannot be told."""
    if not node.dtype.is_float or not node.src or any(math.prod(src.shape) > MAX_ELEMENTS for src in (node, *node.src)):
        return None
    generator = np.random.default_rng(0)
    arrays: dict[UOp, Array] = {}
    sources = [_leaf(number, src, generator, arrays) for number, src in enumerate(node.src)]
    dtype: DType = dtypes.float64
    wide = UOp(node.op, dtype, tuple(sources), node.arg)
    upstream = _leaf(len(sources), UOp(Ops.CAST, dtype, (wide,)), generator, arrays)
    try:
        value = evaluate(wide, arrays)
        given = gradients_of(wide, upstream)
        weights = evaluate(upstream, arrays)
        for number, (source, gradient) in enumerate(zip(sources, given, strict=True)):
            if not source.dtype.is_float or value.size == 0:
                continue
            found = np.zeros(source.shape) if gradient is None else np.asarray(evaluate(gradient, arrays))
            wrong = _first_wrong(wide, source, np.broadcast_to(found, source.shape), weights, arrays, generator)
            if wrong:
                text = f"the gradient rule of {node.op.name} with respect to source {number} is wrong: {wrong}"
                after = "" if gradient is None else show(gradient)
                return Finding("gradient", node.op.name, text, show(wide), after)
    except CANNOT:
        return None
    return None


def _leaf(number: int, like: UOp, generator: np.random.Generator, arrays: dict[UOp, Array]) -> UOp:
    """A source of the same shape over new memory; floats are in a range in which every function is smooth."""
    size = math.prod(like.shape)
    dtype = dtypes.float64 if like.dtype.is_float else like.dtype
    param = UOp(Ops.PARAM, dtype, (), ParamArg(number, size))
    if dtype.is_float:
        arrays[param] = generator.uniform(0.5, 2.0, size)
    else:
        arrays[param] = generator.integers(0, 2, size).astype("bool" if dtype.is_bool else dtype.name)
    return build.reshape(param, like.shape)


def _first_wrong(
    node: UOp, source: UOp, found: Array, weights: Array, arrays: dict[UOp, Array], generator: np.random.Generator
) -> str:
    param = source if source.op is Ops.PARAM else source.src[0]
    data = arrays[param]
    for position in generator.permutation(data.size)[:POSITIONS]:
        sums = []
        for step in (STEP, -STEP):
            moved = data.copy()
            moved[position] += step
            sums.append(float((np.asarray(evaluate(node, {**arrays, param: moved})) * weights).sum()))
        slope = (sums[0] - sums[1]) / (2 * STEP)
        rule = float(found.reshape(-1)[position])
        if abs(slope - rule) > TOLERANCE * max(1.0, abs(slope)):
            return f"{rule:.6g} where the slope is {slope:.6g}"
    return ""
