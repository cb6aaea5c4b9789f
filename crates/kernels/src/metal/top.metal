// The k largest of each row of logits [rows, n], largest first, of equals the lower index; k = 1 is argmax. One
// threadgroup of 1024 a row. A thread owns every 1024th logit and remembers its best one that is not taken; after each
// choice only the thread that gave it looks again. A NaN counts as larger than everything, so that it is seen.
#include "common.metal"

struct TopShape {
  int n;
  int k;
};

inline uint top_key(float v) {
  const uint bits = as_type<uint>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return 0xffffffffu;
  }
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

[[kernel]] void top(
    const device float* logits [[buffer(0)]],
    device uint* ids [[buffer(1)]],
    device float* values [[buffer(2)]],
    constant TopShape& shape [[buffer(3)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint best_key[32];
  threadgroup uint best_id[32];
  const int n = shape.n;
  const device float* row = logits + (long)tgp.x * n;
  uint last_key = 0xffffffffu;
  uint last_id = 0;
  bool first = true;
  bool stale = true;
  uint key = 0;
  uint id = 0xffffffffu;
  for (int i = 0; i < shape.k; i++) {
    if (stale) {
      key = 0;
      id = 0xffffffffu;
      for (int c = int(tid); c < n; c += 1024) {
        const uint at = top_key(row[c]);
        const bool free = first || at < last_key || (at == last_key && uint(c) > last_id);
        if (free && (id == 0xffffffffu || at > key)) {
          key = at;
          id = uint(c);
        }
      }
    }
    const uint simd_key = simd_max(key);
    const uint simd_id = simd_min(key == simd_key ? id : 0xffffffffu);
    if (lane == 0) {
      best_key[sg] = simd_key;
      best_id[sg] = simd_id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    last_key = simd_max(best_key[lane]);
    last_id = simd_min(best_key[lane] == last_key ? best_id[lane] : 0xffffffffu);
    if (tid == 0) {
      ids[(long)tgp.x * shape.k + i] = last_id;
      values[(long)tgp.x * shape.k + i] = row[last_id];
    }
    stale = id == last_id;
    first = false;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
