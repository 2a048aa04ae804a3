#include <metal_stdlib>
using namespace metal;

static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? as_type<float>(as_type<uint>(a) & as_type<uint>(b)) : a + b; }

// product: GLOBAL 16 x 4, REDUCE 24, UPCAST 2 x 4
kernel void product(
    device float* out0 [[buffer(0)]],
    device const float* in1 [[buffer(1)]],
    device const float* in2 [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0_0 = group_id.y;  // GLOBAL 16
  const int global1_0 = group_id.x;  // GLOBAL 4
  float acc0_0_0 = 0.0f, acc0_0_1 = 0.0f, acc0_0_2 = 0.0f, acc0_0_3 = 0.0f, acc0_1_0 = 0.0f, acc0_1_1 = 0.0f,
      acc0_1_2 = 0.0f, acc0_1_3 = 0.0f;
  const int idx0 = global1_0 * 4;
  const int idx1 = global0_0 * 32 + idx0;
  const int idx2 = global0_0 * 48;
  for (int reduce2 = 0; reduce2 < 24; reduce2++) {
    const int idx3 = idx2 + reduce2;
    const float val0_0 = in1[idx3];
    const float val0_1 = in1[idx3 + 24];
    const int idx4 = idx0 + reduce2 * 16;
    const float4 vec0 = *(device const float4*)(in2 + idx4);
    acc0_0_0 += val0_0 * vec0.x;
    acc0_0_1 += val0_0 * vec0.y;
    acc0_0_2 += val0_0 * vec0.z;
    acc0_0_3 += val0_0 * vec0.w;
    acc0_1_0 += val0_1 * vec0.x;
    acc0_1_1 += val0_1 * vec0.y;
    acc0_1_2 += val0_1 * vec0.z;
    acc0_1_3 += val0_1 * vec0.w;
  }
  *(device float4*)(out0 + idx1) = float4(max_float32(acc0_0_0, 0.0f), max_float32(acc0_0_1, 0.0f),
      max_float32(acc0_0_2, 0.0f), max_float32(acc0_0_3, 0.0f));
  *(device float4*)(out0 + idx1 + 16) = float4(max_float32(acc0_1_0, 0.0f), max_float32(acc0_1_1, 0.0f),
      max_float32(acc0_1_2, 0.0f), max_float32(acc0_1_3, 0.0f));
}
