"""A product's accumulators are vectors along the axis that its operands are read along, however many parameters scale
its result: the reads of a batch norm's four parameters once outvoted those of the operand, and a 1x1 convolution ran
eight times slower."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.base.events import Event, subscribe
from tilewright.codegen.tiles import TileFacts, tile_part
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

Product = Callable[[Tensor, Tensor], Tensor]


def compiled(make: Callable[[], Tensor]) -> tuple[list[Program], np.ndarray]:
    """The programs of a computation, and its result."""
    found: list[Program] = []

    def note(event: Event) -> None:
        found.append(event["kernel"].program)  # type: ignore[attr-defined]

    with subscribe(note, ("kernel-compiled",)):
        return found, make().numpy()


def innermost_loads(program: Program) -> list[UOp]:
    """The loads inside the most loops."""
    depth, deepest, found = 0, 0, []
    for node in program.body:
        if node.op is Ops.RANGE and node.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
            depth += 1
        elif node.op is Ops.END:
            depth -= 1
        elif node.op is Ops.LOAD and depth >= deepest:
            found = [*(found if depth == deepest else ()), node]
            deepest = depth
    return found


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Product]] = {
    "1x1": ((4, 48, 9, 9), (40, 48, 1, 1), lambda x, w: x.conv2d(w)),
    "1x1 of 14x14": ((2, 64, 14, 14), (32, 64, 1, 1), lambda x, w: x.conv2d(w)),
    "3x3": ((2, 32, 14, 14), (32, 32, 3, 3), lambda x, w: x.conv2d(w, padding=1)),
    "rows": ((2, 40, 96), (1, 96, 64), lambda x, w: (x @ w).transpose(1, 2)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("parameters", [0, 1, 2, 4, 7])
def test_accumulators_are_vectors_along_the_axis_of_an_operand(name: str, parameters: int) -> None:
    left, right, product = PRODUCTS[name]
    generator = np.random.default_rng(parameters)
    x, w = (Tensor(generator.standard_normal(shape, dtype=np.float32)).realize() for shape in (left, right))
    channels = product(x, w).shape[1]
    scales = [Tensor(generator.uniform(0.5, 2, channels).astype(np.float32)).realize() for _ in range(parameters)]

    def make() -> Tensor:
        found = product(x, w)
        for number, scale in enumerate(scales):
            aligned = scale.reshape(1, -1, *(1,) * (found.ndim - 2))
            found = (found + aligned).relu() if number % 2 else found * aligned
        return found

    programs, result = compiled(make)
    expected = product(x, w).numpy()
    for number, scale in enumerate(scales):
        aligned = scale.numpy().reshape(1, -1, *(1,) * (expected.ndim - 2))
        expected = np.maximum(expected + aligned, 0) if number % 2 else expected * aligned
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    (program,) = (p for p in programs if any(node.op is Ops.ACC for node in p.body) and len(p.params) == 3 + parameters)
    facts = TileFacts(program)
    walked = set()
    for load in innermost_loads(program):
        steps = tile_part(load.src[0].src[1])[1]
        walked |= {axis for axis, step in steps.items() if step == 1 and axis.arg.kind is AxisType.UPCAST}
    walked = {axis for axis in walked if size_of(axis) >= 4}
    for node in program.body:
        if node.op is Ops.ACC and walked:
            assert facts.vector_axis(node) in walked


def test_a_factor_that_is_loaded_outside_of_the_sum_counts_in_every_term() -> None:
    """The gradient of `(x @ y).sum(0)` by y: the row of gradients does not depend on the sum. Accumulators were vectors
    along the six rows of a tile, and 400x300x400 took 9 ms where a product takes 3."""
    generator = np.random.default_rng(0)
    x, y = (Tensor(generator.standard_normal(shape, dtype=np.float32)).realize() for shape in ((64, 30), (30, 48)))
    upstream = Tensor(generator.standard_normal(48, dtype=np.float32)).realize()
    programs, result = compiled(lambda: (x @ y).sum(0).gradient(y, gradient=upstream)[0])
    np.testing.assert_allclose(result, x.numpy().sum(0)[:, None] * upstream.numpy(), rtol=1e-4, atol=1e-4)
    program = programs[-1]
    facts = TileFacts(program)
    (store,) = (n for n in program.body if n.op is Ops.STORE and memory_of(n.src[0]).op is Ops.PARAM)
    steps = tile_part(store.src[0].src[1])[1]
    (columns,) = (axis for axis, step in steps.items() if step == 1)
    assert all(facts.vector_axis(node) is columns for node in program.body if node.op is Ops.ACC)
