// What every linear kernel does with a finished sum.
#pragma once
#include "linear_layout.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// (acc + bias), then out + that: one order, whoever computes the element.
OCTAVO_INLINE void finish(const LinearArgs& args, int32_t tile, int32_t row, f32x16 acc) {
  int32_t column = tile * kColumns;
  int columns = min_int(kColumns, args.weight->n - column);
  float* out = args.out + row * args.out_stride + column;
  if (args.bias) acc = add(acc, load_n(args.bias + column, columns));
  if (args.accumulate) acc = add(load_n(out, columns), acc);
  store_n(out, acc, columns);
}

// Asks for the lines that `finish` will write, long enough before it does: rows lie far apart, and every store would
// miss the caches at once.
OCTAVO_INLINE void prefetch_out(const LinearArgs& args, int32_t tile, int32_t row, int32_t count) {
  const float* out = args.out + row * args.out_stride + tile * kColumns;
  for (int32_t r = 0; r < count; r++) __builtin_prefetch(out + r * args.out_stride, 1);
}

OCTAVO_INLINE const uint8_t* tile_of(const LinearArgs& args, int32_t tile) {
  return args.weight->tiles + tile * args.weight->tile_bytes;
}
OCTAVO_INLINE const uint8_t* row_of(const LinearArgs& args, int32_t row) {
  return args.input.data + row * args.input.row_bytes;
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
