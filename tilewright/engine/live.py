"""What is alive. In: things with a `.uop`, entered when they are made. Out: the nodes that somebody can still read.
An in-place update asks here whether the old contents may be overwritten."""

from __future__ import annotations

import weakref
from typing import Protocol

from tilewright.graph.uop import UOp


class Holder(Protocol):
    uop: UOp


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def register(holder: Holder) -> None:
    _holders.add(holder)


def live_nodes() -> list[UOp]:
    """The nodes held by anyone, each once."""
    return list(dict.fromkeys(holder.uop for holder in list(_holders)))
