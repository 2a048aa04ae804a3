"""What is computed from the sums of a tile: in a loop over its rows where it is long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.machines import target_of
from tilewright import Context, Tensor
from tilewright.backends.python.device import python_target
from tilewright.codegen import pipeline
from tilewright.codegen.loops.epilogues import loop_epilogues
from tilewright.codegen.pipeline import lower
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise

TARGET = target_of("neoverse-n1", cores=1)

Epilogue = Callable[[Tensor], Tensor]


def optimised(epilogue: Epilogue, depth: int = 64) -> UOp:
    value = epilogue(Tensor.empty(96, depth) @ Tensor.empty(depth, 128))
    (ast,) = [item.ast for item in schedule([value.uop], "CPU").items if item.ast is not None]
    return optimise(ast, TARGET)


def loops(body: tuple[UOp, ...]) -> int:
    return sum(node.op is Ops.RANGE and not node.arg.kind.is_tile for node in body)


@pytest.mark.parametrize(
    ("epilogue", "is_looped"),
    [
        (Tensor.gelu, True),
        (lambda x: x.gelu().tanh(), True),
        (Tensor.relu, False),
        (lambda x: x * 2 + 1, False),
    ],
)
def test_a_long_epilogue_is_a_loop(epilogue: Epilogue, is_looped: bool) -> None:
    sink, plain = optimised(epilogue), optimised(lambda x: x)
    assert loops(lower(sink, TARGET).body) - loops(lower(plain, TARGET).body) == int(is_looped)


@pytest.mark.parametrize(("depth", "is_looped"), [(64, 0), (2048, 1)])
def test_behind_many_terms_a_shorter_epilogue_is_a_loop(depth: int, is_looped: int) -> None:
    """As in the gradient of an LSTM. Its loads count: it has as many instructions as the loop itself."""
    factors = [Tensor.empty(96, 128) for _ in range(4)]

    def epilogue(x: Tensor) -> Tensor:
        for factor in factors:
            x = (x + factor) * factor
        return x

    sink, plain = optimised(epilogue, depth), optimised(lambda x: x, depth)
    assert loops(lower(sink, TARGET).body) - loops(lower(plain, TARGET).body) == is_looped


def test_threads_of_a_work_group_keep_their_sums_in_registers() -> None:
    sink = optimised(Tensor.gelu)
    assert loop_epilogues(sink, python_target()) is sink


def results(rows: int, depth: int, columns: int, epilogue: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
    generator = np.random.default_rng(rows * columns + depth)
    left, right, bias = (
        Tensor(generator.standard_normal(shape).astype(np.float32), device="CPU").realize()
        for shape in ((rows, depth), (depth, columns), (columns,))
    )
    return epilogue(left @ right, bias).numpy()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(96, 64, 128), (7, 5, 33), (50, 17, 100), (5, 1700, 48)])
@pytest.mark.parametrize(
    "epilogue",
    [
        lambda x, bias: (x + bias).gelu(),
        lambda x, bias: (x + bias).gelu().T.contiguous(),
        lambda x, bias: (x * bias).sin() + x.tanh(),
        lambda x, bias: Tensor.stack([(x + bias).gelu(), x]),
        lambda x, bias: ((((x + bias) * x - bias) * x + bias) * x - bias) * x + bias,
    ],
)
def test_sums_have_the_same_bits_in_a_loop(
    rows: int,
    depth: int,
    columns: int,
    epilogue: Callable[[Tensor, Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Context(VERIFY=1, CACHE=0):
        forget_kernels()
        found = results(rows, depth, columns, epilogue)
    kept = tuple(each for each in pipeline.PASSES if each.name != "loop_epilogues")
    monkeypatch.setattr(pipeline, "PASSES", kept)
    forget_kernels()
    with Context(CACHE=0):
        np.testing.assert_array_equal(found, results(rows, depth, columns, epilogue))
    forget_kernels()
