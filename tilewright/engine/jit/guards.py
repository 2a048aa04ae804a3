"""Guards. In: what a recorded call has read besides its arguments, as `reach` finds it. Out: whether all of it is as it
was, in some tens of nanoseconds a value: numbers and strings are compared by value, arrays by their bytes, tensors by
their memory, all else by identity.

Each kind of guard is a group of parallel lists, because `map` over lists is quicker than a loop. Where an object was
replaced, the slow path decides whether the new one is equal, and says what has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any
from weakref import ref

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.engine.memory.parts import buffers_of, held_buffer
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer

MISSING: Any = object()
# Compared by value: no function tells two equal values of one of these types apart.
VALUES = (bool, int, float, complex, str, bytes, type(None))

_node_of = attrgetter("uop")
_contents_of = attrgetter("cell_contents")
_MISSINGS = repeat(MISSING)
_dtypes = vars(dtypes)  # its attributes, read in a third of the time that reading them from the class takes
# Options that change what a recorded call would have launched, besides those that a plan is made for.
_OPTIONS = ("JIT", "DEVICE", "ALLOW_BF16X6", "ALLOW_FLOAT_ATOMICS", "ALLOW_TF32", "FLUSH_DENORMALS")
_options_of = attrgetter(*_OPTIONS)
MAX_UNROLLED = 16  # guards of one kind that are compared one by one in generated code; more are compared by `map`
Namer = Callable[[Any], str]
_gradient_flag = attrgetter("_requires_grad")
_gradient_of = attrgetter("grad")


def memory_of(node: UOp) -> Buffer | None:
    """The memory of a node's value; None where it has none."""
    while not node._cache and node.op is Ops.RESHAPE:
        node = node.src[0]
    held = node if node.op is Ops.BUFFER else held_buffer(node)
    if held is None or held._cache is None:
        return None
    found: Buffer | None = held._cache.get("buffer")
    return found


def memories_of(node: UOp) -> tuple[Buffer, ...]:
    """The memory of a value, or of its parts on several devices; () where it has none."""
    held = held_buffer(node)
    buffers = [] if held is None else buffers_of(held)
    found = tuple(buffer.cache["buffer"] for buffer in buffers if "buffer" in buffer.cache)
    return found if len(found) == len(buffers) else ()


def same_value(now: Any, then: Any) -> bool:
    """Whether no function can tell two objects apart: one object, or equal plain values of one type."""
    if now is then:
        return True
    if type(now) is not type(then) or not isinstance(then, VALUES):
        return False
    # Zeros of different sign are equal, but functions tell them apart.
    return (now == then and (now != 0 or repr(now) == repr(then))) or (now != now and then != then)


class GuardedByFunction:
    """An object of which only `function` is guarded; its other attributes are caches."""

    function: Any


