"""Addresses. In: a kernel whose indices are index maths. Out: the same kernel with each index in the form
`base + tile`, the base free of tile axes, and every index an int32 or int64. The renderer computes a base once and adds
constants for the elements of a tile."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes, wrap_int
from tilewright.codegen.tiles import is_tile_expression, tile_part
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, toposort


def split_addresses(sink: UOp) -> UOp:
    """
    before: a[(i*4 + u)*8 + j]     u a tile axis
    after:  a[(i*32 + j) + u*8]
    """

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op in (Ops.CMPEQ, Ops.CMPNE):
            return split_comparison(node, src)
        if node.op is Ops.CMPLT and node.src[0].dtype is dtypes.index:
            return split_order(node, src)
        return node.with_src((src[0], split_position(src[1]), *src[2:])) if node.op is Ops.INDEX else None

    return map_graph(sink, visit)


def split_comparison(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
    """
    before: x == i*8 + u           u a tile axis, x free of them
    after:  x - i*8 == u           one subtraction for the tile, and vectors of constants

    Integers wrap, so both are equal for the same x.
    """
    for value, other in (src, src[::-1]):
        if other.op is not Ops.CAST or other.src[0].dtype is not dtypes.index or not value.dtype.is_int:
            continue
        base, steps = tile_part(split_position(other.src[0]))
        if base is not None and steps and not any(axis.arg.kind.is_tile for axis in (*value.ranges, *base.ranges)):
            tile = from_affine(Affine(dict(steps), 0))
            moved = UOp(Ops.SUB, value.dtype, (value, UOp(Ops.CAST, value.dtype, (base,))))
            return UOp(node.op, node.dtype, (moved, UOp(Ops.CAST, value.dtype, (tile,))))
    return None


def split_order(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
    """
    before: i + u < k + 11         u and k tile axes
    after:  (i + u) - k < 11       elements at one distance from i have one mask, as windows that overlap do
    """
    left, right = map(affine, src)
    terms = {atom: left.terms.get(atom, 0) - right.terms.get(atom, 0) for atom in (*left.terms, *right.terms)}
    tile = [atom for atom, step in terms.items() if step and atom.op is Ops.RANGE and atom.arg.kind.is_tile]
    made = from_affine(Affine({atom: step for atom, step in terms.items() if step and atom not in tile}, 0))
    if len(tile) < 2 or not made.ranges:
        return None
    for atom in sorted(tile, key=lambda axis: axis.arg.id):
        made = UOp(Ops.ADD, dtypes.index, (made, from_affine(Affine({atom: terms[atom]}, 0))))
    return node.with_src((made, UOp(Ops.CONST, dtypes.index, (), right.constant - left.constant)))


def split_position(position: UOp) -> UOp:
    """`base + tile` where the index has constant strides along tile axes; else unchanged. Other expressions of tile
    axes alone come last in the base: `(base + u//2) + u*8`."""
    form = affine(position)
    tile = {atom: step for atom, step in form.terms.items() if atom.op is Ops.RANGE and atom.arg.kind.is_tile}
    known = {atom: step for atom, step in form.terms.items() if atom not in tile and is_tile_expression(atom)}
    if not tile and not known:
        return position
    rest = {atom: step for atom, step in form.terms.items() if atom not in tile and atom not in known}
    made = from_affine(Affine(rest, form.constant))
    for part in (known, tile):
        made = UOp(Ops.ADD, dtypes.index, (made, from_affine(Affine(part, 0)))) if part else made
    return made


def index_dtype(sink: UOp) -> DType:
    """32 bits where every index and every intermediate result fits; else 64."""
    limits = (int(dtypes.int32.min), int(dtypes.int32.max))
    for node in toposort(sink):
        if node.dtype is dtypes.index:
            low, high = node.bounds
            if low < limits[0] or high > limits[1] or (node.op is Ops.RANGE and high >= limits[1]):
                return dtypes.int64
    return dtypes.int32


_COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})


def choose_index_width(sink: UOp) -> UOp:
    """Index maths in the chosen integer type. Where that has 64 bits, for the sake of a loaded index, comparisons of
    small numbers have 32 all the same: the masks of vectors take half the instructions."""
    width = index_dtype(sink)
    leaves: dict[UOp, UOp] = {}  # loops and variables, in the chosen type

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if width is dtypes.int64 and node.op in _COMPARISONS and all(map(_fits_32_bits, node.src)):
            return node.with_src(tuple(_in_32_bits(operand, leaves) for operand in node.src))
        dtype = width if node.dtype is dtypes.index else node.dtype
        if node.op is Ops.CAST and src[0].dtype is dtype and node.src[0].dtype is not node.dtype:
            return src[0]
        if dtype is node.dtype:
            return None
        # A masked index may be computed from numbers beyond 64 bits; where the mask is true, it wraps to the right
        # value.
        arg = wrap_int(node.arg, dtype) if node.op is Ops.CONST else node.arg
        made = UOp(node.op, dtype, src, arg)
        if _is_leaf(node):
            leaves[node] = made
        return made

    return map_graph(sink, visit)


def _is_leaf(node: UOp) -> bool:
    return node.op in (Ops.RANGE, Ops.VARIABLE)


def _fits_32_bits(root: UOp) -> bool:
    """Whether a number is index maths of loops, variables and constants, none of which needs more than 32 bits."""
    nodes = toposort(root, stop=_is_leaf)
    if any(node.dtype is not dtypes.index or node.op is Ops.CAST for node in nodes):
        return False
    return all(dtypes.int32.min <= node.bounds[0] and node.bounds[1] <= dtypes.int32.max for node in nodes)


def _in_32_bits(root: UOp, leaves: dict[UOp, UOp]) -> UOp:
    """The same number in 32 bits, from loops and variables of 64."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if _is_leaf(node):
            return UOp(Ops.CAST, dtypes.int32, (leaves[node],))
        return UOp(node.op, dtypes.int32, src, node.arg)

    return map_graph(root, visit, toposort(root, stop=_is_leaf))
