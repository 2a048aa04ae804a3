"""Measured facts of CPU cores that estimates and sizes use; the facts of one machine are in `base/target.py`. In:
nothing. Out: numbers, each with what it means and where it comes from. They were measured on two cores with AVX-512 and
two with NEON unless it says otherwise; docs/measurements/cpu.md has the rows."""

from __future__ import annotations

# ---------------------------------------------------------------- tiles of accumulators

# Costs are in vector multiplications. Those of one iteration of a sum, in addition to the multiplications of its tile:
LOOP_COST = 4.0  # the loop itself
BROADCAST_COST = 0.3  # a broadcast element
LOAD_COST = 0.5  # a loaded vector
# The same for windows:
PANEL_COST = 2.0  # a vector of channels, loaded from L2
PIXEL_COST = 0.45  # a pixel, loaded from L1
SECOND_COST = 0.07  # a second tiled axis, at a larger stride
EDGE_COST = 4.0  # a product that is masked in some tiles of a row
PIXEL_COPY_COST = 4.0  # the copy of a pixel whose loads are masked
# The same for a vector of accumulators or of results:
SPILLED_COST = 9.0  # loading and storing accumulators once for a block of the sum
NEAR_SPILLED_COST = 4.0  # the same of few accumulators, which stay near
REDUCTION_COST = 2.0  # adding one half of the lanes to the other; a scalar takes log2(lanes) of these
MASKED_STORE_COST = 12.0  # a store under a mask, on a processor without masked vectors
MASKED_PACKING_COST = 3.0  # packing under a mask, on such a processor
MIN_SUMS = 8  # independent accumulators that hide the latency of a multiply-add
MIN_WINDOW_SUMS = 10  # the same for windows, whose panel comes from L2
MAX_VECTORS = 4  # of a tile
MIN_SYMBOLIC_ROWS = 8  # the least that a symbolic number of rows may be: tiles of them overlap
MIN_TILE_ROWS = 4  # a tile with fewer rows costs more in loads than it saves in conflict misses
MAX_TILE_ROWS = 12  # of a tile that is not of a matrix product: they divide a loop
OPERAND_REGISTERS = 4  # that hold operands of a tile, or the offset of a factor of a dot-product instruction
OPERAND_SHARE = 4  # the same for windows: 1/x of all registers
STEPS = (2, 3)  # unroll factors of a sum, preferred first

# ---------------------------------------------------------------- packing

# The rows of a product for which the right factor is packed. With fewer than a quarter of them an element is reused too
# rarely; between the two it is packed where that is estimated to take less time.
MIN_PACKED_ROWS = 32
# Costs in multiplications of a vector of columns by a row:
PACKING_COST = 16.0  # packing the vector
COPIED_COST = 3.0  # packing it where it has stride 1 and is in a core's cache
FAR_COPIED_COST = 8.0  # the same from further away, in pieces of rows as long as a page
PACKED_ROWS_COST = 0.3  # packing rows, where the last tile is masked
COPY_COST = 0.5  # copying a vector of rows
PARTS_COPY_COST = 1.0  # copying one whose length is not a power of two, in parts
NEAR_LINE_CLOCKS = 12.0  # to read a line from a core's cache that nothing prefetches: a few lines of each row
BLOCK_COST = 0.3  # reading all panels of the right factor again for a block of rows, in multiplications of a tile
MIN_CACHED_ROWS = 256  # of a part for which the right factor is packed again
# The shortest block of a sum whose accumulators are spilled between blocks: of products, and of windows.
MIN_SUM_BLOCK = 256
MIN_WINDOW_BLOCK = 64
# The shortest such block where both factors are read in place from the L1; and the longest: more saves no more spills.
MIN_L1_BLOCK = 16
MAX_L1_BLOCK = 256
# The longest rows of such factors: the first tile of a block reads a strip of longer ones, which nothing prefetches.
MAX_L1_ROW_BYTES = 512
# A block that does not divide its sum has a multiple of this length, to be unrolled and copied in vectors.
SUM_BLOCK_STEP = 16
# Clocks of a line of results that is written in parts, in more rows at a time than there are streams to memory: it is
# fetched, and written back between the parts (Neoverse N1: 35 to 40; with whole lines, or in few rows, 10 to 15).
PARTIAL_LINE_CLOCKS = 36.0
EXPOSED = 0.1  # the fraction of the time to compute that such writes do not hide
# The longest sum that takes less time to compute than its results take to write. Beside a longer inner sum, spilling
# the accumulators of an outer one takes little time.
SHORT_SUM = 64

