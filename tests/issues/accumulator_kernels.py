"""Kernels that add up by hand, in every way that cases.md section 1 names, each with what it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import AddrSpace, AxisType, KernelInfo, Opt, Tensor, UOp

Array = np.ndarray[Any, Any]
Opts = tuple[Opt, ...] | None


def row_sum(out: UOp, x: UOp, opts: Opts) -> UOp:
    row = UOp.range(x.shape[0], 0)
    acc = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG)
    acc = acc.after(row)[0].set(0)
    col = UOp.range(x.shape[1], 1, AxisType.REDUCE)
    acc = acc[0].set(acc.after(col)[0] + x[row, col], end=col)
    return out[row].set(acc[0], end=row).sink(arg=KernelInfo(name="row_sum", opts_to_apply=opts))


def row_sum_in_output(out: UOp, x: UOp, opts: Opts) -> UOp:
    row = UOp.range(x.shape[0], 0)
    col = UOp.range(x.shape[1], 1, AxisType.REDUCE)
    out = out[row].set(0)
    out = out[row].set(out.after(col)[row] + x[row, col], end=col)
    return out.end(row).sink(arg=KernelInfo(name="row_sum_in_output", opts_to_apply=opts))


def attention(out: UOp, queries: UOp, keys: UOp, values: UOp, opts: Opts) -> UOp:
    """Without softmax: the score is an accumulator that the loop of the other one uses."""
    row, feature = UOp.range(queries.shape[0], 0), UOp.range(values.shape[1], 1)
    key, depth = UOp.range(keys.shape[0], 2, AxisType.REDUCE), UOp.range(keys.shape[1], 3, AxisType.REDUCE)
    total = UOp.placeholder((1,), out.dtype, 0, addrspace=AddrSpace.REG).after(row, feature)[0].set(0)
    score = UOp.placeholder((1,), out.dtype, 1, addrspace=AddrSpace.REG).after(row, key)[0].set(0)
    score = score[0].set(score.after(depth)[0] + queries[row, depth] * keys[key, depth], end=depth)
    total = total[0].set(total.after(key)[0] + score[0] * values[key, feature], end=key)
    stored = out[row, feature].set(total[0], end=(row, feature))
    return stored.sink(arg=KernelInfo(name="attention", opts_to_apply=opts))


def row_maximum(out: UOp, x: UOp, opts: Opts) -> UOp:
    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)
    acc = UOp.placeholder((1,), out.dtype, 0).after(row)[0].set(-float("inf"))
    acc = acc[0].set(acc.after(col)[0].maximum(x[row, col]), end=col)
    return out[row].set(acc[0], end=row).sink(arg=KernelInfo(name="row_maximum", opts_to_apply=opts))


def row_product(out: UOp, x: UOp, opts: Opts) -> UOp:
    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)
    acc = UOp.placeholder((1,), out.dtype, 0).after(row)[0].set(1)
    acc = acc[0].set(x[row, col] * acc.after(col)[0], end=col)
    return out[row].set(acc[0], end=row).sink(arg=KernelInfo(name="row_product", opts_to_apply=opts))


def row_polynomial(out: UOp, x: UOp, opts: Opts) -> UOp:
    row, col = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)
    acc = UOp.placeholder((1,), out.dtype, 0).after(row)[0].set(1)
    acc = acc[0].set(acc.after(col)[0] * x[row, col] + 0.5, end=col)
    return out[row].set(acc[0], end=row).sink(arg=KernelInfo(name="row_polynomial", opts_to_apply=opts))


def polynomial(x: Array) -> Array:
    total = np.ones(x.shape[0], np.float64)
    for column in x.astype(np.float64).T:
        total = total * column + 0.5
    return total


@dataclass(frozen=True)
class Case:
    """A row of the matrix: the kernel, the shapes of its arguments (the output first), and what it must give."""

    name: str
    kernel: Callable[..., UOp]
    shapes: tuple[tuple[int, ...], ...]
    expected: Callable[..., Array]
    axis: int  # the number of the axis that is added up over
    is_reduction: bool = True

    def inputs(self) -> list[Array]:
        generator = np.random.default_rng(len(self.name))
        return [generator.uniform(-1.5, 1.5, shape).astype(np.float32) for shape in self.shapes[1:]]

    def run(self, device: str, opts: Opts) -> tuple[Array, Array]:
        """What a device gives, and what is right."""
        arrays = self.inputs()
        tensors = [Tensor(array, device=device) for array in arrays]
        out = Tensor.empty(*self.shapes[0], device=device)

        def kernel(*arguments: UOp) -> UOp:
            return self.kernel(*arguments, opts)

        return Tensor.custom_kernel(out, *tensors, fxn=kernel)[0].numpy(), self.expected(*arrays)


CASES = (
    Case("placeholder", row_sum, ((6,), (6, 64)), lambda x: x.sum(1), 1),
    Case("output-buffer", row_sum_in_output, ((6,), (6, 64)), lambda x: x.sum(1), 1),
    Case("two-accumulators", attention, ((6, 4), (6, 8), (32, 8), (32, 4)), lambda q, k, v: q @ k.T @ v, 2),
    Case("maximum", row_maximum, ((6,), (6, 64)), lambda x: x.max(1), 1),
    Case("product", row_product, ((6,), (6, 64)), lambda x: x.prod(1), 1),
    Case("polynomial", row_polynomial, ((6,), (6, 64)), polynomial, 1, is_reduction=False),
)
