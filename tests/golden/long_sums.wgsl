@group(0) @binding(0) var<storage, read_write> out0: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> in1: array<vec2<u32>>;

fn add_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let w0: vec2<u32> = a;
  let w1: vec2<u32> = b;
  let w2: u32 = w1.x;
  let w3: u32 = w0.x + w2;
  return vec2<u32>(w3, 0u) | vec2<u32>(0u, w0.y + w1.y + u32(w3 < w2));
}

// long_sums: GLOBAL 2, REDUCE 16, UPCAST 2
@compute @workgroup_size(1, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0_0: i32 = i32(group_id.x);  // GLOBAL 2
  var acc0_0: vec2<u32> = vec2<u32>(0u, 0u);
  var acc0_1: vec2<u32> = vec2<u32>(0u, 0u);
  let idx0: i32 = global0_0 * 2;
  let idx1: i32 = global0_0 * 32;
  for (var reduce1: i32 = 0; reduce1 < 16; reduce1++) {
    let idx2: i32 = idx1 + reduce1;
    let val0_0: vec2<u32> = in1[idx2];
    let val0_1: vec2<u32> = in1[idx2 + 16];
    let alu0_0: vec2<u32> = val0_0;
    let alu0_1: vec2<u32> = val0_1;
    let alu1_0: u32 = alu0_0.x;
    let alu1_1: u32 = alu0_1.x;
    let alu2_0: u32 = (alu1_0 >> 16u) * 3u + (((alu1_0 & 65535u) * 3u) >> 16u);
    let alu2_1: u32 = (alu1_1 >> 16u) * 3u + (((alu1_1 & 65535u) * 3u) >> 16u);
    let alu3_0: vec2<u32> = vec2<u32>((alu2_0 >> 16u) + ((alu2_0 & 65535u) >> 16u) + alu0_0.y * 3u, 0u);
    let alu3_1: vec2<u32> = vec2<u32>((alu2_1 >> 16u) + ((alu2_1 & 65535u) >> 16u) + alu0_1.y * 3u, 0u);
    acc0_0 = add_int64(acc0_0, vec2<u32>(alu1_0 * 3u, 0u) | vec2<u32>(0u, alu3_0.x));
    acc0_1 = add_int64(acc0_1, vec2<u32>(alu1_1 * 3u, 0u) | vec2<u32>(0u, alu3_1.x));
  }
  out0[idx0] = acc0_0;
  out0[idx0 + 1] = acc0_1;
}
