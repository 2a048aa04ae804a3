@group(1) @binding(0) var<uniform> unknown_zero: vec4<u32>;
@group(0) @binding(0) var<storage, read_write> out0: array<f32>;
@group(0) @binding(1) var<storage, read_write> in1: array<f32>;

fn exact_float32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ unknown_zero.x); }
fn zero_float32() -> f32 { return bitcast<f32>(unknown_zero.x); }
fn is_nan_float32(x: f32) -> bool { return (bitcast<u32>(x) & 2147483647u) > 2139095040u; }
fn max_float32(a: f32, b: f32) -> f32 {
  let chosen = select(a, b, (a < b) | is_nan_float32(b));
  return select(chosen, bitcast<f32>(bitcast<u32>(a) & bitcast<u32>(b)), a == b);
}

// round_away: GLOBAL 20, UPCAST 2
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.x);  // GLOBAL 20
  let idx0: i32 = global0_0 * 2;
  let val0_0: f32 = in1[idx0];
  let val0_1: f32 = in1[idx0 + 1];
  let alu0_0: f32 = max_float32(exact_float32(exact_float32(val0_0 + 12582912.0f) - 12582912.0f), exact_float32(val0_0 *
      zero_float32()));
  let alu0_1: f32 = max_float32(exact_float32(exact_float32(val0_1 + 12582912.0f) - 12582912.0f), exact_float32(val0_1 *
      zero_float32()));
  out0[idx0] = alu0_0;
  out0[idx0 + 1] = alu0_1;
}
