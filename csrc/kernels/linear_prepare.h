// Activations as the linear kernels read them: f32 as they are or rounded to bf16, pairs of bf16, or int8.
#pragma once
#include "linear_quantise.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

[[maybe_unused]] int64_t prepared_row_bytes(ActivationKind kind, int32_t k) {
  int64_t bytes = 0;
  switch (kind) {
    case ActivationKind::f32:
    case ActivationKind::bf16_as_f32: bytes = int64_t(k) * 4; break;
    case ActivationKind::bf16: bytes = int64_t(k + k % 2) * 2; break;
    case ActivationKind::int8: bytes = kRowHeaderBytes + int64_t(k / kGroup) * int64_t(sizeof(Int8Group)); break;
  }
  // An odd number of cache lines: 16 rows that lie a power of two apart would share one set of the first-level cache,
  // which has room for half of them.
  return ((bytes + 63) / 64 | 1) * 64;
}

void prepare_bf16_row(const float* x, int32_t k, uint16_t* out) {
  int32_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store_bf16(out + i, load(x + i));
  for (; i < k; i++) out[i] = f32_to_bf16(x[i]);
  if (k % 2) out[k] = 0;  // the second half of the last pair
}

void round_row_to_bf16(const float* x, int32_t k, float* out) {
  uint16_t rounded[kLanes];
  int32_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    store_bf16(rounded, load(x + i));
    store(out + i, load_bf16(rounded));
  }
  for (; i < k; i++) out[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

void prepare_row(ActivationKind kind, const float* x, int32_t k, uint8_t* dst) {
  switch (kind) {
    case ActivationKind::f32: memcpy(dst, x, size_t(k) * 4); break;
    case ActivationKind::bf16: prepare_bf16_row(x, k, (uint16_t*)dst); break;
    case ActivationKind::int8: quantise_row(x, k, dst); break;
    case ActivationKind::bf16_as_f32: round_row_to_bf16(x, k, (float*)dst); break;
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
