// GGUF's quantised blocks (ggml-common.h, block_*; the order of elements is that of dequantize_row_* in ggml-quants.c),
// one group of 32 elements at a time.
#pragma once
#include "linear_formats.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Element i of the group is byte i of `codes`, which are unsigned. Scales and minima: f16 each if that is the format's
// kind, else bytes; a format whose scales are nibbles has the minimum in the same byte.
struct BlockGroup {
  uint32_t codes[8];
  uint8_t scales[4], minima[4];
};

OCTAVO_INLINE uint32_t load_u32(const uint8_t* p) { uint32_t v; memcpy(&v, p, 4); return v; }

// Group g of a block, for each format.
template <WeightFormat F>
struct BlockReader;

// codes |= `bits` bits of each byte from `shift` on, moved to bit `at`.
OCTAVO_INLINE void add_bits(const uint8_t* bytes, int shift, int bits, int at, uint32_t* codes) {
  for (int i = 0; i < 8; i++) codes[i] |= (load_u32(bytes + 4 * i) >> shift & ((1u << bits) - 1) * 0x01010101u) << at;
}

// 16 bytes hold elements 0-15 in their low nibbles and 16-31 in the high ones.
OCTAVO_INLINE void read_nibbles(const uint8_t* bytes, uint32_t* codes) {
  for (int i = 0; i < 4; i++) {
    codes[i] = load_u32(bytes + 4 * i) & 0x0f0f0f0fu;
    codes[i + 4] = load_u32(bytes + 4 * i) >> 4 & 0x0f0f0f0fu;
  }
}

// Bit i of 32 becomes bit 4 of element i.
OCTAVO_INLINE void add_fifth_bits(uint32_t bits, uint32_t* codes) {
  // The product has bit i of four at 0 + i, 7 + i, 14 + i, 21 + i: at 0, 8, 16 and 24 one of each.
  for (int i = 0; i < 8; i++) codes[i] |= ((bits >> 4 * i & 15u) * 0x00204081u & 0x01010101u) << 4;
}

template <>
struct BlockReader<WeightFormat::q8_0> {  // f16 d, 32 signed bytes
  static void read(const uint8_t* block, int, BlockGroup* out) {
    memcpy(out->scales, block, 2);
    for (int i = 0; i < 8; i++) out->codes[i] = load_u32(block + 2 + 4 * i) ^ 0x80808080u;
  }
};

template <>
struct BlockReader<WeightFormat::q4_0> {  // f16 d, nibbles
  static void read(const uint8_t* block, int, BlockGroup* out) {
    memcpy(out->scales, block, 2);
    read_nibbles(block + 2, out->codes);
  }
};
template <>
struct BlockReader<WeightFormat::iq4_nl> : BlockReader<WeightFormat::q4_0> {};

template <>
struct BlockReader<WeightFormat::q4_1> {  // f16 d, f16 m, nibbles
  static void read(const uint8_t* block, int, BlockGroup* out) {
    memcpy(out->scales, block, 2);
    memcpy(out->minima, block + 2, 2);
    read_nibbles(block + 4, out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::q5_0> {  // f16 d, 32 fifth bits, nibbles
  static void read(const uint8_t* block, int, BlockGroup* out) {
    memcpy(out->scales, block, 2);
    read_nibbles(block + 6, out->codes);
    add_fifth_bits(load_u32(block + 2), out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::q5_1> {  // f16 d, f16 m, 32 fifth bits, nibbles
  static void read(const uint8_t* block, int, BlockGroup* out) {
    memcpy(out->scales, block, 2);
    memcpy(out->minima, block + 2, 2);
    read_nibbles(block + 8, out->codes);
    add_fifth_bits(load_u32(block + 4), out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::mxfp4> {  // u8 e, nibbles
  static void read(const uint8_t* block, int, BlockGroup* out) {
    out->scales[0] = block[0];
    read_nibbles(block + 1, out->codes);
  }
};

// Blocks of 256 have super scales at one place of the block, and minima's right after.
constexpr int super_offset(WeightFormat format) {
  return format == WeightFormat::q2_k ? 80 : format == WeightFormat::q3_k ? 108 : format == WeightFormat::q6_k ? 208 : 0;
}

template <>
struct BlockReader<WeightFormat::q2_k> {  // 16 bytes (scale, minimum), 64 bytes of 2 bits, f16 d, f16 dmin
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    memcpy(out->scales, block + 2 * g, 2);
    add_bits(block + 16 + 32 * (g / 4), 2 * (g % 4), 2, 0, out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::q3_k> {  // 32 bytes of third bits, 64 of 2 bits, 12 of scales, f16 d
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    add_bits(block + 32 + 32 * (g / 4), 2 * (g % 4), 2, 0, out->codes);
    add_bits(block, g, 1, 2, out->codes);
    const uint8_t* packed = block + 96;
    for (int h = 0; h < 2; h++) {  // scale s: low 4 bits in bytes 0-7, high 2 bits in bytes 8-11, less 32
      int s = 2 * g + h;
      int low = packed[s % 8] >> 4 * (s / 8) & 15, high = packed[8 + s % 4] >> 2 * (s / 4) & 3;
      out->scales[h] = uint8_t((low | high << 4) - 32);
    }
  }
};

// 12 bytes hold 8 scales and 8 minima of 6 bits: the first four of each in the low bits of bytes 0-7; of the others the
// low 4 bits in bytes 8-11 and the high 2 in the high bits of bytes 0-7.
OCTAVO_INLINE void read_six_bit_scales(const uint8_t* packed, int g, BlockGroup* out) {
  if (g < 4) {
    out->scales[0] = packed[g] & 63;
    out->minima[0] = packed[g + 4] & 63;
  } else {
    out->scales[0] = uint8_t((packed[g + 4] & 15) | packed[g - 4] >> 6 << 4);
    out->minima[0] = uint8_t(packed[g + 4] >> 4 | packed[g] >> 6 << 4);
  }
}

template <>
struct BlockReader<WeightFormat::q4_k> {  // f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    read_six_bit_scales(block + 4, g, out);
    add_bits(block + 16 + 32 * (g / 2), 4 * (g % 2), 4, 0, out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::q5_k> {  // f16 d, f16 dmin, 12 bytes of scales, 32 of fifth bits, 128 of nibbles
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    read_six_bit_scales(block + 4, g, out);
    add_bits(block + 48 + 32 * (g / 2), 4 * (g % 2), 4, 0, out->codes);
    add_bits(block + 16, g, 1, 4, out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::q6_k> {  // 128 bytes of nibbles, 64 of 2 bits, 16 signed scales, f16 d
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    int half = g / 4, quarter = g % 4;
    memcpy(out->scales, block + 192 + 2 * g, 2);
    add_bits(block + 64 * half + 32 * (quarter % 2), 4 * (quarter / 2), 4, 0, out->codes);
    add_bits(block + 128 + 32 * half, 2 * quarter, 2, 4, out->codes);
  }
};

template <>
struct BlockReader<WeightFormat::iq4_xs> {  // f16 d, 2 bytes of high and 4 of low bits of scales, 128 bytes of nibbles
  static void read(const uint8_t* block, int g, BlockGroup* out) {
    int low = block[4 + g / 2] >> 4 * (g % 2) & 15, high = block[2 + g / 4] >> 2 * (g % 4) & 3;
    out->scales[0] = uint8_t((low | high << 4) - 32);
    read_nibbles(block + 8 + 16 * g, out->codes);
  }
};

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
