"""Writing the kernels of a plan. In: a `Plan`. Out: for each stored node the value of one of its elements, as scalar
maths over loops, loads and reductions. A stored value is a LOAD for every other kernel."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.ops import Ops, ParamArg, reduce_identity
from tilewright.graph.simplify import fold_reductions
from tilewright.graph.spec import Kind, element_count
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import substitute
from tilewright.schedule.fuse import Plan, gather_valid
from tilewright.schedule.indexing import TRUE, Place, both, flatten_index, pad_valid, push_movement


class KernelWriter:
    """Builds values bottom-up. `memory` gives the slot number of a stored node; PARAM nodes are their own slots."""

    def __init__(self, plan: Plan, slot_of: dict[UOp, int]) -> None:
        self.plan = plan
        self.slot_of = slot_of
        self.values: dict[tuple[UOp, UOp, Place], UOp] = {}
        self.hole_values: dict[UOp, UOp] = {}

    def write_values(self) -> dict[UOp, UOp]:
        """The value of every stored node at its own loops."""
        stored = set(self.plan.stored)
        results: dict[UOp, UOp] = {}
        for node in self.plan.order:
            for root, place in self.plan.uses.get(node, {}):
                if node in stored and root is not node:
                    self.values[root, node, place] = self.load(node, place)
                    continue
                value = self._value(root, node, place)
                self.values[root, node, place] = value
                if root is node:
                    results[node] = self.finish(value)
        return results

    def finish(self, value: UOp) -> UOp:
        """Holes filled, maths simplified, reductions with a closed form folded."""
        for _ in range(len(self.hole_values) + 1):
            filled = substitute(value, self.hole_values)
            if filled is value:
                break
            value = filled
        return fold_reductions(value)

    def load(self, node: UOp, place: Place) -> UOp:
        size = element_count(node.shape)
        if size == 0:
            return const(node.dtype, 0)
        buffer = UOp(Ops.PARAM, node.dtype, (), ParamArg(self.slot_of[node], size))
        return load_element(buffer, flatten_index(place.indices, node.shape), place.valid)

    def _value(self, root: UOp, node: UOp, place: Place) -> UOp:
        if node.op is Ops.CONST:
            return node
        if node.op is Ops.IOTA:
            return place.indices[0].cast(node.dtype)
        if node.op is Ops.PARAM:
            return self.load(node, place)
        if node.op.is_elementwise:
            src = tuple(
                self.values[root, s, place if s.shape or not node.shape else Place((), place.valid)] for s in node.src
            )
            return UOp(node.op, node.dtype, src, node.arg)
        if node.op.kind is Kind.MOVEMENT:
            return self._movement_value(root, node, place)
        if node.op in (Ops.CONTIGUOUS, Ops.DETACH):
            return self.values[root, node.src[0], place]
        if node.op is Ops.REDUCE_AXIS:
            return self._reduce_value(root, node, place)
        if node.op is Ops.GATHER:
            return self._gather_value(root, node, place)
        if node.op is Ops.ASSIGN:
            return self.values[root, node.src[2], place]
        if node.op is Ops.COPY:
            return const(node.dtype, 0)  # a copy has no kernel: its item names the two slots
        raise InternalError(f"{node.op!r} cannot stand in a kernel")

    def _movement_value(self, root: UOp, node: UOp, place: Place) -> UOp:
        source = node.src[0]
        if element_count(source.shape) == 0:
            return const(node.dtype, 0)
        value = self.values[root, source, push_movement(node, place)]
        return value if node.op is not Ops.PAD else masked(pad_valid(node, place.indices), value)

    def _reduce_value(self, root: UOp, node: UOp, place: Place) -> UOp:
        op, axes = node.arg
        source = node.src[0]
        if element_count(source.shape) == 0:
            return const(node.dtype, reduce_identity(op, node.dtype))
        loops = self.plan.reduce_loops[root, node, place]
        index = list(place.indices)
        remaining = iter(loops)
        for axis in sorted(axes):
            if source.shape[axis] != 1:
                index[axis] = next(remaining)
        value = self.values[root, source, Place(tuple(index), place.valid)]
        return UOp(Ops.REDUCE, node.dtype, (value, *loops), op) if loops else value

    def _gather_value(self, root: UOp, node: UOp, place: Place) -> UOp:
        source, *indices = node.src
        if element_count(source.shape) == 0:
            return const(node.dtype, 0)
        narrow, wide = self.plan.holes[root, node, place]
        for idx, size, narrow_hole, wide_hole in zip(indices, source.shape, narrow, wide, strict=True):
            value = index_value(self.values[root, idx, place], size)
            self.hole_values[wide_hole] = value
            if narrow_hole.op is Ops.VARIABLE:
                self.hole_values[narrow_hole] = value
        in_range = gather_valid(source.shape, wide)
        valid = both(place.valid, in_range)
        value = self.values[root, source, Place(narrow, valid)]
        return masked(in_range, value)


def load_element(buffer: UOp, position: UOp, valid: UOp) -> UOp:
    src = (buffer, position) if valid is TRUE else (buffer, position, valid)
    return UOp(Ops.LOAD, buffer.dtype, (UOp(Ops.INDEX, buffer.dtype, src),))


def index_value(value: UOp, size: int) -> UOp:
    """An index tensor's element as an index. One too large for 64 bits with a sign is past the end like any other."""
    if value.vmax > dtypes.int64.max:
        value = value.minimum(size)
    return value.cast(dtypes.index)


def masked(valid: UOp, value: UOp) -> UOp:
    """`value` where valid, else 0. A load under the same mask gives 0 by itself."""
    if valid is TRUE or (value.op is Ops.LOAD and len(value.src[0].src) == 3 and value.src[0].src[2] is valid):
        return value
    return valid.where(value, 0)
