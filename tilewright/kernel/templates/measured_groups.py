"""Measured facts of devices with work-groups that estimates and sizes use; the facts of one machine are in
`base/target.py`. In: nothing. Out: numbers, each with what it means. They were measured on an H200
(docs/measurements/h200.md)."""

from __future__ import annotations

# ---------------------------------------------------------------- work-groups

# Threads of a work-group without shared data, and of one side of a tile.
GROUP_THREADS = 256
TILE_THREADS = 16

# ---------------------------------------------------------------- reductions

# The fewest vectors of a row per thread.
VECTORS_PER_THREAD = 4
# The longest row, in elements, that one thread sums by itself.
SHORT_ROW = 16
# One thread per row keeps a core busy where its rows are at least its threads divided by this.
ROWS_PER_THREAD = 4
# The largest ratio of a row's padded length to its length.
MAX_PADDED = 1.25
# Clocks of an iteration of a reduction across memory, whose load overlaps with those of others; and of one thread to
# combine the result of another in local memory.
CLOCKS_PER_LOAD, CLOCKS_PER_PARTIAL = 100, 10
# Bytes of a sum in local memory, at least.
SUM_BYTES = 4
# An operand with this many times fewer accesses than the largest counts as small.
SMALL_OPERAND = 16

# ---------------------------------------------------------------- contractions

# With fewer rows or columns, tiles of tensor cores are mostly empty, and the plan is compared with one without tiles.
# Below this many products no tensor core is used.
MIN_SIDE = 16
MIN_PRODUCT = 1 << 18
# The most elements of a tile that a thread holds while it also stages operands.
MAX_STAGED_ELEMENTS = 64
# Iterations of the reduction that are staged at a time, preferred first.
STAGED_DEPTH = (16, 8, 4)

# ---------------------------------------------------------------- sums by index

# Clocks of a thread: for a term of another thread's part, which it skips; for a term of its own, which it loads,
# changes and stores; to fill one output; and to fill one beside threads that fill adjacent outputs.
STEPS_PER_TERM = 64
STEPS_PER_UPDATE = 600
STEPS_TO_FILL = 64
STEPS_TO_FILL_TOGETHER = 4
MIN_ADJACENT = 8
# The fewest outputs of a part: each part reads all terms.
MIN_OUTPUTS = 16
