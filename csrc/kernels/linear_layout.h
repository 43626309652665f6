// How weights and activations lie in memory for the linear layers.
//
// A tile is 16 output columns with all of k; lane c of every vector is column c.
//   f32, f16   [k][16]
//   bf16       [ceil(k / 2)][16][2]: the pairs that vdpbf16ps takes; an odd k is padded with zeros
//   quantised  [k / 32] codes, then [k / 32] scales and minima, then [k / 256] super scales and super minima, if any, each
//              [16] (linear_formats.h). The codes of a group are 8 vectors of 16 columns x 4 consecutive k, the operand of
//              vpdpbusd, cut into planes of so many bits of each code. A plane of b bits takes b vectors: bits
//              b * (i / b) .. of its vector i % b belong to vector i of the codes. With 4 bits, that is how a GGUF block
//              pairs elements too: k = 4 i .. 4 i + 3 and k + 16.
// The same tiles serve every kind of activation and every level.
#pragma once
#include "linear_formats.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Changes whenever tiles written by an older build would be misread.
constexpr int kTileVersion = 2;

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
  const uint8_t* quants;  // [groups][quant_bytes]
  const uint8_t* scales;  // [groups][scale_bytes]
  const uint8_t* supers;  // [groups / 8][super_bytes]
};
OCTAVO_INLINE QuantTile quant_tile(WeightFormat format, const uint8_t* tile, int32_t k) {
  int64_t groups = k / kGroup;
  const uint8_t* scales = tile + groups * quant_bytes(format);
  return {tile, scales, scales + groups * scale_bytes(format)};
}

// An activation row in int8: x is about scale * 2^e * q, with one f32 scale for the row and one exponent e <= 0 for each
// half group of 16. The scale makes the half group with the largest magnitude, which contributes most of the error, use
// all of [-127, 127]; the others lose less than one bit of their eight. On SmolLM2-135M that is a little closer to f32
// activations than one f32 scale for each 32 (KL divergence of the next token 0.0023 against 0.0026), and a power of two
// costs the kernel no multiplication: the integer dot product starts from the bits of the float 1.5 * 2^(23 + e), whose
// last mantissa bit weighs 2^e, so that after adding integers below 2^22 the same 32 bits, read as a float, are that
// constant plus 2^e times the dot product. Subtracting the constant is exact, and replaces the conversion to float too.
struct Int8Group {
  int8_t q[kGroup];
  float origin[2];           // 1.5 * 2^(23 + e) of each half
  int32_t signed_origin[2];  // its bits, less 128 times the sum of q: where a dot product with weights + 128 starts
  float sum;                 // of 2^e q over the group, for minima
};
static_assert(sizeof(Int8Group) == 52 && alignof(Int8Group) == 4, "prepared_row_bytes counts on it");

// The sum of 2^e q over one half, exactly: the two origins are floats of one exponent, whose last bit weighs 2^e.
OCTAVO_INLINE float half_sum(const Int8Group* a, int h) {
  float minus_128_sum = bits_to_float(uint32_t(a->signed_origin[h])) - a->origin[h];
  return minus_128_sum * (-1.0f / 128.0f);
}

// A row is its scale (NaN if the row holds a NaN or an infinity), 12 unused bytes, and the groups.
constexpr int64_t kRowHeaderBytes = 16;
OCTAVO_INLINE const Int8Group* groups_of(const uint8_t* row) { return (const Int8Group*)(row + kRowHeaderBytes); }

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
