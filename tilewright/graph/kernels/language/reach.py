"""Accesses of a custom kernel that leave their memory. In: a kernel in the compiler's form. Out: nothing, or an error
at the line of the access. Only what is certain is refused: an index that is affine in loops of known sizes takes both
of its bounds, and an access without a mask is made in every iteration, whatever becomes of the value. Indices that are
computed in other ways are left to the emulator, which checks them as they run."""

from __future__ import annotations

from tilewright.base.errors import OutOfBoundsError
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort


def check_reach(sink: UOp) -> None:
    """Raises an error where an access without a mask leaves its memory."""
    for node in toposort(sink):
        if node.op is Ops.INDEX and len(node.src) == 2:
            _check_access(node, memory_of(node).arg.size)


def _check_access(access: UOp, size: object) -> None:
    form = affine(access.src[1])
    is_known = all(atom.op is Ops.RANGE and atom.src[0].is_const for atom in form.terms)
    if not is_known or not isinstance(size, int):
        return
    low, high = form.bounds
    if low < 0 or high >= size:
        message = f"index {low if low < 0 else high} is outside of a memory of {size} elements"
        remedy = "shorten a loop, or mask the access: `x[i].load(mask=...)`, `out[i].store(value, mask=...)`"
        raise OutOfBoundsError("kernel", message, remedy, location=access.line)
