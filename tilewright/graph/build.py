"""Constructors of tensor-level nodes. In: nodes and plain arguments. Out: a node, with trivial cases folded away.
Arguments are trusted (asserts only): what a user gets wrong is reported by tensor/, which knows the user's words.
A movement that changes nothing returns its source, and two of a kind become one."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence, Set

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.base.forks import renewed_lock
from tilewright.graph.ops import REDUCTIONS, BufferArg, CheckArg, MultiArg, Ops
from tilewright.graph.spec import Devices, Op, Shape
from tilewright.graph.uop import UOp
from tilewright.graph.uop import const as scalar_const

_TRUE = scalar_const(dtypes.bool, True)
_uids = itertools.count()
_noting = renewed_lock()

Pairs = tuple[tuple[int, int], ...]


# ---------------------------------------------------------------- leaves


def new_buffer(dtype: DType, size: int, device: str) -> UOp:
    """A BUFFER node that is equal to no other; memory is given to it by the runtime."""
    return UOp(Ops.BUFFER, dtype, (), BufferArg(next(_uids), size, device))


def const(dtype: DType, value: Scalar, shape: Shape = ()) -> UOp:
    """A constant of a shape."""
    made = scalar_const(dtype, value)
    return broadcast_scalar(made, shape) if shape else made


def iota(size: int, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, ..., size-1."""
    return UOp(Ops.IOTA, dtype, (), (size,))


def axis_iota(shape: Shape, axis: int) -> UOp:
    """For each element of `shape` its index along `axis`; 64 bits where 32 do not hold it."""
    size = shape[axis]
    counted = iota(size, dtypes.int32 if size <= 1 << 31 else dtypes.int64)
    return expand(reshape(counted, tuple(size if k == axis else 1 for k in range(len(shape)))), shape)


def counting_axis(index: UOp) -> int | None:
    """The axis along which an index tensor counts 0, 1, 2, ... while it is the same along all others, or None."""
    node = index
    while node.op is Ops.EXPAND or (node.op is Ops.CAST and node.dtype.is_int and node.src[0].vmax <= node.dtype.max):
        node = node.src[0]
    counted = node.src[0] if node.op is Ops.RESHAPE else node
    axes = [axis for axis, size in enumerate(node.shape) if size != 1]
    return axes[0] if counted.op is Ops.IOTA and len(axes) == 1 else None


# ---------------------------------------------------------------- movement


def note_past(skipped: UOp, made: UOp) -> UOp:
    """`made`, a movement of the source of `skipped`: two movements of one kind are merged. `made` keeps a weak note of
    `skipped`, because a gradient with respect to `skipped` flows through `made`."""
    if skipped.dtype.is_float:
        earlier = goes_past(skipped)
        with _noting:
            notes = made.cache.get("past")
            if notes is None:
                notes = made.cache["past"] = {}
            if len(notes) > _MAX_NOTES:
                for dead in [note for note in notes if note() is None]:
                    del notes[dead]
            for node in (skipped, *earlier):
                notes[weakref.ref(node)] = None
    return made


def goes_past(x: UOp) -> Set[UOp]:
    """The merged movements that `x` stands for, without holding them."""
    notes = x._cache.get("past") if x._cache else None
    return _NOTHING if notes is None else {node for note in list(notes) if (node := note()) is not None}


_NOTHING: frozenset[UOp] = frozenset()
_MAX_NOTES = 8  # before those of dead nodes are dropped


def reshape(x: UOp, shape: Shape) -> UOp:
    if x.shape == shape:
        return x
    assert math.prod(shape) == math.prod(x.shape), f"reshape {x.shape} to {shape}"
    base = stored_root(x)
    if base is x:
        return UOp(Ops.RESHAPE, x.dtype, (x,), shape)
    return note_past(x, base if base.shape == shape else UOp(Ops.RESHAPE, x.dtype, (base,), shape))


def expand(x: UOp, shape: Shape) -> UOp:
    if x.shape == shape:
        return x
    assert len(shape) == len(x.shape), f"expand {x.shape} to {shape}"
    assert all(old in (1, new) for old, new in zip(x.shape, shape)), f"expand {x.shape} to {shape}"
    if x.op is Ops.EXPAND:
        return note_past(x, UOp(Ops.EXPAND, x.dtype, x.src, shape))
    return UOp(Ops.EXPAND, x.dtype, (x,), shape)


def permute(x: UOp, order: tuple[int, ...]) -> UOp:
    """The axes of `x` in another order. A reshape where only axes of size 1 move: the elements keep their order, so
    that a stored value stays one."""
    assert sorted(order) == list(range(len(x.shape))), f"permute {x.shape} by {order}"
    long = [axis for axis in order if x.shape[axis] != 1]
    if long == sorted(long):
        return reshape(x, tuple(x.shape[axis] for axis in order))
    if x.op is Ops.PERMUTE:
        return note_past(x, permute(x.src[0], tuple(x.arg[axis] for axis in order)))
    return UOp(Ops.PERMUTE, x.dtype, (x,), order)


