// What quantised blocks mean, in double and element by element: written from the formats' definitions alone, as plainly as
// they can be, so that it shares nothing with the kernels' packing.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "weight_formats.h"

namespace octavo_test {

using namespace octavo;

struct Random {
  uint64_t state;
  uint32_t next() {  // xorshift64*, Vigna 2016
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return uint32_t((state * 0x2545F4914F6CDD1DULL) >> 32);
  }
  int below(int n) { return int(next() % uint32_t(n)); }
  float uniform() { return float(next()) * 0x1p-31f - 1.0f; }  // [-1, 1)
};

// Finite f16 bits: mostly of ordinary size, sometimes zero, subnormal or large.
inline uint16_t random_f16(Random& random) {
  int exponent = random.below(16) ? 8 + random.below(6) : random.below(20);
  return uint16_t(random.below(2) << 15 | exponent << 10 | random.below(1024));
}

// Exponents of powers of two: mostly of ordinary size, sometimes small.
inline uint8_t random_e8m0(Random& random) {
  return uint8_t(random.below(16) ? 118 + random.below(6) : random.below(124));
}

inline double f16_value(uint16_t h) {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000 ? -v : v;
}
inline double f16_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return f16_value(h);
}

// Where a block has its f16 numbers; -1: no such.
struct F16Offsets {
  int at[2];
  const int* begin() const { return at; }
  const int* end() const { return at + 2; }
};
inline F16Offsets f16_offsets(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_1: case WeightFormat::q5_1: case WeightFormat::q4_k: case WeightFormat::q5_k: return {{0, 2}};
    case WeightFormat::q2_k: return {{80, 82}};
    case WeightFormat::q3_k: return {{108, -1}};
    case WeightFormat::q6_k: return {{208, -1}};
    case WeightFormat::mxfp4: return {{-1, -1}};
    default: return {{0, -1}};
  }
}

inline int nibble(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }
inline int bit(const uint8_t* bytes, int i) { return bytes[i / 8] >> i % 8 & 1; }

// A block of 32.
inline double small_block_value(WeightFormat format, const uint8_t* b, int i) {
  static const int nonlinear[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  switch (format) {
    case WeightFormat::q8_0: return f16_at(b) * int8_t(b[2 + i]);
    case WeightFormat::q4_0: return f16_at(b) * (nibble(b + 2, i) - 8);
    case WeightFormat::q4_1: return f16_at(b) * nibble(b + 4, i) + f16_at(b + 2);
    case WeightFormat::q5_0: return f16_at(b) * (nibble(b + 6, i) + 16 * bit(b + 2, i) - 16);
    case WeightFormat::q5_1: return f16_at(b) * (nibble(b + 8, i) + 16 * bit(b + 4, i)) + f16_at(b + 2);
    case WeightFormat::iq4_nl: return f16_at(b) * nonlinear[nibble(b + 2, i)];
    case WeightFormat::mxfp4: {
      static const double magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      int code = nibble(b + 1, i);
      return std::ldexp(code < 8 ? magnitude[code] : -magnitude[code - 8], b[0] - 127);
    }
    default: std::abort();
  }
}

// Scale s (0-7) and minimum of Q4_K and Q5_K, from their 12 packed bytes.
inline int packed_scale(const uint8_t* p, int s) { return s < 4 ? p[s] & 63 : (p[s + 4] & 15) + (p[s - 4] >> 6) * 16; }
inline int packed_minimum(const uint8_t* p, int s) { return s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) + (p[s] >> 6) * 16; }

// A block of 256. Its halves of 128 have their bits in the same bytes, 32 elements beside 32 others.
inline double large_block_value(WeightFormat format, const uint8_t* b, int i) {
  int half = i / 128, quarter = i % 128 / 32, l = i % 32, sixteenth = i / 16, eighth = i / 32;
  switch (format) {
    case WeightFormat::q2_k: {
      int q = b[16 + 32 * half + l] >> 2 * quarter & 3, scale = b[sixteenth];
      return f16_at(b + 80) * (scale & 15) * q - f16_at(b + 82) * (scale >> 4);
    }
    case WeightFormat::q3_k: {
      int q = (b[32 + 32 * half + l] >> 2 * quarter & 3) - (b[l] >> eighth & 1 ? 0 : 4);
      int low = sixteenth < 8 ? b[96 + sixteenth] & 15 : b[96 + sixteenth - 8] >> 4;
      int high = b[104 + sixteenth % 4] >> sixteenth / 4 * 2 & 3;
      return f16_at(b + 108) * (low + 16 * high - 32) * q;
    }
    case WeightFormat::q4_k: {
      int q = b[16 + i / 64 * 32 + l] >> i / 32 % 2 * 4 & 15;
      return f16_at(b) * packed_scale(b + 4, eighth) * q - f16_at(b + 2) * packed_minimum(b + 4, eighth);
    }
    case WeightFormat::q5_k: {
      int q = (b[48 + i / 64 * 32 + l] >> i / 32 % 2 * 4 & 15) + 16 * (b[16 + l] >> eighth & 1);
      return f16_at(b) * packed_scale(b + 4, eighth) * q - f16_at(b + 2) * packed_minimum(b + 4, eighth);
    }
    case WeightFormat::q6_k: {
      int low = b[64 * half + quarter % 2 * 32 + l] >> quarter / 2 * 4 & 15, high = b[128 + 32 * half + l] >> 2 * quarter & 3;
      return f16_at(b + 208) * int8_t(b[192 + sixteenth]) * (low + 16 * high - 32);
    }
    case WeightFormat::iq4_xs: {
      int low = b[4 + eighth / 2] >> eighth % 2 * 4 & 15, high = b[2 + eighth / 4] >> eighth % 4 * 2 & 3;
      uint8_t block[18];  // as one of IQ4_NL
      std::memcpy(block, b, 2);
      std::memcpy(block + 2, b + 8 + 16 * eighth, 16);
      return small_block_value(WeightFormat::iq4_nl, block, l) * (low + 16 * high - 32);
    }
    default: std::abort();
  }
}

// All elements, rounded to f32 as every implementation does.
inline void block_values(WeightFormat format, const uint8_t* block, double* out) {
  int elements = stored(format).block_elements;
  for (int i = 0; i < elements; i++)
    out[i] = double(float(elements == 32 ? small_block_value(format, block, i) : large_block_value(format, block, i)));
}

}  // namespace octavo_test
