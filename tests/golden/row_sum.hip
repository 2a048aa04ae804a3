template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T elements[N];
  __device__ T operator[](int lane) const { return elements[lane]; }
};
__device__ inline float fold_add_float32_64(float x) {
  #pragma unroll
  for (int distance = 32; distance > 0; distance /= 2) { const float y = (float)__shfl_xor((float)x, distance); x = x + y; }
  return x;
}
__device__ inline float fold_add_float32_4(float x) {
  #pragma unroll
  for (int distance = 2; distance > 0; distance /= 2) { const float y = (float)__shfl_xor((float)x, distance); x = x + y; }
  return x;
}

// reduce_64_2048_35879a: GLOBAL 64, LOCAL 256, REDUCE 2, UPCAST 4
extern "C" __global__ void __launch_bounds__(256) reduce_64_2048_35879a(float* out0, const float* in1) {
  __shared__ __align__(16) float shared0[4];
  const int global0 = blockIdx.x;  // GLOBAL 64
  const int local1_0_1 = threadIdx.x;  // LOCAL 256
  float acc0_0 = 0.0f, acc0_1 = 0.0f, acc0_2 = 0.0f, acc0_3 = 0.0f;
  const int idx0 = global0 * 2048;
  const int idx1 = local1_0_1 * 4;
  for (int reduce1_0_0 = 0; reduce1_0_0 < 2; reduce1_0_0++) {
    const int idx2 = idx0 + reduce1_0_0 * 1024 + idx1;
    const Vector<float, 4> vec0 = *(const Vector<float, 4>*)(in1 + idx2);
    acc0_0 += vec0[0];
    acc0_1 += vec0[1];
    acc0_2 += vec0[2];
    acc0_3 += vec0[3];
  }
  const float sum0 = acc0_0 + acc0_1 + (acc0_2 + acc0_3);
  const float warp0 = fold_add_float32_64(sum0);
  if (local1_0_1 % 64 == 0) shared0[local1_0_1 / 64] = warp0;
  __syncthreads();
  const float val1 = shared0[local1_0_1 % 4];
  const float warp1 = fold_add_float32_4(val1);
  if (local1_0_1 == 0) out0[global0] = warp1;
}
