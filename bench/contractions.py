"""Contractions of every kind on a card beside torch, values checked first.

    python -m bench.contractions [--only PART,PART] [--torch compiled] [--kernels N] [--json FILE]

In: a CUDA device and torch on the same card. Out: a table: milliseconds of ours, of torch eager and, with `--torch
compiled`, of torch.compile; TFLOP/s of ours and of torch's best, their ratio, the relative error against float64, and
the seconds of our first call."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.slowest import slowest_kernels
from tilewright import Tensor, jit

BATCHES, BATCH_SECONDS = 5, 0.03


@dataclass(frozen=True)
class Row:
    """`work` is the number of multiplications and additions; functions take ours or torch's tensors."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    work: float


def product(m: int, k: int, n: int, dtype: str = "bfloat16", batch: int = 0) -> Row:
    shapes = ((batch, m, k), (batch, k, n)) if batch else ((m, k), (k, n))
    name = f"{batch} x {m}x{k}x{n}" if batch else f"{m}x{k}x{n}"
    return Row(name, dtype, shapes, lambda x, y: x @ y, lambda x, y: x @ y, 2 * m * k * n * max(batch, 1))


def transposed(m: int, k: int, n: int, dtype: str = "bfloat16") -> Row:
    ours, theirs = (lambda x, y: x.transpose(0, 1) @ y), (lambda x, y: x.t() @ y)
    return Row(f"T {m}x{k}x{n}", dtype, ((k, m), (k, n)), ours, theirs, 2 * m * k * n)


def convolution(b: int, c: int, size: int, o: int, kernel: int, stride: int = 1, dtype: str = "bfloat16") -> Row:
    import torch

    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    return Row(
        f"conv {b}x{c}x{size}x{size} {o} {kernel}x{kernel}/{stride}",
        dtype,
        ((b, c, size, size), (o, c, kernel, kernel)),
        lambda x, w: x.conv2d(w, padding=pad, stride=stride),
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=pad, stride=stride),
        2 * b * o * out * out * c * kernel * kernel,
    )


