"""Attention beside torch eager on a card: values, times and memory of the forward pass and of its gradients.

    python -m bench.attention [--rows PART,PART] [--device CUDA] [--seconds 55] [--gradients]

In: a device (CUDA) and torch on the same card. Out: a line for each shape: the largest error of the result and of each
gradient beside torch's in float32, as a part of the largest value, where the first wrong elements are, milliseconds of
both by the card's clock, TFLOP/s of ours, torch's time over ours. A shape is batch x heads x time x features; `/n` says
that n heads of keys are shared, `:n` that there are n keys.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gpu import bits, our_seconds, torch_seconds
from tilewright import Device, Tensor, jit
from tilewright.base.events import subscribe

# Of the largest value: bfloat16 rounds by 2^-9, and weights are rounded before they are summed.
TOLERANCE = {"bfloat16": 0.012, "float16": 0.003}
SHOWN = 4


@dataclass(frozen=True)
class Row:
    batch: int
    heads: int
    queries: int
    features: int
    is_causal: bool = False
    keys: int = 0
    key_heads: int = 0
    mask: str = ""  # bool, float, or heads: a float mask for each head and key
    dtype: str = "bfloat16"
    is_time_first: bool = False  # time before heads in memory, as a projection gives it

    @property
    def name(self) -> str:
        heads = f"{self.heads}/{self.key_heads}" if self.key_heads else str(self.heads)
        queries = f"{self.queries}:{self.keys}" if self.keys else str(self.queries)
        words = [f"{self.batch}x{heads}x{queries}x{self.features}"]
        words += (
            ["causal"] * self.is_causal + [f"{self.mask} mask"] * bool(self.mask) + ["time first"] * self.is_time_first
        )
        return " ".join([*words, *([self.dtype] if self.dtype != "bfloat16" else [])])

    @property
    def operations(self) -> float:
        pairs = self.queries * (self.keys or self.queries) / (2 if self.is_causal else 1)
        return 4.0 * self.batch * self.heads * pairs * self.features


ROWS = (
    Row(1, 1, 64, 64),
    Row(1, 1, 128, 128),
    Row(1, 4, 129, 64, is_causal=True),
    Row(8, 12, 1024, 64, is_causal=True),
    Row(8, 12, 1024, 64, is_causal=True, is_time_first=True),
    Row(8, 12, 1024, 64),
    Row(4, 32, 4096, 128, is_causal=True),
    Row(4, 16, 4096, 128),
    Row(8, 12, 394, 128),
    Row(2, 8, 1000, 80),
    Row(2, 8, 500, 33, keys=700),
    Row(2, 16, 1024, 128, is_causal=True, key_heads=4),
    Row(2, 8, 640, 64, mask="bool"),
    Row(2, 8, 640, 64, mask="heads"),
    Row(4, 8, 777, 96, mask="float", dtype="float16"),
    Row(16, 16, 2048, 64, is_causal=True, dtype="float16"),
)


def inputs(row: Row, torch: Any) -> tuple[list[Any], Any]:
    torch.manual_seed(1)
    kind, heads, keys = getattr(torch, row.dtype), row.key_heads or row.heads, row.keys or row.queries

    def made(heads: int, time: int) -> Any:
        if row.is_time_first:
            return torch.randn(row.batch, time, heads, row.features, device="cuda").to(kind).transpose(1, 2)
        return torch.randn(row.batch, heads, time, row.features, device="cuda").to(kind)

    mask = None
    if row.mask == "bool":
        mask = torch.rand(row.queries, keys, device="cuda") < 0.7
    elif row.mask == "float":
        mask = torch.randn(row.batch, 1, row.queries, keys, device="cuda").to(kind)
    elif row.mask == "heads":
        mask = torch.randn(row.heads, 1, keys, device="cuda").to(kind)
    return [made(row.heads, row.queries), made(heads, keys), made(heads, keys), made(row.heads, row.queries)], mask


def to_ours(tensor: Any, row: Row, torch: Any, device: str) -> Tensor:
    if row.is_time_first:
        return Tensor(bits(tensor.transpose(1, 2).contiguous(), torch), device=device).realize().transpose(1, 2)
    return Tensor(bits(tensor, torch), device=device).realize()


def ours(row: Row, gradients: bool) -> Callable[..., list[Tensor]]:
    def call(query: Tensor, key: Tensor, value: Tensor, slope: Tensor, *mask: Tensor) -> list[Tensor]:
        given = {"attn_mask": mask[0]} if mask else {}
        found = query.scaled_dot_product_attention(
            key, value, is_causal=row.is_causal, enable_gqa=bool(row.key_heads), **given
        )
        return list(found.gradient(query, key, value, gradient=slope)) if gradients else [found]

    return call


def theirs(row: Row, gradients: bool, torch: Any) -> Callable[..., list[Any]]:
    def call(query: Any, key: Any, value: Any, slope: Any, mask: Any = None) -> list[Any]:
        given = [each.detach().requires_grad_(gradients) for each in (query, key, value)]
        found = torch.nn.functional.scaled_dot_product_attention(
            *given, attn_mask=mask, is_causal=row.is_causal, enable_gqa=bool(row.key_heads)
        )
        return list(torch.autograd.grad(found, given, slope)) if gradients else [found]

    return call


def in_float32(row: Row, gradients: bool, torch: Any, given: list[Any], mask: Any) -> list[Any]:
    """Torch's result in float32, one batch at a time, of plain products and a softmax."""
    parts = []
    for number in range(row.batch):
        query, key, value, slope = (each[number].float() for each in given)
        leaves = [each.detach().requires_grad_(gradients) for each in (query, key, value)]
        repeats = row.heads // (row.key_heads or row.heads)
        own = [leaves[0], *(each.repeat_interleave(repeats, 0) for each in leaves[1:])]
        scores = own[0] @ own[1].transpose(-1, -2) / math.sqrt(row.features)
        if row.is_causal:
            kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
            scores = scores.masked_fill(~kept, -math.inf)
        elif mask is not None:
            part = mask if mask.dim() < 4 else mask[number]
            scores = scores.masked_fill(~part, -math.inf) if part.dtype is torch.bool else scores + part.float()
        found = scores.softmax(-1) @ own[2]
        parts.append(torch.autograd.grad(found, leaves, slope) if gradients else [found])
    return [torch.stack(part) for part in zip(*parts)]


