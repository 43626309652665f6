// The inner loop of quantised weights x int8 activations with vpmaddubsw, which multiplies unsigned by signed bytes and
// adds pairs into 16 bits, saturating.
//   Q4_x: a nibble's pairs stay under 15 * 127 * 2, and the 8 pairs that a lane adds up in a half group under 2^15.
//   Q8_0: (q + 128) * a would saturate, so that the sign moves to the activation: |q| * sign(q) a, at most
//         128 * 127 * 2 < 2^15. Four instructions where widening both sides to 16 bits would take six.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 4;

// 8 vectors of 4 k x 8 columns. Q8_0 becomes signed.
template <WeightFormat F>
OCTAVO_INLINE void load_side(const uint8_t* quants, __m256i* out) {
  if constexpr (F == WeightFormat::q8_0) {
    __m256i bias = _mm256_set1_epi8(-128);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) out[i] = _mm256_xor_si256(_mm256_load_si256((const __m256i*)(quants + 64 * i)), bias);
  } else {
    __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      __m256i nibbles = _mm256_load_si256((const __m256i*)(quants + 64 * i));
      out[i] = _mm256_and_si256(nibbles, low);
      out[i + 4] = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low);
    }
  }
}

OCTAVO_INLINE __m256 load_f16_8(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

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

// The left eight columns of all groups, then the right ones: 4 sums and 8 vectors of weights fill the registers.
template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  f32x16 sums[M];
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
  QuantTile tile = block.tile(F);
  for (int side = 0; side < kColumns; side += 8) {
    __m256 acc[M];
    for (int r = 0; r < M; r++) acc[r] = _mm256_setzero_ps();
    for (int32_t g = 0; g < block.groups(); g++) {
      if (side == 0) block.fetch_group<F>(g);
      __m256i quants[8];
      load_side<F>(tile.quants + g * quant_bytes(F) + 4 * side, quants);
      __m256 scales = load_f16_8(tile.scales + g * kColumns + side), minima = scales;
      if constexpr (F == WeightFormat::q4_1) minima = load_f16_8(tile.minima + g * kColumns + side);
#pragma GCC unroll 4
      for (int r = 0; r < M; r++) {
        const Int8Group* a = groups_of(block.rows() + r * block.stride()) + g;
        __m256 value = _mm256_add_ps(half_dot<F>(quants, a, 0), half_dot<F>(quants, a, 1));
        if constexpr (F == WeightFormat::q4_0) value = _mm256_add_ps(value, _mm256_set1_ps(a->minus_8_sum));
        acc[r] = _mm256_fmadd_ps(value, scales, acc[r]);
        if constexpr (F == WeightFormat::q4_1) acc[r] = _mm256_fmadd_ps(minima, _mm256_set1_ps(a->sum), acc[r]);
      }
    }
    for (int r = 0; r < M; r++) (side ? sums[r].hi : sums[r].lo) = acc[r];
  }
  finish_int8<M>(block, finisher, sums);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
