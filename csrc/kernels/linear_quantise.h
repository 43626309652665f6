// A row of activations in int8, as linear_layout.h describes it.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// A scale is chosen so that 127.49, which rounds to 127, is the most it has to hold: rounding in the products that lead
// here can't make 128 of it.
constexpr float kMostHeld = 127.49f;

// 2^-e of the smallest group exponent: below that every q is zero anyway.
constexpr int kLeastExponent = -96;

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo

#if defined(__AVX512VNNI__)
#include "linear_quantise_avx512.h"
#else
#include "magnitude.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

OCTAVO_INLINE float row_magnitude(const float* x, int32_t k, Int8Group*) { return magnitude(x, k); }

// Smallest e with largest * 2^-e <= kMostHeld: the exponent of the quotient, rounded up.
OCTAVO_INLINE int half_exponent(float largest) {
  int e = int((float_to_bits(largest * (1.0f / kMostHeld)) + 0x7fffffu) >> 23) - 127;
  return max_int(kLeastExponent, min_int(0, e));
}
OCTAVO_INLINE float power_of_two(int e) { return bits_to_float(uint32_t(e + 127) << 23); }

// Quantises x * inverse, which is at most 127 in magnitude.
OCTAVO_INLINE void quantise_groups(const float* x, float inverse, int32_t groups, Int8Group* out) {
  for (int32_t g = 0; g < groups; g++, x += kGroup, out++) {
    float sum = 0.0f;
    for (int h = 0; h < 2; h++) {
      f32x16 a = mul(load(x + h * kHalf), set1(inverse));
      int e = half_exponent(reduce_max(abs(a)));
      float rounded[kLanes];
      store(rounded, round_even(mul(a, set1(power_of_two(-e)))));
      int32_t q_sum = 0;
      for (int i = 0; i < kHalf; i++) q_sum += out->q[h * kHalf + i] = int8_t(rounded[i]);
      out->origin[h] = 1.5f * power_of_two(23 + e);
      out->signed_origin[h] = int32_t(float_to_bits(out->origin[h])) - 128 * q_sum;
      sum += power_of_two(e) * float(q_sum);
    }
    out->sum = sum;
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo

#endif

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// A row that holds a NaN or an infinity gets the scale NaN, so that the outputs show it; one whose scale would not be a
// normal number counts as zero.
void quantise_row(const float* x, int32_t k, uint8_t* dst) {
  Int8Group* out = (Int8Group*)(dst + kRowHeaderBytes);
  float magnitude = row_magnitude(x, k, out);
  int32_t groups = k / kGroup;
  bool ordinary = magnitude >= 1e-30f;  // false for NaN
  float scale = ordinary || magnitude != magnitude ? magnitude * (1.0f / 127.0f) : 0.0f;
  memset(dst, 0, kRowHeaderBytes);
  memcpy(dst, &scale, 4);
  if (ordinary) quantise_groups(x, 127.0f / magnitude, groups, out);
  else memset(out, 0, size_t(groups) * sizeof(Int8Group));
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
