// From a file's rows to tiles and back to one row.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// GGUF blocks of 32 elements (ggml's block_q8_0, block_q4_0, block_q4_1): f16 scale, then for Q4_1 f16 minimum, then
// 32 signed bytes or 16 bytes of nibbles (low: elements 0-15, high: 16-31).
OCTAVO_INLINE int block_header_bytes(WeightFormat format) { return format == WeightFormat::q4_1 ? 4 : 2; }
OCTAVO_INLINE int block_bytes(WeightFormat format) {
  return block_header_bytes(format) + (format == WeightFormat::q8_0 ? 32 : 16);
}

void pack_quantised_column(WeightFormat format, const uint8_t* row, int32_t k, int column, uint8_t* tile) {
  QuantTile parts = quant_tile(format, tile, k);
  uint16_t* scales = (uint16_t*)parts.scales;
  uint16_t* minima = (uint16_t*)parts.minima;
  int header = block_header_bytes(format), vectors = format == WeightFormat::q8_0 ? 8 : 4;
  uint8_t bias = format == WeightFormat::q8_0 ? 128 : 0;
  for (int32_t g = 0; g < k / kGroup; g++) {
    const uint8_t* block = row + int64_t(g) * block_bytes(format);
    memcpy(scales + g * kColumns + column, block, 2);
    if (format == WeightFormat::q4_1) memcpy(minima + g * kColumns + column, block + 2, 2);
    uint8_t* quants = tile + g * quant_bytes(format) + column * 4;
    for (int i = 0; i < vectors; i++)
      for (int b = 0; b < 4; b++) quants[i * 64 + b] = uint8_t(block[header + i * 4 + b] + bias);
  }
}

void pack_plain_column(WeightFormat format, const uint8_t* row, int32_t k, int column, uint8_t* tile) {
  if (format == WeightFormat::f32) {
    for (int32_t i = 0; i < k; i++) memcpy(tile + (int64_t(i) * kColumns + column) * 4, row + int64_t(i) * 4, 4);
  } else if (format == WeightFormat::f16) {
    for (int32_t i = 0; i < k; i++) memcpy(tile + (int64_t(i) * kColumns + column) * 2, row + int64_t(i) * 2, 2);
  } else {
    for (int32_t i = 0; i < k; i++)
      memcpy(tile + ((int64_t(i / 2) * kColumns + column) * 2 + i % 2) * 2, row + int64_t(i) * 2, 2);
  }
}

// Columns past n stay zero in every part, so that their results are zero or unused, never read out of bounds.
void pack_tile(WeightFormat format, ActivationKind, const uint8_t* rows, int64_t row_bytes, const int32_t* row_index,
               int32_t n, int32_t k, int32_t tile, uint8_t* dst) {
  memset(dst, 0, size_t(tile_bytes_of(format, k)));
  for (int column = 0; column < kColumns && tile * kColumns + column < n; column++) {
    int32_t index = tile * kColumns + column;
    const uint8_t* row = rows + int64_t(row_index ? row_index[index] : index) * row_bytes;
    if (is_quantised(format)) pack_quantised_column(format, row, k, column, dst);
    else pack_plain_column(format, row, k, column, dst);
  }
}

float quantised_element(WeightFormat format, QuantTile parts, int column, int32_t i) {
  int32_t g = i / kGroup;
  int q = quant_at(format, parts.quants + g * quant_bytes(format), column, i % kGroup);
  float d = f16_to_f32(parts.scales[g * kColumns + column]);
  if (format != WeightFormat::q4_1) return d * float(q);
  // d * q is exact in f32 (11 + 4 bits), so that a fused multiply-add would round to the same value.
  return d * float(q) + f16_to_f32(parts.minima[g * kColumns + column]);
}

void gather_row(const PackedWeight& weight, int32_t index, float scale, float* out) {
  const uint8_t* tile = weight.tiles + int64_t(index / kColumns) * weight.tile_bytes;
  int column = index % kColumns;
  QuantTile parts = quant_tile(weight.format, tile, weight.k);
  for (int32_t i = 0; i < weight.k; i++) {
    switch (weight.format) {
      case WeightFormat::f32: out[i] = ((const float*)tile)[int64_t(i) * kColumns + column]; break;
      case WeightFormat::f16: out[i] = f16_to_f32(((const uint16_t*)tile)[int64_t(i) * kColumns + column]); break;
      case WeightFormat::bf16:
        out[i] = bf16_to_f32(((const uint16_t*)tile)[(int64_t(i / 2) * kColumns + column) * 2 + i % 2]);
        break;
      default: out[i] = quantised_element(weight.format, parts, column, i);
    }
    out[i] *= scale;
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
