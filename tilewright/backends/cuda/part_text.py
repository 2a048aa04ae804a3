"""The CUDA text of products of float32 on tensor cores. In: a `TileRing` whose core multiplies parts. Out: lines of
text. Stands beside `tile_text.py`, which writes the products of whole operands.

A number is staged as three bfloat16 whose sum it is, each in a plane of its own. The six products of planes that are
not below the rounding of float32 are added on the tensor cores, which truncate: those of the first parts 16 at a time,
from zero; the others, which are 2^8 times smaller, for a step of the sum. Both are added in registers, rounded: to the
sum of a step, and that to all sums.

A part of an infinity times a part that is zero is NaN, and a sum of parts may overflow where the sum of numbers does
not. No sum with such a number is finite, so one that is not finite is computed once more, with FMA on float32."""

from __future__ import annotations

from tilewright.backends.cuda.dot_plan import GROUP_ROWS
from tilewright.backends.cuda.dot_text import PATTERN_BYTES, STEP_BYTES, multiply_helper
from tilewright.backends.cuda.tile_plan import TileRing
from tilewright.base.records import replace
from tilewright.base.target import TileLayout

# Pairs of parts by number, the first part of a number being the largest; the smallest products first.
LOW_PRODUCTS = ((0, 2), (2, 0), (1, 1), (0, 1), (1, 0))
# Columns that the products of the first parts are taken for at a time, and their elements in a thread.
BLOCK_COLUMNS, BLOCK_REGISTERS = 64, 32
# Operands are multiplied by 2^16: the last bit of any float32, denormal ones too, is then one that bfloat16 has.
SCALE_BITS = 16


def _load_helper(count: int) -> str:
    names = ", ".join(f"%{number}" for number in range(count))
    zeros = " ".join(f"mov.b32 %{number}, 0;" for number in range(count))
    results = ", ".join(f'"=f"(found.of[{number}])' for number in range(count))
    kind = "f32" if count == 1 else f"v{count}.f32"
    return (
        f"template <> __device__ inline Numbers<{count}> load_where<{count}>(bool valid, const float* from) {{\n"
        f"  Numbers<{count}> found;\n"
        f'  asm("{{\\n.reg .pred valid;\\nsetp.ne.b32 valid, %{count + 1}, 0;\\n{zeros}\\n"\n'
        f'    "@valid ld.global.nc.{kind} {names if count == 1 else f"{{{names}}}"}, [%{count}];\\n}}"\n'
        f'    : {results} : "l"(from), "r"((int)valid));\n'
        "  return found;\n}"
    )


HELPERS = f"""\
// Numbers of a buffer that the kernel does not write; zeros where they are masked off.
template <int N> struct Numbers {{ float of[N]; __device__ float operator[](int n) const {{ return of[n]; }} }};
template <int N> __device__ inline Numbers<N> load_where(bool valid, const float* from);
{_load_helper(1)}
{_load_helper(2)}
{_load_helper(4)}
// What is stored of a number: its parts, the number itself in two halves, or both.
template <bool PARTS, bool PLAIN> struct Staged {{
  static constexpr bool parts = PARTS, plain = PLAIN;
  static constexpr int first_plain = PARTS ? 3 : 0;
}};
// Two numbers rounded to bfloat16; what is left of them.
__device__ inline word take_part(float& x, float& y) {{
  word part; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(part) : "f"(y), "f"(x));
  x -= __uint_as_float(part << 16); y -= __uint_as_float(part & 0xffff0000u);
  return part;
}}
struct Parts {{ word of[5]; }};
template <typename STAGED> __device__ inline Parts parts_of(STAGED, float x, float y) {{
  Parts found;
  if (STAGED::plain) {{
    found.of[STAGED::first_plain] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
    found.of[STAGED::first_plain + 1] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x5410);
  }}
  if (STAGED::parts) {{
    x *= {float(1 << SCALE_BITS)}f; y *= {float(1 << SCALE_BITS)}f;
    for (int n = 0; n < 3; n++) found.of[n] = take_part(x, y);
  }}
  return found;
}}
template <typename STAGED> __device__ inline constexpr bool has_plane(int n) {{
  return (STAGED::parts && n < 3) || (STAGED::plain && n >= STAGED::first_plain && n < STAGED::first_plain + 2);
}}
template <int PLANE, typename STAGED> __device__ inline void store_parts(STAGED how, unsigned short* to, float x) {{
  const Parts found = parts_of(how, x, 0.0f);
  #pragma unroll
  for (int n = 0; n < 5; n++) if (has_plane<STAGED>(n)) to[n * PLANE] = (unsigned short)found.of[n];
}}
template <int PLANE, typename STAGED>
__device__ inline void store_parts(STAGED how, unsigned short* to, float x, float y) {{
  const Parts found = parts_of(how, x, y);
  #pragma unroll
  for (int n = 0; n < 5; n++) if (has_plane<STAGED>(n)) *(word*)(to + n * PLANE) = found.of[n];
}}
template <int PLANE, typename STAGED>
__device__ inline void store_parts(STAGED how, unsigned short* to, float x, float y, float z, float w) {{
  const Parts low = parts_of(how, x, y), high = parts_of(how, z, w);
  #pragma unroll
  for (int n = 0; n < 5; n++) if (has_plane<STAGED>(n)) *(uint2*)(to + n * PLANE) = make_uint2(low.of[n], high.of[n]);
}}
template <int PLANE> __device__ inline float plain_number(const unsigned short* plane, int n) {{
  n = swizzle<2>(n);
  return __uint_as_float((word)plane[n] << 16 | plane[n + PLANE]);
}}
__device__ inline bool is_finite(float x) {{ return fabsf(x) <= {3.4028234663852886e38}f; }}"""


