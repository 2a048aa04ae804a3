"""The LLVM IR of one function under construction. In: instructions and lines as text. Out: the lines of the body.

An instruction is emitted at the end of the text, or hoisted before the outermost open loop in which it is invariant.
It does not know the nodes of a program: `values`, `loads` and the other helpers decide what to emit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from tilewright.backends.cpu.rendering.instructions import Instructions, overload, value_type
from tilewright.base.dtype import DType
from tilewright.base.records import NamedTuple
from tilewright.graph.uop import UOp


class Element:
    """One element of a value, or a vector of them: its name in the text, and how many loops are open where it is
    defined."""

    __slots__ = ("depth", "name")

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth


class _Body(NamedTuple):
    """The body of an open loop: the block that it is entered from, its label, the phis that it begins with, the lines
    after them, and those that step to the next iteration."""

    entered_from: str
    label: str
    phis: list[str]
    first: list[str]
    steps: list[str]


class Emitter(Instructions):
    """Names, lines, basic blocks and open loops of one function."""

    def __init__(self, saturating: bool) -> None:
        super().__init__(saturating)
        self.loops: list[UOp] = []  # the axes of the open loops, the innermost last
        self.label = "entry"  # of the basic block that lines are added to
        self._chunks: list[list[str]] = [[]]
        self._before: list[list[str]] = []  # for each open loop, the lines hoisted before it
        self._bodies: list[_Body] = []
        self._counter = itertools.count()
        # Results by what they are made from, so that no instruction is emitted twice where its result is still defined.
        self.reused: dict[tuple[str, int], Element] = {}

    def fresh(self, stem: str) -> str:
        """A name that is not taken."""
        return f"{stem}{next(self._counter)}"

    def emit(self, text: str, depth: int | None = None) -> Element:
        """The result of an instruction, at the end of the text or with `depth` loops open."""
        name = f"%v{next(self._counter)}"
        if depth is None or depth >= len(self.loops):
            self._chunks[-1].append(f"  {name} = {text}")
            return Element(name, len(self.loops))
        self._before[depth].append(f"  {name} = {text}")
        return Element(name, depth)

    def assign(self, text: str) -> str:
        """The name of the result of an instruction, at the end of the text."""
        name = f"%v{next(self._counter)}"
        self._chunks[-1].append(f"  {name} = {text}")
        return name

    def cast(self, source: DType, target: DType, lanes: int, operand: str) -> str:
        """A conversion of floats to unsigned integers is frozen: LLVM 22 fails at the minimum of one and 0, which masks
        that are known can make of the minimum of two values. No machine instruction."""
        text = super().cast(source, target, lanes, operand)
        if self.saturating or not (source.is_float and target.is_unsigned):
            return text
        return f"freeze {value_type(target, lanes)} {self.assign(text)}"

    def fence(self, dtype: DType, lanes: int, value: str, depth: int | None = None) -> str:
        """The same value after an arithmetic fence, across which LLVM does not optimise. No machine instruction."""
        kind = value_type(dtype, lanes)
        return self.emit(self.call(f"llvm.arithmetic.fence.{overload(dtype, lanes)}", kind, (kind, value)), depth).name

    def hidden(self, kind: str, counter: str) -> str:
        """The same integer, for which LLVM does not find a recurrence in a loop. No machine instruction."""
        return self.assign(self.call(f"llvm.expect.{kind}", kind, (kind, counter), (kind, "0")))

    def once(self, key: tuple[str, int], text: str, depth: int) -> Element:
        """The result of an instruction, reused while the loops around it are open."""
        made = self.reused.get(key)
        if made is None:
            made = self.reused[key] = self.emit(text, depth)
        return made

    def here(self, name: str) -> Element:
        """A name that is defined inside the loops that are open."""
        return Element(name, len(self.loops))

    def line(self, text: str) -> None:
        self._chunks[-1].append(text)

    def reserve_line(self) -> Callable[[str], None]:
        """An empty line at the end of the text, and what fills it later."""
        chunk = self._chunks[-1]
        chunk.append("")
        return functools.partial(chunk.__setitem__, len(chunk) - 1)

    def begin_block(self, label: str) -> None:
        self.line(f"{label}:")
        self.label = label

    def open_loop(self, axis: UOp) -> None:
        before: list[str] = []
        self._chunks += before, []
        self._before.append(before)
        self.loops.append(axis)

    def begin_body(self, entered_from: str, label: str) -> None:
        """The first block of the loop that was opened last; phis may still be added to it."""
        phis: list[str] = []
        first: list[str] = []
        self._chunks += phis, first, []
        self._bodies.append(_Body(entered_from, label, phis, first, []))

    def end_body(self) -> list[str]:
        """The lines that step to the next iteration."""
        return self._bodies.pop().steps

    def walk(self, start: str, element: str, step: int) -> Element:
        """A pointer that each iteration of the innermost loop moves on by `step` elements. LLVM does not find a
        recurrence in it: loop strength reduction would take a quarter of the time of a kernel to look for a better
        form."""
        body, name = self._bodies[-1], self.fresh("%p")
        sources = f"[ {start}, %{body.entered_from} ], [ {name}.next, %{body.label}.end ]"
        body.phis.append(f"  {name}.walked = phi ptr {sources}")
        hidden = self.call("llvm.launder.invariant.group.p0", "ptr", ("ptr", f"{name}.walked"))
        body.first.append(f"  {name} = {hidden}")
        body.steps.append(f"  {name}.next = getelementptr {element}, ptr {name}, i64 {step}")
        return self.here(name)

    def reorder_body(self, reorder: Callable[[list[str]], list[str]]) -> None:
        """Exchanges the lines of the innermost loop, which is about to be closed, for the same ones in another
        order."""
        self._chunks[-1][:] = reorder(self._chunks[-1])

    def close_loop(self) -> None:
        self.loops.pop()
        self._before.pop()
        self.reused = {key: made for key, made in self.reused.items() if made.depth <= len(self.loops)}

    def body(self) -> list[str]:
        return [line for chunk in self._chunks for line in chunk]
