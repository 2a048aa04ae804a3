"""A record that can be replayed. In: a `Record` and the memory of its arguments. Out: `Ready`, which knows what a
replay launches and overwrites, and whether a call is like the recorded one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.engine.jit.arguments import HOLE, owners_of
from tilewright.engine.jit.guards import Guards, memories_of
from tilewright.engine.jit.replay import Replay
from tilewright.engine.jit.tracing import Record
from tilewright.runtime.buffer import Buffer

FastPath = Callable[[tuple[Any, ...]], Any]
"""Takes the arguments of a call; returns its result, or None where the call is not like the recorded one (`quick`)."""


class Ready:
    """All that a replay needs."""

    def __init__(self, record: Record, reached: frozenset[Buffer], buffers: list[Buffer]) -> None:
        self.replay = Replay(record.executions, record.roles, record.outputs, record.returned, record.variables)
        self.guards: Guards = record.guards
        self.guards.number_tensors()
        self.result = record.result
        self.returned = len(record.leaves)
        self.origins = record.origins
        self.destinations = record.destinations
        # Gradients that a call replaces are dropped before it, and their memory is that of the new ones.
        replaced = [destination for destination in record.destinations if destination.is_gradient]
        self.cleared = record.cleared + replaced
        self.leaves_behind = bool(record.destinations or record.cleared)
        self.escaped = record.escaped
        self.reached = reached  # memory that the function reaches by itself
        # The arguments in that memory: in a replay the same ones.
        self.shared = shared_arguments(reached, buffers)
        # Whether each argument has one; None where the call does not depend on it.
        self.with_gradient = record.arguments_with_gradient
        self.must_compare = bool(reached) or self.with_gradient is not None
        written = self.replay.written
        self.written_state = {role.first for role in written if role.kind == "state"}
        self.written_arguments = [role.first for role in written if role.kind == "input"]
        # Whether a replay has no effect but its results; and whether its result is one new tensor.
        self.gives_results = not (written or self.escaped or self.leaves_behind)
        self.is_plain = (
            self.gives_results
            and not self.replay.is_shared
            and self.result is HOLE
            and not (self.replay.checked or self.origins)
        )
        self.argument_count = len(buffers)
        self.fast_path: FastPath | None = None
        self.replays = 0
        self.owners = [
            holder for holder, memories in self.guards.holders if not self.written_state.isdisjoint(memories)
        ]

    def is_alike(self, tensors: Sequence[Any], buffers: list[Buffer]) -> bool:
        """Whether the same arguments as in the recorded call are also reached by the function itself, and the same ones
        have a gradient."""
        if self.with_gradient is not None:
            if [tensor.grad is not None for tensor in tensors] != self.with_gradient:
                return False
        if not self.shared and self.reached.isdisjoint(buffers):
            return True
        return self.shared == shared_arguments(self.reached, buffers)

    def written(self, buffers: list[Buffer]) -> set[Buffer]:
        """The memory of arguments and state that a replay overwrites."""
        return self.written_state.union([buffers[number] for number in self.written_arguments])

    def updates_a_part(self, tensors: Sequence[Any], buffers: list[Buffer], written: set[Buffer]) -> bool:
        """Whether an argument that a replay overwrites is a copy of a part of another tensor, to which an assignment
        would write too."""
        given = zip(owners_of(tensors), buffers, strict=True)
        return any(
            buffer in written and any(buffer not in memories_of(whole.uop) for whole, _ in tensor._living_ancestors())
            for tensor, buffer in given
            if self.written_arguments and tensor._ancestors
        )

    def find_owners(self, tensors: Sequence[Any], buffers: list[Buffer], written: set[Buffer]) -> list[Any]:
        """The tensors whose memory a replay overwrites."""
        if not self.written_arguments:
            return self.owners
        owners = list(self.owners)
        if self.shared:
            owners += [holder for holder, memories in self.guards.holders if not written.isdisjoint(memories)]
        given = zip(owners_of(tensors), buffers, strict=True)
        return owners + [tensor for tensor, buffer in given if buffer in written]


def shared_arguments(reached: frozenset[Buffer], buffers: list[Buffer]) -> tuple[tuple[int, Buffer], ...]:
    """The arguments, with their numbers, whose memory the function also reaches by itself."""
    return tuple((number, buffer) for number, buffer in enumerate(buffers) if buffer in reached)
