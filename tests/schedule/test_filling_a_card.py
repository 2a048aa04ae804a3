"""Kernels with work for every multiprocessor of a card: products of few tiles are summed in parts, and a reduction is
not computed in a kernel whose few rows would be all that runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tests.kernel.kernels import leaf
from tilewright import Tensor
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType, dtypes
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.optimise import optimise
from tilewright.schedule.fusion import fuse
from tilewright.schedule.pipeline import schedule
from tilewright.schedule.preparation import product_parts
from tilewright.schedule.preparation.product_parts import is_product
from tilewright.schedule.preparation.reduction import split_reduction

CARD = cuda_target()
# Work that is worth more than one multiprocessor.
LARGE = 1 << 20


def product(rows: int, columns: int, summed: int, batch: int = 1, dtype: DType = dtypes.bfloat16) -> UOp:
    whole = (batch, rows, columns, summed)
    left = build.expand(build.reshape(leaf(0, batch, rows, summed, dtype=dtype), (batch, rows, 1, summed)), whole)
    right = build.expand(
        build.reshape(leaf(1, batch, columns, summed, dtype=dtype), (batch, 1, columns, summed)), whole
    )
    wide = [build.cast(factor, dtypes.float32) for factor in (left, right)]
    return build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, *wide), (3,))


def parts_of(split: UOp) -> int:
    """The first axis of the sums that are stored."""
    (sums,) = [node for node in toposort(split) if node.op is Ops.CONTIGUOUS and Ops.REDUCE_AXIS in below(node)]
    return sums.shape[0]


def below(node: UOp) -> tuple[Ops, Ops]:
    """The op of what a node stores, and what that is an order of."""
    source = node.src[0]
    return source.op, source.src[0].op


@pytest.mark.parametrize("sides", [(8, 256), (46, 128), (52, 3072), (490, 23), (128, 128)], ids=str)
@pytest.mark.parametrize("summed", [32768, 24000, 65537 * 3])
def test_a_product_of_few_tiles_is_summed_in_parts(sides: tuple[int, int], summed: int) -> None:
    split = split_reduction(product(*sides, summed), CARD)
    assert split is not None
    rows, columns = max(sides), min(sides)
    tiles = -(-rows // 128) * -(-columns // 128) * parts_of(split)
    assert tiles >= CARD.cores // 3
    assert split.shape == (1, *sides, 1)


@pytest.mark.parametrize("sides", [(4096, 4096, 4096), (8192, 768, 3072), (768, 3072, 8192), (512, 512, 64)], ids=str)
def test_a_product_that_fills_the_card_stays_whole(sides: tuple[int, int, int]) -> None:
    assert split_reduction(product(*sides), CARD) is None
    assert split_reduction(product(1024, 64, 1024, batch=96), CARD) is None


@pytest.mark.parametrize("summed", [8192, 8191])
def test_a_cast_in_front_of_the_broadcast_is_looked_through(summed: int) -> None:
    """The gradient of a linear layer: its factors are bfloat16 in memory, so it has the rate of tensor cores."""
    whole = (768, 3072, summed)
    sides = ((768, 1, summed), (1, 3072, summed))
    wide = [build.cast(leaf(slot, *side, dtype=dtypes.bfloat16), dtypes.float32) for slot, side in enumerate(sides)]
    factors = [build.expand(factor, whole) for factor in wide]
    assert split_reduction(build.reduce_axis(Ops.ADD, build.alu(Ops.MUL, *factors), (2,)), CARD) is None


def test_sums_in_parts_keep_their_dtype() -> None:
    """A sum in bfloat16 would be rounded once for each part."""
    node = product(8, 256, 32768)
    short = build.reduce_axis(Ops.ADD, build.cast(node.src[0], dtypes.bfloat16), (3,))
    assert split_reduction(short, CARD) is None


@pytest.mark.parametrize(
    ("rows", "columns", "has_zeros"), [(511, 513, True), (333, 257, True), (1, 1024, False), (512, 8, True)]
)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_a_sum_without_equal_parts_is_filled_up_with_zeros(
    rows: int, columns: int, has_zeros: bool, dtype: DType
) -> None:
    """Where copies of both factors, which have their dtype, take less time than the parts save."""
    node = product(rows, columns, 65537, dtype=dtype)
    split = split_reduction(node, CARD)
    pads = [] if split is None else [each for each in toposort(split) if each.op is Ops.PAD]
    assert {pad.dtype for pad in pads} == ({dtype} if has_zeros else set())
    if has_zeros and split is not None:
        tiles = -(-rows // 128) * -(-columns // 128) * parts_of(split)
        assert tiles >= CARD.cores // 3


def test_the_gradient_of_padded_weights_is_a_sum_of_a_product() -> None:
    """The part that is not padding was taken of the product, which had two work-groups for 694800 terms."""
    x, weight, upstream = (Tensor.empty(*shape) for shape in ((694800, 4), (31, 3), (694800, 31)))
    (slope,) = (x @ weight.pad((0, 1)).T).gradient(weight, gradient=upstream)
    (total,) = [node for node in toposort(slope.uop) if node.op is Ops.REDUCE_AXIS]
    assert is_product(total.src[0], total.arg[1])
    split = split_reduction(total, CARD)
    assert split is not None
    assert parts_of(split) >= CARD.cores // 3


def test_the_parts_of_a_product_are_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_parts, "MIN_SUMMED", 2)
    card = replace(CARD, launch_clocks=0.0)
    numbers = np.random.default_rng(3)
    for *sides, has_zeros in ((3, 5, 24, False), (4, 7, 60, False), (2, 2, 1 << 10, False), (70, 65, 2039, True)):
        node = product(*sides, batch=2, dtype=dtypes.float32)
        split = split_reduction(node, card)
        assert split is not None
        assert has_zeros == any(each.op is Ops.PAD for each in toposort(split))
        values = {
            param: numbers.integers(-4, 5, element_count(param.shape)).astype(np.float32)
            for param in toposort(node)
            if param.op is Ops.PARAM
        }
        whole, parts = (evaluate_all((each,), values)[0] for each in (node, split))
        np.testing.assert_array_equal(whole, parts)


def test_masked_parts_of_windows_are_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_parts, "MIN_SUMMED", 4)
    numbers = np.random.default_rng(4)
    arrays = [numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 5, 95), (3, 5, 3), (2, 3, 47))]

    def slope_of(device: str) -> np.ndarray:
        x, weight, upstream = (Tensor(array, device=device) for array in arrays)
        return x.conv2d(weight, stride=2).gradient(weight, gradient=upstream)[0].numpy()

    cores = cuda_target().tensor_cores
    with emulated_card(cores=64, launch_clocks=0.0, tensor_cores=cores) as card:
        found = slope_of(NAME)
        assert any(program.name.startswith("reduce_3_5_3_") for program in card.programs)  # the sum of the parts
    np.testing.assert_array_equal(found, slope_of("CPU"))


@pytest.mark.parametrize(("channels", "side"), [(64, 56), (128, 28), (256, 14), (48, 36)])
def test_gradients_of_weights_have_several_work_groups_for_each_core(channels: int, side: int) -> None:
    """Their windows are staged by threads, whose latency one work-group cannot hide. Parts of the batch need no
    alignment: it is not contiguous. They had 8 parts of 64 images, 72 work-groups of one warp group."""
    x = Tensor.empty(64, side, side, channels, dtype=dtypes.bfloat16).permute(0, 3, 1, 2)
    weight = Tensor.empty(channels, channels, 3, 3, dtype=dtypes.bfloat16)
    upstream = Tensor.empty(64, side, side, channels, dtype=dtypes.bfloat16).permute(0, 3, 1, 2)
    (slope,) = x.conv2d(weight, padding=1).gradient(weight, gradient=upstream)
    (total,) = [n for n in toposort(slope.uop) if n.op is Ops.REDUCE_AXIS and is_product(n.src[0], n.arg[1])]
    split = split_reduction(total, CARD)
    assert split is not None
    assert split.shape == total.shape
    assert parts_of(split) * -(-9 * channels // 64) * -(-channels // 64) >= 1.5 * CARD.cores
    (partial,) = [node for node in toposort(split) if node.op is Ops.CONTIGUOUS and node.dtype is dtypes.float32]
    assert partial.shape[-1] == channels  # not the taps: adjacent columns of a tile are stored together


def test_windows_without_equal_parts_are_masked() -> None:
    """The gradient of a weight: 1690 sums of 198544 products had three work-groups."""
    x, weight = Tensor.empty(8, 169, 24818), Tensor.empty(10, 169, 3)
    (slope,) = x.conv2d(weight, stride=2, padding=1).gradient(weight, gradient=Tensor.empty(8, 10, 12409))
    sums = [node for node in toposort(slope.uop) if node.op is Ops.REDUCE_AXIS and is_product(node.src[0], node.arg[1])]
    for total in sums:
        split = split_reduction(total, CARD)
        assert split is not None
        assert parts_of(split) >= CARD.cores // 6


# ---------------------------------------------------------------- rows


def norm(axes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: (x - x.mean(axis=axes, keepdim=True)) / (x.var(axis=axes, keepdim=True) + 1e-5).sqrt()


def slope(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def found(x: Tensor) -> Tensor:
        result = function(x)
        return result.gradient(x, gradient=result.detach())[0]

    return found


def train_step(x: Tensor) -> Tensor:
    """The gradient of a convolution with a batch normalisation, all of it channels last."""
    weight, further = (Tensor.empty(*shape, dtype=dtypes.bfloat16) for shape in ((48, 16, 3, 3), (32, 48, 3, 3)))
    x = x.cast(dtypes.bfloat16)
    loss = norm((0, 2, 3))(x.conv2d(weight, padding=1)).relu().conv2d(further, padding=1).float().square().mean()
    return loss.gradient(weight)[0]


def depthwise_slope(x: Tensor) -> Tensor:
    weight = Tensor.empty(96, 1, 7, 7)
    y = x.permute(0, 3, 1, 2).conv2d(weight, groups=96, padding=3)
    return y.gradient(weight, gradient=Tensor.empty(8, 56, 56, 96).permute(0, 3, 1, 2))[0]


def bias_slope(x: Tensor) -> Tensor:
    """The gradient of the bias of a classifier over channels, whose logits are stored with the time last, and the
    gradient of the logits, which two products read, with the classes."""
    x = x.cast(dtypes.bfloat16).relu()
    weight, bias = Tensor.empty(256, 128, 1, dtype=dtypes.bfloat16), Tensor.empty(256, dtype=dtypes.bfloat16)
    logits = x.conv1d(weight, bias).transpose(1, 2).reshape(-1, 256)
    loss = logits.float().cross_entropy(Tensor.empty(logits.shape[0], dtype=dtypes.int64))
    slopes = loss.gradient(bias, weight, x)
    return Tensor.cat(*(each.flatten() for each in slopes))


PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "var of few, gradient": ((6077, 3, 768), slope(lambda x: x.var(axis=(0, 2)))),
    "logsumexp of all": ((160, 25, 101, 24), lambda x: x.logsumexp(axis=(0, 1, 2, 3))),
    "batchnorm, few channels": ((4, 48, 418, 418), norm((0, 2, 3))),
    "groupnorm, gradient": ((2, 8, 18, 341, 341), slope(norm((2, 3, 4)))),
    "sum across, gradient": ((2, 48842, 26, 6), slope(lambda x: x.sum(axis=1))),
    "softmax of columns": ((16384, 640), lambda x: x.softmax(axis=0)),
    "matrix times vector, across rows": ((32768, 525), lambda x: Tensor.empty(1, 32768) @ x),
    "matrix times vector, along rows": ((525, 32768), lambda x: x @ Tensor.empty(32768)),
    "log_softmax of two rows": ((2, 1 << 20), lambda x: x.log_softmax(axis=-1)),
    "columns of batches of an odd number": ((32, 197, 768), lambda x: x.sum((0, 1))),
    "channels that are last": ((16, 128, 128, 48), lambda x: x.permute(0, 3, 1, 2).sum((0, 2, 3))),
    "channels that are last, a part of each image": (
        (16, 130, 130, 48),
        lambda x: x.permute(0, 3, 1, 2)[:, :, 1:-1, 1:-1].sum((0, 2, 3)),
    ),
    "normalised rows, stored as columns": ((128, 1 << 15), lambda x: norm((1,))(x).T.contiguous()),
    "gradient of depthwise windows, channels last": ((8, 56, 56, 96), depthwise_slope),
    "bias of a classifier over channels": ((8, 128, 4096), bias_slope),
    "batch normalisation between products": ((8, 16, 64, 64), train_step),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_kernel_of_much_work_has_few_threads(name: str) -> None:
    shape, function = PROGRAMS[name]
    x = Tensor.empty(*shape)
    bound = BoundGraph([function(x).uop])
    made = schedule(bound.outputs, bound.params, "CPU", target_of=lambda device: CARD)
    for item in made.items:
        assert item.ast is not None
        chosen = optimise(item.ast, CARD)
        if any(opt.op is OptOps.TC for opt in chosen.arg.applied):
            continue  # tiles of products are counted above
        nodes = toposort(chosen)
        loops = [node for node in nodes if node.op is Ops.RANGE]
        work = max((element_count((node.arg.size,)) for node in nodes if node.op is Ops.PARAM), default=0)
        parallel = (AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP)
        threads = np.prod([size_of(loop) for loop in loops if loop.arg.kind in parallel], dtype=np.int64)
        if work >= LARGE:
            assert threads >= CARD.cores * 64, item.ast.arg.name


@pytest.mark.parametrize("shape", [(3, 40, 7), (40, 3, 5), (2, 64)], ids=str)
def test_rows_that_are_reduced_apart_have_the_same_values(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "MAX_GROUP_WORK", 4)
    axes = tuple(range(1, len(shape)))
    array = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    expected = Tensor(array, device="PYTHON")
    with emulated_card():
        for function in (norm(axes), lambda x: x.softmax(axis=0), slope(norm(axes))):
            found = function(Tensor(array, device=NAME)).numpy()
            np.testing.assert_allclose(found, function(expected).numpy(), rtol=2e-4, atol=2e-5)
