"""What is alive. In: tensors, entered when they are made. Out: the nodes and tensors that somebody can still read. An
in-place update asks here whether old contents may be overwritten. The engine knows tensors only as holders of a node:
the tensor package tells it, once, how to recognise and how to make one."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from tilewright.graph.uop import UOp


class Holder(Protocol):
    uop: UOp
    device: str


class _Tensors:
    """What the tensor package has told."""

    holder_type: type = type(None)
    make: Callable[[UOp, str], Any]
    ambient: Callable[[], Hashable]


_tensors = _Tensors()
_holders: weakref.WeakSet[Any] = weakref.WeakSet()
_births = itertools.count()
_library_state: list[Any] = []


def configure(holder_type: type, make: Callable[[UOp, str], Any], ambient: Callable[[], Hashable]) -> None:
    """`make(node, device)` makes a tensor; `ambient()` is the state of modes that change what operations mean."""
    _tensors.holder_type = holder_type
    _tensors.make = make
    _tensors.ambient = ambient


def register(holder: Any) -> None:
    holder.birth = next(_births)
    _holders.add(holder)


def register_library_state(holder: Any) -> None:
    """A tensor that operations read and update without being given it, such as the state of a random generator."""
    _library_state.append(holder)


def library_state() -> list[Any]:
    return list(_library_state)


def holders() -> list[Any]:
    """Every holder that is alive: tensors, and owners of memory that tensors borrow."""
    return list(_holders)


def holders_by_age() -> list[Any]:
    """Every holder, the oldest first: what is scheduled from this is the same each time a program runs."""
    return sorted(_holders, key=lambda holder: holder.birth)


def tensors() -> list[Any]:
    """Every tensor that is alive, the oldest first."""
    return [holder for holder in holders_by_age() if isinstance(holder, _tensors.holder_type)]


def live_nodes() -> list[UOp]:
    """The nodes held by anyone, each once, the oldest first."""
    return list(dict.fromkeys(holder.uop for holder in holders_by_age()))


def holder_type() -> type:
    return _tensors.holder_type


def make_holder(node: UOp, device: str) -> Any:
    return _tensors.make(node, device)


def ambient_state() -> Hashable:
    return _tensors.ambient()
