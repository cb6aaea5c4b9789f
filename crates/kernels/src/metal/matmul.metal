// y = x W^T for prefill: any number of rows, 32 x 32 outputs a threadgroup, 8x8 matrices in float. Four simdgroups, each
// 16 x 16. A weight is unpacked once per 32 rows. Its sum runs in another order than linear.metal's; a row's bits still do
// not depend on the rows beside it.
//
// Row tiles are the fast side of the grid: those that share 32 outputs follow each other, so that the weights come from
// memory once and from a cache after that.
//
// Of routed experts, a tile is up to 32 (row, choice) pairs of one expert, whose matrices lie stacked as [experts, n, k]:
// pair p reads row p / n_chosen of x and writes row p of y.
#include "common.metal"

struct MatmulShape {
  int k;
  int n;
  int rows;
  int n_chosen;   // pairs that share a row of x
  float limit;
};

template <int BITS>
[[kernel]] void matmul(
    const device uchar* w [[buffer(0)]],
    const device uchar* scales [[buffer(1)]],
    const device uchar* biases [[buffer(2)]],
    const device act* x [[buffer(3)]],
    device uchar* y [[buffer(4)]],
    constant MatmulShape& shape [[buffer(5)]],
    const device act* residual [[buffer(6), function_constant(has_residual)]],
    const device uint* order [[buffer(7), function_constant(has_tiles)]],
    const device uint* tiles [[buffer(8), function_constant(has_tiles)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float xs[32 * 32];   // [row, k]
  threadgroup float ws[32 * 32];   // [output, k]
  const int k = shape.k;
  const int n = shape.n;
  const int out0 = int(tgp.y) * 32;
  const int sub_row = int(sg) / 2 * 16;
  const int sub_out = int(sg) % 2 * 16;
  const int line = int(tid) / 4;      // a thread loads 8 values of one line of each tile
  const int place = int(tid) % 4 * 8;

  // The row of x and of y of this thread's line; -1: there is none.
  long from = int(tgp.x) * 32 + line;
  long to = from;
  long stacked = 0;
  int count = min(32, shape.rows - int(tgp.x) * 32);
  if (has_tiles) {
    stacked = tiles[tgp.x * 3];
    count = int(tiles[tgp.x * 3 + 2]);
    // The same for all of the threadgroup.
    if (count == 0) {
      return;
    }
    to = line < count ? long(order[tiles[tgp.x * 3 + 1] + uint(line)]) : -1;
    from = line < count ? to / shape.n_chosen : -1;
  } else if (line >= count) {
    from = -1;
    to = -1;
  }
  // Blocks of 8 rows this simdgroup has: an expert's tile is seldom full.
  const int blocks = clamp((count - sub_row + 7) / 8, 0, 2);

  simdgroup_float8x8 acc[4];
  for (int i = 0; i < 4; i++) {
    acc[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
  }
  for (int c0 = 0; c0 < k; c0 += 32) {
    const int c = c0 + place;
    const int valid = clamp(k - c, 0, 8);
    for (int i = 0; i < 8; i++) {
      xs[line * 32 + place + i] = from >= 0 && i < valid ? float(x[from * k + c + i]) : 0.0f;
    }
    float q[8];
    for (int i = 0; i < 8; i++) {
      q[i] = 0.0f;
    }
    const long o = stacked * n + out0 + line;
    if (out0 + line < n && valid > 0) {
      unpack8<BITS>(w + o * ((long)k * BITS / 8) + (long)c * BITS / 8, valid, q);
      if (BITS <= 8) {
        const long g = o * (k / group_size) + c / group_size;
        const float s = stored_float(scales, g);
        const float b = stored_float(biases, g);
        for (int i = 0; i < 8; i++) {
          q[i] = fma(q[i], s, b);
        }
      }
    }
    for (int i = 0; i < 8; i++) {
      ws[line * 32 + place + i] = q[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int step = 0; step < 32; step += 8) {
      simdgroup_float8x8 a[2];
      simdgroup_float8x8 b[2];
      // Conditions and not shorter loops, which could not be unrolled.
      for (int i = 0; i < 2; i++) {
        if (i < blocks) {
          simdgroup_load(a[i], xs + (sub_row + 8 * i) * 32 + step, 32);
        }
        if (blocks > 0) {
          simdgroup_load(b[i], ws + (sub_out + 8 * i) * 32 + step, 32, ulong2(0, 0), true);
        }
      }
      for (int i = 0; i < 4; i++) {
        if (i / 2 < blocks) {
          simdgroup_multiply_accumulate(acc[i], a[i / 2], b[i % 2], acc[i]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // Through threadgroup memory, because edges are cut off there.
  for (int i = 0; i < 4; i++) {
    simdgroup_store(acc[i], xs + (sub_row + i / 2 * 8) * 32 + sub_out + i % 2 * 8, 32);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < 8; i++) {
    const int o = out0 + place + i;
    if (to >= 0 && o < n) {
      const long at = to * n + o;
      const float v = xs[line * 32 + place + i];
      if (gates) {
        put(y, at, gated(float(residual[at]), v, has_limit, shape.limit));
      } else {
        put(y, at, has_residual ? v + float(residual[at]) : v);
      }
    }
  }
}

#define MATMUL(b) template [[host_name("matmul_b" #b "_" ACT_NAME)]] [[kernel]] decltype(matmul<b>) matmul<b>;
MATMUL(2)
MATMUL(3)
MATMUL(4)
MATMUL(5)
MATMUL(6)
MATMUL(8)
MATMUL(16)
MATMUL(32)
