// The inner loop of quantised weights x int8 activations in plain C++.
#pragma once
#include "linear_finish.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kInt8Rows = 4;
constexpr bool kInt8Direct = false;

template <WeightFormat F>
OCTAVO_INLINE void expand_group(QuantTile tile, int32_t g, ExpandedGroup* out) {
  const uint8_t* quants = tile.quants + g * quant_bytes(F);
  uint8_t* to = out->quants[0];
  if constexpr (F == WeightFormat::q8_0) {
    memcpy(to, quants, 512);
  } else {
    for (int i = 0; i < 256; i++) {
      to[i] = quants[i] & 15;
      to[256 + i] = quants[i] >> 4;
    }
  }
  store(out->scales, load_f16(tile.scales + g * kColumns));
  if constexpr (F == WeightFormat::q4_1) store(out->minima, load_f16(tile.minima + g * kColumns));
}

OCTAVO_INLINE f32x16 half_dot(const ExpandedGroup* w, const Int8Group* a, int h) {
  i32x16 dot = {};
  for (int i = 0; i < 4; i++) {
    const uint8_t* quants = w->quants[4 * h + i];
    const int8_t* q = a->q + kHalf * h + 4 * i;
    for (int c = 0; c < kColumns; c++)
      dot.v[c] += quants[4 * c] * q[0] + quants[4 * c + 1] * q[1] + quants[4 * c + 2] * q[2] + quants[4 * c + 3] * q[3];
  }
  return mul(to_f32(dot), set1(a->origin[h] * (1.0f / 12582912.0f)));  // 1.5 * 2^23
}

// sums[r] += groups [begin, end) of row r.
template <WeightFormat F, int M, bool Expanded>
__attribute__((noinline)) void int8_sums(QuantTile, const ExpandedGroup* expanded, int32_t begin, int32_t end, const uint8_t* rows,
                             int64_t stride, float (*sums)[kColumns]) {
  for (int r = 0; r < M; r++) {
    f32x16 acc = load(sums[r]);
    for (int32_t g = begin; g < end; g++) {
      const ExpandedGroup* w = expanded + g - begin;
      const Int8Group* a = groups_of(rows + r * stride) + g;
      f32x16 value = add(half_dot(w, a, 0), half_dot(w, a, 1));
      if constexpr (F == WeightFormat::q8_0) value = add(value, set1(a->minus_128_sum));
      if constexpr (F == WeightFormat::q4_0) value = add(value, set1(a->minus_8_sum));
      acc = fma(value, load(w->scales), acc);
      if constexpr (F == WeightFormat::q4_1) acc = fma(load(w->minima), set1(a->sum), acc);
    }
    store(sums[r], acc);
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