# ---------------------------------------------------------------- shares of caches: 1/x of them

# Of a core's cache:
PANEL_SHARE = 4  # a packed panel: another panel, streamed data and a second hardware thread of the core need room too
LONG_SHARE = 2  # a sum whose panel is larger is taken in blocks
SHORT_SHARE = 16  # a reduction with at most 1 / 16 of the iterations of another is negligible
WEIGHTS_SHARE = 2  # the packed weights of windows
BOX_SHARE = 16  # the box of an image
BLOCK_SHARE = 8  # the panel of a block of the sum, beside spilled accumulators and the box of all channels
SPILL_SHARE = 2  # spilled accumulators, of the cache that holds them: rows pass through it as well
L1_SHARE = 2  # of the L1: a block of both factors that are read in place
# Of the memory for panels:
WHOLE_SHARE = 2  # a factor that is packed whole
ACCUMULATOR_SHARE = 4  # the accumulators of all rows of a task

# ---------------------------------------------------------------- work that is worth it

MIN_WORK = 1 << 14  # iterations per thread below which threads gain nothing
BRIEF_WORK = 1 << 12  # iterations of a kernel without sums that takes about a microsecond
# Multiplications:
MIN_PRODUCTS = 1 << 16  # below these, tiles of several rows gain nothing
MIN_SHARED = 1 << 20  # below these, threads and packing cost more than they save
MIN_STREAMED = 1 << 18  # below these, threads cost more than they save in products whose factors are not packed
# Multiplications of a long task: each core gets several of these, so that others take over those of a core that is
# late. Shorter tasks stay with the core whose cache has their factors: 16 products of 256 take 10 % less on 16 cores.
LONG_TASK = 1 << 25
# The shortest sum of dot products over several loops, or of narrow integers, in vectors: the reduction at its end costs
# as much as some iterations.
MIN_DOT_VECTORS = 16
# The fraction of a register that the columns must fill.
MIN_LANES = 0.5

# ---------------------------------------------------------------- division among cores

HIGH_UTILISATION = 0.95  # of the cores: a higher one is not worth other costs
PARTS_PER_CORE = 4  # for load balancing
REPACKED_PARTS = 2  # the same where each part packs a factor again
MIN_PART_TILES = 16  # the fewest tiles of a part that repay packing a factor for it
MAX_ROW_PARTS = 8  # the most parts of the rows, each of which packs the right factor for one core
MAX_TASKS = 1024  # where each task has weights of its own, or fewer tasks have a low utilisation
MAX_PADDING = 16  # at most one tile in this many is padding, where padding makes wider blocks
MIN_TILES = 2  # of a part of the columns: blocks of the sum are outside a loop over tiles, which one tile lacks

# ---------------------------------------------------------------- windows

