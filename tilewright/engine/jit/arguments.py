"""The arguments and results of a jitted call. In: nested Python values with tensors in them. Out: the tensors, the
structure around them, their memory, what a replay assumes of them; and the reverse: a value from structure and
tensors."""

from __future__ import annotations

import math
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.engine.jit.guards import memories_of, memory_of
from tilewright.engine.memory.live import register_once, tensor_kind
from tilewright.engine.memory.parts import layout_of
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.symbolic import SymbolicInt, free_sizes
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer


class _Mark:
    """Stands for something in the structure of a call or a result."""

    __slots__ = ()


HOLE = _Mark()  # a tensor
FIELDS = _Mark()  # an object that is compared by its attributes
ARRAY = _Mark()  # an array or number of NumPy that is compared by value
OBJECT = _Mark()  # an object that is compared by identity
NAN = float("nan")
# The largest array that is compared by value: a larger one is guarded instead.
MAX_VALUE_BYTES = 4096
_PLAIN = (bool, int, float, str, bytes, type(None), SymbolicInt)
Bound = tuple[Sequence[Any], list[Buffer], tuple[object, ...], Mapping[str, int]]
"""(tensors, their memory, signature of the call, values of the variables in its sizes)"""


class _Kept:
    """An object in a structure, kept alive so that its id is not reused. Two are equal if their facts are."""

    __slots__ = ("facts", "value")

    def __init__(self, value: Any, facts: object) -> None:
        self.value = value
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts)


def flatten(value: Any, tensors: list[Any], values: dict[str, int] | None = None) -> Any:
    """The structure of a value with its tensors taken out, hashable where its parts are. Containers, data classes and
    namespaces are compared by their contents, numbers and small arrays by value, other objects by identity. If `values`
    is given, the values of symbolic sizes are taken out too, and put there."""
    if isinstance(value, tensor_kind.holder_type):
        tensors.append(value)
        return HOLE
    kind = type(value)
    if isinstance(value, float):
        # 0.0 == -0.0, but functions tell them apart; NaN != NaN, but functions do not.
        return (kind, value if value == value else NAN, math.copysign(1.0, value))
    if isinstance(value, bool | int | str | bytes | None):
        return (kind, value)
    if kind is SymbolicInt:
        return (kind, value if values is None else _without_value(value, values))
    if isinstance(value, tuple | list | set | frozenset | deque) and not getattr(value, "__dict__", None):
        return (kind, tuple([flatten(part, tensors, values) for part in value]))
    if kind is dict or kind is OrderedDict:
        return (kind, tuple([(key, flatten(part, tensors, values)) for key, part in value.items()]))
    if kind is types.SimpleNamespace or _is_dataclass(kind):
        return (FIELDS, tuple([(key, flatten(part, tensors, values)) for key, part in _fields_of(value)]), kind)
    if hasattr(kind, "__array_interface__") and hasattr(kind, "tobytes"):
        if value.nbytes <= MAX_VALUE_BYTES and not value.dtype.hasobject:
            return (ARRAY, _Kept(value, (kind, value.dtype, value.shape, value.tobytes())))
    return (OBJECT, _Kept(value, id(value)))


def _without_value(size: SymbolicInt, values: dict[str, int]) -> UOp:
    """The expression of a size, whose variables have their values put into `values`."""
    for name, value in size.bindings or ():
        if values.setdefault(name, value) != value:
            free_sizes(size, values)  # says which two values there are
    return size.node


def _is_dataclass(kind: Any) -> bool:
    """As `dataclasses.is_dataclass`, without importing that module and without making the fields of a record; of a
    class that can be made without arguments."""
    return kind.__new__ is object.__new__ and any("__dataclass_fields__" in vars(base) for base in kind.__mro__)


