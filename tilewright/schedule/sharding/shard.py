"""Divides a graph among devices. In: a graph in which MULTI nodes are values on several devices. Out: a graph without
them, in which each node is computed on one device, and for each output its parts. It runs before anything is scheduled.

Every node above a MULTI becomes a node per device and a layout. A result takes the layout of its sources, so parts stay
on their devices. Data moves, by `collectives.py`, in three cases: operands divided along different axes, a reduction
over the divided axis, and ops that cannot be computed part by part, whose sources are gathered. Constants belong to no
device: each part computes the slice that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.errors import InternalError
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.build import counting_axis
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import MultiArg, Ops
from tilewright.graph.slices import select_parts
from tilewright.graph.spec import Kind, Op, element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graphs, toposort
from tilewright.schedule.sharding.collectives import all_reduce, gather_parts, move_parts
from tilewright.schedule.sharding.constants import narrow, place_constants
from tilewright.schedule.sharding.layouts import WHOLE, Layout, Sharded, choose_layout, pulled_back
from tilewright.schedule.sharding.movement import MOVEMENTS

Value = UOp | Sharded


class Division(NamedTuple):
    """An output: the nodes to compute, and how they are joined; None where it is one node."""

    nodes: tuple[UOp, ...]
    arg: MultiArg | None


def divide_graph(outputs: Sequence[UOp]) -> tuple[Division, ...]:
    order = toposort(*outputs)
    if all(node.op is not Ops.MULTI for node in order):
        return tuple(Division((node,), None) for node in outputs)
    if any(node.op is Ops.CAT for node in order):
        outputs = select_joined(outputs)
        order = toposort(*outputs)
    divider = Sharder(order)
    for node in order:
        divider.divide(node)
    return tuple(divider.output(node) for node in outputs)


def select_joined(outputs: Sequence[UOp]) -> list[UOp]:
    """The outputs with every CAT rewritten as a selection, which is divided like any other elementwise operation."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.CAT:
            return None
        made = select_parts(src, node.arg)
        note_line(made, node)
        return made

    return map_graphs(outputs, visit)


