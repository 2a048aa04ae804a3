#include <metal_stdlib>
using namespace metal;

static inline float warp_add16_float32(float x) { x = x + simd_shuffle_xor(x, 8); x = x + simd_shuffle_xor(x, 4); x = x + simd_shuffle_xor(x, 2); x = x + simd_shuffle_xor(x, 1); return x; }

// rows_group: GLOBAL 8, LOCAL 16, REDUCE 16
kernel void rows_group(
    device float* out0 [[buffer(0)]],
    device const float* in1 [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0 = group_id.x;  // GLOBAL 8
  const int local1_1 = thread_id.x;  // LOCAL 16
  float acc0 = 0.0f;
  const int idx0 = global0 * 256;
  for (int reduce1_0 = 0; reduce1_0 < 16; reduce1_0++) {
    const float val0 = in1[idx0 + reduce1_0 * 16 + local1_1];
    acc0 += val0;
  }
  const float warp0 = warp_add16_float32(acc0);
  if (local1_1 == 0) out0[global0] = warp0;
}
