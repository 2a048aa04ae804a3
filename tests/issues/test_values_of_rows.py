"""A kernel that stored a value for each row beside the row had a thread for each row alone: the gates of EfficientNet's
channels and their gradients took 8 ms of a step on a card by estimate, where memory allows 0.5."""

from __future__ import annotations

import numpy as np

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import stride, view_kernel
from tilewright.schedule.pipeline import schedule

CARD = cuda_target()
SHAPE = (64, 144, 28, 28)


def excited(x: Tensor, narrow: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
    """Images times a gate for each of their channels, and a product with the gates, as their gradient has."""
    gate = (narrow @ wide).sigmoid()
    return x * gate.reshape(*gate.shape, 1, 1).cast(x.dtype), gate @ wide.transpose()


def kernels_of(*values: Tensor) -> list[UOp]:
    bound = BoundGraph([value.uop for value in values])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    return [item.ast for item in made.items if item.ast is not None]


def test_what_is_stored_for_a_row_leaves_the_row_to_threads() -> None:
    x = Tensor.empty(*SHAPE, dtype=dtypes.bfloat16)
    narrow, wide = Tensor.empty(64, 36, dtype=dtypes.float32), Tensor.empty(36, 144, dtype=dtypes.float32)
    kernels = kernels_of(*excited(x, narrow, wide))
    assert len(kernels) > 1
    for ast in kernels:
        view = view_kernel(ast, CARD)
        if view.reduce_axes:
            continue
        for loop in view.axes:
            sizes = {bool(stride(store, loop)) for store in view.stores}
            assert sizes == {True} or size_of(loop) == 1, "one store goes along a loop that another does not have"


def test_values_stay() -> None:
    generator = np.random.default_rng(5)
    x, narrow, wide = (generator.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8, 9), (2, 4), (4, 3)))
    gate = 1 / (1 + np.exp(-(narrow @ wide)))
    found = excited(Tensor(x), Tensor(narrow), Tensor(wide))
    np.testing.assert_allclose(found[0].numpy(), x * gate[..., None, None], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), gate @ wide.T, rtol=2e-5, atol=1e-5)
