"""The language of custom kernels. In: what a user writes on UOps: indexing, stores, ends, ordering. Out: nodes, and at
`sink` a kernel in the form of docs/decisions/0009. Importing this module adds the methods of the language to `UOp`,
whose signatures are in `uop.py`; errors are raised at the user's line.

While a kernel is being written, its memory may have a shape (a RESHAPE of a PARAM or of a placeholder) and an INDEX may
be used as the value at it. `close_kernel` removes both: indices become flat row-major positions, values become
LOADs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, Scalar, dtypes, to_dtype
from tilewright.base.errors import DTypeError, KernelError, ShapeError
from tilewright.base.location import Location
from tilewright.graph.kernels.language import views
from tilewright.graph.kernels.language.reach import check_reach
from tilewright.graph.kernels.language.values import (
    MEMORY,
    agree,
    choose,
    is_memory,
    load_of,
    marked,
    memory_behind,
    of_numbers,
)
from tilewright.graph.ops import AddrSpace, Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import consumers, map_graph, toposort

_EFFECTS = frozenset({Ops.STORE, Ops.END, Ops.GROUP, Ops.BARRIER})
_LOOPS = frozenset({AxisType.LOOP, AxisType.REDUCE})
_PLACEHOLDERS = {AddrSpace.LOCAL: Ops.DEFINE_LOCAL, AddrSpace.REG: Ops.DEFINE_REG}


# ---------------------------------------------------------------- ranges and memory


def make_range(size: int | UOp, id: int | tuple[int, ...], axis_type: AxisType = AxisType.LOOP) -> UOp:
    """A loop of a kernel; as a value, its index."""
    operation = f"UOp.range({size}, {id})"
    if not isinstance(axis_type, AxisType):
        raise KernelError(operation, f"{axis_type!r} is not an AxisType", "give AxisType.LOOP, AxisType.REDUCE, ...")
    if isinstance(size, UOp):
        if not size.dtype.is_int:
            raise DTypeError(operation, f"the size is {size.dtype.name}", "count with an integer")
        size = size.cast(dtypes.index)
    elif isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ShapeError(operation, f"the size {size!r} is not a positive integer", "give the number of iterations")
    else:
        size = index_const(size)
    parts = id if isinstance(id, tuple) else (id,)
    if not parts or any(isinstance(part, bool) or not isinstance(part, int) for part in parts):
        raise KernelError(operation, f"the id {id!r} is not an integer", "number the ranges of a kernel 0, 1, 2, ...")
    return marked(UOp(Ops.RANGE, dtypes.index, (size,), Axis(parts, axis_type)))


def make_placeholder(shape: Sequence[int], dtype: DType | str, slot: int, addrspace: AddrSpace = AddrSpace.REG) -> UOp:
    """Memory private to the kernel: per thread (REG), or per work-group (LOCAL)."""
    operation = f"UOp.placeholder({tuple(shape)}, {dtype}, {slot})"
    if addrspace not in _PLACEHOLDERS:
        remedy = "use AddrSpace.REG or AddrSpace.LOCAL; global memory is an argument of the kernel"
        raise KernelError(operation, f"a placeholder cannot be in {addrspace}", remedy)
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in shape):
        raise ShapeError(
            operation, f"shape {tuple(shape)} is not made of positive integers", "give sizes, such as (1,)"
        )
    if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
        raise KernelError(operation, f"the slot {slot!r} is not an integer", "number the placeholders 0, 1, ...")
    argument = ParamArg(slot, math.prod(shape))
    return shaped(marked(UOp(_PLACEHOLDERS[addrspace], to_dtype(dtype), (), argument)), tuple(shape))


def make_argument(slot: int, dtype: DType, shape: Shape) -> UOp:
    """The memory of a kernel's argument number `slot`."""
    return shaped(UOp(Ops.PARAM, dtype, (), ParamArg(slot, math.prod(shape))), shape)


def shaped(memory: UOp, shape: Shape) -> UOp:
    return memory if memory.shape == shape else UOp(Ops.RESHAPE, memory.dtype, (memory,), shape)


# ---------------------------------------------------------------- places


def masked_place(place: UOp, mask: UOp | None) -> UOp:
    """The INDEX with a mask: where it is false, memory is not accessed."""
    if place.op is not Ops.INDEX:
        what = f"a part of shape {place.shape}" if place.op is Ops.VIEW else place.op.name
        raise KernelError("place", f"{what} is not indexed memory", "index memory first, as in out[row]")
    if mask is None:
        return place
    if not mask.dtype.is_bool:
        raise DTypeError("mask", f"the mask is {mask.dtype.name}, not bool", "compare, as in mask=col < 10")
    both = mask if len(place.src) == 2 else place.src[2] & mask
    return marked(UOp(Ops.INDEX, place.dtype, (*place.src[:2], both)))


