// RMSNorm of rows of d, optionally of x + delta, whose sum is then kept as well. One threadgroup of 256 a row. Rows of y are
// `pitch` apart, so that the norms of two inputs can be written side by side: the second one is the grid's second line.
#include "common.metal"

struct NormShape {
  int d;
  float eps;
  int pitch;          // the second norm stands behind the first
  float second_eps;
};

[[host_name("rms_norm_" ACT_NAME)]] [[kernel]] void rms_norm(
    const device act* x [[buffer(0)]],
    const device uchar* w [[buffer(1)]],
    device act* y [[buffer(2)]],
    constant NormShape& shape [[buffer(3)]],
    const device act* delta [[buffer(4), function_constant(norm_adds)]],
    device act* kept [[buffer(5), function_constant(norm_adds)]],
    const device act* second_x [[buffer(6), function_constant(has_second)]],
    const device uchar* second_w [[buffer(7), function_constant(has_second)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[8];
  const int d = shape.d;
  const long row = (long)tgp.x * d;
  long to = (long)tgp.x * shape.pitch;
  const device act* in = x;
  const device uchar* weights = w;
  float eps = shape.eps;
  if (has_second) {
    if (tgp.y == 1) {
      to += d;
      in = second_x;
      weights = second_w;
      eps = shape.second_eps;
    }
  }
  float sum = 0.0f;
  for (int i = int(tid); i < d; i += 256) {
    float v = float(in[row + i]);
    if (norm_adds) {
      // Rounded to what is kept, so that the norm sees what later layers see.
      const act total = act(v + float(delta[row + i]));
      kept[row + i] = total;
      v = float(total);
    }
    sum = fma(v, v, sum);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    part[sg] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (int i = 0; i < 8; i++) {
    total += part[i];
  }
  const float scale = 1.0f / precise::sqrt(total / float(d) + eps);
  for (int i = int(tid); i < d; i += 256) {
    const float v = norm_adds ? float(kept[row + i]) : float(in[row + i]);
    const float weight = stored_float(weights, i) + (plus_one ? 1.0f : 0.0f);
    y[to + i] = act(v * scale * weight);
  }
}
