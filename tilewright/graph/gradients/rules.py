"""The gradient rule of every op. In: a node and the gradient of a result with respect to it, of the node's shape.
Out: the gradient with respect to each source, of that source's shape; None where it is zero or not defined.
`tensor/core/gradient.py` walks the graph and applies the rules: those of scalar ops stand in their specs
(`derivatives.py`), those of movement and of tensors here.

Rules build ordinary nodes, so the gradient of a gradient needs nothing more. Where a value is selected, so is its
gradient (WHERE, never a product with a mask): what was not selected may be infinite and must not become NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.graph import build, marks
from tilewright.graph.gradients.gather import gather_gradient
from tilewright.graph.gradients.sums import sum_behind
from tilewright.graph.kernels.custom import custom_gradient
from tilewright.graph.ops import Ops, Pullback, Slopes
from tilewright.graph.slices import bounds_of, replace_axis, slice_axis
from tilewright.graph.spec import Op, Shape
from tilewright.graph.uop import UOp

Gradients = tuple[UOp | None, ...]
Rule = Callable[[UOp, UOp], Gradients]

# The longest row of which exclusive products are taken directly; longer ones are cut into such rows.
_PRODUCT_BLOCK = 32


def gradients_of(node: UOp, upstream: UOp) -> Gradients:
    """The rule of the node's op applied; an op without one is named."""
    if callable(node.op.gradient):
        found = node.op.gradient(MATHS, upstream, node, *node.src)
        return tuple(
            None if gradient is None or source.op is Ops.CONST else _fit(gradient, source)
            for gradient, source in zip(found, node.src, strict=True)
        )
    rule = RULES.get(node.op)
    if rule is None:
        reason = node.op.gradient or "it exists only inside kernels, which are not differentiated"
        remedy = "detach() the tensor before this operation, or compute it inside Tensor.no_grad()"
        raise UnsupportedError("gradient", f"{node.op.name} has no gradient: {reason}", remedy, location=node.line)
    return rule(node, upstream)


# ---------------------------------------------------------------- pieces


def _zero(x: UOp) -> UOp:
    return build.const(x.dtype, 0)


def _is_number(x: UOp, value: float | None = None) -> bool:
    scalar = build.scalar_of(x)
    return scalar is not None and scalar.op is Ops.CONST and (value is None or scalar.arg == value)


def _multiply(upstream: UOp, factor: UOp) -> UOp:
    """The product, of the upstream's shape. A sum's gradient is 1 everywhere: that factor is left out."""
    if _is_number(upstream, 1):
        return factor if factor.shape == upstream.shape else build.broadcast_scalar(factor, upstream.shape)
    return build.alu(Ops.MUL, upstream, factor)


def total(x: UOp, axes: Sequence[int]) -> UOp:
    """The sum over axes, which stay as axes of size 1; a short float is carried in float32."""
    count = math.prod(x.shape[axis] for axis in axes)
    scalar = build.scalar_of(x)
    if scalar is not None and scalar.op is Ops.CONST and isinstance(count, int):
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        return build.const(x.dtype, scalar.arg * count, kept)
    steps = sum_behind(x)
    if steps is not None:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        summed = build.reduce_axis(Ops.ADD, steps, (0, *(axis + 1 for axis in axes)))
        return build.cast(build.reshape(summed, shape), x.dtype)
    carrier = dtypes.float32 if x.dtype.is_float and x.dtype.bits < 32 else x.dtype
    return build.cast(build.reduce_axis(Ops.ADD, build.cast(x, carrier), axes), x.dtype)


def _fit(gradient: UOp, source: UOp) -> UOp:
    """A 0-d source stands for every element, so it gets the sum."""
    if gradient.shape == source.shape:
        return gradient
    assert source.shape == ()
    return build.reshape(total(gradient, range(len(gradient.shape))), ())


def _stop(node: UOp, _upstream: UOp) -> Gradients:
    return (None,) * len(node.src)


# ---------------------------------------------------------------- element by element


