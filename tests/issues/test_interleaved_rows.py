"""The gradient of a depthwise convolution with a stride is interleaved from parts. In a kernel that takes sums of it,
and stores it, the threads of a group shared the loop over two parts, padded to 128: 21 ms of a step of EfficientNet on
a card by estimate, where memory allows 0.1."""

from __future__ import annotations

import math

from tilewright import Tensor
from tilewright.backends.cuda.device import cuda_target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.schedule.pipeline import schedule

CARD = cuda_target()
CHANNELS, IMAGES, ROWS, COLUMNS = 144, 64, 56, 28


def iterations(ast: UOp) -> int:
    """The most that an access of a kernel has."""
    view = view_kernel(ast, CARD)
    return max(math.prod(map(size_of, access.ranges)) for access in view.accesses)


def test_threads_share_a_loop_that_has_iterations_for_them() -> None:
    even, odd = (Tensor.empty(IMAGES, CHANNELS, ROWS, COLUMNS).contiguous() for _ in range(2))
    parts = Tensor.stack(even, odd, dim=4).contiguous().permute(0, 1, 2, 4, 3).contiguous()
    joined = parts.permute(0, 1, 2, 4, 3).reshape(IMAGES, CHANNELS, ROWS, 2 * COLUMNS)
    away = joined - joined.mean((0, 2, 3), keepdim=True)
    result = away / (away.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    bound = BoundGraph([result.uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    kernels = [item.ast for item in made.items if item.ast is not None and view_kernel(item.ast, CARD).reduces]
    assert kernels
    for ast in kernels:
        assert iterations(optimise(ast, CARD)) < 2 * iterations(ast)
