"""An index, or the label of a class, that is out of range was an error where the host knew its value, and silently read
0, wrote nothing or made NaN where it was computed or came to a jitted function. It is an error at the user's line when
the result is computed, on the CPU always and elsewhere with CHECK=1."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.devices import Setting, settings
from tilewright import Context, Tensor, jit, nn
from tilewright.base.config import options
from tilewright.base.errors import IndexingError
from tilewright.engine.compilation.compile import compile_drafts, draft_kernel
from tilewright.engine.execution.realize import schedule
from tilewright.graph.ops import AxisType, CheckArg, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.walk import toposort
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver

ROWS = 6
Operation = Callable[[Tensor], Tensor]


@pytest.fixture(params=["CPU", "PYTHON"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with Context(CHECK=0 if name == "CPU" else 1, DEVICE=name):
        yield name


def table(*shape: int) -> Tensor:
    count = int(np.prod(shape))
    return Tensor(np.arange(count, dtype=np.float32).reshape(shape)).realize()


def written(index: Tensor) -> Tensor:
    target = Tensor.zeros(ROWS, 3).contiguous()
    target[index] = 1.0
    return target


# Operations on three numbers of which the largest allowed one is ROWS - 1; the second column is the least allowed one.
OPERATIONS: dict[str, tuple[Operation, int, str]] = {
    "getitem": (lambda i: table(ROWS, 3)[i], -ROWS, "getitem"),
    "getitem-vector": (lambda i: table(ROWS)[i], -ROWS, "getitem"),
    "getitem-two": (lambda i: table(ROWS, ROWS)[i, i], -ROWS, "getitem"),
    "getitem-inner": (lambda i: table(2, ROWS, 5)[:, i], -ROWS, "getitem"),
    "getitem-0d": (lambda i: table(ROWS, 4)[i[0]] + table(ROWS, 4)[i[2]], -ROWS, "getitem"),
    "getitem-padded": (lambda i: table(ROWS)[i].pad(((3, 4),)), -ROWS, "getitem"),
    "getitem-summed": (lambda i: (table(ROWS, 40)[i] * 2).sum(), -ROWS, "getitem"),
    "setitem": (written, -ROWS, "setitem"),
    "gather": (lambda i: table(ROWS, 3).gather(0, i.reshape(3, 1)), -ROWS, "gather"),
    "scatter": (lambda i: table(ROWS).scatter(0, i, table(3)), -ROWS, "scatter"),
    "scatter_reduce": (lambda i: table(ROWS).scatter_reduce(0, i, table(3), "sum"), -ROWS, "scatter_reduce"),
    "Embedding": (lambda i: nn.Embedding(ROWS, 4)(i).ne(9.0), -ROWS, "getitem"),
    "gradient": (lambda i: gradient_of_rows(i), -ROWS, "getitem"),
    "one_hot": (lambda i: i.one_hot(ROWS), 0, "one_hot"),
    "cross_entropy": (lambda i: table(3, ROWS).cross_entropy(i), 0, "cross_entropy"),
    "smoothed": (lambda i: table(3, ROWS).cross_entropy(i, label_smoothing=0.1), 0, "cross_entropy"),
    "nll_loss": (lambda i: table(3, ROWS).nll_loss(i), 0, "nll_loss"),
    "sparse": (
        lambda i: table(3, ROWS).sparse_categorical_crossentropy(i, ignore_index=-9),
        0,
        "sparse_categorical_crossentropy",
    ),
}


def gradient_of_rows(index: Tensor) -> Tensor:
    weight = table(ROWS, 3).requires_grad_(True)
    return weight[index].sum().gradient(weight)[0]


def indices(*values: int, dtype: str = "int32") -> Tensor:
    """A tensor whose values are computed: the host does not know them."""
    return (Tensor(list(values), dtype=dtype) + Tensor([1] * len(values), dtype=dtype)) - 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_computed_index_out_of_range_is_an_error(name: str, device: str) -> None:
    operation, least, word = OPERATIONS[name]
    expected = operation(indices(0, ROWS - 1, least)).tolist()
    for bad in (ROWS, least - 1):
        result = operation(indices(0, bad, ROWS - 1) if name != "getitem-0d" else indices(0, 1, bad))
        with pytest.raises(IndexingError, match=rf"^{word}: .* {bad} is out of range for .*{ROWS}") as found:
            result.tolist()
        assert f"{least}..{ROWS - 1}" in found.value.remedy
        assert found.value.location is not None
        assert found.value.location[0] == __file__
    # What comes afterwards is as before.
    assert operation(indices(0, ROWS - 1, least)).tolist() == expected


@pytest.mark.parametrize("setting", [s for s in settings() if s.label not in ("CPU", "PYTHON")], ids=lambda s: s.label)
def test_compilers_of_text_check_too(setting: Setting) -> None:
    """Of every device, and the CPU's C text: what a gather reads, what a reduction is inside of, what is written."""
    with setting.options(), Context(CHECK=1, DEVICE=setting.device):
        for name in ("getitem-vector", "getitem-summed", "scatter"):
            operation, least, _ = OPERATIONS[name]
            operation(indices(0, ROWS - 1, least)).tolist()
            for bad in (ROWS, least - 1):
                with pytest.raises(IndexingError, match=f"index {bad} is out of range"):
                    operation(indices(0, bad, 1)).tolist()


