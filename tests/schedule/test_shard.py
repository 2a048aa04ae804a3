"""Dividing graphs among devices: the parts make up the value that the interpreter gives the undivided graph, every node
is on one device, and data moves only where it has to. Nothing is compiled here."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.ops.table import TABLE
from tilewright import Tensor, dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.graph.build import multi, placed_on
from tilewright.graph.interpreter.evaluate import evaluate, evaluate_all
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of
from tilewright.schedule.sharding.layouts import Layout, reshaped, shrunk
from tilewright.schedule.sharding.shard import Division, divide_graph

DEVICES = ("CPU", "CPU:1", "CPU:2")
LAYOUTS = (None, 0, 1)
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)


def contents(*nodes: UOp) -> dict[UOp, np.ndarray]:
    found = {node for node in toposort(*nodes) if node.op is Ops.BUFFER}
    return {node: np.frombuffer(buffer_of(node).view(), dtype=np.dtype(node.dtype.name)) for node in found}


def check_places(parts: Sequence[UOp]) -> None:
    """Every node but a COPY is where its sources are; what is divided holds no MULTI any more."""
    places: dict[UOp, str | None] = {}
    for node in toposort(*parts):
        assert node.op is not Ops.MULTI
        below = {places[src] for src in node.src} - {None}
        if node.op is Ops.BUFFER:
            places[node] = node.arg.device
        elif node.op is Ops.COPY:
            places[node] = node.arg
        else:
            assert len(below) <= 1, f"{node} is made from {below}"
            places[node] = placed_on(node) or next(iter(below), None)


def check_division(tensor: Tensor) -> Division:
    """The division of a tensor's graph, which is right."""
    node = tensor.uop
    verify_tensor_graph(node)
    (division,) = divide_graph((node,))
    check_places(division.nodes)
    for part in division.nodes:
        verify_tensor_graph(part)
    values = contents(node, *division.nodes)
    wanted = evaluate(node, values)
    if division.arg is None:
        np.testing.assert_allclose(evaluate(division.nodes[0], values), wanted, rtol=1e-5, atol=1e-6)
        return division
    parts = evaluate_all(division.nodes, values)
    if division.arg.axis is None:
        assert all(np.array_equal(part, parts[0], equal_nan=True) for part in parts)
    joined = multi(division.nodes, division.arg.axis, division.arg.devices)
    np.testing.assert_allclose(evaluate(joined, values), wanted, rtol=1e-5, atol=1e-6)
    return division


def leaf(values: np.ndarray, layout: int | None, count: int = 2) -> Tensor:
    return Tensor(values).shard(DEVICES[:count], layout)


def copies(division: Division) -> int:
    """Transfers between devices, those to the devices at the beginning aside."""
    order = toposort(*division.nodes)
    return sum(node.op is Ops.COPY and any(s.op is Ops.COPY for s in toposort(*node.src)) for node in order)


# ---------------------------------------------------------------- every family under every layout

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: (x.exp() + 1).log() * -2,
    "cast": lambda x: (x * 10).cast(dtypes.int32).cast(dtypes.float32),
    "bitcast": lambda x: x.bitcast(dtypes.int32) + 1,
    "iota": lambda x: x * Tensor.arange(4, device=x.device).cast(dtypes.float32),
    "computed constant": lambda x: x + Tensor.arange(24, device=x.device).reshape(6, 4).cumsum(0).cast(dtypes.float32),
    "row sums": lambda x: x.sum(1),
    "column sums": lambda x: x.sum(0),
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(0, keepdim=True),
    "product": lambda x: x.prod(),
    "softmax": lambda x: x.softmax(1) + x.softmax(0),
    "split reshape": lambda x: x.reshape(2, 3, 2, 2),
    "joining reshape": lambda x: x.reshape(24) * 2,
    "crossing reshape": lambda x: x.reshape(4, 6).T,
    "permute": lambda x: x.T.contiguous(),
    "expand": lambda x: x.unsqueeze(1).expand(6, 5, 4),
    "expanded slice": lambda x: x[:1].expand(6, 4) + x[:, 2:3].expand(6, 4),
    "pad": lambda x: x.pad(((1, 2), (3, 0))),
    "flip": lambda x: x.flip(0) - x.flip(1),
    "shrink": lambda x: x[1:5, 1:],
    "one part": lambda x: x[0:3] * 2,
    "one row": lambda x: x[4] + 1,
    "stride": lambda x: x[::2, ::-2],
    "cat": lambda x: Tensor.cat(x, x * 2, dim=0),
    "cat columns": lambda x: Tensor.cat(x, x * 2, dim=1),
    "roll": lambda x: x.roll(2, 0),
    "cumsum": lambda x: x.cumsum(0) + x.cumsum(1),
    "sort": lambda x: x.sort(1)[0],
    "argmax": lambda x: x.argmax(0).cast(dtypes.float32) + x.argmax(1).sum(),
    "gather along": lambda x: x.gather(1, Tensor([[0, 3], [1, 1], [2, 0], [3, 3], [0, 0], [1, 2]]).shard_like(x)),
    "rows by index": lambda x: x[Tensor([5, 0, 0, 2]).to(x.device)],
    "one hot": lambda x: (x > 0).cast(dtypes.int32).one_hot(2).sum(0),
    "matmul": lambda x: x @ x.T,
    "contraction": lambda x: x.T @ x,
    "detach": lambda x: x.detach().contiguous() + x.contiguous_backward(),
    "where": lambda x: (x > 0).where(x, -1),
    "triangle": lambda x: x.triu() + x.tril(-1) * 3,
    "nothing": lambda x: x[2:2].sum(0) + 1,
    "gathered": lambda x: x.to("CPU") + 1,
    "to another device": lambda x: x.to("PYTHON") * 2,
    "divided anew": lambda x: x.shard(DEVICES[::-1], 1) + 1,
    "windows": lambda x: x.reshape(6, 1, 2, 2).pad((1, 1, 1, 1)).max_pool2d(2, 1),
    "convolution": lambda x: x.reshape(2, 3, 2, 2).conv2d(Tensor.ones(2, 3, 2, 2, device=x.device)),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_family(name: str, layout: int | None, count: int) -> None:
    check_division(UNARY[name](leaf(X, layout, count)))


