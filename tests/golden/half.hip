template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T elements[N];
  __device__ T operator[](int lane) const { return elements[lane]; }
};
__device__ inline _Float16 float16_of_bits(unsigned short x) { union { unsigned short from; _Float16 to; } bits = { x }; return bits.to; }
__device__ inline unsigned short bits_of_float16(_Float16 x) { union { _Float16 from; unsigned short to; } bits = { x }; return bits.to; }

// map_4096_1db8af: GLOBAL 4, LOCAL 128, UPCAST 8
extern "C" __global__ void __launch_bounds__(128) map_4096_1db8af(unsigned short* out0, const unsigned short* in1) {
  const int global0_0_0 = blockIdx.x;  // GLOBAL 4
  const int local0_0_1 = threadIdx.x;  // LOCAL 128
  const int idx0 = global0_0_0 * 1024 + local0_0_1 * 8;
  const Vector<unsigned short, 8> vec0 = *(const Vector<unsigned short, 8>*)(in1 + idx0);
  *(Vector<unsigned short, 8>*)(out0 + idx0) = Vector<unsigned short, 8>{(unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[0]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[1]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[2]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[3]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[4]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[5]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[6]) * 2.0f))), (unsigned
      short)(bits_of_float16((_Float16)((float)float16_of_bits(vec0[7]) * 2.0f)))};
}
