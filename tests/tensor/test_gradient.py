"""Gradients against finite differences in float64, and what `backward` and `gradient` promise.

The table is checked with `evaluate`, the interpreter of graphs; every fourth row of it runs on the CPU as well. Whole
networks of random make are in tests/nn/test_random_networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tensor.conftest import bindings_of, run_on
from tilewright import Tensor, UOp, dtypes
from tilewright.base.config import Context
from tilewright.base.errors import UnsupportedError
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph import build
from tilewright.graph.gradients import gather as gather_gradients
from tilewright.graph.gradients.rules import RULES, exclusive_products, gradients_of
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.ops import ALL_OPS, Ops
from tilewright.graph.spec import Kind
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.kernel.templates import scatter

STEP = 1e-6


def numbers(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def weighted_sum(result: Tensor) -> Tensor:
    """A scalar that every element of the result enters with another weight."""
    weights = numbers(*result.shape, seed=99)
    return (result * Tensor(weights.astype(np.float64))).sum()


def slopes(loss: Tensor, source: Tensor, array: np.ndarray) -> np.ndarray:
    """The gradient of a scalar by central differences."""
    bindings = bindings_of(loss)
    node = build.stored_root(source.uop)
    found = np.empty(array.size)
    for place in range(array.size):
        values = []
        for sign in (1, -1):
            moved = array.copy().reshape(-1)
            moved[place] += sign * STEP
            values.append(evaluate(loss.uop, {**bindings, node: moved}).item())
        found[place] = (values[0] - values[1]) / (2 * STEP)
    return found.reshape(array.shape)


def check_slopes(function: Callable[..., Tensor], *arrays: np.ndarray, backend: str = "evaluate") -> None:
    sources = [Tensor(array, requires_grad=True) for array in arrays]
    loss = weighted_sum(function(*sources))
    for source, array, gradient in zip(sources, arrays, loss.gradient(*sources), strict=True):
        assert gradient.shape == array.shape
        assert gradient.dtype is dtypes.float64
        verify_tensor_graph(gradient.uop)
        np.testing.assert_allclose(run_on(backend, gradient), slopes(loss, source, array), rtol=1e-5, atol=1e-7)


INDEX = [2, 0, 2, 2, 1]


def assigned(x: Tensor, value: Tensor) -> Tensor:
    base = x * 2
    base[1:3] = value
    return base * x


def assigned_by_step(x: Tensor, value: Tensor) -> Tensor:
    base = x * 1.0
    base[::2, 1] = value
    return base * base


def assigned_by_tensor(x: Tensor, value: Tensor) -> Tensor:
    base = x + 0.0
    base[Tensor([3, 1, 3])] = value
    return base * x


def accumulated(x: Tensor, value: Tensor) -> Tensor:
    total = x * 1.0
    total += value
    total *= value
    return total


A, B, POSITIVE, ROW = (
    numbers(3, 4),
    numbers(3, 4, seed=2),
    numbers(3, 4, low=0.3, seed=3),
    numbers(4, seed=4),
)
DISTINCT = np.random.default_rng(5).permutation(24).reshape(4, 6) / 7.0
WITH_ZEROS = np.array([[0.0, 2.0, -3.0], [0.0, 0.0, 5.0], [1.5, 2.0, -1.0]])

TABLE: dict[str, tuple[Any, ...]] = {
    "neg": (lambda x: -x, A),
    "add": (lambda x, y: x + y, A, B),
    "sub": (lambda x, y: x - y, A, B),
    "mul": (lambda x, y: x * y, A, B),
    "mul of itself": (lambda x: x * x * x, A),
    "div": (lambda x, y: x / y, A, POSITIVE),
    "add broadcast": (lambda x, y: x + y, A, ROW),
    "mul broadcast": (lambda x, y: x * y, A, numbers(3, 1)),
    "0-d": (lambda x, y: x * y + y, A, np.array(1.25)),
    "0-d alone": (lambda x: x * x.exp(), np.array(0.7)),
    "number": (lambda x: 3 - x * 2 / 5, A),
    "sqrt": (lambda x: x.sqrt(), POSITIVE),
    "exp2": (lambda x: x.exp2(), A),
    "log2": (lambda x: x.log2(), POSITIVE),
    "sin": (lambda x: x.sin(), A * 10),
    "trunc": (lambda x: x.trunc() + x, A),
    "maximum": (lambda x, y: x.maximum(y), A, B),
    "minimum": (lambda x, y: x.minimum(y), A, B),
    "where": (lambda x, y: (x < y).where(x * y, y.exp()), A, B),
    "int cast stops": (lambda x: x.cast("int32").cast("float64") * x, A),
    "reshape": (lambda x: x.reshape(2, 6) * numbers(2, 6), A),
    "expand": (lambda x: x.reshape(4, 1).expand(4, 3), ROW),
    "permute": (lambda x: x.permute(2, 0, 1) * numbers(4, 2, 3), numbers(2, 3, 4)),
    "pad": (lambda x: x.pad((1, 2, 0, 1)), A),
    "shrink": (lambda x: x[1:, 1:3], A),
    "flip": (lambda x: x.flip(0, 1), A),
    "step": (lambda x: x[::2, ::-3], numbers(5, 7)),
    "sum": (lambda x: x.sum(1), A),
    "sum of all": (lambda x: x.sum() * x, A),
    "max": (lambda x: x.max(1), DISTINCT),
    "min": (lambda x: x.min(0), DISTINCT),
    "prod": (lambda x: x.prod(1), POSITIVE),
    "prod with zeros": (lambda x: x.prod(1), WITH_ZEROS),
    "prod of two axes": (lambda x: x.prod((0, 2)), numbers(2, 3, 2)),
    "prod of many": (lambda x: x.prod(), numbers(70, low=0.9, high=1.1)),
    "mean": (lambda x: x.mean(), A),
    "var": (lambda x: x.var(0), A),
    "std": (lambda x: x.std(1), A),
    "gather rows": (lambda x: x[Tensor(INDEX)], A),
    "gather columns": (lambda x: x[:, Tensor(INDEX)], A),
    "gather both": (lambda x: x[Tensor([0, 2, 2]), Tensor([1, 3, 3])], A),
    "gather apart": (lambda x: x[Tensor([0, 1]), :, Tensor([2, 0])], numbers(2, 3, 4)),
    "gather negative": (lambda x: x[Tensor([-1, 0, -1])], A),
    "gather a matrix": (lambda x: x[Tensor([[0, 2], [2, 1]])], A),
    "gather along": (lambda x: x.gather(1, Tensor([[0, 3], [1, 1], [2, 0]])), A),
    "gather along a part": (lambda x: x.gather(0, Tensor([[2, 0], [2, 2]])), A),
    "gather out of range": (
        lambda x: x._new(build.gather(x.uop, Tensor([0, 7, -3, 2, 2], dtype="int32").uop)),
        ROW,
    ),
    "gather with few bits": (lambda x: x[Tensor([1, 299, 1], dtype="int32").cast("int16")], numbers(300)),
    "diagonal": (lambda x: x[Tensor([0, 1, 2]), Tensor([0, 1, 2])], A),
    "mask": (lambda x: x[Tensor([True, False, True])], A),
    "contiguous": (lambda x: (x * 2).contiguous() * x, A),
    "contiguous_backward": (lambda x: (x * 2).contiguous_backward() * x, A),
    "assign a view": (assigned, numbers(4, 3), numbers(2, 3)),
    "assign a stepped view": (assigned_by_step, numbers(4, 3), numbers(2)),
    "assign by a tensor": (assigned_by_tensor, numbers(4, 3), numbers(3, 3)),
    "in place": (accumulated, A, B),
    "matmul": (lambda x, y: x @ y, numbers(3, 4), numbers(4, 2)),
    "matmul of batches": (lambda x, y: x @ y, numbers(2, 1, 3, 4), numbers(3, 4, 2)),
    "conv2d": (lambda x, w: x.conv2d(w, padding=1, stride=2), numbers(1, 2, 5, 5), numbers(3, 2, 3, 3)),
    "cat": (lambda x, y: Tensor.cat(x, y * x, dim=1), A, B),
    "stack": (lambda x, y: Tensor.stack(x, y, dim=1), A, B),
    "softmax": (lambda x: x.softmax(-1), A),
    "log_softmax": (lambda x: x.log_softmax(0), A),
    "logsumexp": (lambda x: x.logsumexp(1), A),
    "layernorm": (lambda x: x.layernorm(), A),
    "cumsum": (lambda x: x.cumsum(1), A),
    "cumprod": (lambda x: x.cumprod(1), WITH_ZEROS),
    "pow": (lambda x, y: x**y, POSITIVE, B),
    "whole power": (lambda x: x**3, A),
    "negative power": (lambda x: x**-2, POSITIVE),
    **{
        name: (lambda x, name=name: getattr(x, name)(), A * 1.5)
        for name in (
            "abs", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "softsign",
            "sigmoid", "logsigmoid", "hardtanh", "hardsigmoid", "hardswish", "quick_gelu", "exp", "cos", "tan", "sinh",
            "cosh", "tanh", "atan", "asinh", "erf", "square", "sign", "floor", "ceil", "round", "clone", "reciprocal",
        )
    },
    **{name: (lambda x, name=name: getattr(x, name)(), POSITIVE) for name in ("log", "log10", "rsqrt")},
    **{name: (lambda x, name=name: getattr(x, name)(), A / 3) for name in ("asin", "acos", "atanh")},
    "acosh": (lambda x: x.acosh(), POSITIVE + 1),
    "clamp": (lambda x: x.clamp(-0.5, 0.75), A),
    "fmod": (lambda x, y: x.fmod(y), A, POSITIVE),
    "mod": (lambda x, y: x % y, A, POSITIVE),
    "lerp": (lambda x, y: x.lerp(y, 0.3), A, B),
    "logaddexp": (lambda x, y: x.logaddexp(y), A, B),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_slopes(name: str) -> None:
    check_slopes(*TABLE[name])


@pytest.mark.parametrize("name", list(TABLE)[::4])
def test_slopes_on_the_cpu(name: str) -> None:
    check_slopes(*TABLE[name], backend="CPU")


@pytest.mark.parametrize("name", ["mul", "div", "sin", "softmax", "prod with zeros", "max", "pow", "gather rows"])
def test_slopes_of_slopes(name: str) -> None:
    """The gradient of a gradient, by differences of the gradient."""
    function, *arrays = TABLE[name]

    def first(*sources: Tensor) -> Tensor:
        found = weighted_sum(function(*sources).square()).gradient(*sources)
        return Tensor.stack(*(weighted_sum(gradient) for gradient in found))

    check_slopes(first, *arrays)


# ---------------------------------------------------------------- rules


def test_every_op_has_a_rule_or_a_reason() -> None:
    for op in ALL_OPS:
        has_rule = (op.gradient is not None) + (op in RULES)
        assert has_rule == (op.kind not in (Kind.MEMORY, Kind.CONTROL)), op


def test_an_op_without_a_gradient_is_named() -> None:
    bits = build.const(dtypes.uint64, 3)
    node = UOp(Ops.THREEFRY, dtypes.uint64, (bits, bits))
    with pytest.raises(UnsupportedError, match="THREEFRY has no gradient"):
        gradients_of(node, bits)
    x = Tensor([1.0, 2.0], dtype="float16", requires_grad=True)
    with pytest.raises(UnsupportedError, match="BITCAST from float16 to bfloat16 has no gradient"):
        x.bitcast("bfloat16").sum().backward()


def test_exclusive_products_of_a_long_row() -> None:
    row = numbers(100, low=0.8, high=1.2)
    row[37] = 0.0
    tensor = Tensor(row)
    found = evaluate(exclusive_products(tensor.uop, (0,)), bindings_of(tensor))
    expected = np.zeros(100)
    expected[37] = np.prod(np.delete(row, 37))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def gradient_of(function: Callable[..., Tensor], *values: Any, dtype: str = "float32") -> Any:
    """The gradient of the sum, as lists."""
    sources = [Tensor(value, dtype=dtype, requires_grad=True) for value in values]
    function(*sources).sum().backward()
    found = [source.grad.tolist() for source in sources if source.grad is not None]
    return found if len(found) > 1 else found[0]


INFINITY = math.inf

# What torch 2.13 gives at corners and where formulas meet 0 * inf.
CORNERS: dict[str, tuple[Any, ...]] = {
    "relu is flat at 0": (lambda x: x.relu(), [[-1.0, 0.0, 2.0]], [0.0, 0.0, 1.0]),
    "abs is flat at 0": (lambda x: x.abs(), [[-1.0, 0.0, 2.0]], [-1.0, 0.0, 1.0]),
    "relu6 is flat at both ends": (lambda x: x.relu6(), [[0.0, 3.0, 6.0]], [0.0, 1.0, 0.0]),
    "hardtanh is flat at both ends": (lambda x: x.hardtanh(), [[-1.0, 0.5, 1.0]], [0.0, 1.0, 0.0]),
    "clamp is not": (lambda x: x.clamp(0, 6), [[-1.0, 0.0, 6.0, 7.0]], [0.0, 1.0, 1.0, 0.0]),
    "leaky_relu at 0": (lambda x: x.leaky_relu(0.25), [[-1.0, 0.0, 2.0]], [0.25, 0.25, 1.0]),
    "elu at 0": (lambda x: x.elu(0.5), [[0.0, 2.0]], [0.5, 1.0]),
    "maximum shares ties": (lambda x, y: x.maximum(y), [[1.0, 2.0], [1.0, 3.0]], [[0.5, 0.0], [0.5, 1.0]]),
    "minimum shares ties": (lambda x, y: x.minimum(y), [[1.0, 2.0], [1.0, 3.0]], [[0.5, 1.0], [0.5, 0.0]]),
    "max shares ties": (lambda x: x.max(), [[3.0, 1.0, 3.0, 3.0]], [1 / 3, 0.0, 1 / 3, 1 / 3]),
    "min shares ties": (lambda x: x.min(), [[1.0, 1.0, 3.0]], [0.5, 0.5, 0.0]),
    "sqrt at 0": (lambda x: x.sqrt(), [[0.0, 4.0]], [INFINITY, 0.25]),
    "asin at the ends": (lambda x: x.asin(), [[-1.0, 0.0, 1.0]], [INFINITY, 1.0, INFINITY]),
    "acos at the ends": (lambda x: x.acos(), [[-1.0, 0.0, 1.0]], [-INFINITY, -1.0, -INFINITY]),
    "acosh at its end": (lambda x: x.acosh(), [[1.0, 5.0]], [INFINITY, 24**-0.5]),
    "atanh at the ends": (lambda x: x.atanh(), [[-1.0, 0.5, 1.0]], [INFINITY, 4 / 3, INFINITY]),
    "erf of NaN": (lambda x: x.erf(), [[math.nan, 0.0]], [math.nan, 2 / math.sqrt(math.pi)]),
    "prod with one zero": (lambda x: x.prod(), [[2.0, 0.0, 3.0]], [0.0, 6.0, 0.0]),
    "prod with two zeros": (lambda x: x.prod(), [[0.0, 0.0, 3.0]], [0.0, 0.0, 0.0]),
    "masked_fill hides an infinity": (lambda x: (x.eq(0)).where(1.0, x).log(), [[0.0, 2.0]], [0.0, 0.5]),
    "softmax of a masked row": (
        lambda x: (x + Tensor([0.0, -INFINITY])).softmax()[0],
        [[1.0, 1.0]],
        [0.0, 0.0],
    ),
    "logsumexp with -inf": (lambda x: (x + Tensor([0.0, -INFINITY])).logsumexp(), [[1.0, 1.0]], [1.0, 0.0]),
    "pow of 0": (lambda x: x**2, [[0.0, 3.0]], [0.0, 6.0]),
    "sigmoid of large": (lambda x: x.sigmoid(), [[-200.0, 200.0]], [0.0, 0.0]),
    "tanh at 0": (lambda x: x.tanh(), [[0.0]], [1.0]),
    "round has no slope": (lambda x: x.round(), [[0.4, 1.6]], [0.0, 0.0]),
    "repeated index": (lambda x: x[[1, 1, 0]], [[5.0, 6.0, 7.0]], [1.0, 2.0, 0.0]),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    function, values, expected = CORNERS[name]
    np.testing.assert_allclose(gradient_of(function, *values), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_summed_in_float32(dtype: str) -> None:
    """4096 ones do not fit into the digits of a bfloat16 sum."""
    x = Tensor([1.0], dtype=dtype, requires_grad=True)
    x.expand(4096).contiguous().sum().backward()
    assert x.grad.dtype.name == dtype
    assert x.grad.item() == 4096.0


def test_casts_between_floats_pass() -> None:
    x = Tensor([1.5, 2.0], requires_grad=True)
    (x.half() * 3).float().sum().backward()
    assert x.grad.dtype is dtypes.float32
    assert x.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("gather")])
def test_positions_are_walked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that saves work for a long table, taken for short ones."""
    monkeypatch.setattr(gather_gradients, "SMALL_SCATTER", 0)
    monkeypatch.setattr(scatter, "compared_clocks", lambda view, axis: math.inf)
    forget_kernels()
    with Context(CACHE=0):
        check_slopes(*TABLE[name])
    forget_kernels()


def test_an_embedding_adds_what_is_named_more_than_once() -> None:
    words, width, positions = 2000, 16, 32
    table = Tensor.zeros(words, width, requires_grad=True)
    index = np.random.default_rng(3).integers(0, words, positions)
    index[5] = index[9] = index[20]
    weights = numbers(positions, width)
    (table[Tensor(index, dtype="int32")] * Tensor(weights, dtype="float32")).sum().backward()
    expected = np.zeros((words, width))
    np.add.at(expected, index, weights)
    np.testing.assert_allclose(table.grad.numpy(), expected, rtol=1e-5)


def test_the_gradient_of_padding_around_nothing_is_zeros() -> None:
    """The sum over what `expand` repeats was shrunk to no elements, and its only element was still there."""
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    x[0:0].pad((0, 0, 1, 0)).expand(4, 3).exp().max(0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0] * 3] * 2


def test_slope_of_softplus_far_below_zero() -> None:
    """log1p undoes a rounding error by a quotient; the slope of that quotient is all rounding error."""
    x = Tensor(np.linspace(-14, -6, 50).astype(np.float32), requires_grad=True)
    x.softplus().sum().backward()
    expected = 1 / (1 + np.exp(-x.numpy().astype(np.float64)))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=2e-6)
