"""What few elements need is computed where one does: the nodes that a marked choice sets aside, the jumps in the text
of the CPU, and values whichever elements need the slow path. The mark changes no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.backends.cpu.device import KERNEL_SYMBOL, cpu_target
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import dtypes
from tilewright.codegen.pipeline import lower
from tilewright.debug import explain
from tilewright.graph.kernels.slow_path import find_slow_paths, slow_path
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise

NEAR, FAR = 3.0, 1e4


def load(slot: int, position: UOp) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 64))[position].load()


def test_nodes_of_second_values_alone_are_set_aside() -> None:
    x = load(0, UOp.range(64, 0))
    shared, common = x * 2.0, x + 1.0
    part = shared * 3.0
    inner = slow_path(part < 5.0, part, part * 7.0)
    first = slow_path(x < 1.0, common, inner + shared)
    second = slow_path(x < 1.0, shared, part - 1.0)
    found = find_slow_paths(toposort(first + second))
    # `shared` is also a common value; `part` serves both second values, the inner choice and all of its own the first.
    assert set(found) == {first, second}
    assert set(found[second]) == {part, second.src[2]}
    assert set(found[first]) == {part, inner, *inner.src, first.src[2]} - {x}


def test_a_value_of_an_outer_loop_is_not_set_aside() -> None:
    row, column = UOp.range(4, 0), UOp.range(16, 1)
    outside = load(0, row) * 2.0
    x = load(1, row * 16 + column)
    choice = slow_path(x < 1.0, x, outside * x)
    stored = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(2, 64))[row * 16 + column].store(choice)
    body = lower(UOp(Ops.SINK, dtypes.void, (stored,), KernelInfo("outer")), cpu_target()).body
    ((_, nodes),) = find_slow_paths(body).items()
    assert [node.op for node in nodes] == [Ops.MUL]
    assert nodes[0].src[1].op is Ops.LOAD or nodes[0].src[0].op is Ops.LOAD


def sine_kernel() -> UOp:
    axis = UOp.range(64, 0)
    stored = UOp(Ops.PARAM, dtypes.float32, (), ParamArg(0, 64))[axis].store(load(1, axis).alu(Ops.SIN))
    return UOp(Ops.SINK, dtypes.void, (stored,), KernelInfo("sine", (Opt(OptOps.UPCAST, 0, 16),)))


def test_the_text_jumps_over_far_angles() -> None:
    """All arithmetic in float64 lies between the jump and the place where both ways meet."""
    target = cpu_target()
    text = render(lower(optimise(sine_kernel(), target), target), KERNEL_SYMBOL)
    before, _, rest = text.partition(".taken:\n")
    slow, _, after = rest.partition(".done:\n")
    assert "double" in slow
    assert "double" not in before
    assert "double" not in after
    assert "phi <16 x float>" in after


def angles(*shape: int) -> Any:
    """Rows whose elements are all near, all far, far in one place, and mixed."""
    found = np.random.default_rng(0).uniform(-NEAR, NEAR, (4, *shape)).astype(np.float32)
    found[1] *= FAR
    found[2].reshape(-1)[shape[-1] // 2] = FAR
    found[3].reshape(-1)[::3] *= FAR
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_values_whichever_elements_are_far(size: int, dtype: str) -> None:
    given = angles(size).astype(dtype)
    for name in ("sin", "cos", "tan"):
        found = getattr(Tensor(given), name)().numpy()
        expected = getattr(np, name)(given.astype(np.float64))
        np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "float32" else 1e-14, err_msg=name)


def test_inside_sums_and_beside_them() -> None:
    given = angles(24, 40)
    x = Tensor(given)
    wide = given.astype(np.float64)
    np.testing.assert_allclose(x.sin().sum(2).numpy(), np.sin(wide).sum(2), atol=1e-4)
    np.testing.assert_allclose(x.cos().sum(1).numpy(), np.cos(wide).sum(1), atol=1e-4)
    largest = wide.max(2, keepdims=True)
    scaled = (x.sin() * x.max(2, keepdim=True).cos()).numpy()
    np.testing.assert_allclose(scaled, np.sin(wide) * np.cos(largest), atol=1e-6)


def test_a_transposed_source_and_its_gradient() -> None:
    given = angles(32, 48)
    x = Tensor(given)
    turned = (x.transpose(1, 2).sin() + x.reshape(4, 48, 32).cos()).numpy()
    wide = given.astype(np.float64)
    np.testing.assert_allclose(turned, np.sin(wide.transpose(0, 2, 1)) + np.cos(wide.reshape(4, 48, 32)), atol=3e-7)
    (slope,) = x.sin().sum().gradient(x)
    np.testing.assert_allclose(slope.numpy(), np.cos(wide), atol=2e-7, rtol=1e-6)


def test_one_path_of_vectors_and_one_of_rows() -> None:
    """The cosine of a row's one element is not a vector, and has a slow path beside that of the row's vectors."""
    x, y = angles(12, 48), angles(12, 1)
    total = Tensor(x, device="CPU").realize().sin() + Tensor(y, device="CPU").realize().cos()
    text = "".join(kernel.source for kernel in explain(total).kernels)
    assert text.count(".taken:") >= 2
    np.testing.assert_allclose(total.numpy(), np.sin(x) + np.cos(y), atol=2e-6)
