"""Vector lengths. In: a kernel and a target. Out: the same kernel, in which a tile axis that becomes the lanes of
vectors is no longer than a register, or a power of two; other axes are split in two, the inner one of that length. LLVM
keeps a loop-carried vector of 48 elements as 48 scalars, and three of 16 in three registers.

A vectorised sum of products of narrow integers is also split here, into lanes and the terms of each, where the target
has a dot-product instruction that adds several products to a lane."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.graph.affine import coefficient
from tilewright.graph.kernels.dot_products import find_dots, group_dtype, narrow_factors
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import exchange_axis, toposort

# The fewest lanes of a dot-product instruction of any target.
MIN_LANES = 4


def split_vectors(sink: UOp, target: Target) -> UOp:
    """
    before: for u in 48 (UPCAST): out[i*48 + u] = ...
    after:  for u0 in 3 (UPCAST): for u1 in 16 (UPCAST): out[i*48 + u0*16 + u1] = ...
    """
    if target.has_local:  # a thread of a work-group computes single elements
        return sink
    if target.dot_products:
        sink = group_terms(sink, target)
    nodes = toposort(sink)
    axes = [node for node in nodes if node.op is Ops.RANGE and node.arg.kind is AxisType.UPCAST]
    indices = [node for node in nodes if node.op is Ops.INDEX]
    groups = _grouped_indices(nodes, target)
    for axis in axes:
        walked = [index for index in indices if coefficient(index.src[1], axis) == 1]
        size = int(axis.src[0].arg)
        length = size & -size
        is_long = length < size and any(size > target.lanes(index.dtype) for index in walked)
        lanes = [target.lanes(total) for index, (step, total) in groups.items() if _walks(index, axis, step)]
        if lanes:
            # Each lane sums a group of terms, and an instruction fills a register.
            length = min(length, *lanes)
            is_long = length < size
        if is_long and length > 1:
            sink = exchange_axis(sink, axis, _range(axis, size // length, 0) * length + _range(axis, length, 1))
    return sink


def _range(axis: UOp, size: int, number: int, kind: AxisType | None = None) -> UOp:
    return axis.replace(src=(index_const(size),), arg=Axis((*axis.arg.id, number), kind or axis.arg.kind))


def _walks(index: UOp, axis: UOp, step: int) -> bool:
    return axis in index.src[1].ranges and coefficient(index.src[1], axis) == step


# ---------------------------------------------------------------- several terms in a lane


def group_terms(sink: UOp, target: Target) -> UOp:
    """
    before: for u in 64 (UPCAST): acc[u] += a[k*64 + u] * b[k*64 + u]
    after:  for u0 in 16 (UPCAST): for u1 in 4 (UNROLL): acc[u0] += a[k*64 + u0*4 + u1] * b[k*64 + u0*4 + u1]
    """
    for node in toposort(sink):
        indices = _factor_indices(node)
        if indices is None:
            continue
        dots = find_dots(indices[0].dtype, indices[1].dtype, node.dtype, target)
        terms = dots[0].instruction.terms if dots else 0
        for axis in node.src[1:] if dots else ():
            is_walked = all(_walks(index, axis, 1) and axis not in _mask_ranges(index) for index in indices)
            size = int(axis.src[0].arg) if axis.src[0].is_const else 0
            if axis.arg.kind is AxisType.UPCAST and is_walked and size % (terms * MIN_LANES) == 0:
                lanes, group = _range(axis, size // terms, 0), _range(axis, terms, 1, AxisType.UNROLL)
                # One product at a time; further ones, as in a user's kernel, are found in the new kernel.
                return group_terms(exchange_axis(sink, axis, lanes * terms + group), target)
    return sink


def _factor_indices(node: UOp) -> tuple[UOp, UOp] | None:
    """Where the factors of a sum of products of narrow integers are loaded from."""
    factors = narrow_factors(node.src[0]) if node.op is Ops.REDUCE and node.arg is Ops.ADD else None
    if factors is None or any(factor.op is not Ops.LOAD for factor in factors):
        return None
    return factors[0].src[0], factors[1].src[0]


def _mask_ranges(index: UOp) -> frozenset[UOp]:
    return index.src[2].ranges if len(index.src) > 2 else frozenset()


def _grouped_indices(nodes: list[UOp], target: Target) -> dict[UOp, tuple[int, DType]]:
    """The indices that lanes of sums load from, the stride of the lanes there, and the dtype of the sum: those of
    factors, at least one of them with contiguous terms, and those in their panels."""
    found: dict[UOp, tuple[int, DType]] = {}
    for node in nodes if target.dot_products else ():
        indices = _factor_indices(node)
        if indices is None:
            continue
        for axis in node.src[1:]:
            size = int(axis.src[0].arg) if axis.src[0].is_const else 0
            if axis.arg.kind is not AxisType.UNROLL or group_dtype(indices[0].dtype, node.dtype, size) is None:
                continue
            steps = {index: size if _walks(index, axis, 1) else 1 for index in indices}
            if size in steps.values():
                found.update((index, (step, node.dtype)) for index, step in steps.items())
    panels = {memory_of(index): group for index, group in found.items() if memory_of(index).op is Ops.DEFINE_LOCAL}
    found.update(
        (node, panels[memory_of(node)]) for node in nodes if node.op is Ops.INDEX and memory_of(node) in panels
    )
    return found
