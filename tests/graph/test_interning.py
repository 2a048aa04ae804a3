"""Equal nodes are one object, whichever thread makes them and while others are freed."""

from __future__ import annotations

import sys
import threading

from tilewright.base.dtype import dtypes
from tilewright.graph import uop
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, index_const

THREADS, ROUNDS, NUMBERS = 4, 200, 30


def test_threads_that_make_equal_nodes_at_once_get_one() -> None:
    barrier = threading.Barrier(THREADS)
    made: list[list[UOp]] = [[] for _ in range(THREADS)]
    differing: list[int] = []
    variable = UOp(Ops.VARIABLE, dtypes.index, (), ("interned", 0, 9))

    def make(thread: int) -> None:
        for _ in range(ROUNDS):
            barrier.wait()
            made[thread] = []  # frees those of the round before, while other threads make them again
            made[thread] = [variable * number for number in range(NUMBERS)]
            if barrier.wait() == 0:
                differing.extend(n for n, nodes in enumerate(zip(*made, strict=True)) if len(set(nodes)) > 1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not differing


def test_a_node_that_nobody_holds_leaves_the_table() -> None:
    before = len(uop._table)
    node = index_const(987_654_321) + index_const(123_456_789)
    assert len(uop._table) > before
    del node
    assert len(uop._table) == before