REPLAYED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int, tuple[int, ...]]] = {
    "getitem": (lambda i, x: x[i], -ROWS, (ROWS, 3)),
    "gather": (lambda i, x: x.gather(0, i.reshape(3, 1)), -ROWS, (ROWS, 3)),
    "scatter": (lambda i, x: x.scatter(0, i, x[:3]), -ROWS, (ROWS,)),
    "setitem": (lambda i, x: written(i) + x, -ROWS, (ROWS, 3)),
    "one_hot": (lambda i, x: i.one_hot(ROWS) + x, 0, (3, ROWS)),
    "cross_entropy": (lambda i, x: x.cross_entropy(i), 0, (3, ROWS)),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_checks_its_own_index(name: str, device: str) -> None:
    operation, least, shape = REPLAYED[name]
    function, source = jit(operation), table(*shape)
    good = Tensor([0, ROWS - 1, least]).realize()
    expected = operation(good, source).tolist()
    for calls in (3, 4):  # the last of them take the fast path
        for _ in range(calls):
            function(good, source)
        assert function.last_reason == ""
        for bad in (ROWS, least - 1):
            with pytest.raises(IndexingError, match=f"{name}: .* {bad} is out of range"):
                function(indices(0, 1, bad).realize(), source)
            assert function(good, source).tolist() == expected
            assert function.last_reason == ""
    assert function._fast_paths


def test_replays_are_what_is_tested() -> None:
    """A jitted lookup and a jitted loss are replayed, and fail there."""
    embedding = nn.Embedding(ROWS, 4)
    lookup = jit(lambda i: embedding(i).sum())
    loss = jit(lambda x, y: x.cross_entropy(y))
    logits = table(2, ROWS)
    for labels in ([0, 1], [2, 3], [4, 5], [-100, 1]):
        numbers = Tensor(labels).realize()
        loss(logits, numbers)
        if labels[0] >= 0:
            lookup(numbers)
    assert (lookup.last_reason, loss.last_reason) == ("", "")
    for call in (lambda: lookup(indices(1, ROWS).realize()), lambda: loss(logits, indices(1, -1).realize())):
        with pytest.raises(IndexingError):
            call()
    assert np.isfinite(loss(logits, Tensor([1, 2]).realize()).item())


def test_the_line_is_that_of_this_graph() -> None:
    """Equal graphs share a schedule and kernels; each has lines of its own."""
    source = table(ROWS)
    lines = []
    for number in range(3):
        index = indices(number, ROWS + number)
        if number == 1:
            result, line = source[index], inspect.currentframe().f_lineno  # type: ignore[union-attr]
        else:
            result, line = source[index], inspect.currentframe().f_lineno  # type: ignore[union-attr]
        with pytest.raises(IndexingError, match=f"index {ROWS + number} ") as found:
            result.realize()
        assert found.value.location == (__file__, line)
        lines.append(line)
    assert lines[0] == lines[2] != lines[1]


def test_an_error_belongs_to_the_tensors_that_need_the_index() -> None:
    source = table(ROWS)
    bad, good, other = source[indices(1, 9)], source[indices(1, 2)], source + 1
    with pytest.raises(IndexingError, match="index 9"):
        bad.realize(good, other)
    assert good.tolist() == [1.0, 2.0]
    assert other.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for _ in range(2):  # a tensor that has no value never gets one
        with pytest.raises(IndexingError, match="index 9"):
            bad.numpy()
        with pytest.raises(IndexingError, match="index 9"):
            (bad * 2 + other[:2]).sum().item()


def test_an_update_is_done_and_reported_once() -> None:
    target = table(ROWS)
    target[indices(0, 8, 2)] = Tensor([7.0, 8.0, 9.0])
    with pytest.raises(IndexingError, match="setitem: index 8 is out of range for axis 0"):
        target.realize()
    assert target.tolist() == [7.0, 1.0, 9.0, 3.0, 4.0, 5.0]
    doubled = jit(lambda x: x * 2)  # which realises whatever is pending
    for _ in range(3):
        assert doubled(table(2)).tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "size", "good", "bad"),
    [
        ("int8", 100, [99, -100], 100),
        ("int8", 100, [0, 99], -101),
        ("uint8", 200, [199, 0], 200),
        ("uint16", 6, [5, 0], 65535),
        ("uint32", 6, [5, 0], (1 << 32) - 1),
        ("int64", 6, [5, -6], 1 << 40),
        ("int64", 6, [5, -6], -(1 << 40)),
        ("uint64", 6, [5, 0], (1 << 63) + 5),
    ],
)
def test_values_of_every_width(dtype: str, size: int, good: list[int], bad: int) -> None:
    source = table(size)
    held = Tensor(np.array(good, dtype=dtype)).contiguous() | 0
    assert source[held].tolist() == [float(range(size)[value]) for value in good]
    with pytest.raises(IndexingError, match=f"index {bad} is out of range"):
        source[Tensor(np.array([good[0], bad], dtype=dtype)).contiguous() | 0].realize()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_an_index_that_cannot_be_outside_is_not_checked(dtype: str) -> None:
    item = schedule([table(70000)[Tensor([1, 2], dtype=dtype) + 1].uop], "CPU").items[-1]
    assert item.checks == ()
    assert schedule([table(6)[indices(7, 8, 9) % 6].uop], "CPU").items[-1].checks == ()


