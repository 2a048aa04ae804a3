#include <stdbool.h>

// rows_thread: THREAD 8, REDUCE 16 x 16
void rows_thread(void** buffers, long long lo, long long hi) {
  float* const out0 = buffers[0];
  const float* const in1 = buffers[1];
  for (int thread0 = lo; thread0 < hi; thread0++) {
    float acc1 = 0.0f;
    const int idx0 = thread0 * 256;
    for (int reduce1_0 = 0; reduce1_0 < 16; reduce1_0++) {
      float acc0 = 0.0f;
      const int idx1 = reduce1_0 * 16;
      for (int reduce1_1 = 0; reduce1_1 < 16; reduce1_1++) {
        const float val0 = in1[idx0 + (idx1 + reduce1_1)];
        acc0 += val0;
      }
      acc1 += acc0;
    }
    out0[thread0] = acc1;
  }
}
