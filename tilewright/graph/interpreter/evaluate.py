"""The interpreter of any graph. In: a tensor graph, a scalar expression or a kernel, and values for its leaves. Out:
the value as a NumPy array; a kernel writes into the arrays bound to its PARAMs. Built from the op specs alone: it is
the definition that schedules, transforms and devices are compared with, so it is simple rather than fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from tilewright.base.dtype import DType, cast_scalar
from tilewright.base.errors import InternalError, OutOfBoundsError
from tilewright.base.records import NamedTuple
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.interpreter.numpy_math import Array, NumpyMath, bitcast_array, cast_array, numpy_dtype, put
from tilewright.graph.ops import Ops, ParamArg, reduce_identity
from tilewright.graph.spec import Kind, Op, element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers, toposort

Bindings = Mapping[UOp, Any]


class Place(NamedTuple):
    """The value of an INDEX: positions in a flat buffer, and where they are valid (None: everywhere)."""

    buffer: Array
    position: Array
    valid: Array | None


class Frame(NamedTuple):
    """The context of the rules besides their sources. Every RANGE is one axis of all arrays that depend on it."""

    values: dict[UOp, Any]
    bindings: Bindings
    axes: dict[UOp, int]
    kernel: str


def evaluate(root: UOp, bindings: Bindings | None = None) -> Array:
    """The value of `root`. `bindings` has the values of nodes: arrays for BUFFER and PARAM, a number for VARIABLE; the
    sources of a bound node are not evaluated. A SINK gives its first result (see `evaluate_kernel`); a free RANGE
    becomes an axis, in the order of first appearance."""
    return evaluate_all((root,), bindings)[0]


def evaluate_kernel(sink: UOp, bindings: Bindings | None = None) -> tuple[Array, ...]:
    """Run a SINK. STOREs write into the bound arrays, after every value they need has been read; the arrays are
    returned in the order of their first STORE. Sources that are values are returned as values."""
    results: list[Array] = []
    for value in _run((sink,), bindings or {})[sink]:
        if not any(value is seen for seen in results):
            results.append(value)
    return tuple(results)


def evaluate_all(roots: tuple[UOp, ...], bindings: Bindings | None = None) -> list[Array]:
    """The values of several roots; shared nodes are computed once."""
    values = _run(roots, bindings or {})
    found: list[Array] = []
    for root in roots:
        value = values[root]
        if root.op is Ops.SINK:
            if not value:
                raise InternalError("an empty SINK has no value")
            value = value[0]
        found.append(value)
    return found


def _run(roots: tuple[UOp, ...], bindings: Bindings) -> dict[UOp, Any]:
    order = toposort(*roots, stop=lambda node: node in bindings)
    users = consumers(order)
    pending = {node: len(found) for node, found in users.items()}
    for root in roots:
        pending[root] += 1
    ranges = [node for node in order if node.op is Ops.RANGE and node not in bindings]
    if len(ranges) > 64:
        raise InternalError(f"the kernel has {len(ranges)} ranges and NumPy no more than 64 axes")
    names = [node.arg.name for node in order if node.op is Ops.SINK and node.arg is not None]
    frame = Frame({}, bindings, {node: axis for axis, node in enumerate(ranges)}, names[0] if names else "kernel")
    values = frame.values
    with np.errstate(all="ignore"):
        for node in order:
            if node in bindings:
                values[node] = _bound(node, bindings[node])
                continue
            values[node] = _rule_of(node.op)(frame, node, [values[src] for src in node.src])
            # Values are freed after their last use, so that a long chain keeps few arrays.
            for src in set(node.src):
                pending[src] -= 1
                if not pending[src]:
                    del values[src]
    return values


def _bound(node: UOp, value: Any) -> Any:
    """A bound value as an array of the node's dtype. Buffers keep the caller's memory: a kernel writes there."""
    if isinstance(value, bool | int | float):
        value = np.asarray(cast_scalar(value, node.dtype), dtype=numpy_dtype(node.dtype))
    value = np.asarray(value)
    if value.dtype != numpy_dtype(node.dtype):
        raise InternalError(f"{node} is bound to an array of {value.dtype}")
    if node.op is Ops.BUFFER or node.op is Ops.PARAM:
        if value.size != node.arg.size or not value.flags.c_contiguous:
            raise InternalError(f"{node} is bound to shape {value.shape}; give {node.arg.size} contiguous elements")
        return value.reshape(-1)
    if node.op is Ops.VARIABLE and not node.arg[1] <= value.item() <= node.arg[2]:
        raise InternalError(f"{node} is bound to {value.item()}, outside of its bounds")
    return value


# ---------------------------------------------------------------- rules: (frame, node, values of the sources) -> value

Rule = Callable[[Frame, UOp, list[Any]], Any]

_LOGICAL = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.WHERE, Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})


def _elementwise(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    assert node.op.value is not None
    if node.op not in _LOGICAL:
        # NumPy has no -x and x - y for bool; Python, and so the scalar maths, computes with 0 and 1.
        src = [x.astype(np.int8) if x.dtype == np.bool_ else x for x in src]
    return cast_array(np.asarray(node.op.value(NumpyMath, *src)), node.dtype)


def _check(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    index = src[0]
    return cast_array(np.where(index < 0, index + node.arg.size, index), node.dtype) if node.arg.wraps else index


def _const(_frame: Frame, node: UOp, _src: list[Any]) -> Array:
    return np.asarray(node.arg, dtype=numpy_dtype(node.dtype))


def _iota(_frame: Frame, node: UOp, _src: list[Any]) -> Array:
    return cast_array(np.arange(node.arg[0], dtype=np.int64), node.dtype)


def _size(_frame: Frame, node: UOp, _src: list[Any]) -> Array:
    return cast_array(np.asarray(node.arg.value, dtype=np.int64), node.dtype)


def _unbound(_frame: Frame, node: UOp, _src: list[Any]) -> Array:
    raise InternalError(f"{node} has no value: it is not bound")


def _cast(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    return cast_array(src[0], node.dtype)


def _bitcast(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    return bitcast_array(src[0], node.dtype)


def _identity(_frame: Frame, _node: UOp, src: list[Any]) -> Any:
    return src[0]


def _move(node: UOp, x: Array) -> Array:
    """A movement op on an array of any dtype; it is also applied to the positions of an ASSIGN."""
    if node.op is Ops.RESHAPE:
        return x.reshape(node.arg)
    if node.op is Ops.EXPAND:
        return np.broadcast_to(x, node.arg)
    if node.op is Ops.PERMUTE:
        return x.transpose(node.arg)
    if node.op is Ops.FLIP:
        return np.flip(x, node.arg)
    if node.op is Ops.SHRINK:
        return x[tuple(slice(start, stop) for start, stop in node.arg)]
    if node.op is Ops.PAD:
        sizes = [before + size + after for size, (before, after) in zip(x.shape, node.arg)]
        padded = np.zeros(sizes, dtype=x.dtype)
        padded[tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, node.arg))] = x
        return padded
    raise InternalError(f"evaluate has no rule for movement {node.op}")


def _movement(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    return _move(node, src[0])


def _gather(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    x = src[0]
    indices = np.broadcast_arrays(*src[1:])
    inside = np.ones(indices[0].shape, dtype=np.bool_)
    for index, size in zip(indices, x.shape):
        inside &= index < size
        inside &= index >= 0
    result = np.zeros(inside.shape, dtype=x.dtype)
    result[inside] = x[tuple(index[inside].astype(np.int64) for index in indices)]
    return result


def _cat(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    return np.concatenate(src, axis=node.arg)


def _assign(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    target, view, _ = node.src
    chain: list[UOp] = []
    while view is not target:
        if view.op.kind is not Kind.MOVEMENT:
            raise InternalError(f"the view of an ASSIGN goes through {view.op} and not to its target by movement alone")
        chain.append(view)
        view = view.src[0]
    # In row-major order, so that the flat array is the same memory.
    result = np.array(src[0], copy=True, order="C")
    # Positions are counted from 1, so that 0 marks padding, which has no position in the target.
    positions = np.arange(1, result.size + 1).reshape(result.shape)
    for step in reversed(chain):
        positions = _move(step, positions)
    value = np.broadcast_to(src[2], positions.shape)
    stored = positions > 0
    result.reshape(-1)[positions[stored] - 1] = value[stored]
    return result


def _custom_kernel(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    """The contents of one of the kernel's arguments after it. Uninitialised arguments are zeros."""
    call = node.arg
    arrays: dict[UOp, Array] = {}
    for slot, (dtype, shape, position) in enumerate(zip(call.dtypes, call.shapes, call.sources)):
        size = element_count(shape)
        given = np.zeros(size, numpy_dtype(dtype)) if position is None else np.broadcast_to(src[position], shape)
        arrays[UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))] = np.ascontiguousarray(given).reshape(-1)
    results = run_effects(call.ast, arrays)
    return next(array for memory, array in results.items() if memory.arg.slot == call.output).reshape(node.shape)


