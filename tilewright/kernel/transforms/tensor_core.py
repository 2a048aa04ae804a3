"""TC: a matrix product runs on the target's tensor cores. In: a kernel that sums products of two buffers, and the name
of a core. Out: the kernel with the sum as one DOT, its rows and columns distributed over the work-group in the core's
layout.

    before: for i in 512: for j in 768: out[i, j] = f(sum over k of a[i, k] * b[k, j])
    after:  grid i0 of 4, j0 of 3: threads and tiles: i = i0*128 + ..., j = j0*256 + ..., out[i, j] = f(DOT(a, b, i, j))

The epilogue f is computed on the accumulator elements that each thread holds."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.records import record
from tilewright.base.target import CoreAxis, Target, TensorCore
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import AxisType, DotArg, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import exchange_axis, size_of, substitute
from tilewright.kernel.analysis.contraction import Contraction, match_contraction
from tilewright.kernel.axes import (
    KernelView,
    ceil_div,
    is_counted,
    is_uniform,
    make_range,
    multiple_of,
    quotient_of,
)
from tilewright.kernel.masks import mask_axis
from tilewright.kernel.transforms.common import Transform
from tilewright.kernel.transforms.tile_dot import apply_tiles, index_in_tile, laid_out, plan_tiles

# The copy engine moves at least 16 bytes, at addresses that are multiples of 16 bytes.
ALIGNMENT = 16
# Loops around the product that an operand may depend on: a copy has five dimensions, two are the operand's own.
MAX_BATCH_AXES = 3


@record
class Operand:
    """A factor of the product: its LOAD, and its index as an affine form."""

    load: UOp
    axis: UOp  # of the rows, or of the columns
    steps: tuple[int, int]  # strides along that axis and along the summed one
    start: Affine  # the rest of the index, of loops around the product
    size: int  # iterations of the axis that read an element: past them there are zeros; the most, of a symbolic size


@record
class Product:
    reduce: UOp
    length: UOp
    left: Operand
    right: Operand


def check_tensor_core(view: KernelView, axis: UOp, name: str) -> str | None:
    core = find_core(view.target, name)
    if core is None:
        known = ", ".join(each.name for each in view.target.tensor_cores) or "none"
        return f"TC: {view.target.name} has no tensor core {name!r}, it has: {known}"
    reason = check_bulk(view, axis, core)
    if reason is None or core.staged_line_bytes is None:
        return reason
    found = match_contraction(view, core.operand, core.accumulator)
    return f"TC {name}: {found}" if isinstance(found, str) else None


def check_bulk(view: KernelView, axis: UOp, core: TensorCore) -> str | None:
    """Why the copy engine cannot fetch the operands as they lie in memory; None where it can."""
    if not core.is_bulk:
        return f"TC {core.name} multiplies tiles in local memory alone"
    found = find_product(view, axis)
    return f"TC {core.name}: {found}" if isinstance(found, str) else _check_core(view, found, core)


def find_core(target: Target, name: str) -> TensorCore | None:
    return next((core for core in target.tensor_cores if core.name == name), None)


def apply_tensor_core(view: KernelView, axis: UOp, name: str) -> UOp:
    core = find_core(view.target, name)
    assert core is not None
    if check_bulk(view, axis, core) is not None:
        contraction = match_contraction(view, core.operand, core.accumulator)
        assert isinstance(contraction, Contraction)
        return apply_tiles(view, plan_tiles(contraction, core))
    found = find_product(view, axis)
    assert isinstance(found, Product)
    row, column = found.left.axis, found.right.axis
    argument = DotArg(
        core.name, found.left.size, found.right.size, size_of(found.length), found.left.steps, found.right.steps
    )
    memories = (found.left.load.src[0].src[0], found.right.load.src[0].src[0])
    starts = (from_affine(found.left.start), from_affine(found.right.start))
    limits = tuple([index_const(s.size) if is_counted(s.axis) else s.axis.src[0] for s in (found.left, found.right)])
    limits = () if is_counted(row) and is_counted(column) else limits
    dot = UOp(Ops.DOT, found.reduce.dtype, (*memories, *starts, row, column, *limits), argument)
    sink = substitute(view.sink, {found.reduce: dot})
    last = max(loop.arg.id for loop in view.axes)
    core = laid_out(view, core, (column,))
    sink = _lay_out(sink, row, core.row_axes, core.rows, core, last)
    return _lay_out(sink, column, core.column_axes, core.columns, core, last)


def find_product(view: KernelView, axis: UOp) -> Product | str:
    """The product that is summed over the axis, or the reason why there is none."""
    if len(view.reduces) != 1:
        return f"it needs one reduction, the kernel has {len(view.reduces)}"
    (reduce,) = view.reduces
    if reduce.arg is not Ops.ADD or reduce.src[1:] != (axis,):
        return f"it needs a sum over axis {view.axes.index(axis)} alone"
    if any(found.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL) for found in view.axes):
        return "it comes before every other opt"
    if not is_counted(axis) or not all(is_uniform(loop) for loop in view.axes):
        return "the length of the sum must be a constant, and no loop may depend on another"
    if reduce.src[0].op is not Ops.MUL:
        return f"what is summed is {reduce.src[0].op.name}, not a product"
    loads = [factor.src[0] if factor.op is Ops.CAST else factor for factor in reduce.src[0].src]
    if any(load.op is not Ops.LOAD or len(load.src) > 1 for load in loads):
        return "the factors must be plain loads"
    if any(load.src[0].src[0].op is not Ops.PARAM for load in loads):
        return "the factors must be in buffers"
    return _match_operands(view, reduce, axis, loads[0], loads[1])


def _match_operands(view: KernelView, reduce: UOp, axis: UOp, first: UOp, second: UOp) -> Product | str:
    """The left factor is the one without the axis that has stride 1 in the store."""
    own = [
        [loop for loop in load.ranges if loop not in other.ranges] for load, other in ((first, second), (second, first))
    ]
    if any(len(loops) != 1 for loops in own):
        return f"the factors must have one loop each that the other lacks, they have {len(own[0])} and {len(own[1])}"
    (row,), (column,) = own
    if not view.stores or any(row not in store.ranges or column not in store.ranges for store in view.stores):
        return "everything stored must depend on both rows and columns"
    if affine(view.stores[0].src[1]).terms.get(row, 0) == 1:
        first, second, row, column = second, first, column, row
    operands = [_match_operand(load, own_axis, axis) for load, own_axis in ((first, row), (second, column))]
    left, right = operands
    if left is None or right is None:
        return "the factors must have constant strides, and no mask but that of their last rows"
    return Product(reduce, axis, left, right)


def _match_operand(load: UOp, own: UOp, summed: UOp) -> Operand | None:
    form = affine(load.src[0].src[1])
    if any(atom.op is not Ops.RANGE for atom in form.terms):
        return None
    steps = (form.terms.get(own, 0), form.terms.get(summed, 0))
    rest = {atom: step for atom, step in form.terms.items() if atom is not own and atom is not summed}
    size = _size_of_rows(load, own)
    return None if size is None else Operand(load, own, steps, Affine(rest, form.constant), size)


def _size_of_rows(load: UOp, own: UOp) -> int | None:
    """The number of iterations of its own axis in which a load reads memory; None where its mask is not `own < n`."""
    if len(load.src[0].src) == 2:
        return size_of(own)
    mask = load.src[0].src[2]
    return int(mask.src[1].arg) if mask.op is Ops.CMPLT and mask.src[0] is own and mask.src[1].is_const else None


def _check_core(view: KernelView, product: Product, core: TensorCore) -> str | None:
    if product.reduce.dtype is not core.accumulator:
        return f"TC {core.name} sums in {core.accumulator.name}, the kernel in {product.reduce.dtype.name}"
    for operand, name in ((product.left, "left"), (product.right, "right")):
        if operand.load.dtype is not core.operand:
            return f"TC {core.name} multiplies {core.operand.name}, the {name} factor is {operand.load.dtype.name}"
        reason = _check_steps(operand, core)
        if reason is not None:
            return f"TC {core.name}: the {name} factor {reason}"
    written = {store.src[0] for store in view.stores}
    if {product.left.load.src[0].src[0], product.right.load.src[0].src[0]} & written:
        return f"TC {core.name}: a factor is written by the same kernel"
    return None


def _check_steps(operand: Operand, core: TensorCore) -> str | None:
    own, summed = operand.steps
    if summed != 1 and not (core.transposes and own == 1):
        return f"has stride {summed} along the sum and {own} across it; one of them must be 1"
    others = [own if summed == 1 else summed, *operand.start.terms.values(), operand.start.constant]
    if any(step * core.operand.itemsize % ALIGNMENT for step in others) or others[0] <= 0:
        return f"must be at multiples of {ALIGNMENT} bytes, its strides are {others} of {core.operand.itemsize} bytes"
    if len(operand.start.terms) > MAX_BATCH_AXES or any(step < 0 for step in operand.start.terms.values()):
        return f"depends on more than {MAX_BATCH_AXES} other loops, or on one with a negative stride"
    return None


def _lay_out(
    sink: UOp, axis: UOp, parts: tuple[CoreAxis, ...], size: int, core: TensorCore, last: tuple[int, ...]
) -> UOp:
    """The axis as a tile number of the grid and an index inside the tile; iterations past its end are masked
    off."""
    tiles = make_range(ceil_div(axis.src[0], size), (*axis.arg.id, 0), AxisType.GLOBAL)
    position = index_in_tile(tiles * size, axis.arg.id, parts, core, last)
    if quotient_of(axis, size) is not None:
        return exchange_axis(sink, axis, position)
    # Masked while it is still one axis: every access that depends on it is then known.
    longer = make_range(multiple_of(tiles.src[0], size), axis.arg.id, axis.arg.kind)
    padded = mask_axis(exchange_axis(sink, axis, longer), longer, longer < axis.src[0])
    return exchange_axis(padded, longer, position)


def tensor_core_candidates(view: KernelView) -> Iterator[tuple[UOp, str]]:
    """Every core that takes the kernel's product, preferred ones first."""
    for axis in view.reduces[-1].src[1:2] if view.reduces else ():
        for core in view.target.tensor_cores:
            if check_tensor_core(view, axis, core.name) is None:
                yield axis, core.name


TC = Transform(
    OptOps.TC,
    check_tensor_core,
    apply_tensor_core,
    tensor_core_candidates,
    "the name of a tensor core of the target",
    needs_groups=True,
)
