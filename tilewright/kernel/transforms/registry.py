"""Every kernel transform, one line each. In: an `OptOps`. Out: its record. A new transform is a name in `OptOps`, a
file in this folder that ends with its record, and a line here; whoever applies or proposes opts reads this."""

from __future__ import annotations

from tilewright.graph.records import OptOps
from tilewright.kernel.transforms import (
    align,
    block,
    clip,
    cut,
    distribute,
    group,
    local,
    memoise,
    nolocals,
    pad,
    scatter,
    spill,
    stage,
    swap,
    tensor_core,
    thread,
    unroll,
    upcast,
)
from tilewright.kernel.transforms.common import Transform

TRANSFORMS: dict[OptOps, Transform] = {
    transform.op: transform
    for transform in (
        upcast.UPCAST,
        unroll.UNROLL,
        thread.THREAD,
        local.LOCAL,
        group.GROUP,
        group.GROUPTOP,
        nolocals.NOLOCALS,
        pad.PADTO,
        swap.SWAP,
        block.BLOCK,
        stage.STAGE,
        memoise.MEMOISE,
        scatter.SCATTER,
        distribute.DISTRIBUTE,
        spill.SPILL,
        clip.CLIP,
        cut.CUT,
        align.ALIGN,
        tensor_core.TC,
    )
}
