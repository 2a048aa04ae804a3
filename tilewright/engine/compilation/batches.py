"""Work in batches. In: items, given one by one while threads work. Out: each has been passed to a call, some of them
together: a thread that is free takes a part of what waits. Stands between `compile_kernels` and its `Workers`."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tilewright.engine.compilation.workers import Workers

# The size of a batch, in characters of a text of LLVM: about a tenth of a second. Larger ones gain nothing.
MAX_BATCH = 192 << 10

Item = TypeVar("Item")


class Batches(Generic[Item]):
    """Items that wait for `call`, which takes those of one kind together. The longest come first, and a batch is not
    more than a thread's part of what waits, so that none is idle and none ends long after the others."""

    def __init__(self, workers: Workers, call: Callable[[Sequence[Item]], None]) -> None:
        self._workers = workers
        self._call = call
        self._waiting: dict[str, list[tuple[int, int, Item]]] = {}  # heaps by kind: the longest first, then by number
        self._given = 0
        self._lock = threading.Lock()

    def give(self, item: Item, kind: str, size: int) -> None:
        """Items of the kind "" are not passed on together with others."""
        if not kind:
            self._workers.give(lambda: self._call([item]), size)
            return
        with self._lock:
            heapq.heappush(self._waiting.setdefault(kind, []), (-size, self._given, item))
            self._given += 1
        self._workers.give(lambda: self._take(kind), size)

    def _take(self, kind: str) -> None:
        batch = self._next(kind)
        if batch:  # else others have taken all
            self._call(batch)

    def _next(self, kind: str) -> list[Item]:
        with self._lock:
            heap = self._waiting[kind]
            # The thread that gives the items takes none before it has given the last.
            threads = max(1, self._workers.threads + self._workers.is_closed)
            limit = min(MAX_BATCH, -sum(size for size, *_ in heap) // threads)
            batch: list[Item] = []
            while heap and (not batch or -heap[0][0] <= limit):
                size, _, item = heapq.heappop(heap)
                limit += size
                batch.append(item)
            return batch
