// Random matrices in every weight format, their values in double, and buffers whose end ASan guards to the byte.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"

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

// Memory at a 64-byte boundary and not a byte longer than asked.
struct Buffer {
  explicit Buffer(int64_t bytes) : bytes(bytes) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, size_t(bytes)) != 0) std::abort();
    std::memset(p, 0xA5, size_t(bytes));
    data.reset(static_cast<uint8_t*>(p));
  }
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  int64_t bytes;
  std::unique_ptr<uint8_t, Free> data;
};

inline double f16_value(uint16_t h) {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000 ? -v : v;
}
inline double bf16_value(uint16_t h) {
  uint32_t u = uint32_t(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return double(f);
}

struct Format {
  WeightFormat format;
  const char* name;
  int block;  // elements
  int bytes;  // of a block
};
constexpr Format kFormats[] = {
    {WeightFormat::f32, "f32", 1, 4},    {WeightFormat::f16, "f16", 1, 2},    {WeightFormat::bf16, "bf16", 1, 2},
    {WeightFormat::q8_0, "q8_0", 32, 34}, {WeightFormat::q4_0, "q4_0", 32, 18}, {WeightFormat::q4_1, "q4_1", 32, 20},
};
constexpr const char* kActivationNames[] = {"f32", "bf16", "int8"};

// Finite f16 bits: mostly of ordinary size, sometimes zero, subnormal or large.
inline uint16_t random_f16(Random& random) {
  int exponent = random.below(16) ? 8 + random.below(6) : random.below(20);
  return uint16_t(random.below(2) << 15 | exponent << 10 | random.below(1024));
}

// A matrix [n, k] in a file's own layout, and what it means.
struct Matrix {
  Format format;
  int n, k;
  int64_t row_bytes;
  Buffer file;
  std::vector<double> values;  // [n][k]

  Matrix(const Format& format, int n, int k, Random& random)
      : format(format), n(n), k(k), row_bytes(int64_t(k / format.block) * format.bytes), file(n * row_bytes),
        values(size_t(n) * size_t(k)) {
    for (int r = 0; r < n; r++)
      for (int b = 0; b < k / format.block; b++)
        fill_block(file.data.get() + r * row_bytes + b * format.bytes, &values[size_t(r) * k + b * format.block], random);
  }

 private:
  void fill_block(uint8_t* block, double* out, Random& random) {
    if (format.block == 1) return fill_element(block, out, random);
    uint16_t d = random_f16(random), m = random_f16(random);
    int header = format.format == WeightFormat::q4_1 ? 4 : 2;
    std::memcpy(block, &d, 2);
    if (header == 4) std::memcpy(block + 2, &m, 2);
    for (int i = header; i < format.bytes; i++) block[i] = uint8_t(random.next() >> 13);
    for (int i = 0; i < 32; i++) {
      int nibble = i < 16 ? block[header + i % 16] & 15 : block[header + i % 16] >> 4;
      if (format.format == WeightFormat::q8_0) out[i] = f16_value(d) * int8_t(block[header + i]);
      else if (format.format == WeightFormat::q4_0) out[i] = f16_value(d) * (nibble - 8);
      else out[i] = double(float(f16_value(d) * nibble + f16_value(m)));
    }
  }
  void fill_element(uint8_t* block, double* out, Random& random) {
    float f = random.uniform();
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint16_t half = format.format == WeightFormat::f16 ? random_f16(random) : uint16_t(bits >> 16);
    if (format.bytes == 4) std::memcpy(block, &f, 4);
    else std::memcpy(block, &half, 2);
    *out = format.format == WeightFormat::f32    ? double(f)
           : format.format == WeightFormat::f16 ? f16_value(half)
                                                 : bf16_value(half);
  }
};

// The matrix as tiles of one level.
struct Packed {
  Buffer tiles;
  PackedWeight weight;

  Packed(const KernelTable& table, const Matrix& m, ActivationKind kind, const int32_t* row_index = nullptr)
      : tiles((m.n + 15) / 16 * table.packed_tile_bytes(m.format.format, kind, m.k)) {
    int64_t tile_bytes = table.packed_tile_bytes(m.format.format, kind, m.k);
    for (int t = 0; t < (m.n + 15) / 16; t++)
      table.pack_tile(m.format.format, kind, m.file.data.get(), m.row_bytes, row_index, m.n, m.k, t,
                      tiles.data.get() + t * tile_bytes);
    weight = {m.format.format, kind, m.n, m.k, tile_bytes, tiles.data.get()};
  }
};

// Rows of activations as a kernel reads them.
struct Prepared {
  Buffer bytes;
  PreparedRows rows;

  Prepared(const KernelTable& table, ActivationKind kind, const std::vector<float>& x, int count, int k)
      : bytes(count * table.prepared_row_bytes(kind, k)) {
    int64_t row_bytes = table.prepared_row_bytes(kind, k);
    for (int r = 0; r < count; r++) table.prepare_row(kind, &x[size_t(r) * k], k, bytes.data.get() + r * row_bytes);
    rows = {kind, count, k, row_bytes, bytes.data.get()};
  }
};

}  // namespace octavo_test
