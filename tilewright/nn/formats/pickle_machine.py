"""Reads pickles without executing them. In: a file at the start of a pickle, and the few globals that may be called.
Out: plain containers, numbers and strings. The standard library decodes the opcodes; they are interpreted here, and the
interpreter imports no module, looks up no attribute and calls nothing that is not in the table.

A `pickle.Unpickler` with a restricted `find_class` is not safe for untrusted files: BUILD still sets attributes of
objects from the table, a large memo index takes gigabytes, and hashing nested tuples takes exponential time."""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

Call = Callable[..., Any]


class PickleError(Exception):
    """A damaged or refused pickle. The reader of the file catches it and adds the file's name."""


class Global(NamedTuple):
    """A name that a pickle may use: a value, or a function that it may call."""

    name: str
    value: Any = None
    call: Call | None = None


_ARGUMENTS = frozenset(
    ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
    + ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
    + ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MAKERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set, "EMPTY_TUPLE": tuple}
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset(("PROTO", "FRAME"))
# Other types could have a slow hash or an equality with side effects.
_KEYS = (str, int, float, bool, bytes, type(None))
# Hashes of strings differ from process to process. Those of numbers are known, and numbers past this bound can be
# chosen to collide, so that a dict of a few thousand takes hours.
_MAX_KEY = 1 << 53
# Maximum elements that the calls of a pickle may create: _MAX_COPIES times its bytes, or _FREE_COPIES. Each call
# copies, and a pickle of a few kilobytes could ask for an unlimited number of copies of copies.
_MAX_COPIES = 2
_FREE_COPIES = 1 << 17


def check_key(key: Any) -> Any:
    """The value, checked to be allowed as a key of a dict or a member of a set."""
    if not isinstance(key, _KEYS):
        raise PickleError(f"the pickle uses a {type(key).__name__} as a key")
    if isinstance(key, int | float) and not (-_MAX_KEY <= key <= _MAX_KEY and key == int(key)):
        raise PickleError(f"the pickle uses the number {key!r} as a key")
    return key


def to_dict(pairs: Any) -> dict[Any, Any]:
    """A dict of a dict or of pairs."""
    items = pairs.items() if isinstance(pairs, dict) else pairs
    return {check_key(key): value for key, value in items}


