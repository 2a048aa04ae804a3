#include <stdbool.h>

// integers: LOOP 10, UPCAST 4
void integers(void** buffers, long long lo, long long hi) {
  int* const out0 = buffers[0];
  const unsigned char* const in1 = buffers[1];
  const int* const in2 = buffers[2];
  const int* const in3 = buffers[3];
  for (int loop0_0 = 0; loop0_0 < 10; loop0_0++) {
    const int idx0 = loop0_0 * 4;
    const bool val0_0 = in1[idx0] != 0;
    const bool val0_1 = in1[idx0 + 1] != 0;
    const bool val0_2 = in1[idx0 + 2] != 0;
    const bool val0_3 = in1[idx0 + 3] != 0;
    const int val1_0 = in2[idx0];
    const int val1_1 = in2[idx0 + 1];
    const int val1_2 = in2[idx0 + 2];
    const int val1_3 = in2[idx0 + 3];
    const int val2_0 = in3[idx0];
    const int val2_1 = in3[idx0 + 1];
    const int val2_2 = in3[idx0 + 2];
    const int val2_3 = in3[idx0 + 3];
    const int alu0_0 = val0_0 ? (int)((unsigned int)val1_0 * val2_0) : (int)((unsigned int)val1_0 + (unsigned int)val2_0
        * -1);
    const int alu0_1 = val0_1 ? (int)((unsigned int)val1_1 * val2_1) : (int)((unsigned int)val1_1 + (unsigned int)val2_1
        * -1);
    const int alu0_2 = val0_2 ? (int)((unsigned int)val1_2 * val2_2) : (int)((unsigned int)val1_2 + (unsigned int)val2_2
        * -1);
    const int alu0_3 = val0_3 ? (int)((unsigned int)val1_3 * val2_3) : (int)((unsigned int)val1_3 + (unsigned int)val2_3
        * -1);
    out0[idx0] = alu0_0;
    out0[idx0 + 1] = alu0_1;
    out0[idx0 + 2] = alu0_2;
    out0[idx0 + 3] = alu0_3;
  }
}
