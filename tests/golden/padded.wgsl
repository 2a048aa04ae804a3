@group(1) @binding(0) var<uniform> unknown_zero: vec4<u32>;
@group(0) @binding(0) var<storage, read_write> out0: array<f32>;
@group(0) @binding(1) var<storage, read_write> in1: array<f32>;

fn zero_float32() -> f32 { return bitcast<f32>(unknown_zero.x); }

// padded: GLOBAL 6 x 13
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0: i32 = i32(group_id.y);  // GLOBAL 6
  let global1: i32 = i32(group_id.x);  // GLOBAL 13
  let val0: f32 = select(zero_float32(), in1[select(0, global0 * 10 + global1 + -1, (global1 < 11) & !(global1 < 1))],
      (global1 < 11) & !(global1 < 1));
  out0[global0 * 13 + global1] = val0;
}
