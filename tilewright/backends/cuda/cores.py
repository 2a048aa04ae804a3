"""The tensor cores of NVIDIA cards. In: the architecture. Out: the `TensorCore` records that the kernel stage chooses
from, those to be preferred first. `dot.py` and `dot_mma.py` write the programs that use them."""

from __future__ import annotations

import re

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import replace
from tilewright.base.target import CoreAxis, TensorCore

# Rows and columns of a work-group's tile on wgmma: one or two warp groups of 64 rows.
_TILES = ((128, 256), (128, 192), (128, 128), (64, 128), (64, 64))
# Bytes of the summed axis that are fetched at a time, for wgmma and for mma.
_LINE_BYTES, _HALF_LINE_BYTES = 128, 64
# Steps of the sum that threads without tensor cores take at a time.
_THREAD_DEPTH = 16
_THREAD_TILES = ((128, 128), (64, 128), (64, 64))
# Operations of a multiprocessor per clock: of wgmma and mma on bytes (half as many on 2 bytes), and of float32.
_GROUP_OPERATIONS, _WARP_OPERATIONS, _THREAD_OPERATIONS = 8192, 4096, 256
# A float32 is the sum of three bfloat16; of the nine products of parts, six are not below its rounding.
_PARTS, _PART_PRODUCTS = 3, 6
_PART_TILES = ((128, 128), (64, 64))
_HALVES = (dtypes.bfloat16, dtypes.float16)
_BYTES = (dtypes.float8_e4m3, dtypes.float8_e5m2)


def cores_of(arch: str, allow_tf32: bool, allow_bf16x6: bool) -> tuple[TensorCore, ...]:
    """`allow_tf32` multiplies float32 with 10 bits of fraction, which the user must ask for; `allow_bf16x6` with all of
    them, as sums of parts."""
    version = int((re.findall(r"sm_(\d+)", arch) or ["0"])[0])
    halves = _HALVES if version >= 80 else ()
    small = _BYTES if version >= 89 else ()
    singles = (dtypes.float32,) if allow_tf32 and version >= 80 else ()
    operands = (*halves, *small, *singles)
    groups = [warp_group_core(operand, *tile) for operand in operands for tile in _TILES] if arch == "sm_90a" else []
    has_parts = arch == "sm_90a" and allow_bf16x6 and not singles
    parts = [part_core(*tile) for tile in _PART_TILES] if has_parts else []
    threads = [thread_core(*tile) for tile in _THREAD_TILES]
    return (*groups, *(warp_core(operand) for operand in operands), *parts, *threads)


def is_warp_group_core(core: TensorCore) -> bool:
    return core.name.startswith("wgmma")


def warp_group_core(operand: DType, rows: int, columns: int) -> TensorCore:
    """wgmma: 4 warps have 16 rows each; a thread has 8 neighbouring columns of every 32, in 2 rows 8 apart. The
    instruction leaves 2 of every 8 there: 4 threads exchange theirs (`dot_text.EXCHANGE`), so that what follows loads
    and stores whole vectors. Where rows of the result begin anywhere, a warp exchanges all its elements, so that it
    accesses 32 adjacent columns of one row (`dot_text.SPREAD`)."""
    groups = (CoreAxis(rows // 64, 64, 128),) if rows > 64 else ()
    return TensorCore(
        f"wgmma_{operand.name}_{rows}x{columns}",
        operand,
        dtypes.float32,
        rows,
        columns,
        _LINE_BYTES // operand.itemsize,
        (*groups, CoreAxis(4, 16, 32), CoreAxis(2, 8), CoreAxis(8, 1, 4)),
        (CoreAxis(columns // 32, 32), CoreAxis(4, 8, 1), CoreAxis(8, 1)),
        transposes=operand.itemsize == 2,
        operations_per_clock=_GROUP_OPERATIONS / operand.itemsize,
        unaligned_axes=(
            (*groups, CoreAxis(4, 16, 32), CoreAxis(16, 1)),
            (CoreAxis(columns // 32, 32), CoreAxis(32, 1, 1)),
        ),
        staged_line_bytes=_LINE_BYTES,
    )


def part_core(rows: int, columns: int) -> TensorCore:
    """float32 on wgmma, each operand as the sum of three bfloat16 (decision 44)."""
    halves = warp_group_core(dtypes.bfloat16, rows, columns)
    return replace(
        halves,
        name=f"wgmma_float32x{_PARTS}_{rows}x{columns}",
        operand=dtypes.float32,
        operations_per_clock=halves.operations_per_clock / _PART_PRODUCTS,
        is_bulk=False,
        part=dtypes.bfloat16,
        parts=_PARTS,
    )


def warp_core(operand: DType) -> TensorCore:
    """mma: 2 by 4 warps have 64 rows and 32 columns each, as 4 by 4 products of 16 rows and 8 columns. The instruction
    leaves 2 of every 8 columns in a thread. Which columns it is given is free: those of 4 instructions are 8 neighbours
    of each thread, which stores them as vectors; where rows of the result begin anywhere, each instruction has
    neighbours."""
    rows = (CoreAxis(2, 64, 128), CoreAxis(4, 16), CoreAxis(2, 8), CoreAxis(8, 1, 4))
    return TensorCore(
        f"mma_{operand.name}_128x128",
        operand,
        dtypes.float32,
        128,
        128,
        _HALF_LINE_BYTES // operand.itemsize,
        rows,
        (CoreAxis(4, 32, 32), CoreAxis(4, 8, 1), CoreAxis(8, 1)),
        transposes=True,
        operations_per_clock=_WARP_OPERATIONS / operand.itemsize,
        unaligned_axes=(rows, (CoreAxis(4, 32, 32), CoreAxis(4, 8), CoreAxis(4, 2, 1), CoreAxis(2, 1))),
    )


def thread_core(rows: int, columns: int) -> TensorCore:
    """float32 without tensor cores: 16 by 16 threads, each with groups of 4 rows and 4 columns; where rows of the
    result begin anywhere 8 by 32 threads, each with groups of 4 rows and every 32nd column."""
    return TensorCore(
        f"fma_float32_{rows}x{columns}",
        dtypes.float32,
        dtypes.float32,
        rows,
        columns,
        _THREAD_DEPTH,
        (*_repeats(rows), CoreAxis(16, 4, 16), CoreAxis(4, 1)),
        (*_repeats(columns), CoreAxis(16, 4, 1), CoreAxis(4, 1)),
        transposes=True,
        operations_per_clock=_THREAD_OPERATIONS,
        unaligned_axes=(
            (CoreAxis(rows // 32, 32), CoreAxis(8, 4, 32), CoreAxis(4, 1)),
            (CoreAxis(columns // 32, 32), CoreAxis(32, 1, 1)),
        ),
        is_bulk=False,
        staged_line_bytes=0,
    )


def _repeats(size: int) -> tuple[CoreAxis, ...]:
    return (CoreAxis(size // 64, 64),) if size > 64 else ()
