"""Products of activations with quantised weights. In: a block format, blocks of uint8 (..., rows, bytes of a row) and
activations. Out: the product, decoding fused into it. Stands between `weight.py` and the kernels.

On a device with dot-product instructions for bytes, activations are quantised to 8 bits for each run of 32, or to two
terms of 8 bits (`activations.py`), and integers are multiplied (`kernels.py`). Few tokens on a device whose threads run
in warps have a kernel of their own (`warps.py`). With QUANTISED_ACTIVATIONS=0, on other devices, and for formats
without a kernel, the weights are decoded to floats inside an ordinary product."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tilewright.base.config import options
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph.kernels.custom import PureKernel
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.llm.gates import activate
from tilewright.llm.quantised.activations import RUN, TERMS, Activations, quantise, rounding_errors
from tilewright.llm.quantised.kernels import Tile, many_tokens, shared_rows
from tilewright.llm.quantised.layouts import LAYOUTS, Layout, layout_of, unsigned
from tilewright.llm.quantised.row_kernels import (
    one_token,
    parts_in_lanes,
    rows_in_lanes,
    runs_in_lanes,
    sums_in_lanes,
)
from tilewright.llm.quantised.types import BlockType
from tilewright.llm.quantised.warps import MIN_SHARES, Form, WarpTile, choose_tile, largest_divisor, warp_product
from tilewright.runtime.device import open_driver
from tilewright.tensor.tensor import Tensor

# Accumulators of a tile: rows of weights, which share the loads of activations, times tokens or vectors of tokens.
# Parts with scales of their own have further ones, for the integers of those that are unpacked together.
ACCUMULATORS = 8
MAX_ROWS = 4  # of one token: each is a stream of its own
# Parts whose scales are unpacked together: bytes of half a register. Shorter vectors of bytes are widened first.
PART_LANES = 8
# Tokens below which lanes lie along the weights of a row.
MIN_LANE_TOKENS = 8
# Instructions for each term with which many tokens are multiplied faster as integers than as floats, two in a
# multiplication and an addition of which many take one instruction. Few tokens wait for memory.
MAX_EFFORT = 1.0
# Vectors of tokens at a time, each an accumulator of integers and one of floats for every row.
MAX_VECTORS = 4
# Tokens that share weights whose rows are lanes. With more, lanes of tokens unpack weights for more of them at a time.
MAX_SHARED_TOKENS = 16
# In shorter vectors, lanes along a row unpack as fast, and many tokens as lanes multiply faster: only blocks with many
# scales gain. Measured on a Neoverse N1, which has vectors of 4 lanes.
MIN_SHARED_LANES = 8
# Tokens whose product reads the weights once for all of them; more are a product of matrices.
MAX_WARP_TOKENS = 8


def decode(kind: BlockType, blocks: Tensor, dtype: DType) -> Tensor:
    """Blocks (..., bytes of a row) as numbers (..., columns)."""
    return kind.decode(blocks.unflatten(-1, (-1, kind.nbytes))).flatten(-2).cast(dtype)


def linear(kind: BlockType, blocks: Tensor, x: Tensor) -> Tensor:
    """x (..., columns) times the transpose of weights (rows, columns)."""
    if runs_in_warps(kind, blocks, x) and math.prod(x.shape[:-1]) <= MAX_WARP_TOKENS:
        flat = x.reshape(1, -1, x.shape[-1])
        return _in_warps(kind, Form(), flat, (blocks.unsqueeze(0),)).reshape(*x.shape[:-1], blocks.shape[0])
    if not has_kernel(kind, blocks, x):
        return x @ decode(kind, blocks, x.dtype).transpose()
    terms = _terms(x.reshape(-1, x.shape[-1]))
    product = _product_form(kind, blocks, terms)(kind, blocks, terms)
    return _added(product).cast(x.dtype).reshape(*x.shape[:-1], blocks.shape[0])


def expert_linear(kind: BlockType, blocks: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
    """x (tokens, k or 1, columns), chosen (tokens, k), weights (experts, rows, columns): (tokens, k, rows). Only the
    blocks of chosen experts are read."""
    if has_kernel(kind, blocks, x) and isinstance(chosen.shape[0], int):
        terms = _terms(x.flatten(0, 1)).unflatten(0, (-1, *x.shape[:2])).flatten(0, 1)
        picks = chosen if terms.shape[0] == x.shape[0] else chosen.cat(chosen)
        return _added(_experts(kind, blocks, terms, picks)).cast(x.dtype)
    if runs_in_warps(kind, blocks, x) and isinstance(chosen.shape[0], int):
        return _in_warps(kind, Form(has_choice=True), x, (blocks,), chosen)
    picked = decode(kind, blocks[chosen], x.dtype)
    return (picked * x.unsqueeze(-2)).sum(-1)


def gated(
    kind: BlockType, matrices: tuple[Tensor, Tensor], x: Tensor, activation: str, chosen: Tensor | None = None
) -> Tensor | None:
    """activation(gate) * up of two matrices, with `chosen` as in `expert_linear`. None where no kernel has both."""
    if not runs_in_warps(kind, matrices[0], x) or (chosen is not None and not isinstance(chosen.shape[0], int)):
        return None
    if chosen is not None:
        return _in_warps(kind, Form(activation, True), x, matrices, chosen)
    if math.prod(x.shape[:-1]) > MAX_WARP_TOKENS:
        return None
    flat = x.reshape(1, -1, x.shape[-1])
    found = _in_warps(kind, Form(activation), flat, (matrices[0].unsqueeze(0), matrices[1].unsqueeze(0)))
    return found.reshape(*x.shape[:-1], matrices[0].shape[0])


def mixed_experts(
    kind: BlockType, blocks: Tensor, x: Tensor, chosen: Tensor, shares: Tensor, normalise: bool = False
) -> Tensor:
    """The sum of what `expert_linear` gives for each token, times shares (tokens, k): (tokens, rows)."""
    if runs_in_warps(kind, blocks, x) and isinstance(chosen.shape[0], int):
        return _in_warps(kind, Form("", True, True, normalise), x, (blocks,), chosen, shares).squeeze(1)
    shares = normalised(shares) if normalise else shares
    return (expert_linear(kind, blocks, x, chosen) * shares.cast(x.dtype).unsqueeze(-1)).sum(1)


def normalised(shares: Tensor) -> Tensor:
    """Shares (tokens, k) whose sum is 1."""
    return shares / (shares.sum(-1, keepdim=True) + MIN_SHARES)


# ---------------------------------------------------------------- choice


def has_kernel(kind: BlockType, blocks: Tensor, x: Tensor) -> bool:
    """Whether activations are quantised for this product."""
    if not options.QUANTISED_ACTIVATIONS or kind.name not in LAYOUTS or not all(isinstance(n, int) for n in x.shape):
        return False
    if 0 in x.shape or 0 in blocks.shape or not isinstance(x.device, str):
        return False
    # Signed fields get an offset where an instruction takes unsigned ones, and are then not below 128.
    is_signed = LAYOUTS[kind.name].minimum is None
    dots = [each for each in _target(x.device).dot_products if each.terms == 4]
    efforts = [each.effort for each in dots if each.max_left is None or not is_signed]
    is_few = math.prod(x.shape[:-1]) < MIN_LANE_TOKENS
    return bool(efforts) and (is_few or min(efforts) <= MAX_EFFORT)


def runs_in_warps(kind: BlockType, blocks: Tensor, x: Tensor) -> bool:
    """Whether there is a kernel for few tokens in which weights are decoded in registers."""
    if kind.name not in LAYOUTS or not isinstance(x.device, str) or not all(isinstance(n, int) for n in x.shape):
        return False
    return 0 not in x.shape and 0 not in blocks.shape and _target(x.device).warp_size > 1


def _target(device: Devices) -> Target:
    assert isinstance(device, str)
    return open_driver(device).target


def _has_signed_dots(device: Devices) -> bool:
    """Whether the instruction multiplies two signed bytes."""
    return any(each.left is each.right is dtypes.int8 for each in _target(device).dot_products)


def _layout(kind: BlockType, device: Devices, tokens: int) -> Layout:
    return layout_of(kind.name, _has_signed_dots(device), tokens > 1)


def _product_form(kind: BlockType, blocks: Tensor, x: Tensor) -> Callable[[BlockType, Tensor, Tensor], Tensor]:
    if weight_lanes(LAYOUTS[kind.name], x.device, blocks.shape[0], x.shape[0]):
        return _shared
    return _few if x.shape[0] < MIN_LANE_TOKENS else _many


def token_lanes(device: Devices, tokens: int) -> int:
    """How many tokens are the lanes of a vector."""
    lanes = _target(device).lanes(dtypes.float32)
    return min(lanes, max(4, 1 << (tokens - 1).bit_length()))


def rows_at_once(layout: Layout, rows: int, tokens: int) -> int:
    """The rows of weights in a tile of a product with few tokens."""
    most = min(MAX_ROWS, max(1, ACCUMULATORS // tokens))
    if layout.scales > 1:
        most = 2 if tokens == 1 else 1
    return largest_divisor(rows, most)


def weight_lanes(layout: Layout, device: Devices, rows: int, tokens: int) -> int:
    """How many rows of weights are the lanes of a vector that all tokens share; 0 where another form is quicker."""
    lanes = _target(device).lanes(dtypes.float32)
    if lanes >= MIN_SHARED_LANES:
        is_quicker = (1 if layout.has_shared_bits else 2) <= tokens <= MAX_SHARED_TOKENS
    else:
        is_quicker = layout.scales > 1 and 2 <= tokens < MIN_LANE_TOKENS
    return lanes if is_quicker and rows % lanes == 0 else 0


def row_tile(layout: Layout, target: Target, rows: int, tokens: int) -> Tile:
    """The tile of a product whose lanes lie along rows: along several where a vector is longer than a part. In vectors
    of 4 lanes the dot products of several parts are added up to one vector by two pairwise additions."""
    lanes = target.lanes(dtypes.float32)
    together = lanes * TERMS // (layout.length if layout.scales == 1 else RUN)
    if tokens == 1 and layout.is_packed and together > 1 and rows % together == 0:
        return Tile(together, 1, lanes)
    if tokens > 1 or lanes != TERMS:
        return Tile(rows_at_once(layout, rows, tokens), tokens, width=lanes)
    if layout.scales == 1:
        return Tile(largest_divisor(rows, 2), 1, width=lanes)
    return Tile(largest_divisor(rows, PART_LANES // max(layout.run, TERMS)), 1, PART_LANES, lanes)


def row_kernel(kind: BlockType, layout: Layout, tile: Tile, name: str) -> Callable[..., UOp]:
    has_scales = layout.scales > 1
    if tile.width == TERMS and tile.tokens == 1:
        make = parts_in_lanes if has_scales else sums_in_lanes
    elif tile.lanes > 1:
        make = runs_in_lanes if has_scales else rows_in_lanes
    else:
        make = one_token
    return make(layout, kind.nbytes, tile, f"{name}_{kind.name}")


def row_activations(layout: Layout, tile: Tile, x: Tensor) -> Activations:
    """x (rows, columns) as the kernel of a tile takes it."""
    folds_parts = tile.width == TERMS and tile.tokens == 1 and layout.scales > 1
    offset, lowest = layout.apart if folds_parts else (0.0, None)
    turns = layout.parts * tile.rows // tile.lanes
    added = (turns, layout.parts // turns) if lowest is not None else None
    return quantise(x, parts_of_a_run(layout), 1, -offset or 1.0, added)


def parts_of_a_run(layout: Layout) -> int:
    """How many scales and sums of activations there are for 32 of them."""
    return 1 if layout.scales == 1 else 32 // layout.length


# ---------------------------------------------------------------- kernels


def _terms(x: Tensor) -> Tensor:
    """x (rows, columns), and where activations have two terms of 8 bits, the second one of each row after all rows."""
    return x.cast(dtypes.float32).cat(rounding_errors(x.detach())) if options.QUANTISED_ACTIVATIONS > 1 else x


def _added(products: Tensor) -> Tensor:
    """The products of the terms of each row, added."""
    if options.QUANTISED_ACTIVATIONS < 2:
        return products
    count = products.shape[0] // 2
    return products[:count] + products[count:]


def _few(kind: BlockType, blocks: Tensor, x: Tensor) -> Tensor:
    """x (tokens, columns): (tokens, rows)."""
    layout, tokens, rows = _layout(kind, x.device, x.shape[0]), x.shape[0], blocks.shape[0]
    tile = row_tile(layout, _target(x.device), rows, tokens)
    arguments = [each.unsqueeze(1) for each in row_activations(layout, tile, x.detach())]
    out = Tensor.empty(tokens, 1, rows, dtype=dtypes.float32, device=x.device)
    gradient = functools.partial(_gradient, kind)
    given = (blocks.unsqueeze(0), *arguments, x)
    return out.custom_kernel(*given, fxn=_few_kernel(kind, layout, tile), grad_fxn=gradient)[0].squeeze(1)


def _gradient(kind: BlockType, gradient: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the activations in a product with the decoded weights: rounding is ignored."""
    weights, x = given[1], given[-1]
    found = gradient.flatten(1) @ decode(kind, weights.reshape(-1, weights.shape[-1]), gradient.dtype)
    return (*[None] * (len(given) - 1), found.cast(x.dtype))


