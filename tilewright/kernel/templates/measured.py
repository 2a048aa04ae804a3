"""Measured facts of CPU cores that estimates and sizes use; the facts of one machine are in `base/target.py`. In:
nothing. Out: numbers, each with what it means and where it comes from. They were measured on two cores with AVX-512 and
two with NEON unless it says otherwise; docs/measurements/cpu.md has the rows."""

from __future__ import annotations

# ---------------------------------------------------------------- tiles of accumulators

# Costs of one iteration of a sum in addition to the multiplications of its tile, in vector multiplications: of the loop
# itself, of each broadcast element, and of each loaded vector.
LOOP_COST = 4.0
BROADCAST_COST = 0.3
LOAD_COST = 0.5
# The same for windows: of each vector of channels, loaded from L2; of each pixel, from L1; of a second tiled axis, at a
# larger stride; and of each product that is masked in some tiles of a row.
PANEL_COST = 2.0
PIXEL_COST = 0.45
SECOND_COST = 0.07
EDGE_COST = 4.0
# Independent accumulators that hide the latency of a multiply-add; and for windows, whose panel comes from L2.
MIN_SUMS = 8
MIN_WINDOW_SUMS = 10
# The most vectors of a tile, and its fewest rows: a tile with fewer rows costs more in loads than it saves in conflict
# misses.
MAX_VECTORS = 4
MIN_TILE_ROWS = 4
# The most rows of a tile that is not of a matrix product: they divide a loop.
MAX_TILE_ROWS = 12
# Registers of a tile that hold operands, or the offset of a factor where a dot-product instruction needs one; of a tile
# of windows a share of all registers.
OPERAND_REGISTERS = 4
OPERAND_SHARE = 4
# Unroll factors of a sum, preferred first.
STEPS = (2, 3)
# The same cost of a vector of accumulators that is loaded and stored again after a block of the sum, and of adding one
# half of it to the other, until it is a scalar.
SPILLED_COST = 9.0
# The same cost of a vector of results that is stored under a mask, on a processor without masked vectors; and of a
# vector that is packed under one.
MASKED_STORE_COST = 12.0
MASKED_PACKING_COST = 3.0
REDUCTION_COST = 2.0

# ---------------------------------------------------------------- packing

# Fewer rows than half of these reuse an element of the right factor too rarely to pay for packing it; from these on it
# is packed; between the two, where that is estimated to take less time.
MIN_PACKED_ROWS = 32
# The cost of packing a vector of columns, in multiplications of it by a row; of packing rows, where the last tile is
# masked; of copying a vector of rows, and of one whose length is not a power of two: it is copied in parts.
PACKING_COST = 16.0
PACKED_ROWS_COST = 0.3
COPY_COST = 0.5
PARTS_COPY_COST = 1.0
# Clocks of a line that is read from a core's cache again where nothing prefetches it: a few lines of each row of a
# matrix.
NEAR_LINE_CLOCKS = 12.0
# The cost of packing a vector of columns of stride 1 from a core's cache.
COPIED_COST = 3.0
# The cost of reading all panels of the right factor once more, for a block of rows, in multiplications of a tile; and
# the fewest rows of a part for which the right factor is packed again.
BLOCK_COST = 0.3
MIN_CACHED_ROWS = 256
# The shortest block of a sum whose accumulators are spilled between blocks: of products, and of windows.
MIN_SUM_BLOCK = 256
MIN_WINDOW_BLOCK = 64
# The shortest such block where both factors are read in place from the L1; and the longest: more saves no more spills.
MIN_L1_BLOCK = 32
MAX_L1_BLOCK = 256
# A block that does not divide its sum has a multiple of this length, to be unrolled and copied in vectors.
SUM_BLOCK_STEP = 16
# The longest sum whose results take longer to be written than to be added up; a longer one leaves an outer sum time to
# be spilled.
SHORT_SUM = 64

# ---------------------------------------------------------------- shares of caches: 1/x of them

