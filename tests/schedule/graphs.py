"""Graphs for the tests of the scheduler. In: shapes. Out: raw nodes over buffers with random contents, and the means to
schedule them, to run them and to compare them with the interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tilewright import Tensor
from tilewright.base.dtype import DType, dtypes
from tilewright.engine.execution.realize import realize, schedule
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of, from_host

DEVICE = "CPU"


class Graph:
    """Buffers with random contents, and the means to schedule and check what is built over them."""

    def __init__(self, seed: int = 0) -> None:
        self.numbers = np.random.default_rng(seed)
        self.contents: dict[UOp, np.ndarray] = {}

    def input(self, *shape: int, dtype: DType = dtypes.float32) -> UOp:
        count = math.prod(shape)
        data = self.numbers.standard_normal(count).astype(numpy_dtype(dtype))
        node = from_host(data.copy(), DEVICE, dtype, count)
        self.contents[node] = data
        return build.reshape(node, shape)

    def tensor(self, *shape: int, requires_grad: bool = True) -> Tensor:
        data = self.numbers.standard_normal(shape).astype(np.float32) * np.float32(0.5)
        return Tensor(data, requires_grad=requires_grad, device=DEVICE).realize()

    def kernels(self, *outputs: UOp | Tensor) -> int:
        """How many kernels the outputs take; they are run and compared with the interpreter."""
        return len(self.plan(*outputs).items)

    def plan(self, *outputs: UOp | Tensor) -> Schedule:
        """The schedule of the outputs, which is run and compared with the interpreter."""
        nodes = [output.uop if isinstance(output, Tensor) else output for output in outputs]
        expected = evaluate_all(tuple(nodes), self._contents_of(nodes))
        plan = schedule(nodes, DEVICE)
        for buffer, node, value in zip(realize(nodes, DEVICE), nodes, expected, strict=True):
            data = buffer_of(buffer).view() if buffer.arg.size else b""
            got = np.frombuffer(data, numpy_dtype(node.dtype)).reshape(node.shape)
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)
        assert all(item.ast is not None for item in plan.items)
        return plan

    def _contents_of(self, nodes: list[UOp]) -> dict[UOp, np.ndarray]:
        """What every buffer holds now, before anything is updated in place."""
        found = dict(self.contents)
        for node in toposort(*nodes):
            if node.op is Ops.BUFFER and node not in found:
                found[node] = np.frombuffer(bytes(buffer_of(node).view()), numpy_dtype(node.dtype))
        return found


def stores(plan: Schedule) -> list[int]:
    """How many stores each kernel has."""
    return [len(item.ast.src) for item in plan.items if item.ast is not None]


def nodes_of(plan: Schedule, *ops: Any) -> list[UOp]:
    """The nodes of some ops in all kernels."""
    return [node for item in plan.items if item.ast is not None for node in toposort(item.ast) if node.op in ops]


def add(x: UOp, y: UOp) -> UOp:
    return build.alu(Ops.ADD, x, y)


def mul(x: UOp, y: UOp) -> UOp:
    return build.alu(Ops.MUL, x, y)


def sub(x: UOp, y: UOp) -> UOp:
    return build.alu(Ops.SUB, x, y)


def scalar(value: float, like: UOp) -> UOp:
    return build.const(like.dtype, value, like.shape)


def total(x: UOp, *axes: int) -> UOp:
    return build.reduce_axis(Ops.ADD, x, axes)


def spread(x: UOp, like: UOp) -> UOp:
    return build.expand(x, like.shape)


def exp(x: UOp) -> UOp:
    return build.alu(Ops.EXP2, mul(x, scalar(1.4426950408889634, x)))


def softmax(x: UOp) -> UOp:
    axis = len(x.shape) - 1
    raised = exp(sub(x, spread(build.reduce_axis(Ops.MAX, x, (axis,)), x)))
    return build.alu(Ops.FDIV, raised, spread(total(raised, axis), raised))


def layernorm(x: UOp) -> UOp:
    axis = len(x.shape) - 1
    count = 1.0 / x.shape[axis]
    mean = total(x, axis)
    mean = mul(mean, scalar(count, mean))
    centred = sub(x, spread(mean, x))
    variance = total(mul(centred, centred), axis)
    variance = add(mul(variance, scalar(count, variance)), scalar(1e-5, variance))
    return build.alu(Ops.FDIV, centred, spread(build.alu(Ops.SQRT, variance), x))


def matmul(x: UOp, y: UOp) -> UOp:
    (rows, inner), columns = x.shape, y.shape[1]
    left = build.expand(build.reshape(x, (rows, inner, 1)), (rows, inner, columns))
    right = build.expand(build.reshape(y, (1, inner, columns)), (rows, inner, columns))
    return build.reshape(total(mul(left, right), 1), (rows, columns))


def relu(x: UOp) -> UOp:
    return build.alu(Ops.MAX, x, scalar(0.0, x))
