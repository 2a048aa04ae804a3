"""The tiles of a program's values. In: a `Program`. Out: for each node its tile axes, which of them is written as
vector lanes, its coordinates, and whether it is needed at all. Facts only; the renderers of backends write the text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.graph.affine import affine
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort

Coordinates = tuple[int, ...]

_ACCESSES = (Ops.LOAD, Ops.STORE)
# The fewest contiguous elements for which a vector access is faster than single ones.
MIN_LANES = 4


def memory_dtype(dtype: DType) -> DType:
    """The dtype of an element in memory: a bool is a byte."""
    return dtypes.uint8 if dtype.is_bool else dtype


def tile_part(position: UOp) -> tuple[UOp | None, dict[UOp, int]]:
    """A position as base and constant steps along tile axes, which are not to be changed. A base of None is zero."""
    cache = position.cache
    if "tile-part" not in cache:
        base, steps = None, _steps(position)
        if steps is None and position.op is Ops.ADD:
            base, steps = position.src[0], _steps(position.src[1])
        # A position without steps does not hold itself, which would be a cycle of references.
        cache["tile-part"] = None if steps is None else (base, steps)
    found: tuple[UOp | None, dict[UOp, int]] | None = cache["tile-part"]
    return (position, {}) if found is None else found


def _steps(node: UOp) -> dict[UOp, int] | None:
    """The coefficients of an expression made of tile axes alone."""
    if not node.ranges or not all(axis.arg.kind.is_tile for axis in node.ranges):
        return None
    form = affine(node)
    if form.constant or not all(atom.op is Ops.RANGE for atom in form.terms):
        return None
    return dict(form.terms)


def shifted_base(node: UOp) -> tuple[UOp | None, dict[UOp, int]]:
    """An integer that is a base plus several offsets, each with constant steps along tile axes: the base, and the steps
    of all offsets together. Elements at the same distance from the base are equal. The base of any other node is
    None."""
    steps: dict[UOp, int] = {}
    base, count = node, 0
    while base.op is Ops.ADD and base.dtype.is_int and not may_wrap(base):
        found = _steps(base.src[1])
        if found is None:
            break
        for axis, step in found.items():
            steps[axis] = steps.get(axis, 0) + step
        base, count = base.src[0], count + 1
    return (base, steps) if count > 1 else (None, {})


def may_wrap(node: UOp) -> bool:
    """Whether an integer op may leave the range of its dtype, as far as the bounds of its sources tell."""
    if not node.dtype.is_int or node.op not in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG):
        return True
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if node.op is Ops.ADD:
        found = (low + other_low, high + other_high)
    elif node.op is Ops.SUB:
        found = (low - other_high, high - other_low)
    else:
        products = [left * right for left in (low, high) for right in (other_low, other_high)]
        found = (min(products), max(products))
    return not (node.dtype.min <= found[0] and found[1] <= node.dtype.max)


# The longest expression that is evaluated here, for every element and every use; the kernel computes longer ones.
MAX_KNOWN_NODES = 32


def is_tile_expression(node: UOp) -> bool:
    """Whether an integer is computed from tile axes and constants alone: it is known for each element of the tile."""
    if not node.ranges or not all(axis.arg.kind.is_tile for axis in node.ranges):
        return False
    nodes = toposort(node)
    return len(nodes) <= MAX_KNOWN_NODES and all(_is_known(each) for each in nodes)


def _is_known(node: UOp) -> bool:
    if node.op in (Ops.RANGE, Ops.CONST, Ops.CAST):
        return node.dtype.is_int or node.dtype.is_bool
    return node.op.is_elementwise and node.op.value is not None and not node.dtype.is_float


def tile_value(node: UOp, at: Mapping[UOp, int]) -> int:
    """The value of a tile expression at one element of the tile."""
    return tile_values(node, (at,))[0]


def tile_values(node: UOp, elements: Sequence[Mapping[UOp, int]]) -> list[int]:
    """The values of a tile expression at several elements of the tile."""
    values: dict[UOp, list[int]] = {}
    for each in toposort(node):
        if each.op is Ops.RANGE:
            values[each] = [at[each] for at in elements]
            continue
        if each.op is Ops.CONST:
            values[each] = [int(each.arg)] * len(elements)
            continue
        sources = [values[source] for source in each.src]
        meaning = each.op.value
        found = sources[0] if meaning is None else [meaning(ScalarMath, *given) for given in zip(*sources)]
        dtype = each.dtype
        values[each] = [int(bool(one)) if dtype.is_bool else wrap_int(int(one), dtype) for one in found]
    return values[node]


class TileFacts:
    def __init__(self, program: Program, loads_broadcast: bool = False) -> None:
        """`loads_broadcast` where a load fills all lanes of a vector at no cost."""
        self._loads_broadcast = loads_broadcast
        self._axes: dict[UOp, tuple[UOp, ...]] = {}
        self._vector: dict[UOp, UOp | None] = {}
        self._outer: dict[UOp, tuple[UOp, ...]] = {}
        self._needed: set[UOp] = set()
        self._around: dict[UOp, set[tuple[UOp, ...]]] = {}  # for each load the axes of each value computed from it
        self.priority = self._vector_priority(program)
        for node in program.body:
            self._axes[node] = self._axes_of(node)
            for source in node.src:
                if source.op is Ops.LOAD:
                    self._around.setdefault(source, set()).add(self._axes[node])
        self._stored = tuple({a: None for node in program.body if node.op is Ops.STORE for a in self._axes[node]})
        for node in program.body:
            self.vector_axis(node)
        self._mark_needed(program)
        self._updated = self._updates(program)

    # ------------------------------------------------------------ axes

    def _axes_of(self, node: UOp) -> tuple[UOp, ...]:
        if node.op is Ops.ACC:
            found = set(node.src[1:])
        elif node.op is Ops.COMBINE:
            found = set(self.axes(node.src[0])) - set(node.src[1:])
        elif node.op is Ops.TILE_DOT:
            found = {axis for number in node.src[2:4] for axis in self.axes(number)}
        else:
            of_sources = dict.fromkeys([axes for src in node.src if (axes := self.axes(src))])
            if len(of_sources) < 2:
                return next(iter(of_sources), ())
            found = set().union(*of_sources)
        return tuple(sorted(found, key=lambda axis: axis.arg.id))

    def axes(self, node: UOp) -> tuple[UOp, ...]:
        if node.op is Ops.RANGE:
            return (node,) if node.arg.kind.is_tile else ()
        return self._axes.get(node, ())

    def vector_axis(self, node: UOp) -> UOp | None:
        """The axis whose elements are lanes. For an access, the axis along which it has stride 1, so that whole vectors
        move; for arithmetic, the axis that most operands have; otherwise the one along which most accesses have stride
        1."""
        try:
            return self._vector[node]
        except KeyError:
            found = self._vector[node] = self._choose_vector_axis(node)
            return found

    def _choose_vector_axis(self, node: UOp) -> UOp | None:
        if node.op is Ops.COMBINE:
            source = self.vector_axis(node.src[0])
            return None if source in node.src[1:] else source
        candidates = [axis for axis in self.axes(node) if axis in self.priority]
        if node.op is Ops.LOAD and candidates and self._is_scattered(node):
            return None
        if node.op in _ACCESSES and candidates:
            walked = self._walked(node)
            if walked is not None:
                return walked
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        votes = [] if node.op in _ACCESSES else [self.vector_axis(src) for src in node.src]
        return max(candidates, key=lambda axis: (votes.count(axis), self.priority[axis]))

    def _is_scattered(self, load: UOp) -> bool:
        """Whether the elements of a load are loaded as scalars, to be broadcast into vectors along an axis that the
        load does not depend on, as a factor of a product is. That holds for a strided load, and for any load that every
        user broadcasts, where the target's loads broadcast at no cost."""
        steps, around = tile_part(load.src[0].src[1])[1], self._around.get(load, set())
        own = [axis for axis in self.axes(load) if axis in self.priority]
        if all(abs(steps.get(axis, 1)) > 1 for axis in own):
            return self._is_broadcast(own, {axis for axes in around for axis in axes})
        is_plain = len(load.src[0].src) == 2 and all(map(steps.get, own))  # neither masked nor gathered
        return is_plain and self._loads_broadcast and all(self._is_broadcast(own, axes) for axes in around)

    def _is_broadcast(self, own: Sequence[UOp], around: Iterable[UOp]) -> bool:
        """Whether a value with the axes `around` has its lanes along an axis that the operand does not depend on."""
        found = [axis for axis in around if axis in self.priority]
        return max(found, key=self.priority.__getitem__, default=own[0]) not in own

    def _walked(self, access: UOp) -> UOp | None:
        """The axis along which an access has stride 1, where it has enough elements for a vector. For a store it may be
        any tile axis: the tile is then transposed in registers."""
        steps = tile_part(access.src[0].src[1])[1]
        usable = (a for a in (*self.priority, *self._stored) if steps.get(a) == 1 and size_of(a) >= MIN_LANES)
        return next(usable, None)

    def lanes(self, node: UOp) -> int:
        axis = self.vector_axis(node)
        return 0 if axis is None else size_of(axis)

    def outer_axes(self, node: UOp) -> tuple[UOp, ...]:
        """The tile axes along which each element is a separate value."""
        found = self._outer.get(node)
        if found is None:
            vector = self.vector_axis(node)
            found = self._outer[node] = tuple(axis for axis in self.axes(node) if axis is not vector)
        return found

    def coordinates(self, node: UOp, at: dict[UOp, int]) -> Coordinates:
        return tuple([at[axis] for axis in self.outer_axes(node)])

    def all_coordinates(self, node: UOp) -> list[Coordinates]:
        return list(itertools.product(*(range(size_of(axis)) for axis in self.outer_axes(node))))

    def _vector_priority(self, program: Program) -> dict[UOp, tuple[int, int]]:
        """The UPCAST axes that some access walks with stride 1, or with a stride of the terms that are unrolled into
        each of their elements, each weighted by the number of such accesses in all iterations. An operand of a product
        is accessed in every iteration of the sum, so that it outweighs parameters that only scale the result. So is one
        that does not depend on the sum: it is loaded outside of its loop and used inside."""
        counts: dict[UOp, int] = {}
        used_in: dict[UOp, list[UOp]] = {}  # for each load, the loops around its innermost use
        for node, open_loops in _in_loops(program):
            for source in node.src:
                if source.op is Ops.LOAD and len(open_loops) >= len(used_in.get(source, ())):
                    used_in[source] = list(open_loops)
        for node, open_loops in _in_loops(program):
            if node.op in _ACCESSES:
                loops = used_in.get(node, open_loops)
                steps = tile_part(node.src[0].src[1])[1]
                terms = (size_of(a) for a, step in steps.items() if step == 1 and a.arg.kind is AxisType.UNROLL)
                strides = (1, next(terms, 1))
                elements = math.prod(size_of(axis) for axis in (*loops, *steps))
                for axis, step in steps.items():
                    if step in strides and axis.arg.kind is AxisType.UPCAST:
                        counts[axis] = counts.get(axis, 0) + elements
        return {axis: (count, size_of(axis)) for axis, count in counts.items()}

    # ------------------------------------------------------------ need and updates

    def _mark_needed(self, program: Program) -> None:
        """Marks the nodes that a store depends on. Of a position only the base is needed: offsets along a tile are
        constants in the text."""
        for node in reversed(program.body):
            if node.op in (Ops.STORE, Ops.ACCUMULATE, Ops.BARRIER, Ops.RANGE):
                self._needed.add(node)
            if node not in self._needed:
                continue
            if node.op is Ops.INDEX:
                base, _ = tile_part(node.src[1])
                self._needed.update(node.src[2:])
                if base is not None:
                    self._needed.add(base)
            elif node.op in (Ops.DOT, Ops.TILE_DOT):
                # The tensor core determines the rows and columns of a thread.
                self._needed.update(node.src[2:4] if node.op is Ops.DOT else ())
                if node.op is Ops.TILE_DOT and node.arg.left is None:
                    self._needed.add(node.src[0])
            else:
                self._needed.update(node.src)

    def is_needed(self, node: UOp) -> bool:
        return node in self._needed

    def _updates(self, program: Program) -> dict[UOp, list[UOp]]:
        """For each loop the accumulators that are updated inside it and declared outside."""
        updated: dict[UOp, list[UOp]] = {}
        declared: dict[UOp, int] = {}
        for node, open_loops in _in_loops(program):
            if node.op is Ops.ACC:
                declared[node] = len(open_loops)
            elif node.op is Ops.ACCUMULATE:
                for loop in open_loops[declared[node.src[0]] :]:
                    known = updated.setdefault(loop, [])
                    if node.src[0] not in known:
                        known.append(node.src[0])
        return updated

    def updated_in(self, loop: UOp) -> list[UOp]:
        return self._updated.get(loop, [])


def _in_loops(program: Program) -> Iterator[tuple[UOp, list[UOp]]]:
    """The nodes of a body, without those that open and close loops, and the loops that are open around each."""
    open_loops: list[UOp] = []
    for node in program.body:
        if node.op is Ops.RANGE and node.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
            open_loops.append(node)
        elif node.op is Ops.END:
            open_loops.pop()
        else:
            yield node, open_loops