def test_large_and_odd_shapes() -> None:
    """One bad number among many is found by every lane, tile and thread."""
    generator = np.random.default_rng(0)
    for shape in ((100_003,), (317, 33), (5, 7, 1025)):
        values = generator.integers(0, 1000, shape).astype(np.int32)
        source = table(1000)
        held = Tensor(values).realize()
        assert np.array_equal((source[held * 1]).numpy(), values.astype(np.float32))
        for _ in range(3):
            place = tuple(int(generator.integers(0, size)) for size in shape)
            wrong = values.copy()
            wrong[place] = 1000
            with pytest.raises(IndexingError, match="index 1000 "):
                source[Tensor(wrong).realize()].realize()


def test_elements_that_do_not_exist_are_no_indices(device: str) -> None:
    """A masked load gives 0; 0 + 5 is out of range of 5 rows, but it is the index of no element."""
    index = Tensor(np.array([-5, -1, -4], np.int32)).realize() + 5
    row = table(5)[index]
    assert row.pad(((2, 3),)).tolist() == [0.0, 0.0, 0.0, 4.0, 1.0, 0.0, 0.0, 0.0]
    assert Tensor.cat(row, row + 1).tolist() == [0.0, 4.0, 1.0, 1.0, 5.0, 2.0]
    assert row.pad(((0, 30),)).sum().item() == 5.0


