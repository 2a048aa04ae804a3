"""Making a failing case small. In: a `Failure`. Out: a smaller one of the same kind.

Four sorts of change are tried until none helps: an output is dropped; a node gives way to one of its own sources, to a
leaf with the value it has, or to zeros; an axis size is made smaller wherever it occurs; the contents of a leaf become
plainer. A change is kept when the case still fails on the same device in the same way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from tests.fuzz.execute import Failure, check_case
from tests.fuzz.generate import Case
from tilewright.base.errors import TilewrightError
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all, numpy_dtype
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort


def minimise(failure: Failure, seconds: float = 60.0) -> Failure:
    """The smallest failing case found in the time given."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for sort in (drop_outputs, replace_nodes, shrink_sizes, plain_contents):
            smaller = _first_that_fails(failure, sort(failure.case), end)
            while smaller is not None:
                failure, changed = smaller, True
                smaller = _first_that_fails(failure, sort(failure.case), end)
    return failure


def _first_that_fails(failure: Failure, candidates: Iterator[Case], end: float) -> Failure | None:
    for case in candidates:
        if time.monotonic() > end:
            return None
        if not _updates_what_is_stored(case):
            continue
        try:
            found = check_case(case, (failure.device,))
        except (TilewrightError, AssertionError, ValueError, IndexError, TypeError):
            # The change made a graph that means nothing.
            continue
        if found is not None and found.kind == failure.kind:
            return found
    return None


def _updates_what_is_stored(case: Case) -> bool:
    return all(build.is_stored(node.src[0]) for node in toposort(*case.outputs) if node.op is Ops.ASSIGN)


def _with_outputs(case: Case, outputs: tuple[UOp, ...], more: dict[UOp, np.ndarray] | None = None) -> Case:
    bindings = {**case.bindings, **(more or {})}
    used = set(toposort(*outputs))
    return Case(case.seed, outputs, {node: data for node, data in bindings.items() if node in used})


def drop_outputs(case: Case) -> Iterator[Case]:
    if len(case.outputs) > 1:
        for output in case.outputs:
            yield _with_outputs(case, (output,))
        for output in case.outputs:
            yield _with_outputs(case, tuple(other for other in case.outputs if other is not output))
    # What an output is made of may fail by itself.
    for position, output in enumerate(case.outputs):
        for src in output.src:
            if src.op not in (Ops.PARAM, Ops.CONST) and not (src.op is Ops.RESHAPE and src.src[0].op is Ops.PARAM):
                outputs = (*case.outputs[:position], src, *case.outputs[position + 1 :])
                yield _with_outputs(case, tuple(dict.fromkeys(outputs)))


def replace_nodes(case: Case) -> Iterator[Case]:
    """A node exchanged for one of its sources, for a leaf that holds its value, or for zeros; large parts first."""
    order = [node for node in toposort(*case.outputs) if node.op not in (Ops.PARAM, Ops.CONST)]
    values = dict(zip(order, evaluate_all(tuple(order), case.bindings), strict=True))
    slot = max((node.arg.slot for node in case.bindings), default=0) + 1
    for node in reversed(order):
        for src in node.src:
            if src.dtype is node.dtype and math.prod(src.shape) == math.prod(node.shape):
                yield from _exchanged(case, node, build.reshape(src, node.shape))
        if node in case.outputs or node.op in (Ops.IOTA,) or _is_leaf(node):
            continue
        yield from _exchanged(case, node, build.const(node.dtype, 0, node.shape))
        leaf = UOp(Ops.PARAM, node.dtype, (), ParamArg(slot, math.prod(node.shape)))
        data = np.ascontiguousarray(values[node]).reshape(-1).copy()
        yield from _exchanged(case, node, build.reshape(leaf, node.shape), {leaf: data})


def _is_leaf(node: UOp) -> bool:
    while node.op in (Ops.RESHAPE, Ops.EXPAND):
        node = node.src[0]
    return node.op in (Ops.PARAM, Ops.CONST)


def _exchanged(case: Case, node: UOp, other: UOp, more: dict[UOp, np.ndarray] | None = None) -> Iterator[Case]:
    if other is not node:
        outputs = tuple(dict.fromkeys(substitute(output, {node: other}) for output in case.outputs))
        if all(not _is_leaf(output) for output in outputs):
            yield _with_outputs(case, outputs, more)


def shrink_sizes(case: Case) -> Iterator[Case]:
    """One axis size made smaller wherever it occurs in a shape; views that cut an axis are cut with it."""
    sizes = {size for node in toposort(*case.outputs) for size in node.shape if size > 1}
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, 3, size // 2, size - 1)):
            if 0 < smaller < size:
                made = _resized(case, size, smaller)
                if made is not None and made.outputs != case.outputs:
                    yield made


def _resized(case: Case, size: int, smaller: int) -> Case | None:
    def of(number: int) -> int:
        return smaller if number == size else number

    order = toposort(*case.outputs)
    shapes: dict[UOp, int] = {}
    for node in order:
        if node.op is Ops.RESHAPE and node.src[0].op is Ops.PARAM:
            shapes.setdefault(node.src[0], math.prod(of(n) for n in node.arg))
    done: dict[UOp, UOp] = {}
    bindings: dict[UOp, np.ndarray] = {}
    for node in order:
        arg = node.arg
        if node.op is Ops.PARAM:
            arg = ParamArg(arg.slot, shapes.get(node, of(arg.size)), arg.device)
        elif node.op in (Ops.RESHAPE, Ops.EXPAND, Ops.IOTA):
            arg = tuple(of(n) for n in arg)
        elif node.op is Ops.SHRINK:
            limits = done[node.src[0]].shape
            arg = tuple((min(start, limit), min(of(stop), limit)) for (start, stop), limit in zip(arg, limits))
        done[node] = UOp(node.op, node.dtype, tuple(done[s] for s in node.src), arg)
        if node.op is Ops.PARAM:
            if arg.size > node.arg.size:
                return None
            bindings[done[node]] = case.bindings[node][: arg.size].copy()
    return Case(case.seed, tuple(done[node] for node in case.outputs), bindings)


def plain_contents(case: Case) -> Iterator[Case]:
    """All zeros, all ones, half of the elements zero, a single one zero."""
    for node, data in case.bindings.items():
        kind = numpy_dtype(node.dtype)
        for plain in (np.zeros(data.size, kind), np.ones(data.size, kind)):
            if data.tobytes() != plain.tobytes() and data.any():
                yield Case(case.seed, case.outputs, {**case.bindings, node: plain})
        step = data.size // 2
        while step >= 1 and data.size <= 64:
            for start in range(0, data.size, step):
                part = data.copy()
                part[start : start + step] = np.zeros((), kind)
                if part.tobytes() != data.tobytes():
                    yield Case(case.seed, case.outputs, {**case.bindings, node: part})
            step //= 2
