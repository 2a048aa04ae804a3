"""Reductions by threads. In: the values of ACC, ACCUMULATE, COMBINE and WARP_FOLD nodes, as arrays of all threads of a
batch. Out: accumulators and their folds, or an error that names the node. The emulator calls this for those ops."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.backends.python.access import Site
from tilewright.backends.python.launch import FIRST_TILE_AXIS, GROUP_AXIS, THREAD_AXIS, Launch
from tilewright.base.dtype import DType
from tilewright.base.errors import EmulatorError, InternalError, UninitialisedReadError
from tilewright.graph.interpreter.numpy_math import Array, NumpyMath, bitcast_array, cast_array, numpy_dtype
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

_BOOL = np.dtype(np.bool_)
_LOGICAL = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.WHERE, Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})


def compute(op: Op, dtype: DType, sources: Sequence[Array]) -> Array:
    """One scalar op on arrays, by its spec."""
    if op is Ops.CAST:
        return cast_array(sources[0], dtype)
    if op is Ops.BITCAST:
        return bitcast_array(sources[0], dtype)
    assert op.value is not None
    if op not in _LOGICAL:
        # NumPy has no -x and x - y for bool; the spec counts with 0 and 1.
        sources = [source.astype(np.int8) if source.dtype is _BOOL else source for source in sources]
    found: Array = op.value(NumpyMath, *sources)
    # Most ops return the dtype of their operands, which NumPy has one object for.
    return found if found.dtype is numpy_dtype(dtype) else cast_array(found, dtype)


class Accumulators:
    """The registers of each ACC of a batch of `groups` work-groups since it was last reached, by its slot."""

    def __init__(self, launch: Launch, groups: int) -> None:
        self.launch = launch
        self.groups = groups
        self.owners: dict[object, UOp] = {}
        self.values: dict[object, Array] = {}

    def declare(self, node: UOp, identity: Array) -> None:
        shape = [1] * self.launch.dimensions
        shape[GROUP_AXIS] = self.groups
        shape[THREAD_AXIS] = self.launch.group_size
        for tile, size in zip(self.launch.tile_ranges, self.launch.tile_sizes):
            if tile in node.src[1:]:
                shape[self.launch.tile_axes[tile]] = size
        self.owners[node.arg] = node
        self.values[node.arg] = np.broadcast_to(identity, shape)

    def accumulate(self, site: Site, value: Array, active: Array | None) -> None:
        """Folds a value into its accumulator, in the threads that are `active`."""
        node, held = site.node, self._held(site)
        acc = node.src[0]
        folded = [axis for axis, size in enumerate(held.shape) if size == 1 and value.shape[axis] > 1]
        for axis in folded:
            tile = next(tile for tile, tile_axis in self.launch.tile_axes.items() if tile_axis == axis)
            if tile.arg.kind is not AxisType.UNROLL:
                raise site.error(
                    EmulatorError,
                    f"of ACC {acc.arg}: the value varies along the UPCAST axis {tile.arg.id}, the accumulator "
                    "has one register for all of it",
                    "name that axis in the ACC and fold it in its COMBINE, or make it UNROLL",
                )
        elements = itertools.product(*(range(value.shape[axis]) for axis in folded))
        for element in elements:
            piece = value[_slices(value.ndim, dict(zip(folded, element)))] if folded else value
            result = compute(node.arg, acc.dtype, (held, piece))
            held = result if active is None else np.where(active, result, held)
        self.values[acc.arg] = held

    def combine(self, site: Site) -> Array:
        """An accumulator with some of its tile axes folded."""
        node, result = site.node, self._held(site)
        for tile in node.src[1:]:
            if tile not in node.src[0].src[1:]:
                raise InternalError(
                    f"{site.program}: body[{site.position}] folds {tile!r}, which its ACC does not have"
                )
            axis = self.launch.tile_axes[tile]
            pieces = [result[_slices(result.ndim, {axis: element})] for element in range(result.shape[axis])]
            result = pieces[0]
            for piece in pieces[1:]:
                result = compute(node.arg, node.dtype, (result, piece))
        return result

    def _held(self, site: Site) -> Array:
        acc = site.node.src[0]
        if acc.arg not in self.owners:
            raise site.error(UninitialisedReadError, f"of ACC {acc.arg}: it was not declared before")
        if self.owners[acc.arg] is not acc:
            raise site.error(
                EmulatorError,
                f"of ACC {acc.arg}: another accumulator took its slot meanwhile",
                "give accumulators that live at the same time slots of their own",
            )
        return self.values[acc.arg]


def fold_warp(site: Site, value: Array, threads: int) -> Array:
    """Each of `width` neighbouring threads, counted along the fastest local range, gets the fold of all."""
    op, width = site.node.arg
    if threads % width:
        raise site.error(EmulatorError, f"folds {width} neighbours, which do not divide a group of {threads} threads")
    shape = (value.shape[GROUP_AXIS], threads, *value.shape[FIRST_TILE_AXIS:])
    warps = np.broadcast_to(value, shape).reshape(shape[0], threads // width, width, *shape[2:])
    result = warps[:, :, 0]
    for neighbour in range(1, width):
        result = compute(op, site.node.dtype, (result, warps[:, :, neighbour]))
    return np.repeat(result, width, axis=THREAD_AXIS)


def _slices(dimensions: int, elements: Mapping[int, int]) -> tuple[slice, ...]:
    """Pick one element along some axes, which stay with size 1."""
    whole = slice(None)
    return tuple(slice(elements[axis], elements[axis] + 1) if axis in elements else whole for axis in range(dimensions))
