@group(0) @binding(0) var<storage, read_write> out0: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read_write> in1: array<u32>;
var<workgroup> shared0: array<u32, 8>;

fn load_in1(index: i32) -> u32 { return extractBits(in1[index >> 2u], u32(index & 3) * 8u, 8u); }
fn store_out0(index: i32, value: u32) {
  let shift = u32(index & 3) * 8u;
  let change = ((atomicLoad(&out0[index >> 2u]) >> shift) ^ u32(value)) & 255u;
  atomicXor(&out0[index >> 2u], change << shift);
}

// byte_rows_group: GLOBAL 6, LOCAL 8, REDUCE 8, UNROLL 8
@compute @workgroup_size(8, 1, 1)
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) thread_id: vec3<u32>) {
  let global0: i32 = i32(group_id.x);  // GLOBAL 6
  let local1_1: i32 = i32(thread_id.x);  // LOCAL 8
  var acc0: u32 = 0u;
  var acc1: u32 = 0u;
  let idx0: i32 = global0 * 64;
  for (var reduce1_0: i32 = 0; reduce1_0 < 8; reduce1_0++) {
    let val0: u32 = load_in1(idx0 + reduce1_0 * 8 + local1_1);
    acc0 = (acc0 + val0) & 255u;
  }
  shared0[local1_1] = acc0;
  workgroupBarrier();
  let val1_0: u32 = shared0[0];
  let val1_1: u32 = shared0[1];
  let val1_2: u32 = shared0[2];
  let val1_3: u32 = shared0[3];
  let val1_4: u32 = shared0[4];
  let val1_5: u32 = shared0[5];
  let val1_6: u32 = shared0[6];
  let val1_7: u32 = shared0[7];
  acc1 = (acc1 + val1_0) & 255u;
  acc1 = (acc1 + val1_1) & 255u;
  acc1 = (acc1 + val1_2) & 255u;
  acc1 = (acc1 + val1_3) & 255u;
  acc1 = (acc1 + val1_4) & 255u;
  acc1 = (acc1 + val1_5) & 255u;
  acc1 = (acc1 + val1_6) & 255u;
  acc1 = (acc1 + val1_7) & 255u;
  if (local1_1 == 0) {
    store_out0(global0, acc1);
  }
}
