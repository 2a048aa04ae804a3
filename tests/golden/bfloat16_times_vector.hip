template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T elements[N];
  __device__ T operator[](int lane) const { return elements[lane]; }
};
__device__ inline float float32_of_bits(unsigned int x) { union { unsigned int from; float to; } bits = { x }; return bits.to; }
__device__ inline float fold_add_float32_32(float x) {
  #pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) { const float y = (float)__shfl_xor((float)x, distance); x = x + y; }
  return x;
}
__device__ inline unsigned int bits_of_float32(float x) { union { float from; unsigned int to; } bits = { x }; return bits.to; }

// reduce_512_1024_6d8df0: GLOBAL 512, LOCAL 32, REDUCE 4, UPCAST 8
extern "C" __global__ void __launch_bounds__(32) reduce_512_1024_6d8df0(unsigned short* out0, const unsigned short* in1, const unsigned short* in2) {
  const int global0 = blockIdx.x;  // GLOBAL 512
  const int local1_0_1 = threadIdx.x;  // LOCAL 32
  float acc0_0 = 0.0f, acc0_1 = 0.0f, acc0_2 = 0.0f, acc0_3 = 0.0f, acc0_4 = 0.0f, acc0_5 = 0.0f, acc0_6 = 0.0f,
      acc0_7 = 0.0f;
  const int idx0 = global0 * 1024;
  const int idx1 = local1_0_1 * 8;
  for (int reduce1_0_0 = 0; reduce1_0_0 < 4; reduce1_0_0++) {
    const int idx2 = reduce1_0_0 * 256;
    const int idx3 = idx0 + idx2 + idx1;
    const Vector<unsigned short, 8> vec0 = *(const Vector<unsigned short, 8>*)(in1 + idx3);
    const int idx4 = idx2 + idx1;
    const Vector<unsigned short, 8> vec1 = *(const Vector<unsigned short, 8>*)(in2 + idx4);
    const float alu0_0 = float32_of_bits((unsigned int)vec0[0] << 16u) * float32_of_bits((unsigned int)vec1[0] << 16u);
    const float alu0_1 = float32_of_bits((unsigned int)vec0[1] << 16u) * float32_of_bits((unsigned int)vec1[1] << 16u);
    const float alu0_2 = float32_of_bits((unsigned int)vec0[2] << 16u) * float32_of_bits((unsigned int)vec1[2] << 16u);
    const float alu0_3 = float32_of_bits((unsigned int)vec0[3] << 16u) * float32_of_bits((unsigned int)vec1[3] << 16u);
    const float alu0_4 = float32_of_bits((unsigned int)vec0[4] << 16u) * float32_of_bits((unsigned int)vec1[4] << 16u);
    const float alu0_5 = float32_of_bits((unsigned int)vec0[5] << 16u) * float32_of_bits((unsigned int)vec1[5] << 16u);
    const float alu0_6 = float32_of_bits((unsigned int)vec0[6] << 16u) * float32_of_bits((unsigned int)vec1[6] << 16u);
    const float alu0_7 = float32_of_bits((unsigned int)vec0[7] << 16u) * float32_of_bits((unsigned int)vec1[7] << 16u);
    acc0_0 += alu0_0;
    acc0_1 += alu0_1;
    acc0_2 += alu0_2;
    acc0_3 += alu0_3;
    acc0_4 += alu0_4;
    acc0_5 += alu0_5;
    acc0_6 += alu0_6;
    acc0_7 += alu0_7;
  }
  const float sum0 = acc0_0 + acc0_1 + (acc0_2 + acc0_3) + (acc0_4 + acc0_5 + (acc0_6 + acc0_7));
  const float warp0 = fold_add_float32_32(sum0);
  const unsigned int alu1 = bits_of_float32(warp0);
  const unsigned short alu2 = (unsigned short)(warp0 == warp0 ? (alu1 + ((alu1 >> 16u) & 1u) + 32767u) >> 16u : 32704u);
  if (local1_0_1 == 0) out0[global0] = alu2;
}