class PickleMachine:
    """The interpreter of one pickle."""

    def __init__(self, allowed: Mapping[str, Global], persistent: Callable[[Any], Any]) -> None:
        self._allowed = allowed
        self._persistent = persistent
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._copied = 0
        self._read = 0

    def read(self, file: Any) -> Any:
        """The value of the pickle at the file's position, which is then just after it."""
        try:
            for opcode, argument, position in pickletools.genops(file):
                self._read = position or 0
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # All of these mean an inconsistent pickle: too few operands, or operands of wrong types.
            raise PickleError(f"the pickle is damaged ({error or type(error).__name__})") from error
        raise PickleError("the pickle has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _ARGUMENTS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _MAKERS:
            self._stack.append(_MAKERS[name]())
        elif name in _TUPLE_SIZES:
            count = _TUPLE_SIZES[name]
            self._stack.append(tuple(self._pop() for _ in range(count))[::-1])
        elif name not in _IGNORED:
            step = _STEPS.get(name)
            if step is None:
                raise PickleError(f"the pickle uses {name}, which is refused: loading runs no code of the file")
            step(self, argument)

    # ------------------------------------------------------------ the stack

    def _pop(self) -> Any:
        return self._stack.pop()

    def _pop_mark(self) -> list[Any]:
        """The values pushed since the last mark."""
        items = self._stack
        self._stack = self._below.pop()
        return items

    def _mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _drop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _drop_mark(self, _: Any) -> None:
        self._pop_mark()

    def _duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _remember_next(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _recall(self, index: int) -> None:
        self._stack.append(self._memo[index])

    # ------------------------------------------------------------ containers

    def _tuple(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(tuple(items))

    def _list(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(items)

    def _dict(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(to_dict(zip(items[::2], items[1::2], strict=True)))

    def _frozenset(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(frozenset(map(check_key, items)))

    def _append(self, _: Any) -> None:
        item = self._pop()
        self._top(list).append(item)

    def _append_all(self, _: Any) -> None:
        items = self._pop_mark()
        self._top(list).extend(items)

    def _add_all(self, _: Any) -> None:
        items = self._pop_mark()
        self._top(set).update(map(check_key, items))

    def _set_item(self, _: Any) -> None:
        value = self._pop()
        key = self._pop()
        self._top(dict)[check_key(key)] = value

    def _set_items(self, _: Any) -> None:
        items = self._pop_mark()
        self._top(dict).update(to_dict(zip(items[::2], items[1::2], strict=True)))

    def _top(self, kind: type) -> Any:
        """The top of the stack, which must be of a given type: only containers that the pickle made itself are
        filled."""
        top = self._stack[-1]
        if type(top) is not kind:
            raise PickleError(f"the pickle fills a {type(top).__name__} as if it were a {kind.__name__}")
        return top

    # ------------------------------------------------------------ globals and calls

    def _global(self, argument: str) -> None:
        self._find(*argument.split(" ", 1))

    def _stack_global(self, _: Any) -> None:
        name = self._pop()
        module = self._pop()
        self._find(module, name)

    def _find(self, module: Any, name: Any) -> None:
        found = self._allowed.get(f"{module}.{name}")
        if found is None:
            self._refuse(f"{module}.{name}")
        self._stack.append(found.value if found.call is None else found)

    def _refuse(self, what: str) -> NoReturn:
        raise PickleError(f"the pickle asks for {what}, which is refused: loading runs no code of the file")

    def _reduce(self, _: Any) -> None:
        arguments = self._pop()
        function = self._pop()
        if not isinstance(function, Global) or function.call is None:
            self._refuse(f"a call of a {type(function).__name__}")
        if type(arguments) is not tuple:
            raise PickleError(f"the pickle calls {function.name} without a tuple of arguments")
        made = function.call(*arguments)
        self._copied += len(made) if isinstance(made, bytes | tuple | list | dict | set) else 1
        if self._copied > _FREE_COPIES + _MAX_COPIES * self._read:
            raise PickleError(f"its calls make {self._copied} elements of {self._read} bytes")
        self._stack.append(made)

    def _build(self, _: Any) -> None:
        """Attributes of a dict, such as the `_metadata` of a state dict, are ignored; no other object has any."""
        self._pop()
        self._top(dict)

    def _persistent_id(self, _: Any) -> None:
        self._stack.append(self._persistent(self._pop()))


_STEPS: dict[str, Callable[[PickleMachine, Any], None]] = {
    "MARK": PickleMachine._mark,
    "POP": PickleMachine._drop,
    "POP_MARK": PickleMachine._drop_mark,
    "DUP": PickleMachine._duplicate,
    "PUT": PickleMachine._remember,
    "BINPUT": PickleMachine._remember,
    "LONG_BINPUT": PickleMachine._remember,
    "MEMOIZE": PickleMachine._remember_next,
    "GET": PickleMachine._recall,
    "BINGET": PickleMachine._recall,
    "LONG_BINGET": PickleMachine._recall,
    "TUPLE": PickleMachine._tuple,
    "LIST": PickleMachine._list,
    "DICT": PickleMachine._dict,
    "FROZENSET": PickleMachine._frozenset,
    "APPEND": PickleMachine._append,
    "APPENDS": PickleMachine._append_all,
    "ADDITEMS": PickleMachine._add_all,
    "SETITEM": PickleMachine._set_item,
    "SETITEMS": PickleMachine._set_items,
    "GLOBAL": PickleMachine._global,
    "STACK_GLOBAL": PickleMachine._stack_global,
    "REDUCE": PickleMachine._reduce,
    "BUILD": PickleMachine._build,
    "BINPERSID": PickleMachine._persistent_id,
}
