"""The lengths of vectors: a tile axis that becomes lanes is no longer than a register, or a power of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.kernels import add, kernel_of, leaf, row_sums
from tilewright import Tensor
from tilewright.backends.cpu.device import cpu_target
from tilewright.backends.python.device import python_target
from tilewright.base.events import subscribe
from tilewright.codegen.vectors import split_vectors
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import prepare_kernel

TARGET = replace(cpu_target(), vector_bytes=32)


def tile_of(sink: UOp) -> list[int]:
    return [size_of(axis) for axis in view_kernel(sink).of_kind(AxisType.UPCAST)]


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        (48, [3, 16]),
        (24, [3, 8]),
        (28, [7, 4]),
        (64, [64]),  # a power of two
        (6, [6]),  # within a register
        (27, [27]),  # no part of it is a vector
    ],
)
def test_the_lengths_of_a_sum(size: int, tile: list[int]) -> None:
    sink = prepare_kernel(kernel_of(add(leaf(0, 8 * size), leaf(1, 8 * size))))
    sink = apply_opt(sink, Opt(OptOps.UPCAST, 0, size))
    assert tile_of(split_vectors(sink, TARGET)) == tile


def test_a_reduction_names_both_axes() -> None:
    sink = apply_opt(prepare_kernel(kernel_of(row_sums())), Opt(OptOps.UPCAST, 1, 24))
    (node,) = view_kernel(split_vectors(sink, TARGET)).reduces
    assert [size_of(axis) for axis in node.src[1:]] == [3, 8]


def test_threads_of_work_groups_name_each_element() -> None:
    sink = apply_opt(prepare_kernel(kernel_of(row_sums())), Opt(OptOps.UPCAST, 1, 24))
    assert split_vectors(sink, python_target()) is sink


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_factor_is_not_gathered_because_a_bias_walks_its_axis(has_bias: bool) -> None:
    """The weights of a tile of rows lie apart and are used one by one; the bias of the same rows lies side by side."""
    weights, x, bias = Tensor.ones(64, 64).contiguous(), Tensor.ones(64, 64).contiguous(), Tensor.ones(64, 1)
    weights, x, bias = (tensor.realize() for tensor in (weights, x, bias.contiguous()))
    product = weights @ x + bias if has_bias else weights @ x
    texts: list[str] = []
    with subscribe(lambda event: texts.append(str(event["source"])), ("kernel-compiled",)):
        forget_kernels()
        assert product.numpy()[0, 0] == 64 + has_bias
    assert texts
    assert not any("masked.gather" in text for text in texts)
