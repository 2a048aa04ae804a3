@group(1) @binding(0) var<uniform> unknown_zero: vec4<u32>;
@group(0) @binding(0) var<storage, read_write> out0: array<f32>;
@group(0) @binding(1) var<storage, read_write> in1: array<f32>;
var<workgroup> shared0: array<f32, 16>;

fn zero_float32() -> f32 { return bitcast<f32>(unknown_zero.x); }

// rows_group: GLOBAL 8, LOCAL 16, REDUCE 16 x 16
@compute @workgroup_size(16, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0: i32 = i32(group_id.x);  // GLOBAL 8
  let local1_1: i32 = i32(thread_id.x);  // LOCAL 16
  var acc0: f32 = zero_float32();
  var acc1: f32 = zero_float32();
  let idx0: i32 = global0 * 256;
  for (var reduce1_0: i32 = 0; reduce1_0 < 16; reduce1_0++) {
    let val0: f32 = in1[idx0 + reduce1_0 * 16 + local1_1];
    acc0 += val0;
  }
  shared0[local1_1] = acc0;
  workgroupBarrier();
  for (var reduce_added0: i32 = 0; reduce_added0 < 16; reduce_added0++) {
    let val1: f32 = shared0[reduce_added0];
    acc1 += val1;
  }
  if (local1_1 == 0) {
    out0[global0] = acc1;
  }
}