def prelude(ring: TileRing, are_summed_fast: tuple[bool, bool]) -> list[str]:
    """Products of all columns of a tile, and of a block of them."""
    widths = dict.fromkeys((ring.core.columns, BLOCK_COLUMNS))
    return [*(multiply_helper(replace(ring.core, columns=width), are_summed_fast) for width in widths), HELPERS]


def open_parts(ring: TileRing) -> list[str]:
    """Registers for the sum of a step; and a function that adds the products of the first parts to it, and it to all
    sums. One instruction multiplies while the results of the one before are added."""
    blocks = ring.core.columns // BLOCK_COLUMNS
    count = _instructions(ring) * blocks
    left, right = _planes(ring, 0, 0, f"n / {blocks}", f"n % {blocks}" if blocks > 1 else "")
    return [
        f"float step_sum[{ring.registers}];",
        "const auto end_step = [&](const word place) {",
        f"  float product[2][{BLOCK_REGISTERS}];",
        "  #pragma unroll",
        f"  for (int n = 0; n <= {count}; n++) {{",
        f"    if (n < {count}) {{",
        "      products_start();",
        f"      multiply(product[n % 2], {left}, {right}, 0);",
        "      products_sent();",
        "    }",
        "    if (n == 0) { products_done<1>(); settle(step_sum); continue; }",
        f"    if (n < {count}) products_done<1>(); else products_done<0>();",
        "    settle(product[(n - 1) % 2]);",
        "    #pragma unroll",
        f"    for (int i = 0; i < {BLOCK_REGISTERS}; i++)",
        f"      step_sum[(n - 1) % {blocks} * {BLOCK_REGISTERS} + i] += product[(n - 1) % 2][i];",
        "  }",
        "  #pragma unroll",
        f"  for (int n = 0; n < {ring.registers}; n++) acc[n] += step_sum[n];",
        "};",
    ]


def start_step(ring: TileRing, place: str) -> list[str]:
    """Starts the products of a stage but those of the first parts."""
    lines = [f"const word place = {place};", "products_start();"]
    for number, (mine, theirs) in enumerate(LOW_PRODUCTS):
        left, right = _planes(ring, mine, theirs, "part")
        lines += [
            "#pragma unroll",
            f"for (int part = 0; part < {_instructions(ring)}; part++)",
            f"  multiply(step_sum, {left}, {right}, {'1' if number else 'part > 0'});",
        ]
    return ["{", *(f"  {line}" for line in [*lines, "products_sent();"]), "}"]


def _instructions(ring: TileRing) -> int:
    """Of a product of two planes."""
    return ring.core.depth * ring.core.multiplied.itemsize // STEP_BYTES


def _planes(ring: TileRing, mine: int, theirs: int, step: str, block: str = "") -> tuple[str, str]:
    """A plane of either operand as wgmma reads it, from a step of the sum on; on the right a block of columns."""
    left, right = ring.node.arg.left, ring.node.arg.right
    sizes = [ring.plane_bytes(memory) for memory in ring.memories]
    itemsize = ring.core.multiplied.itemsize
    first = f"place + {mine * sizes[0]}"
    if ring.core.rows > GROUP_ROWS:
        first = f"{first} + thread / 128 * {_next_lines(left) * itemsize}"
    second = f"place + {ring.bytes_of(ring.memories[0]) + theirs * sizes[1]}"
    if block:
        second = f"{second} + {block} * {_next_lines(right) * itemsize}"
    return _described(left, first, step, itemsize), _described(right, second, step, itemsize)


