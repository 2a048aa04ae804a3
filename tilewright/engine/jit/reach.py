"""What a call can have read besides its arguments. In: the function, objects among its arguments, and the code that
ran. Out: guards for all of it, or the reason why something that it reads cannot be guarded.

The walk visits closures, globals, defaults and attributes of functions that ran; attributes and slots of objects, and
what their classes say, along the whole MRO; the names of modules that the code names; lists, tuples, dicts,
sets, deques; the bytes of arrays; the values of context variables, thread-local objects and weak references. An
attribute that no code names is not read. Objects whose state cannot be read (an iterator, a file, a native random
generator) are refused where a name in the user's code leads to them."""

from __future__ import annotations

import functools
import gc
import opcode
import operator
import sys
import types
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tilewright.engine.jit import known_python
from tilewright.engine.jit.class_members import body_of, members_of, tensor_classes
from tilewright.engine.jit.guards import MISSING, VALUES, GuardedByFunction, Guards, contents_of
from tilewright.engine.jit.observe import MAX_CODES, Observation, names_in, origin_of

# A function that reads more objects, or more entries of containers, is traced each time: comparing them all would take
# about as long.
MAX_OBJECTS = 20_000
MAX_ENTRIES, ENTRIES_PER_OBJECT = 1 << 18, 3
MAX_ARRAY_BYTES = 1 << 20
MAX_NAME = 100  # characters of the path from the function to an object
_LIBRARIES = sys.stdlib_module_names.union(["numpy"])
_IMPORT_NAME, _EXTENDED_ARG = opcode.opmap["IMPORT_NAME"], opcode.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL, _LOAD_NAME = opcode.opmap["LOAD_GLOBAL"], opcode.opmap["LOAD_NAME"]


def _steps_of(code: types.CodeType) -> Iterator[tuple[int, int]]:
    """The instructions of a code with their arguments, read from its bytes, because `dis` takes 20 times as long."""
    extended = 0
    for op, arg in zip(code.co_code[::2], code.co_code[1::2]):
        arg |= extended
        yield op, arg
        extended = arg << 8 if op == _EXTENDED_ARG else 0


@functools.lru_cache(maxsize=MAX_CODES)
def _globals_named(code: types.CodeType) -> tuple[str, ...]:
    """The names that a code looks up as globals. A name that is not an identifier is from a tool that rewrote the code:
    pytest's `@pytest_ar`, which describes an assertion that failed, leads to all of pytest."""
    found = []
    for op, arg in _steps_of(code):
        if op == _LOAD_GLOBAL:
            found.append(code.co_names[arg >> 1])  # the lowest bit says whether it is called
        elif op == _LOAD_NAME:
            found.append(code.co_names[arg])
    return tuple(name for name in dict.fromkeys(found) if name.isidentifier())


@functools.lru_cache(maxsize=MAX_CODES)
def _modules_named(code: types.CodeType) -> tuple[str, ...]:
    has_any = _IMPORT_NAME in code.co_code[::2]  # few functions import
    return tuple(dict.fromkeys(code.co_names[n] for op, n in _steps_of(code) if op == _IMPORT_NAME)) if has_any else ()


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """A code and those of the functions, classes and comprehensions inside it."""
    inner = [c for constant in code.co_consts if isinstance(constant, types.CodeType) for c in codes_in(constant)]
    return [code, *inner]


