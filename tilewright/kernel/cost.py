"""What a plan costs. In: a contraction, a tensor core and a target. Out: an estimate in clocks of the whole kernel,
made from facts of the target. `heuristics` chooses the plan with the least estimate."""

from __future__ import annotations

from tilewright.base.target import Target, TensorCore
from tilewright.kernel.analysis.contraction import Contraction, count

# Clocks to start a work-group, fill its stages and store its tile; and of a step's barrier where all threads meet.
_START_CLOCKS = 2000.0
_BARRIER_CLOCKS = 60.0


def contraction_clocks(contraction: Contraction, core: TensorCore, target: Target, is_bulk: bool) -> float:
    """The most loaded multiprocessor takes a whole number of tiles; a step of one is bound by arithmetic or by the
    bytes of both operands' tiles."""
    rows, columns = -(-contraction.rows // core.rows), -(-contraction.columns // core.columns)
    tiles = count(contraction.batch) * rows * columns
    arithmetic = 2 * core.rows * core.columns * core.depth / core.operations_per_clock
    moved = (core.rows + core.columns) * core.depth * core.operand.itemsize / target.core_bytes_per_clock
    # Where the copy engine fetches and warp groups multiply, no step waits for all threads.
    step = max(arithmetic, moved) + (0 if is_bulk and core.staged_line_bytes else _BARRIER_CLOCKS)
    steps = -(-contraction.length // core.depth)
    return -(-tiles // target.cores) * (steps * step) + _START_CLOCKS


def repeated_clocks(contraction: Contraction, core: TensorCore, target: Target) -> float:
    """Without tiles the operand with more rows is read once for each of the other's, as a matrix times a vector is."""
    products = count(contraction.batch) * contraction.rows * contraction.columns * contraction.length
    return products * core.operand.itemsize / (target.cores * target.core_bytes_per_clock) + _START_CLOCKS