# One row of each op, and a layout for each; random numbers and memory that nobody has written have no value to compare.
# The interpreter would take minutes for the iterations of svd, as in tests/ops/test_table.py.
ROWS = {
    row.op: row
    for row in reversed(TABLE)
    if row.check is None and not row.creates and "empty" not in row.op and row.op != "svd"
}


# Factorisations want whole matrices; a divided one is refused.
WHOLE_MATRICES = ("qr", "svd")


def test_a_divided_matrix_is_not_factored() -> None:
    for name in WHOLE_MATRICES:
        with pytest.raises(UnsupportedError, match="sharded along axis 0"):
            getattr(leaf(X, 0), name)()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_an_op_of_the_table(name: str) -> None:
    row = ROWS[name]
    layout = None if name in WHOLE_MATRICES else LAYOUTS[zlib.crc32(name.encode()) % 3]
    arrays = row.arrays("float32" if "float32" in row.dtypes else row.dtypes[0])
    given = [leaf(array, None if layout is None or array.ndim <= layout else layout) for array in arrays]
    found = row.call(*given)
    for result in found if isinstance(found, tuple | list) else (found,):
        if isinstance(result, Tensor) and result.numel():
            check_division(result)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "where": lambda x, y: (x > y).where(x, y * 2),
    "matmul": lambda x, y: x @ y.T,
    "contraction": lambda x, y: x.T @ y,
    "cat": lambda x, y: x.cat(y),
    "slices": lambda x, y: x[:3] + y[3:],
    "gather": lambda x, y: x.gather(0, (y > 0).cast(dtypes.int32)),
    "statistics": lambda x, y: (x - y.mean(0)) / y.std(0),
    "assign": lambda x, y: x.contiguous().assign(y * 2),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_two_layouts(name: str, left: int | None, right: int | None) -> None:
    check_division(BINARY[name](leaf(X, left), leaf(Y, right)))


def test_a_slice_of_what_is_updated() -> None:
    for layout in LAYOUTS:
        for view in (
            lambda x: x[1:5],
            lambda x: x[:, 1:3],
            lambda x: x.T,
            lambda x: x.flip(0),
            lambda x: x.reshape(24),
        ):
            base = leaf(X, layout).contiguous()
            seen = view(base)
            seen.assign(seen * 2 + 1)
            check_division(base)


# ---------------------------------------------------------------- what moves


@pytest.mark.parametrize(
    ("expression", "moved"),
    [
        (lambda x, whole, other: x * 2 + 1, 0),
        (lambda x, whole, other: x + whole, 0),
        (lambda x, whole, other: whole @ whole.T, 0),
        (lambda x, whole, other: x @ whole.T, 0),
        (lambda x, whole, other: x.softmax(1), 0),
        (lambda x, whole, other: x[0:3].exp(), 0),
        (lambda x, whole, other: x.reshape(2, 12).T, 0),
        (lambda x, whole, other: x.sum(), 2),
        (lambda x, whole, other: x + other, 2),
        (lambda x, whole, other: x.flip(0), 2),
        (lambda x, whole, other: other.reshape(24), 2),
        (lambda x, whole, other: x.to("CPU"), 1),
    ],
)
def test_no_more_moves_than_has_to(expression: Callable[[Tensor, Tensor, Tensor], Tensor], moved: int) -> None:
    """`moved` parts go to the other of two devices."""
    made = expression(leaf(X, 0), leaf(X, None), leaf(X, 1))
    assert copies(check_division(made)) == moved


