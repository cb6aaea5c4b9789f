// Attention of 1 to 8 query rows over the cache of heads.metal, grouped heads, optional sliding window by absolute
// position. Keys are cut at multiples of 256 absolute positions; a threadgroup takes one key head over one such part and
// all the (row, head) pairs that read it, so a key is read from memory once however many rows and heads look at it.
// The parts are then merged in order, with the gate of the head.
//
// A (row, head) sees the same parts, the same tiles and the same order whoever shares the launch: no bit depends on that.
#include "common.metal"

constant constexpr int PART = 256;
constant constexpr int SIMDGROUPS = 8;

struct AttendShape {
  int q_heads;
  int kv_heads;
  int head_dim;
  int rows;
  int base;       // absolute position of slot 0
  int capacity;   // slots
  int origin;     // oldest position there ever was
  int window;
  int parts;
  float scale;
};

// int, not long: a position is below 2^31.
inline int first_key(int position, int origin, int window) {
  const int low = has_window ? position + 1 - window : 0;
  return max(low, origin);
}

inline long slot_of(int position, int base, int capacity) {
  const int from_base = position - base;
  return cache_is_ring ? from_base % capacity : from_base;
}

// E: channels a lane owns, Q: (row, head) pairs a simdgroup owns.
template <int E, int Q>
[[kernel]] void attend(
    const device act* q [[buffer(0)]],        // [rows, q_heads, head_dim]
    const device act* keys [[buffer(1)]],     // [slots, kv_heads, head_dim]
    const device act* values [[buffer(2)]],
    const device uint* start [[buffer(3)]],
    device float* part_sum [[buffer(4)]],     // [rows, q_heads, parts, head_dim]
    device float* part_top [[buffer(5)]],     // [rows, q_heads, parts, 2]: largest score, sum of weights
    constant AttendShape& shape [[buffer(6)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int TILE = E > 4 ? 16 : 32;
  constexpr int PITCH = 32 * E + 2;
  threadgroup act tile[TILE * PITCH];

  const int d = shape.head_dim;
  const int kv = int(tgp.x);
  const int per_group = shape.q_heads / shape.kv_heads;
  const int queries = per_group * shape.rows;
  const int position = int(start[0]);
  const int origin = shape.origin;
  const int window = shape.window;
  const int part = first_key(position, origin, window) / PART + int(tgp.y);
  const int part_first = max(part * PART, first_key(position, origin, window));
  const int part_last = min(part * PART + PART - 1, position + shape.rows - 1);

  float acc[Q * E];
  float top[Q];
  float total[Q];
  float weight[Q];
  for (int i = 0; i < Q; i++) {
    top[i] = LOWEST;
    total[i] = 0.0f;
    weight[i] = 0.0f;
    for (int e = 0; e < E; e++) {
      acc[i * E + e] = 0.0f;
    }
  }

  for (int t = part * PART; t <= part_last; t += TILE) {
    // The loop bounds are the threadgroup's, so all of it meets at the barriers.
    if (t + TILE <= part_first) {
      continue;
    }
    const int low = max(t, part_first);
    const int high = min(t + TILE - 1, part_last);
    for (int i = int(tid); i < (high - low + 1) * d; i += SIMDGROUPS * SIMD) {
      const int p = low + i / d;
      const int c = i % d;
      tile[(p - t) * PITCH + c] = keys[(slot_of(p, shape.base, shape.capacity) * shape.kv_heads + kv) * d + c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < Q; i++) {
      const int query = int(sg) + SIMDGROUPS * i;
      if (query >= queries) {
        break;
      }
      const int row = query / per_group;
      const int head = kv * per_group + query % per_group;
      const int first = max(low, first_key(position + row, origin, window));
      const int last = min(high, position + row);
      if (first > last) {
        continue;
      }
      const int p = t + int(lane);
      const bool seen = p >= first && p <= last;
      float score = LOWEST;
      if (seen) {
        const device act* qp = q + ((long)row * shape.q_heads + head) * d;
        const threadgroup act* kp = tile + int(lane) * PITCH;
        float dot = 0.0f;
        for (int c = 0; c < d; c++) {
          dot = fma(float(qp[c]), float(kp[c]), dot);
        }
        score = dot * shape.scale;
      }
      const float now = max(top[i], simd_max(score));
      const float fade = precise::exp(top[i] - now);
      weight[i] = seen ? precise::exp(score - now) : 0.0f;
      total[i] = total[i] * fade + simd_sum(weight[i]);
      top[i] = now;
      for (int e = 0; e < E; e++) {
        acc[i * E + e] *= fade;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(tid); i < (high - low + 1) * d; i += SIMDGROUPS * SIMD) {
      const int p = low + i / d;
      const int c = i % d;
      tile[(p - t) * PITCH + c] = values[(slot_of(p, shape.base, shape.capacity) * shape.kv_heads + kv) * d + c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < Q; i++) {
      const int query = int(sg) + SIMDGROUPS * i;
      if (query >= queries) {
        break;
      }
      const int row = query / per_group;
      const int first = max(low, first_key(position + row, origin, window));
      const int last = min(high, position + row);
      for (int p = first; p <= last; p++) {
        const float w = simd_shuffle(weight[i], ushort(p - t));
        for (int e = 0; e < E; e++) {
          const int c = e * SIMD + int(lane);
          if (c < d) {
            acc[i * E + e] = fma(w, float(tile[(p - t) * PITCH + c]), acc[i * E + e]);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  for (int i = 0; i < Q; i++) {
    const int query = int(sg) + SIMDGROUPS * i;
    if (query >= queries) {
      break;
    }
    const int row = query / per_group;
    const int head = kv * per_group + query % per_group;
    const long at = ((long)row * shape.q_heads + head) * shape.parts + int(tgp.y);
    if (lane == 0) {
      part_top[at * 2] = top[i];
      part_top[at * 2 + 1] = total[i];
    }
    for (int e = 0; e < E; e++) {
      const int c = e * SIMD + int(lane);
      if (c < d) {
        part_sum[at * d + c] = acc[i * E + e];
      }
    }
  }
}

// One simdgroup a (head, row). A part the row does not see has weight 0 and changes nothing.
[[host_name("attend_merge_" ACT_NAME)]] [[kernel]] void attend_merge(
    const device float* part_sum [[buffer(0)]],
    const device float* part_top [[buffer(1)]],
    device act* y [[buffer(2)]],                // [rows, q_heads, head_dim]
    constant AttendShape& shape [[buffer(3)]],
    const device act* gate [[buffer(4), function_constant(has_gate)]],   // [rows, q_heads]
    uint3 tgp [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int d = shape.head_dim;
  const long pair = (long)tgp.y * shape.q_heads + tgp.x;
  float top = LOWEST;
  for (int i = 0; i < shape.parts; i++) {
    top = max(top, part_top[(pair * shape.parts + i) * 2]);
  }
  float total = 0.0f;
  for (int i = 0; i < shape.parts; i++) {
    const long at = (pair * shape.parts + i) * 2;
    total = fma(part_top[at + 1], precise::exp(part_top[at] - top), total);
  }
  float factor = 1.0f / total;
  if (has_gate) {
    factor *= 1.0f / (1.0f + precise::exp(-float(gate[pair])));
  }
  for (int c = int(lane); c < d; c += SIMD) {
    float sum = 0.0f;
    for (int i = 0; i < shape.parts; i++) {
      const long at = pair * shape.parts + i;
      sum = fma(part_sum[at * d + c], precise::exp(part_top[at * 2] - top), sum);
    }
    y[pair * d + c] = act(sum * factor);
  }
}

#define ATTEND(e, q) \
  template [[host_name("attend_e" #e "_q" #q "_" ACT_NAME)]] [[kernel]] decltype(attend<e, q>) attend<e, q>;
#define ATTEND_Q(e) ATTEND(e, 1) ATTEND(e, 2) ATTEND(e, 4) ATTEND(e, 8)
ATTEND_Q(1)
ATTEND_Q(2)
ATTEND_Q(3)
ATTEND_Q(4)
ATTEND_Q(6)
ATTEND_Q(8)