def load(place: UOp, mask: UOp | None = None, otherwise: UOp | Scalar | None = None) -> UOp:
    """The value at the index; where the mask is false nothing is read, and the value is `otherwise` (or 0)."""
    source = masked_place(place, mask)
    if otherwise is None:
        return marked(UOp(Ops.LOAD, place.dtype, (source,)))
    return marked(UOp(Ops.LOAD, place.dtype, (source, value_for(place, otherwise))))


# ---------------------------------------------------------------- effects


def store(place: UOp, value: UOp | Scalar, mask: UOp | None = None) -> UOp:
    """Stores a value at this index where the mask is true; the result is an effect."""
    target = masked_place(place, mask)
    return marked(UOp(Ops.STORE, dtypes.void, (target, value_for(place, value))))


def value_for(place: UOp, value: UOp | Scalar) -> UOp:
    """The value in the dtype of the memory. A number is converted and an index is cast; any other value must have that
    dtype."""
    dtype = place.dtype
    if not isinstance(value, UOp):
        if isinstance(value, float) and not dtype.is_float and value != int(value):
            raise DTypeError("store", f"{value} into memory of {dtype.name}", "store an integer")
        return const(dtype, value)
    if value.shape:
        message = f"values of shape {value.shape} are stored into one element"
        raise ShapeError("store", message, "index them; a kernel stores element by element")
    if value.dtype is dtypes.index and dtype.is_int:
        value = value.cast(dtype)
    if value.dtype is not dtype:
        value = of_numbers(value, dtype) or value
    if value.dtype is not dtype:
        message = f"a value of {value.dtype.name} into memory of {dtype.name}"
        raise DTypeError("store", message, f"cast it: .cast(dtypes.{dtype.name})")
    return value


def set_place(place: UOp, value: UOp | Scalar, end: UOp | Sequence[UOp] = (), mask: UOp | None = None) -> UOp:
    """The memory after the store, run in every iteration of the ranges in `end`."""
    effect = store(place, value, mask)
    ranges = (end,) if isinstance(end, UOp) else tuple(end)
    return after(place.src[0], end_effect(effect, *ranges) if ranges else effect)


def end_effect(effect: UOp, *ranges: UOp) -> UOp:
    """This effect, run in every iteration of the ranges."""
    if not ranges:
        return as_effect(effect, "end")
    for each in ranges:
        if not isinstance(each, UOp) or each.op is not Ops.RANGE:
            shown = each.op.name if isinstance(each, UOp) else repr(each)
            raise KernelError("end", f"{shown} is not a range", "end over results of UOp.range")
    if len(set(ranges)) != len(ranges):
        raise KernelError("end", "a range is given twice", "give each range once")
    return marked(UOp(Ops.END, dtypes.void, (as_effect(effect, "end"), *ranges)))


def after(memory: UOp, *earlier: UOp) -> UOp:
    """This memory after effects, or in each iteration of ranges."""
    if not is_memory(memory):
        remedy = "call it on an argument, a placeholder or the result of set()"
        raise KernelError("after", f"{memory.op.name} is not memory", remedy)
    if memory.op is Ops.VIEW:
        return marked(memory.replace(src=(after(memory.src[0], *earlier), memory.src[1])))
    effects = tuple(as_effect(each, "after") for each in earlier if each.op is not Ops.RANGE)
    ranges = tuple(each for each in earlier if each.op is Ops.RANGE)
    # The effects come before the loop, so they make a version of the memory before the one in the loop.
    for waits in (effects, ranges):
        memory = marked(UOp(Ops.AFTER, memory.dtype, (memory, *waits))) if waits else memory
    return memory


def group(*effects: UOp) -> UOp:
    """Several effects as one."""
    if not effects:
        raise KernelError("group", "there is no effect", "give results of store(), set() or end()")
    made = tuple(dict.fromkeys(as_effect(effect, "group") for effect in effects))
    return made[0] if len(made) == 1 else marked(UOp(Ops.GROUP, dtypes.void, made))


def barrier(*effects: UOp) -> UOp:
    """A barrier of the threads of a work-group, after which the given effects are visible to all of them."""
    made = tuple(as_effect(effect, "barrier") for effect in effects)
    return marked(UOp(Ops.BARRIER, dtypes.void, made))


def as_effect(node: UOp, operation: str) -> UOp:
    """An effect, or all effects that a version of memory depends on."""
    if node.op in _EFFECTS:
        return node
    found = effects_behind(node)
    if not found:
        remedy = "use store() or set() on indexed memory, as in out[row].set(value)"
        raise KernelError(operation, f"{node.op.name} has no effect", remedy)
    return found[0] if len(found) == 1 else marked(UOp(Ops.GROUP, dtypes.void, found))