class Maths:
    """What the derivatives of scalar ops are written with: arithmetic on nodes of one shape, or 0-d beside it."""

    multiply = staticmethod(_multiply)
    where = staticmethod(build.where)
    takes_ties = staticmethod(marks.takes_ties)

    def negate(self, x: UOp) -> UOp:
        return build.alu(Ops.NEG, x)

    def add(self, x: UOp, y: UOp) -> UOp:
        return build.alu(Ops.ADD, x, y)

    def divide(self, x: UOp, y: UOp) -> UOp:
        return build.alu(Ops.FDIV, x, y)

    def less(self, x: UOp, y: UOp) -> UOp:
        return build.alu(Ops.CMPLT, x, y)

    def equal(self, x: UOp, y: UOp) -> UOp:
        return build.alu(Ops.CMPEQ, x, y)

    def number(self, like: UOp, value: float) -> UOp:
        """A constant of the node's dtype."""
        return build.const(like.dtype, value)

    def cosine(self, x: UOp) -> UOp:
        # Halving is exact, where adding pi/2 would lose the low bits of a large angle.
        half = (x * 0.5).alu(Ops.SIN)
        return 1 - 2 * (half * half)


MATHS = Maths()


def _cast(node: UOp, upstream: UOp) -> Gradients:
    source = node.src[0]
    if not (node.dtype.is_float and source.dtype.is_float):
        return (None,)
    return (build.cast(upstream, source.dtype),)


def _bitcast(node: UOp, _upstream: UOp) -> Gradients:
    source = node.src[0]
    if node.dtype.is_float and source.dtype.is_float:
        message = f"BITCAST from {source.dtype.name} to {node.dtype.name} has no gradient: it reinterprets bits"
        remedy = "use cast() to keep the values, or detach() the tensor before the bitcast"
        raise UnsupportedError("gradient", message, remedy, location=node.line)
    return (None,)


# ---------------------------------------------------------------- movement


def _reshape(node: UOp, upstream: UOp) -> Gradients:
    return (build.reshape(upstream, node.src[0].shape),)


def _expand(node: UOp, upstream: UOp) -> Gradients:
    repeated = [axis for axis, size in enumerate(node.src[0].shape) if size == 1 and node.shape[axis] != 1]
    return (total(upstream, repeated),)


def inverse_order(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda axis: order[axis]))


def _permute(node: UOp, upstream: UOp) -> Gradients:
    return (build.permute(upstream, inverse_order(node.arg)),)


def _pad(node: UOp, upstream: UOp) -> Gradients:
    sizes = node.src[0].shape
    return (_inner_part(upstream, tuple((before, before + size) for (before, _), size in zip(node.arg, sizes))),)


def _inner_part(x: UOp, pairs: build.Pairs) -> UOp:
    """The shrunk node. Of a sum, also one that is rounded to fewer bits, the sum of what is shrunk: where it is stored,
    nothing of a border is computed."""
    if x.op is Ops.CAST and _summed(x.src[0]).op is Ops.REDUCE_AXIS:
        return build.cast(_inner_part(x.src[0], pairs), x.dtype)
    total = _summed(x)
    kept = [axis for axis, size in enumerate(total.shape) if size != 1]
    is_alike = [total.shape[axis] for axis in kept] == [size for size in x.shape if size != 1]
    cuts_to_nothing = any(size == 1 and pair != (0, 1) for pair, size in zip(pairs, x.shape))
    if total.op is not Ops.REDUCE_AXIS or not is_alike or cuts_to_nothing:
        return build.shrink(x, pairs)
    cut = dict(zip(kept, (pair for pair, size in zip(pairs, x.shape) if size != 1)))
    shape = tuple(stop - start for start, stop in pairs)
    source = total.src[0]
    inner = _shrunk(source, tuple(cut.get(axis, (0, size)) for axis, size in enumerate(source.shape)))
    return build.reshape(build.reduce_axis(total.arg[0], inner, total.arg[1]), shape)


def _summed(x: UOp) -> UOp:
    return x.src[0] if x.op is Ops.RESHAPE else x


def _shrunk(x: UOp, pairs: build.Pairs) -> UOp:
    """The shrunk node. A product is one of shrunk factors, so that a sum of it stays a sum of a product."""
    if x.op is Ops.MUL or x.op is Ops.CAST:
        return x.replace(src=tuple(_shrunk(src, pairs) if src.shape else src for src in x.src))
    if x.op is not Ops.EXPAND:
        return build.shrink(x, pairs)
    given = x.src[0]
    own = tuple((0, 1) if size == 1 else pair for pair, size in zip(pairs, given.shape))
    return build.expand(build.shrink(given, own), tuple(stop - start for start, stop in pairs))


