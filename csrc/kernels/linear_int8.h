// Quantised weights x int8 activations: how rows, tiles and groups are walked.
//
// Whatever the walk, one output element is the sum over ascending groups of one chain of additions, in the same
// instructions: cutting rows, tiles or groups differently changes no bit.
#pragma once
#include "linear_finish.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// One group of a tile with nibbles spread to bytes and scales in f32.
struct alignas(64) ExpandedGroup {
  uint8_t quants[8][64];
  float scales[kColumns];
  float minima[kColumns];
};

// Sums that one pass keeps on the stack (8 KB); the rows' activations stay in L2 meanwhile.
constexpr int kPassRows = 128;
constexpr int kChunkGroups = 32;  // groups expanded at a time: 20 KB of L1
constexpr int kPrefetchAhead = 4096;

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

// int8_sums for a count of rows known only now.
template <WeightFormat F, bool Expanded, int M = kInt8Rows>
OCTAVO_INLINE void int8_rows(int32_t count, QuantTile tile, const ExpandedGroup* expanded, int32_t begin, int32_t end,
                             const uint8_t* rows, int64_t stride, float (*sums)[kColumns]) {
  if (count == M) return int8_sums<F, M, Expanded>(tile, expanded, begin, end, rows, stride, sums);
  if constexpr (M > 1) int8_rows<F, Expanded, M - 1>(count, tile, expanded, begin, end, rows, stride, sums);
}

template <WeightFormat F>
void int8_tile(const LinearArgs& args, int32_t tile, int32_t row, int32_t count) {
  QuantTile parts = quant_tile(F, tile_of(args, tile), args.weight->k);
  int32_t groups = args.weight->k / kGroup;
  int64_t stride = args.input.row_bytes;
  alignas(64) float sums[kPassRows][kColumns];
  memset(sums, 0, sizeof(sums[0]) * size_t(count));
  if (kInt8Direct && count <= kInt8Rows) {
    prefetch_out(args, tile, row, count);
    int8_rows<F, false>(count, parts, nullptr, 0, groups, row_of(args, row), stride, sums);
  } else {
    ExpandedGroup expanded[kChunkGroups];
    int32_t blocks = (count + kInt8Rows - 1) / kInt8Rows;
    for (int32_t begin = 0; begin < groups; begin += kChunkGroups) {
      int32_t end = min_int(groups, begin + kChunkGroups);
      for (int32_t g = begin; g < end; g++) expand_group<F>(parts, g, expanded + g - begin);
      for (int32_t b = 0; b < blocks; b++) {  // of even size: 17 rows are 9 and 8, not 16 and a slow 1
        int32_t first = count * b / blocks, last = count * (b + 1) / blocks;
        if (begin == 0) prefetch_out(args, tile, row + first, last - first);
        int8_rows<F, true>(last - first, parts, expanded, begin, end, row_of(args, row + first), stride, sums + first);
      }
    }
  }
  for (int32_t r = 0; r < count; r++) {
    float scale;
    memcpy(&scale, row_of(args, row + r), 4);
    finish(args, tile, row + r, mul(load(sums[r]), set1(scale)));
  }
}

template <WeightFormat F>
void int8_linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  for (int32_t row = row_begin; row < row_end; row += kPassRows)
    for (int32_t t = tile_begin; t < tile_end; t++) int8_tile<F>(args, t, row, min_int(kPassRows, row_end - row));
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
