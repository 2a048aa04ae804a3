"""Measured facts of devices with work-groups that estimates and sizes use: all that is no fact of one machine, which
`base/target.py` has. In: nothing. Out: numbers, each with what it means. They were measured on an H200
(docs/measurements/h200.md)."""

from __future__ import annotations

# ---------------------------------------------------------------- work-groups

# Threads of a work-group without shared data, and of one side of a tile.
GROUP_THREADS = 256
TILE_THREADS = 16

# ---------------------------------------------------------------- reductions

# Vectors of a row per thread, at least.
VECTORS_PER_THREAD = 4
# Elements along memory that one thread sums by itself.
SHORT_ROW = 16
# A core with a row for one of this many threads is busy enough where a thread has a whole row.
ROWS_PER_THREAD = 4
# The length of a row with its padding, over its own.
MAX_PADDED = 1.25
# An operand that is read this many times less often than another is small beside it.
SMALL_OPERAND = 16

# ---------------------------------------------------------------- contractions

# Of fewer rows or columns tiles of tensor cores are mostly empty: whether that matters is estimated. Below this many
# products altogether it always does.
MIN_SIDE = 16
MIN_PRODUCT = 1 << 18
# Elements of a tile that a thread holds, beside what it stages.
MAX_STAGED_ELEMENTS = 64
# Iterations of the reduction that are staged at a time, preferred first.
STAGED_DEPTH = (16, 8, 4)

# ---------------------------------------------------------------- sums by index

# Clocks of a thread for a term of another part, for a term of its own, which it loads, changes and stores, and to fill
# an output, alone or beside threads whose outputs are adjacent.
STEPS_PER_TERM = 64
STEPS_PER_UPDATE = 600
STEPS_TO_FILL = 64
STEPS_TO_FILL_TOGETHER = 4
MIN_ADJACENT = 8
# Parts of fewer outputs are not worth reading all terms for.
MIN_OUTPUTS = 16
