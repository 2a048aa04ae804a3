"""Kernels that memory bounds, beside torch where it is installed: `python -m bench.memory_rows [part of a name]`.
In: functions that read and write each element about once. Out: per function the best time, the bytes that have to move
per second, and torch's time over ours. The two take turns in one process, so the ratios hold on a busy machine."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilewright import Tensor, jit

ROUNDS = 15


class Row(NamedTuple):
    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]  # the same, of torch's tensors
    inputs: tuple[np.ndarray, ...]
    moved: int  # bytes


def rows(torch: Any) -> list[Row]:
    generator = np.random.default_rng(0)

    def made(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32)

    images, square, batch = made(16, 64, 112, 112), made(4096, 4096), made(64, 32, 56, 56)
    taps, table = made(64, 1, 3, 3), made(50000, 512)
    chosen = generator.integers(0, 50000, 8192).astype(np.int32)
    places = generator.integers(0, 4096, (4096, 1024)).astype(np.int32)
    weight, shift = made(32), made(32)
    functional = torch.nn.functional if torch else None

    def batch_norm(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = ((x - mean) * (x - mean)).mean((0, 2, 3), keepdim=True)
        form = (1, -1, 1, 1)
        return (x - mean) * (variance + 1e-5).rsqrt() * scale.reshape(form) + offset.reshape(form)

    def batch_norm_gradient(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        loss = (batch_norm(x, scale, offset) * x).sum()
        return loss.gradient(x)[0]

    def their_batch_norm(x: Any, scale: Any, offset: Any) -> Any:
        return functional.batch_norm(x, None, None, scale, offset, training=True)

    def their_batch_norm_gradient(x: Any, scale: Any, offset: Any) -> Any:
        leaf = x.detach().requires_grad_()
        (their_batch_norm(leaf, scale, offset) * leaf).sum().backward()
        return leaf.grad

    words, positions, million = 32000, 4096, 1 << 20
    vocabulary, said = made(words, 512), generator.integers(0, words, positions)
    upstream, sums, values = made(positions, 512), made(million), made(million)
    anywhere = generator.integers(0, million, million)

    def embedding_gradient(weights: Tensor, index: Tensor, gradient: Tensor) -> Tensor:
        return (weights[index] * gradient).sum().gradient(weights)[0]

    def their_embedding_gradient(weights: Any, index: Any, gradient: Any) -> Any:
        leaf = weights.detach().requires_grad_()
        functional.embedding(index, leaf).backward(gradient)
        return leaf.grad

    def of(*arrays: np.ndarray, times: float = 1) -> int:
        return int(sum(array.nbytes for array in arrays) * times)

    return [
        Row("transpose 4096", lambda x: x.T + 1, lambda x: (x.T + 1).contiguous(), (square,), of(square, times=2)),
        Row(
            "channels last",
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
            (images,),
            of(images, times=2),
        ),
        Row("sum of columns", lambda x: x.sum(0), lambda x: x.sum(0), (square,), of(square)),
        Row("sum of a middle axis", lambda x: x.sum(1), lambda x: x.sum(1), (made(64, 1024, 256),), 1 << 26),
        Row("sum of rows", lambda x: x.sum(1), lambda x: x.sum(1), (square,), of(square)),
        Row("sum", lambda x: x.sum(), lambda x: x.sum(), (square,), of(square)),
        Row("max of rows", lambda x: x.max(1), lambda x: x.amax(1), (square,), of(square)),
        Row("argmax of rows", lambda x: x.argmax(1), lambda x: x.argmax(1), (square,), of(square)),
        Row("cumsum of rows", lambda x: x.cumsum(1), lambda x: x.cumsum(1), (square,), of(square, times=2)),
        Row("cumsum of columns", lambda x: x.cumsum(0), lambda x: x.cumsum(0), (square,), of(square, times=2)),
        Row("cumprod of rows", lambda x: x.cumprod(1), lambda x: x.cumprod(1), (square,), of(square, times=2)),
        Row("cummax of rows", lambda x: x.cummax(1)[0], lambda x: x.cummax(1)[0], (square,), of(square, times=2)),
        Row(
            "cumsum of a row", lambda x: x.cumsum(0), lambda x: x.cumsum(0), (square.reshape(-1),), of(square, times=2)
        ),
        Row("softmax", lambda x: x.softmax(-1), lambda x: x.softmax(-1), (square,), of(square, times=2)),
        Row("softmax of columns", lambda x: x.softmax(0), lambda x: x.softmax(0), (square,), of(square, times=2)),
        Row(
            "max pool 2x2",
            lambda x: x.max_pool2d((2, 2)),
            lambda x: functional.max_pool2d(x, 2),
            (images,),
            of(images, times=1.25),
        ),
        Row(
            "average pool 3x3",
            lambda x: x.avg_pool2d((3, 3), stride=1),
            lambda x: functional.avg_pool2d(x, 3, 1),
            (images,),
            of(images, times=2),
        ),
        Row(
            "depthwise 3x3",
            lambda x, w: x.conv2d(w, groups=64, padding=1),
            lambda x, w: functional.conv2d(x, w, groups=64, padding=1),
            (images, taps),
            of(images, times=2),
        ),
        Row(
            "batch statistics",
            lambda x: x.var((0, 2, 3)),
            lambda x: x.var((0, 2, 3)),
            (batch,),
            of(batch),
        ),
        Row("batch norm", batch_norm, their_batch_norm, (batch, weight, shift), of(batch, times=2)),
        Row(
            "its gradient",
            batch_norm_gradient,
            their_batch_norm_gradient,
            (batch, weight, shift),
            of(batch, times=3),
        ),
        Row(
            "embedding",
            lambda t, i: t[i],
            lambda t, i: functional.embedding(i, t),
            (table, chosen),
            2 * chosen.size * 512 * 4,
        ),
        Row(
            "gather",
            lambda t, i: t.gather(1, i),
            lambda t, i: t.gather(1, i.long()),
            (square, places),
            of(places, times=3),
        ),
        Row(
            "gather of rows",
            lambda t, i: t.gather(0, i),
            lambda t, i: t.gather(0, i.long()),
            (square, places),
            of(places, times=3),
        ),
        Row("take", lambda t, i: t[i], lambda t, i: t[i], (values, anywhere), of(anywhere, values, values)),
        Row(
            "embedding gradient",
            embedding_gradient,
            their_embedding_gradient,
            (vocabulary, said, upstream),
            of(vocabulary) + of(upstream, times=3),
        ),
        Row(
            "scatter_add 1M",
            lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
            lambda x, i, v: x.scatter_add(0, i, v),
            (sums, anywhere, values),
            of(sums, sums, values, anywhere),
        ),
        Row(
            "scatter_add 32k",
            lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
            lambda x, i, v: x.scatter_add(0, i, v),
            (sums[: 1 << 15], anywhere[: 1 << 15] % (1 << 15), values[: 1 << 15]),
            of(sums, sums, values, anywhere, times=1 / 32),
        ),
        Row(
            "scatter_add of rows",
            lambda x, i, v: x.scatter_reduce(1, i, v, "sum"),
            lambda x, i, v: x.scatter_add(1, i.long(), v),
            (square, places, made(4096, 1024)),
            of(square, times=2) + of(places, times=2),
        ),
        Row("to bfloat16", lambda x: x.bfloat16(), lambda x: x.bfloat16(), (square,), of(square, times=1.5)),
    ]


def timed(function: Callable[[], object], best: float) -> float:
    start = time.perf_counter()
    function()
    return min(best, time.perf_counter() - start)


def main(part: str = "") -> None:
    torch: Any = None
    if importlib.util.find_spec("torch") is not None:
        import torch  # type: ignore[no-redef]
    for row in rows(torch):
        if part not in row.name:
            continue
        inputs = [Tensor(array).realize() for array in row.inputs]
        ours = jit(lambda *arguments, row=row: row.ours(*arguments).realize())
        for _ in range(3):
            ours(*inputs).synchronize()
        best, their_best = float("inf"), float("inf")
        theirs = [torch.from_numpy(array) for array in row.inputs] if torch else []
        for _ in range(ROUNDS):
            best = timed(lambda ours=ours, inputs=inputs: ours(*inputs).synchronize(), best)
            if torch:
                their_best = timed(lambda row=row, theirs=theirs: row.theirs(*theirs), their_best)
        beside = f"   torch {their_best * 1e3:9.3f} ms   ratio {their_best / best:5.2f}" if torch else ""
        print(f"{row.name:22s} {best * 1e3:9.3f} ms {row.moved / best / 1e9:7.2f} GB/s{beside}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
