@group(0) @binding(0) var<storage, read_write> out0: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read_write> in1: array<u32>;

fn load_in1(index: i32) -> i32 { return extractBits(bitcast<i32>(in1[index >> 1u]), u32(index & 1) * 16u, 16u); }
fn store_out0(index: i32, value: i32) {
  let shift = u32(index & 1) * 16u;
  let change = ((atomicLoad(&out0[index >> 1u]) >> shift) ^ u32(value)) & 65535u;
  atomicXor(&out0[index >> 1u], change << shift);
}

// shorts: GLOBAL 33
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0: i32 = i32(group_id.x);  // GLOBAL 33
  let val0: i32 = load_in1(global0);
  store_out0(global0, extractBits(val0 * -1, 0u, 16u));
}
