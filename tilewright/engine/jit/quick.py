"""The fast path of a replay. In: a record that is ready, the signature of its calls, the lock of the jitted function.
Out: a generated function that takes the arguments of a call and gives its result, or None where the call is not exactly
like the recorded one; nothing has happened then, and the slow path of `Jit.__call__` decides.

A small launch takes less time than a few calls of Python functions, and much of the slow path computes what is the same
at each call. So the comparisons of arguments and guards, and the steps of a run, are unrolled into one function: each
comparison is an `is` or `==` with a constant. Constants are variables of the enclosing function, not part of the text,
so that functions of the same form share one compiled text."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from sys import getrefcount
from typing import Any

from tilewright.base.events import GlobalCounters, listeners
from tilewright.base.location import PACKAGE_FOLDER
from tilewright.engine.execution.checks import Checked, find_failure
from tilewright.engine.execution.traces import traces
from tilewright.engine.jit.arguments import HOLE
from tilewright.engine.jit.ready import FastPath, Ready
from tilewright.engine.jit.replay import BUFFER_ALONE, MAX_NOTES, MEMORY_ALONE, note_run, runs
from tilewright.engine.memory.live import register_once, tensor_kind
from tilewright.graph.ops import Ops
from tilewright.runtime.access import notify_waiters, overwritten, wait_for_update

MAX_ARGUMENTS = 16
# Replays of a record after which its function is generated: compiling one takes a millisecond.
QUICK_AFTER = 3
_FILE = os.path.join(PACKAGE_FOLDER, "engine", "jit", "<fast path>")  # a frame of it is never the user's line
_FACTS = 4  # of an argument on one device: shape, dtype, device, whether it requires a gradient
_PLAIN = (bool, int, str, bytes, type(None))


class Source:
    """The text of a function, and the constants that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: list[Any] = []
        self._names: dict[int, str] = {}

    def name(self, value: Any) -> str:
        """The name of a constant. One object has one name."""
        found = self._names.get(id(value))
        if found is None:
            found = self._names[id(value)] = f"k{len(self.constants)}"
            self.constants.append(value)
        return found

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def refuse_unless(self, *conditions: str) -> None:
        """Ends the call, with None, where one of the conditions does not hold."""
        for condition in conditions:
            self.add(2, f"if not ({condition}):", "    return None")

    def function(self) -> Callable[..., Any]:
        """Compiles the lines, which define `quick` one level deep."""
        head = f"def make({', '.join(f'k{number}' for number in range(len(self.constants)))}):"
        make = _compile("\n".join((head, *self.lines, "    return quick")))
        found: Callable[..., Any] = make(*self.constants)
        return found


@functools.lru_cache(maxsize=256)
def _compile(text: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, _FILE, "exec"), namespace)
    found: Callable[..., Any] = namespace["make"]
    return found


def quick_replay(ready: Ready, signature: tuple[Any, ...], lock: Any) -> FastPath | None:
    """The generated function; None where the record needs the slow path."""
    structure, facts, modes = signature
    kinds = _kinds_of(structure, len(facts))
    result = _result_text(ready.result)
    if kinds is None or not result or not _is_simple(ready, facts):
        return None
    source = Source()
    name = source.name
    source.add(1, "def quick(args):")
    source.refuse_unless(
        f"not {name(traces)} and not {name(listeners)} and len(args) == {len(kinds)}",
        f"{name(tensor_kind.modes)}.both == {name(modes)}",
    )
    given = [f"a{number}" for number in range(len(kinds))]
    if given:
        source.add(2, f"{', '.join(given)}, = args")
    _bind_arguments(source, kinds, facts, ready.with_gradient)
    tensors = [number for number, kind in enumerate(kinds) if kind is HOLE]
    buffers = [f"b{number}" for number in tensors]
    _refuse_aliases(source, buffers, name(ready.reached) if ready.reached else "")
    source.refuse_unless(*ready.guards.conditions(name))
    if ready.replay.is_shared:
        source.add(2, *(f"a{number}.uop" for number in tensors))
    _run(source, ready, facts, buffers, result, name(lock))
    return source.function()


def _is_simple(ready: Ready, facts: Any) -> bool:
    """Whether a replay gives only new tensors and arguments, and each argument has its own memory on one device."""
    replay = ready.replay
    if not ready.gives_results or ready.shared or replay.joins or replay.symbolic or replay.variables:
        return False
    if replay.state or not all(isinstance(origin, int) for _, origin in ready.origins):
        return False
    return len(facts) == ready.argument_count and all(len(fact) == _FACTS for fact in facts)


def _kinds_of(structure: Any, tensors: int) -> list[Any] | None:
    """What each positional argument is: HOLE for a tensor, or the one-element tuple of a plain value. None where there
    are others, or arguments by name."""
    if structure is None:
        return [HOLE] * tensors if tensors <= MAX_ARGUMENTS else None
    (_, arguments), (_, named) = structure[1]
    if named or len(arguments) > MAX_ARGUMENTS:
        return None
    kinds: list[Any] = []
    for part in arguments:
        if part is HOLE:
            kinds.append(HOLE)
        elif part[0] in _PLAIN or (part[0] is float and part[1] and part[1] == part[1]):
            kinds.append((part[1],))  # `==` does not compare floats that are zero (signs) or NaN
        else:
            return None
    return kinds


def _result_text(structure: Any) -> str:
    """An expression of the results `m0`, `m1`, ... in the structure that the function returns; '' where it is none of
    the simple ones."""
    if structure is HOLE:
        return "m0"
    kind, content = structure[0], structure[1]
    if kind not in (tuple, list) or any(part is not HOLE for part in content):
        return ""
    parts = "".join(f"m{number}, " for number in range(len(content)))
    return f"({parts})" if kind is tuple else f"[{parts}]"


