"""What a stage may know of a device: one frozen record, made by the backend, read by kernel and codegen.
Stages decide by these facts and never by a device's name."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple, record, replace

ALL_DTYPES = frozenset(dtypes.all)
# Ops that every instruction set has; others are decomposed unless the target names them.
BASIC_OPS = frozenset(
    ("NEG", "SQRT", "TRUNC", "ROUND", "ADD", "SUB", "MUL", "FDIV", "MAX", "MIN", "AND", "OR", "XOR", "CMPLT", "CMPEQ")
    + ("CMPNE", "WHERE", "CAST", "BITCAST")
)
# Dtypes that codegen emulates where a target has no arithmetic for them.
SMALL_FLOATS = frozenset({dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2})
WIDE_INTEGERS = frozenset({dtypes.int64, dtypes.uint64})
# Atomic updates of these give the same result in any order; those of floats would round differently in each order.
ATOMIC_DTYPES = frozenset({dtypes.int32, dtypes.uint32}) | WIDE_INTEGERS
# Floats that may be added atomically; ALLOW_FLOAT_ATOMICS says whether sums by index do so.
FLOAT_ATOMIC_DTYPES = frozenset({dtypes.float32})


# What a kernel does with floats below the least normal number: keeps them, takes them as zero in sums of products, or
# everywhere.
KEEP_DENORMALS, FLUSH_CONTRACTIONS, FLUSH_EVERYWHERE = range(3)


class TileLayout(NamedTuple):
    """The layout of an operand's tile in local memory. Rows (or columns) are in blocks of `block`, at a stride of
    `block_step`; inside a block, rows have the stride `own_step` and the sum has `summed_step`. Where `summed_block` is
    not 0, steps of the sum are in blocks of that many, at a stride of `summed_block_step`."""

    block: int
    block_step: int
    own_step: int
    summed_step: int
    summed_block: int = 0
    summed_block_step: int = 0

    def position(self, own: Any, summed: Any) -> Any:
        """The index of an element; of numbers, arrays or nodes."""
        start = own // self.block * self.block_step
        if self.summed_block:
            start = start + summed // self.summed_block * self.summed_block_step
            summed = summed % self.summed_block
        return own % self.block * self.own_step + summed * self.summed_step + start

    def size(self, own: int, summed: int) -> int:
        """Elements of a tile."""
        return int(self.position(own - 1, summed - 1)) + 1


# Padding, in elements, after each line of a tile that is read along its own axis, so that lines begin in different
# banks.
_LINE_PADDING = 4


@record
class CoreAxis:
    """One digit of a tile's row or column number: `step` times an index below `size`. The index is a digit of the
    thread number with weight `thread`; where `thread` is 0, it counts the elements that one thread holds."""

    size: int
    step: int
    thread: int = 0


@record
class TensorCore:
    """A way to multiply matrices that the threads of a work-group share. It makes tiles of `rows` by `columns`; a
    thread holds the elements whose row and column the axes give. `depth` steps of the summed axis are multiplied at a
    time. An operand has that axis contiguous in memory or, where `transposes`, its rows or columns. `staged_line_bytes`
    says that it multiplies tiles in local memory: in lines of that many bytes along the axis that is contiguous; 0 for
    lines along the operand's own axis, as long as the tile.

    Where there are `parts`, an operand is staged as that many numbers of dtype `part` whose sum it is, and the products
    of parts are added: all but those below the rounding of the accumulator. A step of the sum starts from zero, and is
    added to the accumulators in registers: tensor cores truncate what they add."""

    name: str
    operand: DType
    accumulator: DType
    rows: int
    columns: int
    depth: int
    row_axes: tuple[CoreAxis, ...]
    column_axes: tuple[CoreAxis, ...]
    transposes: bool
    operations_per_clock: float = 256.0  # additions and multiplications of a multiprocessor
    # As `row_axes` and `column_axes`, for results whose rows begin anywhere: adjacent threads have adjacent columns.
    unaligned_axes: tuple[tuple[CoreAxis, ...], tuple[CoreAxis, ...]] | None = None
    is_bulk: bool = True  # multiplies operands that the copy engine fetches from memory
    staged_line_bytes: int | None = None
    part: DType | None = None
    parts: int = 1

    @property
    def multiplied(self) -> DType:
        """The dtype of operands in local memory."""
        return self.part or self.operand

    @property
    def unaligned(self) -> TensorCore:
        """The core for results whose rows begin anywhere."""
        if self.unaligned_axes is None:
            return self
        rows, columns = self.unaligned_axes
        return replace(self, row_axes=rows, column_axes=columns, unaligned_axes=None)

    @property
    def multiplies_by_threads(self) -> bool:
        """Whether each thread multiplies elements by itself: any number of steps, of lines along an operand's own
        axis."""
        return self.staged_line_bytes == 0

    @property
    def wants_vectors(self) -> bool:
        """Whether products are so fast that it pays to copy operands into an order in which they can be staged as
        vectors."""
        return self.transposes and (self.is_bulk or self.parts > 1)

    @property
    def threads(self) -> int:
        return math.prod(axis.size for axis in self.thread_axes)

    def thread_number(self, part: CoreAxis) -> int:
        """The position of an axis among those that number threads."""
        return [axis.thread for axis in self.thread_axes].index(part.thread)

    def layout(self, size: int, is_summed_fast: bool) -> TileLayout:
        """The layout of a tile of `size` rows or columns in local memory, contiguous along the sum where
        `is_summed_fast`."""
        if not self.staged_line_bytes:
            return TileLayout(size, 0, 1, size + _LINE_PADDING)
        line = self.staged_line_bytes // self.multiplied.itemsize
        if is_summed_fast or not self.transposes:
            return TileLayout(size, 0, line, 1)
        return TileLayout(line, line * self.depth, 1, line)

    @property
    def thread_axes(self) -> list[CoreAxis]:
        """The axes that number threads, the slowest first."""
        return sorted((a for a in self.row_axes + self.column_axes if a.thread), key=lambda a: -a.thread)


@record
class DotProduct:
    """An instruction that adds `terms` products of neighbours to each lane of a vector of sums; the sums wrap. Where it
    is a sequence of instructions, `count` is their number; `max_left` is the greatest left operand that it is exact
    for, where that is less than the dtype's."""

    name: str
    left: DType
    right: DType
    total: DType
    terms: int
    count: int = 1
    max_left: int | None = None

    @property
    def effort(self) -> float:
        """Instructions for each term."""
        return self.count / self.terms


