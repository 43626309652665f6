// What the quantised formats have in common and where they differ. A new one needs a line here and a reader of its blocks
// in linear_blocks.h; packing, unpacking and every kernel follow from the two.
//
// Each is made of groups of 32 consecutive k. A weight is scale * (code - zero) + minimum, or scale * codebook[code].
#pragma once
#include "../kernels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kColumns = 16;           // output columns in a tile
constexpr int kGroup = 32;             // elements of k in a group
constexpr int kHalf = kGroup / 2;      // the least that has a scale of its own
constexpr int kSuperGroups = 8;        // groups that share super scales

enum class ScaleKind : int8_t {
  f16,      // scales (and minima) are f16
  e8m0,     // bytes e that mean 2^(e - 128)
  bytes,    // int8, times a super scale in f16
  nibbles,  // a byte holds scale (low) and minimum (high), times super scales in f16
};

struct QuantFormat {
  int low_bits, high_bits;  // of a code, each in a plane of its own; high_bits may be 0
  int zero;                 // what codes are too large by, or makes a codebook's values unsigned; 0 if there are minima
  const int8_t* codebook;   // codes are places in it; null: they are numbers
  ScaleKind kind;
  int scales;               // of a group: 1, or 2 with one for each half
  bool minima;              // as many as scales
};

// The values of IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl).
alignas(16) constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Those of MXFP4, E2M1, doubled, and so its scales are halved (OCP Microscaling Formats 1.0).
alignas(16) constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

OCTAVO_INLINE constexpr QuantFormat quant_format(WeightFormat format) {
  using K = ScaleKind;
  switch (format) {
    case WeightFormat::q8_0: return {8, 0, 128, nullptr, K::f16, 1, false};
    case WeightFormat::q4_0: return {4, 0, 8, nullptr, K::f16, 1, false};
    case WeightFormat::q4_1: return {4, 0, 0, nullptr, K::f16, 1, true};
    case WeightFormat::q5_0: return {4, 1, 16, nullptr, K::f16, 1, false};
    case WeightFormat::q5_1: return {4, 1, 0, nullptr, K::f16, 1, true};
    case WeightFormat::q2_k: return {2, 0, 0, nullptr, K::nibbles, 2, true};
    case WeightFormat::q3_k: return {2, 1, 4, nullptr, K::bytes, 2, false};
    case WeightFormat::q4_k: return {4, 0, 0, nullptr, K::bytes, 1, true};
    case WeightFormat::q5_k: return {4, 1, 0, nullptr, K::bytes, 1, true};
    case WeightFormat::q6_k: return {4, 2, 32, nullptr, K::bytes, 2, false};
    case WeightFormat::iq4_nl: return {4, 0, 128, kIq4Values, K::f16, 1, false};
    case WeightFormat::iq4_xs: return {4, 0, 128, kIq4Values, K::bytes, 1, false};
    case WeightFormat::mxfp4: return {4, 0, 12, kFp4Values, K::e8m0, 1, false};
    default: return {};
  }
}

// Whether scales are multiplied with those of kSuperGroups groups.
OCTAVO_INLINE constexpr bool has_supers(QuantFormat f) { return f.kind == ScaleKind::bytes || f.kind == ScaleKind::nibbles; }

OCTAVO_INLINE constexpr int code_bits(WeightFormat format) {
  return quant_format(format).low_bits + quant_format(format).high_bits;
}

// The largest weight before scale and minimum, plus zero.
OCTAVO_INLINE constexpr int largest_quant(WeightFormat format) {
  QuantFormat f = quant_format(format);
  if (f.codebook == nullptr) return (1 << code_bits(format)) - 1;
  int largest = 0;
  for (int i = 0; i < 1 << code_bits(format); i++) largest = f.codebook[i] > largest ? f.codebook[i] : largest;
  return largest + f.zero;
}

// Bytes of one group of 16 columns: codes, and the scales and minima of its own.
OCTAVO_INLINE constexpr int64_t quant_bytes(WeightFormat format) { return code_bits(format) * kGroup * kColumns / 8; }
OCTAVO_INLINE constexpr int64_t scale_bytes(WeightFormat format) {
  QuantFormat f = quant_format(format);
  if (f.kind == ScaleKind::nibbles) return f.scales * kColumns;
  return f.scales * (f.minima ? 2 : 1) * (f.kind == ScaleKind::f16 ? 2 : 1) * kColumns;
}
// Bytes of the super scales that kSuperGroups groups share: [16] f16, and as much again for minima.
OCTAVO_INLINE constexpr int64_t super_bytes(WeightFormat format) {
  QuantFormat f = quant_format(format);
  return has_supers(f) ? (f.minima ? 2 : 1) * 2 * kColumns : 0;
}
// All that a group takes, its part of the super scales included.
OCTAVO_INLINE constexpr int64_t group_bytes(WeightFormat format) {
  return quant_bytes(format) + scale_bytes(format) + super_bytes(format) / kSuperGroups;
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