def convolution_gradient(b: int, c: int, size: int, o: int, kernel: int, which: int, dtype: str = "bfloat16") -> Row:
    import torch

    pad = kernel // 2

    def ours(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        given = [x.detach().requires_grad_(), w.detach().requires_grad_()]
        return (given[0].conv2d(given[1], padding=pad) * g).sum().gradient(given[which])[0]

    def theirs(x: Any, w: Any, g: Any) -> Any:
        mask = [which == 0, which == 1, False]
        args = (None, [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask)
        return torch.ops.aten.convolution_backward(g, x, w, *args)[which]

    shapes = ((b, c, size, size), (o, c, kernel, kernel), (b, o, size, size))
    name = f"conv d{'xw'[which]} {b}x{c}x{size}x{size} {o} {kernel}x{kernel}"
    return Row(name, dtype, shapes, ours, theirs, 2 * b * o * size * size * c * kernel * kernel)


def gelu_product(m: int, k: int, n: int) -> Row:
    import torch

    return Row(
        f"gelu(xw+b) {m}x{k}x{n}",
        "bfloat16",
        ((m, k), (k, n), (n,)),
        lambda x, w, b: (x @ w + b).gelu(),
        lambda x, w, b: torch.nn.functional.gelu(x @ w + b, approximate="tanh"),
        2 * m * k * n,
    )


def attention(b: int, h: int, t: int, d: int, causal: bool) -> Row:
    import torch

    return Row(
        f"attention {b}x{h}x{t}x{d}{' causal' if causal else ''}",
        "bfloat16",
        ((b, h, t, d),) * 3,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
        4 * b * h * t * t * d / (2 if causal else 1),
    )


def rows() -> list[Row]:
    return [
        *(product(n, n, n) for n in (512, 1024, 2048, 4096, 16384)),
        product(16, 8192, 28672),
        product(4000, 2222, 3333),
        product(4000, 3333, 2222),
        product(4001, 2223, 3333),
        product(700, 700, 700),
        product(4096, 4096, 4096, "float32"),
        product(700, 700, 700, "float32"),
        product(4001, 1003, 2001, "float32"),
        product(4000, 512, 666, batch=8),
        product(1024, 64, 1024, batch=96),
        product(1024, 1024, 64, batch=96),
        transposed(768, 8192, 3072),
        transposed(2304, 8192, 768),
        transposed(50257, 8192, 768),
        product(8192, 768, 50257),
        product(8192, 50257, 768),
        gelu_product(8192, 4096, 16384),
        convolution(64, 256, 56, 256, 3),
        convolution(64, 64, 56, 256, 1),
        convolution(64, 3, 224, 64, 7, 2),
        convolution(32, 96, 112, 96, 3, 2),
        convolution(32, 64, 56, 64, 3, dtype="float32"),
        convolution_gradient(32, 96, 56, 96, 3, 0),
        convolution_gradient(32, 96, 56, 96, 3, 1),
        attention(8, 12, 1024, 64, True),
        attention(4, 8, 394, 128, False),
    ]


def measure(row: Row, compiled: bool = False, kernels: int = 0) -> dict[str, Any]:
    import torch

    kind = getattr(torch, row.dtype)
    generator = np.random.default_rng(7)
    arrays = [generator.standard_normal(shape, np.float32) for shape in row.shapes]
    arrays = [array / math.sqrt(max(1, array.shape[-1])) if n == 1 else array for n, array in enumerate(arrays)]
    theirs = [torch.from_numpy(array).cuda().to(kind) for array in arrays]
    ours = [Tensor(array, device="CUDA").cast(row.dtype).contiguous().realize() for array in arrays]
    started = time.perf_counter()
    function = jit(row.ours)
    result = function(*ours).realize()
    found = result.cast("float32").numpy().astype(np.float64)
    first = time.perf_counter() - started
    expected = row.theirs(*[each.double() for each in theirs]).cpu().numpy()
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    function(*ours).realize()
    function(*ours).realize()

    def once() -> None:
        function(*ours)

    return {
        "name": f"{row.name} {row.dtype}",
        "error": error,
        "first": first,
        "ours": clock(once),
        "theirs": clock(lambda: row.theirs(*theirs)),
        "compiled": clock(_compiled(row.theirs, theirs)) if compiled else None,
        "work": row.work,
        "kernels": slowest_kernels(lambda: Tensor.realize(row.ours(*ours)), kernels) if kernels else [],
    }


def _compiled(call: Callable[..., Any], given: list[Any]) -> Callable[[], Any]:
    import torch

    torch._dynamo.reset()
    made = torch.compile(call, dynamic=False)
    return lambda: made(*given)


def clock(call: Callable[[], None]) -> float:
    """Seconds of a call: the best of some batches, each long enough for the launches to be hidden."""
    import torch

    from tilewright import Device

    def synchronise() -> None:
        torch.cuda.synchronize()
        Device["CUDA"].synchronize()

    call()
    synchronise()
    started = time.perf_counter()
    call()
    synchronise()
    count = max(3, min(200, int(BATCH_SECONDS / max(time.perf_counter() - started, 1e-6))))
    best = math.inf
    for _ in range(BATCHES):
        started = time.perf_counter()
        for _ in range(count):
            call()
        synchronise()
        best = min(best, (time.perf_counter() - started) / count)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts of the names of rows, separated by commas")
    parser.add_argument("--kernels", type=int, default=0, help="list this many of the slowest kernels of each row")
    parser.add_argument("--torch", choices=("eager", "compiled"), default="eager", help="compiled measures both")
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    made = []
    print(
        f"{'':44} {'ours ms':>9} {'torch ms':>9} {'compiled':>9} {'TFLOP/s':>8} {'torch':>7} {'ratio':>6} {'error':>8} "
        f"{'first':>7}"
    )
    for row in rows():
        if not any(part in f"{row.name} {row.dtype}" for part in given.only.split(",")):
            continue
        try:
            found = measure(row, given.torch == "compiled", given.kernels)
        except Exception as error:
            print(f"{row.name:44} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        made.append(found)
        best = min(found["theirs"], found["compiled"] or math.inf)
        rates = [found["work"] / seconds / 1e12 for seconds in (found["ours"], best)]
        compiled = f"{found['compiled'] * 1e3:9.3f}" if found["compiled"] else f"{'':9}"
        print(
            f"{found['name']:44} {found['ours'] * 1e3:9.3f} {found['theirs'] * 1e3:9.3f} {compiled} {rates[0]:8.1f} "
            f"{rates[1]:7.1f} {best / found['ours']:6.2f} {found['error']:8.1e} {found['first']:7.2f}",
            flush=True,
        )
        for line in found["kernels"]:
            print(f"  {line}", flush=True)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(made, file, indent=1)


if __name__ == "__main__":
    main()
