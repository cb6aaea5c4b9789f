// Rows of an embedding table, unpacked: y [rows, k]. An id outside the table gives NaN, which the logits then show.
#include "common.metal"

struct EmbedShape {
  int k;
  int n;
};

template <int BITS>
[[kernel]] void embed(
    const device uchar* w [[buffer(0)]],
    const device uchar* scales [[buffer(1)]],
    const device uchar* biases [[buffer(2)]],
    const device uint* ids [[buffer(3)]],
    device act* y [[buffer(4)]],
    constant EmbedShape& shape [[buffer(5)]],
    uint3 tgp [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int k = shape.k;
  const int c = (int(tgp.x) * SIMD + int(lane)) * 8;
  if (c >= k) {
    return;
  }
  const int valid = min(8, k - c);
  const long id = ids[tgp.y];
  float q[8];
  float s = 1.0f;
  float b = 0.0f;
  if (id < shape.n) {
    unpack8<BITS>(w + id * ((long)k * BITS / 8) + (long)c * BITS / 8, valid, q);
    if (BITS <= 8) {
      const long g = id * (k / group_size) + c / group_size;
      s = stored_float(scales, g);
      b = stored_float(biases, g);
    }
  } else {
    for (int i = 0; i < 8; i++) {
      q[i] = as_type<float>(0x7fc00000u);
    }
  }
  for (int i = 0; i < valid; i++) {
    y[(long)tgp.y * k + c + i] = act(BITS <= 8 ? fma(q[i], s, b) : q[i]);
  }
}

#define EMBED(b) template [[host_name("embed_b" #b "_" ACT_NAME)]] [[kernel]] decltype(embed<b>) embed<b>;
EMBED(2)
EMBED(3)
EMBED(4)
EMBED(5)
EMBED(6)
EMBED(8)
EMBED(16)
EMBED(32)
