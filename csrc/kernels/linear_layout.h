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

OCTAVO_INLINE constexpr bool is_quantised(WeightFormat format) { return format >= WeightFormat::q8_0; }

// Bytes of one group of 16 columns: quants, scales, minima.
OCTAVO_INLINE constexpr int64_t quant_bytes(WeightFormat format) { return format == WeightFormat::q8_0 ? 512 : 256; }
constexpr int64_t kScaleBytes = 2 * kColumns;
OCTAVO_INLINE constexpr int64_t group_bytes(WeightFormat format) {
  return quant_bytes(format) + (format == WeightFormat::q4_1 ? 2 : 1) * kScaleBytes;
}

OCTAVO_INLINE int64_t tile_bytes_of(WeightFormat format, int32_t k) {
  switch (format) {
    case WeightFormat::f32: return int64_t(k) * kColumns * 4;
    case WeightFormat::f16: return int64_t(k) * kColumns * 2;
    case WeightFormat::bf16: return int64_t((k + 1) / 2) * kColumns * 4;
    default: return (int64_t(k / kGroup) * group_bytes(format) + 63) / 64 * 64;  // every tile starts on a cache line
  }
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

// An activation row in int8: x is about scale * 2^e * q, with one f32 scale for the row and one exponent e <= 0 for each
// half group of 16. The scale makes the half group with the largest magnitude, which contributes most of the error, use
// all of [-127, 127]; the others lose less than one bit of their eight. On SmolLM2-135M that is a little closer to f32
// activations than one f32 scale for each 32 (KL divergence of the next token 0.0023 against 0.0026), and a power of two
// costs the kernel no multiplication: the integer dot product starts from the bits of the float 1.5 * 2^(23 + e), whose
// last mantissa bit weighs 2^e, so that after adding integers below 2^22 the same 32 bits, read as a float, are that
// constant plus 2^e times the dot product. Subtracting the constant is exact, and replaces the conversion to float too.
constexpr int kHalf = kGroup / 2;
struct Int8Group {
  int8_t q[kGroup];
  float origin[2];      // 1.5 * 2^(23 + e) of each half
  float sum;            // of 2^e q over the group, for the minima of Q4_1
  float minus_8_sum;    // weights enter the dot product unsigned; these take the zero point of Q4_0
  float minus_128_sum;  // and of Q8_0 off again
};
static_assert(sizeof(Int8Group) == 52 && alignof(Int8Group) == 4, "prepared_row_bytes counts on it");

// A row is its scale (NaN if the row holds a NaN or an infinity), 12 unused bytes, and the groups.
constexpr int64_t kRowHeaderBytes = 16;
OCTAVO_INLINE const Int8Group* groups_of(const uint8_t* row) { return (const Int8Group*)(row + kRowHeaderBytes); }

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
