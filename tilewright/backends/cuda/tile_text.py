"""The CUDA text of a product of staged tiles. In: a `TileRing`. Out: lines of text. `tile_renderer.py`
describes how the pieces work together."""

from __future__ import annotations

from tilewright.backends.cuda import dot_text, part_text
from tilewright.backends.cuda.cores import is_warp_group_core
from tilewright.backends.cuda.dot_plan import is_spread
from tilewright.backends.cuda.dot_text import PATTERN_BYTES, STEP_BYTES
from tilewright.backends.cuda.tile_plan import ALIGNMENT, TileRing
from tilewright.base.target import TileLayout

HELPERS = (
    f"{dot_text.SHARED_ADDRESS}\n"
    """\
// Element n of a tile whose lines of 128 bytes are swizzled in chunks of 16, as wgmma reads them.
template <int BYTES> __device__ inline int swizzle(int n) {
  return n ^ ((n / (128 / BYTES) & 7) * (16 / BYTES));
}
template <int BYTES> __device__ inline void copy_bytes(word to, const void* from, int there) {
  if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(there));
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(to), "l"(from), "n"(BYTES), "r"(there));
}
template <int BYTES, typename T> __device__ inline void copy_async(T* to, const T* from) {
  copy_bytes<BYTES>(shared_address(to), from, BYTES);
}
// Zeros where the elements are masked off.
template <int BYTES, typename T>
__device__ inline void copy_async(T* to, const T* from, long long position, bool valid) {
  copy_bytes<BYTES>(shared_address(to), from + (valid ? position : 0), valid ? BYTES : 0);
}
__device__ inline void copies_sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void copies_done() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}"""
)

GROUP_HELPERS = (
    f"{dot_text.DESCRIBE}\n"
    """\
__device__ inline void stores_done() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void products_start() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_sent() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
"""
    f"{dot_text.PRODUCTS_DONE}"
)


def groups(ring: TileRing) -> int:
    """Work-groups of a multiprocessor that the compiler leaves registers for: those of the sums, and of one step of
    them where it is added apart."""
    return 1 if ring.registers * (2 if ring.core.parts > 1 else 1) > 96 else 2


