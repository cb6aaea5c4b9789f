// Which experts each of 1 to 8 rows goes to, with what weight, and which rows share an expert; nothing returns to the
// host. One threadgroup of 256, a simdgroup a row.
//
// A row's choice: scores = sigmoid or softmax of the logits; the n_chosen largest of score + bias, of equals the lower
// expert; ascending; weights are the scores, divided by their sum if asked, times the scale. A row with a choice that
// is not finite goes to the first experts with weight NaN, so that the logits show it.
//
// Runs: the (row, choice) pairs sorted by expert. runs[i] = (expert, first place in `order`, count); count 0 pads.
#include "common.metal"

constant constexpr int MAX_EXPERTS = 512;
constant constexpr int MAX_CHOSEN = 16;

struct RouterShape {
  int rows;
  int n_experts;
  int n_chosen;
  float scale;
};

inline bool finite_bits(float v) {
  return (as_type<uint>(v) & 0x7f800000u) != 0x7f800000u;
}

// The choices of one row by a simdgroup: lane i < n_chosen gets expert `mine`, its place `rank` among the row's, and its weight.
inline void choose(
    const device float* logits,
    constant RouterShape& shape,
    const device uchar* bias,
    uint lane,
    thread uint& mine,
    thread int& rank,
    thread float& weight) {
  constexpr int E = MAX_EXPERTS / 32;
  const int n = shape.n_experts;
  const int m = shape.n_chosen;
  float score[E];
  float top = LOWEST;
  for (int i = 0; i < E; i++) {
    const int e = i * SIMD + int(lane);
    score[i] = e < n ? logits[e] : LOWEST;
    top = max(top, score[i]);
  }
  float sum = 0.0f;
  top = router_softmax ? simd_max(top) : 0.0f;
  for (int i = 0; i < E; i++) {
    const int e = i * SIMD + int(lane);
    if (e < n) {
      score[i] = router_softmax ? precise::exp(score[i] - top) : 1.0f / (1.0f + precise::exp(-score[i]));
      sum += score[i];
    }
  }
  const float all_of_it = router_softmax ? simd_sum(sum) : 1.0f;
  float wanted[E];
  uint bad = 0;
  for (int i = 0; i < E; i++) {
    const int e = i * SIMD + int(lane);
    score[i] = score[i] / all_of_it;
    wanted[i] = LOWEST;
    if (e < n) {
      wanted[i] = score[i];
      if (router_bias) {
        wanted[i] += stored_float(bias, e);
      }
      bad |= finite_bits(wanted[i]) ? 0u : 1u;
    }
  }
  bad = simd_max(bad);

  // Choice i lives in lane i.
  mine = lane;
  float my_score = as_type<float>(0x7fc00000u);
  for (int c = 0; c < m; c++) {
    float best = LOWEST;
    uint at = 0xffffffffu;
    for (int i = 0; i < E; i++) {
      const int e = i * SIMD + int(lane);
      if (e < n && (at == 0xffffffffu || wanted[i] > best)) {
        best = wanted[i];
        at = uint(e);
      }
    }
    const float largest = simd_max(best);
    const uint id = simd_min(best == largest ? at : 0xffffffffu);
    // Its score is in the lane that owns it.
    float s = 0.0f;
    for (int i = 0; i < E; i++) {
      if (uint(i * SIMD) + lane == id) {
        s = score[i];
        wanted[i] = LOWEST;
      }
    }
    s = simd_shuffle(s, ushort(id % SIMD));
    if (int(lane) == c && bad == 0) {
      mine = id;
      my_score = s;
    }
  }
  rank = 0;
  for (int c = 0; c < m; c++) {
    const uint other = simd_shuffle(mine, ushort(c));
    rank += other < mine ? 1 : 0;
  }
  // In ascending order of the experts, as everything that sums over them.
  float divisor = 0.0f;
  for (int r = 0; r < m; r++) {
    divisor += simd_sum(int(lane) < m && rank == r ? my_score : 0.0f);
  }
  weight = my_score / (router_renormalise ? divisor + 1e-20f : 1.0f) * shape.scale;
}

