// The inner loop of quantised weights x int8 activations with vpdpbusd.
//
// Zen 4 starts one 512-bit multiplication a cycle, be it vpdpbusd or FMA, and beside it one 512-bit addition and two
// broadcasts. A group of 32 costs a row 8 vpdpbusd and one FMA (two for Q4_1), and additions that ride along: 80 to 89 %
// of the multiply pipes' time goes into the integer product itself. Measured, a row takes 10.5 cycles for a group and 16
// columns of Q4_1, of 10 possible.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 16;  // 16 sums, 8 vectors of weights and 2 of scales fill the registers

// One group of 16 columns, in registers for all rows of a block.
struct GroupWeights {
  __m512i quants[8];
  f32x16 scales, minima;
};

template <WeightFormat F>
OCTAVO_INLINE void load_group(QuantTile tile, int32_t g, GroupWeights* out) {
  const uint8_t* quants = tile.quants + g * quant_bytes(F);
  if constexpr (F == WeightFormat::q8_0) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) out->quants[i] = _mm512_load_si512(quants + 64 * i);
  } else {
    __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      __m512i nibbles = _mm512_load_si512(quants + 64 * i);
      out->quants[i] = _mm512_and_si512(nibbles, low);
      out->quants[i + 4] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
    }
  }
  out->scales = load_f16(tile.scales + g * kColumns);
  if constexpr (F == WeightFormat::q4_1) out->minima = load_f16(tile.minima + g * kColumns);
}

// sums += one group of N rows, their chains of dependent instructions side by side.
template <WeightFormat F, int N>
OCTAVO_INLINE void add_groups(const Int8Group* const* a, const GroupWeights& w, f32x16* sums) {
  __m512i dot[N][2];
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) dot[r][h] = _mm512_castps_si512(_mm512_set1_ps(a[r]->origin[h]));
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
    __m512 value = _mm512_add_ps(_mm512_sub_ps(_mm512_castsi512_ps(dot[r][0]), _mm512_set1_ps(a[r]->origin[0])),
                                 _mm512_sub_ps(_mm512_castsi512_ps(dot[r][1]), _mm512_set1_ps(a[r]->origin[1])));
    if constexpr (F == WeightFormat::q8_0) value = _mm512_add_ps(value, _mm512_set1_ps(a[r]->minus_128_sum));
    if constexpr (F == WeightFormat::q4_0) value = _mm512_add_ps(value, _mm512_set1_ps(a[r]->minus_8_sum));
    sums[r] = fma({value}, w.scales, sums[r]);
    if constexpr (F == WeightFormat::q4_1) sums[r] = fma(w.minima, set1(a[r]->sum), sums[r]);
  }
}

template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  f32x16 sums[M];
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
#pragma GCC unroll 16
  for (int r = 0; r < M; r++) sums[r] = zero();
  QuantTile tile = block.tile(F);
  int32_t groups = block.groups();
  RowCursor<M> cursor((const uint8_t*)groups_of(block.rows()), block.stride());
  for (int32_t g = 0; g < groups; g++, cursor.advance(sizeof(Int8Group))) {
    block.fetch_group<F>(g);
    GroupWeights w;
    load_group<F>(tile, g, &w);
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
