"""The CUDA text of products of parts in a `TileChain`. In: a TILE_DOT whose operands are sums of parts, in planes of
its tiles or in registers. Out: lines of text. Stands beside `chain_text.py`, which writes products of whole operands.

All products of parts that are not below the rounding of float32 are added, the smallest first, from zero for each step
of the loop over tiles; the steps are added in registers, rounded. A part of an infinity times a part that is zero is
NaN, so an element of a product that is not finite is computed once more, with FMA on the numbers themselves."""

from __future__ import annotations

from tilewright.backends.cuda.part_text import LOW_PRODUCTS
from tilewright.base.target import TileLayout
from tilewright.graph.uop import UOp, memory_of

# Pairs of parts by number, the first part of a number being the largest.
PRODUCTS = (*LOW_PRODUCTS, (0, 0))

HELPERS = """\
// Two numbers rounded to bfloat16; what is left of them.
__device__ inline word take_part(float& x, float& y) {
  word part; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(part) : "f"(y), "f"(x));
  x -= __uint_as_float(part << 16); y -= __uint_as_float(part & 0xffff0000u);
  return part;
}
// Pairs of numbers in registers as three pairs of parts, each part in an array of its own.
template <int N> __device__ inline void split_pairs(const float (&numbers)[2 * N], word (&parts)[3 * N]) {
  #pragma unroll
  for (int n = 0; n < N; n++) {
    float x = numbers[2 * n], y = numbers[2 * n + 1];
    #pragma unroll
    for (int part = 0; part < 3; part++) parts[part * N + n] = take_part(x, y);
  }
}
__device__ inline bool is_finite(float x) { return fabsf(x) <= 3.4028234663852886e38f; }
template <int N> __device__ inline bool are_finite(const float (&numbers)[N]) {
  float zero = 0.0f;
  #pragma unroll
  for (int n = 0; n < N; n++) zero = fmaf(numbers[n], 0.0f, zero);
  return zero == 0.0f;
}
// Element n of a tile that has its parts in planes.
template <int PLANE> __device__ inline float number_at(const unsigned short* tile, int n) {
  n = swizzle<2>(n);
  const float high = __uint_as_float((word)tile[n] << 16), middle = __uint_as_float((word)tile[n + PLANE] << 16);
  return high + middle + __uint_as_float((word)tile[n + 2 * PLANE] << 16);
}"""


def plane_size(dot: UOp, operand: int) -> int:
    """Elements of a plane of an operand's tile."""
    return int(memory_of(dot.src[operand]).arg.size) // int(dot.arg.parts)


def plain_name(helper: str) -> str:
    return f"{helper}_plain"


def plain_helper(dot: UOp, helper: str, columns: int) -> str:
    """The function that computes the elements of a product that are not finite once more. All threads of a warp call
    it: a row of a left operand in registers is held by four of them."""
    length, count = dot.arg.length, columns // 2
    other = f"number_at<{plane_size(dot, 1)}>(right, {_position(dot.arg.right, 'column', 'k')})"
    if dot.arg.left is None:
        parameter = f"const float (&left)[{length // 2}]"
        number = "__shfl_sync(0xffffffffu, left[k / 8 * 4 + n / 2 % 2 * 2 + k % 2], thread % 32 / 4 * 4 + k % 8 / 2)"
    else:
        parameter = "const unsigned short* left"
        number = f"number_at<{plane_size(dot, 0)}>(left, {_position(dot.arg.left, 'row', 'k')})"
    return (
        f"__device__ __noinline__ void {plain_name(helper)}(\n"
        f"    float (&acc)[{count}], {parameter}, const unsigned short* right, int thread) {{\n"
        "  #pragma unroll 1\n"
        f"  for (int n = 0; n < {count}; n++) {{\n"
        "    const int row = thread / 32 * 16 + thread % 32 / 4 + n / 2 % 2 * 8;\n"
        "    const int column = thread % 4 * 2 + n / 4 * 8 + n % 2;\n"
        "    float sum = 0.0f;\n"
        "    #pragma unroll 1\n"
        f"    for (int k = 0; k < {length}; k++) sum = fmaf({number}, {other}, sum);\n"
        "    if (!is_finite(acc[n])) acc[n] = sum;\n"
        "  }\n}"
    )


def check(name: str, count: int, helper: str, left: str, right: str, held: int) -> list[str]:
    """Computes the elements of a product in the registers `name` that are not finite once more. `left` and `right` name
    tiles; where `held` is not 0, `left` names that many registers. What is passed are copies: a register has no
    address."""
    copies = [f"float copy[{count}];", *_copied("copy", name, count)]
    if held:
        copies += [f"float numbers[{held}];", *_copied("numbers", left, held)]
    given = f"{'numbers' if held else f'(const unsigned short*){left}'}, (const unsigned short*){right}"
    lines = [*copies, f"{plain_name(helper)}(copy, {given}, thread);", *_copied(name, "copy", count)]
    return [f"if (__any_sync(0xffffffffu, !are_finite({name}))) {{", *(f"  {line}" for line in lines), "}"]


def _copied(to: str, source: str, count: int) -> list[str]:
    return ["#pragma unroll", f"for (int n = 0; n < {count}; n++) {to}[n] = {source}[n];"]


def _position(layout: TileLayout, own: str, summed: str) -> str:
    words = [f"{own} % {layout.block} * {layout.own_step}"]
    if layout.block_step:
        words.append(f"{own} / {layout.block} * {layout.block_step}")
    if layout.summed_block:
        words.append(f"{summed} / {layout.summed_block} * {layout.summed_block_step}")
        summed = f"{summed} % {layout.summed_block}"
    return " + ".join([*words, f"{summed} * {layout.summed_step}"])
