// Between the projections and attention, in one launch: optional bias and RMSNorm of each query and key head, rotation of the first
// 2 * half channels (channel j with j + half), and keys and values into the cache. One simdgroup a (head, row), any number of rows.
//
// The cache is [slot, kv heads, head_dim]; a position's slot is its distance from `base`, around a ring if there is one.
#include "common.metal"

struct HeadsShape {
  int q_heads;
  int kv_heads;
  int head_dim;
  int half_turn;   // pairs that turn
  int base;        // absolute position of slot 0
  int capacity;    // slots
  float eps;
};

[[host_name("heads_" ACT_NAME)]] [[kernel]] void heads(
    const device act* q [[buffer(0)]],
    const device act* k [[buffer(1)]],
    const device act* v [[buffer(2)]],
    const device float* cosines [[buffer(3)]],    // [positions, half]
    const device float* sines [[buffer(4)]],
    const device uint* start [[buffer(5)]],       // absolute position of row 0
    device act* q_out [[buffer(6)]],
    device act* keys [[buffer(7)]],
    device act* values [[buffer(8)]],
    constant HeadsShape& shape [[buffer(9)]],
    const device uchar* q_weight [[buffer(10), function_constant(query_norm)]],
    const device uchar* k_weight [[buffer(11), function_constant(key_norm)]],
    const device float* bias [[buffer(12), function_constant(has_bias)]],    // [q heads + 2 kv heads, head_dim]
    uint3 tgp [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float head[256];
  const int row = int(tgp.y);
  const int d = shape.head_dim;
  const long position = long(start[0]) + row;
  const long from_base = position - shape.base;
  const long slot = cache_is_ring ? from_base % shape.capacity : from_base;
  int h = int(tgp.x);
  const device act* in = q;
  device act* out = q_out;
  long at = 0;
  long to = 0;
  int kind = 0;
  if (h < shape.q_heads) {
    at = ((long)row * shape.q_heads + h) * d;
    to = at;
  } else {
    h -= shape.q_heads;
    kind = h < shape.kv_heads ? 1 : 2;
    h -= kind == 1 ? 0 : shape.kv_heads;
    in = kind == 1 ? k : v;
    out = kind == 1 ? keys : values;
    at = ((long)row * shape.kv_heads + h) * d;
    to = (slot * shape.kv_heads + h) * d;
  }
  if (kind == 2) {
    for (int i = int(lane); i < d; i += SIMD) {
      float x = float(in[at + i]);
      if (has_bias) {
        x += bias[int(tgp.x) * d + i];
      }
      out[to + i] = act(x);
    }
    return;
  }
  const bool normed = kind == 0 ? query_norm : key_norm;
  float sum = 0.0f;
  for (int i = int(lane); i < d; i += SIMD) {
    float x = float(in[at + i]);
    if (has_bias) {
      x += bias[int(tgp.x) * d + i];
    }
    head[i] = x;
    sum = fma(x, x, sum);
  }
  if (normed) {
    const float scale = 1.0f / precise::sqrt(simd_sum(sum) / float(d) + shape.eps);
    for (int i = int(lane); i < d; i += SIMD) {
      float weight = plus_one ? 1.0f : 0.0f;
      if (kind == 0) {
        if (query_norm) {
          weight += stored_float(q_weight, i);
        }
      } else if (key_norm) {
        weight += stored_float(k_weight, i);
      }
      head[i] = float(act(head[i] * scale * weight));
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const int turned = shape.half_turn;
  for (int j = int(lane); j < turned; j += SIMD) {
    const float c = cosines[position * turned + j];
    const float s = sines[position * turned + j];
    const float a = head[j];
    const float b = head[j + turned];
    out[to + j] = act(a * c - b * s);
    out[to + j + turned] = act(b * c + a * s);
  }
  for (int i = 2 * turned + int(lane); i < d; i += SIMD) {
    out[to + i] = act(head[i]);
  }
}
