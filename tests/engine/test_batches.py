"""Items are passed on in batches: the longest first, each once, and none longer than a thread's part of what waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tilewright.engine.compilation.batches import MAX_BATCH, Batches
from tilewright.engine.compilation.workers import Workers


def batches_of(sizes: Sequence[int], kinds: str = "a", threads: int = 1) -> list[list[int]]:
    """The sizes in each batch that the caller takes at the end, beside `threads` that take none."""
    made: list[list[int]] = []
    workers = Workers(0)
    batches = Batches[int](workers, lambda batch: made.append(list(batch)))
    for position, size in enumerate(sizes):
        batches.give(size, kinds[position % len(kinds)] if kinds else "", size)
    workers.threads = threads
    workers.finish()
    return made


def test_the_longest_come_first_and_all_come_once() -> None:
    sizes = [30, 500, 20, 400, 40, *[10] * 10]
    made = batches_of(sizes)
    assert made[0] == [500]
    assert sorted(size for batch in made for size in batch) == sorted(sizes)
    assert max(map(len, made)) > 1


@pytest.mark.parametrize(("threads", "first"), [(0, 40), (1, 20), (3, 10)])
def test_a_batch_is_a_threads_part(threads: int, first: int) -> None:
    made = batches_of([10] * 40, threads=threads)
    assert len(made[0]) == first
    assert len(made[-1]) <= first


def test_a_batch_is_not_longer_than_the_limit() -> None:
    assert max(map(sum, batches_of([MAX_BATCH // 4] * 40))) == MAX_BATCH


def test_kinds_are_not_mixed() -> None:
    made = batches_of([1, 2, 3, 4, 5, 6], "ab")
    assert {frozenset(size % 2 for size in batch) for batch in made} == {frozenset({0}), frozenset({1})}


def test_items_without_a_kind_are_alone() -> None:
    assert batches_of([3, 1, 2], "") == [[3], [2], [1]]


def test_a_failure_is_raised() -> None:
    workers = Workers(0)

    def fail(batch: Sequence[int]) -> None:
        raise ValueError(len(batch))

    batches = Batches[int](workers, fail)
    batches.give(1, "a", 1)
    with pytest.raises(ValueError, match="1"):
        workers.finish()
