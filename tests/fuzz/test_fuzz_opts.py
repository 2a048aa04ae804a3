"""Random kernels with random legal opts and fixed seeds do on the emulator what they do without opts, 25 of
them and in the slow tests five thousand; some of them also on devices that compile. `python -m tests.fuzz.opts` goes on
with fresh seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.fuzz.opts import WEIGHTS, Pair, check_pair, compiling_devices, examine, make_pair, minimise
from tests.kernel.kernels import kernel
from tilewright.backends.python import emulator
from tilewright.backends.python.device import python_target
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.kernels import levels
from tilewright.graph.records import Opt, OptOps

QUICK_PAIRS = 25
PAIRS = 5000
CHUNK = 25


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_PAIRS, CHUNK),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK_PAIRS, PAIRS, CHUNK)),
    ],
)
def test_opts_change_nothing(first: int) -> None:
    devices = compiling_devices()
    failures = [text for seed in range(first, first + CHUNK) if (text := examine(seed, devices)) is not None]
    forget_kernels()
    assert not failures, "\n".join(failures)


def test_opts_change_nothing_in_levels_of_few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops of these kernels are short; with short levels most float sums have several."""
    for name, terms in (("TERMS", 2), ("CONTRACTION_TERMS", 4), ("SHORT", 2)):
        monkeypatch.setattr(levels, name, terms)
    failures = [text for seed in range(PAIRS, PAIRS + 100) if (text := examine(seed, [])) is not None]
    forget_kernels()
    assert not failures, "\n".join(failures)


def test_a_seed_gives_one_pair_and_pairs_differ() -> None:
    pairs = [make_pair(seed) for seed in range(200)]
    assert [pair.opts for pair in pairs[:20]] == [make_pair(seed).opts for seed in range(20)]
    assert len({(pair.name, pair.opts) for pair in pairs}) > 150


def test_every_transform_is_drawn() -> None:
    """A fuzzer that applies nothing finds nothing."""
    drawn = Counter(opt.op for seed in range(300) for opt in make_pair(seed).opts)
    assert all(drawn[op] >= 5 for op in WEIGHTS), drawn
    assert sum(drawn.values()) > 600


def test_a_wrong_kernel_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without barriers the threads of a group no longer meet; the opts that do not matter are dropped."""
    monkeypatch.setitem(emulator._HANDLERS, emulator.Ops.BARRIER, lambda *_: None)
    opts = (Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.GROUP, 1, 4))
    pair = Pair(0, "row_sums", kernel("row_sums"), opts, python_target())
    assert check_pair(replace(pair, opts=())) is None
    failure = check_pair(pair)
    assert failure is not None
    assert "RaceError" in failure
    assert minimise(pair, check_pair).opts == (Opt(OptOps.GROUP, 1, 4),)
