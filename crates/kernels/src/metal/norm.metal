// RMSNorm of rows of d, optionally of x + delta, whose sum is then kept as well. One threadgroup of 256 a row.
#include "common.metal"

struct NormShape {
  int d;
  float eps;
};

[[host_name("rms_norm_" ACT_NAME)]] [[kernel]] void rms_norm(
    const device act* x [[buffer(0)]],
    const device uchar* w [[buffer(1)]],
    device act* y [[buffer(2)]],
    constant NormShape& shape [[buffer(3)]],
    const device act* delta [[buffer(4), function_constant(norm_adds)]],
    device act* kept [[buffer(5), function_constant(norm_adds)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[8];
  const int d = shape.d;
  const long row = (long)tgp.x * d;
  float sum = 0.0f;
  for (int i = int(tid); i < d; i += 256) {
    float v = float(x[row + i]);
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
  const float scale = 1.0f / precise::sqrt(total / float(d) + shape.eps);
  for (int i = int(tid); i < d; i += 256) {
    const float v = norm_adds ? float(kept[row + i]) : float(x[row + i]);
    const float weight = stored_float(w, i) + (plus_one ? 1.0f : 0.0f);
    y[row + i] = act(v * scale * weight);
  }
}
