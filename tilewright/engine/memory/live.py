"""What is alive. In: tensors, entered when they are made. Out: the nodes and tensors that somebody can still read. An
in-place update asks here whether old contents may be overwritten. The engine knows tensors only as holders of a node:
the tensor package tells it, once, how to recognise and how to make one."""

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
    """What the tensor package tells of tensors, once: `make(memory, shape, line)` makes one of memory that holds its
    value, `join(parts, arg)` one of those that hold its parts on several devices; `modes.both` is the state, on this
    thread, of the modes that change what operations mean."""

    holder_type: type = type(None)
    make: Callable[[Buffer, Shape, Line], Any]
    join: Callable[[Sequence[Any], MultiArg], Any]
    modes: Any


tensor_kind = TensorKind()
_holders: dict[weakref.ref[Any], None] = {}  # in order of birth
_library_state: list[Any] = []
# Held while a holder is given another node that was made from the one it had: an update that another thread makes in
# between would be lost. Nothing is computed meanwhile, so nobody waits long for it; no other lock is taken inside.
exchanging = held_lock(1)
_births: dict[int, list[weakref.ref[Any]]] = {}  # per thread that wants to know: the holders it has made since


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
    """Enters a holder. Its reference takes itself out when it dies, by the dictionary's own method: every tensor pays
    for this, and a callback in Python would cost as much as all the rest of making one."""
    reference = weakref.ref(holder, _holders.pop)
    _holders[reference] = None
    if _births:
        made = _births.get(get_ident())
        if made is not None:
            made.append(reference)


def register_once(holder: Any) -> None:
    """Enters a holder that was made without being entered, as results of replays are: while nothing but a variable of
    the user's leads to one, no update can reach its memory."""
    if not holder._is_entered:
        holder._is_entered = True
        _holders[weakref.ref(holder, _holders.pop)] = None  # it was born when it was made, which may be long ago


def exchange(holder: Any, known: UOp, node: UOp) -> None:
    """Gives a holder the node that holds the value of the `known` one, unless another thread has updated it since."""
    with exchanging:
        if holder.uop is known:
            holder.uop = node


@contextmanager
def births() -> Iterator[list[weakref.ref[Any]]]:
    """The holders that this thread makes inside the block, in order of birth."""
    thread = get_ident()
    made: list[weakref.ref[Any]] = []
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
    """Takes out what was entered: it is not used by new calls any more."""
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
    """The nodes held by anyone, each once, the oldest first."""
    return list(dict.fromkeys(holder.uop for holder in holders()))