def compare(found: Tensor, wanted: Any, tolerance: float, torch: Any) -> str:
    array = torch.from_numpy(np.ascontiguousarray(found.float().numpy())).cuda()
    if tuple(array.shape) != tuple(wanted.shape):
        return f"WRONG shape {tuple(array.shape)}"
    error = (array - wanted).abs() / wanted.abs().max()
    worst = float(error.max())
    if worst <= tolerance:
        return f"{worst:.4f}"
    wrong = (~(error <= tolerance)).nonzero()
    places = " ".join(
        f"{tuple(at)}={float(array[tuple(at)]):.4g}/{float(wanted[tuple(at)]):.4g}"
        for at in wrong[:: max(1, len(wrong) // SHOWN)][:SHOWN].tolist()
    )
    return f"WRONG {worst:.3g}, {len(wrong)} of {error.numel()}: {places}"


def measure(row: Row, gradients: bool, device: str, torch: Any) -> None:
    given, mask = inputs(row, torch)
    masks = [] if mask is None else [mask]
    tensors = [to_ours(each, row, torch, device) for each in given]
    tensors += [Tensor(bits(each, torch), device=device).realize() for each in masks]
    kernels: list[Any] = []

    def together(*each: Tensor) -> list[Tensor]:
        results = ours(row, gradients)(*each)
        results[0].realize(*results[1:])
        return results

    captured = jit(together)
    start = time.perf_counter()
    with subscribe(lambda event: kernels.append(event), ("kernel-compiled",)):
        found = captured(*tensors)
        Device[device].synchronize()
        first = time.perf_counter() - start
        for _ in range(2):
            found = captured(*tensors)
    wanted = in_float32(row, gradients, torch, given, mask)
    errors = [compare(*both, TOLERANCE[row.dtype], torch) for both in zip(found, wanted)]
    mine = our_seconds(device, lambda: captured(*tensors))
    call = theirs(row, gradients, torch)
    other = torch_seconds(torch, lambda: call(*given, *masks))
    operations = row.operations * (3.5 if gradients else 1)
    print(
        f"{'gradients ' if gradients else ''}{row.name}: errors {', '.join(errors)}; torch {other * 1e3:.3f} ms, ours "
        f"{mine * 1e3:.3f} ms, {operations / mine / 1e12:.0f} TFLOP/s, ratio {other / mine:.2f}; first {first:.1f} s, "
        f"{len(kernels)} kernels",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="parts of names, separated by commas; all where empty")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--gradients", action="store_true")
    chosen = parser.parse_args()
    import torch

    wanted = [part.strip() for part in chosen.rows.split(",") if part.strip()]
    began = time.perf_counter()
    for row in ROWS:
        if wanted and not any(part in row.name for part in wanted):
            continue
        if time.perf_counter() - began > chosen.seconds:
            print(f"{row.name}: not begun")
            continue
        try:
            measure(row, chosen.gradients, chosen.device, torch)
        except Exception as error:  # one row's failure is reported in its line, the others still run
            print(f"{row.name}: {type(error).__name__}: {' '.join(str(error).split())[:400]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
