"""Rows of numbers as sums of parts. In: a tensor core that multiplies parts, and matrices of (batch, heads, time,
features) in memory. Out: a kernel that stores the parts of a row one after another, each padded with zeros to whole
lines, as `tiles.py` stages them.

    part 0 = x, rounded;  part 1 = x - part 0, rounded;  part 2 = x - part 0 - part 1, which is exact for three bfloat16

The sum of the parts of any number is that number: infinities and NaN are in the last part, and a finite number whose
rounding would be infinite is cut off to the largest one that a part has."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.records import record
from tilewright.base.target import TensorCore
from tilewright.graph.kernels.attention.attention import Steps
from tilewright.graph.kernels.nodes import GROUP_THREADS, end, load, store
from tilewright.graph.kernels.origin import Size, as_node, ceil_div, is_multiple
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp

# Numbers that a thread loads at a time.
LANES = 4


@record
class Split:
    """Facts of a call; `steps` are the strides of the numbers."""

    core: TensorCore
    shape: tuple[Size, ...]
    steps: Steps

    @property
    def features(self) -> int:
        assert isinstance(self.shape[3], int)
        return self.shape[3]

    @property
    def line(self) -> int:
        """Features of a line of a tile."""
        assert self.core.staged_line_bytes
        return self.core.staged_line_bytes // self.core.multiplied.itemsize

    @property
    def lines(self) -> int:
        """Lines of a part."""
        return -(-self.features // self.line)

    @property
    def width(self) -> int:
        """Features of a part, in whole lines."""
        return self.lines * self.line

    def result(self, shape: Shape) -> Shape:
        """The shape of the parts of a tensor."""
        return (*shape[:3], self.core.parts * self.width)


def split_kernel(call: Split, out: UOp, numbers: UOp) -> UOp:
    batch, heads, time, _ = call.shape
    features, count = call.features, time * batch * heads * (call.width // LANES)
    kinds = (
        (ceil_div(count, GROUP_THREADS), AxisType.GLOBAL),
        (GROUP_THREADS, AxisType.LOCAL),
        (LANES, AxisType.UPCAST),
    )
    group, thread, lane = (
        UOp(Ops.RANGE, dtypes.index, (as_node(size),), Axis((number,), kind))
        for number, (size, kind) in enumerate(kinds)
    )
    index = group * GROUP_THREADS + thread
    feature, row = index % (call.width // LANES) * LANES, index // (call.width // LANES)
    inside = () if is_multiple(count, GROUP_THREADS) else (index < count,)
    valid = (*inside, *((feature < features,) if features < call.width else ()))
    where = (row // time // heads, row // time % heads, row % time)
    position = sum((at * step for at, step in zip(where, call.steps)), feature + lane) + call.steps.start
    rest = load(numbers, position, *valid)
    limit = dtypes.finfo(call.core.multiplied).max
    stores = []
    for number in range(call.core.parts):
        is_last = number == call.core.parts - 1
        part = (rest if is_last else rest.maximum(-limit).minimum(limit)).cast(call.core.multiplied)
        rest = rest - part.cast(rest.dtype)
        place = row * (call.core.parts * call.width) + number * call.width + feature + lane
        stores.append(store(out, place, part, *inside))
    return UOp(Ops.SINK, dtypes.void, (end(*stores, loops=(lane, thread, group)),), KernelInfo("split_parts", ()))
