// linear_quantise.h for AVX-512: two groups, four halves, at a time, so that one tree of shuffles reduces all four, and
// in two passes over the row, short chains of dependent instructions that overlap.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Lane j: the largest magnitude of x[16 j] .. x[16 j + 15], as bits; a NaN's or infinity's are larger than any number's.
// Halves from `halves` on count as zero.
OCTAVO_INLINE __m128i four_magnitudes(const float* x, int32_t halves) {
  __m512i v[4], no_sign = _mm512_set1_epi32(0x7fffffff);
#pragma GCC unroll 4
  for (int h = 0; h < 4; h++)
    v[h] = h < halves ? _mm512_and_si512(_mm512_loadu_si512(x + h * kHalf), no_sign) : _mm512_setzero_si512();
  __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i eight = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti32x8_epi32(all, 1));
  return _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
}

// The row's largest magnitude, or NaN if it holds a NaN or an infinity. Leaves those of the halves where `quantise_two`
// will look for them: in the first bytes of every other group.
OCTAVO_INLINE float row_magnitude(const float* x, int32_t k, Int8Group* groups) {
  __m128i largest = _mm_setzero_si128();
  for (int32_t half = 0; half < k / kHalf; half += 4) {
    __m128i four = four_magnitudes(x + half * kHalf, k / kHalf - half);
    _mm_storeu_si128((__m128i*)groups[half / 2].q, four);
    largest = _mm_max_epu32(largest, four);
  }
  largest = _mm_max_epu32(largest, _mm_shuffle_epi32(largest, 0x4e));
  largest = _mm_max_epu32(largest, _mm_shuffle_epi32(largest, 0xb1));
  float value = _mm_cvtss_f32(_mm_castsi128_ps(largest));
  return value + (value - value);
}

OCTAVO_INLINE __m128 power_of_two(__m128i e) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(e, _mm_set1_epi32(127)), 23));
}

// Quantises x * inverse, which is at most 127 in magnitude; only the first of the groups if `second` is null.
OCTAVO_INLINE void quantise_two(const float* x, float inverse, Int8Group* first, Int8Group* second) {
  __m128 magnitudes = _mm_mul_ps(_mm_loadu_ps((const float*)first->q), _mm_set1_ps(inverse));
  // Smallest e with magnitude * 2^-e <= kMostHeld: the exponent of the quotient, rounded up.
  __m128i quotient = _mm_castps_si128(_mm_mul_ps(magnitudes, _mm_set1_ps(1.0f / kMostHeld)));
  __m128i e = _mm_srli_epi32(_mm_add_epi32(quotient, _mm_set1_epi32(0x7fffff)), 23);
  e = _mm_min_epi32(_mm_sub_epi32(e, _mm_set1_epi32(127)), _mm_setzero_si128());
  e = _mm_max_epi32(e, _mm_set1_epi32(kLeastExponent));
  __m128 factors = _mm_mul_ps(power_of_two(_mm_sub_epi32(_mm_setzero_si128(), e)), _mm_set1_ps(inverse));
  __m128 origins = _mm_mul_ps(power_of_two(_mm_add_epi32(e, _mm_set1_epi32(23))), _mm_set1_ps(1.5f));

  Int8Group* groups[2] = {first, second};
  __m128i sums[4];
#pragma GCC unroll 4
  for (int h = 0; h < 4; h++) {
    sums[h] = _mm_setzero_si128();
    if (h >= 2 && !second) continue;
    // A permutation broadcasts a lane without a way through memory.
    __m512 factor = _mm512_permutexvar_ps(_mm512_set1_epi32(h), _mm512_castps128_ps512(factors));
    __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + h * kHalf), factor));  // to nearest even
    __m128i bytes = _mm512_cvtepi32_epi8(q);
    _mm_storeu_si128((__m128i*)(groups[h / 2]->q + h % 2 * kHalf), bytes);
    sums[h] = _mm_dpbusd_epi32(sums[h], _mm_set1_epi8(1), bytes);
  }
  __m128i halves = _mm_hadd_epi32(_mm_hadd_epi32(sums[0], sums[1]), _mm_hadd_epi32(sums[2], sums[3]));
  __m128i signed_origins = _mm_sub_epi32(_mm_castps_si128(origins), _mm_slli_epi32(halves, 7));
  __m128 scaled = _mm_mul_ps(_mm_cvtepi32_ps(halves), power_of_two(e));
  scaled = _mm_add_ps(scaled, _mm_movehdup_ps(scaled));  // lanes 0 and 2: the groups' sums
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    if (!groups[g]) continue;
    memcpy(groups[g]->origin, (const char*)&origins + 8 * g, 8);
    memcpy(groups[g]->signed_origin, (const char*)&signed_origins + 8 * g, 8);
    groups[g]->sum = _mm_cvtss_f32(g ? _mm_movehl_ps(scaled, scaled) : scaled);
  }
}

OCTAVO_INLINE void quantise_groups(const float* x, float inverse, int32_t groups, Int8Group* out) {
  int32_t g = 0;
  for (; g + 2 <= groups; g += 2) quantise_two(x + g * kGroup, inverse, out + g, out + g + 1);
  if (g < groups) quantise_two(x + g * kGroup, inverse, out + g, nullptr);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
