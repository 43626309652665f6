// How weights and activations lie in memory for the linear layers.
//
// A tile is 16 output columns with all of k; lane c of every vector is column c.
//   f32, f16   [k][16]
//   bf16       [ceil(k / 2)][16][2]: the pairs that vdpbf16ps takes; an odd k is padded with zeros
//   quantised  [k / 32][quants], then [k / 32][16] f16 scales d, then for Q4_1 [k / 32][16] f16 minima m. The quants of
//              a group of 32 are vectors of 16 columns x 4 consecutive k, the operand of vpdpbusd:
//                Q8_0  8 vectors; vector i holds k = 4 i .. 4 i + 3 as q + 128 (unsigned)
//                Q4_x  4 vectors; the low nibbles of vector i hold k = 4 i .. 4 i + 3, the high ones k + 16, which is
//                      also how a GGUF block pairs them
// The same tiles serve every kind of activation and every level.
#pragma once
#include "../kernels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Changes whenever tiles written by an older build would be misread.
constexpr int kTileVersion = 1;

constexpr int kColumns = 16;  // output columns in a tile
constexpr int kGroup = 32;    // elements of k that share a scale in Q8_0, Q4_0 and Q4_1

OCTAVO_INLINE bool is_quantised(WeightFormat format) { return format >= WeightFormat::q8_0; }

// Bytes of one group of 16 columns: quants, scales, minima.
OCTAVO_INLINE int64_t quant_bytes(WeightFormat format) { return format == WeightFormat::q8_0 ? 512 : 256; }
constexpr int64_t kScaleBytes = 2 * kColumns;

OCTAVO_INLINE int64_t tile_bytes_of(WeightFormat format, int32_t k) {
  switch (format) {
    case WeightFormat::f32: return int64_t(k) * kColumns * 4;
    case WeightFormat::f16: return int64_t(k) * kColumns * 2;
    case WeightFormat::bf16: return int64_t((k + 1) / 2) * kColumns * 4;
    case WeightFormat::q8_0:
    case WeightFormat::q4_0: return int64_t(k / kGroup) * (quant_bytes(format) + kScaleBytes);
    case WeightFormat::q4_1: return int64_t(k / kGroup) * (quant_bytes(format) + 2 * kScaleBytes);
  }
  return 0;
}

// The parts of a quantised tile.
struct QuantTile {
  const uint8_t* quants;   // [groups][quant_bytes]
  const uint16_t* scales;  // [groups][16] f16
  const uint16_t* minima;  // [groups][16] f16, Q4_1 only
};
OCTAVO_INLINE QuantTile quant_tile(WeightFormat format, const uint8_t* tile, int32_t k) {
  int64_t groups = k / kGroup;
  const uint16_t* scales = (const uint16_t*)(tile + groups * quant_bytes(format));
  return {tile, scales, scales + groups * kColumns};
}

// Element i of a group in column `column`, before scale and minimum.
OCTAVO_INLINE int quant_at(WeightFormat format, const uint8_t* group, int column, int i) {
  if (format == WeightFormat::q8_0) return int(group[(i / 4) * 64 + column * 4 + i % 4]) - 128;
  int nibbles = group[(i % 16 / 4) * 64 + column * 4 + i % 4];
  int q = i < 16 ? nibbles & 15 : nibbles >> 4;
  return format == WeightFormat::q4_0 ? q - 8 : q;
}

// One group of an activation row in int8: x is about scale * q.
struct Int8Group {
  int8_t q[kGroup];
  float scale;
  int32_t sum;        // of q
  float scaled_sum;   // scale * sum
  int32_t unused;
};
static_assert(sizeof(Int8Group) == 48, "row_bytes counts on it");

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
