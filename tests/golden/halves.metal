#include <metal_stdlib>
using namespace metal;

// halves: GLOBAL 16, UPCAST 4
kernel void halves(
    device half* out0 [[buffer(0)]],
    device const half* in1 [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0_0 = group_id.x;  // GLOBAL 16
  const int idx0 = global0_0 * 4;
  const half4 vec0 = *(device const half4*)(in1 + idx0);
  *(device half4*)(out0 + idx0) = half4(sqrt(vec0.x) + half(0.5f), sqrt(vec0.y) + half(0.5f), sqrt(vec0.z) + half(0.5f),
      sqrt(vec0.w) + half(0.5f));
}
