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

// product_local: GLOBAL 4 x 4, LOCAL 8, REDUCE 24, UPCAST 4
@compute @workgroup_size(8, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.y);  // GLOBAL 4
  let global1_0: i32 = i32(group_id.x);  // GLOBAL 4
  let local0_1: i32 = i32(thread_id.x);  // LOCAL 8
  var acc0_0: f32 = zero_float32();
  var acc0_1: f32 = zero_float32();
  var acc0_2: f32 = zero_float32();
  var acc0_3: f32 = zero_float32();
  let idx0: i32 = global1_0 * 4;
  let idx1: i32 = global0_0 * 128 + local0_1 * 16 + idx0;
  let idx2: i32 = global0_0 * 192 + local0_1 * 24;
  for (var reduce2: i32 = 0; reduce2 < 24; reduce2++) {
    let val0: f32 = in1[idx2 + reduce2];
    let idx3: i32 = idx0 + reduce2 * 16;
    let val1_0: f32 = in2[idx3];
    let val1_1: f32 = in2[idx3 + 1];
    let val1_2: f32 = in2[idx3 + 2];
    let val1_3: f32 = in2[idx3 + 3];
    acc0_0 += val0 * val1_0;
    acc0_1 += val0 * val1_1;
    acc0_2 += val0 * val1_2;
    acc0_3 += val0 * val1_3;
  }
  out0[idx1] = max_float32(acc0_0, zero_float32());
  out0[idx1 + 1] = max_float32(acc0_1, zero_float32());
  out0[idx1 + 2] = max_float32(acc0_2, zero_float32());
  out0[idx1 + 3] = max_float32(acc0_3, zero_float32());
}