def _shrink(node: UOp, upstream: UOp) -> Gradients:
    sizes = node.src[0].shape
    return (build.pad(upstream, tuple((start, size - stop) for (start, stop), size in zip(node.arg, sizes))),)


def _flip(node: UOp, upstream: UOp) -> Gradients:
    return (build.flip(upstream, node.arg),)


_MOVEMENTS: dict[Op, Rule] = {
    Ops.RESHAPE: _reshape,
    Ops.EXPAND: _expand,
    Ops.PERMUTE: _permute,
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.FLIP: _flip,
}


# ---------------------------------------------------------------- reductions


def _reduce(node: UOp, upstream: UOp) -> Gradients:
    op, axes = node.arg
    source = node.src[0]
    spread = build.expand(upstream, source.shape)
    if op is Ops.ADD:
        return (spread,)
    if op is Ops.MUL:
        return (_multiply(spread, exclusive_products(source, axes)),)
    # The gradient goes to every element that is the extreme, in equal shares. A short float may not hold their number.
    # The extreme is taken from what it is compared with: the result may be in memory already, and a source that is not
    # is computed again, by a kernel that may round it differently.
    extreme = build.reduce_axis(op, marks.detach(source), axes)
    is_extreme = build.alu(Ops.CMPEQ, source, build.expand(extreme, source.shape))
    one = build.const(dtypes.float32 if source.dtype.bits < 32 else source.dtype, 1)
    count = total(build.where(is_extreme, one, _zero(one)), axes)
    share = build.cast(build.alu(Ops.FDIV, build.cast(upstream, count.dtype), count), upstream.dtype)
    return (build.where(is_extreme, build.expand(share, source.shape), _zero(upstream)),)


