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
  constexpr int E = MAX_EXPERTS / 32;
  threadgroup uint all[8 * MAX_CHOSEN];
  threadgroup uint sorted[8 * MAX_CHOSEN];
  const int n = shape.n_experts;
  const int m = shape.n_chosen;
  const int row = int(sg);

  if (row < shape.rows) {
    float score[E];
    float top = LOWEST;
    for (int i = 0; i < E; i++) {
      const int e = i * SIMD + int(lane);
      score[i] = e < n ? logits[row * n + e] : LOWEST;
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
    uint mine = lane;
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
    int rank = 0;
    for (int c = 0; c < m; c++) {
      const uint other = simd_shuffle(mine, ushort(c));
      rank += other < mine ? 1 : 0;
    }
    // In ascending order of the experts, as everything that sums over them.
    float divisor = 0.0f;
    for (int r = 0; r < m; r++) {
      divisor += simd_sum(int(lane) < m && rank == r ? my_score : 0.0f);
    }
    if (int(lane) < m) {
      chosen[row * m + rank] = mine;
      weights[row * m + rank] = my_score / (router_renormalise ? divisor + 1e-20f : 1.0f) * shape.scale;
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
