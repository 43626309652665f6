// Activations as the linear kernels read them: f32, bf16, or int8 as linear_layout.h describes it.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

OCTAVO_INLINE int64_t round_up_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t prepared_row_bytes(ActivationKind kind, int32_t k) {
  switch (kind) {
    case ActivationKind::f32: return round_up_64(int64_t(k) * 4);
    case ActivationKind::bf16: return round_up_64(int64_t(k + k % 2) * 2);
    case ActivationKind::int8: return round_up_64(kRowHeaderBytes + int64_t(k / kGroup) * int64_t(sizeof(Int8Group)));
  }
  return 0;
}

// Smallest e with largest * 2^-e <= 127.49 (what rounds to 127), held to [-96, 0]: below that q is zero anyway.
OCTAVO_INLINE int half_exponent(float largest) {
  int e = int((float_to_bits(largest * (1.0f / 127.49f)) + 0x7fffffu) >> 23) - 127;
  return max_int(-96, min_int(0, e));
}
OCTAVO_INLINE float power_of_two(int e) { return bits_to_float(uint32_t(e + 127) << 23); }

// Stores 16 integral floats of [-127, 127] as bytes and returns their sum.
OCTAVO_INLINE int32_t store_bytes(int8_t* q, f32x16 rounded) {
#if defined(__AVX512VNNI__)
  __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(rounded.v));
  _mm_storeu_si128((__m128i*)q, bytes);
  __m128i fours = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), bytes);
  __m128i twos = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
#else
  float values[kLanes];
  store(values, rounded);
  int32_t sum = 0;
  for (int i = 0; i < kLanes; i++) sum += q[i] = int8_t(values[i]);
  return sum;
#endif
}

// `halves` are already in units of the row's scale: at most 127 in magnitude.
OCTAVO_INLINE void quantise_group(const f32x16* halves, Int8Group* out) {
  float sum = 0.0f;
  for (int h = 0; h < 2; h++) {
    int e = half_exponent(reduce_max(abs(halves[h])));
    int32_t q_sum = store_bytes(out->q + h * kHalf, round_even(mul(halves[h], set1(power_of_two(-e)))));
    out->origin[h] = 1.5f * power_of_two(23 + e);
    sum += power_of_two(e) * float(q_sum);
  }
  out->sum = sum;
  out->minus_8_sum = -8.0f * sum;
  out->minus_128_sum = -128.0f * sum;
}

// A row that holds a NaN or an infinity gets the scale NaN, so that the outputs show it; one whose scale would not be a
// normal number counts as zero.
void prepare_int8_row(const float* x, int32_t k, uint8_t* dst) {
  f32x16 largest = zero(), poison = zero();
  for (int32_t i = 0; i < k; i += kLanes) {
    f32x16 a = load(x + i);
    largest = max(largest, abs(a));
    poison = add(poison, sub(a, a));
  }
  float amax = reduce_max(largest), nan = reduce_add(poison);
  bool ordinary = nan == 0.0f && amax >= 1e-30f;
  float scale = ordinary ? amax * (1.0f / 127.0f) : nan, inverse = ordinary ? 127.0f / amax : 0.0f;
  memset(dst, 0, kRowHeaderBytes);
  memcpy(dst, &scale, 4);
  for (int32_t g = 0; g < k / kGroup; g++) {
    f32x16 halves[2] = {zero(), zero()};
    if (ordinary)
      for (int h = 0; h < 2; h++) halves[h] = mul(load(x + g * kGroup + h * kHalf), set1(inverse));
    quantise_group(halves, (Int8Group*)(dst + kRowHeaderBytes) + g);
  }
}

void prepare_row(ActivationKind kind, const float* x, int32_t k, uint8_t* dst) {
  if (kind == ActivationKind::int8) return prepare_int8_row(x, k, dst);
  if (kind == ActivationKind::f32) {
    memcpy(dst, x, size_t(k) * 4);
    return;
  }
  uint16_t* out = (uint16_t*)dst;
  int32_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store_bf16(out + i, load(x + i));
  for (; i < k; i++) out[i] = f32_to_bf16(x[i]);
  if (k % 2) out[k] = 0;  // the second half of the last pair
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
