// Random matrices in every weight format, their values in double, and buffers whose end ASan guards to the byte.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "block_values.h"

namespace octavo_test {

using namespace octavo;

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

inline double bf16_value(uint16_t h) {
  uint32_t u = uint32_t(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return double(f);
}

constexpr const char* kActivationNames[kActivationKinds] = {"f32", "bf16", "int8", "bf16 as f32"};

// A matrix [n, k] in a file's own layout, and what it means.
struct Matrix {
  StoredFormat format;
  int n, k;
  int64_t row_bytes;
  Buffer file;
  std::vector<double> values;  // [n][k]

  Matrix(const StoredFormat& format, int n, int k, Random& random)
      : format(format), n(n), k(k), row_bytes(int64_t(k / format.block_elements) * format.block_bytes),
        file(n * row_bytes), values(size_t(n) * size_t(k)) {
    for (int r = 0; r < n; r++)
      for (int b = 0; b < k / format.block_elements; b++) {
        uint8_t* block = file.data.get() + r * row_bytes + b * format.block_bytes;
        fill_block(block, random);
        double* out = &values[size_t(r) * size_t(k) + size_t(b * format.block_elements)];
        if (is_quantised(format.format)) block_values(format.format, block, out);
        else *out = element_value(block);
      }
  }

 private:
  void fill_block(uint8_t* block, Random& random) {
    if (format.format == WeightFormat::f32 || format.format == WeightFormat::bf16) {
      float f = random.uniform();
      std::memcpy(block, reinterpret_cast<uint8_t*>(&f) + 4 - format.block_bytes, size_t(format.block_bytes));
      return;
    }
    for (int i = 0; i < format.block_bytes; i++) block[i] = uint8_t(random.next() >> 13);
    if (format.format == WeightFormat::mxfp4) block[0] = random_e8m0(random);
    for (int offset : f16_offsets(format.format)) {
      uint16_t f = random_f16(random);
      if (offset >= 0) std::memcpy(block + offset, &f, 2);
    }
  }
  double element_value(const uint8_t* element) const {
    float f;
    std::memcpy(&f, element, 4 < format.block_bytes ? 4 : size_t(format.block_bytes));
    uint16_t half;
    std::memcpy(&half, element, 2);
    if (format.format == WeightFormat::f32) return double(f);
    return format.format == WeightFormat::f16 ? f16_value(half) : bf16_value(half);
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