[[kernel]] void router(
    const device float* logits [[buffer(0)]],     // [rows, n_experts]
    device uint* chosen [[buffer(1)]],            // [rows, n_chosen]
    device float* weights [[buffer(2)]],
    device uint* order [[buffer(3)]],             // [rows * n_chosen]: pairs by expert
    device uint* runs [[buffer(4)]],              // [rows * n_chosen, 3]
    constant RouterShape& shape [[buffer(5)]],
    const device uchar* bias [[buffer(6), function_constant(router_bias)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint all[8 * MAX_CHOSEN];
  threadgroup uint sorted[8 * MAX_CHOSEN];
  const int m = shape.n_chosen;
  const int row = int(sg);

  if (row < shape.rows) {
    uint mine = 0;
    int rank = 0;
    float weight = 0.0f;
    choose(logits + row * shape.n_experts, shape, bias, lane, mine, rank, weight);
    if (int(lane) < m) {
      chosen[row * m + rank] = mine;
      weights[row * m + rank] = weight;
      all[row * m + rank] = mine;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const int pairs = shape.rows * m;
  const int me = int(tid);
  if (me < pairs) {
    int place = 0;
    for (int i = 0; i < pairs; i++) {
      place += all[i] < all[me] || (all[i] == all[me] && i < me) ? 1 : 0;
    }
    sorted[place] = all[me];
    order[place] = uint(me);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (me < pairs) {
    int run = 0;
    int n_runs = 0;
    for (int i = 0; i < pairs; i++) {
      const bool begins = i == 0 || sorted[i] != sorted[i - 1];
      run += begins && i < me ? 1 : 0;
      n_runs += begins ? 1 : 0;
    }
    if (me == 0 || sorted[me] != sorted[me - 1]) {
      int count = 1;
      while (me + count < pairs && sorted[me + count] == sorted[me]) {
        count++;
      }
      runs[run * 3] = sorted[me];
      runs[run * 3 + 1] = uint(me);
      runs[run * 3 + 2] = uint(count);
    }
    if (me >= n_runs) {
      runs[me * 3] = 0;
      runs[me * 3 + 1] = 0;
      runs[me * 3 + 2] = 0;
    }
  }
}

// The choices alone of any number of rows (prefill), 8 a threadgroup; `router_tiles` sorts them.
[[kernel]] void router_rows(
    const device float* logits [[buffer(0)]],
    device uint* chosen [[buffer(1)]],
    device float* weights [[buffer(2)]],
    constant RouterShape& shape [[buffer(3)]],
    const device uchar* bias [[buffer(6), function_constant(router_bias)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int row = int(tgp.x) * 8 + int(sg);
  if (row >= shape.rows) {
    return;
  }
  uint mine = 0;
  int rank = 0;
  float weight = 0.0f;
  choose(logits + (long)row * shape.n_experts, shape, bias, lane, mine, rank, weight);
  if (int(lane) < shape.n_chosen) {
    chosen[row * shape.n_chosen + rank] = mine;
    weights[row * shape.n_chosen + rank] = weight;
  }
}

struct TilesShape {
  int pairs;
  int n_experts;
  int tiles;   // at most pairs / 32 + n_experts, or pairs: the rest gets count 0
};

// `order` = the pairs by expert, of one expert in ascending order; `tiles` = (expert, first place in `order`, count) of up to
// 32 pairs. One threadgroup of 512, a thread an expert: each looks at all pairs, and neighbours read the same one at once.
[[kernel]] void router_tiles(
    const device uint* chosen [[buffer(0)]],
    device uint* order [[buffer(1)]],
    device uint* tiles [[buffer(2)]],     // [tiles, 3]
    constant TilesShape& shape [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr int TILE = 32;
  threadgroup int counts[MAX_EXPERTS];
  const int me = int(tid);
  int count = 0;
  for (int i = 0; i < shape.pairs; i++) {
    count += chosen[i] == tid ? 1 : 0;
  }
  counts[me] = count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int first = 0;
  int tile = 0;
  int all = 0;
  for (int e = 0; e < shape.n_experts; e++) {
    const int n = (counts[e] + TILE - 1) / TILE;
    first += e < me ? counts[e] : 0;
    tile += e < me ? n : 0;
    all += n;
  }
  if (count > 0) {
    int to = first;
    for (int i = 0; i < shape.pairs; i++) {
      if (chosen[i] == tid) {
        order[to] = uint(i);
        to++;
      }
    }
    for (int done = 0; done < count; done += TILE) {
      tiles[tile * 3] = tid;
      tiles[tile * 3 + 1] = uint(first + done);
      tiles[tile * 3 + 2] = uint(min(TILE, count - done));
      tile++;
    }
  }
  for (int i = all + me; i < shape.tiles; i += MAX_EXPERTS) {
    tiles[i * 3] = 0;
    tiles[i * 3 + 1] = 0;
    tiles[i * 3 + 2] = 0;
  }
}
