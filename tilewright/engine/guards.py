"""What a jitted function depends on besides its arguments. In: a function. Out: a list of guards that tell, in a few
microseconds, whether any of it has changed: numbers and strings by value, tensors by their memory, all else by
identity. Looked through: closures, globals and defaults that the code names, bound objects, their attributes, lists,
tuples, dicts."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from tilewright.engine.live import Holder, library_state
from tilewright.engine.parts import buffers_of
from tilewright.engine.realize import held_buffer
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer

_MISSING = object()
_VALUES = (bool, int, float, complex, str, bytes, type(None))
# A function that reaches more than this is guarded by what was found first; what it reads is almost always near.
MOST_OBJECTS = 4000


def memory_of(node: UOp) -> Buffer | None:
    """The memory that a node's value lies in, where it has any."""
    while node._cache is None and node.op is Ops.RESHAPE:
        node = node.src[0]
    held = node if node.op is Ops.BUFFER else held_buffer(node)
    if held is None or held._cache is None:
        return None
    found: Buffer | None = held._cache.get("buffer")
    return found


def memories_of(node: UOp) -> tuple[Buffer, ...]:
    """The memory that a value lies in, or that its parts on several devices lie in; nothing where it has none."""
    held = held_buffer(node)
    buffers = [] if held is None else buffers_of(held)
    found = tuple(buffer.cache["buffer"] for buffer in buffers if "buffer" in buffer.cache)
    return found if len(found) == len(buffers) else ()


class Guards:
    """The state a function was recorded under."""

    def __init__(self, function: Callable[..., Any], holder_type: type) -> None:
        self.holder_type = holder_type
        self.attributes: list[tuple[dict[Any, Any], Any, Any, bool]] = []  # (dict, key, value, compare by value)
        self.sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self.cells: list[tuple[types.CellType, Any, bool]] = []
        self.tensors: list[tuple[Holder, Buffer | None, UOp]] = []
        self.spread: list[tuple[Holder, tuple[Buffer, ...], UOp]] = []  # those that lie on several devices
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # keeps ids unique while they are compared
        self._walk(function)
        for holder in library_state():
            self._children(holder)
        # A function of its arguments alone; loops over nothing would cost more than all else here.
        self.is_free = not (self.attributes or self.sequences or self.cells or self.tensors or self.spread)

    def hold(self) -> bool:
        """Whether everything is as it was."""
        if self.is_free:
            return True
        for mapping, key, value, by_value in self.attributes:
            now = mapping.get(key, _MISSING)
            if now is not value and not (by_value and _same_value(now, value)):
                return False
        for cell, value, by_value in self.cells:
            now = cell.cell_contents
            if now is not value and not (by_value and _same_value(now, value)):
                return False
        for sequence, items in self.sequences:
            if len(sequence) != len(items) or any(
                now is not item and not _same_value(now, item) for now, item in zip(sequence, items, strict=True)
            ):
                return False
        for holder, memory, node in self.tensors:
            if (holder.uop is not node) if memory is None else (memory_of(holder.uop) is not memory):
                return False
        # Where there are none, the generator would still cost more than all else here.
        return not self.spread or all(memories_of(holder.uop) == memories for holder, memories, _ in self.spread)

    @functools.cached_property
    def holders(self) -> list[tuple[Holder, tuple[Buffer, ...]]]:
        """The tensors that were found, and their memory."""
        found = [(holder, () if memory is None else (memory,)) for holder, memory, _ in self.tensors]
        return found + [(holder, memories) for holder, memories, _ in self.spread]

    def state_buffers(self) -> set[Buffer]:
        """The memory of tensors that are nothing but memory. One that remembers what it was computed from, for its
        gradient, is left out: its node could as well be what the function computes."""
        found = {memory for _, memory, node in self.tensors if memory is not None and _is_memory(node)}
        return found.union(*(memories for _, memories, node in self.spread if _is_memory(node)))

    # ------------------------------------------------------------ finding

    def _walk(self, root: Any) -> None:
        pending = [root]
        while pending and len(self._seen) < MOST_OBJECTS:
            value = pending.pop()
            if isinstance(value, (*_VALUES, type)) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._kept.append(value)
            pending.extend(self._children(value))
        self.are_complete = not pending

    def _children(self, value: Any) -> list[Any]:
        if isinstance(value, self.holder_type):
            holder: Any = value
            memories = () if isinstance(holder.device, str) else memories_of(holder.uop)
            if memories:
                self.spread.append((holder, memories, holder.uop))
            else:
                self.tensors.append((holder, memory_of(holder.uop), holder.uop))
            return []
        if isinstance(value, types.MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, types.FunctionType):
            return self._function_children(value)
        if isinstance(value, list | tuple):
            if isinstance(value, list):
                self.sequences.append((value, tuple(value)))
            return list(value)
        if isinstance(value, dict):
            return self._mapping_children(value, list(value))
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, set | frozenset | deque):
            return list(value)
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            return []
        guarded = getattr(type(value), "guarded_attribute", None)
        if guarded is not None:
            return [getattr(value, guarded)]
        if type(value).__module__.partition(".")[0] in ("builtins", "numpy", "threading", "_thread", "weakref"):
            return []
        attributes = getattr(value, "__dict__", None)
        found = self._mapping_children(attributes, list(attributes)) if isinstance(attributes, dict) else []
        return found + self._class_children(value)

    def _class_children(self, value: Any) -> list[Any]:
        """Tensors among what an object has of its classes: their attributes, and its slots."""
        found = []
        for kind in type(value).__mro__[:-1]:
            for name, member in vars(kind).items():
                held = getattr(value, name, None) if isinstance(member, types.MemberDescriptorType) else member
                if isinstance(held, self.holder_type) or held is not member:
                    found.append(held)
        return found

    def _mapping_children(self, mapping: dict[Any, Any], keys: list[Any]) -> list[Any]:
        children = []
        for key in keys:
            value = mapping.get(key, _MISSING)
            self.attributes.append((mapping, key, value, isinstance(value, _VALUES)))
            children.append(value)
        return children

    def _function_children(self, function: types.FunctionType) -> list[Any]:
        if function.__module__ is not None and function.__module__.partition(".")[0] == "tilewright":
            return []  # the library itself; what it remembers between calls is state of its own
        children: list[Any] = list(function.__defaults__ or ())
        children.extend((function.__kwdefaults__ or {}).values())
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # a cell that nothing was put into yet
                continue
            self.cells.append((cell, contents, isinstance(contents, _VALUES)))
            children.append(contents)
        names = [name for code in _codes(function.__code__) for name in code.co_names]
        namespace = function.__globals__
        children.extend(self._mapping_children(namespace, [name for name in dict.fromkeys(names) if name in namespace]))
        for module in [child for child in children if isinstance(child, types.ModuleType)]:
            if module.__name__.partition(".")[0] != "tilewright":
                plain = [n for n in names if isinstance(getattr(module, n, _MISSING), _VALUES)]
                self._mapping_children(module.__dict__, [n for n in plain if n in module.__dict__])
        return children


def _is_memory(node: UOp) -> bool:
    while node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    return all(map(_is_memory, node.src)) if node.op is Ops.MULTI else node.op in (Ops.BUFFER, Ops.ASSIGN)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for constant in code.co_consts if isinstance(constant, types.CodeType) for c in _codes(constant)]
    return [code, *inner]


def _same_value(now: Any, then: Any) -> bool:
    if type(now) is not type(then) or not isinstance(then, _VALUES):
        return False
    # Zeros are equal whatever their sign, but what is computed with them is not.
    return (now == then and (now != 0 or repr(now) == repr(then))) or (now != now and then != then)
