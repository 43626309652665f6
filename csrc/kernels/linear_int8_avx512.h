// The inner loop of quantised weights x int8 activations with vpdpbusd.
//
// Zen 4 starts one 512-bit multiplication a cycle, be it vpdpbusd or FMA, and beside it one 512-bit addition and two
// broadcasts. A group of 32 costs a row 8 vpdpbusd and one FMA (two with minima, and as much for each half where halves
// have scales), and additions that ride along: most of the multiply pipes' time goes into the integer product itself.
// Measured, a row takes 10.5 cycles for a group and 16 columns of Q4_1, of 10 possible.
//
// vpdpbusd takes weights unsigned. Formats without minima enter as q + 128, and the sum starts at signed_origin, which has
// taken the 128 off; that costs a row nothing.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 16;  // 16 sums, 8 vectors of weights and 2 of scales fill the registers

// One group of 16 columns, in registers for all rows of a block.
struct GroupWeights {
  __m512i quants[8];
  GroupScales scales;
};

template <WeightFormat F, int M>
OCTAVO_INLINE void load_group(const uint8_t* quants, ScaleReader<F>& scales, int32_t g, GroupWeights* out) {
  constexpr QuantFormat f = quant_format(F);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    // One row waits for memory, which is faster in ascending order than in the one that GCC would choose.
    out->quants[i] = (__m512i)load_quants<F>(quants + g * quant_bytes(F), i, f.minima ? 0 : 128);
    if constexpr (M == 1) asm volatile("" : "+v"(out->quants[i]));
  }
  out->scales = scales.next(g);
}

// signed_origin, read as a float, is this times the sum of the half beyond origin; and exactly so (half_sum).
constexpr float kOfMinus128Sum = -1.0f / 128.0f;

OCTAVO_INLINE __m512 minus_128_sum(const Int8Group* a, int h) {
  __m512 signed_origin = _mm512_castsi512_ps(_mm512_set1_epi32(a->signed_origin[h]));
  return _mm512_sub_ps(signed_origin, _mm512_set1_ps(a->origin[h]));
}

// sums += one group of N rows, their chains of dependent instructions side by side.
template <WeightFormat F, int N>
OCTAVO_INLINE void add_groups(const Int8Group* const* a, const GroupWeights& w, f32x16* sums) {
  constexpr QuantFormat f = quant_format(F);
  __m512i dot[N][2];
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
      dot[r][h] = f.minima ? _mm512_castps_si512(_mm512_set1_ps(a[r]->origin[h]))
                           : _mm512_set1_epi32(a[r]->signed_origin[h]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
#pragma GCC unroll 8
    for (int r = 0; r < N; r++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        int32_t four;
        memcpy(&four, a[r]->q + kHalf * h + 4 * i, 4);
        dot[r][h] = _mm512_dpbusd_epi32(dot[r][h], w.quants[4 * h + i], _mm512_set1_epi32(four));
      }
#pragma GCC unroll 8
  for (int r = 0; r < N; r++) {
    f32x16 halves[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
      halves[h] = {_mm512_sub_ps(_mm512_castsi512_ps(dot[r][h]), _mm512_set1_ps(a[r]->origin[h]))};
    if constexpr (f.scales == 1) {
      sums[r] = fma(add(halves[0], halves[1]), w.scales.scale[0], sums[r]);
      if constexpr (f.minima) sums[r] = fma(w.scales.minimum[0], set1(a[r]->sum), sums[r]);
    } else {
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        sums[r] = fma(halves[h], w.scales.scale[h], sums[r]);
        if constexpr (f.minima) sums[r] = fma(w.scales.minimum[h], {minus_128_sum(a[r], h)}, sums[r]);
      }
    }
  }
}

template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  constexpr QuantFormat f = quant_format(F);
  f32x16 sums[M];
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
#pragma GCC unroll 16
  for (int r = 0; r < M; r++) sums[r] = zero();
  QuantTile tile = block.tile(F);
  ScaleReader<F> scales(tile, f.scales == 2 ? kOfMinus128Sum : 1.0f);
  int32_t groups = block.groups();
  RowCursor<M> cursor((const uint8_t*)groups_of(block.rows()), block.stride());
  for (int32_t g = 0; g < groups; g++, cursor.advance(sizeof(Int8Group))) {
    block.fetch_group<F>(g);
    GroupWeights w;
    load_group<F, M>(tile.quants, scales, g, &w);
#pragma GCC unroll 16
    for (int r = 0; r + 2 <= M; r += 2) {
      const Int8Group* a[2] = {(const Int8Group*)cursor.row(r), (const Int8Group*)cursor.row(r + 1)};
      add_groups<F, 2>(a, w, sums + r);
    }
    if constexpr (M % 2) {
      const Int8Group* a[1] = {(const Int8Group*)cursor.row(M - 1)};
      add_groups<F, 1>(a, w, sums + M - 1);
    }
  }
  finish_int8<M>(block, finisher, sums);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
