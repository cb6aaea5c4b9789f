// The activation alone, for a gate and an up of different storage, which the fused kernel cannot take.
#include "common.metal"

[[host_name("swiglu_" ACT_NAME)]] [[kernel]] void swiglu(
    const device act* gate [[buffer(0)]],
    const device act* up [[buffer(1)]],
    device act* y [[buffer(2)]],
    constant float& limit [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    uint i [[thread_position_in_grid]]) {
  if (i < n) {
    y[i] = act(gated(float(gate[i]), float(up[i]), has_limit, limit));
  }
}
