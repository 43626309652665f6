// Quantised weights x int8 activations: how rows and tiles are walked.
//
// A block of rows reads a tile once, unpacking it in registers; the next block unpacks it again, from L1 by then, which
// hides behind the multiplications better than storing the unpacked bytes would. The caller cuts the rows so that they
// stay in L2 while the tiles pass by.
//
// Whatever the walk, one output element is the sum over ascending groups of one chain of additions, made by the same
// instructions: cutting rows or tiles differently changes no bit.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// A few rows of one tile: what the inner loop is called with.
struct Int8Block {
  const LinearArgs& args;
  int32_t tile_index, row;
  bool first;  // nobody has read the tile yet: fetch ahead

  QuantTile tile(WeightFormat format) const { return quant_tile(format, tile_of(args, tile_index), args.weight->k); }
  const uint8_t* rows() const { return row_of(args, row); }
  int64_t stride() const { return args.input.row_bytes; }
  int32_t groups() const { return args.weight->k / kGroup; }

  template <WeightFormat F>
  inline __attribute__((always_inline)) void fetch_group(int32_t group) const {
    if (first) fetch_ahead<int(group_bytes(F))>(args, tile_of(args, tile_index) + group * group_bytes(F));
  }
};

// The rows' sums are complete but for the scale of their activations.
template <int M>
OCTAVO_INLINE void finish_int8(const Int8Block& block, Finisher finisher, const f32x16* sums) {
  const uint8_t* row = block.rows();
#pragma GCC unroll 16
  for (int r = 0; r < M; r++, row += block.stride()) {
    float scale;
    memcpy(&scale, row, 4);
    finisher.write_next(mul(sums[r], set1(scale)));
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo

#if defined(__AVX512VNNI__)
#include "linear_int8_avx512.h"
#elif defined(__AVX2__)
#include "linear_int8_avx2.h"
#else
#include "linear_int8_generic.h"
#endif

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// int8_block for a count of rows known only now.
template <WeightFormat F, int M = kInt8Rows>
OCTAVO_INLINE void int8_rows(int32_t count, const Int8Block& block) {
  if (count == M) return int8_block<F, M>(block);
  if constexpr (M > 1) int8_rows<F, M - 1>(count, block);
}

template <WeightFormat F>
void int8_linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  // Blocks of even size: 17 rows are 9 and 8, not 16 and a slow 1.
  int32_t rows = row_end - row_begin, blocks = (rows + kInt8Rows - 1) / kInt8Rows;
  for (int32_t t = tile_begin; t < tile_end; t++)
    for (int32_t b = 0; b < blocks; b++) {
      int32_t first = int32_t(int64_t(rows) * b / blocks), last = int32_t(int64_t(rows) * (b + 1) / blocks);
      int8_rows<F>(last - first, {args, t, row_begin + first, b == 0});
    }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
