"""Random programs over sizes that differ from call to call, with plans that sizes share (LIFT_SIZES) and without.

python -m tests.fuzz.test_fuzz_lifted [--seconds S] [--seed N]     fresh programs, for a while"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time

import numpy as np
import pytest

from tests.fuzz.test_fuzz_symbolic import LENGTH, MAX_ELEMENTS, Pair, step
from tilewright import Context, Tensor
from tilewright.base import events
from tilewright.base.errors import UserError

SIZES = ((4, 2), (5, 3), (6, 4), (7, 3), (3, 5), (8, 2), (5, 4), (9, 3))
COMPARED = 3  # of the last tensors of a program


def program(seed: int, n: int, m: int) -> list[Tensor]:
    """The last tensors of a program, whose choices are those of its seed where shapes allow them, and a gradient."""
    choose = random.Random(seed)
    array = np.random.default_rng(seed).uniform(-1, 1, (LENGTH, LENGTH)).astype(np.float32)
    start = Tensor(array).realize()
    pairs = [Pair(start, start)]
    for _ in range(30):
        try:
            made = step(choose, pairs, (n, n), (m, m))
        except UserError:
            continue
        if made.shape and made.plain.numel() and made.plain.numel() <= MAX_ELEMENTS and len(made.shape) < 5:
            pairs.append(made)
        if len(pairs) == 9:
            break
    last = pairs[-1].plain
    slopes: tuple[Tensor, ...] = ()
    with contextlib.suppress(UserError):  # a step of the program may have realised what came of it
        slopes = (last.square().sum() * 0.5).gradient(start)
    return [*(pair.plain for pair in pairs[-COMPARED:]), *slopes]


def check(seed: int) -> list[str]:
    """What differs."""
    complaints = []
    for n, m in SIZES:
        found = [tensor.numpy() for tensor in program(seed, n, m)]
        with Context(LIFT_SIZES=0):
            expected = [tensor.numpy() for tensor in program(seed, n, m)]
        for number, (left, right) in enumerate(zip(found, expected, strict=True)):
            if left.shape != right.shape or not np.allclose(left, right, rtol=2e-4, atol=1e-4, equal_nan=True):
                complaints.append(f"seed {seed}, sizes {n} and {m}: result {number} of shape {right.shape}")
    return complaints


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(16))
def test_shared_plans_give_what_plans_of_one_size_give(seed: int) -> None:
    failures: list[str] = []
    with events.subscribe(lambda event: failures.append(str(event["failure"])), ["lift"]):
        assert check(seed) == []
    assert not any("InternalError" in failure for failure in failures), failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(10**9)
    start, count, failed, lifted, given_up = time.monotonic(), 0, 0, 0, []
    with events.subscribe(lambda event: given_up.append(str(event["failure"]).partition("\n")[0]), ["lift"]):
        while time.monotonic() - start < given.seconds:
            try:
                found = check(seed)
            except Exception as error:  # a finding like any other
                found = [f"seed {seed}: {type(error).__name__}: {error}"]
            failed += bool(found)
            print(*found, sep="\n", end="\n" if found else "", flush=True)
            seed, count = seed + 1, count + 1
    lifted = given_up.count("")
    for reason in sorted({reason for reason in given_up if reason}):
        print(f"given up {given_up.count(reason)} times: {reason}")
    print(f"{count} programs, {lifted} graphs lifted, {failed} programs differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