class Sharder:
    """Maps each node to its result: a node on one device or on none, or a part on each of several devices."""

    def __init__(self, order: Sequence[UOp]) -> None:
        self.done: dict[UOp, Value] = {}
        self.free: set[UOp] = set()  # values made of constants alone
        bases = (updated_source(node) for node in order)
        self.updated = {_behind_wrappers(base) for base in bases if base is not None}

    def divide(self, node: UOp) -> None:
        sources = [self.done[src] for src in node.src]
        if not any(isinstance(source, Sharded) for source in sources) and node.op is not Ops.MULTI:
            made: Value = self._plain(node, sources)
        elif element_count(node.shape) == 0:
            made = build.const(node.dtype, 0, node.shape)
            self.free.add(made)
        elif node.op.is_elementwise:
            made = self._elementwise(node)
        elif node.op.kind is Kind.MOVEMENT:
            made = self._movement(node)
        else:
            rule = _RULES.get(node.op)
            if rule is None:
                raise InternalError(f"{node.op} cannot be divided among devices")
            made = rule(self, node)
        if node in self.updated and node.op not in _MEMORY:
            made = self._separate(made)
        for part in made.parts if isinstance(made, Sharded) else (made,):
            note_line(part, node)
        self.done[node] = made

    def _separate(self, made: Value) -> Value:
        """A value that is updated in place gets its own memory where sharding made it share another value's: as a copy
        to the device that already has it does, or a slice that is exactly one part."""

        def copied(part: UOp) -> UOp:
            root = _behind_wrappers(part)
            return build.copy(part, root.arg.device) if root.op in (Ops.PARAM, Ops.BUFFER) else part

        return made._replace(parts=tuple(map(copied, made.parts))) if isinstance(made, Sharded) else copied(made)

    def output(self, node: UOp) -> Division:
        made = self.done[node]
        if not isinstance(made, Sharded):
            return Division((made,), None)
        return Division(made.parts, MultiArg(made.layout.axis, made.devices))

    # ------------------------------------------------------------ sources

    def _plain(self, node: UOp, sources: Sequence[Value]) -> UOp:
        src = tuple(source for source in sources if isinstance(source, UOp))
        if node.op is Ops.COPY and src[0] in self.free:
            return UOp(Ops.CONTIGUOUS, node.dtype, (place_constants(src[0], node.arg),))
        made = node.with_src(src)
        if node.op in (Ops.CONST, Ops.SIZE, Ops.IOTA) or (src and self.free.issuperset(src)):
            self.free.add(made)
        return made

    def _sharded(self, node: UOp) -> Sharded:
        made = self.done[node]
        assert isinstance(made, Sharded)
        return made

    def _devices(self, node: UOp) -> tuple[str, ...]:
        return next(made.devices for made in map(self.done.get, node.src) if isinstance(made, Sharded))

    def _aligned(self, source: UOp, layout: Layout, devices: tuple[str, ...]) -> Sequence[UOp]:
        """The parts of a source in a layout. A 0-d source is broadcast to any shape."""
        made = self.done[source]
        wanted = layout if source.shape else WHOLE
        if isinstance(made, Sharded):
            if made.devices != devices:
                raise InternalError(f"{source!r} is on {made.devices}, and meets values of {devices}")
            return self._moved(source, wanted).parts
        if made not in self.free:
            raise InternalError(f"{source!r} is on one device, and meets values of {devices}")
        bounds = wanted.bounds() if wanted.axis is not None else [(0, 0)] * len(devices)
        cut = (made if wanted.axis is None else narrow(made, wanted.axis, *pair) for pair in bounds)
        return [place_constants(part, device, is_operand=True) for part, device in zip(cut, devices, strict=True)]

    def _moved(self, node: UOp, layout: Layout) -> Sharded:
        """A node in another layout. Data is moved below its views, so that an EXPAND is not sent."""
        views: list[tuple[UOp, Layout]] = []
        while self._sharded(node).layout != layout and (below := pulled_back(node, layout)) is not None:
            views.append((node, layout))
            node, layout = node.src[0], below
        moved = move_parts(self._sharded(node), layout)
        for view, own in reversed(views):
            shapes = own.part_shapes(view.shape, len(moved.devices))
            parts = (
                build.movement(view.op, part, view.arg if view.op is Ops.PERMUTE else shape)
                for part, shape in zip(moved.parts, shapes, strict=True)
            )
            moved = Sharded(tuple(parts), own, moved.devices)
        return moved

    def _chosen(self, sources: Sequence[UOp]) -> Layout:
        """The layout for what is made from several sources of one shape, element by element."""
        weights: dict[Layout, int] = {}
        for source in sources:
            made = self.done[source]
            if isinstance(made, Sharded):
                origin = source
                while pulled_back(origin, WHOLE) is not None:
                    origin = origin.src[0]
                moved = element_count(origin.shape) * origin.dtype.itemsize
                weights[made.layout] = weights.get(made.layout, 0) + moved
        return choose_layout(sources[0].shape, weights)

    def _each(self, node: UOp, layout: Layout, *sources: Sequence[UOp]) -> Sharded:
        """The node once per device, over these sources."""
        parts = tuple(UOp(node.op, node.dtype, src, node.arg) for src in zip(*sources, strict=True))
        return Sharded(parts, layout, self._devices(node))

    # ------------------------------------------------------------ elementwise and movement

    def _elementwise(self, node: UOp) -> Sharded:
        shaped = [src for src in node.src if src.shape]
        layout = self._chosen(shaped) if shaped else WHOLE
        devices = self._devices(node)
        return self._each(node, layout, *(self._aligned(src, layout, devices) for src in node.src))

    def _movement(self, node: UOp) -> Sharded:
        sharded = self._sharded(node.src[0])
        if sharded.layout.axis is not None:
            made = MOVEMENTS[node.op](node, sharded)
            if made is not None:
                return made
            sharded = self._moved(node.src[0], WHOLE)
        parts = tuple(build.movement(node.op, part, node.arg) for part in sharded.parts)
        return sharded._replace(parts=parts)

    # ------------------------------------------------------------ tensors

    def _reduce_axis(self, node: UOp) -> Sharded:
        sharded = self._sharded(node.src[0])
        op, axes = node.arg
        partials = tuple(build.reduce_axis(op, part, axes) for part in sharded.parts)
        axis, sizes = sharded.layout
        if axis not in axes:
            return sharded._replace(parts=partials)
        held = zip(partials, sharded.devices, sizes, strict=True)
        return all_reduce(op, [(part, device) for part, device, size in held if size], sharded.devices)

    def _gather(self, node: UOp) -> Sharded:
        """Divided like the indices. A source stays divided along an axis whose index counts 0, 1, 2, ...; any other
        source is gathered, because an index may name any of its elements."""
        source, *indices = node.src
        devices = self._devices(node)
        layout = self._chosen(indices)
        made = self.done[source]
        local = made.layout if isinstance(made, Sharded) else WHOLE
        along = None if local.axis is None else counting_axis(indices[local.axis])
        if along is None or node.shape[along] != sum(local.sizes) or layout.axis not in (None, along):
            parts = self._aligned(source, WHOLE, devices)
            return self._each(node, layout, parts, *(self._aligned(src, layout, devices) for src in indices))
        layout = Layout(along, local.sizes)
        aligned = [self._aligned(src, layout, devices) for src in indices]
        assert local.axis is not None
        counted = self.done[indices[local.axis]]
        assert isinstance(counted, UOp)
        aligned[local.axis] = [narrow(counted, along, 0, size) for size in local.sizes]
        return self._each(node, layout, self._aligned(source, local, devices), *aligned)

    def _same(self, node: UOp) -> Value:
        """CONTIGUOUS and DETACH: the same node on each part."""
        first, *waited = map(self.done.__getitem__, node.src)
        count = len(first.parts) if isinstance(first, Sharded) else 1
        rows = [made.parts[:count] if isinstance(made, Sharded) else (made,) * count for made in (first, *waited)]
        if isinstance(first, Sharded):
            return self._each(node, first.layout, *rows)
        return node.with_src((first,) if first in self.free else tuple(row[0] for row in rows))

    def _copy(self, node: UOp) -> UOp:
        return gather_parts(self._sharded(node.src[0]), node.arg)

    def _multi(self, node: UOp) -> Sharded:
        axis, devices = node.arg
        parts = []
        for source, device in zip(node.src, devices, strict=True):
            made = self.done[source]
            if isinstance(made, Sharded):
                raise InternalError("a part of a MULTI is sharded over devices itself")
            parts.append(place_constants(made, device) if made in self.free else made)
        sizes = () if axis is None else tuple(src.shape[axis] for src in node.src)
        return Sharded(tuple(parts), Layout(axis, sizes), devices)

    def _assign(self, node: UOp) -> Sharded:
        """In place on every part. Where the view is not a view of the parts, it is written to a gathered copy, and each
        part is then assigned its slice."""
        target, view, value = node.src
        sharded, devices = self._sharded(target), self._devices(node)
        seen = self.done[view]
        assert isinstance(seen, Sharded)
        if all(_is_view(part, own) for part, own in zip(seen.parts, sharded.parts, strict=True)):
            values = self._aligned(value, seen.layout, devices)
            rows = zip(sharded.parts, seen.parts, values, strict=True)
            # A device without elements of the view writes nothing.
            parts = [
                own if _is_empty(part, own) else build.assign(own, part, _shaped(new, part)) for own, part, new in rows
            ]
            return sharded._replace(parts=tuple(parts))
        whole = move_parts(sharded, WHOLE)
        bases = [UOp(Ops.CONTIGUOUS, node.dtype, (part,)) for part in whole.parts]
        values = self._aligned(value, WHOLE, devices)
        written = []
        for base, new in zip(bases, values, strict=True):
            again = base
            for step in reversed(_steps(view, target)):
                again = build.movement(step.op, again, step.arg)
            written.append(build.assign(base, again, _shaped(new, again)))
        taken = move_parts(whole._replace(parts=tuple(written)), sharded.layout).parts
        return sharded._replace(parts=tuple(build.assign(own, own, new) for own, new in zip(sharded.parts, taken)))


