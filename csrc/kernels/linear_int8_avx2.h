// The inner loop of quantised weights x int8 activations with vpmaddubsw, which multiplies unsigned by signed bytes and
// adds pairs into 16 bits, saturating.
//   Q4_x: a nibble's pairs stay under 15 * 127 * 2, and the 8 pairs that a lane adds up in a half group under 2^15.
//   Q8_0: (q + 128) * a would saturate, so that the sign moves to the activation: |q| * sign(q) a, at most
//         128 * 127 * 2 < 2^15. Four instructions where widening both sides to 16 bits would take six.
#pragma once
#include "linear_finish.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 4;
constexpr bool kInt8Direct = false;

// Q8_0 is kept signed here.
template <WeightFormat F>
OCTAVO_INLINE void expand_group(QuantTile tile, int32_t g, ExpandedGroup* out) {
  const uint8_t* quants = tile.quants + g * quant_bytes(F);
  uint8_t* to = out->quants[0];
  if constexpr (F == WeightFormat::q8_0) {
    for (int i = 0; i < 512; i += 32)
      _mm256_store_si256((__m256i*)(to + i), _mm256_xor_si256(_mm256_load_si256((const __m256i*)(quants + i)),
                                                              _mm256_set1_epi8(-128)));
  } else {
    __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 256; i += 32) {
      __m256i nibbles = _mm256_load_si256((const __m256i*)(quants + i));
      _mm256_store_si256((__m256i*)(to + i), _mm256_and_si256(nibbles, low));
      _mm256_store_si256((__m256i*)(to + 256 + i), _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low));
    }
  }
  store(out->scales, load_f16(tile.scales + g * kColumns));
  if constexpr (F == WeightFormat::q4_1) store(out->minima, load_f16(tile.minima + g * kColumns));
}

// Products of half a group with 8 columns, as 2^e times an integer.
template <WeightFormat F>
OCTAVO_INLINE __m256 half_dot(const __m256i* quants, const Int8Group* a, int h) {
  __m256i ones = _mm256_set1_epi16(1), pairs = _mm256_setzero_si256();
  __m256 origin = _mm256_set1_ps(a->origin[h]);
  __m256i dot = _mm256_castps_si256(origin);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    int32_t four;
    memcpy(&four, a->q + kHalf * h + 4 * i, 4);
    __m256i x = _mm256_set1_epi32(four), w = quants[4 * h + i];
    if constexpr (F == WeightFormat::q8_0) {
      __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
      dot = _mm256_add_epi32(dot, _mm256_madd_epi16(products, ones));
    } else {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, x));
    }
  }
  if constexpr (F != WeightFormat::q8_0) dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
  return _mm256_sub_ps(_mm256_castsi256_ps(dot), origin);
}

// sums[r] += groups [begin, end) of row r, first the left eight columns of all of them, then the right ones.
template <WeightFormat F, int M, bool Expanded>
__attribute__((noinline)) void int8_sums(QuantTile, const ExpandedGroup* expanded, int32_t begin, int32_t end, const uint8_t* rows,
                             int64_t stride, float (*sums)[kColumns]) {
  for (int side = 0; side < kColumns; side += 8) {
    __m256 acc[M];
    for (int r = 0; r < M; r++) acc[r] = _mm256_load_ps(sums[r] + side);
    for (int32_t g = begin; g < end; g++) {
      const ExpandedGroup* w = expanded + g - begin;
      __m256i quants[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) quants[i] = _mm256_load_si256((const __m256i*)(w->quants[i] + 4 * side));
#pragma GCC unroll 4
      for (int r = 0; r < M; r++) {
        const Int8Group* a = groups_of(rows + r * stride) + g;
        __m256 value = _mm256_add_ps(half_dot<F>(quants, a, 0), half_dot<F>(quants, a, 1));
        if constexpr (F == WeightFormat::q4_0) value = _mm256_add_ps(value, _mm256_set1_ps(a->minus_8_sum));
        acc[r] = _mm256_fmadd_ps(value, _mm256_load_ps(w->scales + side), acc[r]);
        if constexpr (F == WeightFormat::q4_1)
          acc[r] = _mm256_fmadd_ps(_mm256_load_ps(w->minima + side), _mm256_set1_ps(a->sum), acc[r]);
      }
    }
    for (int r = 0; r < M; r++) _mm256_store_ps(sums[r] + side, acc[r]);
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
