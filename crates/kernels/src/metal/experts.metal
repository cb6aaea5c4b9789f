// Routed experts over the runs of router.metal: a run's rows share one reading of its expert's matrices, which lie
// stacked as [experts, n, k]. Pair p is choice p % n_chosen of row p / n_chosen.
#include "common.metal"

struct ExpertShape {
  int k;
  int n;
  int n_chosen;
  float limit;
};

// One expert's part of a stack.
template <int BITS>
inline long codes_of(long expert, int k, int n) {
  return expert * n * ((long)k * BITS / 8);
}
inline long scales_of(long expert, int k, int n) {
  return expert * n * (k / group_size) * (float_type == 0 ? 4 : 2);
}

// y [pair, n] = swiglu(x gate^T, x up^T) for every pair. ROWS is the most a run can have.
template <int BITS, int ROWS>
[[kernel]] void experts_gate_up(
    const device uchar* wg [[buffer(0)]],
    const device uchar* sg_ [[buffer(1)]],
    const device uchar* bg [[buffer(2)]],
    const device uchar* wu [[buffer(3)]],
    const device uchar* su [[buffer(4)]],
    const device uchar* bu [[buffer(5)]],
    const device act* x [[buffer(6)]],
    device act* y [[buffer(7)]],
    constant ExpertShape& shape [[buffer(8)]],
    const device uint* order [[buffer(9)]],
    const device uint* runs [[buffer(10)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int k = shape.k;
  const int n = shape.n;
  const long expert = runs[tgp.z * 3];
  const int begin = int(runs[tgp.z * 3 + 1]);
  const int count = int(runs[tgp.z * 3 + 2]);
  if (count == 0) {
    return;
  }
  const int first = (int(tgp.x) * 2 + int(sg)) * 2;
  int at[ROWS];
  int pair[ROWS];
  for (int r = 0; r < ROWS; r++) {
    pair[r] = r < count ? int(order[begin + r]) : 0;
    at[r] = pair[r] / shape.n_chosen;
  }
  const long w = codes_of<BITS>(expert, k, n);
  const long s = BITS <= 8 ? scales_of(expert, k, n) : 0;
  float g[ROWS * 2];
  float u[ROWS * 2];
  dot_rows<BITS, ROWS, 2>(wg + w, sg_ + s, bg + s, x, at, count, k, n, first, lane, g);
  dot_rows<BITS, ROWS, 2>(wu + w, su + s, bu + s, x, at, count, k, n, first, lane, u);
  for (int r = 0; r < ROWS; r++) {
    for (int j = 0; j < 2; j++) {
      const float gate = simd_sum(g[r * 2 + j]);
      const float up = simd_sum(u[r * 2 + j]);
      if (lane == 0 && r < count && first + j < n) {
        y[(long)pair[r] * n + first + j] = act(gated(gate, up, has_limit, shape.limit));
      }
    }
  }
}

// y [pair, n] = x [pair] down^T, in float: the weighting comes after.
template <int BITS, int ROWS>
[[kernel]] void experts_down(
    const device uchar* w [[buffer(0)]],
    const device uchar* scales [[buffer(1)]],
    const device uchar* biases [[buffer(2)]],
    const device act* x [[buffer(3)]],
    device float* y [[buffer(4)]],
    constant ExpertShape& shape [[buffer(5)]],
    const device uint* order [[buffer(6)]],
    const device uint* runs [[buffer(7)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int k = shape.k;
  const int n = shape.n;
  const long expert = runs[tgp.z * 3];
  const int begin = int(runs[tgp.z * 3 + 1]);
  const int count = int(runs[tgp.z * 3 + 2]);
  if (count == 0) {
    return;
  }
  const int first = (int(tgp.x) * 2 + int(sg)) * 4;
  int pair[ROWS];
  for (int r = 0; r < ROWS; r++) {
    pair[r] = r < count ? int(order[begin + r]) : 0;
  }
  const long s = BITS <= 8 ? scales_of(expert, k, n) : 0;
  float acc[ROWS * 4];
  dot_rows<BITS, ROWS, 4>(
      w + codes_of<BITS>(expert, k, n), scales + s, biases + s, x, pair, count, k, n, first, lane, acc);
  for (int r = 0; r < ROWS; r++) {
    for (int j = 0; j < 4; j++) {
      const float v = simd_sum(acc[r * 4 + j]);
      if (lane == 0 && r < count && first + j < n) {
        y[(long)pair[r] * n + first + j] = v;
      }
    }
  }
}

struct SumShape {
  int n;
  int n_chosen;
  int total;   // rows * n
};

// y [rows, n] = rest + sum of weight * expert output, in ascending order of the experts. `rest` is the residual, with the
// shared expert if there is one.
[[host_name("experts_sum_" ACT_NAME)]] [[kernel]] void experts_sum(
    const device float* x [[buffer(0)]],
    const device float* weights [[buffer(1)]],
    const device act* rest [[buffer(2)]],
    device act* y [[buffer(3)]],
    constant SumShape& shape [[buffer(4)]],
    uint tid [[thread_position_in_grid]]) {
  const int i = int(tid);
  if (i >= shape.total) {
    return;
  }
  const long row = i / shape.n;
  const int c = i % shape.n;
  float sum = 0.0f;
  for (int m = 0; m < shape.n_chosen; m++) {
    const long pair = row * shape.n_chosen + m;
    sum = fma(weights[pair], x[pair * shape.n + c], sum);
  }
  y[i] = act(float(rest[i]) + sum);
}

#define EXPERTS(b, r) \
  template [[host_name("experts_gate_up_b" #b "_r" #r "_" ACT_NAME)]] [[kernel]] decltype(experts_gate_up<b, r>) experts_gate_up<b, r>; \
  template [[host_name("experts_down_b" #b "_r" #r "_" ACT_NAME)]] [[kernel]] decltype(experts_down<b, r>) experts_down<b, r>;
#define EXPERTS_ROWS(b) EXPERTS(b, 1) EXPERTS(b, 2) EXPERTS(b, 4) EXPERTS(b, 8)
EXPERTS_ROWS(2)
EXPERTS_ROWS(3)
EXPERTS_ROWS(4)
EXPERTS_ROWS(5)
EXPERTS_ROWS(6)
EXPERTS_ROWS(8)
EXPERTS_ROWS(16)
EXPERTS_ROWS(32)
