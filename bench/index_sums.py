"""Sums by index beside torch eager on a card, with random and with uneven indices: `python -m bench.index_sums [PART]`.

In: a device (CUDA) and torch on the same card; a part of the names of rows. Out: a table: milliseconds of both by the
card's clock, torch's time over ours, the relative error against float64 and whether a second call had the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from bench.gpu import our_seconds, torch_seconds
from tilewright import Tensor, jit

MEGA = 1 << 20
Made = tuple[np.ndarray, np.ndarray, np.ndarray]
generator = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return generator.standard_normal(shape, dtype=np.float32)


def flat(terms: int, outputs: int) -> Made:
    return normal(outputs), generator.integers(0, outputs, terms), normal(terms)


def matrix(rows: int, columns: int, axis: int) -> Made:
    index = generator.integers(0, (rows, columns)[axis], (rows, columns))
    return normal(rows, columns), index, normal(rows, columns)


def with_one_index(share: float) -> Made:
    """A share of all terms goes to one output."""
    x, index, values = flat(MEGA, MEGA)
    index[generator.random(MEGA) < share] = 5
    return x, index, values


def by_rank() -> Made:
    """Few outputs have most of the terms, as words of a text do."""
    return normal(MEGA), np.minimum(generator.zipf(1.1, MEGA) - 1, MEGA - 1), normal(MEGA)


def of_all_magnitudes() -> Made:
    x, index, values = flat(MEGA, MEGA)
    return x, index, (values * 10.0 ** generator.uniform(-10, 10, MEGA)).astype(np.float32)


ROWS: dict[str, tuple[Callable[[], Made], int]] = {
    "1M to 1M": (lambda: flat(MEGA, MEGA), 0),
    "100000 to 100000": (lambda: flat(100000, 100000), 0),
    "300000 to 300000": (lambda: flat(300000, 300000), 0),
    "5.2M to 5.2M": (lambda: flat(5200000, 5200000), 0),
    "16M to 16M": (lambda: flat(16 * MEGA, 16 * MEGA), 0),
    "4M to 1M": (lambda: flat(4 * MEGA, MEGA), 0),
    "4M to 10000": (lambda: flat(4 * MEGA, 10000), 0),
    "1M to 20M": (lambda: flat(MEGA, 20 * MEGA), 0),
    "along 0 of 200000x20": (lambda: matrix(200000, 20, 0), 0),
    "along 0 of 40000x100": (lambda: matrix(40000, 100, 0), 0),
    "along 0 of 2265x2314": (lambda: matrix(2265, 2314, 0), 0),
    "1M to 1M, all to one": (lambda: with_one_index(1.1), 0),
    "1M to 1M, half to one": (lambda: with_one_index(0.5), 0),
    "1M to 1M, a tenth to one": (lambda: with_one_index(0.1), 0),
    "1M to 1M by rank": (by_rank, 0),
    "1M to 1M of all magnitudes": (of_all_magnitudes, 0),
}


def measure(name: str, made: Made, axis: int) -> str:
    import torch

    theirs = [torch.from_numpy(array).cuda() for array in made]
    wanted = theirs[0].double().scatter_add(axis, theirs[1], theirs[2].double()).cpu().numpy()
    their_seconds = torch_seconds(torch, lambda: theirs[0].scatter_add(axis, theirs[1], theirs[2]))
    ours = [Tensor(array, device="CUDA").realize() for array in made]
    summed = jit(lambda x, index, values: x.scatter_add(axis, index, values))
    first, second = (summed(*ours).numpy() for _ in range(2))
    error = float(np.linalg.norm(first - wanted) / np.linalg.norm(wanted))
    seconds = our_seconds("CUDA", lambda: summed(*ours))
    is_same = "yes" if first.tobytes() == second.tobytes() else "no"
    times = f"{seconds * 1e3:.4f} | {their_seconds * 1e3:.4f} | {their_seconds / seconds:.2f}"
    return f"| {name} | {times} | {error:.1e} | {is_same} |"


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| `scatter_add` | ours, ms | torch | ratio | error | same bits |")
    print("|---|---|---|---|---|---|")
    for name, (make, axis) in ROWS.items():
        if part in name:
            print(measure(name, make(), axis), flush=True)


if __name__ == "__main__":
    main()