# Of a core's cache, for a packed panel: another panel, streamed data and a second hardware thread of the core need room
# too.
PANEL_SHARE = 4
# Of a core's cache: a sum whose panel is larger is taken in blocks.
LONG_SHARE = 2
# Of the cache that holds them, for spilled accumulators: rows pass through it as well.
SPILL_SHARE = 2
# Of the memory for panels: for a factor that is packed whole, and for the accumulators of all rows of a task.
WHOLE_SHARE = 2
ACCUMULATOR_SHARE = 4
# Of a core's cache: for the packed weights of windows; for the box of an image; and for the panel of a block of the
# sum, which shares the cache with spilled accumulators and the box of all channels.
WEIGHTS_SHARE = 2
BOX_SHARE = 16
BLOCK_SHARE = 8

# ---------------------------------------------------------------- work that is worth it

# Iterations per thread below which threads gain nothing.
MIN_WORK = 1 << 14
# Iterations of a kernel without sums that takes about a microsecond.
BRIEF_WORK = 1 << 12
# Multiplications below which tiles of several rows gain nothing; below which threads and packing cost more than they
# save; and the same of products of few rows, which are not packed.
MIN_PRODUCTS = 1 << 16
MIN_SHARED = 1 << 20
MIN_STREAMED = 1 << 18
# Multiplications of a long task: each core gets several of these, so that others take over those of a core that is
# late. Shorter tasks stay with the core whose cache has their factors: 16 products of 256 take 10 % less on 16 cores.
LONG_TASK = 1 << 25
# The shortest sum of dot products over several loops, or of narrow integers, in vectors: the reduction at its end costs
# as much as some iterations.
MIN_DOT_VECTORS = 16
# The fraction of a register that the columns must fill.
MIN_LANES = 0.5

# ---------------------------------------------------------------- division among cores

# Utilisation of the cores above which more is not worth other costs.
HIGH_UTILISATION = 0.95
# Parts per core, for load balancing; and the same where each part packs a factor again.
PARTS_PER_CORE = 4
REPACKED_PARTS = 2
# The tiles of a part beside which what it packs is little.
MIN_PART_TILES = 16
# The most parts of the rows that each pack the right factor for one core.
MAX_ROW_PARTS = 8
# The most tasks: as many are made where each task has weights of its own, or where fewer have a low utilisation.
MAX_TASKS = 1024
# At most one tile in this many is padding, where padding makes wider blocks.
MAX_PADDING = 16
# The fewest tiles in a part of the columns: blocks of the sum are placed outside the loop over tiles, which one tile
# does not have.
MIN_TILES = 2

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
# The longest window that is unrolled: in general, where a mask depends on it, and inside phases.
MAX_STEPS = 5
MAX_MASKED_STEPS = 8
MAX_WINDOW = 16

# Reads of an element of masked windows that repay its copy into a box.
MIN_BOX_READS = 4

# ---------------------------------------------------------------- vectors along memory

# The largest stride along a vector axis for which a vector takes a few shuffles and not an instruction per lane.
MAX_NEAR_STEP = 4
# The most phases of interleaved results, each computed in its own vectors.
MAX_PHASES = 8
# Loops that select among masked loads are unrolled up to this length each, and up to this many results together.
MAX_SELECTING = 8
MAX_SELECTED = 32
# The fewest rows for which several are read at a time.
MIN_STREAMED_ROWS = 64
# The relative speed of a sum over rows whose loads are masked (NEON: 1000 rows of 1000, 165 us, masked 222).
MASKED_SPEED = 0.75
# What it costs to store a part of a vector again just after it was stored, in additions of a vector: the second store
# waits until the first has left its buffer (140 clocks of a Neoverse N1).
OVERLAP_COST = 400.0
# The fewest tiles of a row that begins at a line of the cache: one tile more is stored, in part under a mask.
MIN_ALIGNED = 4
# A square tile with a shorter side leaves most of each vector unused.
MIN_SQUARE = 4

# ---------------------------------------------------------------- sums by index

# The cost of one indexed read-modify-write, in vector comparisons: of a term whose row is a loop of vectors, including
# the start of that loop; of an element with its own output (1.7 ns, where a comparison takes 1 ns); and of a masked
# one.
COMPARISONS_PER_TERM = 32
COMPARISONS_PER_ELEMENT = 2
MASKED_ELEMENT = 2
# The fewest elements of a block of a row that cores share.
MIN_BLOCK = 4
# The fewest vectors of a row for which cores share the outputs: each core reads all terms and skips those of the
# others.
MIN_SHARED_VECTORS = 4
