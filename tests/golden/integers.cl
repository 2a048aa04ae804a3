// integers: GLOBAL 10, UPCAST 4
__kernel void integers(__global int* out0, __global const uchar* in1, __global const int* in2, __global const int* in3) {
  const int global0_0 = get_global_id(0);  // GLOBAL 10
  const int idx0 = global0_0 * 4;
  const uchar4 vec0 = *(__global const uchar4*)(in1 + idx0);
  const int4 vec1 = *(__global const int4*)(in2 + idx0);
  const int4 vec2 = *(__global const int4*)(in3 + idx0);
  const int alu0_0 = vec0.x != 0 ? (int)((uint)vec1.x * vec2.x) : (int)((uint)vec1.x + (uint)vec2.x * -1);
  const int alu0_1 = vec0.y != 0 ? (int)((uint)vec1.y * vec2.y) : (int)((uint)vec1.y + (uint)vec2.y * -1);
  const int alu0_2 = vec0.z != 0 ? (int)((uint)vec1.z * vec2.z) : (int)((uint)vec1.z + (uint)vec2.z * -1);
  const int alu0_3 = vec0.w != 0 ? (int)((uint)vec1.w * vec2.w) : (int)((uint)vec1.w + (uint)vec2.w * -1);
  *(__global int4*)(out0 + idx0) = (int4)(alu0_0, alu0_1, alu0_2, alu0_3);
}
