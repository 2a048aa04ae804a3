"""What each stage refuses: a table with a broken graph for every rule, and graphs that must pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError, VerifyError
from tilewright.base.target import Target
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.ops import Axis, AxisType, BufferArg, CheckArg, MultiArg, Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt, OptOps, Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.variable import Variable
from tilewright.graph.verification.program import PROGRAM_RULES
from tilewright.graph.verification.verify import (
    KERNEL_STAGE,
    NODE_RULES,
    PROGRAM_STAGE,
    TENSOR_STAGE,
    verify_kernel,
    verify_program,
    verify_tensor_graph,
)

F32 = dtypes.float32
I32 = dtypes.int32
INDEX = dtypes.index
ZEROS = (index_const(0),) * 4

# ---------------------------------------------------------------- parts


def buffer(*shape: int, dtype: DType = F32, uid: int = 0) -> UOp:
    size = 1
    for length in shape:
        size *= length
    leaf = UOp(Ops.BUFFER, dtype, (), BufferArg(uid, size, "CPU"))
    return UOp(Ops.RESHAPE, dtype, (leaf,), shape)


def custom(written: tuple[int, ...] = (0,)) -> CustomKernel:
    """A call of a kernel that writes its one argument, which holds something before."""
    return CustomKernel(sink(), 0, ((2,),), (F32,), written, (0,))


def move(op: Op, argument: Any, *shape: int) -> UOp:
    return UOp(op, F32, (buffer(*shape),), argument)


def param(slot: int, size: int = 16, dtype: DType = F32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def loop(number: int, size: int = 4, kind: AxisType = AxisType.LOOP) -> UOp:
    return UOp(Ops.RANGE, INDEX, (index_const(size),), Axis((number,), kind))


def place(target: UOp, index: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.INDEX, target.dtype, (target, index, *valid))


def load(source: UOp, index: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.LOAD, source.dtype, (place(source, index, *valid),))


def store(target: UOp, index: UOp, value: UOp) -> UOp:
    return UOp(Ops.STORE, dtypes.void, (place(target, index), value))


def sink(*stores: UOp, argument: Any = None) -> UOp:
    return UOp(Ops.SINK, dtypes.void, stores, argument)


def storing(value: UOp) -> UOp:
    return sink(store(param(0, dtype=value.dtype), loop(0), value))


def good_kernel() -> UOp:
    i, j = loop(0, kind=AxisType.GLOBAL), loop(1, kind=AxisType.REDUCE)
    total = UOp(Ops.REDUCE, F32, (load(param(1), i * 4 + j, j < 3), j), Ops.ADD)
    info = KernelInfo("sum", (Opt(OptOps.UPCAST, 0, 4),))
    return sink(store(param(0, 4), i, total.alu(Ops.SQRT)), argument=info)


class Parts:
    """A program that sums rows, and its nodes by name, so that a case may rebuild its body in a wrong way."""

    def __init__(self) -> None:
        self.row = loop(0, kind=AxisType.GLOBAL)
        self.inner = loop(1, kind=AxisType.REDUCE)
        self.tile = loop(2, kind=AxisType.UPCAST)
        self.acc = UOp(Ops.ACC, F32, (const(F32, 0.0), self.tile), 0)
        self.scaled = self.row * 4
        self.position = self.scaled + self.inner
        self.index = place(param(1), self.position)
        self.value = UOp(Ops.LOAD, F32, (self.index,))
        self.update = UOp(Ops.ACCUMULATE, dtypes.void, (self.acc, self.value), Ops.ADD)
        self.end = UOp(Ops.END, dtypes.void, (self.inner,))
        self.total = UOp(Ops.COMBINE, F32, (self.acc, self.tile), Ops.ADD)
        self.target = place(param(0), self.row)
        self.store = UOp(Ops.STORE, dtypes.void, (self.target, self.total))

    def body(self) -> list[UOp]:
        before = [self.acc, self.scaled]
        inside = [self.inner, self.position, self.index, self.value, self.update, self.end]
        return [*before, *inside, self.total, self.target, self.store]

    def program(self, body: list[UOp] | None = None) -> Program:
        params = (Param(0, F32, 16, False, True), Param(1, F32, 16, True, False))
        nodes = tuple(self.body() if body is None else body)
        return Program("rows", nodes, params, (self.row,), (), Target("PYTHON"))

    def moved(self, node: UOp, after: UOp) -> Program:
        """The program with one node moved to behind another."""
        nodes = [other for other in self.body() if other is not node]
        nodes.insert(nodes.index(after) + 1, node)
        return self.program(nodes)

    def without(self, *nodes: UOp) -> Program:
        return self.program([other for other in self.body() if other not in nodes])

    def with_more(self, *nodes: UOp) -> Program:
        return self.program(self.body() + list(nodes))


# ---------------------------------------------------------------- what must pass


def test_good_tensor_graphs_pass() -> None:
    x = buffer(2, 3)
    total = UOp(Ops.REDUCE_AXIS, F32, (x * 2.0,), (Ops.ADD, (1,)))
    wide = UOp(Ops.EXPAND, F32, (total,), (2, 3))
    picked = UOp(Ops.GATHER, F32, (x, buffer(5, dtype=I32, uid=1), buffer(5, dtype=dtypes.int64, uid=2)))
    view = UOp(Ops.FLIP, F32, (UOp(Ops.SHRINK, F32, (x,), ((0, 1), (1, 3))),), (1,))
    assigned = UOp(Ops.ASSIGN, F32, (x, view, const(F32, 1.0)))
    chosen = (wide < x).where(x, wide)
    nothing = UOp(Ops.REDUCE_AXIS, F32, (UOp(Ops.SHRINK, F32, (x,), ((1, 1), (0, 3))),), (Ops.MAX, (0, 1)))
    copied = UOp(Ops.COPY, F32, (picked,), "CPU:1")
    counted = UOp(Ops.IOTA, I32, (), (3,)).cast(dtypes.uint32).bitcast(F32)
    verify_tensor_graph(sink(chosen, assigned, nothing, copied, counted))
    for value in (float("nan"), float("inf"), -0.0, 0.5):
        verify_tensor_graph(const(F32, value))
    verify_tensor_graph(const(dtypes.float16, 0.1))


def test_good_kernels_pass() -> None:
    verify_kernel(good_kernel())
    verify_kernel(sink(store(param(0), loop(0) + 1, const(F32, 1.0)), store(param(1), loop(0), const(F32, 2.0))))
    size = UOp(Ops.VARIABLE, INDEX, (), ("n", 1, 4))
    axis = UOp(Ops.RANGE, INDEX, (size,), Axis((0, 1), AxisType.LOOP))
    verify_kernel(sink(store(param(0), axis, const(F32, 1.0))))


def test_good_programs_pass() -> None:
    parts = Parts()
    verify_program(parts.program())
    # The launch's indices may be listed in the body as well.
    verify_program(parts.program([parts.row, *parts.body()]))
    verify_program(Program("empty", (), (), (), (), Target("PYTHON")))
    # A value of an outer scope may be used further in, and a combined one in a later loop.
    later = loop(3)
    inside = parts.total * 2.0
    target = place(param(0), later)
    written = UOp(Ops.STORE, dtypes.void, (target, inside))
    ended = UOp(Ops.END, dtypes.void, (later,))
    verify_program(parts.with_more(later, inside, target, written, ended))


# ---------------------------------------------------------------- what must be refused

Case = tuple[str, Callable[[], UOp], str]

TENSOR_CASES: list[Case] = [
    ("stage-ops", lambda: loop(0), "RANGE does not belong"),
    ("arity", lambda: UOp(Ops.ADD, F32, (buffer(2),)), "has 1 sources, takes 2"),
    ("arity", lambda: UOp(Ops.GATHER, F32, (buffer(2),)), "takes 2 or more"),
    ("dtype", lambda: UOp(Ops.ADD, I32, (buffer(2), buffer(2))), "give float32"),
    ("dtype", lambda: UOp(Ops.CMPLT, F32, (buffer(2), buffer(2))), "give bool"),
    ("dtype", lambda: UOp(Ops.CAST, dtypes.void, (buffer(2),)), "void"),
    ("no-argument", lambda: UOp(Ops.NEG, F32, (buffer(2),), 3), "argument 3"),
    ("choice-argument", lambda: UOp(Ops.WHERE, F32, (buffer(2) < 1.0, buffer(2), buffer(2)), 3), "not 'slow'"),
    ("const-value", lambda: UOp(Ops.CONST, F32, (), 77771), "holds float"),
    ("const-value", lambda: UOp(Ops.CONST, dtypes.int16, (), 77.5), "holds int"),
    ("const-value", lambda: UOp(Ops.CONST, dtypes.uint8, (), 77771), "holds it as 203"),
    ("const-value", lambda: UOp(Ops.CONST, dtypes.float16, (), 0.1), "is not a value of float16"),
    ("const-value", lambda: UOp(Ops.CONST, dtypes.bool, (), 2), "holds bool"),
    ("variable-bounds", lambda: UOp(Ops.VARIABLE, I32, (), ("n", 4, 1)), "hold no value"),
    ("variable-bounds", lambda: UOp(Ops.VARIABLE, I32, (), ("n", 4)), "(name, least, greatest)"),
    ("variable-bounds", lambda: UOp(Ops.VARIABLE, F32, (), ("n", 1, 4)), "integer"),
    ("size-argument", lambda: UOp(Ops.SIZE, I32, (), 3), "not a symbolic size"),
    ("size-argument", lambda: UOp(Ops.SIZE, dtypes.index, (), Variable("n", 1, 4).bind(2)), "is an index"),
    ("buffer-argument", lambda: UOp(Ops.BUFFER, F32, (), 3), "BufferArg"),
    ("buffer-argument", lambda: UOp(Ops.BUFFER, F32, (), BufferArg(0, -1, "CPU")), "negative"),
    ("placeholder-argument", lambda: UOp(Ops.PARAM, F32, (), BufferArg(88, 1, "CPU")), "ParamArg"),
    ("placeholder-argument", lambda: UOp(Ops.PARAM, F32, (), ParamArg(-1, 1)), "negative"),
    ("iota-count", lambda: UOp(Ops.IOTA, I32, (), (3, 4)), "(count,)"),
    ("operand-dtypes", lambda: UOp(Ops.ADD, F32, (buffer(2), buffer(2, dtype=I32))), "float32, int32"),
    ("operand-dtypes", lambda: UOp(Ops.CHECK, I32, (buffer(2, dtype=I32),) * 2, CheckArg(3)), "not bool"),
    ("operand-kind", lambda: UOp(Ops.CHECK, F32, (buffer(2), const(dtypes.bool, True)), CheckArg(3)), "integers"),
    ("check-range", lambda: UOp(Ops.CHECK, I32, (buffer(2, dtype=I32), const(dtypes.bool, True)), 3), "not a CheckArg"),
    (
        "check-range",
        lambda: UOp(Ops.CHECK, I32, (buffer(2, dtype=I32), const(dtypes.bool, True)), CheckArg(1 << 31)),
        "not in 1..2147483647",
    ),
    ("operand-dtypes", lambda: UOp(Ops.WHERE, F32, (buffer(2), buffer(2), buffer(2))), "not bool"),
    ("operand-kind", lambda: buffer(2) // 2.0, "integers, not on float32"),
    ("operand-kind", lambda: buffer(2, dtype=I32).alu(Ops.SQRT), "floats, not on int32"),
    ("operand-kind", lambda: buffer(2) & 1.0, "bool, not on float32"),
    ("operand-kind", lambda: buffer(2, dtype=I32).alu(Ops.THREEFRY, 1), "uint64"),
    ("equal-shapes", lambda: buffer(2, 3) + buffer(3, 2), "(2, 3), (3, 2)"),
    ("equal-shapes", lambda: buffer(2, 3) + buffer(1, 3), "(2, 3), (1, 3)"),
    ("bitcast-width", lambda: buffer(2).bitcast(dtypes.float16), "32 bits and float16 has 16"),
    ("reshape-count", lambda: move(Ops.RESHAPE, (5,), 2, 3), "6 elements, (5,) has 5"),
    ("reshape-count", lambda: move(Ops.RESHAPE, (-2, -3), 2, 3), "not a shape"),
    ("expand-from-one", lambda: move(Ops.EXPAND, (4, 3), 2, 3), "only an axis of size 1"),
    ("expand-from-one", lambda: move(Ops.EXPAND, (2, 3), 3), "number of axes"),
    ("permute-order", lambda: move(Ops.PERMUTE, (0, 0), 2, 3), "order of 2 axes"),
    ("permute-order", lambda: move(Ops.PERMUTE, (0, 5), 2, 3), "order of 2 axes"),
    ("pad-amounts", lambda: move(Ops.PAD, ((-1, 0),), 3), "negative"),
    ("pad-amounts", lambda: move(Ops.PAD, ((1, 0),), 3, 3), "for each of 2 axes"),
    ("shrink-bounds", lambda: move(Ops.SHRINK, ((0, 4),), 3), "within axis 0 of size 3"),
    ("shrink-bounds", lambda: move(Ops.SHRINK, ((2, 1),), 3), "2..1"),
    ("flip-axes", lambda: move(Ops.FLIP, (2,), 2, 3), "2 axes once"),
    ("flip-axes", lambda: move(Ops.FLIP, (1, 1), 2, 3), "2 axes once"),
    ("gather-indices", lambda: UOp(Ops.GATHER, F32, (buffer(2, 3), buffer(5, dtype=I32))), "1 indices for 2"),
    ("gather-indices", lambda: UOp(Ops.GATHER, F32, (buffer(2), buffer(5))), "not all integers"),
    ("reduce-axes", lambda: UOp(Ops.REDUCE_AXIS, F32, (buffer(2),), (Ops.SUB, (0,))), "a reduction"),
    ("reduce-axes", lambda: UOp(Ops.REDUCE_AXIS, F32, (buffer(2),), (Ops.ADD, (1,))), "1 axes once"),
    ("cat-sources", lambda: UOp(Ops.CAT, F32, (buffer(2), buffer(2)), 1), "not an axis of shapes"),
    ("cat-sources", lambda: UOp(Ops.CAT, F32, (buffer(2), buffer(2) < 1.0), 0), "different dtypes"),
    ("cat-sources", lambda: UOp(Ops.CAT, F32, (buffer(2), UOp(Ops.RESHAPE, F32, (buffer(6),), (2, 3))), 0), "not fit"),
    ("copy-device", lambda: UOp(Ops.COPY, F32, (buffer(2),)), "name of a device"),
    ("multi-parts", lambda: UOp(Ops.MULTI, F32, (buffer(2), buffer(2)), MultiArg(0, ("A", "A"))), "one for each of 2"),
    ("multi-parts", lambda: UOp(Ops.MULTI, F32, (buffer(2), buffer(2)), MultiArg(1, ("A", "B"))), "none of the parts'"),
    ("multi-parts", lambda: UOp(Ops.MULTI, F32, (buffer(2), buffer(3)), MultiArg(None, ("A", "B"))), "do not fit"),
    ("assign-view", lambda: UOp(Ops.ASSIGN, F32, (buffer(2), buffer(2) + 1.0, const(F32, 1.0))), "through ADD"),
    ("assign-view", lambda: UOp(Ops.ASSIGN, F32, (buffer(2), buffer(2), const(I32, 1))), "int32 into float32"),
    ("assign-view", lambda: UOp(Ops.ASSIGN, F32, (buffer(2), buffer(2), buffer(3))), "(3,) into a view of shape (2,)"),
    ("custom-kernel-argument", lambda: UOp(Ops.CUSTOM_KERNEL, F32, (buffer(2),), custom(written=())), "is not written"),
    (
        "custom-kernel-argument",
        lambda: UOp(Ops.CUSTOM_KERNEL, I32, (buffer(2),), custom()),
        "the kernel writes float32",
    ),
    ("custom-kernel-argument", lambda: UOp(Ops.CUSTOM_KERNEL, F32, (), custom()), "source 0, which is not there"),
    ("custom-kernel-argument", lambda: UOp(Ops.CUSTOM_KERNEL, F32, (buffer(3),), custom()), "argument 0 is float32[3]"),
    ("one-sink", lambda: sink(sink(buffer(2))), "only the root"),
    (
        "variables-agree",
        lambda: UOp(Ops.VARIABLE, I32, (), ("n", 1, 4)) + UOp(Ops.VARIABLE, I32, (), ("n", 1, 5)),
        "the name 'n'",
    ),
    ("sink-argument", lambda: sink(buffer(2), argument=3), "KernelInfo"),
]

KERNEL_CASES: list[Case] = [
    ("stage-ops", lambda: sink(store(param(0), loop(0), buffer())), "does not belong"),
    ("range-argument", lambda: UOp(Ops.RANGE, INDEX, (index_const(4),), 3), "not an Axis"),
    ("range-argument", lambda: UOp(Ops.RANGE, F32, (index_const(4),), Axis((0,), AxisType.LOOP)), "integers"),
    ("range-argument", lambda: loop(0, -4), "negative"),
    (
        "range-argument",
        lambda: UOp(Ops.RANGE, INDEX, (UOp(Ops.VARIABLE, INDEX, (), ("n", 1, 4)),), Axis((0,), AxisType.UPCAST)),
        "constant size",
    ),
    ("buffers-are-indexed", lambda: store(param(0), loop(0), param(1) + 1.0), "as a value"),
    ("index-operands", lambda: storing(load(param(1), const(F32, 1.0))), "float32, not an integer"),
    ("index-operands", lambda: storing(load(loop(0), loop(0))), "indexes RANGE"),
    ("index-operands", lambda: storing(load(param(1), loop(0), loop(0))), "not bool"),
    ("load-operands", lambda: storing(UOp(Ops.LOAD, F32, (const(F32, 1.0),))), "from CONST"),
    (
        "load-operands",
        lambda: storing(UOp(Ops.LOAD, F32, (place(param(1), loop(0)), const(I32, 1)))),
        "masked off, int32",
    ),
    (
        "store-operands",
        lambda: sink(UOp(Ops.STORE, dtypes.void, (const(F32, 1.0), const(F32, 1.0)))),
        "to CONST",
    ),
    ("store-operands", lambda: sink(store(param(0), loop(0), const(I32, 1))), "int32 into a buffer of float32"),
    ("reduce-ranges", lambda: storing(UOp(Ops.REDUCE, F32, (const(F32, 1.0), index_const(3)), Ops.ADD)), "not a RANGE"),
    ("reduce-ranges", lambda: storing(UOp(Ops.REDUCE, F32, (const(F32, 1.0), loop(1)), Ops.SUB)), "reduction"),
    (
        "reduce-ranges",
        lambda: storing(UOp(Ops.REDUCE, F32, (const(F32, 1.0), loop(1, kind=AxisType.GLOBAL)), Ops.ADD)),
        "never meet",
    ),
    ("reduce-ranges", lambda: storing(UOp(Ops.REDUCE, F32, (const(F32, 1.0), loop(1), loop(1)), Ops.ADD)), "twice"),
    ("sink-of-effects", lambda: loop(0), "a kernel is a SINK"),
    ("sink-of-effects", lambda: sink(loop(0)), "takes effects, not RANGE"),
    ("one-range-per-id", lambda: storing(load(param(1), loop(0, 3))), "the id (0,)"),
    ("one-range-per-id", lambda: storing(load(param(1), loop(0, kind=AxisType.REDUCE))), "the id (0,)"),
    ("one-param-per-slot", lambda: storing(load(param(0, 8), loop(0))), "the slot 0"),
    ("buffers-are-indexed", lambda: sink(store(param(0), loop(0), param(1))), "go through INDEX"),
    ("buffers-are-indexed", lambda: storing(place(param(1), loop(0)) + 1.0), "go through LOAD"),
    ("buffers-are-indexed", lambda: storing(UOp(Ops.AFTER, F32, (param(1), loop(0)))), "go through INDEX"),
    ("after-memory", lambda: storing(load(UOp(Ops.AFTER, F32, (const(F32, 1.0), loop(0))), loop(0))), "not memory"),
    ("arity", lambda: storing(load(UOp(Ops.AFTER, F32, (param(1),)), loop(0))), "takes 2 or more"),
    ("tile-dot-operands", lambda: storing(UOp(Ops.TILE_DOT, F32, (param(1), param(2), *ZEROS[:2]))), "local memory"),
    ("dot-operands", lambda: storing(UOp(Ops.DOT, F32, (const(F32, 1.0),) * 2 + (index_const(0),) * 4)), "a buffer"),
    ("dot-operands", lambda: storing(UOp(Ops.DOT, F32, (param(1), param(2)) + ZEROS)), "not a DotArg"),
    ("group-effects", lambda: sink(UOp(Ops.GROUP, dtypes.void, (loop(0),))), "RANGE is not an effect"),
    ("end-range", lambda: sink(UOp(Ops.END, dtypes.void, (loop(0), loop(1)))), "one loop at a time"),
    (
        "end-range",
        lambda: sink(UOp(Ops.END, dtypes.void, (store(param(0), loop(0), const(F32, 1.0)), index_const(4)))),
        "ends over CONST",
    ),
    (
        "warp-fold-argument",
        lambda: storing(UOp(Ops.WARP_FOLD, F32, (const(F32, 1.0),), (Ops.ADD, 3))),
        "a power of two",
    ),
    (
        "warp-fold-argument",
        lambda: storing(UOp(Ops.WARP_FOLD, F32, (const(F32, 1.0), index_const(4)), (Ops.ADD, 4))),
        "closes CONST",
    ),
    (
        "ranges-closed-once",
        lambda: storing(
            UOp(Ops.REDUCE, F32, (UOp(Ops.REDUCE, F32, (const(F32, 1.0), loop(1)), Ops.ADD), loop(1)), Ops.MAX)
        ),
        "has closed",
    ),
]

ProgramCase = tuple[str, Callable[[Parts], Program], str]

PROGRAM_CASES: list[ProgramCase] = [
    ("stage-ops", lambda p: p.with_more(UOp(Ops.REDUCE, F32, (p.total, p.inner), Ops.ADD)), "REDUCE does not belong"),
    ("acc-operands", lambda p: p.with_more(UOp(Ops.ACC, F32, (p.total,), 1)), "not a constant"),
    ("acc-operands", lambda p: p.with_more(UOp(Ops.ACC, F32, (const(F32, 0.0), p.row), 1)), "tile axis"),
    (
        "accumulate-operands",
        lambda p: p.with_more(UOp(Ops.ACCUMULATE, dtypes.void, (p.total, p.total), Ops.ADD)),
        "updates COMBINE",
    ),
    (
        "accumulate-operands",
        lambda p: p.with_more(UOp(Ops.ACCUMULATE, dtypes.void, (p.acc, p.scaled), Ops.ADD)),
        "accumulates index into float32",
    ),
    ("combine-operands", lambda p: p.with_more(UOp(Ops.COMBINE, F32, (p.total,), Ops.ADD)), "reads COMBINE"),
    (
        "combine-operands",
        lambda p: p.with_more(UOp(Ops.COMBINE, F32, (p.acc, loop(5, kind=AxisType.UNROLL)), Ops.ADD)),
        "does not have",
    ),
    ("end-range", lambda p: p.with_more(UOp(Ops.END, dtypes.void, (p.total,))), "ends COMBINE"),
    ("one-range-per-id", lambda p: p.with_more(loop(1, 5)), "the id (1,)"),
    ("one-param-per-slot", lambda p: p.with_more(place(param(1, 3), p.row)), "the slot 1"),
    ("body-nodes", lambda p: p.with_more(p.total), "twice"),
    ("body-nodes", lambda p: p.with_more(const(F32, 1.0)), "CONST has no place"),
    ("body-nodes", lambda p: p.with_more(p.tile), "tile axis has no place"),
    ("body-nodes", lambda p: p.with_more(UOp(Ops.AFTER, F32, (param(1), p.row))), "states an order"),
    ("sources-first", lambda p: p.moved(p.scaled, p.position), "MUL index comes later"),
    ("sources-first", lambda p: p.without(p.index), "is missing"),
    ("sources-first", lambda p: p.without(p.inner, p.end), "is missing"),
    ("sources-first", lambda p: p.moved(p.acc, p.update), "comes later"),
    ("loops-nest", lambda p: p.without(p.end), "never closed"),
    ("loops-nest", lambda p: p.with_more(UOp(Ops.END, dtypes.void, (p.row,))), "not open"),
    ("scope-dominates-use", lambda p: p.with_more(p.value * 2.0), "outside of the loop"),
    ("scope-dominates-use", lambda p: p.with_more(p.inner + 1), "outside of the loop"),
    ("scope-dominates-use", lambda p: p.moved(p.update, p.end), "outside of the loop"),
    (
        "launch-ranges",
        lambda p: dataclasses.replace(p.program(), global_ranges=()),
        "does not list",
    ),
    ("launch-ranges", lambda p: dataclasses.replace(p.program(), local_ranges=(p.row,)), "into local_ranges"),
    ("launch-ranges", lambda p: dataclasses.replace(p.program(), global_ranges=(p.inner,)), "into global_ranges"),
    ("params-declared", lambda p: dataclasses.replace(p.program(), params=()), "no parameter 1"),
    (
        "params-declared",
        lambda p: dataclasses.replace(p.program(), params=(Param(1, F32, 16, False, True),)),
        "not declared as read",
    ),
    (
        "params-declared",
        lambda p: dataclasses.replace(p.program(), params=(Param(1, F32, 8, True, True),)),
        "is 8 float32, used as 16 float32",
    ),
    (
        "params-declared",
        lambda p: dataclasses.replace(
            p.program(), params=(Param(0, F32, 16, True, False), Param(1, F32, 16, True, False))
        ),
        "not declared as written",
    ),
    ("acc-read-by-combine", lambda p: p.with_more(p.acc * 2.0), "only COMBINE"),
    ("accumulate-then-combine", lambda p: p.without(p.update), "nothing has been accumulated"),
    ("accumulate-then-combine", lambda p: p.moved(p.total, p.scaled), "nothing has been accumulated"),
    ("accumulate-then-combine", lambda p: p.without(p.total, p.target, p.store), "no COMBINE reads"),
    ("accumulate-then-combine", lambda p: combined_inside(p), "still accumulates"),
    (
        "accumulate-then-combine",
        lambda p: p.with_more(UOp(Ops.ACCUMULATE, dtypes.void, (p.acc, p.total), Ops.ADD)),
        "after the COMBINE",
    ),
    ("accumulate-then-combine", lambda p: combined_otherwise(p), "Ops.MAX what Ops.ADD"),
    (
        "atomic-updates",
        lambda p: p.with_more(UOp(Ops.STORE, dtypes.void, (p.target, p.total), Ops.ADD)),
        "updates float32 by ADD atomically, which PYTHON cannot",
    ),
]


def combined_inside(parts: Parts) -> Program:
    """COMBINE before the loop's END; the store follows it there."""
    body = [node for node in parts.body() if node is not parts.end]
    return parts.program([*body, parts.end])


