"""The CUDA text of a matrix product on wgmma and the bulk copy engine. In: a `DotPlan`. Out: lines of text.
`dot.py` describes how the pieces work together; this module holds how the instructions are spelt."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.backends.cuda.dot_plan import LINE_BYTES, SPREAD_LINE, WARP_ROWS, DotPlan, Side, is_spread
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import TensorCore
from tilewright.graph.affine import affine
from tilewright.graph.uop import UOp

OPERANDS: dict[DType, str] = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.float32: "tf32",
    dtypes.float8_e4m3: "e4m3",
    dtypes.float8_e5m2: "e5m2",
}
# An instruction takes 32 bytes of the summed axis; lines of a swizzled box repeat their pattern every 8.
STEP_BYTES = 32
PATTERN_BYTES = 8 * LINE_BYTES
ALIGNMENT = 1024
# Registers of a thread that fetches, and of one that multiplies: together no more than a multiprocessor has.
FETCHING_REGISTERS, MULTIPLYING_REGISTERS = 40, 232

SHARED_ADDRESS = """\
typedef unsigned int word;
typedef unsigned long long address;
extern __shared__ unsigned char dynamic_shared[];

__device__ inline word shared_address(const void* place) {
  address found; asm("cvta.to.shared.u64 %0, %1;" : "=l"(found) : "l"(place)); return (word)found;
}"""

DESCRIBE = """\
// A tile in shared memory as wgmma reads it: lines of 128 bytes, swizzled.
__device__ inline address describe(word place, word leading, word stride) {
  return (address)((place & 0x3ffff) >> 4) | (address)(leading >> 4) << 16 | (address)(stride >> 4) << 32 | 1ull << 62;
}"""

# An asynchronous product has written its registers only once it has been waited for, of which a compiler knows nothing:
# without `settle` it may read them before.
PRODUCTS_DONE = """\
template <int N> __device__ inline void products_done() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
// The compiler takes the registers for written here, where products into them are done.
template <int N> __device__ inline void settle(float (&acc)[N]) {
  #pragma unroll
  for (int n = 0; n < N; n++) asm volatile("" : "+f"(acc[n]) :: "memory");
}"""

# Synchronisation between the threads that fetch and those that multiply.
BARRIER_HELPERS = """\
struct __align__(64) TensorMap { address words[16]; };
__device__ inline void barrier_start(word barrier, word count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count));
}
__device__ inline void barriers_started() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_expect(word barrier, word bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(word barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ inline void barrier_wait(word barrier, word parity) {
  asm volatile("{\\n.reg .pred passed;\\nagain:\\n"
    "mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\\n@passed bra done;\\nbra again;\\ndone:\\n}\\n"
    :: "r"(barrier), "r"(parity) : "memory");
}"""


def prelude(left: Side, right: Side, plan: DotPlan) -> list[str]:
    ranks = sorted({len(side.map.sizes) for side in (left, right)})
    exchange = exchange_helpers(plan.node.src[5])
    multiply = multiply_helper(plan.core, (left.is_summed_fast, right.is_summed_fast))
    fetches = [fetch_helper(rank) for rank in ranks]
    return [SHARED_ADDRESS, DESCRIBE, BARRIER_HELPERS, PRODUCTS_DONE, *fetches, multiply, *exchange]


# The instruction leaves a thread 2 columns of each of 4 groups of 8; of 4 threads, each gets one group.
EXCHANGE = """\
__device__ inline void exchange(float& low, float& high, bool is_high, int distance) {
  const float received = __shfl_xor_sync(0xffffffffu, is_high ? low : high, distance);
  if (is_high) low = received; else high = received;
}
template <int N> __device__ inline void gather_columns(float (&acc)[N], int thread) {
  const bool is_odd = thread & 1, is_late = thread & 2;
  #pragma unroll
  for (int group = 0; group < N; group += 16) {
    #pragma unroll
    for (int n = group; n < group + 4; n++) {
      exchange(acc[n], acc[n + 4], is_odd, 1);
      exchange(acc[n + 8], acc[n + 12], is_odd, 1);
      exchange(acc[n], acc[n + 8], is_late, 2);
      exchange(acc[n + 4], acc[n + 12], is_late, 2);
    }
  }
}"""


# A warp passes its rows through local memory, 32 columns at a time: a thread then has one column of every 32, in all
# rows.
SPREAD_ALIGNMENT = 128
SPREAD = f"""\
template <int N> __device__ inline void spread_columns(float (&acc)[N], float* memory, int thread) {{
  const int lane = thread % 32;
  float* const own = memory + thread / 32 * {WARP_ROWS * SPREAD_LINE};
  #pragma unroll
  for (int group = 0; group < N; group += 16) {{
    #pragma unroll
    for (int n = 0; n < 16; n += 2) {{
      float* const to = own + (lane / 4 + n % 4 * 4) * {SPREAD_LINE} + n / 4 * 8 + lane % 4 * 2;
      *(float2*)to = make_float2(acc[group + n], acc[group + n + 1]);
    }}
    __syncwarp();
    #pragma unroll
    for (int n = 0; n < 16; n++) acc[group + n] = own[n * {SPREAD_LINE} + lane];
    __syncwarp();
  }}
}}"""


def exchange_helpers(column: UOp) -> list[str]:
    return [SPREAD] if is_spread(column) else [EXCHANGE] if is_exchanged(column) else []


def exchange_columns(column: UOp, memory: str, thread: str) -> list[str]:
    """Gives threads the columns that what follows expects."""
    if is_spread(column):
        return [f"spread_columns(acc, {memory}, {thread});"]
    return [f"gather_columns(acc, {thread});"] if is_exchanged(column) else []


def register(row: int, column: int, number: UOp) -> int:
    """The register of a thread's element, from the part of its row and column that does not depend on the thread, and
    the number of the column."""
    if is_spread(number):
        return column // 32 * 16 + row
    group = column // 32 * 16 + column % 8 // 2 * 4 if is_exchanged(number) else column // 8 * 4
    return group + row // 8 * 2 + column % 2


def is_exchanged(column: UOp) -> bool:
    """Whether threads hold 8 adjacent columns, after an exchange, and not the 2 that the instruction leaves."""
    terms = affine(column).terms.items()
    return any(step == 1 and axis.arg.kind.is_tile and int(axis.src[0].arg) > 2 for axis, step in terms)


def fetch_helper(rank: int) -> str:
    names = [f"c{number}" for number in range(rank)]
    places = ", ".join(f"%{number + 2}" for number in range(rank))
    given = ", ".join(f'"r"({name})' for name in names)
    arguments = ", ".join(f"int {name}" for name in names)
    instruction = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return (
        f"__device__ inline void fetch(word to, const TensorMap* map, word barrier, {arguments}) {{\n"
        f'  asm volatile("{instruction} [%0], [%1, {{{places}}}], [%{rank + 2}];"\n'
        f'    :: "r"(to), "l"(map), {given}, "r"(barrier) : "memory");\n}}'
    )


def multiply_helper(core: TensorCore, are_summed_fast: tuple[bool, bool]) -> str:
    """A function that adds the product of two tiles to the accumulators of a warp group. The instruction for
    operands of 2 bytes states whether the summed axis is the contiguous one. Products of parts may start from zero."""
    count = core.rows * core.columns // core.threads
    kind, depth = OPERANDS[core.multiplied], STEP_BYTES // core.multiplied.itemsize
    registers = ", ".join(f"%{number}" for number in range(count))
    orders = "".join(f", {int(not is_fast)}" for is_fast in are_summed_fast) if core.transposes else ""
    results = ", ".join(f'"+f"(acc[{number}])' for number in range(count))
    instruction = f"wgmma.mma_async.sync.aligned.m64n{core.columns}k{depth}.f32.{kind}.{kind}"
    parameter, given, asks = "", "", "setp.eq.u32 add, 0, 0"
    if core.parts > 1:
        parameter, given, asks = ", int add", ', "r"(add)', f"setp.ne.b32 add, %{count + 2}, 0"
    return (
        f"__device__ inline void multiply(float (&acc)[{count}], address left, address right{parameter}) {{\n"
        f'  asm volatile("{{\\n.reg .pred add;\\n{asks};\\n"\n'
        f'    "{instruction} {{{registers}}}, "\n'
        f'    "%{count}, %{count + 1}, add, 1, 1{orders};\\n}}\\n"\n'
        f'    : {results}\n    : "l"(left), "l"(right){given});\n}}'
    )


def open_kernel(plan: DotPlan) -> list[str]:
    return [
        f"const word ring = (shared_address(dynamic_shared) + {ALIGNMENT - 1}) & ~{ALIGNMENT - 1}u;",
        f"const word full = ring + {plan.stages * plan.stage_bytes}, empty = full + {8 * plan.stages};",
        "if (threadIdx.x == 0) {",
        f"  for (int stage = 0; stage < {plan.stages}; stage++) {{",
        f"    barrier_start(full + 8 * stage, 1); barrier_start(empty + 8 * stage, {plan.multipliers});",
        "  }",
        "  barriers_started();",
        "}",
        "__syncthreads();",
        "int stage = 0; word phase = 0;",
        *([f"float* const spread = (float*)({_pointer(plan)});"] if plan.is_spread else []),
    ]


def _pointer(plan: DotPlan) -> str:
    """Where the memory begins through which columns are spread: after the stages and their barriers."""
    offset = plan.stages * plan.stage_bytes + -(-16 * plan.stages // SPREAD_ALIGNMENT) * SPREAD_ALIGNMENT
    return f"dynamic_shared + (ring - shared_address(dynamic_shared)) + {offset}"


def _registers(plan: DotPlan, how: str, count: int) -> list[str]:
    """Moves registers from the threads that fetch to those that multiply, where several groups multiply."""
    return [] if plan.multipliers == 1 else [f'asm volatile("setmaxnreg.{how}.sync.aligned.u32 {count};");']


def fetching_group(plan: DotPlan, tiles: str, decode: list[str], batch: Callable[[Side], str]) -> list[str]:
    first = plan.multipliers * 128
    inside = [
        *decode,
        f"for (int step = 0; step < {plan.steps}; step++) {{",
        "  barrier_wait(empty + 8 * stage, phase ^ 1);",
        f"  const word place = ring + stage * {plan.stage_bytes}, ready = full + 8 * stage;",
        f"  barrier_expect(ready, {plan.stage_bytes});",
        *_fetches(plan.left, "map_left", "place", "row_tile", plan, batch),
        *_fetches(plan.right, "map_right", f"place + {plan.left.bytes}", "column_tile", plan, batch),
        f"  if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}",
        "}",
    ]
    return [
        f"if (threadIdx.x >= {first}) {{  // the warp group that fetches",
        *(f"  {line}" for line in _registers(plan, "dec", FETCHING_REGISTERS)),
        f"  if (threadIdx.x == {first}) {{",
        f"    for (int tile = blockIdx.x; tile < {tiles}; tile += gridDim.x) {{",
        *(f"      {line}" for line in inside),
        "    }",
        "  }",
        "  return;",
        "}",
    ]


def _fetches(side: Side, name: str, place: str, tile: str, plan: DotPlan, batch: Callable[[Side], str]) -> list[str]:
    depth, around = plan.core.depth, batch(side)
    if side.is_summed_fast:
        return [f"  fetch({place}, &{name}, ready, step * {depth}, {tile} * {side.tile}{around});"]
    wide = side.map.box[0]
    return [
        f"  fetch({place} + {box * wide * depth * side.map.itemsize}, &{name}, ready, "
        f"{tile} * {side.tile} + {box * wide}, step * {depth}{around});"
        for box in range(side.tile // wide)
    ]


def open_multiplying_groups(plan: DotPlan, tiles: str) -> list[str]:
    return [
        *_registers(plan, "inc", MULTIPLYING_REGISTERS),
        f"float acc[{plan.registers}];",
        f"for (int tile = blockIdx.x; tile < {tiles}; tile += gridDim.x) {{",
    ]


def multiply(plan: DotPlan) -> list[str]:
    """One stage is multiplied while the stage before it is waited for and handed back."""
    group = "threadIdx.x / 128"
    left = _described(plan.left, f"place + ({group}) * {64 * LINE_BYTES}", plan)
    right = _described(plan.right, f"place + {plan.left.bytes}", plan)
    return [
        "#pragma unroll",
        f"for (int n = 0; n < {plan.registers}; n++) acc[n] = 0.0f;",
        "settle(acc);",
        "int previous = -1;",
        f"for (int step = 0; step < {plan.steps}; step++) {{",
        "  barrier_wait(full + 8 * stage, phase);",
        f"  const word place = ring + stage * {plan.stage_bytes};",
        '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "  #pragma unroll",
        f"  for (int part = 0; part < {LINE_BYTES // STEP_BYTES}; part++) multiply(acc, {left}, {right});",
        '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
        "  products_done<1>();",
        "  if (previous >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * previous);",
        "  previous = stage;",
        f"  if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}",
        "}",
        "products_done<0>();",
        "settle(acc);",
        "if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * previous);",
        *exchange_columns(plan.node.src[5], "spread", "threadIdx.x"),
    ]


def _described(side: Side, place: str, plan: DotPlan) -> str:
    """Along the summed axis a step is 32 bytes of a line, or 16 lines where the lines run along the other axis."""
    if side.is_summed_fast:
        return f"describe({place} + part * {STEP_BYTES}, 16, {PATTERN_BYTES})"
    lines = STEP_BYTES // plan.core.operand.itemsize
    return f"describe({place} + part * {lines * LINE_BYTES}, {plan.core.depth * LINE_BYTES}, {PATTERN_BYTES})"
