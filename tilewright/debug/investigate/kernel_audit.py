"""Custom kernels as their authors wrote them. In: the graph of a run and the contents of its inputs. Out: a finding
where two threads of such a kernel access one element without an order, or it accesses memory outside of its buffers:
most devices do not report it. The emulator runs it without opts on the data of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.base.errors import EmulatorError
from tilewright.debug.investigate.equivalence import ORDERED
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.sum_order import CANNOT, Array
from tilewright.engine.compilation.verify import run_unoptimised
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.spec import element_count
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

MAX_ELEMENTS = 1 << 18  # of the arguments of a kernel that is looked at


def check_custom_kernels(outputs: Sequence[UOp], bindings: Mapping[UOp, Array], seen: set[UOp]) -> Finding | None:
    """The first custom kernel of a graph that the emulator refuses; `seen` are those that were looked at before."""
    for node in toposort(*outputs):
        if node.op is not Ops.CUSTOM_KERNEL or node.arg.ast in seen:
            continue
        seen.add(node.arg.ast)
        call = node.arg
        if sum(map(element_count, call.shapes)) > MAX_ELEMENTS:
            continue
        try:
            given = evaluate_all(node.src, bindings) if node.src else []
            arguments = []
            for dtype, shape, position in zip(call.dtypes, call.shapes, call.sources, strict=True):
                held = (
                    np.zeros(shape, numpy_dtype(dtype)) if position is None else np.broadcast_to(given[position], shape)
                )
                arguments.append(np.ascontiguousarray(held).tobytes())
        except CANNOT:
            continue
        found = refused(call.ast, arguments, {})
        if found is not None:
            return found
    return None


def is_written_by_hand(ast: UOp) -> bool:
    """Whether a kernel states an order between effects, as no scheduled one does before its opts."""
    return any(node.op in ORDERED for node in toposort(ast))


def refused(ast: UOp, arguments: Sequence[bytes], values: Mapping[str, int]) -> Finding | None:
    """The emulator's error for a kernel without opts; None where there is none."""
    try:
        run_unoptimised(ast, list(arguments), values)
    except EmulatorError as error:
        text = f"the kernel as it was written, without opts: {type(error).__name__}: {error}"
        return Finding("kernel", str(ast.arg.name), text, show(ast))
    except CANNOT:
        return None
    return None