def test_what_is_not_computed_is_not_checked() -> None:
    assert table(ROWS)[indices(0, 3, 99)][:2].tolist() == [0.0, 3.0]


def test_nothing_to_index() -> None:
    assert table(ROWS)[indices()].shape == (0,)
    assert Tensor.zeros(0, 3)[Tensor.zeros(0, dtype="int32")].shape == (0, 3)
    assert Tensor.zeros(0, dtype="int32").one_hot(3).shape == (0, 3)
    for call in (
        lambda: Tensor.zeros(0, 3)[indices(0)],
        lambda: Tensor.zeros(0, 3).gather(0, indices(0).reshape(1, 1)),
    ):
        with pytest.raises(IndexingError, match="no elements"):
            call()


def test_known_labels_fail_at_once() -> None:
    for call in (
        lambda: Tensor([0, 3]).one_hot(3),
        lambda: Tensor([0, -1]).one_hot(3),
        lambda: table(2, 3).cross_entropy(Tensor([0, 3])),
        lambda: table(2, 3).nll_loss(Tensor([-1, 0])),
    ):
        with pytest.raises(IndexingError, match="out of range for 3 classes"):
            call()


def test_the_index_of_several_devices() -> None:
    devices = ("CPU:0", "CPU:1")
    source = table(ROWS).shard(devices)
    assert source[(Tensor([0, 1, 2, 3]).shard(devices, axis=0) * 1)].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(IndexingError, match="index 8 "):
        source[(Tensor([0, 1, 2, 4]).shard(devices, axis=0) * 2)].tolist()


def test_other_devices_check_where_asked_to() -> None:
    """The option is part of what schedules and kernels are kept under."""
    for _ in range(2):
        source, index = table(ROWS).to("PYTHON"), Tensor([0, 4], device="PYTHON") * 2
        with Context(CHECK=0):
            assert source[index].tolist() == [0.0, 0.0]
            assert np.isnan(table(1, ROWS).to("PYTHON").cross_entropy(index[1:]).item())
        with Context(CHECK=1), pytest.raises(IndexingError, match="index 8 "):
            source[index].tolist()
    assert options.CHECK == 0


@pytest.mark.parametrize("chosen", [{"NOOPT": 1}, {"FUSE": 0}, {"FOLD_REDUCE": 0}, {"VERIFY": 1}, {"VERIFY_GRAPH": 1}])
def test_under_every_option(chosen: dict[str, Any]) -> None:
    with Context(**chosen):
        for name in ("getitem-summed", "scatter_reduce", "gradient", "cross_entropy"):
            operation, least, _ = OPERATIONS[name]
            operation(indices(0, ROWS - 1, least)).realize()
            with pytest.raises(IndexingError):
                operation(indices(0, ROWS, 1)).realize()


def test_equal_lookups_are_one_kernel() -> None:
    source = table(ROWS)
    rows = [source[Tensor([k, k + 1]).realize()].contiguous() for k in range(3)]
    items = schedule([row.uop for row in rows], "CPU").items
    kernels = {item.ast for item in items if item.checks}
    assert len(kernels) == 1
    assert sorted(number for item in items for number in item.checks) == [0, 1, 2]


def test_padto_masks_checks() -> None:
    """A loop that PADTO makes longer asks for no index that does not exist: 0 + 5 would be outside."""
    index = Tensor(np.array([-5] * 10, np.int32)).realize() + 5
    (item,) = schedule([table(5)[index].uop], "CPU").items
    padded = optimise(item.ast, open_driver("CPU").target, (Opt(OptOps.PADTO, 0, 8),))
    (check,) = (node for node in toposort(padded) if node.op is Ops.CHECK)
    (loop,) = (node for node in toposort(padded) if node.op is Ops.RANGE and node.arg.kind is AxisType.LOOP)
    assert check.src[1] is (loop < 10)


