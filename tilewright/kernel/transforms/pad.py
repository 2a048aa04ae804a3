"""PADTO: an axis is padded to a multiple, with its extra iterations masked off. In: a kernel, an axis, a multiple. Out:
the kernel over the longer axis. Masked loads and stores touch no memory, and a reduction combines its identity there,
so no function is evaluated on a value that does not exist.

    before: for i in 10: out[i] = f(a[i])
    after:  for i in 16: if i < 10: out[i] = f(a[i] if i < 10 else 0)"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import exchange_axis, size_of
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, make_range, padded_size, quotient_of
from tilewright.kernel.masks import mask_axis
from tilewright.kernel.transforms.common import Transform


def check_pad(view: KernelView, axis: UOp, multiple: int) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind not in (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL):
        return f"PADTO needs a loop, axis {position} is {axis.arg.kind.name}"
    if not is_uniform(axis):
        return f"PADTO needs a loop of known size, the size of axis {position} is computed"
    if not isinstance(multiple, int) or multiple < 1:
        return f"PADTO multiple {multiple} is not positive"
    if quotient_of(axis, multiple) is not None:
        return f"PADTO {multiple}: size {size_of(axis)} of axis {position} is a multiple already"
    return None


def apply_pad(view: KernelView, axis: UOp, multiple: int) -> UOp:
    longer = make_range(padded_size(axis, multiple), axis.arg.id, axis.arg.kind)
    return mask_axis(exchange_axis(view.sink, axis, longer), longer, longer < axis.src[0])


def pad_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.LOOP, AxisType.REDUCE):
        for multiple in (8, 16, 32):
            if is_counted(axis) and size_of(axis) % multiple and size_of(axis) > multiple:
                yield axis, multiple


PADTO = Transform(OptOps.PADTO, check_pad, apply_pad, pad_candidates, "what the size becomes a multiple of")