def _multi(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    axis = node.arg.axis
    return np.asarray(src[0]) if axis is None else np.concatenate(src, axis=axis)


# Replaces float sums, so that a debugger can take them in another order: (terms, axes, which are kept, and the dtype)
# -> sums.
float_sum: ContextVar[Callable[[Array, tuple[int, ...], DType], Array] | None] = ContextVar("float_sum", default=None)

_REDUCERS: dict[Op, np.ufunc] = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum}


def _reduce(op: Op, x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    if op not in _REDUCERS:
        raise InternalError(f"{op} is not a reduction")
    if op is Ops.ADD and dtype.is_float and (add_up := float_sum.get()) is not None:
        return add_up(x, axes, dtype)
    target = numpy_dtype(dtype)
    initial = np.asarray(reduce_identity(op, dtype), dtype=target)[()]
    result = np.asarray(_REDUCERS[op].reduce(x, axis=axes, dtype=target, initial=initial, keepdims=True))
    return _sign_of_zeros(op, x, axes, result) if dtype.is_float and op in (Ops.MAX, Ops.MIN) else result


def _sign_of_zeros(op: Op, x: Array, axes: tuple[int, ...], result: Array) -> Array:
    """NumPy gives either zero; the spec says that MAX of 0.0 and -0.0 is 0.0 and MIN is -0.0."""
    wide = x.astype(np.float64)
    wanted = (wide == 0) & (np.signbit(wide) == (op is Ops.MIN))
    sign = -1.0 if op is Ops.MIN else 1.0
    zeros = np.where(np.any(wanted, axis=axes, keepdims=True), sign * 0.0, sign * -0.0).astype(result.dtype)
    return np.where(result.astype(np.float64) == 0, zeros, result)


def _reduce_axis(_frame: Frame, node: UOp, src: list[Any]) -> Array:
    op, axes = node.arg
    return _reduce(op, src[0], tuple(axes), node.dtype)


# ---------------------------------------------------------------- rules of kernels


def _range(frame: Frame, node: UOp, src: list[Any]) -> Array:
    if src[0].size != 1:
        raise InternalError(f"the size of {node} depends on another range")
    shape = [1] * len(frame.axes)
    shape[frame.axes[node]] = -1
    return cast_array(np.arange(int(src[0].item()), dtype=np.int64), node.dtype).reshape(shape)


def _reduce_ranges(frame: Frame, node: UOp, src: list[Any]) -> Array:
    shapes = [value.shape for value in src]
    x = np.broadcast_to(src[0], np.broadcast_shapes(*shapes))
    axes = tuple(frame.axes[node_range] for node_range in node.src[1:] if node_range in frame.axes)
    if len(axes) != len(node.src) - 1:
        raise InternalError(f"{node} reduces over what is not a free RANGE")
    return _reduce(node.arg, x, axes, node.dtype)


def _index(frame: Frame, node: UOp, src: list[Any]) -> Place:
    return Place(src[0].reshape(-1), src[1], src[2] if len(src) > 2 else None)


def _checked(frame: Frame, node: UOp, place: Place, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The positions and the mask, both of `shape`; a valid position out of bounds is an error."""
    position = np.broadcast_to(place.position, shape)
    valid = np.broadcast_to(True if place.valid is None else place.valid, shape)
    outside = valid & ((position < 0) | (position >= place.buffer.size))
    if outside.any():
        worst = position[outside][0]
        raise OutOfBoundsError(frame.kernel, f"{node.op.name} at {worst} of a buffer of {place.buffer.size} elements")
    return position, valid


def _shape_of_place(place: Place, other: tuple[int, ...] = ()) -> tuple[int, ...]:
    valid = () if place.valid is None else place.valid.shape
    return np.broadcast_shapes(place.position.shape, valid, other)


def _load(frame: Frame, node: UOp, src: list[Any]) -> Array:
    place = src[0]
    otherwise = src[1] if len(src) > 1 else np.zeros((), dtype=place.buffer.dtype)
    shape = _shape_of_place(place, otherwise.shape)
    position, valid = _checked(frame, node, place, shape)
    result = np.array(np.broadcast_to(otherwise, shape), copy=True)
    result[valid] = place.buffer[position[valid]]
    return result


class Write(NamedTuple):
    """The value of a STORE: a pending write."""

    node: UOp
    place: Place
    value: Array


def _store(_frame: Frame, node: UOp, src: list[Any]) -> Write:
    return Write(node, src[0], src[1])


def _commit(frame: Frame, write: Write) -> None:
    place = write.place
    shape = _shape_of_place(place, write.value.shape)
    position, valid = _checked(frame, write.node, place, shape)
    if write.value.dtype != place.buffer.dtype:
        raise InternalError(f"a STORE of {write.value.dtype} into a buffer of {place.buffer.dtype}")
    put(write.node.arg, place.buffer, position[valid], np.broadcast_to(write.value, shape)[valid])


def _sink(frame: Frame, node: UOp, src: list[Any]) -> list[Array]:
    """Writes last: every LOAD gives the contents before the kernel."""
    results: list[Array] = []
    for source, value in zip(node.src, src):
        if not isinstance(value, Write):
            results.append(value)
            continue
        _commit(frame, value)
        buffer = source.src[0].src[0]
        results.append(frame.bindings.get(buffer, value.place.buffer))
    return results


_RULES: dict[Op, Rule] = {
    Ops.CONST: _const,
    Ops.VARIABLE: _unbound,
    Ops.SIZE: _size,
    Ops.BUFFER: _unbound,
    Ops.PARAM: _unbound,
    Ops.CHECK: _check,
    Ops.IOTA: _iota,
    Ops.CAST: _cast,
    Ops.BITCAST: _bitcast,
    Ops.GATHER: _gather,
    Ops.CAT: _cat,
    Ops.REDUCE_AXIS: _reduce_axis,
    Ops.CONTIGUOUS: _identity,
    Ops.COPY: _identity,
    Ops.MULTI: _multi,
    Ops.DETACH: _identity,
    Ops.ASSIGN: _assign,
    Ops.CUSTOM_KERNEL: _custom_kernel,
    Ops.RANGE: _range,
    Ops.REDUCE: _reduce_ranges,
    Ops.INDEX: _index,
    Ops.LOAD: _load,
    Ops.STORE: _store,
    Ops.SINK: _sink,
}


def _rule_of(op: Op) -> Rule:
    found = _RULES.get(op)
    if found is None and op.value is not None:
        return _elementwise
    if op.kind is Kind.MOVEMENT:
        return _movement
    if found is None:
        raise InternalError(f"evaluate has no rule for {op}")
    return found