@pytest.mark.parametrize("lanes", [8, 64, 128])
def test_checks_of_any_number_of_lanes(lanes: int) -> None:
    """The lane of a failure is counted in an integer of as many bits, which 64 do not always hold."""
    index = Tensor(np.zeros(384, np.int32)).realize() + 1
    (item,) = schedule([table(5)[index].uop], "CPU").items
    assert item.ast is not None
    draft = draft_kernel(item.ast, "CPU", (Opt(OptOps.UPCAST, 0, lanes),))
    assert f"llvm.cttz.i{lanes}" in draft.source
    compile_drafts([draft])
    assert draft.binary


def test_a_large_lookup_and_its_gradient_keep_their_transforms() -> None:
    """The sum by index still walks the terms once, checks and all."""
    weight = Tensor.zeros(3000, 64).contiguous().realize().requires_grad_(True)
    index = Tensor(np.arange(512, dtype=np.int32)).realize()
    gradient = (weight[index] * weight[index]).sum().gradient(weight)[0]
    items = [item for item in schedule([gradient.uop], "CPU").items if item.ast is not None]
    kernels = [optimise(item.ast, open_driver("CPU").target) for item in items if item.ast is not None]
    turned = [OptOps.SCATTER in [opt.op for opt in kernel.arg.applied] for kernel in kernels]
    assert turned.count(True) == 1
    assert not items[turned.index(True)].checks
    assert [item.checks for item in items if item.checks] == [(0,), (0,)]


@pytest.mark.torch
def test_ignored_labels_as_torch_has_them() -> None:
    import torch

    generator = np.random.default_rng(1)
    logits = generator.standard_normal((6, 4)).astype(np.float32)
    labels = np.array([0, -100, 3, 1, -100, 2], np.int64)
    weight = np.array([1.0, 2.0, 0.5, 3.0], np.float32)
    ours, theirs = (Tensor(logits), Tensor(labels)), (torch.tensor(logits), torch.tensor(labels))
    for reduction in ("mean", "sum", "none"):
        got = ours[0].cross_entropy(ours[1], reduction=reduction).numpy()
        want = torch.nn.functional.cross_entropy(*theirs, reduction=reduction).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5)
        got = ours[0].log_softmax().nll_loss(ours[1], weight=Tensor(weight), reduction=reduction).numpy()
        logs = torch.nn.functional.log_softmax(theirs[0], dim=1)
        want = torch.nn.functional.nll_loss(logs, theirs[1], torch.tensor(weight), reduction=reduction).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_ignored_label_by_default() -> None:
    logits = table(3, ROWS)
    labels = indices(1, -100, 2)
    kept = Tensor(logits.numpy()[[0, 2]]).cross_entropy(Tensor([1, 2])).item()
    assert logits.cross_entropy(labels).item() == pytest.approx(kept)
    assert logits.log_softmax().nll_loss(labels).item() == pytest.approx(kept)
    assert logits.cross_entropy(indices(1, 5, 2), ignore_index=5).item() == pytest.approx(kept)
    # Unsigned labels have none that is ignored.
    assert (
        logits.cross_entropy(Tensor([1, 3, 2], dtype="uint8")).item() == logits.cross_entropy(indices(1, 3, 2)).item()
    )
    with pytest.raises(IndexingError, match="class -100 "):
        logits.cross_entropy(labels, ignore_index=2).item()


def test_a_check_is_a_node_like_others() -> None:
    """Its text comes back, and the interpreter knows it."""
    from tilewright.graph.interpreter.evaluate import evaluate
    from tilewright.graph.text.parse import parse
    from tilewright.graph.text.show import show

    buffer = Tensor([-1, 2]).uop
    index = table(4)[Tensor._from_uop(buffer, "CPU")].uop.src[1]
    assert (index.op, index.arg) == (Ops.CHECK, CheckArg(4, True, operation="getitem", of_what="axis 0 of shape (4,)"))
    assert parse(show(index)) is index
    assert evaluate(index, {buffer: np.array([-1, 2], np.int32)}).tolist() == [3, 2]
