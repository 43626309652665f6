// Activations as the linear kernels read them: f32, bf16, or int8 with a scale per group of 32.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

OCTAVO_INLINE int64_t round_up_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t prepared_row_bytes(ActivationKind kind, int32_t k) {
  switch (kind) {
    case ActivationKind::f32: return round_up_64(int64_t(k + k % 2) * 4);
    case ActivationKind::bf16: return round_up_64(int64_t(k + k % 2) * 2);
    case ActivationKind::int8: return round_up_64(int64_t(k / kGroup) * int64_t(sizeof(Int8Group)));
  }
  return 0;
}

// scale = amax / 127, q = round(x / scale). A group that holds a NaN or an infinity gets the scale NaN, so that the
// outputs show it; one too small for the scale to be a normal number counts as zero.
void quantise_group(const float* x, Int8Group* out) {
  float amax = 0.0f, poison = 0.0f;
  for (int i = 0; i < kGroup; i++) {
    amax = x[i] > amax ? x[i] : -x[i] > amax ? -x[i] : amax;
    poison += x[i] - x[i];
  }
  bool ordinary = poison == 0.0f && amax > 1e-35f;
  float inverse = ordinary ? 127.0f / amax : 0.0f;
  out->scale = ordinary ? amax / 127.0f : poison;
  out->sum = 0;
  for (int i = 0; i < kGroup; i++) {
    float scaled = ordinary ? x[i] * inverse : 0.0f;
    out->q[i] = int8_t(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    out->sum += out->q[i];
  }
  out->scaled_sum = out->scale * float(out->sum);
  out->unused = 0;
}

void prepare_row(ActivationKind kind, const float* x, int32_t k, uint8_t* dst) {
  if (kind == ActivationKind::int8) {
    for (int32_t g = 0; g < k / kGroup; g++) quantise_group(x + g * kGroup, (Int8Group*)dst + g);
    return;
  }
  memset(dst, 0, size_t(prepared_row_bytes(kind, k)));
  if (kind == ActivationKind::f32) {
    memcpy(dst, x, size_t(k) * 4);
  } else {
    for (int32_t i = 0; i < k; i++) ((uint16_t*)dst)[i] = f32_to_bf16(x[i]);
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
