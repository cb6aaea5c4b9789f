// y = x W^T for 1 to 8 rows and up to four matrices that share x and their storage (query, key, value, gate in one
// launch). A simdgroup computes 4 outputs of one matrix, a threadgroup 8; no threadgroup memory, no barrier.
#include "common.metal"

struct LinearShape {
  int k;
  int n[4];
  float limit;
};

// One matrix's tile. The row count is the template's, so the inner loops are unrolled for exactly that many rows.
template <int BITS, int ROWS>
inline void linear_tile(
    const device uchar* w,
    const device uchar* scales,
    const device uchar* biases,
    const device act* x,
    device uchar* y,
    const device act* residual,
    int k,
    int n,
    float limit,
    int tile,
    uint sg,
    uint lane) {
  const int first = (tile * 2 + int(sg)) * 4;
  int at[ROWS];
  for (int r = 0; r < ROWS; r++) {
    at[r] = r;
  }
  float acc[ROWS * 4];
  dot_rows<BITS, ROWS, 4>(w, scales, biases, x, at, ROWS, k, n, first, lane, acc);
  for (int r = 0; r < ROWS; r++) {
    for (int j = 0; j < 4; j++) {
      const float v = simd_sum(acc[r * 4 + j]);
      if (lane == 0 && first + j < n) {
        const long i = (long)r * n + first + j;
        if (gates) {
          put(y, i, gated(float(residual[i]), v, has_limit, limit));
        } else {
          put(y, i, has_residual ? v + float(residual[i]) : v);
        }
      }
    }
  }
}

template <int BITS, int ROWS>
[[kernel]] void linear(
    const device uchar* w0 [[buffer(0)]],
    const device uchar* s0 [[buffer(1)]],
    const device uchar* b0 [[buffer(2)]],
    const device act* x [[buffer(3)]],
    device uchar* y0 [[buffer(4)]],
    constant LinearShape& shape [[buffer(5)]],
    const device act* residual [[buffer(6), function_constant(has_residual)]],
    const device uchar* w1 [[buffer(7), function_constant(has_second)]],
    const device uchar* s1 [[buffer(8), function_constant(has_second)]],
    const device uchar* b1 [[buffer(9), function_constant(has_second)]],
    device uchar* y1 [[buffer(10), function_constant(has_second)]],
    const device uchar* w2 [[buffer(11), function_constant(has_third)]],
    const device uchar* s2 [[buffer(12), function_constant(has_third)]],
    const device uchar* b2 [[buffer(13), function_constant(has_third)]],
    device uchar* y2 [[buffer(14), function_constant(has_third)]],
    const device uchar* w3 [[buffer(15), function_constant(has_fourth)]],
    const device uchar* s3 [[buffer(16), function_constant(has_fourth)]],
    const device uchar* b3 [[buffer(17), function_constant(has_fourth)]],
    device uchar* y3 [[buffer(18), function_constant(has_fourth)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int k = shape.k;
  int tile = int(tgp.x);
  const device uchar* w = w0;
  const device uchar* s = s0;
  const device uchar* b = b0;
  device uchar* y = y0;
  int n = shape.n[0];
  int tiles = (n + 7) / 8;
  if (has_second && tile >= tiles) {
    tile -= tiles;
    w = w1; s = s1; b = b1; y = y1;
    n = shape.n[1];
    tiles = (n + 7) / 8;
    if (has_third && tile >= tiles) {
      tile -= tiles;
      w = w2; s = s2; b = b2; y = y2;
      n = shape.n[2];
      tiles = (n + 7) / 8;
      if (has_fourth && tile >= tiles) {
        tile -= tiles;
        w = w3; s = s3; b = b3; y = y3;
        n = shape.n[3];
      }
    }
  }
  linear_tile<BITS, ROWS>(w, s, b, x, y, residual, k, n, shape.limit, tile, sg, lane);
}

struct GateUpShape {
  int k;
  int n;
  float limit;
};

// swiglu(x G^T, x U^T): a simdgroup takes 2 outputs of each matrix, so the product never leaves its registers. `count` rows
// of the ROWS the kernel is built for exist.
template <int BITS, int ROWS>
[[kernel]] void gate_up(
    const device uchar* wg [[buffer(0)]],
    const device uchar* sg_ [[buffer(1)]],
    const device uchar* bg [[buffer(2)]],
    const device uchar* wu [[buffer(3)]],
    const device uchar* su [[buffer(4)]],
    const device uchar* bu [[buffer(5)]],
    const device act* x [[buffer(6)]],
    device act* y [[buffer(7)]],
    constant GateUpShape& shape [[buffer(8)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int k = shape.k;
  const int n = shape.n;
  const int first = (int(tgp.x) * 2 + int(sg)) * 2;
  int at[ROWS];
  for (int r = 0; r < ROWS; r++) {
    at[r] = r;
  }
  float g[ROWS * 2];
  float u[ROWS * 2];
  dot_rows<BITS, ROWS, 2>(wg, sg_, bg, x, at, ROWS, k, n, first, lane, g);
  dot_rows<BITS, ROWS, 2>(wu, su, bu, x, at, ROWS, k, n, first, lane, u);
  for (int r = 0; r < ROWS; r++) {
    for (int j = 0; j < 2; j++) {
      const float gate = simd_sum(g[r * 2 + j]);
      const float up = simd_sum(u[r * 2 + j]);
      if (lane == 0 && first + j < n) {
        y[(long)r * n + first + j] = act(gated(gate, up, has_limit, shape.limit));
      }
    }
  }
}

#define LINEAR(b, r) \
  template [[host_name("linear_b" #b "_r" #r "_" ACT_NAME)]] [[kernel]] decltype(linear<b, r>) linear<b, r>; \
  template [[host_name("gate_up_b" #b "_r" #r "_" ACT_NAME)]] [[kernel]] decltype(gate_up<b, r>) gate_up<b, r>;
#define LINEAR_ROWS(b) \
  LINEAR(b, 1) LINEAR(b, 2) LINEAR(b, 3) LINEAR(b, 4) LINEAR(b, 5) LINEAR(b, 6) LINEAR(b, 7) LINEAR(b, 8)
LINEAR_ROWS(2)
LINEAR_ROWS(3)
LINEAR_ROWS(4)
LINEAR_ROWS(5)
LINEAR_ROWS(6)
LINEAR_ROWS(8)
LINEAR_ROWS(16)
LINEAR_ROWS(32)
