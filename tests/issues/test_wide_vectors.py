"""What took several times as long on processors with 64-byte vectors, found by a sweep there: the choices are made for
such a target on any machine."""

from __future__ import annotations

import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cpu.device import cpu_target
from tilewright.base.records import replace
from tilewright.engine.execution.realize import schedule
from tilewright.graph.records import OptOps
from tilewright.kernel.optimise import optimise

WIDE = replace(cpu_target(), vector_bytes=64, vector_registers=32, masked_itemsizes=(4, 8), cores=1)


@pytest.mark.parametrize(("rows", "columns"), [(80, 1228), (160, 417)])
def test_labels_of_64_bits_do_not_narrow_the_vectors_of_scores(rows: int, columns: int) -> None:
    """Vectors of a cross entropy's two loops had the lanes that labels have, or half of those."""
    scores, labels = Tensor.empty(rows, columns), Tensor.empty(rows, dtype=dtypes.int64)
    asts = [item.ast for item in schedule([scores.cross_entropy(labels).uop], "CPU").items if item.ast is not None]
    vectors = [opt.arg for opt in optimise(asts[0], WIDE).arg.applied if opt.op is OptOps.UPCAST]
    assert len(vectors) == 2
    assert all(length % WIDE.lanes(dtypes.float32) == 0 for length in vectors)
