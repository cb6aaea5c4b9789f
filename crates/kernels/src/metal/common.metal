// What every kernel shares. `source()` puts this in front of the others as one text; the emulator includes it.
//
// The host defines ACT, the type of activations and of the cache: bfloat where the GPU has it, half before, float in tests.
// Sums are float everywhere. The library must be compiled without fast maths: rewriting a sum differently for another
// row count would break the promise that a row's bits do not depend on its neighbours.
#include <metal_stdlib>
using namespace metal;

#ifndef ACT
#define ACT float
#define ACT_NAME "f32"
#endif
typedef ACT act;

constant constexpr int SIMD = 32;
constant constexpr float LOWEST = -3.0e38f;   // stands for minus infinity without being one

// Function constants, all of them here: an index may have one name only. The same numbers stand in `launch.rs`.
//
// Of scales and biases, of a norm's weight, or of a matrix of plain floats: 0 float, 1 half, 2 bfloat.
constant int float_type [[function_constant(0)]];
// Values that share a scale.
constant int group_size [[function_constant(1)]];
// The output is float whatever ACT is.
constant bool float_out [[function_constant(2)]];
// Further matrices in one launch of `linear`, and a second row of `rms_norm`.
constant bool has_second [[function_constant(3)]];
constant bool has_third [[function_constant(4)]];
constant bool has_fourth [[function_constant(5)]];
constant bool has_residual [[function_constant(6)]];
// The activation is limited, see `gated`.
constant bool has_limit [[function_constant(7)]];
// The norm is of a sum, which is kept.
constant bool norm_adds [[function_constant(8)]];
// A norm's weight is stored around zero: 1 + w is meant.
constant bool plus_one [[function_constant(9)]];
constant bool query_norm [[function_constant(10)]];
constant bool key_norm [[function_constant(11)]];
constant bool cache_is_ring [[function_constant(12)]];
constant bool has_window [[function_constant(13)]];
constant bool has_gate [[function_constant(14)]];
constant bool router_softmax [[function_constant(15)]];
constant bool router_bias [[function_constant(16)]];
constant bool router_renormalise [[function_constant(17)]];
// The product is `up`, and `gate` stands in the residual's place.
constant bool gates [[function_constant(18)]];
// The rows of a product are given by tiles of router.metal, each with a matrix of its own.
constant bool has_tiles [[function_constant(19)]];
// Queries, keys and values get a bias.
constant bool has_bias [[function_constant(20)]];

// Value i of a stretch of floats as they lie in the file. bfloat by shifting: older GPUs need not know the type.
inline float stored_float(const device uchar* p, long i) {
  if (float_type == 0) {
    return ((const device float*)p)[i];
  }
  if (float_type == 1) {
    return float(((const device half*)p)[i]);
  }
  return as_type<float>(uint(((const device ushort*)p)[i]) << 16);
}

inline void put(device uchar* y, long i, float v) {
  if (float_out) {
    ((device float*)y)[i] = v;
  } else {
    ((device act*)y)[i] = act(v);
  }
}

inline float silu(float g) {
  return g / (1.0f + precise::exp(-g));
}

// min(silu(g), limit) * clamp(u, -limit, limit), in the form that lets NaN pass.
inline float gated(float g, float u, bool limited, float limit) {
  float a = silu(g);
  if (limited) {
    a = a > limit ? limit : a;
    u = u > limit ? limit : u;
    u = u < -limit ? -limit : u;
  }
  return a * u;
}

// Eight values of a row from their first byte: codes for BITS up to 8, plain floats for 16 and 32. `valid` of them
// exist; the others are 0. Eight values are BITS bytes, so a lane's share never splits a byte or a group.
template <int BITS>
inline void unpack8(const device uchar* p, int valid, thread float* q) {
  if (BITS >= 16) {
    for (int i = 0; i < 8; i++) {
      q[i] = i < valid ? stored_float(p, i) : 0.0f;
    }
    return;
  }
  uint lo = 0;
  uint hi = 0;
  if (BITS == 2) {
    lo = *(const device ushort*)p;
  } else if (BITS == 3) {
    lo = uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16;
  } else if (BITS == 4) {
    lo = *(const device uint*)p;
  } else if (BITS == 5) {
    lo = uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
    hi = p[4];
  } else if (BITS == 6) {
    const device ushort* s = (const device ushort*)p;
    lo = uint(s[0]) | uint(s[1]) << 16;
    hi = s[2];
  } else {
    lo = ((const device uint*)p)[0];
    hi = ((const device uint*)p)[1];
  }
  const uint mask = (1u << (BITS & 31)) - 1u;
  for (int i = 0; i < 8; i++) {
    const int bit = i * BITS;
    uint u = bit < 32 ? lo >> (bit & 31) : hi >> (bit & 31);
    if (bit < 32 && bit + BITS > 32) {
      u |= hi << ((32 - bit) & 31);
    }
    q[i] = float(u & mask);
  }
}

// This lane's share of rows at[0..count] of x [.., k] times outputs first .. first + OUTS of a matrix [n, k], into
// acc[row * OUTS + output]. A weight is read and unpacked once for all rows. Which lane takes which values, and the order
// of the sum, depend on k alone.
template <int BITS, int ROWS, int OUTS>
inline void dot_rows(
    const device uchar* w,
    const device uchar* scales,
    const device uchar* biases,
    const device act* x,
    const thread int* at,
    int count,
    int k,
    int n,
    int first,
    uint lane,
    thread float* acc) {
  const long row_bytes = (long)k * BITS / 8;
  for (int i = 0; i < ROWS * OUTS; i++) {
    acc[i] = 0.0f;
  }
  for (int c = int(lane) * 8; c < k; c += SIMD * 8) {
    const int valid = min(8, k - c);
    float xs[ROWS * 8];
    float sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
      sum[r] = 0.0f;
      if (r < count) {
        const device act* row = x + (long)at[r] * k + c;
        for (int i = 0; i < 8; i++) {
          xs[r * 8 + i] = i < valid ? float(row[i]) : 0.0f;
          sum[r] += xs[r * 8 + i];
        }
      }
    }
    for (int j = 0; j < OUTS; j++) {
      const int o = first + j;
      if (o >= n) {
        break;
      }
      float q[8];
      unpack8<BITS>(w + o * row_bytes + (long)c * BITS / 8, valid, q);
      float s = 1.0f;
      float b = 0.0f;
      if (BITS <= 8) {
        const long g = (long)o * (k / group_size) + c / group_size;
        s = stored_float(scales, g);
        b = stored_float(biases, g);
      }
      for (int r = 0; r < ROWS; r++) {
        if (r < count) {
          float d = 0.0f;
          for (int i = 0; i < 8; i++) {
            d = fma(xs[r * 8 + i], q[i], d);
          }
          const float old = acc[r * OUTS + j];
          acc[r * OUTS + j] = BITS <= 8 ? fma(s, d, fma(b, sum[r], old)) : old + d;
        }
      }
    }
  }
}
