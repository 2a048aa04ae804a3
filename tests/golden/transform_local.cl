// local: GLOBAL 3 x 10, LOCAL 4
__attribute__((reqd_work_group_size(4, 1, 1)))
__kernel void local_kernel(__global float* out0, __global const float* in1, __global const float* in2, __global const float* in3) {
  const int global0_0 = get_group_id(1);  // GLOBAL 3
  const int global1 = get_group_id(0);  // GLOBAL 10
  const int local0_1 = get_local_id(0);  // LOCAL 4
  const int idx0 = global0_0 * 40 + local0_1 * 10 + global1;
  const float val0 = in1[idx0];
  const float val1 = in2[idx0];
  const float val2 = in3[idx0];
  out0[idx0] = val0 + val1 * val2;
}
