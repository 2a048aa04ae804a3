#include <metal_stdlib>
using namespace metal;

static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? as_type<float>(as_type<uint>(a) & as_type<uint>(b)) : a + b; }
static inline float warp_max32_float32(float x) { x = max_float32(x, simd_shuffle_xor(x, 16)); x = max_float32(x, simd_shuffle_xor(x, 8)); x = max_float32(x, simd_shuffle_xor(x, 4)); x = max_float32(x, simd_shuffle_xor(x, 2)); x = max_float32(x, simd_shuffle_xor(x, 1)); return x; }
static inline float warp_max2_float32(float x) { x = max_float32(x, simd_shuffle_xor(x, 1)); return x; }

// largest_group: GLOBAL 8, LOCAL 64, REDUCE 4
kernel void largest_group(
    device float* out0 [[buffer(0)]],
    device const float* in1 [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  threadgroup float shared0[2] __attribute__((aligned(16)));
  const int global0 = group_id.x;  // GLOBAL 8
  const int local1_1 = thread_id.x;  // LOCAL 64
  float acc0 = -as_type<float>(0x7f800000u);
  const int idx0 = global0 * 256;
  for (int reduce1_0 = 0; reduce1_0 < 4; reduce1_0++) {
    const float val0 = in1[idx0 + reduce1_0 * 64 + local1_1];
    acc0 = max_float32(acc0, val0);
  }
  const float warp0 = warp_max32_float32(acc0);
  if (local1_1 % 32 == 0) shared0[local1_1 / 32] = warp0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float val1 = shared0[local1_1 % 2];
  const float warp1 = warp_max2_float32(val1);
  if (local1_1 == 0) out0[global0] = warp1;
}