def register(ring: TileRing, row: int, column: int) -> int:
    """The register of a thread's element, from the part of its row and column that does not depend on the thread."""
    if is_warp_group_core(ring.core):
        return dot_text.register(row, column, ring.node.src[3])
    if _is_spread(ring):
        return (row // 32 * 4 + row % 4) * (ring.core.columns // 32) + column // 32
    return (row // 64 * 4 + row % 4) * (ring.core.columns // 16) + column // 64 * 4 + column % 4


def _is_spread(ring: TileRing) -> bool:
    return is_spread(ring.node.src[3])


def prelude(ring: TileRing) -> list[str]:
    if not is_warp_group_core(ring.core):
        return [HELPERS]
    exchange = dot_text.exchange_helpers(ring.node.src[3])
    argument = ring.node.arg
    are_summed_fast = (is_summed_fast(argument.left), is_summed_fast(argument.right))
    if ring.core.parts > 1:
        return [HELPERS, GROUP_HELPERS, *part_text.prelude(ring, are_summed_fast), *exchange]
    return [HELPERS, GROUP_HELPERS, dot_text.multiply_helper(ring.core, are_summed_fast), *exchange]


def is_summed_fast(layout: TileLayout) -> bool:
    return layout.summed_step == 1


def open_ring(ring: TileRing) -> list[str]:
    return [
        f"unsigned char* const ring = dynamic_shared + (-shared_address(dynamic_shared) & {ALIGNMENT - 1});",
        f"float acc[{ring.registers}];",
        "#pragma unroll",
        f"for (int n = 0; n < {ring.registers}; n++) acc[n] = 0.0f;",
        *(["settle(acc);"] if is_warp_group_core(ring.core) else []),
        *(part_text.open_parts(ring) if ring.core.parts > 1 else []),
    ]


def multiply_once(ring: TileRing) -> list[str]:
    """The product of one stage, which all threads have just filled."""
    if not is_warp_group_core(ring.core):
        return ["copies_sent();", "copies_done<0>();", "__syncthreads();", *_multiply_stage(ring, "ring")]
    return [
        "copies_sent();",
        "copies_done<0>();",
        "stores_done();",
        "__syncthreads();",
        *_multiply_stage(ring, "shared_address(ring)"),
        "end_step(shared_address(ring));" if ring.core.parts > 1 else "products_done<0>();",
        *_finish(ring),
    ]


def _finish(ring: TileRing) -> list[str]:
    """What all sums need after the last step."""
    return [*(part_text.finish(ring) if ring.core.parts > 1 else ["settle(acc);"]), *_gather(ring)]


def _gather(ring: TileRing) -> list[str]:
    # The stages are free where no warp multiplies any more.
    free = ["__syncthreads();"] if _is_spread(ring) else []
    return [*free, *dot_text.exchange_columns(ring.node.src[3], "(float*)ring", "thread")]


def multiply_steps(ring: TileRing) -> list[str]:
    """All steps, staged `stages - 1` ahead. A stage is filled again after every thread has seen its product done."""
    ahead, is_async = ring.stages - 1, is_warp_group_core(ring.core)
    place = f"ring + slot * {ring.stage_bytes}"
    address = f"shared_address({place})"
    multiply = _multiply_stage(ring, address if is_async else place)
    how = "Staged<true, false>(), " if ring.core.parts > 1 else ""
    stage = [f"if (step + {ahead} < {ring.step_count}) stage_step({how}step + {ahead}, next);", "copies_sent();"]
    return [
        "#pragma unroll 1",
        f"for (int step = 0; step < {ahead}; step++) {{",
        *([f"  if (step < {ring.step_count})"] if ahead > ring.min_steps else []),
        f"  stage_step({how}step, step);",
        "  copies_sent();",
        "}",
        f"int slot = 0, next = {ahead};",
        "#pragma unroll 1",
        f"for (int step = 0; step < {ring.step_count}; step++) {{",
        f"  copies_done<{ahead - 1}>();",
        *(["  products_done<0>();"] if is_async and ring.core.parts == 1 else []),
        *(["  stores_done();"] if is_async else []),
        "  __syncthreads();",
        # A product on tensor cores runs while the next step is staged.
        *(f"  {line}" for line in ([*multiply, *stage] if is_async else [*stage, *multiply])),
        *([f"  end_step({address});"] if ring.core.parts > 1 else []),
        f"  slot = slot == {ahead} ? 0 : slot + 1;",
        f"  next = next == {ahead} ? 0 : next + 1;",
        "}",
        *(["products_done<0>();"] if is_async and ring.core.parts == 1 else []),
        *(_finish(ring) if is_async else []),
    ]


def _multiply_stage(ring: TileRing, place: str) -> list[str]:
    if not is_warp_group_core(ring.core):
        return _multiply_threads(ring, place)
    if ring.core.parts > 1:
        return part_text.start_step(ring, place)
    left, right = ring.node.arg.left, ring.node.arg.right
    left_bytes = ring.bytes_of(ring.memories[0])
    # A warp group has 64 rows: 64 lines, or one block where lines run along the rows.
    group = 64 * left.own_step if is_summed_fast(left) else left.block_step
    itemsize = ring.core.operand.itemsize
    first = f"place + thread / 128 * {group * itemsize}" if ring.core.rows > 64 else "place"
    parts = ring.core.depth * itemsize // STEP_BYTES
    return [
        "{",
        f"  const word place = {place};",
        "  products_start();",
        "  #pragma unroll",
        f"  for (int part = 0; part < {parts}; part++)",
        f"    multiply(acc, {_described(left, first, itemsize)}, "
        f"{_described(right, f'place + {left_bytes}', itemsize)});",
        "  products_sent();",
        "}",
    ]


def _described(layout: TileLayout, place: str, itemsize: int) -> str:
    """Along the sum a step is 32 bytes of a line, or the lines of that many elements where they run across it."""
    if is_summed_fast(layout):
        return f"describe({place} + part * {STEP_BYTES}, 16, {PATTERN_BYTES})"
    lines = STEP_BYTES // itemsize
    step = lines * layout.summed_step * itemsize
    return f"describe({place} + part * {step}, {layout.block_step * itemsize}, {PATTERN_BYTES})"


def _multiply_threads(ring: TileRing, place: str) -> list[str]:
    """Each thread multiplies groups of 4 rows and 4 columns, of which it loads one vector per step; columns that are
    not adjacent are loaded one by one."""
    core, argument = ring.core, ring.node.arg
    across = 32 if _is_spread(ring) else 16
    down = core.threads // across
    rows, columns = core.rows // down, core.columns // across
    lines = [
        "{",
        f"  const float* const left = (const float*)({place});",
        f"  const float* const right = (const float*)({place} + {ring.bytes_of(ring.memories[0])});",
        "  #pragma unroll",
        f"  for (int k = 0; k < {argument.length}; k++) {{",
        f"    float a[{rows}], b[{columns}];",
    ]
    for name, tile, count, layout, thread in (
        ("a", "left", rows, argument.left, f"thread / {across}"),
        ("b", "right", columns, argument.right, f"thread % {across}"),
    ):
        line = f"{tile} + k * {layout.summed_step}"
        if name == "b" and _is_spread(ring):
            lines.append("    #pragma unroll")
            lines.append(f"    for (int j = 0; j < {count}; j++) b[j] = ({line})[j * {across} + {thread}];")
            continue
        for part in range(count // 4):
            where = f"{line} + {part * 4 * down} + {thread} * 4"
            lines.append(f"    *(float4*)({name} + {part * 4}) = *(const float4*)({where});")
    return [
        *lines,
        "    #pragma unroll",
        f"    for (int i = 0; i < {rows}; i++)",
        "      #pragma unroll",
        f"      for (int j = 0; j < {columns}; j++) acc[i * {columns} + j] += a[i] * b[j];",
        "  }",
        "}",
    ]
