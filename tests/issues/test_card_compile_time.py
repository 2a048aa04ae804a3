"""What the card's compiler takes long for. A gradient of ELU had three divisions behind each of 128 accumulators of a
thread: its kernel compiled in 91 s, and a step of graph attention had a first call of 27 s."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.device import cuda_target
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.fuse import MAX_DIVISIONS
from tilewright.schedule.pipeline import schedule

CARD = cuda_target()


def kernels_on_a_card(tensor: Tensor) -> list[UOp]:
    bound = BoundGraph([tensor.uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda _: CARD)
    return [item.ast for item in made.items if item.ast is not None]


def divisions(ast: UOp) -> int:
    return sum(node.op is Ops.FDIV for node in toposort(ast))


def is_product(ast: UOp) -> bool:
    return any(node.op is Ops.REDUCE for node in toposort(ast))


@pytest.mark.parametrize("name", ["mish", "tanh", "elu", "gelu", "silu", "softsign", "celu"])
def test_few_divisions_are_behind_a_product(name: str) -> None:
    x, w, v = (Tensor.empty(*shape, dtype=dtypes.bfloat16) for shape in ((512, 256), (256, 512), (512, 256)))
    hidden = x @ w
    y = getattr(hidden, name)() @ v
    for value in (y, *y.gradient(x, w, gradient=Tensor.empty(*y.shape, dtype=dtypes.bfloat16))):
        for ast in kernels_on_a_card(value):
            assert not is_product(ast) or divisions(ast) <= MAX_DIVISIONS


def test_one_division_stays_behind_its_product() -> None:
    x, w = (Tensor.empty(*shape, dtype=dtypes.bfloat16) for shape in ((512, 256), (256, 512)))
    assert len(kernels_on_a_card((x @ w).silu())) == 1


@pytest.mark.parametrize("name", ["expm1", "elu"])
def test_the_slope_of_expm1_divides_nothing(name: str) -> None:
    x = Tensor.empty(64)
    (ast,) = kernels_on_a_card(getattr(x, name)().gradient(x, gradient=Tensor.empty(64))[0])
    assert not divisions(ast)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_slope_of_expm1_and_of_elu(kind: str) -> None:
    given = np.array([-math.inf, -800, -50, -20, -3, -1e-3, -1e-30, -0.0, 0.0, 1e-30, 0.5, 1, 1.5, 30, 88], kind)
    x = Tensor(given)
    tolerance = 1e-6 if kind == "float32" else 1e-14
    np.testing.assert_allclose(x.expm1().gradient(x, gradient=x * 0 + 1)[0].numpy()[1:], np.exp(given)[1:], tolerance)
    ones = Tensor(np.ones_like(given))
    slope = x.elu(2.0).gradient(x, gradient=ones)[0].numpy()
    np.testing.assert_allclose(slope, np.where(given > 0, 1, 2 * np.exp(np.minimum(given, 0))), tolerance)
    twice = x.expm1().gradient(x, gradient=ones)[0].gradient(x, gradient=ones)[0].numpy()
    np.testing.assert_allclose(twice, np.exp(given), tolerance)
