template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T elements[N];
  __device__ T operator[](int lane) const { return elements[lane]; }
};
__device__ inline unsigned int bits_of_float32(float x) { union { float from; unsigned int to; } bits = { x }; return bits.to; }
__device__ inline float float32_of_bits(unsigned int x) { union { unsigned int from; float to; } bits = { x }; return bits.to; }
__device__ inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? float32_of_bits(bits_of_float32(a) & bits_of_float32(b)) : a + b; }

// map_1024_256_aff667: GLOBAL 1024, LOCAL 64, UPCAST 4
extern "C" __global__ void __launch_bounds__(64) map_1024_256_aff667(float* out0, const float* in1, const float* in2) {
  const int global0 = blockIdx.x;  // GLOBAL 1024
  const int local1_0 = threadIdx.x;  // LOCAL 64
  const int idx0 = global0 * 256 + local1_0 * 4;
  const Vector<float, 4> vec0 = *(const Vector<float, 4>*)(in1 + idx0);
  const Vector<float, 4> vec1 = *(const Vector<float, 4>*)(in2 + idx0);
  *(Vector<float, 4>*)(out0 + idx0) = Vector<float, 4>{max_float32(vec0[0], vec1[0] + 1.0f), max_float32(vec0[1],
      vec1[1] + 1.0f), max_float32(vec0[2], vec1[2] + 1.0f), max_float32(vec0[3], vec1[3] + 1.0f)};
}
