#include <metal_stdlib>
using namespace metal;

static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? as_type<float>(as_type<uint>(a) & as_type<uint>(b)) : a + b; }

// product_local: GLOBAL 4 x 4, LOCAL 8, REDUCE 24, UPCAST 4
kernel void product_local(
    device float* out0 [[buffer(0)]],
    device const float* in1 [[buffer(1)]],
    device const float* in2 [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0_0 = group_id.y;  // GLOBAL 4
  const int global1_0 = group_id.x;  // GLOBAL 4
  const int local0_1 = thread_id.x;  // LOCAL 8
  float acc0_0 = 0.0f, acc0_1 = 0.0f, acc0_2 = 0.0f, acc0_3 = 0.0f;
  const int idx0 = global1_0 * 4;
  const int idx1 = global0_0 * 128 + local0_1 * 16 + idx0;
  const int idx2 = global0_0 * 192 + local0_1 * 24;
  for (int reduce2 = 0; reduce2 < 24; reduce2++) {
    const float val0 = in1[idx2 + reduce2];
    const int idx3 = idx0 + reduce2 * 16;
    const float4 vec0 = *(device const float4*)(in2 + idx3);
    acc0_0 += val0 * vec0.x;
    acc0_1 += val0 * vec0.y;
    acc0_2 += val0 * vec0.z;
    acc0_3 += val0 * vec0.w;
  }
  *(device float4*)(out0 + idx1) = float4(max_float32(acc0_0, 0.0f), max_float32(acc0_1, 0.0f), max_float32(acc0_2,
      0.0f), max_float32(acc0_3, 0.0f));
}
