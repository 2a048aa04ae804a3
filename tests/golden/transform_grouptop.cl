// grouptop: GLOBAL 12, LOCAL 8, REDUCE 3, UNROLL 8
__attribute__((reqd_work_group_size(8, 1, 1)))
__kernel void grouptop(__global float* out0, __global const float* in1) {
  __local float shared0[8] __attribute__((aligned(16)));
  const int global0 = get_group_id(0);  // GLOBAL 12
  const int local1_1 = get_local_id(0);  // LOCAL 8
  float acc0 = 0.0f;
  float acc1 = 0.0f;
  const int idx0 = global0 * 24;
  const int idx1 = local1_1 * 3;
  for (int reduce1_0 = 0; reduce1_0 < 3; reduce1_0++) {
    const float val0 = in1[idx0 + reduce1_0 + idx1];
    acc0 += val0;
  }
  shared0[local1_1] = acc0;
  barrier(CLK_LOCAL_MEM_FENCE);
  const float4 vec0 = *(__local const float4*)shared0;
  const float4 vec1 = *(__local const float4*)(shared0 + 4);
  acc1 += vec0.x;
  acc1 += vec0.y;
  acc1 += vec0.z;
  acc1 += vec0.w;
  acc1 += vec1.x;
  acc1 += vec1.y;
  acc1 += vec1.z;
  acc1 += vec1.w;
  if (local1_1 == 0) out0[global0] = acc1;
}
