"""Fuses the addition of sums by index to existing values. In: a node that adds the sums which a kernel of `segments.py`
stores. Out: that kernel with the addition in its store, or that adds its terms to a copy of the values, so that the
sums are not written and read again."""

from __future__ import annotations

from tilewright.graph import build
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.kernels.nodes import load, param
from tilewright.graph.kernels.sums_by_index.atomics import FLOAT_SUMS
from tilewright.graph.kernels.sums_by_index.bucket_sums import BUCKET_SUMS
from tilewright.graph.kernels.sums_by_index.local_sums import LOCAL_SUMS
from tilewright.graph.ops import Ops
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp

_KERNELS = (LOCAL_SUMS, BUCKET_SUMS)


def added_to_own(node: UOp) -> UOp | None:
    """
    before: where(sums == 0, own, own + sums)        sums: the result of a kernel
    after:  the result of a kernel that includes `own`
    """
    if node.op is not Ops.WHERE or node.src[2].op is not Ops.ADD or node.src[0].op is not Ops.CMPEQ:
        return None
    match, own, added = node.src
    others = [source for source in added.src if source is not own]
    if len(others) != 1 or match.src[0] is not others[0] or own.shape != node.shape:
        return None
    zero, kernel = build.scalar_of(match.src[1]), _without_moves(others[0])
    if zero is None or not zero.is_const or zero.arg != 0 or kernel.op is not Ops.CUSTOM_KERNEL:
        return None
    made = _begun_with(kernel, own) if kernel.arg.name == FLOAT_SUMS else _with_own_stored(kernel, own)
    return None if made is None else build.reshape(made, node.shape)


def _begun_with(kernel: UOp, own: UOp) -> UOp:
    """
    before: sums begin with zeros
    after:  sums begin with a copy of `own`
    """
    # A CAST is computed, also where it changes nothing: the kernel does not update the memory of `own` itself.
    begun = UOp(Ops.CAST, own.dtype, (build.reshape(own, kernel.shape),))
    return kernel.replace(src=(begun, *kernel.src[1:]))


def _with_own_stored(kernel: UOp, own: UOp) -> UOp | None:
    """
    before: a kernel stores sums
    after:  the kernel also loads the elements of `own`, and stores the WHERE

    `own` must be in memory: otherwise another kernel would have to store it first, while the kernel of the WHERE
    computes it in place.
    """
    call: CustomKernel = kernel.arg
    (effect, *more) = call.ast.src
    if call.name not in _KERNELS or more or effect.op is not Ops.STORE or not build.is_stored(own):
        return None
    place, total = effect.src
    position, size = len(call.shapes), element_count(own.shape)
    kept = load(param(position, own.dtype, size), *place.src[1:])
    whole = total.eq(0).where(kept, kept + total)
    ast = call.ast.replace(src=(effect.replace(src=(place, whole)),))
    call = call._replace(
        ast=ast,
        shapes=(*call.shapes, own.shape),
        dtypes=(*call.dtypes, own.dtype),
        sources=(*call.sources, len(kernel.src)),
    )
    return UOp(Ops.CUSTOM_KERNEL, kernel.dtype, (*kernel.src, own), call)


def _without_moves(node: UOp) -> UOp:
    while node.op in (Ops.RESHAPE, Ops.CONTIGUOUS):
        node = node.src[0]
    return node