# Multiplications saved per run from which a tile that is transposed in registers is worth its compile time: 40 ms,
# repaid in 80 runs by half a millisecond on two cores each. Measured with a quarter of this, with it, and with five
# times as much: the first result of a network of 16 layers with empty caches takes 1.09, 0.75 and 0.66 s; a step of a
# ResNet-18 at batch 8 takes 222 ms with it and 395 ms with five times as much.
MIN_GAIN = 1 << 25
# The same for a tile of one vector, which is used where rows are so short that vectors over channels are SHORT_ROWS
# times as fast (8 images of 64 channels and 8 x 8 pixels: 0.28 ms, with rows 0.70 ms, with the largest tile 0.25 ms).
SMALL_GAIN = MIN_GAIN // 4
SHORT_ROWS = 2.5
# Iterations of the sum that cost as much as transposing and storing its result.
STORE_STEPS = 6
# The relative speed of vectors along rows of pixels, which are not aligned; and with a masked border (0.75 to 0.85
# without, 0.4 to 0.6 with one).
ROW_SPEED = 0.8
MASKED_ROW_SPEED = 0.55
# The additional cost of a strided row, in rows, for each unit of the stride above 1: a vector is shuffled out of as
# many loads as the stride (at strides of 2 to 4: 0.74, 0.60 and 0.53 of the speed, masked 0.60, 0.43 and 0.40).
STRIDE_COST = 0.35
MASKED_STRIDE_COST = 0.65
# With windows of a single pixel: the relative speed of vectors over channels, since no element is reused along a row;
# and the cost for vectors along rows of transposing one element of the other factor, in iterations along a row.
PIXEL_SPEED = 0.55
TRANSPOSE_STEPS = 256
# The longest window that is unrolled:
MAX_STEPS = 5
MAX_MASKED_STEPS = 8  # where a mask depends on it
# The products of a row that may be masked off where a tile is a part of it: their masks are evaluated at run time. With
# 36 % of them the gradient of an image of 28x33 under 7x7 at dilation 2 takes 1.25 times as long as from a padded box.
MAX_MASKED_SHARE = 0.25
MAX_WINDOW = 16  # inside phases
MIN_BOX_READS = 4  # reads of an element of masked windows that repay its copy into a box

# ---------------------------------------------------------------- vectors along memory

# The largest stride along a vector axis for which a vector takes a few shuffles and not an instruction per lane.
MAX_NEAR_STEP = 4
# The terms of a sum for each addition that follows it, up to which the results of neighbouring rows are one vector.
MAX_ROW_SHARE = 8
# The most phases of interleaved results, each computed in its own vectors.
MAX_PHASES = 8
# Loops that select among masked loads are unrolled up to this length each, and up to this many results together.
MAX_SELECTING = 8
MAX_SELECTED = 32
# The fewest rows for which several are read at a time, and the fewest parts of a row behind a short sum.
MIN_STREAMED_ROWS, MIN_STREAMED_PARTS = 64, 16
# The vectors of several rows that are taken at a time where reductions of a row wait for one another, in independent
# vectors: log_softmax of rows of 3 takes 0.31 ms in place of 0.68, of 16 0.33 in place of 0.40 (NEON).
OVERLAPPING_VECTORS = 2
# The relative speed of a sum over rows whose loads are masked (NEON: 1000 rows of 1000, 165 us, masked 222).
MASKED_SPEED = 0.75
# The cost of storing a part of a vector again right after the first store, in vector additions: the second store waits
# until the first has left the store buffer (140 clocks of a Neoverse N1).
OVERLAP_COST = 400.0
# The work of an element, in additions, up to which a tile may have twice as many vectors where these divide a loop.
MAX_WIDE_WORK = 8.0
# The fewest tiles of a row that ALIGN extends: the row gets one more tile, and the first and the last are masked.
MIN_ALIGNED = 4
# A square tile with a shorter side leaves most of each vector unused.
MIN_SQUARE = 4

# ---------------------------------------------------------------- sums by index

# The cost of one indexed read-modify-write, in vector comparisons:
COMPARISONS_PER_TERM = 32  # a term whose row is a loop of vectors, with the start of that loop
COMPARISONS_PER_ELEMENT = 2  # an element with its own output (1.7 ns, where a comparison takes 1 ns)
MASKED_ELEMENT = 2  # a masked element, in elements without a mask
# The fewest elements of a block of a row that cores share.
MIN_BLOCK = 4
# The fewest vectors of a row for which cores share the outputs: each core reads all terms and skips those of the
# others.
MIN_SHARED_VECTORS = 4