def _many(kind: BlockType, blocks: Tensor, x: Tensor) -> Tensor:
    """x (tokens, columns): (tokens, rows). Tokens are padded to whole vectors."""
    layout, tokens, rows = _layout(kind, x.device, x.shape[0]), x.shape[0], blocks.shape[0]
    lanes = token_lanes(x.device, tokens)
    vectors = min(MAX_VECTORS, -(-tokens // lanes))
    padded = -(-tokens // (lanes * vectors)) * lanes * vectors
    quantised: Activations = quantise(x.detach().pad(((0, padded - tokens), (0, 0))), parts_of_a_run(layout), lanes)
    most = ACCUMULATORS // vectors
    tile = Tile(largest_divisor(rows, most if layout.scales == 1 else min(most, 2)), vectors, lanes)

    def gradient(slope: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(kind, slope[:, :tokens].transpose(), *given)

    out = Tensor.empty(rows, padded, dtype=dtypes.float32, device=x.device)
    made = out.custom_kernel(blocks, *quantised, x, fxn=_many_kernel(kind, layout, tile), grad_fxn=gradient)[0]
    return made[:, :tokens].transpose()


def _shared(kind: BlockType, blocks: Tensor, x: Tensor) -> Tensor:
    """x (tokens, columns): (tokens, rows). Tokens are padded to tiles of equal size."""
    layout, tokens, rows, target = _layout(kind, x.device, x.shape[0]), x.shape[0], blocks.shape[0], _target(x.device)
    # An accumulator of integers and one of floats for each token, beside the fields and scales of a block.
    tiles = -(-tokens // (target.vector_registers // 4))
    tile = Tile(1, -(-tokens // tiles), weight_lanes(layout, x.device, rows, tokens))
    padding = tiles * tile.tokens - tokens
    quantised = quantise(x.detach().pad(((0, padding), (0, 0))), parts_of_a_run(layout))
    layout = layout if _has_signed_dots(x.device) or layout.minimum is not None else unsigned(layout)

    def gradient(slope: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(kind, slope[:tokens], *given)

    out = Tensor.empty(tokens + padding, rows, dtype=dtypes.float32, device=x.device)
    made = out.custom_kernel(blocks, *quantised, x, fxn=_shared_kernel(kind, layout, tile), grad_fxn=gradient)
    return made[0][:tokens]


def _experts(kind: BlockType, blocks: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
    layout, rows = _layout(kind, x.device, 1), blocks.shape[1]
    tile = row_tile(layout, _target(x.device), rows, 1)
    quantised = row_activations(layout, tile, x.detach().flatten(0, 1))
    arguments = [each.unflatten(0, x.shape[:2]) for each in quantised]

    def gradient(slope: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
        picked = decode(kind, blocks[chosen], slope.dtype)
        found = (slope.unsqueeze(-1) * picked).sum(-2)
        found = found if x.shape[1] > 1 or chosen.shape[1] == 1 else found.sum(1, keepdim=True)
        return (*[None] * (len(given) - 1), found.cast(x.dtype))

    out = Tensor.empty(*chosen.shape, rows, dtype=dtypes.float32, device=x.device)
    kernel = _expert_kernel(kind, layout, tile)
    return out.custom_kernel(blocks, chosen, *arguments, x, fxn=kernel, grad_fxn=gradient)[0]


def _in_warps(kind: BlockType, form: Form, x: Tensor, matrices: tuple[Tensor, ...], *rest: Tensor) -> Tensor:
    """x (tokens, k or 1, columns), and what the form has of chosen experts (tokens, k) and of shares: (tokens, k, rows)
    or, with shares, (tokens, 1, rows). Without a choice, x is (1, tokens, columns) and a matrix (1, rows, columns)."""
    layout, rows = LAYOUTS[kind.name], matrices[0].shape[1]
    shape = rest[0].shape if rest else x.shape[:2]
    if form.has_shares:
        shape = (shape[0], 1)
    products, tokens = (math.prod(shape), 1) if rest else (1, x.shape[1])
    tile = choose_tile(layout, kind.nbytes, _target(x.device), x.shape[2], rows, products, tokens)
    out = Tensor.empty(*shape, rows, dtype=x.dtype, device=x.device)
    gradient = functools.partial(_warp_gradient, kind, form)
    return out.custom_kernel(x, *matrices, *rest, fxn=_warp_kernel(kind, tile, form), grad_fxn=gradient)[0]


def _warp_gradient(
    kind: BlockType, form: Form, slope: Tensor, _out: Tensor, x: Tensor, *given: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of activations and shares, of the expression that the kernel computes."""
    count = len(given) - form.has_choice - form.has_shares
    matrices, rest = given[:count], given[count:]
    targets = [each.detach() for each in (x, *rest[1:])]
    picked = [matrix[rest[0]] if rest else matrix.unsqueeze(1) for matrix in matrices]
    sums = [(decode(kind, each, x.dtype) * targets[0].unsqueeze(-2)).sum(-1) for each in picked]
    value = activate(sums[0], form.activation) * sums[1] if form.activation else sums[0]
    if form.has_shares:
        shares = normalised(targets[1]) if form.normalises else targets[1]
        value = (value * shares.cast(x.dtype).unsqueeze(-1)).sum(1, keepdim=True)
    found = value.gradient(*targets, gradient=slope)
    return (None, found[0], *[None] * (count + form.has_choice), *found[1:])


# Kernels have the unquantised activations as an argument that they do not read: the gradient is that of this argument.


@functools.lru_cache(maxsize=256)
def _few_kernel(kind: BlockType, layout: Layout, tile: Tile) -> PureKernel:
    kernel = row_kernel(kind, layout, tile, "product")

    def without_choice(out: UOp, weights: UOp, *given: UOp) -> UOp:
        return kernel(out, weights, None, *given[:-1])

    return PureKernel(without_choice)


def _without_x(kernel: Callable[..., UOp]) -> PureKernel:
    def without_x(out: UOp, weights: UOp, values: UOp, scales: UOp, sums: UOp, _x: UOp) -> UOp:
        return kernel(out, weights, values, scales, sums)

    return PureKernel(without_x)


@functools.lru_cache(maxsize=256)
def _many_kernel(kind: BlockType, layout: Layout, tile: Tile) -> PureKernel:
    kernel = many_tokens(layout, kind.nbytes, tile, f"products_{kind.name}")
    return _without_x(kernel)


@functools.lru_cache(maxsize=256)
def _shared_kernel(kind: BlockType, layout: Layout, tile: Tile) -> PureKernel:
    kernel = shared_rows(layout, kind.nbytes, tile, f"shared_{kind.name}")
    return _without_x(kernel)


@functools.lru_cache(maxsize=256)
def _expert_kernel(kind: BlockType, layout: Layout, tile: Tile) -> PureKernel:
    kernel = row_kernel(kind, layout, tile, "experts")

    def with_choice(out: UOp, weights: UOp, choice: UOp, *given: UOp) -> UOp:
        return kernel(out, weights, choice, *given[:-1])

    return PureKernel(with_choice)


@functools.lru_cache(maxsize=256)
def _warp_kernel(kind: BlockType, tile: WarpTile, form: Form) -> PureKernel:
    return PureKernel(warp_product(LAYOUTS[kind.name], kind.nbytes, tile, form, f"{form.name}_{kind.name}"))
