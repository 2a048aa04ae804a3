"""Symbolic sizes: one set of kernels for all values of a variable. Every result is compared with the one of the same
program over plain ints, for several values; kernels are counted."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.devices import spare_compilers
from tilewright import Context, Device, Ops, Tensor, UOp, Variable, dtypes, jit
from tilewright.base.errors import IndexingError, JitError, ShapeError, UnsupportedError, UserError
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.execution.traces import traces
from tilewright.engine.jit.marked import MarkedArguments
from tilewright.engine.planning import plan as planning
from tilewright.graph.simplify import simplify
from tilewright.graph.size_expressions import multiple_of_one
from tilewright.graph.sizes import larger_size, smaller_size
from tilewright.graph.symbolic import SymbolicInt, free_sizes
from tilewright.graph.text.arguments import literal
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show
from tilewright.graph.uop import index_const

DEVICES = ("CPU", "PYTHON")
LENGTH = 24


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plans_made(run: Callable[[], Any]) -> int:
    """How many graphs are planned while a function runs that this process has not planned before."""
    before = len(planning._plans)
    run()
    return len(planning._plans) - before


# ---------------------------------------------------------------- the integer itself


def test_arithmetic_is_canonical_and_int_gives_the_value() -> None:
    n = Variable("n", 1, 100).bind(17)
    m = Variable("m", 0, 9).bind(4)
    assert int(n) == 17
    assert int(n * 3 + 1 - m) == 48
    assert int(-(-n // 8)) == 3
    assert int(n % 5) == 2
    assert n + 1 - 1 == n
    assert 2 * n + n == 3 * n
    assert n - n == 0
    assert (n * 6) // 6 == n
    assert isinstance(n - n, int)
    assert n + m == m + n
    assert n * m == m * n
    assert n != 17
    assert n + 1 != n
    assert hash(n + 2) == hash(2 + n)
    assert float(n) == 17.0
    assert n / 2 == 8.5
    assert f"{n:3d}" == " 17"
    assert repr(n + 1) == "n + 1=18"
    assert [0, 1, 2][Variable("k", 0, 2).bind(1)] == 1
    assert list(range(Variable("k", 1, 3).bind(2))) == [0, 1]


def test_order_is_decided_by_bounds() -> None:
    n = Variable("n", 1, 100).bind(17)
    assert n > 0
    assert n >= 1
    assert n < 101
    assert n <= 100
    assert not n > 100
    assert n < n + 1
    assert 2 * n >= n + 1
    assert n * n >= n
    assert n >= -1 % n
    long = Variable("long", 0, 1 << 40).bind(17)
    assert long // 2 <= long
    assert (long + 7) // 8 * 8 >= long
    assert long // 2 + long // 3 <= long
    with pytest.raises(ShapeError, match="long//2 < long"):
        bool(long // 2 < long)
    with pytest.raises(ShapeError, match="n < 50"):
        bool(n < 50)
    assert int(larger_size(n, 20)) == 20
    assert int(smaller_size(n, 20)) == 17
    assert larger_size(0, n) == n


def test_a_variable_needs_a_value_in_its_bounds() -> None:
    n = Variable("n", 1, 8)
    for use in (lambda: Tensor.zeros(8)[:n], lambda: Tensor.zeros(n), lambda: int(n), lambda: n + 1):
        with pytest.raises(UserError, match=r"n has no value[\s\S]*test_symbolic.py") as caught:
            use()
        assert str(caught.value).count("to fix it") == 1
    for value in (0, 9, -1, 2.5, True, "3", None):
        with pytest.raises(ShapeError, match="n is bound to"):
            n.bind(value)  # type: ignore[arg-type]
    for wrong in (("", 1, 2), ("a b", 1, 2), ("n", 2, 1), ("n", 0.5, 2), ("n", True, 2), ("n", 1, 1 << 70)):
        with pytest.raises(ShapeError, match="Variable"):
            Variable(*wrong)  # type: ignore[arg-type]
    assert Variable("one", 4, 4).bind(4) == 4


def test_two_values_of_a_name_are_refused() -> None:
    n = Variable("n", 1, 8)
    x = Tensor.arange(8)
    with pytest.raises(ShapeError, match="n is bound to"):
        n.bind(2) + n.bind(3)
    with pytest.raises(ShapeError, match=r"n=2.*n=3"):
        x[: n.bind(2)] + x[: n.bind(3)]
    # What has no symbolic size any longer is computed apart, and may have any value.
    assert (x[: n.bind(2)].sum() + x[: n.bind(3)].sum()).item() == 4
    assert x[: n.bind(2)].sum().item() == 1
    assert x[: n.bind(3)].sum().item() == 3


def test_text_form_reads_back() -> None:
    n = Variable("n", 1, 8).bind(3)
    node = (Tensor.arange(8)[:n] + n).uop
    assert parse(show(node)) is node
    assert "SymbolicInt" in literal(free_sizes((n, n + 1), {}))


# ---------------------------------------------------------------- operations

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda x, n: x[:, :n] * 2,
    "slice from": lambda x, n: x[:, n:] + 1,
    "slice between": lambda x, n: x[:, n : n + 3].exp(),
    "second half": lambda x, n: x[:, n // 2 : n].sum(1),
    "roll": lambda x, n: x[:, :n].roll(2, 1),
    "index": lambda x, n: x[:, n],
    "index from the end": lambda x, n: x[:, :n][:, -1],
    "shrink": lambda x, n: x.shrink(((0, 4), (n, n + 2))),
    "sum": lambda x, n: x[:, :n].sum(1),
    "sum of all": lambda x, n: x[:, :n].sum(),
    "max": lambda x, n: x[:, :n].max(1),
    "mean": lambda x, n: x[:, :n].mean(1),
    "prod": lambda x, n: x[:, :n].prod(0),
    "softmax": lambda x, n: x[:, :n].softmax(1),
    "log_softmax": lambda x, n: x[:, :n].log_softmax(-1),
    "matmul": lambda x, n: x[:, :n] @ x[:, :n].T,
    "outer product": lambda x, n: x[:, :n].T @ x[:, :n],
    "matmul rows": lambda x, n: x.T[:n] @ x[:, :5],
    "transpose": lambda x, n: x[:, :n].T.contiguous() + 1,
    "reshape": lambda x, n: x[:, :n].reshape(2, 2, n, 1),
    "merge axes": lambda x, n: x[:, :n].reshape(4 * n) + 1,
    "merge and sum": lambda x, n: (x[:, :n].reshape(2, 2 * n) * 3).sum(1),
    "minus one": lambda x, n: x[:, :n].reshape(-1, 2, n),
    "flatten": lambda x, n: x[:, :n].flatten(),
    "expand": lambda x, n: x[0, 0].reshape(1, 1).expand(3, n) * 2,
    "broadcast": lambda x, n: x[:, :n] + x[0, :n] + x[:, :1],
    "pad": lambda x, n: x[:, :n].pad(((0, 0), (2, 1))),
    "pad by n": lambda x, n: x[:, :2].pad(((0, 0), (n, 0))) + 1,
    "pad to the end": lambda x, n: x[:, :n].pad(((0, 0), (0, LENGTH - n)), value=7.0),
    "flip": lambda x, n: x[:, :n].flip(1),
    "cat": lambda x, n: x[:, :n].cat(x[:, :3], dim=1),
    "cat two": lambda x, n: x[:, :n].cat(x[:, n:], dim=1) * 2,
    "stack": lambda x, n: x[0, :n].stack(x[1, :n]),
    "where": lambda x, n: (x[:, :n] > 0).where(x[:, :n], 0.5),
    "number": lambda x, n: x * n + (n + 1),
    "compare": lambda x, n: x.cast("int32") < n,
    "mask": lambda x, n: (Tensor.arange(LENGTH, device=x.device) < n).where(x, 0),
    "causal": lambda x, n: x[:, :n].T.matmul(x[:, :n]).tril(),
    "triu by n": lambda x, n: x.triu(n),
    "repeat": lambda x, n: x[:, :n].repeat(1, 2),
    "repeat_interleave": lambda x, n: x[:, :n].repeat_interleave(2, 0),
    "unsqueeze": lambda x, n: x[:, :n].unsqueeze(1).squeeze(1),
    "layernorm": lambda x, n: x[:, :n].T.layernorm(),
    "two sums": lambda x, n: x[:, :n].sum(1) / (x[:, :n] * x[:, :n]).sum(1),
    "contiguous": lambda x, n: x[:, :n].contiguous().sum(0),
    "split": lambda x, n: x[:, :n].split([1, 3], dim=0)[1],
    "gather rows": lambda x, n: x.T[Tensor([0, 2, 5], dtype="int32", device=x.device)][:, :4],
    "einsum": lambda x, n: Tensor.einsum("ij,kj->ik", x[:, :n], x[:, :n]),
    "var": lambda x, n: x[:, :n].var(1),
    "argmax": lambda x, n: x[:, :n].argmax(1),
    "any": lambda x, n: (x[:, :n] > 1).any(1),
    "full": lambda x, n: x.full((2, n), 3.0) + x[0, 0],
    "ones": lambda x, n: Tensor.ones(n, 2, device=x.device).sum(0),
    "arange": lambda x, n: Tensor.arange(n, device=x.device) * 2,
    "arange from": lambda x, n: Tensor.arange(n, n + 4, device=x.device),
    "arange to": lambda x, n: Tensor.arange(2, n + 4, device=x.device, dtype="float32"),
    "nested": lambda x, n: (x[:, :n].softmax(1) @ x[:, :n].T).sum(1)[:2],
    "item": lambda x, n: x[:, :n].sum().reshape(1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_equals_that_of_plain_ints(name: str) -> None:
    operation = OPERATIONS[name]
    array = rows(4, LENGTH)
    x = Tensor(array)
    variable = Variable("n", 1, LENGTH - 4)

    def compare(value: int) -> None:
        given = variable.bind(value)
        assert isinstance(given, SymbolicInt)
        found, expected = operation(x, given), operation(x, value)
        assert tuple(map(int, found.shape)) == expected.shape
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)

    compare(7)
    for value in (1, 2, 20, 13):
        operation(x, value).realize()  # plans of its own, one for each size
        assert plans_made(lambda value=value: compare(value)) == 0


@pytest.mark.parametrize(
    "name", ["sum", "softmax", "matmul", "merge axes", "cat two", "pad by n", "causal", "arange from"]
)
def test_operation_in_the_emulator(name: str) -> None:
    array = rows(4, LENGTH)
    for value in (1, 7, 20):
        results = []
        for size in (Variable("n", 1, LENGTH - 4).bind(value), value):
            results.append(OPERATIONS[name](Tensor(array, device="PYTHON"), size).numpy())
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["OPENCL", "WEBGPU"])
def test_operations_on_devices_with_work_groups(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spare_compilers(monkeypatch)
    if Device.availability()[device] is not None:
        pytest.skip(f"{device} cannot be used here")
    array = rows(4, LENGTH)
    variable = Variable("n", 1, LENGTH - 4)
    for value in (1, 7, 20):
        found = OPERATIONS["softmax"](Tensor(array, device=device), variable.bind(value)).numpy()
        np.testing.assert_allclose(found, OPERATIONS["softmax"](Tensor(array), value).numpy(), rtol=1e-5, atol=1e-6)
    owner = Step(device, 12)
    decode(jit(owner.__call__, symbolic={"position": (0, 11)}), device, owner, [1] * 4, lambda position: position)


def test_two_variables_in_one_graph() -> None:
    array = rows(LENGTH, LENGTH)
    x = Tensor(array)
    n, m = Variable("n", 1, LENGTH), Variable("m", 1, LENGTH)
    for a, b in ((3, 5), (5, 3), (1, 24), (24, 24)):
        left, right = x[: n.bind(a), : m.bind(b)], x[: m.bind(b), : n.bind(a)]
        np.testing.assert_allclose((left @ right).numpy(), array[:a, :b] @ array[:b, :a], rtol=1e-4, atol=1e-5)
        flat = (left * 2).reshape(n.bind(a) * m.bind(b)).sum()
        np.testing.assert_allclose(flat.numpy(), 2 * array[:a, :b].sum(), rtol=1e-4)
    with pytest.raises(ShapeError, match=r"n=3.*m=3"):
        x[0, : n.bind(3)] + x[0, : m.bind(3)]


def test_optimised_kernels_are_verified_for_several_values() -> None:
    with Context(VERIFY=1, CACHE=0):
        forget_kernels()
        part = Tensor(rows(4, 80))[:, : Variable("length", 1, 80).bind(33)]
        np.testing.assert_allclose(part.softmax(1).sum(1).numpy(), np.ones(4), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_tensors_like_others(device: str) -> None:
    array = rows(4, LENGTH)
    n = Variable("n", 1, LENGTH)
    for value in (5, 1, 24):
        part = (Tensor(array, device=device)[:, : n.bind(value)] + 1).realize()
        expected = array[:, :value] + 1
        assert part.numpy().shape == (4, value)
        assert len(part.T) == value
        np.testing.assert_allclose(part.tolist(), expected, rtol=1e-6)
        np.testing.assert_allclose((part * part).sum(0).numpy(), (expected * expected).sum(0), rtol=1e-5)
        assert math.isclose(part[2, 0].item(), expected[2, 0], rel_tol=1e-6)
        assert math.isclose(part[3, -1].item(), expected[3, -1], rel_tol=1e-6)
        assert str(value) in repr(part)
        part[1] = 0
        expected[1] = 0
        np.testing.assert_allclose(part.numpy(), expected, rtol=1e-6)
        part.assign(part * 2)
        np.testing.assert_allclose(part.numpy(), expected * 2, rtol=1e-6)


# ---------------------------------------------------------------- a cache that grows


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


class Step:
    """Attention of new rows over all rows so far, which are kept in place."""

    def __init__(self, device: str, length: int, heads: int = 4, kv_heads: int = 2, width: int = 8) -> None:
        self.shape = (1, kv_heads, length, width)
        self.keys = Tensor.zeros(*self.shape, device=device).contiguous().realize()
        self.values = Tensor.zeros(*self.shape, device=device).contiguous().realize()
        self.heads = heads

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, position: int) -> Tensor:
        count = q.shape[2]
        end = position + count
        self.keys[:, :, position:end] = k
        self.values[:, :, position:end] = v
        mask = None
        if count > 1:
            mask = Tensor.arange(end, device=q.device) <= Tensor.arange(position, end, device=q.device).unsqueeze(1)
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return q.scaled_dot_product_attention(keys, values, attn_mask=mask, enable_gqa=True)


def decode(step: Any, device: str, owner: Step, counts: list[int], bind: Callable[[int], Any]) -> None:
    _, kv_heads, _length, width = owner.shape
    keys, values = np.zeros(owner.shape, np.float32), np.zeros(owner.shape, np.float32)
    position = 0
    for number, count in enumerate(counts):
        q = rows(1, owner.heads, count, width, seed=3 * number)
        k = keys[:, :, position : position + count] = rows(1, kv_heads, count, width, seed=3 * number + 1)
        v = values[:, :, position : position + count] = rows(1, kv_heads, count, width, seed=3 * number + 2)
        found = step(*(Tensor(each, device=device) for each in (q, k, v)), bind(position))
        end = position + count
        mask = np.arange(end) <= np.arange(position, end)[:, None]
        expected = attention(q, keys[:, :, :end], values[:, :, :end], mask)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
        position = end
    np.testing.assert_array_equal(owner.keys.numpy(), keys)
    np.testing.assert_array_equal(owner.values.numpy(), values)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_grows_in_place(device: str) -> None:
    owner = Step(device, 12)
    decode(owner, device, owner, [1, 1, 3, 1, 3], Variable("position", 0, 9).bind)


@pytest.mark.parametrize("symbolic", [None, ("position",), "position", {"position": (0, 29)}, {"position": None}])
def test_jitted_step_is_replayed_for_every_position(symbolic: Any) -> None:
    owner = Step("CPU", 32)
    step = jit(owner.__call__) if symbolic is None else jit(owner.__call__, symbolic=symbolic)
    bind = Variable("position", 0, 29).bind if symbolic is None else lambda position: position
    reasons = []

    def noted(*args: Any) -> Tensor:
        found = step(*args)
        reasons.append(step.last_reason)
        return found

    decode(noted, "CPU", owner, [1] * 12, bind)
    assert reasons[2:] == [""] * 10
    assert all(reasons[:2])


def test_jitted_steps_of_two_lengths_share_a_cache() -> None:
    owner = Step("CPU", 32)
    step = jit(owner.__call__, symbolic=("position",))
    decode(step, "CPU", owner, [3, 1, 3, 1, 3, 1, 3, 1, 1, 1, 3], lambda position: position)
    assert step.last_reason == ""


def test_jitted_results_have_the_sizes_of_their_call() -> None:
    x = Tensor(rows(4, LENGTH)).realize()
    n = Variable("n", 1, LENGTH)

    @jit
    def f(x: Tensor, n: int) -> Any:
        part = x[:, :n] * 2
        return part, part.sum(1), n + 1, {"size": part.shape[1]}

    held = []
    for value in (3, 9, 1, 24, 2, 9):
        part, total, size, sizes = f(x, n.bind(value))
        held.append((value, part))
        np.testing.assert_allclose(part.numpy(), x.numpy()[:, :value] * 2, rtol=1e-6)
        np.testing.assert_allclose(total.numpy(), 2 * x.numpy()[:, :value].sum(1), rtol=1e-5)
        np.testing.assert_allclose((part + 1).sum(1).numpy(), (x.numpy()[:, :value] * 2 + 1).sum(1), rtol=1e-5)
        assert (int(size), int(sizes["size"])) == (value + 1, value)
    assert f.last_reason == ""
    for value, part in held:
        np.testing.assert_allclose(part.numpy(), x.numpy()[:, :value] * 2, rtol=1e-6)


def test_jitted_function_takes_tensors_of_symbolic_shape() -> None:
    x = Tensor(rows(4, LENGTH)).realize()
    n = Variable("n", 1, LENGTH)
    f = jit(lambda part: (part * 3).sum(1))
    for value in (3, 9, 1, 24, 2, 9):
        part = (x[:, : n.bind(value)] + 1).realize()
        np.testing.assert_allclose(f(part).numpy(), 3 * (x.numpy()[:, :value] + 1).sum(1), rtol=1e-5)
    assert f.last_reason == ""


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_a_value_that_is_read_is_never_stale() -> None:
    x = Tensor(rows(LENGTH)).realize()
    n = Variable("n", 1, LENGTH)
    functions = {
        "int": lambda x, n: x * int(n),
        "range": lambda x, n: sum((x * k for k in range(n)), x),
        "text": lambda x, n: x * len(f"{n}"),
        "bound again": lambda x, n: x[: Variable("n", 1, LENGTH).bind(3)].sum() + x * n,
    }
    for name, function in functions.items():
        f = jit(function)
        for value in (3, 9, 3, 12, 5):
            if name == "bound again":
                value = 3
            np.testing.assert_allclose(f(x, n.bind(value)).numpy(), function(x, n.bind(value)).numpy(), rtol=1e-5)
        assert f.last_reason, name


def test_marked_arguments_are_checked() -> None:
    def f(x: Tensor, position: int) -> Tensor:
        return x[position : position + 1] * 2

    x = Tensor(rows(8)).realize()
    with pytest.raises(JitError, match="symbolic names 'place'"):
        jit(f, symbolic=("place",))
    with pytest.raises(JitError, match="bounds"):
        jit(f, symbolic={"position": 3})  # type: ignore[dict-item]
    marked = jit(f, symbolic={"position": (0, 7)})
    with pytest.raises(JitError, match="position is marked"):
        marked(x, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"position is bound to 8[\s\S]*test_symbolic.py"):
        marked(x, 8)
    found = jit(f, symbolic=("position",))
    for position in (0, 3, 7, 2, 5):
        assert found(x, position).item() == 2 * x[position].item()
    assert found.last_reason == ""
    assert not traces
    with pytest.raises(IndexingError, match="does not lie in an axis of size 8"):
        found(x, 8)
    assert found(x, 4).item() == 2 * x[4].item()
    assert found.last_reason == ""


def test_marked_argument_of_a_method() -> None:
    class Model:
        def __init__(self) -> None:
            self.table = Tensor(rows(8, 2)).realize()

        @jit(symbolic=("position",))
        def row(self, scale: Tensor, *, position: int) -> Tensor:
            return self.table[position] * scale

    model, other = Model(), Model()
    for position in (0, 3, 7, 2, 5):
        found = model.row(Tensor([2.0]), position=position)
        np.testing.assert_allclose(found.numpy(), 2 * model.table.numpy()[position])
        other.row(Tensor([2.0]), position=position)
    assert model.row.last_reason == ""  # type: ignore[attr-defined]


def test_branches_on_an_open_argument_are_calls_of_two_kinds() -> None:
    @jit(symbolic=("n",))
    def f(x: Tensor, n: int) -> Tensor:
        return x[:n].sum() if n < 4 else x[:n].sum() * 10

    x = Tensor(rows(8)).realize()
    for n in (1, 6, 2, 5, 3, 7, 1, 8, 2, 4, 3):
        expected = x.numpy()[:n].sum() * (1 if n < 4 else 10)
        np.testing.assert_allclose(f(x, n).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert f.last_reason == ""


def test_a_thousand_lengths_are_one_record() -> None:
    length = 1000
    keys, values = (Tensor(rows(1, 2, length, 16, seed=seed)).realize() for seed in (1, 2))
    query = Tensor(rows(1, 4, 1, 16)).realize()

    @jit(symbolic=("n",))
    def step(query: Tensor, n: int) -> Tensor:
        return query.scaled_dot_product_attention(keys[:, :, :n], values[:, :, :n], enable_gqa=True)

    for n in (500, 501):
        step(query, n)
    arrays = query.numpy(), keys.numpy(), values.numpy()

    def run() -> None:
        for n in range(1, length + 1):
            found = step(query, n)
            assert step.last_reason == ""
            if n % 111 == 1 or n == length:
                expected = attention(arrays[0], arrays[1][:, :, :n], arrays[2][:, :, :n])
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)

    assert plans_made(run) == 0


# ---------------------------------------------------------------- gradients, several devices

LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, n: (x[:, :n] * 2).sum(),
    "softmax": lambda x, n: (x[:, :n].softmax(1) * x[:, :n]).sum(),
    "matmul": lambda x, n: (x[:, :n] @ x[:, :n].T).square().sum(),
    "pad": lambda x, n: x[:, :n].pad(((0, 0), (1, 2))).square().mean(),
    "expand": lambda x, n: (x[:, :1].expand(4, n) * 3).sum(),
    "max": lambda x, n: x[:, n - 1 :].max(1).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    variable = Variable("n", 1, LENGTH)
    for value in (7, 1, LENGTH):
        gradients = []
        for size in (variable.bind(value), value):
            x = Tensor(rows(4, LENGTH), requires_grad=True)
            LOSSES[name](x, size).backward()
            assert x.grad is not None
            gradients.append(x.grad.numpy())
        np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)


def test_heads_on_two_devices() -> None:
    devices = ("CPU:0", "CPU:1")
    owner = Step("CPU", 12)
    owner.keys, owner.values = (each.shard(devices, axis=1).realize() for each in (owner.keys, owner.values))
    step = jit(owner.__call__, symbolic={"position": (0, 11)})

    def sharded(*args: Any) -> Tensor:
        *tensors, position = args
        return step(*(tensor.shard(devices, axis=1).realize() for tensor in tensors), position)

    decode(sharded, "CPU", owner, [1] * 5, lambda position: position)
    assert step.last_reason == ""


# ---------------------------------------------------------------- what is refused


def test_what_is_not_provable_is_refused_at_the_users_line() -> None:
    x = Tensor(rows(4, 8))
    n = Variable("n", 0, 8).bind(3)
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: x[:, : n + 1], IndexingError, "n \\+ 1"),
        (lambda: x[:, n], ShapeError, "n"),
        (lambda: x[:, :n] + x[:, :3], ShapeError, "n=3"),
        (lambda: x.reshape(n, 4), ShapeError, "n=3"),
        (lambda: x[:, :n:-2], UnsupportedError, "step"),
        (lambda: x.shrink(((0, 4), (0, n + 1))), ShapeError, "n \\+ 1"),
        (lambda: x[:, :n][:, Tensor([0, 1])], UnsupportedError, "variable"),
        (lambda: Tensor.arange(n, 5), ShapeError, "n"),
        (lambda: Tensor.arange(0, n, 2.5), UnsupportedError, "by 2.5"),
        (lambda: x[:, :n].sort(1), UnsupportedError, "sort: axis 1 of shape .*variable"),
        (lambda: x[:, :n].topk(1), UnsupportedError, "topk: axis 1 of shape .*variable"),
        (lambda: x[:, :n].cummax(1), UnsupportedError, "cummax: axis 1 of shape .*variable"),
    ]
    for use, kind, text in refused:
        with pytest.raises(kind, match=rf"{text}[\s\S]*test_symbolic.py"):
            use().realize()


def test_marked_arguments_are_found_as_a_signature_shows_them() -> None:
    """Of a plain function from its code, of all else by `inspect`."""

    def plain(a: int, /, b: int, *rest: int, c: int = 1, **others: int) -> None: ...

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    class Called:
        def __call__(self, b: int, *, c: int) -> None: ...

    functions: list[Callable[..., Any]] = [plain, wrapped, functools.partial(plain, 1), Called(), Called().__call__]
    functions += [lambda *, c, b: None, lambda b=1, c=2: None, lambda *b, **c: None]
    for function in functions:
        found = {each.name: each.position for each in MarkedArguments(function, ("b", "c")).marked}
        shown = list(inspect.signature(function).parameters.values())
        for each in shown:
            is_by_name = each.kind is each.KEYWORD_ONLY
            assert each.name not in found or found[each.name] == (None if is_by_name else shown.index(each))
    assert {each.position for each in MarkedArguments(plain, ("z",)).marked} == {None}
    with pytest.raises(JitError, match="the arguments are b, c"):
        MarkedArguments(functions[-2], ("z",))


POSITION = Variable("position", 0, 1135).node
SIZES = st.recursive(
    st.one_of(st.just(POSITION), st.integers(-40, 40).map(index_const)),
    lambda inner: st.builds(
        lambda op, first, second: UOp(op, dtypes.index, (first, second)),
        st.sampled_from([Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV]),
        inner,
        inner,
    ),
    max_leaves=8,
)


@given(SIZES)
def test_a_linear_size_is_what_the_rules_make_of_it(size: UOp) -> None:
    found = multiple_of_one(size)
    assert found is None or found is simplify(size)


def test_sizes_of_one_variable_are_canonical_without_the_rules() -> None:
    position, one = POSITION, index_const(1)
    end = UOp(Ops.ADD, dtypes.index, (position, index_const(16)))
    assert multiple_of_one(UOp(Ops.SUB, dtypes.index, (end, position))) is index_const(16)
    assert multiple_of_one(UOp(Ops.IDIV, dtypes.index, (end, one))) is end
    assert multiple_of_one(UOp(Ops.IDIV, dtypes.index, (end, index_const(2)))) is None
    assert multiple_of_one(UOp(Ops.MUL, dtypes.index, (end, position))) is None
    other = Variable("rows", 1, 4).node
    assert multiple_of_one(UOp(Ops.ADD, dtypes.index, (end, other))) is None