def exclusive_products(x: UOp, axes: Sequence[int]) -> UOp:
    """For each element the product over the axes of all others, exact where some of them are 0."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    order = (*kept, *axes)
    moved = build.permute(x, order)
    rows = build.reshape(moved, (*moved.shape[: len(kept)], math.prod(x.shape[axis] for axis in axes)))
    products = build.reshape(_exclusive_rows(rows), moved.shape)
    return build.permute(products, inverse_order(order))


def _exclusive_rows(rows: UOp) -> UOp:
    """A short row by leaving out each element in turn. A long one in blocks: the others of the block times the other
    blocks. So the work per element is `_PRODUCT_BLOCK` on each of a few levels."""
    outer, size = rows.shape[:-1], rows.shape[-1]
    one = build.const(rows.dtype, 1)
    last = len(outer)
    if size <= _PRODUCT_BLOCK:
        square: Shape = (*outer, size, size)
        repeated = build.expand(build.reshape(rows, (*outer, 1, size)), square)
        own = build.alu(Ops.CMPEQ, build.axis_iota(square, last), build.axis_iota(square, last + 1))
        others = build.where(own, one, repeated)
        return build.reshape(build.reduce_axis(Ops.MUL, others, (last + 1,)), rows.shape)
    count = -(-size // _PRODUCT_BLOCK)
    filled = count * _PRODUCT_BLOCK
    padded = build.pad(rows, (*((0, 0) for _ in outer), (0, filled - size)))
    if filled != size:
        inside = build.alu(Ops.CMPLT, build.axis_iota(padded.shape, last), build.const(dtypes.int32, size))
        padded = build.where(inside, padded, one)
    blocks = build.reshape(padded, (*outer, count, _PRODUCT_BLOCK))
    totals = build.reshape(build.reduce_axis(Ops.MUL, blocks, (last + 1,)), (*outer, count))
    other_blocks = build.expand(build.reshape(_exclusive_rows(totals), (*outer, count, 1)), blocks.shape)
    whole = build.reshape(build.alu(Ops.MUL, _exclusive_rows(blocks), other_blocks), padded.shape)
    return build.shrink(whole, (*((0, s) for s in outer), (0, size)))


# ---------------------------------------------------------------- tensors


def _pass(_node: UOp, upstream: UOp) -> Gradients:
    return (upstream,)


def _copy(node: UOp, upstream: UOp) -> Gradients:
    """Back to where the source is. One that is spread over several devices, this one among them, takes the gradient
    as it lies there: the other devices have nothing of it, along the axis that the copy is a slice of."""
    devices = build.device_of(node.src[0])
    if devices is None or build.is_everywhere(upstream):
        return (upstream,)
    if isinstance(devices, tuple) and node.arg in devices and upstream.shape:
        axis = _sliced_axis(node.src[0])
        nothing = build.const(upstream.dtype, 0, replace_axis(upstream.shape, axis, 0))
        return (build.multi([upstream if name == node.arg else nothing for name in devices], axis, devices),)
    return (build.copy(upstream, devices),)


def _sliced_axis(node: UOp) -> int:
    """The first axis that a node is a slice of; 0 where there is none."""
    cut = zip(node.arg, node.src[0].shape) if node.op is Ops.SHRINK else ()
    return next((axis for axis, ((start, stop), size) in enumerate(cut) if stop - start != size), 0)


def _multi(node: UOp, upstream: UOp) -> Gradients:
    """Each part takes its own slice. Parts that are the whole are all equal, so the first stands for them."""
    axis, devices = node.arg
    if axis is None:
        return (_on(devices[0], upstream), *(None,) * (len(node.src) - 1))
    bounds = bounds_of([src.shape[axis] for src in node.src])
    return tuple(_on(device, slice_axis(upstream, axis, *pair)) for device, pair in zip(devices, bounds))


def _cat(node: UOp, upstream: UOp) -> Gradients:
    """Each source takes its own slice."""
    bounds = bounds_of([src.shape[node.arg] for src in node.src])
    return tuple(slice_axis(upstream, node.arg, *pair) for pair in bounds)


def _on(device: str, gradient: UOp) -> UOp:
    return gradient if build.is_everywhere(gradient) else build.copy(gradient, device)


def _detach(node: UOp, upstream: UOp) -> Gradients:
    """DETACH stops the gradient unless its argument says what to do with it instead (docs/decisions/0008)."""
    if node.arg is None:
        return _stop(node, upstream)
    if isinstance(node.arg, Pullback):
        return (None, *node.arg.rule(upstream, *node.src[1:]))
    if isinstance(node.arg, Slopes):
        inputs = node.src[1:]
        slopes = zip(node.arg.rule(node, *inputs), inputs, strict=True)
        return (None, *(None if slope is None else _fit(_multiply(upstream, slope), x) for slope, x in slopes))
    short = marks.rounded_to(node)
    if short is not None:
        return (build.cast(build.cast(upstream, short), node.dtype),)
    rest = (None,) * (len(node.src) - 1)
    return (build.contiguous(upstream) if node.arg == "contiguous_backward" else upstream, *rest)


def _assign(node: UOp, upstream: UOp) -> Gradients:
    """The value gets what the view shows of the gradient, the old contents get the rest."""
    target, view, _ = node.src
    steps: list[UOp] = []
    while view is not target:
        steps.append(view)
        view = view.src[0]
    shown = upstream
    for step in reversed(steps):
        shown = build.movement(step.op, shown, step.arg)
    if not steps:
        return None, None, shown
    written = build.const(dtypes.bool, True, node.src[1].shape)
    for step in steps:
        found = _MOVEMENTS[step.op](step, written)[0]
        assert found is not None
        written = found
    return build.where(written, _zero(upstream), upstream), None, shown


RULES: dict[Op, Rule] = {
    **_MOVEMENTS,
    **dict.fromkeys((Ops.CONST, Ops.VARIABLE, Ops.SIZE, Ops.BUFFER, Ops.PARAM, Ops.IOTA), _stop),
    Ops.CAST: _cast,
    Ops.BITCAST: _bitcast,
    Ops.REDUCE_AXIS: _reduce,
    Ops.GATHER: gather_gradient,
    Ops.CAT: _cat,
    Ops.CONTIGUOUS: _pass,
    Ops.COPY: _copy,
    Ops.MULTI: _multi,
    Ops.DETACH: _detach,
    Ops.ASSIGN: _assign,
    Ops.CUSTOM_KERNEL: custom_gradient,
}
