"""Operands of tensor cores are stored with a vector axis last: which contractions ask for it, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Tensor, dtypes, nn
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.engine.execution.realize import _bind
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import cast_array
from tilewright.graph.ops import Ops
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.operand_order import order_operands

BF16 = dtypes.bfloat16


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=BF16)


def stored_orders(value: Tensor, target: Target | None = None) -> list[tuple[int, ...]]:
    """The permutations that operands are stored in."""
    bound = _bind([value.uop])[0]
    facts = target or cuda_target()
    nodes = toposort(*order_operands(bound.outputs, lambda _node: facts))
    stored = [node.src[0] for node in nodes if node.op is Ops.CONTIGUOUS and node.src[0].op is Ops.PERMUTE]
    return [node.arg for node in stored]


def test_images_and_weights_have_channels_last() -> None:
    assert stored_orders(empty(8, 32, 14, 14).conv2d(empty(64, 32, 3, 3), padding=1)) == [(0, 2, 3, 1)] * 2


def test_a_chain_of_convolutions_copies_no_result() -> None:
    """What is between two convolutions is stored once, by the kernel that computes it."""
    x = empty(8, 32, 14, 14).conv2d(empty(64, 32, 3, 3), padding=1).relu().conv2d(empty(64, 64, 3, 3), padding=1)
    assert len(stored_orders(x)) == 4  # the image, two weights and what is between


@pytest.mark.parametrize(
    "value",
    [
        lambda: empty(256, 256) @ empty(256, 256),
        lambda: empty(256, 256).T @ empty(256, 256),
        lambda: empty(8, 32, 16, 16).conv2d(empty(64, 32, 1, 1)),  # pixels are contiguous and many
        lambda: empty(8, 3, 64, 64).conv2d(empty(64, 3, 7, 7)),  # too few channels for a vector
        lambda: empty(8, 64, 32, 32).conv2d(empty(64, 1, 3, 3), groups=64),  # nothing to multiply often
    ],
)
def test_what_is_read_in_vectors_stays(value: object) -> None:
    assert stored_orders(value()) == []  # type: ignore[operator]


def test_heads_of_a_gradient_are_vectors_where_they_are() -> None:
    """The gradient of queries, keys and values was stored with the batch last, and so was all that it was computed
    from: a step of Swin had 80 kernels more."""
    heads = empty(3, 8, 4, 64, 32).relu().permute(1, 3, 0, 2, 4).reshape(8, 64, 384)
    assert stored_orders(Tensor.einsum("btc,bto->oc", empty(8, 64, 128).relu(), heads)) == []
    short = empty(3, 8, 4, 64, 20).relu().permute(1, 3, 0, 2, 4).reshape(8, 64, 240)
    assert stored_orders(Tensor.einsum("btc,bto->oc", empty(8, 64, 128).relu(), short)) != []


def test_the_factor_beside_flattened_channels_stays() -> None:
    """Channels of 20 are no whole vectors: they are stored with the time last. The gradient beside them is in order;
    moved with them, it took all activations of a Conformer along."""
    flat = empty(16, 64, 400, 20).relu().transpose(1, 2).flatten(2)
    assert stored_orders(Tensor.einsum("btk,bto->ok", flat, empty(16, 400, 256).relu())) == [(0, 1, 3, 2)]


@pytest.mark.parametrize("channels", [3, 32])
def test_channels_are_last_behind_pixels_that_were_channels(channels: int) -> None:
    """No axis of what the pixels were made of has vectors of channels: it was stored with the batch last, or not in
    order, and two kernels took 3.4 of 7.3 ms of a super-resolution step."""
    first, last = empty(128, 32, 3, 3).requires_grad_(), empty(channels, 32, 3, 3).requires_grad_()
    made = empty(16, 32, 24, 24).conv2d(first, padding=1).pixel_shuffle(2)
    y = made.conv2d(last, padding=1)
    slopes = y.gradient(first, last, gradient=y * 0.5)
    bound = _bind([(slopes[0].sum() + slopes[1].sum()).uop])[0]
    nodes = toposort(*order_operands(bound.outputs, lambda _node: cuda_target()))
    stored = [node.src[0] for node in nodes if node.op is Ops.CONTIGUOUS and node.src[0].op is Ops.PERMUTE]
    orders = {node.arg for node in stored if node.src[0].shape == made.shape and node.src[0].op is Ops.RESHAPE}
    assert orders == {(0, 2, 3, 1)}
    assert not any(node.arg[-1] == 0 and node.src[0].shape[0] == 16 for node in stored if channels > 3)


@pytest.mark.parametrize("batch", [8, 32])
def test_channels_are_last_behind_a_normalisation_of_groups(batch: int) -> None:
    """Its gradients have groups, and channels flattened with pixels: they were stored with the batch last."""
    weight = empty(64, 64, 3, 3).requires_grad_()
    image = empty(batch, 64, 16, 24).conv2d(empty(64, 64, 1, 1)).relu().conv2d(weight, padding=1)
    y = nn.functional.group_norm(image, 16, empty(64), empty(64)).relu().conv2d(empty(96, 64, 3, 3), padding=1)
    (slope,) = y.float().square().sum().gradient(weight)
    orders = stored_orders(slope)
    assert (0, 2, 3, 1) in orders
    assert (1, 2, 0) not in orders


def test_a_target_without_tensor_cores_keeps_everything() -> None:
    value = empty(8, 32, 14, 14).conv2d(empty(64, 32, 3, 3), padding=1)
    assert stored_orders(value, Target("TEST", has_local=True)) == []


def test_gradients_read_the_same_copies() -> None:
    x, w = empty(8, 32, 14, 14).requires_grad_(), empty(64, 32, 3, 3).requires_grad_()
    loss = (x.conv2d(w, padding=1).relu().float() * 2).square().sum()
    gx, gw = loss.gradient(x, w)
    orders = stored_orders(gw.float().sum() + gx.float().sum())
    assert set(orders) <= {(0, 2, 3, 1), (1, 2, 3, 0)}


def test_values_stay() -> None:
    generator = np.random.default_rng(3)
    x, w = (Tensor(generator.integers(-4, 5, shape)).cast(BF16) for shape in ((2, 8, 6, 7), (16, 8, 3, 3)))
    bound = _bind([x.conv2d(w, padding=1).relu().float().uop])[0]
    facts = cuda_target()
    ordered = order_operands(bound.outputs, lambda _node: facts)
    assert ordered[0] is not bound.outputs[0]
    leaves = {node: None for node in toposort(*bound.outputs) if node.op is Ops.PARAM}
    assert set(leaves) == {node for node in toposort(*ordered) if node.op is Ops.PARAM}
    values = {leaf: generator.integers(-4, 5, leaf.shape) for leaf in leaves}
    arrays = {leaf: cast_array(value, leaf.dtype) for leaf, value in values.items()}
    results = [evaluate(root, arrays) for root in (bound.outputs[0], ordered[0])]
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "pads"),
    [
        (BF16, 401, 333, {1, 3}),
        (BF16, 1601, 1333, {1, 11}),
        (dtypes.float32, 1601, 1333, {1, 3}),
        (dtypes.float32, 401, 333, set()),
    ],
)
def test_rows_of_odd_length_begin_at_multiples_of_a_vector(
    dtype: DType, rows: int, columns: int, pads: set[int]
) -> None:
    """Matrices whose rows begin anywhere are copied into rows that the copy engine can fetch, or threads in vectors:
    the latter where the copies take less time than the single elements."""
    bound = _bind([(Tensor.empty(rows, 223, dtype=dtype) @ Tensor.empty(223, columns, dtype=dtype)).uop])[0]
    facts = cuda_target()
    nodes = toposort(*order_operands(bound.outputs, lambda _node: facts))
    assert {node.arg[-1] for node in nodes if node.op is Ops.PAD} == {(0, pad) for pad in pads}


def test_a_result_that_is_stored_anyway_has_such_rows_too() -> None:
    logits = (empty(512, 64) @ empty(64, 1001)).float()
    bound = _bind([(logits - logits.max(axis=1, keepdim=True)).exp().sum(axis=1).uop])[0]
    facts = cuda_target()
    ordered = order_operands(bound.outputs, lambda _node: facts)
    shapes = [node.shape for node in toposort(*ordered) if node.op is Ops.CONTIGUOUS]
    assert (512, 1024) in [tuple(size for size in shape if size > 1) for shape in shapes]


def test_rows_of_several_loops_are_not_padded() -> None:
    """Pixels of 14 rows of 14 would be no single loop any more: channels are stored last instead."""
    assert stored_orders(empty(8, 64, 14, 14).conv2d(empty(128, 64, 1, 1))) != []
    bound = _bind([empty(8, 64, 14, 14).conv2d(empty(128, 64, 1, 1)).uop])[0]
    facts = cuda_target()
    assert not any(node.op is Ops.PAD for node in toposort(*order_operands(bound.outputs, lambda _node: facts)))


@pytest.mark.parametrize("shape", [(1, 29, 5, 6, 40, 3)])
def test_channels_that_fill_no_vectors_are_filled_up_with_zeros(shape: tuple[int, ...]) -> None:
    """Values and gradients stay; there is one copy of the image and of the weights, both padded and in their order."""
    batch, channels, height, width, outputs, side = shape
    generator = np.random.default_rng(5)
    sizes = ((batch, channels, height, width), (outputs, channels, side, side), (batch, outputs, height, width))
    arrays = [generator.integers(-2, 3, each).astype(np.float32) for each in sizes]
    found: dict[str, list[np.ndarray]] = {}
    with emulated_card(tensor_cores=(warp_group_core(BF16, 64, 64),)) as card:
        for device in ("CPU", NAME):
            x, w, slope = (Tensor(array, device=device).cast(BF16).realize() for array in arrays)
            count = len(card.programs)
            y = x.conv2d(w, padding=side // 2)
            found[device] = [y.float().numpy()]
            if device == NAME:
                assert len(card.programs) - count <= 4
            found[device] += [each.float().numpy() for each in (y * slope).float().sum().gradient(x, w)]
    for got, want in zip(found[NAME], found["CPU"], strict=True):
        np.testing.assert_array_equal(got, want)
