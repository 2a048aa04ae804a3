"""Results of products in the order in which a CPU computes them fast. In: a reduction. Out: the same reduction with
rows and columns exchanged, stored, and read through a view; None where that gains nothing.

    before: sum over k of a[k, i] * b[k, j], results by i, then j          a.T @ b with few columns j
    after:  sum over k of b[k, j] * a[k, i], results by j, then i

Columns are read in place as vectors, and rows are packed. Where both factors have stride 1 along an axis of the
results, either may be the columns: the longer one fills vectors, and the shorter one is packed. Factors that are
computed are left to the kernels that fuse them, such as those of attention."""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.schedule.preparation.contiguous import contiguous_axis
from tilewright.schedule.preparation.reduction import split_reduction


def order_results(node: UOp, target: Target | None) -> UOp | None:
    if target is None or target.has_local or not target.has_threads or node.op is not Ops.REDUCE_AXIS:
        return None
    (op, summed), product = node.arg, node.src[0]
    is_product = op is Ops.ADD and product.op is Ops.MUL and all(factor.op is Ops.EXPAND for factor in product.src)
    if not is_product or is_symbolic(product.shape):
        return None
    found = _rows_and_columns(node)
    if found is None:
        return None
    rows, columns = found
    # Storing and reading the results takes little time beside a sum that is longer than the rows and the columns.
    if (
        2 * node.shape[columns] > node.shape[rows]
        or max_count(tuple(product.shape[axis] for axis in summed)) < node.shape[rows]
    ):
        return None
    order = list(range(len(product.shape)))
    order[rows], order[columns] = columns, rows
    shape = tuple(product.shape[axis] for axis in order)
    factors = (build.expand(build.permute(factor.src[0], tuple(order)), shape) for factor in product.src)
    exchanged = build.reduce_axis(op, build.alu(Ops.MUL, *factors), tuple(sorted(order.index(axis) for axis in summed)))
    stored = build.contiguous(split_reduction(exchanged, target) or exchanged)
    return build.permute(build.reshape(stored, tuple(node.shape[axis] for axis in order)), tuple(order))


def _rows_and_columns(node: UOp) -> tuple[int, int] | None:
    """The axes of the results along which the left and the right factor have stride 1, the last one being the
    columns."""
    long = [axis for axis, size in enumerate(node.shape) if size > 1]
    views = [factor.src[0] for factor in node.src[0].src]
    lefts = [view for view in views if long and view.shape[long[-1]] == 1]
    if len(lefts) != 1:
        return None
    left, right = lefts[0], views[1 - views.index(lefts[0])]
    if not all(map(_is_memory, views)):
        return None
    rows, columns = contiguous_axis(left), long[-1]
    is_exchangeable = rows in long and right.shape[rows] == 1 and contiguous_axis(right) == columns
    return (rows, columns) if is_exchangeable else None


def _is_memory(view: UOp) -> bool:
    while view.op.kind is Kind.MOVEMENT:
        view = view.src[0]
    return view.op in (Ops.PARAM, Ops.CONTIGUOUS)