def combined_otherwise(parts: Parts) -> Program:
    parts.total = UOp(Ops.COMBINE, F32, (parts.acc, parts.tile), Ops.MAX)
    parts.store = UOp(Ops.STORE, dtypes.void, (parts.target, parts.total))
    return parts.program()


def names_of(cases: list[Any]) -> list[str]:
    return [f"{number}-{case[0]}" for number, case in enumerate(cases)]


def check(error: VerifyError, stage: str, rule: str, reason: str) -> None:
    assert error.stage == stage
    assert error.message.startswith(f"{rule}: ")
    assert reason in error.message
    assert error.node
    assert f"stage: {stage}" in str(error)


@pytest.mark.parametrize(("rule", "build", "reason"), TENSOR_CASES, ids=names_of(TENSOR_CASES))
def test_tensor_graph_is_refused(rule: str, build: Callable[[], UOp], reason: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_tensor_graph(build())
    check(caught.value, "tensor", rule, reason)


@pytest.mark.parametrize(("rule", "build", "reason"), KERNEL_CASES, ids=names_of(KERNEL_CASES))
def test_kernel_is_refused(rule: str, build: Callable[[], UOp], reason: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(build())
    check(caught.value, "kernel", rule, reason)


@pytest.mark.parametrize(("rule", "build", "reason"), PROGRAM_CASES, ids=names_of(PROGRAM_CASES))
def test_program_is_refused(rule: str, build: Callable[[Parts], Program], reason: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_program(build(Parts()))
    check(caught.value, "program", rule, reason)


def test_loops_that_cross_are_refused() -> None:
    outer, inner = loop(0), loop(1)
    ends = [UOp(Ops.END, dtypes.void, (outer,)), UOp(Ops.END, dtypes.void, (inner,))]
    with pytest.raises(VerifyError, match="inside of it is open"):
        verify_program(Program("crossed", (outer, inner, *ends), (), (), (), Target("PYTHON")))


def test_every_rule_has_a_case() -> None:
    stages = (TENSOR_STAGE, KERNEL_STAGE, PROGRAM_STAGE)
    rules = {rule.name for rule in NODE_RULES}
    rules |= {rule.name for stage in stages for rule in (*stage.rules, *stage.node_rules)}
    rules |= {rule.name for rule in PROGRAM_RULES}
    cases = (
        {case[0] for case in TENSOR_CASES} | {case[0] for case in KERNEL_CASES} | {case[0] for case in PROGRAM_CASES}
    )
    assert rules - cases == set()
    assert cases - rules == {"stage-ops"}


def test_the_error_names_the_pass_and_the_users_line() -> None:
    node = UOp(Ops.ADD, F32, (buffer(2), buffer(3)))
    node.line = ("train.py", 12)
    with pytest.raises(VerifyError, match="pass: fuse_all") as caught:
        verify_tensor_graph(node, pass_name="fuse_all")
    assert "train.py:12" in str(caught.value)
    assert isinstance(caught.value, InternalError)


def test_deep_graphs_are_verified() -> None:
    node = buffer(4)
    for _ in range(50_000):
        node = node + 1.0
    verify_tensor_graph(node)
