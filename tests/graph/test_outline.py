"""Kernels that differ in their sizes share an outline; the dynamic kernel made from some of them is each of them again
where its variables have their values, and refuses every other kernel."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.outline import MAX_STRIDE, SIZE_LIMITS, DynamicKernel, Outline, make_dynamic, outline_of
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, const
from tilewright.graph.verification.verify import verify_kernel
from tilewright.graph.walk import map_graph, toposort

PROGRAMS: dict[str, Callable[[int], Tensor]] = {
    "map": lambda n: Tensor.empty(n, 6) * 2 + 1,
    "softmax": lambda n: Tensor.empty(n, 6).softmax(0),
    "mean": lambda n: Tensor.empty(n, 6).mean(0),
    "join": lambda n: Tensor.cat(Tensor.empty(n, 6), Tensor.empty(2, 6)),
    "pad": lambda n: Tensor.empty(n, 6).pad(((2, 1), (0, 3))),
    "flip": lambda n: Tensor.empty(n, 6).flip(0)[1:],
    "arange": lambda n: Tensor.arange(n, dtype="int32") * 3 // 2,
    "double": lambda n: Tensor.empty(n, 6, dtype="float64").sum(0) / n,
}


def kernels(program: Callable[[int], Tensor], size: int) -> list[UOp]:
    return [item.ast for item in program(size).schedule().items if item.ast is not None]


def outline(sink: UOp) -> Outline:
    found = outline_of(sink)
    assert found is not None
    return found


def float_bits(node: UOp) -> int:
    form = ("<f", "<i") if node.dtype is dtypes.float32 else ("<d", "<q")
    found: int = struct.unpack(form[1], struct.pack(form[0], node.arg))[0]
    return found


def with_values(dynamic: DynamicKernel, values: dict[str, int], like: UOp) -> UOp:
    """The dynamic kernel with a constant in the place of each variable, and the name and buffer sizes of another."""
    params = {node.arg.slot: node for node in toposort(like) if node.op is Ops.PARAM}
    floats = {float_bits(node): node for node in toposort(like) if node.op is Ops.CONST and node.dtype.is_float}

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.VARIABLE:
            return const(node.dtype, values[node.arg[0]])
        if node.op is Ops.BITCAST and node.src[0].op is Ops.VARIABLE:
            return floats[src[0].arg]
        return params[node.arg.slot] if node.op is Ops.PARAM else None

    return map_graph(dynamic.sink, visit).replace(arg=like.arg)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dynamic_kernel_is_each_kernel_that_it_stands_for(name: str) -> None:
    families: dict[object, list[UOp]] = {}
    for size in range(10, 24):
        for sink in kernels(PROGRAMS[name], size):
            families.setdefault(outline(sink).key, []).append(sink)
    assert max(map(len, families.values())) >= 4
    for first, *others in families.values():
        made = make_dynamic(first, outline(first), [outline(sink).numbers for sink in others[:2]])
        assert made is not None
        verify_kernel(made.sink, "make_dynamic")
        for sink in (first, *others):
            values = made.values_for(outline(sink).numbers)
            assert values is not None
            assert with_values(made, values, sink) is sink


def mean_of(size: int) -> UOp:
    (sink,) = kernels(lambda n: Tensor.empty(n, 6).mean(0), size)
    return sink


def test_numbers_that_no_sample_has_otherwise_are_constants() -> None:
    """And what they are otherwise is another kernel."""
    made = make_dynamic(mean_of(10), outline(mean_of(10)), [outline(mean_of(11)).numbers])
    assert made is not None
    (wider,) = kernels(lambda n: Tensor.empty(n, 7).mean(0), 10)
    assert outline(wider).key == outline(mean_of(10)).key
    assert made.values_for(outline(wider).numbers) is None


def test_values_beyond_the_bounds_of_a_variable_are_refused() -> None:
    made = make_dynamic(mean_of(10), outline(mean_of(10)), [outline(mean_of(11)).numbers])
    assert made is not None
    assert made.values_for(outline(mean_of(SIZE_LIMITS[0])).numbers) is not None
    beyond = list(outline(mean_of(10)).numbers)
    for position in outline(mean_of(10)).sizes:
        if beyond[position] == 10:
            beyond[position] = SIZE_LIMITS[0] + 1
    assert made.values_for(beyond) is None


def test_uses_that_were_equal_have_to_be_equal() -> None:
    (first,), (second,) = (kernels(lambda n: Tensor.empty(n, n).T + 1, size) for size in (9, 12))
    made = make_dynamic(first, outline(first), [outline(second).numbers])
    assert made is not None
    (oblong,) = kernels(lambda n: Tensor.empty(n, n + 1).T + 1, 9)
    assert outline(oblong).key == outline(first).key
    assert made.values_for(outline(oblong).numbers) is None


def test_a_number_that_is_too_large_makes_no_dynamic_kernel() -> None:
    (first,), (second,) = (kernels(lambda n: Tensor.empty(n) + 1, size) for size in (SIZE_LIMITS[-1] + 1, 12))
    assert make_dynamic(first, outline(first), [outline(second).numbers]) is None
    made = make_dynamic(second, outline(second), [outline(first).numbers])
    assert made is not None
    assert made.variables[0].arg[1:] == (1, SIZE_LIMITS[0])
    (first,), (second,) = (kernels(lambda n: Tensor.empty(2, n)[:, :3] + 1, size) for size in (MAX_STRIDE + 1, 12))
    assert outline(first).key == outline(second).key
    assert make_dynamic(first, outline(first), [outline(second).numbers]) is None


def test_floats_are_told_apart_by_their_bits() -> None:
    numbers = [outline(kernels(lambda n, x=x: Tensor.empty(n) * x, 5)[0]).numbers for x in (0.0, -0.0, 2.0)]
    assert len(set(numbers)) == 3
    nan = [outline(kernels(lambda n: Tensor.empty(n) * float("nan"), 5)[0]).numbers for _ in range(2)]
    assert nan[0] == nan[1]


def test_a_kernel_of_the_user_has_no_outline() -> None:
    sink = mean_of(10)
    assert outline_of(sink.replace(arg=None)) is None
    assert outline_of(sink.replace(arg=replace(sink.arg, opts_to_apply=()))) is None