def _next_lines(layout: TileLayout) -> int:
    """Elements to the next 64 rows or columns: 64 lines, or one block where lines run along them."""
    return GROUP_ROWS * layout.own_step if layout.summed_step == 1 else layout.block_step


def _described(layout: TileLayout, place: str, step: str, itemsize: int) -> str:
    """Along the sum a step is 32 bytes of a line, or the lines of that many elements where they run across it."""
    if layout.summed_step == 1:
        return f"describe({place} + {step} * {STEP_BYTES}, 16, {PATTERN_BYTES})"
    lines = STEP_BYTES * layout.summed_step
    return f"describe({place} + {step} * {lines}, {layout.block_step * itemsize}, {PATTERN_BYTES})"


def finish(ring: TileRing) -> list[str]:
    """Takes the scale off the sums, and computes those that are not finite once more."""
    is_one, count = ring.step is None, ring.registers
    return [
        "bool is_special = false;",
        "#pragma unroll",
        f"for (int n = 0; n < {count}; n++) {{",
        f"  acc[n] *= {2.0 ** (-2 * SCALE_BITS)!r}f;",
        "  is_special |= !is_finite(acc[n]);",
        "}",
        "if (__syncthreads_or(is_special)) {",
        "  #pragma unroll",
        f"  for (int n = 0; n < {count}; n++) step_sum[n] = 0.0f;",
        *(f"  {line}" for line in (_multiply_plain(ring) if is_one else _all_plain_steps(ring))),
        "  #pragma unroll",
        f"  for (int n = 0; n < {count}; n++) acc[n] = is_finite(acc[n]) ? acc[n] : step_sum[n];",
        "}",
    ]


def _all_plain_steps(ring: TileRing) -> list[str]:
    """Ends where all sums that are computed are NaN, which they stay."""
    return [
        "#pragma unroll 1",
        f"for (int step = 0; step < {ring.step_count}; step++) {{",
        "  stage_step(Staged<false, true>(), step, 0);",
        "  __syncthreads();",
        *(f"  {line}" for line in _multiply_plain(ring)),
        "  bool is_known = true;",
        "  #pragma unroll",
        f"  for (int n = 0; n < {ring.registers}; n++) is_known &= is_finite(acc[n]) || step_sum[n] != step_sum[n];",
        "  if (__syncthreads_and(is_known)) break;",
        "}",
    ]


def _multiply_plain(ring: TileRing) -> list[str]:
    """A thread has 2 rows, 8 apart, and 2 of every 8 columns."""
    sizes = [ring.plane_bytes(memory) // ring.core.multiplied.itemsize for memory in ring.memories]
    first = ring.core.parts if ring.step is None else 0
    starts = [first * sizes[0], ring.bytes_of(ring.memories[0]) // ring.core.multiplied.itemsize + first * sizes[1]]
    left, right = ring.node.arg.left, ring.node.arg.right
    row = "thread / 128 * 64 + thread / 32 % 4 * 16 + thread % 32 / 4"
    other = _position(right, "(column + n * 4 + j)", "k")
    return [
        "{",
        f"  const unsigned short* const left = (const unsigned short*)ring + {starts[0]};",
        f"  const unsigned short* const right = (const unsigned short*)ring + {starts[1]};",
        f"  const int row = {row}, column = thread % 4 * 2;",
        "  #pragma unroll 1",
        f"  for (int k = 0; k < {ring.core.depth}; k++) {{",
        f"    const float upper = plain_number<{sizes[0]}>(left, {_position(left, 'row', 'k')});",
        f"    const float lower = plain_number<{sizes[0]}>(left, {_position(left, '(row + 8)', 'k')});",
        "    #pragma unroll",
        f"    for (int n = 0; n < {ring.core.columns // 2}; n += 2) {{",
        "      #pragma unroll",
        "      for (int j = 0; j < 2; j++) {",
        f"        const float other = plain_number<{sizes[1]}>(right, {other});",
        "        step_sum[n * 2 + j] = fmaf(upper, other, step_sum[n * 2 + j]);",
        "        step_sum[n * 2 + 2 + j] = fmaf(lower, other, step_sum[n * 2 + 2 + j]);",
        "      }",
        "    }",
        "  }",
        "}",
    ]


def _position(layout: TileLayout, own: str, summed: str) -> str:
    start = f"{own} / {layout.block} * {layout.block_step} + " if layout.block_step else ""
    return f"{start}{own} % {layout.block} * {layout.own_step} + {summed} * {layout.summed_step}"
