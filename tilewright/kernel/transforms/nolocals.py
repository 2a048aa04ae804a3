"""NOLOCALS: the kernel gets no work-groups. In: a kernel without LOCAL and GROUP axes. Out: the same kernel, for which
LOCAL and GROUP are refused from now on; every thread is its own work-group.

    before: for i in 128: out[i] = ...      LOCAL is allowed
    after:  for i in 128: out[i] = ...      LOCAL is refused"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.records import replace
from tilewright.graph.ops import AxisType
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView
from tilewright.kernel.transforms.common import Transform

_MARK = Opt(OptOps.NOLOCALS)


def check_allows_locals(view: KernelView, name: str) -> str | None:
    info = view.sink.arg
    if isinstance(info, KernelInfo) and _MARK in info.applied:
        return f"{name} is refused: NOLOCALS was given before"
    return None


def check_nolocals(view: KernelView, _kernel: UOp, argument: object) -> str | None:
    if argument is not None:
        return f"NOLOCALS takes no argument, {argument!r} was given"
    for position, axis in enumerate(view.axes):
        if axis.arg.kind in (AxisType.LOCAL, AxisType.GROUP):
            return f"NOLOCALS comes too late: axis {position} is {axis.arg.kind.name} of size {size_of(axis)}"
    return check_allows_locals(view, "NOLOCALS")


def apply_nolocals(view: KernelView, _kernel: UOp, _argument: object) -> UOp:
    info = view.sink.arg if isinstance(view.sink.arg, KernelInfo) else KernelInfo()
    return view.sink.replace(arg=replace(info, applied=(*info.applied, _MARK)))


def nolocals_candidates(_view: KernelView) -> Iterator[tuple[UOp, None]]:
    """None: it leaves the kernel as it is, so search gains nothing."""
    yield from ()


NOLOCALS = Transform(
    OptOps.NOLOCALS, check_nolocals, apply_nolocals, nolocals_candidates, "no argument", takes_axis=False
)
