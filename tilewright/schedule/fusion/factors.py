"""A factor of a product as it is read: what is stored of it, and at which index. In: an operand of a product. Out: a
`Factor`, which tells along which loops its memory goes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from tilewright.base.records import field, record
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.schedule.fusion.indexing import TRUE, Element, flatten_index, push_movement
from tilewright.schedule.fusion.uses import loops_over

# The fewest elements of a part of an axis that threads read as vectors.
SHORT_PART = 8
_INPUTS = frozenset({Ops.PARAM, Ops.BUFFER, Ops.ASSIGN})


@record
class Factor:
    """A factor of a contraction: the views and conversions from its base on, and the index of the element of the base
    that it reads."""

    chain: tuple[UOp, ...]  # the outermost first
    base: UOp
    indices: tuple[UOp, ...]
    valid: UOp
    position: Affine = field(init=False, compare=False)  # of an element in memory, if the base is stored as it is

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", affine(flatten_index(self.indices, self.base.shape)))

    @property
    def is_plain(self) -> bool:
        """Whether every element exists, and different iterations read different elements: those of windows do not."""
        reach = 0  # the extent of the terms with smaller steps
        for loop, step in sorted(self.position.terms.items(), key=lambda term: term[1]):
            if loop.op is not Ops.RANGE or step <= reach:
                return False
            reach += step * (size_of(loop) - 1)
        return self.valid is TRUE

    def is_one_loop(self, loops: Sequence[UOp], last: UOp) -> bool:
        """Whether the loops address memory like a single loop, as the copy engine requires, when rows along `last` are
        padded."""
        steps = sorted((step, size_of(loop)) for loop, step in self.position.terms.items() if loop in loops)
        if last in loops:
            return len(steps) == 1
        return all(step * size == further for (step, size), (further, _) in itertools.pairwise(steps))

    def axis_of(self, loop: UOp) -> int | None:
        """The axis of the base along which the loop has stride 1, alone or inside of larger strides."""
        return next((axis for axis, index in enumerate(self.indices) if _walks(index, loop)), None)

    def is_aligned(self, loops: Sequence[UOp], lanes: int, in_parts: bool = True) -> bool:
        """Whether adjacent elements in memory are adjacent along `loops`, in whole vectors; with `in_parts`, also where
        that is so in each of the equal parts of a loop, such as the channels of a head."""
        form, length = self.position, 1
        for atom, step in sorted(form.terms.items(), key=lambda term: abs(term[1])):
            if atom in loops and step == length and (atom.src[0].is_const or length % lanes == 0):
                length *= size_of(atom)
            elif in_parts and step == length == 1 and _is_inner_part(atom, loops):
                length = int(atom.src[1].arg)
            elif step % lanes:
                return False
        return length > 1 and length % lanes == 0 and form.constant % lanes == 0


def _is_inner_part(atom: UOp, loops: Sequence[UOp]) -> bool:
    """Whether it is the position in one of the equal parts of one of the loops."""
    return atom.op is Ops.MOD and atom.src[0] in loops and atom.src[1].op is Ops.CONST


def _walks(index: UOp, loop: UOp) -> bool:
    form = affine(index)
    if form.terms.get(loop) != 1 or form.constant != 0:
        return False
    others = [step for other, step in form.terms.items() if other is not loop]
    return not others or (loop.src[0].is_const and not any(step % size_of(loop) for step in others))


def factor_of(operand: UOp, element: Element) -> Factor:
    chain: list[UOp] = []
    elements, node = [element], operand  # of what each view is one of
    while _is_view(node) or (node.op is Ops.CAST and node.dtype.itemsize > node.src[0].dtype.itemsize):
        chain.append(node)
        elements.append(push_movement(node, elements[-1]) if node.op.kind is Kind.MOVEMENT else elements[-1])
        node = node.src[0]
    has_short_parts = _has_short_parts(elements[-1])
    for place in reversed(range(len(chain))):
        view = chain[place]
        if view.op is Ops.RESHAPE and (_crosses_axes(view) or (has_short_parts and _makes_short_parts(view))):
            return Factor(tuple(chain[:place]), view, elements[place].indices, elements[place].valid)
    return Factor(tuple(chain), node, elements[-1].indices, elements[-1].valid)


def _makes_short_parts(view: UOp) -> bool:
    """Whether an axis of a RESHAPE is made of axes of which the last is too short for a vector, such as pixels that
    were channels: it is stored in place of what it views, which has no axis of vectors."""
    element, source = Element(loops_over(view.shape), TRUE), view
    while _is_view(source):
        element, source = push_movement(source, element), source.src[0]
    return _has_short_parts(element)


def _has_short_parts(element: Element) -> bool:
    parts = (atom for index in element.indices for atom in affine(index).terms if atom.op is Ops.MOD)
    return any(
        atom.src[0].op is not Ops.IDIV and atom.src[1].is_const and atom.src[1].arg < SHORT_PART for atom in parts
    )


def _crosses_axes(view: UOp) -> bool:
    """Whether a RESHAPE has an axis made of parts of several axes of a computed source, such as channels after groups
    of them were flattened with their pixels: it is stored in place of the source, which has no such axis."""
    if not view.src[0].op.is_elementwise:
        return False
    ends, ends_before = (set(itertools.accumulate(reversed(each.shape), operator.mul)) for each in (view, view.src[0]))
    return not (ends <= ends_before or ends_before <= ends)


def _is_view(node: UOp) -> bool:
    """An input in memory has one axis, and gets its shape from a RESHAPE: the two count as one node."""
    return node.op.kind is Kind.MOVEMENT and not is_input(node)


def is_input(node: UOp) -> bool:
    return node.op in _INPUTS or (node.op is Ops.RESHAPE and node.src[0].op in _INPUTS)
