#include <stdbool.h>

static inline unsigned int bits_of_float32(float x) { union { float from; unsigned int to; } bits = { x }; return bits.to; }
static inline float float32_of_bits(unsigned int x) { union { unsigned int from; float to; } bits = { x }; return bits.to; }
static inline float max_float32(float a, float b) { return a > b ? a : b > a ? b : a == b ? float32_of_bits(bits_of_float32(a) & bits_of_float32(b)) : a + b; }

// product: LOOP 16 x 4, REDUCE 24, UPCAST 2 x 4
void product(void** buffers, long long lo, long long hi) {
  float* const out0 = buffers[0];
  const float* const in1 = buffers[1];
  const float* const in2 = buffers[2];
  for (int loop0_0 = 0; loop0_0 < 16; loop0_0++) {
    const int idx0 = loop0_0 * 32;
    const int idx1 = loop0_0 * 48;
    for (int loop1_0 = 0; loop1_0 < 4; loop1_0++) {
      float acc0_0_0 = 0.0f, acc0_0_1 = 0.0f, acc0_0_2 = 0.0f, acc0_0_3 = 0.0f, acc0_1_0 = 0.0f, acc0_1_1 = 0.0f,
          acc0_1_2 = 0.0f, acc0_1_3 = 0.0f;
      const int idx2 = loop1_0 * 4;
      const int idx3 = idx0 + idx2;
      for (int reduce2 = 0; reduce2 < 24; reduce2++) {
        const int idx4 = idx1 + reduce2;
        const float val0_0 = in1[idx4];
        const float val0_1 = in1[idx4 + 24];
        const int idx5 = idx2 + reduce2 * 16;
        const float val1_0 = in2[idx5];
        const float val1_1 = in2[idx5 + 1];
        const float val1_2 = in2[idx5 + 2];
        const float val1_3 = in2[idx5 + 3];
        acc0_0_0 += val0_0 * val1_0;
        acc0_0_1 += val0_0 * val1_1;
        acc0_0_2 += val0_0 * val1_2;
        acc0_0_3 += val0_0 * val1_3;
        acc0_1_0 += val0_1 * val1_0;
        acc0_1_1 += val0_1 * val1_1;
        acc0_1_2 += val0_1 * val1_2;
        acc0_1_3 += val0_1 * val1_3;
      }
      out0[idx3] = max_float32(acc0_0_0, 0.0f);
      out0[idx3 + 1] = max_float32(acc0_0_1, 0.0f);
      out0[idx3 + 2] = max_float32(acc0_0_2, 0.0f);
      out0[idx3 + 3] = max_float32(acc0_0_3, 0.0f);
      out0[idx3 + 16] = max_float32(acc0_1_0, 0.0f);
      out0[idx3 + 17] = max_float32(acc0_1_1, 0.0f);
      out0[idx3 + 18] = max_float32(acc0_1_2, 0.0f);
      out0[idx3 + 19] = max_float32(acc0_1_3, 0.0f);
    }
  }
}
