// The inner loop of quantised weights x int8 activations in plain C++.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 16;

// One group of a tile with its nibbles spread to bytes, and the scales in f32.
struct GroupWeights {
  uint8_t quants[8][64];
  f32x16 scales, minima;
};

template <WeightFormat F>
OCTAVO_INLINE void load_group(QuantTile tile, int32_t g, GroupWeights* out) {
  const uint8_t* quants = tile.quants + g * quant_bytes(F);
  uint8_t* bytes = out->quants[0];
  if constexpr (F == WeightFormat::q8_0) {
    memcpy(bytes, quants, 512);
  } else {
    for (int i = 0; i < 256; i++) {
      bytes[i] = quants[i] & 15;
      bytes[256 + i] = quants[i] >> 4;
    }
  }
  out->scales = load_f16(tile.scales + g * kColumns);
  if constexpr (F == WeightFormat::q4_1) out->minima = load_f16(tile.minima + g * kColumns);
}

// Products of half a group with 16 columns, as 2^e times an integer.
OCTAVO_INLINE f32x16 half_dot(const GroupWeights& w, const Int8Group* a, int h) {
  i32x16 dot = {};
  for (int i = 0; i < 4; i++) {
    const uint8_t* quants = w.quants[4 * h + i];
    const int8_t* q = a->q + kHalf * h + 4 * i;
    for (int c = 0; c < kColumns; c++)
      dot.v[c] += quants[4 * c] * q[0] + quants[4 * c + 1] * q[1] + quants[4 * c + 2] * q[2] + quants[4 * c + 3] * q[3];
  }
  return mul(to_f32(dot), set1(a->origin[h] * (1.0f / 12582912.0f)));  // origin / (1.5 * 2^23) = 2^e
}

template <WeightFormat F, int M>
__attribute__((noinline)) void int8_block(const Int8Block& block) {
  f32x16 sums[M];
  Finisher finisher(block.args, block.tile_index, block.row);
  finisher.prefetch<M>();
  for (int r = 0; r < M; r++) sums[r] = zero();
  for (int32_t g = 0; g < block.groups(); g++) {
    GroupWeights w;
    load_group<F>(block.tile(F), g, &w);
    for (int r = 0; r < M; r++) {
      const Int8Group* a = groups_of(block.rows() + r * block.stride()) + g;
      f32x16 value = add(half_dot(w, a, 0), half_dot(w, a, 1));
      if constexpr (F == WeightFormat::q8_0) value = add(value, set1(a->minus_128_sum));
      if constexpr (F == WeightFormat::q4_0) value = add(value, set1(a->minus_8_sum));
      sums[r] = fma(value, w.scales, sums[r]);
      if constexpr (F == WeightFormat::q4_1) sums[r] = fma(w.minima, set1(a->sum), sums[r]);
    }
  }
  finish_int8<M>(block, finisher, sums);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