@record
class Target:
    """Facts of one device kind. `native` are the dtypes whose arithmetic the renderer can write directly. A target
    without 64-bit integers has no float64 either; its renderer moves pairs of words (codegen/emulation/)."""

    name: str
    arch: str = ""
    toolchain: str = ""
    vector_bytes: int = 16
    vector_registers: int = 16
    cores: int = 1
    clock_hz: float = 2e9  # clocks of a core in a second
    has_threads: bool = False
    has_local: bool = False
    max_local_bytes: int = 0
    max_group_size: int = 1
    # Most work-groups in a launch, and most threads in a work-group, along x, y and z.
    max_grid: tuple[int, int, int] = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)
    max_group: tuple[int, int, int] = (1024, 1024, 64)
    max_buffers: int = (1 << 31) - 1  # that a kernel may be given
    # Equal kernels that one launch may run, each on buffers of its own; 1 where the renderer does not write that.
    max_sections: int = 1
    # In bytes: the alignment of a kernel's buffer inside its memory. Some OpenCL drivers need 512.
    start_alignment: int = 512
    warp_size: int = 1
    threads_per_core: int = 2048  # that a core with work-groups runs at a time; this many saturate it
    # The memory hierarchy. A CPU's is read from the host (backends/cpu/host/caches.py), and CPU_FACTS overrides it.
    line_bytes: int = 64  # of a cache line
    page_bytes: int = 4096
    l1_bytes: int = 32 << 10  # of the first-level data cache
    l1_ways: int = 8
    core_cache_bytes: int = 1 << 19  # of the largest cache that a core has to itself
    cache_bytes: int = 1 << 20  # of the last-level cache, which the cores share
    core_bytes_per_clock: float = 32.0  # from that cache to one core, while all of them read
    memory_bytes_per_clock: float = 16.0  # from memory to one core, while all of them read
    line_clocks: float = 70.0  # until a line arrives that was not prefetched, with a page that the TLB does not hold
    independent_vectors: int = 4  # independent loads, or additions to accumulators, that hide the latency of one
    products_per_clock: float = 2.0  # vectors, or warps, that a core multiplies and adds
    launch_clocks: float = 4500.0  # until a kernel that waits for another begins
    tlb_entries: int = 64  # pages whose translation the first-level TLB of a core holds
    prefetch_streams: int = 16  # rows at a large stride that the processor prefetches while they are read in parallel
    # The distance in bytes at which a kernel prefetches a stream; 0 where the hardware prefetcher suffices.
    prefetch_bytes: int = 4096
    prefetched_streams: int = 64  # the most streams of a loop for which such prefetches gain
    has_lane_operands: bool = False  # whether a product takes one lane of a vector for all lanes of the other
    masked_itemsizes: tuple[int, ...] = ()  # element sizes for which there are masked vector loads and stores
    read_streams: int = 8  # rows at a large stride that a core reads at a time
    memory_streams: int = 4  # of them, those that reach the full bandwidth of memory
    native: frozenset[DType] = ALL_DTYPES
    # Small floats without arithmetic of their own that the renderer converts to and from float32 itself.
    native_casts: frozenset[DType] = frozenset()
    # Ops (by name) that the renderer writes itself; every other one is decomposed by codegen.
    native_ops: frozenset[str] = frozenset()
    atomics: frozenset[DType] = frozenset()  # dtypes of atomic updates in memory
    float_atomics: frozenset[DType] = frozenset()  # dtypes of atomic additions that round, so their order matters
    tensor_cores: tuple[TensorCore, ...] = ()  # those to be preferred first
    dot_products: tuple[DotProduct, ...] = ()  # those to be preferred first
    is_reference: bool = False  # the emulator, which other devices are checked against
    flush_denormals: int = KEEP_DENORMALS  # whether kernels flush denormals: where these slow arithmetic down
    checks_ranges: bool = False  # whether CHECK is always done: it has no measurable cost

    def __hash__(self) -> int:
        """Of few fields: each table of kernels hashes the target of a kernel, which has fifty."""
        return hash((self.name, self.arch, self.cores))

    def computes(self, dtype: DType) -> bool:
        """Whether kernels may compute with the dtype: by the renderer's own means, or by those of codegen."""
        return dtype in self.native or dtype in SMALL_FLOATS or dtype in WIDE_INTEGERS

    def updates(self, op: str, dtype: DType) -> bool:
        """Whether a STORE may combine a value with what is in memory by the op of this name."""
        return dtype in self.atomics or (op == "ADD" and dtype in self.float_atomics)

    def held_in(self, dtype: DType) -> DType:
        """The dtype that values have in registers: a small float that the target lacks is computed in float32."""
        return dtypes.float32 if dtype in SMALL_FLOATS and dtype not in self.native else dtype

    def l1_lines(self, step_bytes: int) -> int:
        """How many of the lines at a stride of `step_bytes` the first-level cache can hold. A stride of a large power
        of two uses few of its sets."""
        return self.l1_ways * (self.l1_way_bytes // math.gcd(self.l1_way_bytes, max(self.line_bytes, step_bytes)))

    @property
    def l1_way_bytes(self) -> int:
        """Lines this many bytes apart share a set of the first-level cache."""
        return max(self.line_bytes, self.l1_bytes // self.l1_ways)

    def transposed_lanes(self, itemsize: int, rows: int, step_bytes: int) -> int:
        """How many elements of each of `rows` rows, `step_bytes` apart, are transposed in registers at a time: a line
        of each, or what half of the registers hold, where the L1 keeps the lines until they are used up."""
        line, lanes = max(1, self.line_bytes // itemsize), max(1, self.vector_bytes // itemsize)
        held = max(1, self.vector_registers // 2 // max(1, rows)) * lanes
        return held if held < line and self.l1_lines(step_bytes) >= 2 * rows else line

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bytes // max(dtype.itemsize, 1))
