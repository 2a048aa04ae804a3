"""Measured facts of devices with work-groups that estimates and sizes use; the facts of one machine are in
`base/target.py`. In: nothing. Out: numbers, each with what it means. They were measured on an H200
(docs/measurements/h200.md)."""

from __future__ import annotations

# ---------------------------------------------------------------- work-groups

GROUP_THREADS = 256  # of a work-group without shared data
TILE_THREADS = 16  # of one side of a tile

# ---------------------------------------------------------------- reductions

VECTORS_PER_THREAD = 4  # the fewest of a row
SHORT_ROW = 16  # elements of the longest row that one thread sums by itself
# One thread per row keeps a core busy where its rows are at least its threads divided by this.
ROWS_PER_THREAD = 4
MAX_PADDED = 1.25  # the largest ratio of a row's padded length to its length
CLOCKS_PER_LOAD = 100  # of an iteration of a reduction across memory, whose load overlaps with those of other threads
CLOCKS_PER_PARTIAL = 10  # of a thread that combines the result of another, in local memory
SUM_BYTES = 4  # of a sum in local memory, at least
SMALL_OPERAND = 16  # an operand with this many times fewer accesses than the largest counts as small

# ---------------------------------------------------------------- contractions

MIN_SIDE = 16  # with fewer rows or columns, tiles of tensor cores are mostly empty: a plan without tiles is compared
MIN_PRODUCT = 1 << 18  # below this many multiplications no tensor core is used
MAX_STAGED_ELEMENTS = 64  # the most elements of a tile that a thread holds while it also stages operands
STAGED_DEPTH = (16, 8, 4)  # iterations of the reduction that are staged at a time, preferred first

# ---------------------------------------------------------------- sums by index

# Clocks of a thread:
STEPS_PER_TERM = 64  # for a term of another thread's part, which it skips
STEPS_PER_UPDATE = 600  # for a term of its own part: the load, the update and the store
STEPS_TO_FILL = 64  # to initialise one output
STEPS_TO_FILL_TOGETHER = 4  # the same where adjacent threads initialise adjacent outputs
MIN_ADJACENT = 8  # the fewest columns for which the threads of a warp count as adjacent
MIN_OUTPUTS = 16  # the fewest outputs of a part: each part reads all terms
# The fewest iterations of a contiguous loop that the threads of a group share: below, as in the loop over two results
# that are interleaved, they share the next loop in memory, and each takes what lies between.
MIN_INTERLEAVED = 8
