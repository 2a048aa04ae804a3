"""The arguments and results of a jitted call. In: nested Python values with tensors in them. Out: the tensors, the
structure they stand in, their memory, what a replay assumes of them; and back again: tensors put into a structure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.engine.guards import memories_of, memory_of
from tilewright.engine.live import register_once, tensor_kind
from tilewright.engine.parts import layout_of
from tilewright.runtime.buffer import Buffer


class _Hole:
    """Stands for a tensor in the structure of a call or a result."""

    __slots__ = ()


HOLE = _Hole()
Bound = tuple[Sequence[Any], list[Buffer], tuple[object, ...]]
"""(tensors, their memory, signature of the call)"""


class _Kept:
    """An object in a structure: the same one, kept alive so that its id stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def flatten(value: Any, tensors: list[Any]) -> Any:
    """The structure of a value with its tensors taken out, hashable where its parts are."""
    if isinstance(value, tensor_kind.holder_type):
        tensors.append(value)
        return HOLE
    if isinstance(value, tuple | list):
        return (type(value), tuple(flatten(part, tensors) for part in value))
    if isinstance(value, dict):
        return (dict, tuple((key, flatten(part, tensors)) for key, part in value.items()))
    if isinstance(value, float):
        return (type(value), value, math.copysign(1.0, value))  # 0.0 and -0.0 are equal, but not in what they give
    if isinstance(value, bool | int | str | bytes | None):
        return (type(value), value)
    return ("object", id(value), _Kept(value))


def unflatten(structure: Any, tensors: Iterator[Any]) -> Any:
    if structure is HOLE:
        return next(tensors)
    kind, content = structure[0], structure[1]
    if kind is dict:
        return {key: unflatten(part, tensors) for key, part in content}
    if isinstance(kind, type) and issubclass(kind, tuple | list):
        parts = [unflatten(part, tensors) for part in content]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return structure[2].value if kind == "object" else content


def bind_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
    """The tensors of a call; the memory of each; and what a replay assumes of the call: its structure, None where every
    argument is a tensor, and of each tensor the shape, type, device and whether it needs gradients, and which share
    memory. A tensor that has no memory yet is realised first. None where one has no elements."""
    tensors: Sequence[Any] = args
    structure: Any = None
    holder_type = tensor_kind.holder_type
    for argument in args:
        if type(argument) is not holder_type:
            structure = HOLE
            break
    if kwargs or structure is not None:
        tensors = []
        structure = flatten((args, kwargs), tensors)
    buffers: list[Buffer] = []
    facts: list[object] = []
    for tensor in tensors:
        # The result of another replay may have no node yet, and is not given one for this.
        fields = tensor.__dict__
        made = None if "uop" in fields else fields.get("_memory")
        if made is not None:
            memory, shape, _ = made
            register_once(tensor)
        else:
            node = tensor.uop
            memory = memory_of(node)
            if memory is None:
                if 0 in node.shape:
                    return None
                node = tensor.realize().uop
                memory = memory_of(node)
                if memory is None:
                    buffers += memories_of(node)
                    facts += (*layout_of(node), *_facts(tensor))
                    continue
            shape = node._shape or node.shape
        buffers.append(memory)
        facts += (shape, memory.dtype, memory.device, tensor._requires_grad)
    if len(buffers) > 1 and len(set(buffers)) < len(buffers):
        facts.append(tuple(buffers.index(memory) for memory in buffers))
    return tensors, buffers, (structure, tuple(facts), tensor_kind.modes.both)


def _facts(tensor: Any) -> tuple[object, ...]:
    return tensor.uop.shape, tensor.uop.dtype, tensor.device, tensor.requires_grad


def owners_of(tensors: Sequence[Any]) -> list[Any]:
    """The tensor that each buffer of `bind_call` belongs to: one on several devices has that many."""
    return [tensor for tensor in tensors for _ in ((0,) if isinstance(tensor.device, str) else tensor.device)]
