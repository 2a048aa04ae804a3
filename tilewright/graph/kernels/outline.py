"""Kernels that differ only in their constants. In: a kernel (SINK). Out: its `Outline`: a key without the constants,
and the constants in order; and from the constants of several kernels with one outline a `DynamicKernel`, in which those
that differ are VARIABLEs, passed at launch.

Substituting the values for the VARIABLEs of a dynamic kernel gives the original kernel, node by node. So it is correct
if the stages are correct for all values within the bounds of its variables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tilewright.base.digests import blake2b
from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple, replace
from tilewright.graph.affine import digest
from tilewright.graph.bounds import dtype_bounds
from tilewright.graph.ops import ELEMENTWISE, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

# Upper bounds of loop sizes: a dynamic kernel takes the next one above the size it is made for. A sum has levels for
# the maximum number of terms, so several bounds keep short sums from having those of long ones.
SIZE_LIMITS = (255, 4095, (1 << 16) - 1, (1 << 20) - 1)
# The maximum stride or offset.
MAX_STRIDE = (1 << 20) - 1

_ALLOWED = ELEMENTWISE | {Ops.PARAM, Ops.RANGE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.REDUCE, Ops.SINK}
# Float constants are passed as their bits.
_BITS: dict[DType, tuple[DType, str, str]] = {
    dtypes.float32: (dtypes.int32, "<f", "<i"),
    dtypes.float64: (dtypes.int64, "<d", "<q"),
}
_NUMBERS = frozenset({dtypes.index, dtypes.int32, dtypes.int64, *_BITS})


class Outline(NamedTuple):
    """The nodes of a kernel without their constants, and the constants in order, one for each use, floats as their
    bits. `kinds` has the dtype of each constant, `sizes` the positions of those that are sizes of loops. `adds_floats`
    says whether the result depends on the order of a reduction."""

    key: tuple[Any, ...]
    numbers: tuple[int, ...]
    kinds: tuple[DType, ...]
    sizes: frozenset[int]
    adds_floats: bool


def outline_of(sink: UOp) -> Outline | None:
    """The outline; None where the kernel states its opts, has local memory or registers, or orders effects."""
    if not isinstance(sink.arg, KernelInfo) or sink.arg.opts_to_apply is not None or sink.arg.fills:
        return None
    places: dict[UOp, int] = {}
    key: list[Any] = []
    numbers: list[int] = []
    kinds: list[DType] = []
    sizes: set[int] = set()
    adds_floats = False
    for node in toposort(sink):
        op = node.op
        if op is Ops.CONST:
            continue
        if op not in _ALLOWED:
            return None
        sources: list[Any] = []
        if op is Ops.RANGE:
            sizes.add(len(numbers))
        adds_floats |= op is Ops.REDUCE and node.dtype.is_float and node.arg in (Ops.ADD, Ops.MUL)
        for src in node.src:
            if src.op is not Ops.CONST:
                sources.append(places[src])
            elif src.dtype in _NUMBERS:
                sources.append(src.dtype)
                kinds.append(src.dtype)
                numbers.append(_bits(src))
            else:
                sources.append((src.dtype, src.arg))
        arg = node.arg.slot if op is Ops.PARAM else None if op is Ops.SINK else node.arg
        places[node] = len(places)
        key.append((op, node.dtype, tuple(sources), arg))
    return Outline(tuple(key), tuple(numbers), tuple(kinds), frozenset(sizes), adds_floats)


def _bits(number: UOp) -> int:
    form = _BITS.get(number.dtype)
    if form is None:
        return int(number.arg)
    found: int = struct.unpack(form[2], struct.pack(form[1], number.arg))[0]
    return found


class DynamicKernel(NamedTuple):
    """A kernel with variables. `uses` has for each constant of its outline the index of its variable, or None where it
    is the constant in `numbers`."""

    sink: UOp
    variables: tuple[UOp, ...]
    uses: tuple[int | None, ...]
    numbers: tuple[int, ...]

    def values_for(self, numbers: Sequence[int]) -> dict[str, int] | None:
        """The value of each variable, by name, for the kernel with these constants; None where it is not an instance of
        this one."""
        values: list[int | None] = [None] * len(self.variables)
        for use, number, constant in zip(self.uses, numbers, self.numbers, strict=True):
            if use is None:
                if number != constant:
                    return None
            elif values[use] is None:
                values[use] = number
            elif values[use] != number:
                return None
        found: dict[str, int] = {}
        for variable, value in zip(self.variables, values, strict=True):
            name, least, greatest = variable.arg
            if value is None or not least <= value <= greatest:
                return None
            found[name] = value
        return found


def make_dynamic(sink: UOp, outline: Outline, others: Sequence[Sequence[int]]) -> DynamicKernel | None:
    """The kernel with a variable for each constant that differs in `others`, which have the same outline. Uses with
    equal values in all of them share a variable. None where a constant is too large for one."""
    known: dict[tuple[DType, tuple[int, ...]], list[int]] = {}  # the uses of each variable
    for use, values in enumerate(zip(outline.numbers, *others, strict=True)):
        if any(value != values[0] for value in values):
            known.setdefault((outline.kinds[use], values), []).append(use)
    variables: list[UOp] = []
    uses: list[int | None] = [None] * len(outline.numbers)
    for (kind, (value, *_)), positions in known.items():
        bounds = _bounds(kind, value, not outline.sizes.isdisjoint(positions))
        if bounds is None:
            return None
        for position in positions:
            uses[position] = len(variables)
        dtype = _BITS[kind][0] if kind in _BITS else kind
        variables.append(UOp(Ops.VARIABLE, dtype, (), (f"n{len(variables)}", *bounds)))
    dynamic = _with_variables(sink, uses, variables)
    return DynamicKernel(dynamic, tuple(variables), tuple(uses), outline.numbers)


def _bounds(kind: DType, value: int, is_size: bool) -> tuple[int, int] | None:
    """The bounds of a variable made for a value; None where that is too large."""
    if kind is not dtypes.index:
        least, greatest = dtype_bounds(_BITS[kind][0] if kind in _BITS else kind)
        return int(least), int(greatest)
    limit = next((limit for limit in SIZE_LIMITS if abs(value) <= limit), 0) if is_size else MAX_STRIDE
    if abs(value) > limit:
        return None
    return (1, limit) if value > 0 else (-limit, limit)


def _with_variables(sink: UOp, uses: Sequence[int | None], variables: Sequence[UOp]) -> UOp:
    waiting = iter(uses)
    made: dict[UOp, UOp] = {}
    for node in toposort(sink):
        if node.op is Ops.CONST:
            continue
        src: list[UOp] = []
        for source in node.src:
            use = next(waiting) if source.op is Ops.CONST and source.dtype in _NUMBERS else None
            if use is None:
                src.append(made.get(source, source))
            else:
                src.append(variables[use].bitcast(source.dtype))
        made[node] = node.with_src(tuple(src))
    name = f"{sink.arg.name.partition('_')[0]}_dynamic_{blake2b(digest(made[sink]), digest_size=3).hexdigest()}"
    return made[sink].replace(arg=replace(sink.arg, name=name))
