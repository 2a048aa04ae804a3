"""Programs broken on purpose. In: a right program. Out: the program with one fault of the kind a compiler makes.
Tests run them to prove that the emulator catches what it is there to catch; nothing else uses this module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_nodes, toposort


def barrier_count(program: Program) -> int:
    return sum(node.op is Ops.BARRIER for node in program.body)


def drop_barrier(program: Program, which: int) -> Program:
    """The program without its barrier number `which`."""
    positions = [position for position, node in enumerate(program.body) if node.op is Ops.BARRIER]
    dropped = positions[which]
    return replace(program, body=program.body[:dropped] + program.body[dropped + 1 :])


def share_slot(program: Program, op: Op, kept: int, taken: int) -> Program:
    """The program whose DEFINE_LOCAL, DEFINE_REG or ACC (`op`) with slot `taken` uses slot `kept` instead."""

    def exchange(node: UOp, src: tuple[UOp, ...]) -> UOp:
        arg = node.arg
        if node.op is op and op is Ops.ACC:
            arg = kept if arg == taken else arg
        elif node.op is op and arg.slot == taken:
            arg = arg._replace(slot=kept)
        return UOp(node.op, node.dtype, src, arg)

    return _rebuild(program, exchange)


def drop_masks(program: Program) -> Program:
    """The program with every access unmasked."""

    def exchange(node: UOp, src: tuple[UOp, ...]) -> UOp:
        return UOp(node.op, node.dtype, src[:2] if node.op is Ops.INDEX else src, node.arg)

    return _rebuild(program, exchange)


def _rebuild(program: Program, exchange: Callable[[UOp, tuple[UOp, ...]], UOp]) -> Program:
    made = map_nodes(toposort(*program.body, *program.global_ranges, *program.local_ranges), exchange)
    return replace(
        program,
        body=tuple(made[node] for node in program.body),
        global_ranges=tuple(made[node] for node in program.global_ranges),
        local_ranges=tuple(made[node] for node in program.local_ranges),
    )
