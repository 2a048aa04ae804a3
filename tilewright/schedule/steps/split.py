"""Writing the kernels of a plan. In: a `Plan`. Out: for each stored node the value of one of its elements, as scalar
maths over loops, loads and reductions. A stored value is a LOAD for every other kernel.

The PARAMs of a kernel are numbered from 0 as it loads them and begin where it begins to touch them; a list beside it
says what each is. So equal steps of a program are equal nodes, and are simplified and written down as items once."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError
from tilewright.graph.build import wrap_negative
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg, reduce_identity
from tilewright.graph.simplify import fold_reductions
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import substitute, toposort
from tilewright.schedule.fusion.indexing import TRUE, Element, both
from tilewright.schedule.fusion.masks import drop_masks, shorten_reductions
from tilewright.schedule.fusion.uses import TOP_LEVEL, Plan, gather_valid
from tilewright.schedule.steps.residues import thin_reductions
from tilewright.schedule.steps.step import Part

Key = tuple[UOp, UOp, Element]  # a kernel's root, a node, and the element that the kernel asks of it


class KernelWriter:
    """Builds values bottom-up. `version_of` gives the version of memory that each stored node and input is,
    `alignment_of` the alignment of a kernel's buffers in bytes; `loaded` is what the PARAMs of a kernel are, by the
    kernel's root."""

    def __init__(self, plan: Plan, version_of: dict[UOp, int], alignment_of: Callable[[UOp], int]) -> None:
        self.plan = plan
        self.version_of = version_of
        self.alignment_of = alignment_of
        self.loaded: dict[UOp, list[Part]] = {}
        self.numbers: dict[tuple[UOp, Part], int] = {}  # of the PARAM that a part is in the kernel of a root
        self.finished: dict[UOp, UOp] = {}
        self.values: dict[Key, UOp] = {}
        self.masked: set[Key] = set()  # the values that are 0 wherever their element does not exist
        self.hole_values: dict[UOp, UOp] = {}
        self.filled: dict[UOp, UOp] = {}

    def write_values(self) -> dict[UOp, UOp]:
        """The value of every stored node at the loops of the kernel that stores it."""
        stored = set(self.plan.stored)
        kernels: dict[UOp, dict[UOp, UOp]] = {}
        for node in self.plan.order:
            home = self.plan.hosts.get(node)
            for root, element in self.plan.uses.get(node, {}):
                key = (root, node, element)
                is_stored_here = root is node or (root, element) == home
                if node in stored and not is_stored_here:
                    self.values[key] = self._load(key)
                    continue
                self.values[key] = self._value(key)
                if is_stored_here:
                    kernels.setdefault(root, {})[node] = self.values[key]
        return {node: value for root, values in kernels.items() for node, value in self._finish(root, values).items()}

    def _finish(self, root: UOp, values: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """The values of one kernel, simplified together so that what they share stays shared."""
        filled = (self._fill_holes(value) for value in values.values())
        sink = UOp(Ops.SINK, dtypes.void, tuple(filled))
        if len(self.plan.levels.get(root, ())) > 1:
            sink = number_reductions(sink)
        finished = self.finished.get(sink)
        if finished is None:
            finished = thin_reductions(drop_masks(fold_reductions(shorten_reductions(sink))))
            self.finished[sink] = finished
        return dict(zip(values, finished.src, strict=True))

    def _value(self, key: Key) -> UOp:
        root, node, element = key
        if node.op is Ops.CONST:
            return node
        if node.op is Ops.SIZE:
            return node.arg.node.cast(node.dtype)  # type: ignore[no-any-return]
        if node.op is Ops.IOTA:
            return element.indices[0].cast(node.dtype)
        if node.op is Ops.PARAM:
            return self._load(key)
        if node.op.is_elementwise:
            values, shape = self.values, node.shape
            elements = [element if s.shape == shape else Element((), element.valid) for s in node.src]
            src = tuple([values[root, s, at] for s, at in zip(node.src, elements, strict=True)])
            if node.op is Ops.CHECK:
                return checked_value(node, src[0], both(src[1], element.valid))
            return UOp(node.op, node.dtype, src, node.arg)
        if node.op.kind is Kind.MOVEMENT:
            if max_count(node.src[0].shape) == 0:
                return const(node.dtype, 0)
            behind = self.plan.behind(node, element)
            return self._pass_on(key, (root, node.src[0], behind), is_zero_outside=node.op is Ops.PAD)
        if node.op in (Ops.CONTIGUOUS, Ops.DETACH):
            return self._pass_on(key, (root, node.src[0], element), is_zero_outside=False)
        if node.op is Ops.REDUCE_AXIS:
            return self._reduce_value(key)
        if node.op is Ops.GATHER:
            return self._gather_value(key)
        if node.op is Ops.ASSIGN:
            return self.values[root, node.src[2], element]
        if node.op is Ops.COPY or node.op is Ops.CUSTOM_KERNEL:
            return const(node.dtype, 0)  # a custom kernel exists already: the item names its slots
        raise InternalError(f"{node.op!r} cannot stand in a kernel")

    def _pass_on(self, key: Key, source: Key, is_zero_outside: bool) -> UOp:
        """The value of the source, masked with 0 where its element does not exist and it is not 0 there by itself."""
        value, valid = self.values[source], source[2].valid
        if valid is TRUE:
            return value
        if source in self.masked or is_zero_outside:
            self.masked.add(key)
        return value if source in self.masked or not is_zero_outside else valid.where(value, 0)

    # ------------------------------------------------------------ memory

    def _load(self, key: Key) -> UOp:
        root, node, element = key
        size = max_count(node.shape)
        if size == 0:
            return const(node.dtype, 0)
        position = self.plan.position(element.indices, node.shape)
        step = max(1, self.alignment_of(root) // node.dtype.itemsize)
        start, touched, position = self.plan.part(position, size, step)
        part = Part(self.version_of[node], start, touched)
        number = self.numbers.get((root, part))
        if number is None:
            loaded = self.loaded.setdefault(root, [])
            number = self.numbers[root, part] = len(loaded)
            loaded.append(part)
        buffer = UOp(Ops.PARAM, node.dtype, (), ParamArg(number, touched))
        self.masked.add(key)
        return load_element(buffer, position, element.valid)

    # ------------------------------------------------------------ reductions

    def _reduce_value(self, key: Key) -> UOp:
        root, node, element = key
        op, axes = node.arg
        source = node.src[0]
        if max_count(source.shape) == 0:
            return const(node.dtype, reduce_identity(op, node.dtype))
        loops = self.plan.reduce_loops[key]
        index = list(element.indices)
        remaining = iter(loops)
        for axis in sorted(axes):
            if source.shape[axis] != 1:
                index[axis] = next(remaining)
        inner = (root, source, Element(tuple(index), element.valid))
        value = self.values[inner]
        if op is Ops.ADD and element.valid is not TRUE and inner in self.masked:
            self.masked.add(key)
        return UOp(Ops.REDUCE, node.dtype, (value, *loops), op) if loops else value

    # ------------------------------------------------------------ gathers

    def _gather_value(self, key: Key) -> UOp:
        root, node, element = key
        source, *indices = node.src
        if max_count(source.shape) == 0:
            return const(node.dtype, 0)
        narrow, wide = self.plan.holes[key]
        for idx, size, narrow_hole, wide_hole in zip(indices, source.shape, narrow, wide, strict=True):
            value = index_value(self.values[root, idx, element], size)
            self.hole_values[wide_hole] = value
            if narrow_hole.op is Ops.VARIABLE:
                self.hole_values[narrow_hole] = value
        valid = both(element.valid, gather_valid(source.shape, wide))
        return self._pass_on(key, (root, source, Element(narrow, valid)), is_zero_outside=True)

    def _fill_holes(self, value: UOp) -> UOp:
        """The value with every hole replaced by the value that it stands for, which may contain holes itself. Memoised
        over all kernels, so that a chain of gathers is walked once and not once per link."""
        if not self.hole_values:
            return value
        done = self.filled
        stack = [value]
        while stack:
            node = stack[-1]
            content = self.hole_values.get(node)
            below = node.src if content is None else (content,)
            missing = [src for src in below if src not in done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if content is not None:
                done[node] = done[content]
            elif node not in done:
                src = tuple(done[s] for s in below)
                done[node] = node if src == below else UOp(node.op, node.dtype, src, node.arg)
        return done[value]


def number_reductions(sink: UOp) -> UOp:
    """The values of a kernel with the loops of its reductions renumbered without gaps: levels can differ by the length
    of a sequence, and equal kernels must have equal loops."""
    loops = [node for node in toposort(sink) if node.op is Ops.RANGE and node.arg.kind is AxisType.REDUCE]
    ordered = sorted(loops, key=lambda loop: loop.arg.id)
    exchanges = {loop: loop.replace(arg=Axis((TOP_LEVEL, k), loop.arg.kind)) for k, loop in enumerate(ordered)}
    return substitute(sink, exchanges)


def load_element(buffer: UOp, position: UOp, valid: UOp) -> UOp:
    src = (buffer, position) if valid is TRUE else (buffer, position, valid)
    return UOp(Ops.LOAD, buffer.dtype, (UOp(Ops.INDEX, buffer.dtype, src),))


def checked_value(node: UOp, value: UOp, valid: UOp) -> UOp:
    """A CHECK in a kernel; where the element does not exist, nothing is checked."""
    if node.arg.wraps:
        value = wrap_negative(value, node.arg.size)
    return UOp(Ops.CHECK, node.dtype, (value, valid), node.arg._replace(wraps=False))


def index_value(value: UOp, size: int) -> UOp:
    """An element of an index tensor as an index. One that exceeds int64 is out of range, like any other past the
    end."""
    if value.vmax > dtypes.int64.max:
        value = value.minimum(size)
    return value.cast(dtypes.index)
