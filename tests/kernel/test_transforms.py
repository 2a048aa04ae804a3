"""Kernel transforms: UPCAST, UNROLL, THREAD, LOCAL and PADTO, alone and in random rows, leave a kernel's result as it
is, and what they may not do is refused with the axis, the size and the rule.

Kernels are taken from schedules. The plain kernel, interpreted, says what is right; inputs are whole numbers, so that
every order of a sum is exact and equality is equality. The emulator checks bounds, races and unwritten memory on the
way."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tests.fuzz.generate import make_case
from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import KernelOptError
from tilewright.engine.compile import compile_kernel, forget_kernels
from tilewright.graph import build
from tilewright.graph.evaluate import evaluate_kernel, numpy_dtype
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort
from tilewright.kernel.axes import size_of, view_kernel
from tilewright.kernel.optimise import TRANSFORMS, apply_opt, describe_axes
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import schedule

UPCAST, UNROLL, THREAD, LOCAL, PADTO = OptOps.UPCAST, OptOps.UNROLL, OptOps.THREAD, OptOps.LOCAL, OptOps.PADTO
Builder = Callable[[], UOp]


def leaf(slot: int, *shape: int, dtype=dtypes.float32) -> UOp:
    return build.reshape(UOp(Ops.PARAM, dtype, (), ParamArg(slot, math.prod(shape), "CPU")), shape)


def kernel_of(output: UOp) -> UOp:
    """The one kernel of a graph."""
    params = sorted((node for node in toposort(output) if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    (item,) = schedule([output], params, "CPU").items
    assert item.ast is not None
    return item.ast


def contents(sink: UOp, seed: int = 0) -> dict[UOp, np.ndarray]:
    """Small whole numbers for every buffer; what the kernel writes starts as something it would not write."""
    numbers = np.random.default_rng(seed)
    written = sink.src[0].src[0].src[0]
    found = {}
    for node in toposort(sink):
        if node.op is Ops.PARAM:
            low = 0 if node.dtype.is_unsigned or node.dtype.is_bool else -3
            data = numbers.integers(low, 2 if node.dtype.is_bool else 4, node.arg.size)
            found[node] = data.astype(numpy_dtype(node.dtype))
            if node is written and not node.dtype.is_bool:
                found[node][:] = 77
    return found


def run(sink: UOp, opts: tuple[Opt, ...], device: str, data: dict[UOp, np.ndarray]) -> np.ndarray:
    """What the kernel with these opts leaves in the memory it writes."""
    named = sink.replace(arg=KernelInfo("test", opts_to_apply=opts))
    with Context(VERIFY_GRAPH=1, CACHE=0):
        compiled = compile_kernel(named, device)
    driver = open_driver(device)
    places = []
    for param in compiled.program.params:
        given = next(values for node, values in data.items() if node.arg.slot == param.slot)
        memory = driver.allocate(max(given.nbytes, 1))
        memory.view()[: given.nbytes] = given.tobytes()
        if param.is_read:
            getattr(memory, "mark_written", lambda: None)()
        places.append((memory, 0))
    driver.prepare([(compiled.handle, places)]).run()
    driver.synchronize()
    written = next(values for node, values in data.items() if node.arg.slot == 0)
    return np.frombuffer(bytes(places[0][0].view()[: written.nbytes]), written.dtype)


def expected_of(sink: UOp, data: dict[UOp, np.ndarray]) -> np.ndarray:
    return evaluate_kernel(sink, {node: values.copy() for node, values in data.items()})[0]


def check(sink: UOp, opts: tuple[Opt, ...], devices: tuple[str, ...], seed: int = 0) -> None:
    data = contents(sink, seed)
    expected = expected_of(sink, data)
    for device in devices:
        got = run(sink, opts, device, data)
        np.testing.assert_array_equal(got, expected, err_msg=f"{device} {opts}")


# ---------------------------------------------------------------- kernels written by hand


def add(x: UOp, y: UOp) -> UOp:
    return build.alu(Ops.ADD, x, y)


def mul(x: UOp, y: UOp) -> UOp:
    return build.alu(Ops.MUL, x, y)


def elementwise() -> UOp:
    return add(leaf(0, 12, 10), mul(leaf(1, 12, 10), leaf(2, 12, 10)))


def transposed() -> UOp:
    return add(build.permute(leaf(0, 10, 12), (1, 0)), build.flip(leaf(1, 12, 10), (1,)))


def row_sums() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 12, 24), (1,))


def column_sums() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 24, 12), (0,))


def product() -> UOp:
    x, y = leaf(0, 6, 8), leaf(1, 8, 10)
    left = build.expand(build.reshape(x, (6, 8, 1)), (6, 8, 10))
    right = build.expand(build.reshape(y, (1, 8, 10)), (6, 8, 10))
    return build.reduce_axis(Ops.ADD, mul(left, right), (1,))


def rows_less_their_greatest() -> UOp:
    """Two reductions over the same rows, one after the other, and an epilogue: softmax with whole numbers."""
    x = leaf(0, 8, 12)
    centred = build.alu(Ops.SUB, x, build.expand(build.reduce_axis(Ops.MAX, x, (1,)), (8, 12)))
    return build.alu(Ops.SUB, centred, build.expand(build.reduce_axis(Ops.ADD, centred, (1,)), (8, 12)))


def greatest_of_negatives() -> UOp:
    x = leaf(0, 6, 10)
    return build.reduce_axis(Ops.MAX, build.alu(Ops.SUB, x, build.const(x.dtype, 50.0, x.shape)), (1,))


def products_of_rows() -> UOp:
    return build.reduce_axis(Ops.MUL, leaf(0, 5, 6, dtype=dtypes.int64), (1,))


def padded() -> UOp:
    x = leaf(0, 6, 7)
    moved = add(build.pad(x, ((1, 2), (2, 3))), build.pad(x, ((3, 0), (0, 5))))
    return build.reduce_axis(Ops.ADD, moved, (1,))


def gathered() -> UOp:
    table, index = leaf(0, 5, 4, dtype=dtypes.int32), leaf(1, 12, dtype=dtypes.int32)
    return build.gather(table, index, build.alu(Ops.SUB, index, build.const(dtypes.int32, 1, (12,))))


def counted() -> UOp:
    x = leaf(0, 9, 8, dtype=dtypes.int32)
    return add(mul(build.axis_iota((9, 8), 0), x), build.axis_iota((9, 8), 1))


def a_bool() -> UOp:
    x = leaf(0, 12, 10)
    return build.alu(Ops.CMPLT, x, build.permute(leaf(1, 10, 12), (1, 0)))


def nested_sums() -> UOp:
    """A reduction over two axes at once."""
    return build.reduce_axis(Ops.ADD, leaf(0, 6, 4, 8), (0, 2))


def bytes_of_rows() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 4, 48, dtype=dtypes.uint8), (1,))


KERNELS: dict[str, Builder] = {
    function.__name__: function
    for function in (
        *(elementwise, transposed, row_sums, column_sums, product, rows_less_their_greatest, greatest_of_negatives),
        *(products_of_rows, padded, gathered, counted, a_bool, nested_sums, bytes_of_rows),
    )
}


def test_two_tiles_of_which_each_is_a_vector_somewhere() -> None:
    """The reduce tile is the vector of the loads, the output tile that of the store: its lanes are single results."""
    check(kernel("row_sums"), (Opt(UPCAST, 0, 4), Opt(UPCAST, 1, 8)), ("CPU", "PYTHON"))


@functools.cache
def kernel(name: str) -> UOp:
    return kernel_of(KERNELS[name]())


def legal_opts(sink: UOp, targets: tuple[OptOps, ...]) -> list[Opt]:
    """Every single opt with a small amount that its check allows."""
    view = view_kernel(sink)
    found = []
    for op in targets:
        for position, axis in enumerate(view.axes):
            for amount in dict.fromkeys((2, 3, 4, 5, 8, size_of(axis))):
                if TRANSFORMS[op].check(view, axis, amount) is None:
                    found.append(Opt(op, position, amount))
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_every_single_opt_on_the_emulator(name: str) -> None:
    for opt in ((), *((opt,) for opt in legal_opts(kernel(name), (UPCAST, UNROLL, THREAD, LOCAL, PADTO)))):
        check(kernel(name), opt, ("PYTHON",))


@pytest.mark.parametrize("name", KERNELS)
def test_every_single_opt_on_the_cpu(name: str) -> None:
    for opt in ((), *((opt,) for opt in legal_opts(kernel(name), (UPCAST, UNROLL, THREAD, PADTO)))):
        check(kernel(name), opt, ("CPU",))
    forget_kernels()


@pytest.mark.parametrize("name", KERNELS)
def test_the_heuristic_changes_nothing(name: str) -> None:
    sink = kernel(name)
    data = contents(sink)
    for device in ("CPU", "PYTHON"):
        named = sink.replace(arg=KernelInfo("test", opts_to_apply=None))
        assert named.arg.opts_to_apply is None
        np.testing.assert_array_equal(run_as_chosen(named, device, data), expected_of(sink, data))


def run_as_chosen(sink: UOp, device: str, data: dict[UOp, np.ndarray]) -> np.ndarray:
    return run(sink, None, device, data)  # type: ignore[arg-type]


# ---------------------------------------------------------------- rows of random opts


def random_opts(sink: UOp, chance: random.Random, allowed: tuple[OptOps, ...]) -> tuple[Opt, ...]:
    """Opts that are legal one after the other, the tile they make together not too large."""
    opts: list[Opt] = []
    for _ in range(chance.randint(1, 5)):
        view = view_kernel(sink)
        if not view.axes:
            break
        op = chance.choice(allowed)
        position = chance.randrange(len(view.axes))
        amount = chance.choice((1, 2, 3, 4, 5, 6, 8, 16, size_of(view.axes[position])))
        opt = Opt(op, position, amount)
        try:
            changed = apply_opt(sink, opt)
        except KernelOptError:
            continue
        tile = math.prod(size_of(axis) for axis in view_kernel(changed).axes if axis.arg.kind.is_tile)
        group = math.prod(size_of(axis) for axis in view_kernel(changed).of_kind(AxisType.LOCAL))
        if tile <= 64 and group <= 256:
            opts.append(opt)
            sink = changed
    return tuple(opts)


@pytest.mark.parametrize("name", KERNELS)
def test_random_rows_of_opts(name: str) -> None:
    for seed in range(8):
        chance = random.Random(f"{name} {seed}")
        check(
            kernel(name), random_opts(kernel(name), chance, (UPCAST, UPCAST, UNROLL, THREAD, PADTO)), ("CPU", "PYTHON")
        )
        check(kernel(name), random_opts(kernel(name), chance, (UPCAST, UNROLL, LOCAL, THREAD, PADTO)), ("PYTHON",))
    forget_kernels()


def random_kernels(seed: int) -> list[UOp]:
    """The kernels of a case of the fuzzer that have no floats, in which every order is exact, and no updates."""
    case = make_case(seed)
    if any(node.op in (Ops.ASSIGN, Ops.COPY) for node in toposort(*case.outputs)):
        return []
    params = list(case.bindings)
    exchanges = {node: node.replace(arg=ParamArg(k, node.arg.size, "CPU")) for k, node in enumerate(params)}
    outputs = substitute(case.sink, exchanges).src
    items = schedule(outputs, [exchanges[node] for node in params], "CPU").items
    kernels = [item.ast for item in items if item.ast is not None]
    return [ast for ast in kernels if not any(node.dtype.is_float for node in toposort(ast))]


@pytest.mark.parametrize("first", range(0, 240, 30))
def test_random_opts_on_random_kernels(first: int) -> None:
    tried = 0
    for seed in range(first, first + 30):
        for number, sink in enumerate(random_kernels(seed)):
            chance = random.Random(f"{seed} {number}")
            check(sink, random_opts(sink, chance, (UPCAST, UPCAST, UNROLL, THREAD, PADTO)), ("CPU", "PYTHON"), seed)
            check(sink, random_opts(sink, chance, (UPCAST, UNROLL, LOCAL, THREAD, PADTO)), ("PYTHON",), seed)
            tried += 1
    forget_kernels()
    assert tried > 3


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "opts", "words"),
    [
        ("elementwise", (Opt(UPCAST, 0, 5),), ("UPCAST", "amount 5", "size 12", "axis 0")),
        ("elementwise", (Opt(UPCAST, 1, 3),), ("UPCAST", "amount 3", "size 10", "axis 1")),
        ("elementwise", (Opt(UPCAST, 0, 0),), ("UPCAST", "amount 0", "axis 0")),
        ("elementwise", (Opt(UNROLL, 0, 4),), ("UNROLL", "reduce axis", "axis 0", "LOOP")),
        ("row_sums", (Opt(UNROLL, 1, 7),), ("UNROLL", "amount 7", "size 24", "axis 1")),
        ("row_sums", (Opt(THREAD, 1, 4),), ("THREAD", "output loop", "axis 1")),
        ("row_sums", (Opt(LOCAL, 1, 4),), ("LOCAL", "output loop", "axis 1")),
        ("elementwise", (Opt(LOCAL, 0, 7),), ("LOCAL", "amount 7", "size 12", "axis 0")),
        ("elementwise", (Opt(THREAD, 0, 12), Opt(THREAD, 1, 5)), ("THREAD", "given already")),
        ("elementwise", (Opt(PADTO, 0, 4),), ("PADTO", "size 12", "axis 0", "multiple")),
        ("elementwise", (Opt(PADTO, 0, 0),), ("PADTO", "0", "not positive")),
        ("elementwise", (Opt(UPCAST, 1, 10), Opt(PADTO, 1, 16)), ("PADTO", "axis 1", "UPCAST")),
        ("elementwise", (Opt(UPCAST, 1, 10), Opt(UPCAST, 1, 2)), ("UPCAST", "axis 1")),
        ("elementwise", (Opt(UPCAST, 2, 2),), ("axes 0 to 1", "LOOP(12)", "LOOP(10)")),
        ("elementwise", (Opt(UPCAST, -1, 2),), ("axes 0 to 1",)),
        ("elementwise", (Opt(OptOps.TC, 0, 2),), ("TC", "not available")),
    ],
)
def test_an_illegal_opt_is_refused_with_its_reason(name: str, opts: tuple[Opt, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(KernelOptError) as refusal:
        run(kernel(name), opts, "PYTHON", contents(kernel(name)))
    text = str(refusal.value)
    for word in words:
        assert word in text
    assert repr(opts[-1]) in text


def test_a_kernel_that_was_refused_can_be_run_with_other_opts() -> None:
    with pytest.raises(KernelOptError):
        run(kernel("elementwise"), (Opt(UPCAST, 0, 5),), "CPU", contents(kernel("elementwise")))
    check(kernel("elementwise"), (Opt(UPCAST, 0, 4),), ("CPU",))


@pytest.mark.parametrize("name", ["elementwise", "row_sums"])
def test_local_on_a_device_without_work_groups_is_refused(name: str) -> None:
    with pytest.raises(KernelOptError, match="LOCAL needs work-groups"):
        run(kernel(name), (Opt(LOCAL, 0, 4),), "CPU", contents(kernel(name)))


def test_a_work_group_larger_than_the_device_runs_is_refused() -> None:
    sink = kernel_of(add(leaf(0, 64, 64), leaf(1, 64, 64)))
    with pytest.raises(KernelOptError, match="work-group of 2048"):
        run(sink, (Opt(LOCAL, 0, 64), Opt(LOCAL, 1, 32)), "PYTHON", contents(sink))


# ---------------------------------------------------------------- shapes of the result


def test_a_split_keeps_the_number_of_iterations() -> None:
    for name in KERNELS:
        sink = kernel(name)
        count = math.prod(size_of(axis) for axis in view_kernel(sink).axes)
        for opt in legal_opts(sink, (UPCAST, UNROLL, THREAD, LOCAL)):
            after = view_kernel(apply_opt(sink, opt))
            assert math.prod(size_of(axis) for axis in after.axes) == count, describe_axes(after)


def test_padding_lengthens_one_axis_and_masks_it() -> None:
    sink = kernel("elementwise")
    after = view_kernel(apply_opt(sink, Opt(PADTO, 1, 16)))
    assert [size_of(axis) for axis in after.axes] == [12, 16]
    assert all(len(access.src) == 3 for access in after.accesses)


def test_the_graph_does_not_grow_with_the_unroll_factor() -> None:
    """Tiles stay axes until text is written: an UPCAST by 2 and one by 8 are graphs of one size."""
    sink = kernel("product")
    small, large = (
        toposort(apply_opt(apply_opt(sink, Opt(UPCAST, 0, a)), Opt(UNROLL, 2, b))) for a, b in ((2, 2), (3, 4))
    )
    assert len(small) == len(large)
