// The inner loop of quantised weights x int8 activations with vpmaddubsw, which multiplies unsigned by signed bytes and
// adds pairs into 16 bits, saturating.
//   Up to 31: a pair stays under 31 * 127 * 2, and the 4 pairs that a lane adds up in a half group under 2^15; up to 63,
//         2 pairs do. Weights enter with their zero, which is taken off afterwards.
//   Others: (q + 128) * a would saturate, so that the sign moves to the activation: |q| * sign(q) a, at most
//         128 * 127 * 2 < 2^15. Four instructions where widening both sides to 16 bits would take six.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 4;

template <WeightFormat F>
constexpr bool kSignedQuants = largest_quant(F) > 63;
// Pairs of products that 16 bits have room for.
template <WeightFormat F>
constexpr int kPairs = kSignedQuants<F> ? 1 : largest_quant(F) > 31 ? 2 : 4;

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
    __m256i products = kSignedQuants<F> ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                                        : _mm256_maddubs_epi16(w, x);
    pairs = i % kPairs<F> ? _mm256_add_epi16(pairs, products) : products;
    if ((i + 1) % kPairs<F> == 0) dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
  }
  return _mm256_sub_ps(_mm256_castsi256_ps(dot), origin);
}

// acc += one group of one row.
template <WeightFormat F>
OCTAVO_INLINE __m256 add_group(__m256 acc, const __m256i* quants, const __m256* scales, const __m256* minima,
                               const Int8Group* a) {
  constexpr QuantFormat f = quant_format(F);
  constexpr float minus_zero = kSignedQuants<F> ? 0.0f : float(-f.zero);
  __m256 halves[2] = {half_dot<F>(quants, a, 0), half_dot<F>(quants, a, 1)};
  if constexpr (f.scales == 1) {
    __m256 value = _mm256_add_ps(halves[0], halves[1]);
    if constexpr (minus_zero != 0.0f) value = _mm256_add_ps(value, _mm256_set1_ps(a->sum * minus_zero));
    acc = _mm256_fmadd_ps(value, scales[0], acc);
    if constexpr (f.minima) acc = _mm256_fmadd_ps(minima[0], _mm256_set1_ps(a->sum), acc);
    return acc;
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    __m256 value = halves[h];
    if constexpr (minus_zero != 0.0f) value = _mm256_add_ps(value, _mm256_set1_ps(half_sum(a, h) * minus_zero));
    acc = _mm256_fmadd_ps(value, scales[h], acc);
    if constexpr (f.minima) acc = _mm256_fmadd_ps(minima[h], _mm256_set1_ps(half_sum(a, h)), acc);
  }
  return acc;
}

// The left eight columns of all groups (Side 0) or the right ones: 4 sums and 8 vectors of weights fill the registers.
template <WeightFormat F, int M, int Side>
OCTAVO_INLINE void add_side(const Int8Block& block, __m256* acc) {
  constexpr QuantFormat f = quant_format(F);
  QuantTile tile = block.tile(F);
  ScaleReader<F> reader(tile);
  for (int r = 0; r < M; r++) acc[r] = _mm256_setzero_ps();
  for (int32_t g = 0; g < block.groups(); g++) {
    if (Side == 0) block.fetch_group<F>(g);
    __m256i quants[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      quants[i] = (__m256i)load_quants<F>(tile.quants + g * quant_bytes(F) + 32 * Side, i, kSignedQuants<F> ? 0 : f.zero);
    GroupScales w = reader.next(g);
    __m256 scales[f.scales], minima[f.scales];
    for (int h = 0; h < f.scales; h++) {
      scales[h] = Side ? w.scale[h].hi : w.scale[h].lo;
      if constexpr (f.minima) minima[h] = Side ? w.minimum[h].hi : w.minimum[h].lo;
    }
#pragma GCC unroll 4
    for (int r = 0; r < M; r++)
      acc[r] = add_group<F>(acc[r], quants, scales, minima, groups_of(block.rows() + r * block.stride()) + g);
  }
}

template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
  __m256 left[M], right[M];
  add_side<F, M, 0>(block, left);
  add_side<F, M, 1>(block, right);
  f32x16 sums[M];
  for (int r = 0; r < M; r++) sums[r] = {left[r], right[r]};
  finish_int8<M>(block, finisher, sums);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