_RULES: dict[Op, Callable[[Sharder, UOp], Value]] = {
    Ops.REDUCE_AXIS: Sharder._reduce_axis,
    Ops.GATHER: Sharder._gather,
    Ops.CONTIGUOUS: Sharder._same,
    Ops.DETACH: Sharder._same,
    Ops.COPY: Sharder._copy,
    Ops.MULTI: Sharder._multi,
    Ops.ASSIGN: Sharder._assign,
}


# ---------------------------------------------------------------- views and lines


def _steps(view: UOp, target: UOp) -> list[UOp]:
    """The movements from a node to a view of it, the last one first."""
    steps = []
    while view is not target:
        steps.append(view)
        view = view.src[0]
    return steps


_MEMORY = (Ops.PARAM, Ops.BUFFER, Ops.MULTI, Ops.ASSIGN, Ops.CUSTOM_KERNEL)


def _behind_wrappers(node: UOp) -> UOp:
    """The value below reshapes, DETACH and CONTIGUOUS."""
    while node.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return node


def _is_view(node: UOp, of: UOp) -> bool:
    root = build.stored_root(of)
    while node is not root and node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
    return node is root


def _is_empty(view: UOp, of: UOp) -> bool:
    """Whether a view of a part selects no element of it."""
    root = build.stored_root(of)
    while view is not root and 0 not in view.shape:
        view = view.src[0]
    return view is not root


def _shaped(value: UOp, view: UOp) -> UOp:
    return value if value.shape == view.shape else build.broadcast_to(value, view.shape)


def note_line(part: UOp, node: UOp) -> None:
    """Gives the user's line of a node to the nodes that replace it."""
    stack = [part]
    while stack and node.line is not None:
        top = stack.pop()
        if top.line is None:
            top.line = node.line
            stack.extend(top.src)
