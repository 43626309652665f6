// From a file's rows to tiles and back to one row.
#pragma once
#include "linear_blocks.h"
#include "linear_unpack.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Adds `Bits` bits of each code, from bit `at` on, to a plane of its own.
template <int Bits>
OCTAVO_INLINE void write_plane(const uint32_t* codes, int at, uint8_t* plane) {
  constexpr uint32_t mask = ((1u << Bits) - 1) * 0x01010101u;
  for (int i = 0; i < Bits; i++) {
    uint32_t word = 0;
    for (int j = 0; j < 8 / Bits; j++) word |= (codes[i + j * Bits] >> at & mask) << Bits * j;
    memcpy(plane + 64 * i, &word, 4);
  }
}

template <WeightFormat F>
void pack_quantised_column(const uint8_t* row, int32_t k, int column, uint8_t* tile) {
  constexpr QuantFormat f = quant_format(F);
  constexpr int groups_per_block = stored(F).block_elements / kGroup, scale_size = f.kind == ScaleKind::f16 ? 2 : 1;
  QuantTile parts = quant_tile(F, tile, k);
  uint8_t *quants = tile + 4 * column, *scales = (uint8_t*)parts.scales + scale_size * column;
  uint8_t* supers = (uint8_t*)parts.supers + 2 * column;
  for (int32_t b = 0; b < k / stored(F).block_elements; b++, row += stored(F).block_bytes) {
    for (int g = 0; g < groups_per_block; g++, quants += quant_bytes(F), scales += scale_bytes(F)) {
      BlockGroup group{};
      BlockReader<F>::read(row, g, &group);
      write_plane<f.low_bits>(group.codes, 0, quants);
      if constexpr (f.high_bits > 0) write_plane<f.high_bits>(group.codes, f.low_bits, quants + 64 * f.low_bits);
      for (int s = 0; s < f.scales; s++) {
        memcpy(scales + s * scale_size * kColumns, group.scales + s * scale_size, scale_size);
        if (f.minima && f.kind != ScaleKind::nibbles)
          memcpy(scales + (f.scales + s) * scale_size * kColumns, group.minima + s * scale_size, scale_size);
      }
    }
    if constexpr (has_supers(f)) {
      memcpy(supers, row + super_offset(F), 2);
      if constexpr (f.minima) memcpy(supers + 2 * kColumns, row + super_offset(F) + 2, 2);
      supers += super_bytes(F);
    }
  }
}

template <WeightFormat F>
void pack_plain_column(const uint8_t* row, int32_t k, int column, uint8_t* tile) {
  if constexpr (F == WeightFormat::f32) {
    for (int32_t i = 0; i < k; i++) memcpy(tile + (int64_t(i) * kColumns + column) * 4, row + int64_t(i) * 4, 4);
  } else if constexpr (F == WeightFormat::f16) {
    for (int32_t i = 0; i < k; i++) memcpy(tile + (int64_t(i) * kColumns + column) * 2, row + int64_t(i) * 2, 2);
  } else {
    for (int32_t i = 0; i < k; i++)
      memcpy(tile + ((int64_t(i / 2) * kColumns + column) * 2 + i % 2) * 2, row + int64_t(i) * 2, 2);
  }
}

template <WeightFormat F>
void pack_column(const uint8_t* row, int32_t k, int column, uint8_t* tile) {
  if constexpr (is_quantised(F)) pack_quantised_column<F>(row, k, column, tile);
  else pack_plain_column<F>(row, k, column, tile);
}

template <WeightFormat F>
void gather_quantised(const PackedWeight& weight, const uint8_t* tile, int column, float scale, float* out) {
  constexpr QuantFormat f = quant_format(F);
  QuantTile parts = quant_tile(F, tile, weight.k);
  ScaleReader<F> scales(parts);
  for (int32_t g = 0; g < weight.k / kGroup; g++, out += kGroup) {
    GroupScales all = scales.next(g);
    float d[f.scales], m[f.scales], lanes[kColumns];
    for (int h = 0; h < f.scales; h++) {
      store(lanes, all.scale[h]);
      d[h] = lanes[column];
      if constexpr (f.minima) store(lanes, all.minimum[h]);
      m[h] = f.minima ? lanes[column] : 0.0f;
    }
    for (int j = 0; j < 8; j++) {
      uint32_t codes = load_codes<F, uint32_t>(parts.quants + g * quant_bytes(F) + 4 * column, j);
      int h = j / 4 % f.scales;
      for (int b = 0; b < 4; b++) {
        int code = codes >> 8 * b & 255;
        float q = float(code - f.zero);
        if constexpr (f.codebook != nullptr) q = f.codebook[code & 15];
        // d * q is exact in f32 (at most 18 + 6 bits), so that a fused multiply-add would round to the same value.
        out[4 * j + b] = (f.minima ? d[h] * q + m[h] : d[h] * q) * scale;
      }
    }
  }
}

template <WeightFormat F>
void gather(const PackedWeight& weight, int32_t index, float scale, float* out) {
  const uint8_t* tile = weight.tiles + int64_t(index / kColumns) * weight.tile_bytes;
  int column = index % kColumns;
  if constexpr (is_quantised(F)) return gather_quantised<F>(weight, tile, column, scale, out);
  for (int32_t i = 0; i < weight.k; i++) {
    if constexpr (F == WeightFormat::f32) out[i] = ((const float*)tile)[int64_t(i) * kColumns + column] * scale;
    else if constexpr (F == WeightFormat::f16)
      out[i] = f16_to_f32(((const uint16_t*)tile)[int64_t(i) * kColumns + column]) * scale;
    else out[i] = bf16_to_f32(((const uint16_t*)tile)[(int64_t(i / 2) * kColumns + column) * 2 + i % 2]) * scale;
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
