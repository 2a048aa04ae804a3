#include <metal_stdlib>
using namespace metal;

// integers: GLOBAL 10, UPCAST 4
kernel void integers(
    device int* out0 [[buffer(0)]],
    device const uchar* in1 [[buffer(1)]],
    device const int* in2 [[buffer(2)]],
    device const int* in3 [[buffer(3)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint3 thread_id [[thread_position_in_threadgroup]]) {
  const int global0_0 = group_id.x;  // GLOBAL 10
  const int idx0 = global0_0 * 4;
  const uchar4 vec0 = *(device const uchar4*)(in1 + idx0);
  const int4 vec1 = *(device const int4*)(in2 + idx0);
  const int4 vec2 = *(device const int4*)(in3 + idx0);
  const int alu0_0 = vec0.x != 0 ? (int)((uint)vec1.x * vec2.x) : (int)((uint)vec1.x + (uint)vec2.x * -1);
  const int alu0_1 = vec0.y != 0 ? (int)((uint)vec1.y * vec2.y) : (int)((uint)vec1.y + (uint)vec2.y * -1);
  const int alu0_2 = vec0.z != 0 ? (int)((uint)vec1.z * vec2.z) : (int)((uint)vec1.z + (uint)vec2.z * -1);
  const int alu0_3 = vec0.w != 0 ? (int)((uint)vec1.w * vec2.w) : (int)((uint)vec1.w + (uint)vec2.w * -1);
  *(device int4*)(out0 + idx0) = int4(alu0_0, alu0_1, alu0_2, alu0_3);
}