def pad(x: UOp, pairs: Pairs) -> UOp:
    """`x` with zeros around it."""
    assert len(pairs) == len(x.shape), f"pad {x.shape} by {pairs}"
    assert all(before >= 0 and after >= 0 for before, after in pairs), f"pad {x.shape} by {pairs}"
    if not any(before or after for before, after in pairs):
        return x
    if x.op is Ops.PAD:
        pairs = tuple((b + inner_b, a + inner_a) for (b, a), (inner_b, inner_a) in zip(pairs, x.arg))
        return note_past(x, UOp(Ops.PAD, x.dtype, x.src, pairs))
    return UOp(Ops.PAD, x.dtype, (x,), pairs)


def shrink(x: UOp, pairs: Pairs) -> UOp:
    assert len(pairs) == len(x.shape), f"shrink {x.shape} to {pairs}"
    assert all(0 <= pair[0] <= pair[1] <= size for pair, size in zip(pairs, x.shape)), f"shrink {x.shape} to {pairs}"
    if all(pair == (0, size) for pair, size in zip(pairs, x.shape)):
        return x
    if x.op is Ops.SHRINK:
        pairs = tuple((start + inner, stop + inner) for (start, stop), (inner, _) in zip(pairs, x.arg))
        return note_past(x, UOp(Ops.SHRINK, x.dtype, x.src, pairs))
    return UOp(Ops.SHRINK, x.dtype, (x,), pairs)


def flip(x: UOp, axes: Sequence[int]) -> UOp:
    turned = {axis for axis in axes if x.shape[axis] != 1}
    if not turned:
        return x
    if x.op is Ops.FLIP:
        return note_past(x, flip(x.src[0], tuple(turned ^ set(x.arg))))
    return UOp(Ops.FLIP, x.dtype, (x,), tuple(sorted(turned)))


_MOVEMENTS = {
    Ops.RESHAPE: reshape,
    Ops.EXPAND: expand,
    Ops.PERMUTE: permute,
    Ops.PAD: pad,
    Ops.SHRINK: shrink,
    Ops.FLIP: flip,
}


def movement(op: Op, x: UOp, arg: tuple[object, ...]) -> UOp:
    """The movement of that op; for chains of movements kept as data."""
    return _MOVEMENTS[op](x, arg)  # type: ignore[operator, no-any-return]


# ---------------------------------------------------------------- broadcasting


def broadcast_scalar(x: UOp, shape: Shape) -> UOp:
    """A 0-d node broadcast to a shape."""
    assert x.shape == ()
    return expand(reshape(x, (1,) * len(shape)), shape)


def broadcast_to(x: UOp, shape: Shape) -> UOp:
    """`x` broadcast to a shape: axes of size 1 are added in front, and every axis of size 1 is repeated."""
    if x.shape == shape:
        return x
    missing = len(shape) - len(x.shape)
    assert missing >= 0, f"broadcast {x.shape} to {shape}"
    return expand(reshape(x, (1,) * missing + x.shape), shape)


_REPETITIONS = (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE)


def scalar_of(x: UOp) -> UOp | None:
    """The 0-d node that `x` broadcasts, or None."""
    while x.op in _REPETITIONS:
        x = x.src[0]
    return None if x.shape else x


# ---------------------------------------------------------------- elementwise


def alu(op: Op, *src: UOp) -> UOp:
    """An elementwise op on sources of one shape; a broadcast scalar is used as the 0-d node that it broadcasts."""
    shape: Shape = ()
    count = 0
    has_repeated = False  # whether a source may broadcast a scalar
    for node in src:
        own = node.shape
        if own:
            assert not shape or own == shape, f"{op}: {[s.shape for s in src]}"
            shape = own
            if node.op not in _REPETITIONS or scalar_of(node) is None:
                count += 1
            else:
                has_repeated = True
    if has_repeated:
        scalars = tuple(scalar_of(node) or node for node in src)
        if not count:
            return broadcast_scalar(alu(op, *scalars), shape)
        src = scalars
    dtype = op.dtype(src)
    assert dtype is not None
    return UOp(op, dtype, src)


def cast(x: UOp, dtype: DType) -> UOp:
    return _convert(Ops.CAST, x, dtype)


def check_range(index: UOp, arg: CheckArg, valid: UOp | None = None) -> UOp:
    """The integers of `index`; those out of range are reported when they are computed. `valid` masks the ones to
    check."""
    assert arg.size > 0
    if index.dtype.bits < 64 and arg.size > int(index.dtype.max):
        index = cast(index, dtypes.int64)  # so that the size is a value of the dtype
    one = scalar_of(index)
    if one is not None and index.shape and (valid is None or not valid.shape):
        return broadcast_scalar(check_range(one, arg, valid), index.shape)
    return UOp(Ops.CHECK, index.dtype, (index, _TRUE if valid is None else valid), arg)


def wrap_negative(index: UOp, size: int) -> UOp:
    """Negative indices count from the end."""
    if index.vmin >= 0:
        return index
    if index.dtype.bits < 64 and size > int(index.dtype.max):
        index = cast(index, dtypes.int64)
    return (index < 0).where(index + size, index)