def test_views_are_moved_before_they_are_expanded() -> None:
    """A product of matrices repeats both: what a device lacks is sent once."""
    x = leaf(X, 0)
    division = check_division(x @ x.T)
    sent = [node for node in toposort(*division.nodes) if node.op is Ops.COPY and node.src[0].op is Ops.COPY]
    assert [node.shape for node in sent] == [(3, 4), (3, 4)]


def test_the_more_even_layout_is_kept() -> None:
    x = leaf(X, 0)
    uneven = x[:3].pad(((0, 3), (0, 0)))
    assert check_division(uneven + x).arg is not None
    (division,) = divide_graph(((x[0:2].expand(2, 4) + Tensor(Y[:2]).shard(DEVICES[:2], 0)).uop,))
    assert [part.shape for part in division.nodes] == [(1, 4), (1, 4)]


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("layout", "old", "new", "wanted"),
    [
        (Layout(0, (4, 4)), (8, 6), (2, 4, 6), Layout(0, (1, 1))),
        (Layout(0, (4, 4)), (8, 6), (48,), Layout(0, (24, 24))),
        (Layout(0, (4, 4)), (8, 6), (16, 3), Layout(0, (8, 8))),
        (Layout(0, (4, 4)), (8, 6), (1, 8, 6), Layout(1, (4, 4))),
        (Layout(1, (3, 3)), (8, 6), (8, 2, 3), Layout(1, (1, 1))),
        (Layout(1, (3, 3)), (8, 6), (8, 3, 2), None),
        (Layout(1, (3, 3)), (8, 6), (48,), None),
        (Layout(1, (3, 3)), (1, 6), (6,), Layout(0, (3, 3))),
        (Layout(0, (3, 2)), (5, 4), (20,), Layout(0, (12, 8))),
        (Layout(0, (3, 3)), (6, 4), (4, 6), Layout(0, (2, 2))),
        (Layout(0, (3, 3)), (6, 4), (3, 8), None),
        (Layout(0, (2, 0)), (2, 4), (8,), Layout(0, (8, 0))),
    ],
)
def test_the_layout_after_a_reshape(
    layout: Layout, old: tuple[int, ...], new: tuple[int, ...], wanted: Layout | None
) -> None:
    assert reshaped(layout, old, new) == wanted


def test_the_layout_of_a_stretch() -> None:
    assert shrunk(Layout(0, (3, 3)), 1, 5) == (Layout(0, (2, 2)), [(1, 3), (0, 2)])
    assert shrunk(Layout(0, (3, 3)), 3, 5) == (Layout(0, (0, 2)), [(3, 3), (0, 2)])
    assert shrunk(Layout(0, (3, 3)), 2, 2) == (Layout(0, (0, 0)), [(2, 2), (0, 0)])


# ---------------------------------------------------------------- chains


def random_step(rng: np.random.Generator, x: Tensor, others: list[Tensor]) -> Tensor:
    """One more operation on a tensor of two axes, which has two axes afterwards."""
    rows, columns = x.shape
    axis = int(rng.integers(2))
    steps: list[Callable[[], Tensor]] = [
        lambda: x.sin() * 2,
        lambda: x + x.flip(axis),
        lambda: x.T,
        lambda: x - x.sum(axis, keepdim=True),
        lambda: x.max(axis, keepdim=True).expand(rows, columns) - x,
        lambda: x.pad(((1, 0), (0, 2)) if axis else ((2, 1), (0, 0))).sin(),
        lambda: x.cat(x.cos(), dim=axis),
        lambda: x[int(rng.integers(rows)) :] if rows > 1 else x,
        lambda: x[:, : int(rng.integers(1, columns + 1))],
        lambda: x.reshape(columns, rows),
        lambda: (x.reshape(rows * columns, 1) + x.reshape(1, rows * columns))[:rows, :columns],
        lambda: x.contiguous().detach(),
        lambda: x[Tensor(rng.integers(0, rows, 3).astype(np.int32)).shard(DEVICES[: len(x.device)])],
        lambda: x.cumsum(axis).sin(),
        lambda: x.shard(DEVICES[: len(x.device)], axis) * 1.5,
        lambda: (x > 0).where(x, Tensor.arange(columns, device=x.device).cast(dtypes.float32)),
    ]
    same = [other for other in others if other.shape == x.shape]
    if same:
        steps += [lambda: x * same[0].cos(), lambda: (x @ same[-1].T).sin()]
    return steps[int(rng.integers(len(steps)))]()


@pytest.mark.parametrize("seed", range(60))
def test_chains_of_operations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 4))
    others: list[Tensor] = []
    for _ in range(2):
        values = rng.standard_normal((int(rng.integers(1, 6)), int(rng.integers(1, 6)))).astype(np.float32)
        others.append(leaf(values, LAYOUTS[int(rng.integers(3))], count))
    x = others[0]
    for _ in range(int(rng.integers(2, 7))):
        x = random_step(rng, x, others)
        if max(x.shape) > 40:
            x = x[:8, :8]
        others.append(x)
    check_division(x)
