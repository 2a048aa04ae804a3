static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? as_float(as_uint(a) & as_uint(b)) : a + b; }

// product: GLOBAL 16 x 4, REDUCE 24, UPCAST 2 x 4
__kernel void product(__global float* out0, __global const float* in1, __global const float* in2) {
  const int global0_0 = get_global_id(1);  // GLOBAL 16
  const int global1_0 = get_global_id(0);  // GLOBAL 4
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
    const float4 vec0 = *(__global const float4*)(in2 + idx4);
    acc0_0_0 += val0_0 * vec0.x;
    acc0_0_1 += val0_0 * vec0.y;
    acc0_0_2 += val0_0 * vec0.z;
    acc0_0_3 += val0_0 * vec0.w;
    acc0_1_0 += val0_1 * vec0.x;
    acc0_1_1 += val0_1 * vec0.y;
    acc0_1_2 += val0_1 * vec0.z;
    acc0_1_3 += val0_1 * vec0.w;
  }
  *(__global float4*)(out0 + idx1) = (float4)(max_float32(acc0_0_0, 0.0f), max_float32(acc0_0_1, 0.0f),
      max_float32(acc0_0_2, 0.0f), max_float32(acc0_0_3, 0.0f));
  *(__global float4*)(out0 + idx1 + 16) = (float4)(max_float32(acc0_1_0, 0.0f), max_float32(acc0_1_1, 0.0f),
      max_float32(acc0_1_2, 0.0f), max_float32(acc0_1_3, 0.0f));
}
