#include <metal_stdlib>
using namespace metal;

// padded: GLOBAL 6 x 13
kernel void padded(
    device float* out0 [[buffer(0)]],
    device const float* in1 [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0 = group_id.y;  // GLOBAL 6
  const int global1 = group_id.x;  // GLOBAL 13
  const float val0 = global1 < 11 && global1 >= 1 ? in1[global0 * 10 + global1 - 1] : 0.0f;
  out0[global0 * 13 + global1] = val0;
}
