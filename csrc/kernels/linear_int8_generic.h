// The inner loop of quantised weights x int8 activations in plain C++.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 16;

// Products of half a group with 16 columns, as 2^e times an integer.
OCTAVO_INLINE f32x16 half_dot(const int8_t (*half_quants)[64], const Int8Group* a, int h) {
  i32x16 dot = {};
  for (int i = 0; i < 4; i++) {
    const int8_t* w = half_quants[i];
    const int8_t* q = a->q + kHalf * h + 4 * i;
    for (int c = 0; c < kColumns; c++)
      dot.v[c] += w[4 * c] * q[0] + w[4 * c + 1] * q[1] + w[4 * c + 2] * q[2] + w[4 * c + 3] * q[3];
  }
  return mul(to_f32(dot), set1(a->origin[h] * (1.0f / 12582912.0f)));  // origin / (1.5 * 2^23) = 2^e
}

template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  constexpr QuantFormat f = quant_format(F);
  f32x16 sums[M];
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
  for (int r = 0; r < M; r++) sums[r] = zero();
  QuantTile tile = block.tile(F);
  ScaleReader<F> scales(tile);
  for (int32_t g = 0; g < block.groups(); g++) {
    int8_t quants[8][64];
    for (int i = 0; i < 8; i++) {
      bytes signed_quants = load_quants<F>(tile.quants + g * quant_bytes(F), i, 0);
      memcpy(quants[i], &signed_quants, 64);
    }
    GroupScales w = scales.next(g);
    for (int r = 0; r < M; r++) {
      const Int8Group* a = groups_of(block.rows() + r * block.stride()) + g;
      f32x16 halves[2] = {half_dot(quants, a, 0), half_dot(quants + 4, a, 1)};
      if constexpr (f.scales == 1) {
        sums[r] = fma(add(halves[0], halves[1]), w.scale[0], sums[r]);
        if constexpr (f.minima) sums[r] = fma(w.minimum[0], set1(a->sum), sums[r]);
      } else {
        for (int h = 0; h < 2; h++) sums[r] = fma(halves[h], w.scale[h], sums[r]);
        if constexpr (f.minima)
          for (int h = 0; h < 2; h++) sums[r] = fma(w.minimum[h], set1(half_sum(a, h)), sums[r]);
      }
    }
  }
  finish_int8<M>(block, finisher, sums);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