class Guards:
    """The state a call was recorded under. `reach` fills the lists; `hold` compares them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # by the id of an object: how the function reaches it, for messages
        self.mappings: list[dict[Any, Any]] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.whole: list[dict[Any, Any]] = []  # whose keys are all guarded, with their order
        self.whole_keys: list[tuple[Any, ...]] = []
        self.sequences: list[tuple[Any, list[Any]]] = []
        self.cells: list[Any] = []
        self.contents: list[Any] = []
        self.functions: list[tuple[Any, Any, Any]] = []  # with code and defaults
        self.objects: list[Any] = []
        self.types: list[type] = []
        self.getters: list[tuple[Callable[[], Any], Any, str]] = []  # compared as plain values
        self.copies: list[tuple[Callable[[], Any], Any, str]] = []  # compared with ==
        self.tensors: list[Any] = []
        # Weak, because a node that is referred to looks as if somebody read it. There is one such reference to a node,
        # so that references can be compared by identity.
        self.nodes: list[ref[UOp]] = []
        self.memories: list[tuple[Buffer, ...]] = []
        self.are_memory: list[bool] = []  # whether each is nothing but memory
        self.flags: list[bool] = []
        self.with_gradient: list[bool] | None = None  # whether each had a gradient when the call began
        # Where the call has left tensors of its own: the numbers of entries and cells, and items of sequences.
        self.stored_entries: list[int] = []
        self.stored_cells: list[int] = []
        self.stored_items: list[tuple[Any, list[Any], int]] = []
        self.classes: dict[int, type] = {}  # by the id of their body
        self.refused = ""  # why there can be no guard for something that the function reads
        self.modes = _modes()

    # ------------------------------------------------------------ filling

    def add_entry(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self.mappings.append(mapping)
        self.keys.append(key)
        self.values.append(value)

    def add_keys(self, mapping: dict[Any, Any]) -> None:
        self.whole.append(mapping)
        self.whole_keys.append(tuple(mapping))

    def add_function(self, function: Any) -> None:
        self.functions.append((function, function.__code__, function.__defaults__))

    def add_object(self, value: Any) -> None:
        self.objects.append(value)
        self.types.append(type(value))

    def leave_out(self, unused: set[int]) -> None:
        """Removes tensors, by id, that operations of the package could have read and have not."""
        self.tensors = [holder for holder in self.tensors if id(holder) not in unused]

    def look_at_tensors(self) -> None:
        """Records the memory of each tensor, once all pending updates are computed. Nodes are referred to weakly: they
        lead to values of the call, which a record must not keep alive."""
        nodes = [holder.uop for holder in self.tensors]
        self.nodes = [ref(node) for node in nodes]
        self.memories = [memories_of(node) for node in nodes]
        self.are_memory = [_is_memory(node) for node in nodes]
        self.flags = [holder._requires_grad for holder in self.tensors]

    def finish(self, had_gradient: set[int] | None) -> None:
        """Ends the filling. `had_gradient` are the ids of tensors with a gradient before the call, None where the call
        has nothing to do with gradients."""
        if had_gradient is not None:
            self.with_gradient = [id(holder) in had_gradient for holder in self.tensors]
        self._checks = self._find_checks()

    def stored(self) -> Iterator[tuple[Any, tuple[Any, ...], Callable[[Any, Any], None]]]:
        """The tensors that the call has made and stored where guards compare; the identity of each destination, and a
        function that stores another tensor there, which the guards then expect."""
        for number in self.stored_entries:
            mapping, key = self.mappings[number], self.keys[number]
            yield self.values[number], ("entry", id(mapping), key), functools.partial(self._put_entry, number)
        for number in self.stored_cells:
            yield self.contents[number], ("cell", id(self.cells[number])), functools.partial(self._put_cell, number)
        for sequence, items, number in self.stored_items:
            put = functools.partial(_put_item, sequence, items, number)
            yield items[number], ("item", id(sequence), number), put

    def _put_entry(self, number: int, _: Any, tensor: Any) -> None:
        mapping, key = self.mappings[number], self.keys[number]
        kind = self.classes.get(id(mapping))
        if kind is None:
            mapping[key] = tensor
        else:
            setattr(kind, key, tensor)
        self.values[number] = tensor

    def _put_cell(self, number: int, _: Any, tensor: Any) -> None:
        self.cells[number].cell_contents = tensor
        self.contents[number] = tensor

    # ------------------------------------------------------------ comparing

    def hold(self) -> bool:
        """Whether everything is as it was."""
        return all(check() for check in self._checks) or not self.change()

    def _find_checks(self) -> list[Callable[[], bool]]:
        """The comparisons of the kinds that have guards: going through empty lists would cost as much."""
        return [check for _, guarded, check in self._groups() if guarded]

    def _groups(self) -> list[tuple[Callable[[int, Namer], str] | None, Any, Callable[[], bool]]]:
        """The kinds of guards: the text that compares one of them, the list of them, and what compares all."""
        return [
            (None, self.modes, lambda: _modes() == self.modes),
            (self._text_of_function, self.functions, self._functions_hold),
            (self._text_of_tensor, self.tensors, self._tensors_hold),
            (self._text_of_entry, self.mappings, self._entries_hold),
            (self._text_of_object, self.objects, lambda: list(map(type, self.objects)) == self.types),
            (None, self.whole, lambda: list(map(tuple, self.whole)) == self.whole_keys),
            (None, self.sequences, lambda: all(len(a) == len(b) and all(map(is_, a, b)) for a, b in self.sequences)),
            (None, self.cells, self._cells_hold),
            (None, self.with_gradient, self._gradients_hold),
            (None, self.getters, lambda: all(same_value(get(), value) for get, value, _ in self.getters)),
            (None, self.copies, lambda: all(get() == value for get, value, _ in self.copies)),
        ]

    def conditions(self, name: Namer) -> list[str]:
        """Expressions that are all true where every object is the same one as before; `name` gives the name of a
        constant."""
        found = []
        for text, guarded, check in self._groups():
            if guarded is self.modes:
                found += _text_of_modes(self.modes, name)
            elif guarded and text is not None and len(guarded) <= MAX_UNROLLED:
                found += [text(number, name) for number in range(len(guarded))]
            elif guarded:
                found.append(f"{name(check)}()")
        return found

    def _text_of_function(self, number: int, name: Namer) -> str:
        function, code, defaults = self.functions[number]
        return f"{name(function)}.__code__ is {name(code)} and {name(function)}.__defaults__ is {name(defaults)}"

    def _text_of_tensor(self, number: int, name: Namer) -> str:
        # The text names the lists, not their elements: these are replaced by new nodes and equal values.
        return f"{name(ref)}({name(self.tensors[number])}.uop) is {name(self.nodes)}[{number}]"

    def _text_of_entry(self, number: int, name: Namer) -> str:
        entry = f"{name(dict.get)}({name(self.mappings[number])}, {name(self.keys[number])}, {name(MISSING)})"
        return f"{entry} is {name(self.values)}[{number}]"

    def _text_of_object(self, number: int, name: Namer) -> str:
        return f"type({name(self.objects[number])}) is {name(self.types[number])}"

    def _functions_hold(self) -> bool:
        for function, code, defaults in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
        return True

    def _tensors_hold(self) -> bool:
        return all(map(is_, map(ref, map(_node_of, self.tensors)), self.nodes))

    def _entries_hold(self) -> bool:
        return all(map(is_, map(dict.get, self.mappings, self.keys, _MISSINGS), self.values))

    def _cells_hold(self) -> bool:
        try:
            return all(map(is_, map(_contents_of, self.cells), self.contents))
        except ValueError:  # one has been emptied
            return False

    def _gradients_hold(self) -> bool:
        if list(map(_gradient_flag, self.tensors)) != self.flags:
            return False
        return [gradient is not None for gradient in map(_gradient_of, self.tensors)] == self.with_gradient

    def change(self) -> str:
        """What has changed, '' where nothing has. An equal value that is another object replaces the guarded one, so
        that the next comparison is quick again."""
        if _modes() != self.modes:
            return "the default device or dtype"
        return (
            self._change_of_tensors()
            or self._change_of_entries()
            or self._change_of_kinds()
            or self._change_of_sequences()
            or self._change_of_cells()
            or self._change_of_contents()
        )

    def _name(self, value: Any, key: Any = None) -> str:
        name = self.names.get(id(value), "something that it reaches")
        return name if key is None else f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!r}]"

    def _change_of_tensors(self) -> str:
        for number, holder in enumerate(self.tensors):
            now, memories = holder.uop, self.memories[number]
            if now is self.nodes[number]():
                continue
            if not memories or memories_of(now) != memories:
                return f"the tensor {self._name(holder)}"
            self.nodes[number] = ref(now)
        if self.with_gradient is not None and not self._gradients_hold():
            return "whether tensors require or have a gradient"
        return ""

    def _change_of_entries(self) -> str:
        for number, (mapping, key) in enumerate(zip(self.mappings, self.keys, strict=True)):
            now = mapping.get(key, MISSING)
            if not same_value(now, self.values[number]):
                return self._name(mapping, key)
            self.values[number] = now
        return ""

    def _change_of_kinds(self) -> str:
        for value, kind in zip(self.objects, self.types, strict=True):
            if type(value) is not kind:
                return f"the class of {self._name(value)}"
        for mapping, keys in zip(self.whole, self.whole_keys, strict=True):
            if tuple(mapping) != keys:
                return f"the keys of {self._name(mapping)}"
        for function, code, defaults in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return f"the function {function.__qualname__}"
        return ""

    def _change_of_sequences(self) -> str:
        for sequence, items in self.sequences:
            present = list(sequence)
            if len(present) != len(items) or not all(map(same_value, present, items)):
                return self._name(sequence)
            items[:] = present
        return ""

    def _change_of_cells(self) -> str:
        for number, (cell, then) in enumerate(zip(self.cells, self.contents, strict=True)):
            now = contents_of(cell)
            if not same_value(now, then):
                return self._name(cell)
            self.contents[number] = now
        return ""

    def _change_of_contents(self) -> str:
        for get, value, name in self.getters:
            if not same_value(get(), value):
                return name
        for get, value, name in self.copies:
            if get() != value:
                return f"the contents of {name}"
        return ""

    # ------------------------------------------------------------ tensors

    @functools.cached_property
    def holders(self) -> list[tuple[Any, tuple[Buffer, ...]]]:
        """The tensors that were found, and their memory."""
        return list(zip(self.tensors, self.memories, strict=True))

    def state_buffers(self) -> set[Buffer]:
        """The memory of tensors that are nothing but memory. One that remembers what it was computed from, for its
        gradient, is left out: its node could as well be what the function computes."""
        pairs = zip(self.memories, self.are_memory, strict=True)
        return {memory for memories, is_memory in pairs for memory in memories if is_memory}

    def number_tensors(self) -> None:
        """Prepares for `follow`."""
        self._numbers = {id(holder): number for number, holder in enumerate(self.tensors)}

    def follow(self, holders: Sequence[Any]) -> None:
        """Called when tensors have new nodes for the same memory."""
        numbers, nodes = self._numbers, self.nodes
        for holder in holders:
            number = numbers.get(id(holder))
            if number is not None:
                nodes[number] = ref(holder.uop)


def _put_item(sequence: Any, items: list[Any], number: int, _: Any, tensor: Any) -> None:
    sequence[number] = items[number] = tensor


def contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet, or it was emptied
        return MISSING


def _text_of_modes(modes: tuple[Any, ...], name: Namer) -> list[str]:
    """Expressions that compare what `_modes` gives."""
    real, whole, *values = modes
    settings = zip(_OPTIONS, values, strict=True)
    return [
        f"{name(_dtypes)}['default_float'] is {name(real)} and {name(_dtypes)}['default_int'] is {name(whole)}",
        " and ".join(f"{name(options)}.{option} == {name(value)}" for option, value in settings),
    ]


def _modes() -> tuple[Any, ...]:
    return (_dtypes["default_float"], _dtypes["default_int"], *_options_of(options))


def _is_memory(node: UOp) -> bool:
    while node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    return all(map(_is_memory, node.src)) if node.op is Ops.MULTI else node.op in (Ops.BUFFER, Ops.ASSIGN)
