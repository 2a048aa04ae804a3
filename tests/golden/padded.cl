// padded: GLOBAL 6 x 13
__kernel void padded(__global float* out0, __global const float* in1) {
  const int global0 = get_global_id(1);  // GLOBAL 6
  const int global1 = get_global_id(0);  // GLOBAL 13
  const float val0 = global1 < 11 && global1 >= 1 ? in1[global0 * 10 + global1 - 1] : 0.0f;
  out0[global0 * 13 + global1] = val0;
}