class Reach:
    """One walk. Without an observation it visits all functions and attributes and refuses nothing: all that the
    function could read. With one it visits the code that ran and the attributes that it names."""

    def __init__(
        self, holder_type: type, observed: Observation | None = None, made: frozenset[int] = frozenset()
    ) -> None:
        self.guards = Guards()
        self.made = made  # the ids of tensors that the call has made, which are not state
        self.holder_type = holder_type
        self.observed = observed
        self.is_complete = True
        self._entry_count = 0
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that their ids are not reused
        self._pending: list[tuple[Any, str]] = []
        self._found: set[types.CodeType] = set()  # the codes of the functions that were visited
        self._found_names: set[str] = set()  # what these name
        self._has_unseen_calls = False  # whether something was visited whose calls the profiler does not see
        self._takes_all = observed is None
        self._modules: list[types.ModuleType] = []  # last, when it is known which names lead into them

    def walk(self, roots: Iterable[tuple[Any, str]]) -> None:
        roots = list(roots)
        self._walk_once(roots)
        if self._has_unseen_calls and self.is_complete:
            # Calls that the profiler does not see may read anything: all that can be reached is visited.
            observed = self.observed
            self.__init__(self.holder_type, observed, self.made)  # type: ignore[misc]
            self._takes_all = True
            self._walk_once(roots)

    def _walk_once(self, roots: list[tuple[Any, str]]) -> None:
        self._pending.extend(roots)
        self._drain()
        while self._modules and self.is_complete:
            self._visit_module(self._modules.pop())
            self._drain()
        if self.observed is not None and self.is_complete:
            lost = [code for code in self.observed.codes if code not in self._found and origin_of(code) == "user"]
            if lost:
                self._pending.extend((function, function.__qualname__) for function in _functions_of(lost))
                self._drain()
        if not self.is_complete:
            self._refuse("it reads more than can be compared before each call", "")

    def _fits(self, items: Collection[Any]) -> bool:
        """Adds entries to those that are compared before each call, an object as several numbers. False, and the end of
        the walk, where they are too many."""
        self._entry_count += len(items)
        if self._entry_count <= MAX_ENTRIES:
            self._entry_count += ENTRIES_PER_OBJECT * sum(not isinstance(item, VALUES) for item in items)
        self.is_complete = self.is_complete and self._entry_count <= MAX_ENTRIES
        return self.is_complete

    def _drain(self) -> None:
        while self._pending and self.is_complete:
            if len(self._seen) > MAX_OBJECTS:
                self.is_complete = False
                return
            value, name = self._pending.pop()
            if isinstance(value, VALUES) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self.guards.names.setdefault(id(value), name)
            self._visit(value, name)

    def _refuse(self, reason: str, name: str) -> None:
        self.guards.refused = self.guards.refused or reason + (f" ({name})" if name else "")

    # ------------------------------------------------------------ which names and codes count

    def _has_run(self, code: types.CodeType) -> bool:
        if self._takes_all and origin_of(code) == "user":
            return True
        return self.observed is not None and any(self.observed.has_run(inner) for inner in codes_in(code))

    def _is_named(self, name: Any) -> bool:
        """Whether any code that ran could have read an attribute of this name."""
        observed = self.observed
        if self._takes_all or observed is None or observed.reads_by_name or not isinstance(name, str):
            return True
        return name in observed.every_name

    def _is_named_by_user(self, name: str) -> bool:
        return self.observed is None or name in self.observed.names

    # ------------------------------------------------------------ one object

    def _visit(self, value: Any, name: str) -> None:
        if isinstance(value, self.holder_type):
            if id(value) in self.made:
                return
            self.guards.tensors.append(value)
            extra = {key: part for key, part in vars(value).items() if key not in known_python.TENSOR_FIELDS}
            self._entries(vars(value), [key for key in extra if self._is_named(key)], name)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, name)
        elif isinstance(value, types.MethodType):
            self._pending += [(value.__self__, name), (value.__func__, name)]
        elif isinstance(value, types.ModuleType):
            self._modules.append(value)
        elif isinstance(value, types.BuiltinFunctionType):
            if isinstance(value.__self__, list | dict | set | deque):
                self._pending.append((value.__self__, name))
        elif isinstance(value, functools.partial):
            if not isinstance(value.func, types.FunctionType | types.MethodType | type):
                self._has_unseen_calls = True
            self._pending += [(value.func, name), (value.args, name), (value.keywords, name), (vars(value), name)]
        elif isinstance(value, GuardedByFunction):
            self._pending.append((value.function, name))
        elif not self._visit_container(value, name) and not self._visit_native(value, name):
            self._visit_object(value, name)

    def _visit_container(self, value: Any, name: str) -> bool:
        """Visits a container. True where it has no other state."""
        if isinstance(value, dict | tuple | list | set | frozenset | deque):
            if not self._fits(value.values() if isinstance(value, dict) else value):
                return True
        if isinstance(value, dict):
            self.guards.add_keys(value)
            self._entries(value, list(value), name)
            self._pending += [(key, name) for key in value if not isinstance(key, VALUES)]
            if isinstance(value, defaultdict):
                self._getter(functools.partial(getattr, value, "default_factory"), name)
        elif isinstance(value, types.MappingProxyType):
            self._pending += [(inner, name) for inner in gc.get_referents(value)]
        elif isinstance(value, tuple | list | set | frozenset | deque):
            items = list(value)
            if not isinstance(value, tuple | frozenset):
                self.guards.sequences.append((value, items))
            if isinstance(value, list | deque):
                found = [number for number, item in enumerate(items) if id(item) in self.made]
                self.guards.stored_items += [(value, items, number) for number in found]
            parts = [(number, item) for number, item in enumerate(items) if not isinstance(item, VALUES)]
            self._pending += [(item, _name_of_part(name, f"[{number}]")) for number, item in parts]
        else:
            return False
        return not known_python.is_python_class(type(value))

    def _visit_native(self, value: Any, name: str) -> bool:
        """Guards or refuses the state of an object by its type. True where it has no attributes besides."""
        nature = known_python.nature_of(value)
        if isinstance(value, operator.attrgetter | operator.methodcaller) or nature == "cache":
            self._has_unseen_calls = True
        if nature == "descriptor":
            self._pending += [(function, name) for function in known_python.wrapped_functions(value) or ()]
        elif nature == "context":
            self._getter(functools.partial(value.get, MISSING), name)
        elif nature == "reference":
            self._getter(value, name)
        elif nature == "cache":  # of functools: what it has stored, and what it would call
            self._getter(lambda: value.cache_info().currsize, name)
            self._pending.append((value.__wrapped__, name))
        elif nature == "local":
            # Each thread has a dict of its own; to another thread this is another object.
            self._getter(functools.partial(vars, value), name)
        elif nature == "bytes":
            self._copy(functools.partial(bytes, value), memoryview(value).nbytes, name)
        elif nature == "array":
            self._visit_array(value, name)
        elif nature == "hidden":
            self._refuse(f"it reads a {type(value).__qualname__}, whose state cannot be compared", name)
        return nature not in ("object", "local")

    def _visit_array(self, value: Any, name: str) -> None:
        self._copy(lambda: (value.shape, value.dtype, value.tobytes()), value.nbytes, name)
        if value.dtype.hasobject and self._fits(items := value.ravel().tolist()):
            self._pending += [(item, name) for item in items]

    def _copy(self, get: Any, nbytes: int, name: str) -> None:
        if nbytes > MAX_ARRAY_BYTES:
            self._refuse(f"it reads an array of {nbytes} bytes, too many to compare before each call", name)
        elif self.observed is not None:
            self.guards.copies.append((get, get(), name))

    def _getter(self, get: Any, name: str) -> None:
        value = get()
        self.guards.getters.append((get, value, name))
        self._pending.append((value, name))

    # ------------------------------------------------------------ entries of a dict

    def _entries(self, mapping: dict[Any, Any], keys: Iterable[Any], name: str) -> None:
        self.guards.names.setdefault(id(mapping), name)
        for key in keys:
            value = mapping.get(key, MISSING)
            if id(value) in self.made:
                self.guards.stored_entries.append(len(self.guards.values))
            self.guards.add_entry(mapping, key, value)
            if not isinstance(value, VALUES) and value is not MISSING:
                self._pending.append((value, _name_of_part(name, f".{key}" if isinstance(key, str) else f"[{key!r}]")))

    # ------------------------------------------------------------ objects and classes

    def _visit_object(self, value: Any, name: str) -> None:
        self.guards.add_object(value)
        is_ours = known_python.family(type(value)) == "tilewright"
        attributes = known_python.attributes_of(value)
        if attributes is not None:
            self.guards.add_keys(attributes)
            self._entries(attributes, [k for k, part in attributes.items() if self._is_read(k, part, is_ours)], name)
        for kind in type(value).__mro__:
            for key, member in vars(kind).items() if known_python.is_python_class(kind) else ():
                if isinstance(member, types.MemberDescriptorType):
                    get = functools.partial(known_python.slot_of, value, member)
                    if self._is_read(key, get(), is_ours):
                        self._getter(get, _name_of_part(name, f".{key}"))
        self._pending.append((type(value), type(value).__qualname__))

    def _is_read(self, name: Any, value: Any, is_ours: bool) -> bool:
        """Whether an attribute is visited. One with hidden state, which would keep the call from being replayed, is
        visited only where the user's own code names it: the package has many names and reads no such object of a
        user."""
        if not self._is_named(name):
            return False
        is_certain = is_ours or self.observed is None or self.observed.reads_by_name or self._is_named_by_user(name)
        return is_certain or known_python.nature_of(value) not in ("hidden", "array")

    def _visit_class(self, kind: type) -> None:
        if type(kind) is not type:
            self._pending.append((type(kind), type(kind).__qualname__))
        if kind is self.holder_type:
            tensors = tensor_classes(kind)
            if self._seen.keys().isdisjoint(tensors.bases):
                self._seen.update(tensors.bases)
                self.guards.classes.update(tensors.owners)
                for base, body, key, is_function in tensors.members:
                    if is_function or self._is_named_by_user(key):
                        self._entries(body, [key], base.__qualname__)
                return
        for base in kind.__mro__:
            if known_python.is_python_class(base) and (base is kind or id(base) not in self._seen):
                self._seen[id(base)] = base
                self._visit_class_body(base)

    def _visit_class_body(self, kind: type) -> None:
        body = body_of(kind)
        self.guards.classes[id(body)] = kind
        family = known_python.family(kind)
        is_ours, is_library = family == "tilewright", family in _LIBRARIES
        if not is_ours and not is_library:
            self.guards.add_keys(body)
            self.guards.names.setdefault(id(body), kind.__qualname__)
        is_of_tensors = is_ours and issubclass(self.holder_type, kind)
        for key, member in members_of(body, is_of_tensors):
            functions = known_python.wrapped_functions(member)
            if functions is None:
                counts = self._is_named_by_user(key) if is_ours else self._is_named(key)
            elif is_of_tensors:
                counts = True
            elif is_ours:
                counts = key == "__call__" or self._is_named_by_user(key)
            else:
                counts = any(self._has_run(f.__code__) for f in functions if isinstance(f, types.FunctionType))
            if counts and is_library and functions is not None:
                self._pending.append((member, key))
            elif counts:
                self._entries(body, [key], kind.__qualname__)

    # ------------------------------------------------------------ functions and modules

    def _visit_function(self, function: types.FunctionType, name: str) -> None:
        if origin_of(function.__code__) == "package":
            return  # what the package remembers between calls is state of its own
        if vars(function):
            self._entries(vars(function), [key for key in vars(function) if self._is_named(key)], name)
        if not self._has_run(function.__code__):
            return
        ran = [code for code in codes_in(function.__code__) if self._has_run(code)]
        self._note_codes(codes_in(function.__code__))
        self.guards.add_function(function)
        self._pending.append((function.__defaults__ or (), name))
        self._pending.append((function.__kwdefaults__ or (), name))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            contents = contents_of(cell)
            if contents is MISSING:
                self.guards.getters.append((functools.partial(contents_of, cell), MISSING, variable))
                continue
            if id(contents) in self.made:
                self.guards.stored_cells.append(len(self.guards.cells))
            self.guards.cells.append(cell)
            self.guards.contents.append(contents)
            self.guards.names.setdefault(id(cell), variable)
            self._pending.append((contents, variable))
        self._visit_globals(function, ran)

    def _note_codes(self, codes: Iterable[types.CodeType]) -> None:
        for code in codes:
            if code not in self._found:
                self._found.add(code)
                self._found_names.update(names_in(code))

    def _visit_globals(self, function: types.FunctionType, ran: list[types.CodeType]) -> None:
        space: dict[str, Any] = function.__globals__
        builtins: dict[str, Any] = getattr(function, "__builtins__", {})
        for key in dict.fromkeys(key for code in ran for key in _globals_named(code)):
            self._entries(space, [key], function.__module__ or "globals")
            if key not in space and key in builtins:
                self.guards.add_entry(builtins, key, builtins[key])
        for key in dict.fromkeys(key for code in ran for key in _modules_named(code)):
            module = sys.modules.get(key)
            if module is not None:
                self._pending.append((module, key))

    def _visit_module(self, module: types.ModuleType) -> None:
        family = module.__name__.partition(".")[0]
        if family == "tilewright" or (self.observed is None and family in _LIBRARIES):
            return
        if module.__name__.startswith("numpy.random"):
            self._refuse("it reads numpy.random, whose state cannot be compared", "")
            return
        space = vars(module)
        named = self._found_names if self.observed is None else self.observed.names
        # The table of all modules leads to everything; whatever is imported is reached by its name.
        keys = [key for key in list(space) if key in named and space.get(key, sys.modules) is not sys.modules]
        self._entries(space, keys, module.__name__)


def _name_of_part(name: str, part: str) -> str:
    """The path to an attribute or item, cut off: the names along a long chain of objects would have quadratic
    length."""
    return name + part if len(name) < MAX_NAME else name


def _functions_of(codes: list[types.CodeType]) -> list[types.FunctionType]:
    """The functions with these codes, also those that the walk does not reach."""
    return [found for found in gc.get_referrers(*codes) if isinstance(found, types.FunctionType)]
