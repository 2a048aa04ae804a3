@group(1) @binding(0) var<uniform> unknown_zero: vec4<u32>;
@group(0) @binding(0) var<storage, read_write> out0: array<f32>;
@group(0) @binding(1) var<storage, read_write> in1: array<f32>;
@group(0) @binding(2) var<storage, read_write> in2: array<f32>;

fn zero_float32() -> f32 { return bitcast<f32>(unknown_zero.x); }
fn is_nan_float32(x: f32) -> bool { return (bitcast<u32>(x) & 2147483647u) > 2139095040u; }
fn max_float32(a: f32, b: f32) -> f32 {
  let chosen = select(a, b, (a < b) | is_nan_float32(b));
  return select(chosen, bitcast<f32>(bitcast<u32>(a) & bitcast<u32>(b)), a == b);
}

// product: GLOBAL 16 x 4, REDUCE 24, UPCAST 2 x 4
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.y);  // GLOBAL 16
  let global1_0: i32 = i32(group_id.x);  // GLOBAL 4
  var acc0_0_0: f32 = zero_float32();
  var acc0_0_1: f32 = zero_float32();
  var acc0_0_2: f32 = zero_float32();
  var acc0_0_3: f32 = zero_float32();
  var acc0_1_0: f32 = zero_float32();
  var acc0_1_1: f32 = zero_float32();
  var acc0_1_2: f32 = zero_float32();
  var acc0_1_3: f32 = zero_float32();
  let idx0: i32 = global1_0 * 4;
  let idx1: i32 = global0_0 * 32 + idx0;
  let idx2: i32 = global0_0 * 48;
  for (var reduce2: i32 = 0; reduce2 < 24; reduce2++) {
    let idx3: i32 = idx2 + reduce2;
    let val0_0: f32 = in1[idx3];
    let val0_1: f32 = in1[idx3 + 24];
    let idx4: i32 = idx0 + reduce2 * 16;
    let val1_0: f32 = in2[idx4];
    let val1_1: f32 = in2[idx4 + 1];
    let val1_2: f32 = in2[idx4 + 2];
    let val1_3: f32 = in2[idx4 + 3];
    acc0_0_0 += val0_0 * val1_0;
    acc0_0_1 += val0_0 * val1_1;
    acc0_0_2 += val0_0 * val1_2;
    acc0_0_3 += val0_0 * val1_3;
    acc0_1_0 += val0_1 * val1_0;
    acc0_1_1 += val0_1 * val1_1;
    acc0_1_2 += val0_1 * val1_2;
    acc0_1_3 += val0_1 * val1_3;
  }
  out0[idx1] = max_float32(acc0_0_0, zero_float32());
  out0[idx1 + 1] = max_float32(acc0_0_1, zero_float32());
  out0[idx1 + 2] = max_float32(acc0_0_2, zero_float32());
  out0[idx1 + 3] = max_float32(acc0_0_3, zero_float32());
  out0[idx1 + 16] = max_float32(acc0_1_0, zero_float32());
  out0[idx1 + 17] = max_float32(acc0_1_1, zero_float32());
  out0[idx1 + 18] = max_float32(acc0_1_2, zero_float32());
  out0[idx1 + 19] = max_float32(acc0_1_3, zero_float32());
}
