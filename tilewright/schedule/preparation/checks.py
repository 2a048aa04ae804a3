"""Which index checks a schedule has. In: a graph with a CHECK at each index that the user gave. Out: the graph with the
checks that its devices perform, in a dtype that they have. This is the first pass of the stage: a dropped check costs
nothing in later ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.build import wrap_negative
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graphs, toposort
from tilewright.schedule.preparation.devices import find_devices

_NARROW = dtypes.int32


def keep_checks(
    outputs: Sequence[UOp], params: Sequence[UOp], device: str, target_of: Callable[[str], Target]
) -> Sequence[UOp]:
    order = toposort(*outputs)
    checks = [node for node in order if node.op is Ops.CHECK]
    if not checks:
        return outputs
    devices = find_devices(order, params, device)
    if all(kept_check(node, target_of(devices[node])) is node for node in checks):
        return outputs

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        return kept_check(node.with_src(src), target_of(devices[node])) if node.op is Ops.CHECK else None

    return map_graphs(outputs, visit)


def kept_check(check: UOp, target: Target) -> UOp:
    """A check as the device does it. Where its dtype is emulated, the index is clamped into 32 bits first: what is in
    range keeps its value, what is out of range stays out of range."""
    index, valid = check.src
    is_checked = target.checks_ranges or options.CHECK
    if is_checked and check.dtype in target.native:
        return check
    if check.arg.wraps:
        index = wrap_negative(index, check.arg.size)
    if not is_checked or check.arg.size > int(_NARROW.max):
        return index
    least = 0 if index.dtype.is_unsigned else int(_NARROW.min)
    narrow = index.maximum(least).minimum(int(_NARROW.max)).cast(_NARROW)
    return UOp(Ops.CHECK, _NARROW, (narrow, valid), check.arg._replace(wraps=False)).cast(index.dtype)
