// One group of a quantised tile in registers: its codes and its scales.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// The level's vector of bytes. Shifts go by 16 bits, and masks drop what comes in from the other byte.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 64;
#endif
typedef uint8_t bytes __attribute__((vector_size(kVectorBytes), may_alias));
typedef uint16_t words __attribute__((vector_size(kVectorBytes), may_alias));

// The byte in every byte of a vector, or of a number of 4 bytes.
template <typename V>
OCTAVO_INLINE V repeat(uint8_t byte) {
  if constexpr (sizeof(V) == 4) return byte * 0x01010101u;
  else return (V)(bytes{} + byte);
}

// The bits that plane `Bits` wide holds of vector i of the codes, moved to bit `At`.
template <int Bits, int At, typename V>
OCTAVO_INLINE V plane_bits(const uint8_t* plane, int i) {
  V v;
  memcpy(&v, plane + 64 * (i % Bits), sizeof v);
  if constexpr (Bits == 8) return v;
  int right = Bits * (i / Bits) - At;
  v = right >= 0 ? v >> right : v << -right;
  return v & repeat<V>(((1 << Bits) - 1) << At);
}

// Vector i of a group's codes from `quants` on: all columns, or as many as V has room for. V is `words` or uint32_t.
template <WeightFormat F, typename V>
OCTAVO_INLINE V load_codes(const uint8_t* quants, int i) {
  constexpr QuantFormat f = quant_format(F);
  V codes = plane_bits<f.low_bits, 0, V>(quants, i);
  if constexpr (f.high_bits > 0) codes |= plane_bits<f.high_bits, f.low_bits, V>(quants + 64 * f.low_bits, i);
  return codes;
}

// codebook[code] + add.
OCTAVO_INLINE bytes look_up(const int8_t* codebook, bytes codes, int add) {
#if defined(__AVX512F__)
  __m512i table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)codebook));
  table = _mm512_add_epi8(table, _mm512_set1_epi8(char(add)));
  return (bytes)_mm512_shuffle_epi8(table, (__m512i)codes);
#elif defined(__AVX2__)
  __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)codebook));
  table = _mm256_add_epi8(table, _mm256_set1_epi8(char(add)));
  return (bytes)_mm256_shuffle_epi8(table, (__m256i)codes);
#else
  bytes out;
  for (int c = 0; c < kVectorBytes; c++) out[c] = uint8_t(codebook[codes[c]] + add);
  return out;
#endif
}

// Vector i of a group's weights before scale and minimum, plus `add`.
template <WeightFormat F>
OCTAVO_INLINE bytes load_quants(const uint8_t* quants, int i, int add) {
  constexpr QuantFormat f = quant_format(F);
  bytes codes = (bytes)load_codes<F, words>(quants, i);
  if constexpr (f.codebook != nullptr) return look_up(f.codebook, codes, add);
  else return add == f.zero ? codes : codes + uint8_t(add - f.zero);
}

// What products are multiplied with, and what a weight gets on top: value = scale * q + minimum. Of each half if the
// format has two scales, else only the first. Exact: a scale is f16, a power of two, or f16 times at most 8 bits.
struct GroupScales {
  f32x16 scale[2], minimum[2];
};

// The scales of a tile's groups, asked for in ascending order. Minima are multiplied by `minimum_factor`, a power of two.
template <WeightFormat F>
class ScaleReader {
 public:
  ScaleReader() = default;
  inline __attribute__((always_inline)) explicit ScaleReader(QuantTile tile, float minimum_factor = 1.0f)
      : own_(tile.scales), supers_((const uint16_t*)tile.supers), minimum_factor_(minimum_factor), super_(zero()),
        super_minimum_(zero()) {}  // set before they are read, which GCC does not see: it would warn

  // Of group g, where g counts from 0 in steps of 1 on.
  inline __attribute__((always_inline)) GroupScales next(int32_t g) {
    GroupScales out;
    if constexpr (f.kind == ScaleKind::f16) {
      out.scale[0] = load_f16((const uint16_t*)own_);
      if constexpr (f.minima) out.minimum[0] = load_f16((const uint16_t*)own_ + kColumns);
    } else if constexpr (f.kind == ScaleKind::e8m0) {
      out.scale[0] = mul(load_pow2(own_), set1(0.5f));
    } else {
      if (g % kSuperGroups == 0) next_super();
#pragma GCC unroll 2
      for (int h = 0; h < f.scales; h++) {
        const uint8_t* scales = own_ + h * kColumns;
        if constexpr (f.kind == ScaleKind::nibbles) {
          out.scale[h] = mul(super_, load_low_nibbles(scales));
          out.minimum[h] = mul(super_minimum_, load_high_nibbles(scales));
        } else {
          out.scale[h] = mul(super_, load_i8((const int8_t*)scales));
          const uint8_t* minima = scales + f.scales * kColumns;
          if constexpr (f.minima) out.minimum[h] = mul(super_minimum_, load_i8((const int8_t*)minima));
        }
      }
    }
    own_ += scale_bytes(F);
    return out;
  }

 private:
  static constexpr QuantFormat f = quant_format(F);

  inline __attribute__((always_inline)) void next_super() {
    super_ = load_f16(supers_);
    if constexpr (f.minima) super_minimum_ = mul(load_f16(supers_ + kColumns), set1(-minimum_factor_));
    supers_ += super_bytes(F) / 2;
  }

  const uint8_t* own_;
  const uint16_t* supers_;
  float minimum_factor_;
  f32x16 super_, super_minimum_;
};

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
