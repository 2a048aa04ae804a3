static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? as_float(as_uint(a) & as_uint(b)) : a + b; }

// product_local: GLOBAL 4 x 4, LOCAL 8, REDUCE 24, UPCAST 4
__attribute__((reqd_work_group_size(8, 1, 1)))
__kernel void product_local(__global float* out0, __global const float* in1, __global const float* in2) {
  const int global0_0 = get_group_id(1);  // GLOBAL 4
  const int global1_0 = get_group_id(0);  // GLOBAL 4
  const int local0_1 = get_local_id(0);  // LOCAL 8
  float acc0_0 = 0.0f, acc0_1 = 0.0f, acc0_2 = 0.0f, acc0_3 = 0.0f;
  const int idx0 = global1_0 * 4;
  const int idx1 = global0_0 * 128 + local0_1 * 16 + idx0;
  const int idx2 = global0_0 * 192 + local0_1 * 24;
  for (int reduce2 = 0; reduce2 < 24; reduce2++) {
    const float val0 = in1[idx2 + reduce2];
    const int idx3 = idx0 + reduce2 * 16;
    const float4 vec0 = *(__global const float4*)(in2 + idx3);
    acc0_0 += val0 * vec0.x;
    acc0_1 += val0 * vec0.y;
    acc0_2 += val0 * vec0.z;
    acc0_3 += val0 * vec0.w;
  }
  *(__global float4*)(out0 + idx1) = (float4)(max_float32(acc0_0, 0.0f), max_float32(acc0_1, 0.0f), max_float32(acc0_2,
      0.0f), max_float32(acc0_3, 0.0f));
}
