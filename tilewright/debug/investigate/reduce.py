"""Delta debugging over a graph. In: a repro that fails, and a test that tells whether another fails alike. Out: the
smallest one found in the time given.

Symbolic sizes become constants. In a schedule an output is replaced by its sources; a node by one of its sources, by
zeros, or by a leaf with its value; an axis is made shorter wherever it occurs; contents become simpler. In a kernel
opts are left out and expressions are replaced by their operands. A change is kept when the case still fails in the same
way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tilewright.base.dtype import dtypes
from tilewright.base.errors import TilewrightError
from tilewright.base.records import replace
from tilewright.debug.replay import bindings_of, contents_of, expected_values, fixed_outputs
from tilewright.debug.sum_order import Array
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.sizes import fixed_graph, variable_bounds
from tilewright.graph.spec import Kind, element_count
from tilewright.graph.symbolic import capacity
from tilewright.graph.text.repro import Input, Repro
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_kernel, verify_tensor_graph
from tilewright.graph.walk import substitute, toposort

Fails = Callable[[Repro], bool]
# Errors of a change that made an invalid graph.
_MEANINGLESS = (TilewrightError, AssertionError, ValueError, IndexError, TypeError, KeyError, AttributeError)
_LEAVES = (Ops.PARAM, Ops.CONST, Ops.IOTA)
MAX_CONTENTS = 64  # elements of a buffer whose contents are made simpler one by one


def reduce_repro(repro: Repro, fails: Fails, seconds: float = 40.0) -> Repro:
    """The smallest repro that still fails, found within the time given."""
    end = time.monotonic() + seconds
    if repro.kind == "kernel":
        sorts: tuple[Callable[[Repro], Iterator[Repro]], ...] = (plain_sizes, fewer_opts, simpler_kernels)
    else:
        repro = _first_that_fails(plain_sizes(repro), fails, end) or repro
        repro = _first_that_fails(cut_outputs(repro), fails, end) or repro
        repro = _bisect_depth(repro, fails, end)
        sorts = (plain_sizes, cut_outputs, replace_nodes, shrink_sizes, plain_contents)
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for sort in sorts:
            smaller = _first_that_fails(sort(repro), fails, end)
            while smaller is not None:
                repro, changed = smaller, True
                smaller = _first_that_fails(sort(repro), fails, end)
    return repro


def _first_that_fails(candidates: Iterator[Repro], fails: Fails, end: float) -> Repro | None:
    while time.monotonic() < end:
        try:
            candidate = next(candidates, None)
            if candidate is None:
                return None
            if _is_meaningful(candidate) and fails(candidate):
                return candidate
        except _MEANINGLESS:
            continue
    return None


def _is_meaningful(repro: Repro) -> bool:
    """Whether the rules of its stage allow the graph, and the definition gives it a value."""
    try:
        if repro.kind == "kernel":
            verify_kernel(repro.graph)
            return True
        for output in repro.graph.src:
            verify_tensor_graph(output)
        order = toposort(repro.graph)
        if not all(build.is_stored(node.src[0]) for node in order if node.op is Ops.ASSIGN):
            return False
        expected_values(repro)
    except _MEANINGLESS:
        return False
    return True


def with_outputs(repro: Repro, outputs: tuple[UOp, ...], more: Mapping[UOp, Array] | None = None) -> Repro:
    """The repro with other outputs; PARAMs that are not used are removed, the others are numbered from 0."""
    contents = contents_of(repro)
    held = more or {}
    graph = UOp(Ops.SINK, dtypes.void, tuple(dict.fromkeys(outputs)))
    params = sorted((node for node in toposort(graph) if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    exchanges: dict[UOp, UOp] = {}
    inputs = []
    for slot, node in enumerate(params):
        data = held[node] if node in held else contents[node.arg.slot]
        exchanges[node] = UOp(Ops.PARAM, node.dtype, (), ParamArg(slot, node.arg.size, node.arg.device))
        size = capacity(node.arg.size)
        data = np.resize(data, size) if data.size < size else data[:size]
        inputs.append(Input(slot, node.dtype, size, np.ascontiguousarray(data).tobytes()))
    # All at once: the new number of a PARAM may be the old one of another.
    return replace(repro, graph=substitute(graph, exchanges), inputs=tuple(inputs))


def plain_sizes(repro: Repro) -> Iterator[Repro]:
    """The repro with constants for its symbolic sizes; then with smaller values of its variables."""
    if not repro.values:
        return
    if repro.kind == "kernel":
        yield replace(repro, graph=fixed_graph([repro.graph], repro.values)[0], values={})
    else:
        yield with_outputs(replace(repro, values={}), fixed_outputs(repro))
    for name, (least, _) in variable_bounds([repro.graph]).items():
        now = repro.values[name]
        for value in dict.fromkeys((least, least + 1, (least + now) // 2, now - 1)):
            if least <= value < now:
                yield replace(repro, values={**repro.values, name: value})


# ---------------------------------------------------------------- schedules


def _is_leaf(node: UOp) -> bool:
    while node.op in (Ops.RESHAPE, Ops.EXPAND, Ops.DETACH):
        node = node.src[0]
    return node.op in _LEAVES


def _bisect_depth(repro: Repro, fails: Fails, end: float) -> Repro:
    """The earliest node whose value is wrong, if all that is computed from a wrong value is."""
    if len(repro.graph.src) != 1:
        return repro
    order = [node for node in toposort(repro.graph) if not _is_leaf(node) and node.op is not Ops.SINK]
    low, high, best = 0, len(order) - 1, repro
    while low < high and time.monotonic() < end:
        middle = (low + high) // 2
        found = _first_that_fails(iter([with_outputs(repro, (order[middle],))]), fails, end)
        if found is not None:
            best, high = found, middle
        else:
            low = middle + 1
    return best


def cut_outputs(repro: Repro) -> Iterator[Repro]:
    outputs = repro.graph.src
    if len(outputs) > 1:
        for output in outputs:
            yield with_outputs(repro, (output,))
        for output in outputs:
            yield with_outputs(repro, tuple(other for other in outputs if other is not output))
    for position, output in enumerate(outputs):
        for src in output.src:
            if not _is_leaf(src):
                yield with_outputs(repro, (*outputs[:position], src, *outputs[position + 1 :]))


def replace_nodes(repro: Repro) -> Iterator[Repro]:
    """A node exchanged for a leaf that holds its value, for one of its sources, or for zeros; large parts first."""
    order = [node for node in toposort(repro.graph) if node.op not in (*_LEAVES, Ops.SINK)]
    contents = contents_of(repro)
    plain = fixed_graph(order, repro.values)
    values = dict(zip(order, evaluate_all(plain, bindings_of(plain, contents)), strict=True))
    slot = max(contents, default=-1) + 1
    for node in reversed(order):
        is_output = node in repro.graph.src
        if not is_output and not _is_leaf(node):
            home = next((p.arg.device for p in toposort(node) if p.op is Ops.PARAM), "")
            leaf = UOp(Ops.PARAM, node.dtype, (), ParamArg(slot, element_count(node.shape), home))
            data = np.ascontiguousarray(values[node]).reshape(-1)
            yield from _exchanged(repro, node, build.reshape(leaf, node.shape), {leaf: data})
        for src in node.src:
            if src.dtype is node.dtype and element_count(src.shape) == element_count(node.shape):
                yield from _exchanged(repro, node, build.reshape(src, node.shape))
        if not is_output and not _is_leaf(node):
            yield from _exchanged(repro, node, build.const(node.dtype, 0, node.shape))


def _exchanged(repro: Repro, node: UOp, other: UOp, more: Mapping[UOp, Array] | None = None) -> Iterator[Repro]:
    if other is node:
        return
    outputs = tuple(substitute(output, {node: other}) for output in repro.graph.src)
    if all(not _is_leaf(output) for output in outputs):
        made = with_outputs(repro, outputs, more)
        if made.nodes < repro.nodes:
            yield made


def shrink_sizes(repro: Repro) -> Iterator[Repro]:
    """One axis size made smaller wherever it occurs in a shape; views that cut an axis are cut with it."""
    shapes = [node.shape for node in toposort(repro.graph) if node.op is not Ops.SINK]
    sizes = {size for shape in shapes for size in shape if isinstance(size, int) and size > 1}
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, 3, 4, 8, size // 2, size - 1)):
            if 0 < smaller < size:
                made = _resized(repro, size, smaller)
                if made is not None and made.graph is not repro.graph:
                    yield made


def _resized(repro: Repro, size: int, smaller: int) -> Repro | None:
    def of(number: int) -> int:
        return smaller if number == size else number

    contents = contents_of(repro)
    order = toposort(repro.graph)
    lengths: dict[UOp, int] = {}
    for node in order:
        if node.op is Ops.RESHAPE and node.src[0].op is Ops.PARAM:
            lengths.setdefault(node.src[0], element_count(tuple(of(number) for number in node.arg)))
    done: dict[UOp, UOp] = {}
    inputs: list[Input] = []
    for node in order:
        arg = node.arg
        if node.op is Ops.PARAM:
            arg = ParamArg(arg.slot, lengths.get(node, of(arg.size)), arg.device)
            if arg.size > node.arg.size:
                return None
            data = contents[arg.slot][: capacity(arg.size)]
            inputs.append(Input(arg.slot, node.dtype, data.size, data.tobytes()))
        elif node.op in (Ops.RESHAPE, Ops.EXPAND, Ops.IOTA):
            arg = tuple(of(number) for number in arg)
        elif node.op is Ops.SHRINK:
            limits = done[node.src[0]].shape
            arg = tuple((min(start, limit), min(of(stop), limit)) for (start, stop), limit in zip(arg, limits))
        done[node] = UOp(node.op, node.dtype, tuple(done[src] for src in node.src), arg)
    graph = done[repro.graph]
    return replace(repro, graph=graph, inputs=tuple(sorted(inputs, key=lambda given: given.slot)))


def plain_contents(repro: Repro) -> Iterator[Repro]:
    """All ones, all zeros, or some elements zero."""
    contents = contents_of(repro)
    for given in repro.inputs:
        data, kind = contents[given.slot], numpy_dtype(given.dtype)
        for plain in (np.zeros(data.size, kind), np.ones(data.size, kind)):
            if data.any() and data.tobytes() not in (plain.tobytes(), np.ones(data.size, kind).tobytes()):
                yield _with_data(repro, given.slot, plain)
        step = data.size // 2
        while step >= 1 and data.size <= MAX_CONTENTS and len(set(data.tolist())) > 2:
            for start in range(0, data.size, step):
                part = data.copy()
                part[start : start + step] = np.zeros((), kind)
                if part.tobytes() != data.tobytes():
                    yield _with_data(repro, given.slot, part)
            step //= 2


def _with_data(repro: Repro, slot: int, data: Array) -> Repro:
    inputs = (replace(given, data=data.tobytes()) if given.slot == slot else given for given in repro.inputs)
    return replace(repro, inputs=tuple(inputs))


# ---------------------------------------------------------------- kernels


def fewer_opts(repro: Repro) -> Iterator[Repro]:
    """The kernel with one opt left out, from the last."""
    info = repro.graph.arg
    if repro.has_opts and isinstance(info, KernelInfo):
        for position in reversed(range(len(info.applied))):
            kept = (*info.applied[:position], *info.applied[position + 1 :])
            yield replace(repro, graph=repro.graph.replace(arg=replace(info, applied=kept)))


def simpler_kernels(repro: Repro) -> Iterator[Repro]:
    """One value replaced by one of its operands."""
    if len(repro.graph.src) > 1:
        for effect in repro.graph.src:
            yield _with_kernel(repro, repro.graph.replace(src=(effect,)))
    for node in reversed(toposort(repro.graph)):
        if not node.op.is_elementwise or node.dtype is dtypes.index or node.op.kind is Kind.LEAF:
            continue
        for src in node.src:
            if src.dtype is node.dtype:
                yield _with_kernel(repro, substitute(repro.graph, {node: src}))


def _with_kernel(repro: Repro, graph: UOp) -> Repro:
    """The arguments keep their numbers: one that is not used any more is still given."""
    return replace(repro, graph=graph)
