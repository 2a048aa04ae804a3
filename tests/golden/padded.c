#include <stdbool.h>

// padded: LOOP 6 x 13
void padded(void** buffers, long long lo, long long hi) {
  float* const out0 = buffers[0];
  const float* const in1 = buffers[1];
  for (int loop0 = 0; loop0 < 6; loop0++) {
    const int idx0 = loop0 * 13;
    const int idx1 = loop0 * 10;
    for (int loop1 = 0; loop1 < 13; loop1++) {
      const float val0 = loop1 >= 1 && loop1 < 11 ? in1[idx1 + loop1 - 1] : 0.0f;
      out0[idx0 + loop1] = val0;
    }
  }
}
