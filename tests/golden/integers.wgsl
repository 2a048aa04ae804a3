@group(0) @binding(0) var<storage, read_write> out0: array<i32>;
@group(0) @binding(1) var<storage, read_write> in1: array<u32>;
@group(0) @binding(2) var<storage, read_write> in2: array<i32>;
@group(0) @binding(3) var<storage, read_write> in3: array<i32>;

// integers: GLOBAL 10, UPCAST 4
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.x);  // GLOBAL 10
  let idx0: i32 = global0_0 * 4;
  let word0: u32 = in1[idx0 >> 2u];
  let val1: bool = extractBits(word0, 0u, 8u) != 0u;
  let val2: bool = extractBits(word0, 8u, 8u) != 0u;
  let val3: bool = extractBits(word0, 16u, 8u) != 0u;
  let val4: bool = extractBits(word0, 24u, 8u) != 0u;
  let val5_0: i32 = in2[idx0];
  let val5_1: i32 = in2[idx0 + 1];
  let val5_2: i32 = in2[idx0 + 2];
  let val5_3: i32 = in2[idx0 + 3];
  let val6_0: i32 = in3[idx0];
  let val6_1: i32 = in3[idx0 + 1];
  let val6_2: i32 = in3[idx0 + 2];
  let val6_3: i32 = in3[idx0 + 3];
  out0[idx0] = select(val5_0 + val6_0 * -1, val5_0 * val6_0, val1);
  out0[idx0 + 1] = select(val5_1 + val6_1 * -1, val5_1 * val6_1, val2);
  out0[idx0 + 2] = select(val5_2 + val6_2 * -1, val5_2 * val6_2, val3);
  out0[idx0 + 3] = select(val5_3 + val6_3 * -1, val5_3 * val6_3, val4);
}
