// Attention of 1 to 8 query rows over the cache of heads.metal, grouped heads, optional sliding window by absolute
// position. Keys are cut at multiples of 256 absolute positions; a threadgroup takes one key head over one such part and
// all the (row, head) pairs that read it, so a key is read from memory once however many rows and heads look at it.
// The parts are then merged in order, with the gate of the head. With many rows (prefill) there are threadgroups enough without
// parts: one takes a key head, some rows and all their keys.
//
// A (row, head) sees the same parts, the same tiles and the same order whoever shares the launch: no bit depends on that.
// With parts and without them the order is not the same.
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
  int tile_rows;  // of attend_rows
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

// The factor of a head's gate.
inline float opening(act gate) {
  return 1.0f / (1.0f + precise::exp(-float(gate)));
}

// What a simdgroup has of each of its (row, head) pairs: E channels a lane, the largest score, the sum of weights.
template <int E, int Q>
struct Partial {
  float acc[Q * E];
  float top[Q];
  float total[Q];
};

constexpr int tile_keys(int e) { return e > 4 ? 16 : 32; }
constexpr int tile_pitch(int e) { return 32 * e + 2; }

// Rows `row0 .. row0 + rows` of q, the first of them at `position`, over keys `oldest ..= newest` of key head `kv`. A simdgroup
// takes every eighth of the (row, head) pairs. The bounds are the threadgroup's, so all of it meets at the barriers.
template <int E, int Q>
inline void attend_span(
    const device act* q,
    const device act* keys,
    const device act* values,
    constant AttendShape& shape,
    threadgroup act* tile,
    int kv,
    int row0,
    int rows,
    int position,
    int oldest,
    int newest,
    uint tid,
    uint sg,
    uint lane,
    thread Partial<E, Q>& p) {
  constexpr int TILE = tile_keys(E);
  constexpr int PITCH = tile_pitch(E);
  const int d = shape.head_dim;
  const int per_group = shape.q_heads / shape.kv_heads;
  const int queries = per_group * rows;
  float weight[Q];
  for (int i = 0; i < Q; i++) {
    p.top[i] = LOWEST;
    p.total[i] = 0.0f;
    weight[i] = 0.0f;
    for (int e = 0; e < E; e++) {
      p.acc[i * E + e] = 0.0f;
    }
  }

  for (int t = oldest / TILE * TILE; t <= newest; t += TILE) {
    const int low = max(t, oldest);
    const int high = min(t + TILE - 1, newest);
    for (int i = int(tid); i < (high - low + 1) * d; i += SIMDGROUPS * SIMD) {
      const int key = low + i / d;
      const int c = i % d;
      tile[(key - t) * PITCH + c] = keys[(slot_of(key, shape.base, shape.capacity) * shape.kv_heads + kv) * d + c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < Q; i++) {
      const int query = int(sg) + SIMDGROUPS * i;
      if (query >= queries) {
        break;
      }
      const int row = query / per_group;
      const int head = kv * per_group + query % per_group;
      const int first = max(low, first_key(position + row, shape.origin, shape.window));
      const int last = min(high, position + row);
      if (first > last) {
        continue;
      }
      const int key = t + int(lane);
      const bool seen = key >= first && key <= last;
      float score = LOWEST;
      if (seen) {
        const device act* qp = q + ((long)(row0 + row) * shape.q_heads + head) * d;
        const threadgroup act* kp = tile + int(lane) * PITCH;
        float dot = 0.0f;
        for (int c = 0; c < d; c++) {
          dot = fma(float(qp[c]), float(kp[c]), dot);
        }
        score = dot * shape.scale;
      }
      const float now = max(p.top[i], simd_max(score));
      const float fade = precise::exp(p.top[i] - now);
      weight[i] = seen ? precise::exp(score - now) : 0.0f;
      p.total[i] = p.total[i] * fade + simd_sum(weight[i]);
      p.top[i] = now;
      for (int e = 0; e < E; e++) {
        p.acc[i * E + e] *= fade;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(tid); i < (high - low + 1) * d; i += SIMDGROUPS * SIMD) {
      const int key = low + i / d;
      const int c = i % d;
      tile[(key - t) * PITCH + c] = values[(slot_of(key, shape.base, shape.capacity) * shape.kv_heads + kv) * d + c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < Q; i++) {
      const int query = int(sg) + SIMDGROUPS * i;
      if (query >= queries) {
        break;
      }
      const int row = query / per_group;
      const int first = max(low, first_key(position + row, shape.origin, shape.window));
      const int last = min(high, position + row);
      for (int key = first; key <= last; key++) {
        const float w = simd_shuffle(weight[i], ushort(key - t));
        for (int e = 0; e < E; e++) {
          const int c = e * SIMD + int(lane);
          if (c < d) {
            p.acc[i * E + e] = fma(w, float(tile[(key - t) * PITCH + c]), p.acc[i * E + e]);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
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
  threadgroup act tile[tile_keys(E) * tile_pitch(E)];
  const int d = shape.head_dim;
  const int kv = int(tgp.x);
  const int per_group = shape.q_heads / shape.kv_heads;
  const int queries = per_group * shape.rows;
  const int position = int(start[0]);
  const int oldest = first_key(position, shape.origin, shape.window);
  const int part = oldest / PART + int(tgp.y);
  const int part_first = max(part * PART, oldest);
  const int part_last = min(part * PART + PART - 1, position + shape.rows - 1);
  Partial<E, Q> p;
  attend_span<E, Q>(
      q, keys, values, shape, tile, kv, 0, shape.rows, position, part_first, part_last, tid, sg, lane, p);

  for (int i = 0; i < Q; i++) {
    const int query = int(sg) + SIMDGROUPS * i;
    if (query >= queries) {
      break;
    }
    const int row = query / per_group;
    const int head = kv * per_group + query % per_group;
    const long at = ((long)row * shape.q_heads + head) * shape.parts + int(tgp.y);
    if (lane == 0) {
      part_top[at * 2] = p.top[i];
      part_top[at * 2 + 1] = p.total[i];
    }
    for (int e = 0; e < E; e++) {
      const int c = e * SIMD + int(lane);
      if (c < d) {
        part_sum[at * d + c] = p.acc[i * E + e];
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
    factor *= opening(gate[pair]);
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

// Many rows: a threadgroup takes `tile_rows` of them, and no part is written and read again.
template <int E>
[[kernel]] void attend_rows(
    const device act* q [[buffer(0)]],
    const device act* keys [[buffer(1)]],
    const device act* values [[buffer(2)]],
    const device uint* start [[buffer(3)]],
    device act* y [[buffer(4)]],                // [rows, q_heads, head_dim]
    constant AttendShape& shape [[buffer(5)]],
    const device act* gate [[buffer(6), function_constant(has_gate)]],   // [rows, q_heads]
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int Q = 8;
  threadgroup act tile[tile_keys(E) * tile_pitch(E)];
  const int d = shape.head_dim;
  const int kv = int(tgp.x);
  const int per_group = shape.q_heads / shape.kv_heads;
  const int row0 = int(tgp.y) * shape.tile_rows;
  const int rows = min(shape.tile_rows, shape.rows - row0);
  const int position = int(start[0]) + row0;
  const int oldest = first_key(position, shape.origin, shape.window);
  Partial<E, Q> p;
  attend_span<E, Q>(
      q, keys, values, shape, tile, kv, row0, rows, position, oldest, position + rows - 1, tid, sg, lane, p);

  for (int i = 0; i < Q; i++) {
    const int query = int(sg) + SIMDGROUPS * i;
    if (query >= per_group * rows) {
      break;
    }
    const long pair = (long)(row0 + query / per_group) * shape.q_heads + kv * per_group + query % per_group;
    float factor = 1.0f / p.total[i];
    if (has_gate) {
      factor *= opening(gate[pair]);
    }
    for (int e = 0; e < E; e++) {
      const int c = e * SIMD + int(lane);
      if (c < d) {
        y[pair * d + c] = act(p.acc[i * E + e] * factor);
      }
    }
  }
}

#define ATTEND(e, q) \
  template [[host_name("attend_e" #e "_q" #q "_" ACT_NAME)]] [[kernel]] decltype(attend<e, q>) attend<e, q>;
#define ATTEND_Q(e) \
  ATTEND(e, 1) ATTEND(e, 2) ATTEND(e, 4) ATTEND(e, 8) \
  template [[host_name("attend_rows_e" #e "_" ACT_NAME)]] [[kernel]] decltype(attend_rows<e>) attend_rows<e>;
ATTEND_Q(1)
ATTEND_Q(2)
ATTEND_Q(3)
ATTEND_Q(4)
ATTEND_Q(6)
ATTEND_Q(8)
