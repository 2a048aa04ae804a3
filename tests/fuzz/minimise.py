"""Making a failing case small. In: a `Failure`. Out: a smaller one of the same kind, found by the delta debugging of
`tilewright debug`: a change of the graph is kept when the case still fails on the same device in the same way."""

from __future__ import annotations

import numpy as np

from tests.fuzz.execute import Failure, check_case
from tests.fuzz.generate import Case
from tilewright.debug.investigate.reduce import reduce_repro
from tilewright.debug.replay import contents_of
from tilewright.graph.ops import Ops
from tilewright.graph.text.repro import Repro, inputs_of
from tilewright.graph.walk import toposort


def minimise(failure: Failure, seconds: float = 60.0) -> Failure:
    """The smallest failing case found in the time given."""
    smallest = failure

    def fails_alike(repro: Repro) -> bool:
        nonlocal smallest
        found = check_case(case_of(repro), (failure.device,))
        if found is None or found.kind != failure.kind:
            return False
        smallest = found
        return True

    reduce_repro(repro_of(failure), fails_alike, seconds)
    return smallest


def repro_of(failure: Failure) -> Repro:
    case = failure.case
    contents = {node.arg.slot: np.ascontiguousarray(data).tobytes() for node, data in case.bindings.items()}
    return Repro("schedule", case.sink, failure.device, inputs_of(case.sink, contents), case.seed)


def case_of(repro: Repro) -> Case:
    contents = contents_of(repro)
    params = [node for node in toposort(repro.graph) if node.op is Ops.PARAM]
    return Case(repro.seed, repro.graph.src, {node: contents[node.arg.slot] for node in params})
