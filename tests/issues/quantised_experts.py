"""The Q4_0 expert matmul of a mixture-of-experts layer, as a custom kernel, as a tensor expression and in NumPy.

A row of k weights is k/32 blocks of 18 bytes: a float16 scale, then 16 bytes with 32 four-bit values, the low nibbles
first; a weight is (nibble - 8) * scale. A token has a list of chosen experts, and a result for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import AddrSpace, AxisType, KernelInfo, Opt, Tensor, UOp, dtypes

Array = np.ndarray[Any, Any]
BLOCK = 32
BLOCK_BYTES = 18


def random_weights(experts: int, width: int, hidden: int, seed: int = 0) -> Array:
    """Blocks with small scales and any nibbles: uint8[experts, width, blocks, 18]."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (experts, width, hidden // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    scales = generator.uniform(0.01, 0.1, blocks.shape[:3]).astype(np.float16)
    blocks[..., :2] = scales.view(np.uint8).reshape(*blocks.shape[:3], 2)
    return blocks


def dequantised(weights: Array) -> Array:
    """The weights as numbers: float32[experts, width, hidden]."""
    scales = np.ascontiguousarray(weights[..., :2]).view(np.float16).astype(np.float32)
    nibbles = np.concatenate([weights[..., 2:] & 15, weights[..., 2:] >> 4], axis=-1).astype(np.float32) - 8
    return (nibbles * scales).reshape(*weights.shape[:2], -1)


def expected(weights: Array, x: Array, chosen: Array) -> Array:
    return np.einsum("enk,k->en", dequantised(weights[chosen]).astype(np.float64), x.astype(np.float64))


def expert_matmul(out: UOp, weights: UOp, x: UOp, chosen: UOp, opts: tuple[Opt, ...] | None = ()) -> UOp:
    """One range over all bytes of a row, which the index splits into block and byte."""
    pick, row = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1)
    step = UOp.range(weights.shape[2] * 16, 2, AxisType.REDUCE)
    block, byte = step // 16, step % 16
    expert = chosen[pick]
    low = weights[expert, row, block, 0].cast(dtypes.uint16)
    high = weights[expert, row, block, 1].cast(dtypes.uint16)
    scale = (low | (high << 8)).bitcast(dtypes.float16).cast(dtypes.float32)
    pair = weights[expert, row, block, byte + 2]
    first = ((pair & 15).cast(dtypes.float32) - 8) * x[block * BLOCK + byte]
    second = ((pair >> 4).cast(dtypes.float32) - 8) * x[block * BLOCK + byte + 16]
    acc = UOp.placeholder((1,), dtypes.float32, 0, addrspace=AddrSpace.REG).after(pick, row)[0].set(0)
    acc = acc[0].set(acc.after(step)[0] + scale * (first + second), end=step)
    return out[pick, row].set(acc[0], end=(pick, row)).sink(arg=KernelInfo("expert_matmul", opts))


def nibble(word: UOp, position: int) -> UOp:
    """A four-bit value less 8 as a float32, without a shift and without a conversion, of which a card does few at a
    time: the bits are laid into the fraction of 2 to the power that gives their lowest bit the value 1."""
    power = 23 - 4 * position
    laid = (word & (15 << (4 * position))) | ((127 + power) << 23)
    return laid.bitcast(dtypes.float32) - float((1 << power) + 8)


def expert_matmul_words(out: UOp, weights: UOp, x: UOp, chosen: UOp, opts: tuple[Opt, ...] | None = ()) -> UOp:
    """The same on 16-bit words, as which every block is aligned: uint16[experts, width, blocks, 9]. Each of the two
    bytes of a word holds an element and the one 16 after it."""
    pick, row = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1)
    step = UOp.range(weights.shape[2] * 8, 2, AxisType.REDUCE)
    byte = UOp.range(2, 3, AxisType.REDUCE)
    block, number = step // 8, step % 8
    expert = chosen[pick]
    scale = weights[expert, row, block, 0].bitcast(dtypes.float16).cast(dtypes.float32)
    pair = weights[expert, row, block, number + 1].cast(dtypes.uint32) >> (byte * 8).cast(dtypes.uint32)
    element = block * BLOCK + number * 2 + byte
    value = nibble(pair, 0) * x[element] + nibble(pair, 1) * x[element + 16]
    acc = UOp.placeholder((1,), dtypes.float32, 0, addrspace=AddrSpace.REG).after(pick, row)[0].set(0)
    acc = acc[0].set(acc.after(step, byte)[0] + scale * value, end=(step, byte))
    return out[pick, row].set(acc[0], end=(pick, row)).sink(arg=KernelInfo("expert_matmul_words", opts))


def run_kernel(weights: Tensor, x: Tensor, chosen: Tensor, opts: tuple[Opt, ...] | None) -> Tensor:
    """On bytes, or on 16-bit words where the weights are given as such."""
    out = Tensor.empty(chosen.shape[0], weights.shape[1], device=x.device)
    written = expert_matmul_words if weights.dtype == dtypes.uint16 else expert_matmul

    def kernel(*arguments: UOp) -> UOp:
        return written(*arguments, opts)

    return Tensor.custom_kernel(out, weights, x, chosen, fxn=kernel)[0]


def run_expression(weights: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
    """The same with tensors."""
    picked = weights[chosen]
    scales = picked[..., :2].bitcast("float16").cast("float32")
    nibbles = (picked[..., 2:] & 15).cat(picked[..., 2:] >> 4, dim=-1).cast("float32") - 8
    return ((nibbles * scales).reshape(chosen.shape[0], weights.shape[1], -1) * x).sum(-1)