def _fields_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes of a data class or a namespace, in slots or not."""
    attributes = getattr(value, "__dict__", None)
    if attributes is not None:
        return list(attributes.items())
    import dataclasses  # a program with data classes has it already

    return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]


def unflatten(structure: Any, tensors: Iterator[Any]) -> Any:
    if structure is HOLE:
        return next(tensors)
    kind, content = structure[0], structure[1]
    if kind is FIELDS:
        made = structure[2].__new__(structure[2])
        for key, part in content:
            object.__setattr__(made, key, unflatten(part, tensors))  # also where the class is frozen
        return made
    if kind is OBJECT:
        return content.value
    if kind is ARRAY:
        return content.value.copy()
    if issubclass(kind, dict):
        return kind((key, unflatten(part, tensors)) for key, part in content)
    if issubclass(kind, tuple | list | set | frozenset | deque):
        parts = [unflatten(part, tensors) for part in content]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return content


def leaves_in(value: Any) -> tuple[Any, list[int]]:
    """The structure of a value and the ids of its tensors. Two results differ if the value was changed in between."""
    tensors: list[Any] = []
    return flatten(value, tensors), [id(tensor) for tensor in tensors]


def objects_in(structure: Any) -> list[Any]:
    """What a structure holds by identity, and the classes of what it holds by value."""
    if structure is None or structure is HOLE or structure[0] is ARRAY:
        return []
    kind, content = structure[0], structure[1]
    if kind is OBJECT:
        return [content.value]
    if kind is FIELDS:
        return [structure[2], *(found for _, part in content for found in objects_in(part))]
    if issubclass(kind, dict):
        return [found for _, part in content for found in objects_in(part)]
    if issubclass(kind, tuple | list | set | frozenset | deque):
        return [kind, *(found for part in content for found in objects_in(part))]
    return [] if kind in _PLAIN else [kind]


def bind_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
    """The tensors of a call; the memory of each; and what a replay assumes of the call: its structure, None where every
    argument is a tensor, and of each tensor the shape, type, device and whether it needs gradients, and which share
    memory. A tensor that has no memory yet is realised first. None where one has no elements."""
    tensors: Sequence[Any] = args
    structure: Any = None
    values: dict[str, int] = {}
    holder_type = tensor_kind.holder_type
    for argument in args:
        if type(argument) is not holder_type:
            structure = HOLE
            break
    if kwargs or structure is not None:
        tensors = []
        structure = flatten((args, kwargs), tensors, values)
    buffers: list[Buffer] = []
    facts: list[object] = []
    for tensor in tensors:
        fields = tensor.__dict__
        node = fields.get("uop")
        # The result of another replay may have no node yet, and is not given one for this.
        made = fields.get("_memory") if node is None else None
        if made is not None:
            memory, shape, _ = made
            register_once(tensor)
        else:
            node = node or tensor.uop
            memory = memory_of(node)
            if memory is None:
                if 0 in node.shape:
                    return None
                node = tensor.realize().uop
                memory = memory_of(node)
                if memory is None:
                    buffers += memories_of(node)
                    facts.append((*layout_of(node), *_facts(tensor)))
                    continue
            shape = node._shape or node.shape
        buffers.append(memory)
        facts.append((shape, memory.dtype, memory.device, tensor._requires_grad and (tensor._is_parameter or None)))
    if len(buffers) > 1 and len(set(buffers)) < len(buffers):
        holders = [id(tensor) for tensor in tensors]
        # One tensor that is given twice is updated by both arguments; two tensors in one memory are not.
        facts.append((*(buffers.index(memory) for memory in buffers), *(holders.index(each) for each in holders)))
    signature = (structure, tuple(facts), tensor_kind.modes.both)
    if symbolic.is_used and _have_symbolic_shapes(facts):
        signature = (structure, free_sizes(tuple(facts), values), tensor_kind.modes.both)
    return tensors, buffers, signature, values


def _have_symbolic_shapes(facts: Sequence[Any]) -> bool:
    for fact in facts:
        for part in fact:
            if part.__class__ is tuple and is_symbolic(part):
                return True
    return False


def _facts(tensor: Any) -> tuple[object, ...]:
    """What a replay assumes of a tensor. The last is whether gradients go to it: None where they go through it, to what
    it was computed from."""
    gradient = tensor._requires_grad and (tensor._is_parameter or None)
    return tensor.uop.shape, tensor.uop.dtype, tensor.device, gradient


def owners_of(tensors: Sequence[Any]) -> list[Any]:
    """The tensor that each buffer of `bind_call` belongs to: one on several devices has that many."""
    return [tensor for tensor in tensors for _ in ((0,) if isinstance(tensor.device, str) else tensor.device)]