def _bind_arguments(source: Source, kinds: list[Any], facts: Any, with_gradient: list[bool] | None) -> None:
    """Compares each argument, as `bind_call` does, and finds its memory."""
    name = source.name
    position = 0
    for number, kind in enumerate(kinds):
        a, b, s = f"a{number}", f"b{number}", f"s{number}"
        if kind is not HOLE:
            (value,) = kind
            source.refuse_unless(f"type({a}) is {name(type(value))} and {a} == {name(value)}")
            continue
        shape, dtype, device, requires_grad = facts[position]
        source.refuse_unless(f"type({a}) is {name(tensor_kind.holder_type)}")
        source.add(
            2,
            f"node = {a}.__dict__.get('uop')",
            "if node is None:",
            f"    made = {a}.__dict__.get('_memory')",
            "    if made is None:",
            "        return None",
            f"    {b}, {s}, _ = made",
            f"    if not {a}._is_registered:",
            f"        {name(register_once)}({a})",
            "else:",
            f"    {s} = node._shape",
            "    cache = node._cache",
            # The cache of a view may have other facts than its memory.
            f"    if node.op is {name(Ops.RESHAPE)} and not (cache and 'realized' in cache):",
            "        node = node.src[0]",
            "        cache = node._cache",
            f"    if node.op is not {name(Ops.BUFFER)} or cache is None:",
            "        return None",
            f"    {b} = cache.get('buffer')",
            f"    if {b} is None:",
            "        return None",
        )
        source.refuse_unless(
            f"{s} == {name(shape)} and {b}.dtype is {name(dtype)} and {b}.device == {name(device)} "
            f"and {a}._requires_grad is {requires_grad is not False}"
        )
        if requires_grad is not False:
            source.refuse_unless(f"{a}._is_parameter is {requires_grad is True}")
        if with_gradient is not None:
            source.refuse_unless(f"({a}.grad is not None) is {with_gradient[position]}")
        position += 1


def _refuse_aliases(source: Source, buffers: list[str], reached: str) -> None:
    """Refuses arguments that share memory with each other or with a tensor that the function reaches by itself."""
    if len(buffers) > 1:
        source.refuse_unless(f"len({{{', '.join(buffers)}}}) == {len(buffers)}")
    if buffers and reached:
        source.refuse_unless(f"{reached}.isdisjoint(({', '.join(buffers)},))")


def _run(source: Source, ready: Ready, facts: Any, buffers: list[str], result: str, lock: str) -> None:
    """The body of `Replay.run` for this record."""
    name, replay = source.name, ready.replay
    kept, new_result, reader = name(replay.kept), name(replay.new_result), name(replay)
    count = name(getrefcount)
    source.add(2, f"with {lock}:")  # an interrupt between acquire() and `try` would leave it locked
    given = [f"({buffers[number]}.memory or {buffers[number]}.ensure())" for number in replay.inputs]
    for number in replay.numbers:
        source.add(
            3,
            f"r{number} = {kept}[{number}]",
            f"if r{number} is None or {count}(r{number}) != {BUFFER_ALONE} "
            f"or {count}(r{number}.memory) != {MEMORY_ALONE}:",
            f"    r{number} = {new_result}({number})",
        )
        given.append(f"r{number}.memory")
    source.add(
        3,
        f"memories = ({', '.join(given)},)" if given else "memories = ()",
        f"{name(note_run)}({name(replay.work)})",
        f"if len({name(runs)}) > {name(MAX_NOTES)}:",
        f"    {name(GlobalCounters.add_up)}()",
        # Nobody overwrites what the kernels read (`runtime.access`).
        f"{reader}.reading = reading = ({''.join(f'{buffer}, ' for buffer in buffers)})",
        f"if {name(overwritten)}:",
        f"    {name(wait_for_update)}({reader}, reading)",
        "try:",
        *(f"    {name(step)}(memories)" for step in replay.steps),
        "    pass",
        "finally:",
        f"    {reader}.reading = None",
        f"    if {name(overwritten)}:",
        f"        {name(notify_waiters)}()",
    )
    if replay.checked:
        _raise_failure(source, replay.checked)
    origins: dict[int, Any] = dict(ready.origins)
    for number, (which, made, shape, line) in enumerate(replay.outputs):
        if number in origins:
            source.add(3, f"m{number} = a{buffers[origins[number]][1:]}")
            continue
        memory = f"r{made}" if which else buffers[made]
        source.add(3, f"m{number} = {name(tensor_kind.make)}({memory}, {name(shape)}, {name(line)})")
        if number in replay.cut:
            source.add(3, f"m{number}._is_cut = True")
        if number in replay.aliases:
            # Whoever overwrites that memory looks for readers among nodes. Of one shape, argument and result have one.
            source.add(3, f"{name(register_once)}(m{number})")
            is_same = not which and shape == facts[made][0]
            same = (f"m{number}.uop = a{buffers[made][1:]}.uop", f"del m{number}._memory")
            source.add(3, *(same if is_same else (f"m{number}.uop",)))
    source.add(3, f"return {result}")


def _raise_failure(source: Source, checked: list[Checked]) -> None:
    """Reads the words of the range checks. Where the host sees them, a run without failures makes no call for it."""
    name = source.name
    given = [
        f"{name(each.words.view)}[{number}]" if each.words.view is not None else f"any({name(each.words)}.read())"
        for each in checked
        for number in range(len(each.numbers) if each.words.view is not None else 1)
    ]
    source.add(
        3,
        f"if {' or '.join(given)}:",
        f"    failure = {name(find_failure)}({name(checked)})",
        "    if failure is not None:",
        "        raise failure.error",
    )
