"""Live tensors. In: tensors, registered when they are made. Out: the nodes and tensors that can still be read. An
in-place update asks here whether old contents may be overwritten. The engine knows tensors only as holders of a node:
the tensor package configures, once, how to recognise and how to make one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from tilewright.base.forks import held_lock
from tilewright.graph.ops import MultiArg
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer

Line = tuple[str, int] | None


class TensorKind:
    """What the tensor package configures: `make(memory, shape, line)` makes a tensor from the memory of its value,
    `join(parts, arg)` one from its parts on several devices; `modes.both` is the state, on this thread, of the modes
    that change what operations mean."""

    holder_type: type = type(None)
    make: Callable[[Buffer, Shape, Line], Any]
    join: Callable[[Sequence[Any], MultiArg], Any]
    modes: Any


tensor_kind = TensorKind()
_holders: dict[weakref.ref[Any], None] = {}  # in order of creation
_library_state: list[Any] = []
# Held while the node of a holder is replaced by one made from it: an update by another thread in between would be lost.
# It is held for a short time, without computing anything and without taking another lock.
exchanging = held_lock(1)


class Births:
    """The holders that a thread makes, in order of creation. Most are dead soon: their references are dropped whenever
    the list has doubled, so that a long call does not keep one for every tensor it has ever made."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []
        self._limit = 64

    def add(self, reference: weakref.ref[Any]) -> None:
        self._made.append(reference)
        if len(self._made) > self._limit:
            self._made = [each for each in self._made if each() is not None]
            self._limit = max(64, 2 * len(self._made))

    def alive(self) -> list[Any]:
        return [holder for reference in self._made if (holder := reference()) is not None]

    def extend(self, others: Births) -> None:
        self._made += others._made


_births: dict[int, Births] = {}  # of each thread inside `births`


def configure(
    holder_type: type,
    make: Callable[[Buffer, Shape, Line], Any],
    join: Callable[[Sequence[Any], MultiArg], Any],
    modes: Any,
) -> None:
    tensor_kind.holder_type = holder_type
    tensor_kind.make = make
    tensor_kind.join = join
    tensor_kind.modes = modes


def register(holder: Any) -> None:
    """Registers a holder. When it dies, `dict.pop` removes the reference: a callback in Python would take as long as
    the rest of making a tensor."""
    reference = weakref.ref(holder, _holders.pop)
    _holders[reference] = None
    if _births:
        made = _births.get(get_ident())
        if made is not None:
            made.add(reference)


def register_once(holder: Any) -> None:
    """Registers a holder that was not registered when it was made, such as a result of a replay: no update can reach
    its memory while only a variable of the user refers to it."""
    if not holder._is_registered:
        holder._is_registered = True
        _holders[weakref.ref(holder, _holders.pop)] = None  # not in `_births`: it was made earlier


def exchange(holder: Any, known: UOp, node: UOp) -> None:
    """Replaces the node of a holder by one for the same value, unless another thread has changed it from `known`."""
    with exchanging:
        if holder.uop is known:
            holder.uop = node


@contextmanager
def births() -> Iterator[Births]:
    """The holders that this thread makes inside the context."""
    thread = get_ident()
    made = Births()
    outer = _births.get(thread)
    _births[thread] = made
    try:
        yield made
    finally:
        if outer is None:
            del _births[thread]
        else:
            outer.extend(made)
            _births[thread] = outer


def register_library_state(holder: Any) -> None:
    """A tensor that operations read and update without being given it, such as the state of a random generator."""
    _library_state.append(holder)


def forget_library_state(holder: Any) -> None:
    """Removes a tensor that new calls no longer use."""
    _library_state[:] = [each for each in _library_state if each is not holder]


def library_state() -> list[Any]:
    return list(_library_state)


def holders() -> list[Any]:
    """Every holder that is alive, tensors and owners of memory that tensors borrow, the oldest first: what is scheduled
    from this is the same each time a program runs."""
    found = (reference() for reference in list(_holders))
    return [holder for holder in found if holder is not None]


def tensors() -> list[Any]:
    """Every tensor that is alive, the oldest first."""
    return [holder for holder in holders() if isinstance(holder, tensor_kind.holder_type)]


def live_nodes() -> list[UOp]:
    """The nodes of all live holders, each once, the oldest first."""
    return list(dict.fromkeys(holder.uop for holder in holders()))