def bitcast(x: UOp, dtype: DType) -> UOp:
    assert x.dtype.bits == dtype.bits
    return _convert(Ops.BITCAST, x, dtype)


def _convert(op: Op, x: UOp, dtype: DType) -> UOp:
    if x.dtype is dtype:
        return x
    scalar = scalar_of(x) if x.shape else None
    if scalar is not None:
        return broadcast_scalar(_convert(op, scalar, dtype), x.shape)
    if x.op is Ops.CONST and op is Ops.CAST:
        return const(dtype, x.arg)
    return UOp(op, dtype, (x,))


def where(condition: UOp, yes: UOp, no: UOp) -> UOp:
    assert condition.dtype is dtypes.bool
    assert yes.dtype is no.dtype
    return alu(Ops.WHERE, condition, yes, no)


# ---------------------------------------------------------------- tensors


def reduce_axis(op: Op, x: UOp, axes: Sequence[int]) -> UOp:
    """`x` reduced over axes, which stay as axes of size 1."""
    assert op in REDUCTIONS
    wanted = tuple(sorted(set(axes)))
    assert all(0 <= axis < len(x.shape) for axis in wanted), f"reduce axes {axes} of {x.shape}"
    # The reduction of one element is the element; a size of 0 gives the identity and has to be computed.
    wanted = tuple(axis for axis in wanted if x.shape[axis] != 1)
    return UOp(Ops.REDUCE_AXIS, x.dtype, (x,), (op, wanted)) if wanted else x


def gather(x: UOp, *indices: UOp) -> UOp:
    """x[indices[0], indices[1], ...] with one index per axis of x, all of one shape; 0 outside of x."""
    assert len(indices) == len(x.shape) >= 1
    assert all(index.shape == indices[0].shape and index.dtype.is_int for index in indices)
    return UOp(Ops.GATHER, x.dtype, (x, *indices))


_STORED = (Ops.BUFFER, Ops.PARAM, Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN, Ops.CUSTOM_KERNEL)


def is_stored(x: UOp) -> bool:
    """Whether the node has row-major memory of its own: reshapes of a buffer, of an assignment, of a copy."""
    root = stored_root(x)
    return all(map(is_stored, root.src)) if root.op is Ops.MULTI else root.op in _STORED


def contiguous(x: UOp) -> UOp:
    return x if is_stored(x) else UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def copy(x: UOp, device: Devices) -> UOp:
    """`x` on a device, or a copy of it on each of several."""
    if isinstance(device, str):
        return UOp(Ops.COPY, x.dtype, (x,), device)
    return multi([UOp(Ops.COPY, x.dtype, (x,), name) for name in device], None, device)


def multi(parts: Sequence[UOp], axis: int | None, devices: tuple[str, ...]) -> UOp:
    """One value of which each device has a part: joined along the axis, or all of it where there is none."""
    assert len(parts) == len(devices) == len(set(devices))
    return UOp(Ops.MULTI, parts[0].dtype, tuple(parts), MultiArg(axis, devices))


def placed(x: UOp, device: str) -> UOp:
    """A value without a device, placed on one: it is computed there and may be stored there."""
    return UOp(Ops.DETACH, x.dtype, (x,), (_PLACED, device))


def placed_on(x: UOp) -> str | None:
    """The device of a `placed` value; None for any other."""
    return x.arg[1] if x.op is Ops.DETACH and isinstance(x.arg, tuple) and x.arg[0] == _PLACED else None


_PLACED = "on"


def device_of(x: UOp) -> Devices | None:
    """The device that a value is computed on, or those it is sharded over; None for constants, which belong to none."""
    stack, seen = [x], {x}
    while stack:
        top = stack.pop()
        if top.op in (Ops.BUFFER, Ops.PARAM):
            return str(top.arg.device)
        if top.op is Ops.COPY or top.op is Ops.MULTI:
            found: Devices = top.arg if top.op is Ops.COPY else top.arg.devices
            return found
        fresh = [src for src in top.src if src not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return None


def is_everywhere(x: UOp) -> bool:
    """Whether a value is one constant number: it belongs to no device and is never moved."""
    return scalar_of(x) is not None and device_of(x) is None


def stored_root(x: UOp) -> UOp:
    """The node below the reshapes: what an ASSIGN writes to."""
    while x.op is Ops.RESHAPE:
        x = x.src[0]
    return x


def assign(x: UOp, view: UOp, value: UOp) -> UOp:
    """`x` with `value` stored in `view`, which is made from the stored node `x` by movement alone."""
    root = stored_root(x)
    assert is_stored(root), f"{root.op} has no memory to assign to"
    assert view.shape == value.shape, f"assign {value.shape} to {view.shape}"
    assert view.dtype is value.dtype is x.dtype
    # A view of everything in order is the node itself, whatever shapes it went through.
    if stored_root(view) is root:
        view = root
        value = reshape(value, root.shape)
    return reshape(UOp(Ops.ASSIGN, x.dtype, (root, view, value)), x.shape)