def effects_behind(node: UOp) -> tuple[UOp, ...]:
    """The effects that a version of memory depends on, earliest first; effects that are sources of later ones are left
    out."""
    found: list[UOp] = []
    while node.op in (Ops.AFTER, Ops.RESHAPE, Ops.VIEW):
        found.extend(each for each in node.src[1:] if each.op in _EFFECTS)
        node = node.src[0]
    return tuple(effect for effect in reversed(found) if not _is_needed(effect, found))


def _is_needed(effect: UOp, others: list[UOp]) -> bool:
    return any(other is not effect and effect in toposort(other) for other in others)


# ---------------------------------------------------------------- the whole kernel


def make_sink(*effects: UOp, arg: Any = None) -> UOp:
    """The kernel with these effects."""
    if not effects:
        raise KernelError("sink", "the kernel writes nothing", "give results of store(), set() or end()")
    found = tuple(dict.fromkeys(as_effect(effect, "sink") for effect in effects))
    return close_kernel(marked(UOp(Ops.SINK, dtypes.void, found, arg)))


def close_kernel(sink: UOp) -> UOp:
    """The kernel in the compiler's form: memory is flat, and reads are LOADs."""
    order = toposort(views.number_own_loops(sink))
    check_values(order)
    check_placeholders(order)
    check_memory_in_loops(order)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.RESHAPE or node.op is Ops.VIEW:
            return src[0]
        loaded = (
            load_of(new) if source.op is Ops.INDEX and not _takes_place(node, position) else new
            for position, (source, new) in enumerate(zip(node.src, src, strict=True))
        )
        return node.with_src(tuple(loaded))

    closed = map_graph(order[-1], visit, order)
    check_reach(closed)
    return closed


def _takes_place(user: UOp, position: int) -> bool:
    return position == 0 and (user.op is Ops.LOAD or user.op is Ops.STORE)


def check_values(order: list[UOp]) -> None:
    """Raises an error where whole memory is used as a value."""
    users = consumers(order)
    for node in order:
        for source in node.src:
            if source.shape and node.op not in (Ops.INDEX, Ops.AFTER, Ops.RESHAPE, Ops.VIEW):
                message = f"{node.op.name} of memory of shape {source.shape}"
                remedy = "index it first; a kernel computes element by element"
                raise ShapeError("kernel", message, remedy, location=nearest_line(node, users))


def check_memory_in_loops(order: list[UOp]) -> None:
    """Raises an error where a placeholder made outside of a loop is stored to in the loop without `after(range)`. A
    placeholder is the same memory in all iterations, so a value meant to be reset in each would continue from the
    iteration before."""
    ended: dict[UOp, set[UOp]] = {}
    for node in reversed(order):
        if node.op in (Ops.END, Ops.GROUP, Ops.BARRIER):
            for source in node.src[:1] if node.op is Ops.END else node.src:
                ended.setdefault(source, set()).update(node.src[1:] if node.op is Ops.END else (), ended.get(node, ()))
    for node in order:
        if node.op is Ops.STORE:
            version, position = node.src[0].src[:2]
            if memory_behind(version).op is Ops.PARAM:
                continue
            loops = node.ranges - version.ranges - position.ranges - ended.get(node, set())
            missing = sorted(axis.arg.id for axis in loops if axis.arg.kind in _LOOPS)
            if missing:
                names = ", ".join("_".join(map(str, each)) for each in missing)
                message = f"a placeholder is stored to in each iteration of range {names}, and was made outside of it"
                raise KernelError(
                    "store", message, "use placeholder.after(range) where it is set first", location=node.line
                )


def nearest_line(node: UOp, users: dict[UOp, list[UOp]]) -> Location | None:
    """The user's line of the node, or of its nearest user that has one."""
    pending = [node]
    for each in pending:
        if each.line is not None:
            return each.line
        pending.extend(users[each])
    return None


def check_placeholders(order: list[UOp]) -> None:
    """Raises an error where two placeholders share a slot."""
    seen: dict[tuple[object, int], UOp] = {}
    for node in order:
        if node.op in MEMORY:
            other = seen.setdefault((node.op, node.arg.slot), node)
            if other is not node:
                message = (
                    f"slot {node.arg.slot} is {node.dtype.name}[{node.arg.size}] and "
                    f"{other.dtype.name}[{other.arg.size}]"
                )
                raise KernelError("placeholder", message, "give each placeholder a slot of its own", location=node.line)


METHODS: dict[str, Any] = {
    "range": staticmethod(make_range),
    "placeholder": staticmethod(make_placeholder),
    "__getitem__": views.index_memory,
    "sum": views.sum_over,
    "prod": views.product_over,
    "max": views.max_over,
    "min": views.min_over,
    "flatten": views.flatten,
    "load": load,
    "store": store,
    "set": set_place,
    "end": end_effect,
    "after": after,
    "group": group,
    "barrier": barrier,
    "sink": make_sink,
    "_agree": staticmethod(agree),
    "_choose": choose,
}
for _name, _method in METHODS.items():
    setattr(UOp, _name, _method)
