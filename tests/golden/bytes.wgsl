@group(0) @binding(0) var<storage, read_write> out0: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read_write> in1: array<u32>;
@group(0) @binding(2) var<storage, read_write> in2: array<u32>;

// bytes: GLOBAL 8, UPCAST 8
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.x);  // GLOBAL 8
  let idx0: i32 = global0_0 * 8;
  let word0: u32 = in1[idx0 >> 2u];
  let val1: u32 = extractBits(word0, 0u, 8u);
  let val2: u32 = extractBits(word0, 8u, 8u);
  let val3: u32 = extractBits(word0, 16u, 8u);
  let val4: u32 = extractBits(word0, 24u, 8u);
  let word1: u32 = in1[(idx0 + 4) >> 2u];
  let val5: u32 = extractBits(word1, 0u, 8u);
  let val6: u32 = extractBits(word1, 8u, 8u);
  let val7: u32 = extractBits(word1, 16u, 8u);
  let val8: u32 = extractBits(word1, 24u, 8u);
  let word2: u32 = in2[idx0 >> 2u];
  let val10: u32 = extractBits(word2, 0u, 8u);
  let val11: u32 = extractBits(word2, 8u, 8u);
  let val12: u32 = extractBits(word2, 16u, 8u);
  let val13: u32 = extractBits(word2, 24u, 8u);
  let word3: u32 = in2[(idx0 + 4) >> 2u];
  let val14: u32 = extractBits(word3, 0u, 8u);
  let val15: u32 = extractBits(word3, 8u, 8u);
  let val16: u32 = extractBits(word3, 16u, 8u);
  let val17: u32 = extractBits(word3, 24u, 8u);
  atomicStore(&out0[idx0 >> 2u], ((val1 + val10) & 255u) | (((val2 + val11) & 255u) << 8u) | (((val3 + val12) & 255u) <<
      16u) | (((val4 + val13) & 255u) << 24u));
  atomicStore(&out0[(idx0 + 4) >> 2u], ((val5 + val14) & 255u) | (((val6 + val15) & 255u) << 8u) | (((val7 + val16) &
      255u) << 16u) | (((val8 + val17) & 255u) << 24u));
}
