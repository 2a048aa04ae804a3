// rows_group: GLOBAL 8, LOCAL 16, REDUCE 16 x 16
__attribute__((reqd_work_group_size(16, 1, 1)))
__kernel void rows_group(__global float* out0, __global const float* in1) {
  __local float shared0[16] __attribute__((aligned(16)));
  const int global0 = get_group_id(0);  // GLOBAL 8
  const int local1_1 = get_local_id(0);  // LOCAL 16
  float acc0 = 0.0f;
  float acc1 = 0.0f;
  const int idx0 = global0 * 256;
  for (int reduce1_0 = 0; reduce1_0 < 16; reduce1_0++) {
    const float val0 = in1[idx0 + reduce1_0 * 16 + local1_1];
    acc0 += val0;
  }
  shared0[local1_1] = acc0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reduce_added0 = 0; reduce_added0 < 16; reduce_added0++) {
    const float val1 = shared0[reduce_added0];
    acc1 += val1;
  }
  if (local1_1 == 0) out0[global0] = acc1;
}
