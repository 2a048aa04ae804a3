"""Products, matrix times vector, convolutions and attention beside torch, taking turns in one process: `python -m
bench.turns [parts of names] [--seconds S]`. In: the shapes of the side-by-side benchmark. Out: per row the best time of
each, and torch's best and median time over ours. On a machine that others share, times of two processes one after the
other say more of the moment than of the code; turns share the moment. Values are compared."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.convolutions import is_close, times_in_turns
from tilewright import Tensor, jit

Shape = tuple[int, ...]


class Row(NamedTuple):
    shapes: tuple[Shape, ...]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]


def multiplied(x: Any, y: Any) -> Any:
    return x @ y


def transposed_product(x: Any, y: Any) -> Any:
    return x.T @ y


def rows(functional: Any) -> dict[str, Row]:
    """`functional` is torch.nn.functional."""
    squares = {f"matmul {n}": Row(((n, n), (n, n)), multiplied, multiplied) for n in (64, 256, 512, 1024, 2048)}
    return squares | {
        "matmul 1000x777x333": Row(((1000, 777), (777, 333)), multiplied, multiplied),
        "matmul x.T 1024": Row(((1024, 1024), (1024, 1024)), transposed_product, transposed_product),
        "matmul bias gelu": Row(
            ((512, 1024), (1024, 1024), (1024,)),
            lambda x, y, b: (x @ y + b).gelu(),
            lambda x, y, b: functional.gelu(x @ y + b, approximate="tanh"),
        ),
        "bmm 16x256": Row(((16, 256, 256), (16, 256, 256)), multiplied, multiplied),
        "vector times matrix 4096": Row(((1, 4096), (4096, 4096)), multiplied, multiplied),
        "matrix times vector 4096": Row(((4096, 4096), (4096, 1)), multiplied, multiplied),
        "conv 3x3": Row(
            ((8, 32, 56, 56), (64, 32, 3, 3)), lambda x, w: x.conv2d(w), lambda x, w: functional.conv2d(x, w)
        ),
        "conv 5x5": Row(
            ((32, 1, 28, 28), (32, 1, 5, 5)), lambda x, w: x.conv2d(w), lambda x, w: functional.conv2d(x, w)
        ),
        "softmax": Row(((4096, 1024),), lambda x: x.softmax(-1), lambda x: functional.softmax(x, -1)),
        "attention": Row(
            ((8, 256, 64),) * 3,
            lambda q, k, v: q.scaled_dot_product_attention(k, v),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v),
        ),
    }


def measure(row: Row, torch: Any, seconds: float) -> str:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in row.shapes]
    given, theirs = [Tensor(array).realize() for array in arrays], [torch.from_numpy(array) for array in arrays]
    replayed = jit(lambda *tensors: row.ours(*tensors).realize())
    found = times_in_turns([lambda: replayed(*given), lambda: row.theirs(*theirs)], seconds)
    best = [min(times) for times in found]
    median = [statistics.median(times) for times in found]
    is_right = is_close(replayed(*given).numpy(), row.theirs(*theirs).numpy())
    return (
        f"{best[0] * 1e3:9.3f} ms   torch {best[1] * 1e3:9.3f} ms   ratio {best[1] / best[0]:5.2f}, "
        f"of medians {median[1] / median[0]:5.2f}{'' if is_right else '   VALUES DIFFER'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="the shapes of the side-by-side benchmark, in turns with torch")
    parser.add_argument("parts", nargs="*", help="parts of the names of rows; all where none")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row")
    given = parser.parse_args()
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # read by torch's threads when it is imported
    import torch

    with torch.no_grad():
        for name, row in rows(torch.nn.functional).items():
            if all(part in name for part in given.parts):
                print(f"{name:26s} {measure(row, torch, given.seconds)}", flush=True)


if __name__ == "__main__":
    main()
