// How every linear kernel reaches its rows and what it does with finished sums.
#pragma once
#include "linear_unpack.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

OCTAVO_INLINE const uint8_t* tile_of(const LinearArgs& args, int32_t tile) {
  return args.weight->tiles + tile * args.weight->tile_bytes;
}
OCTAVO_INLINE const uint8_t* row_of(const LinearArgs& args, int32_t row) {
  return args.input.data + row * args.input.row_bytes;
}

// Weights are fetched this far ahead of their use: two cores then read at the memory's full speed. The hardware's own
// prefetching gives half of it. Tiles lie one behind the other, and the matrices of a group should too; where a thread's
// stretch of them ends, LinearArgs says what it reads next.
constexpr int64_t kFetchAhead = 16384;

// Fetches `Bytes` of the weights that this thread reads kFetchAhead after `at`, to L2: there they don't push the rows
// out, and more of them can be under way than to L1. Constant and unrolled, because GCC deletes a loop that only
// prefetches.
template <int Bytes>
OCTAVO_INLINE void fetch_ahead(const LinearArgs& args, const uint8_t* at) {
  at += kFetchAhead;
  if (at >= args.fetch_end) at += args.fetch_next - args.fetch_end;
#pragma GCC unroll 64
  for (int line = 0; line < Bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

// Where M rows of activations are read, in a few registers: every fourth row, and the distances from it. Left alone, GCC
// keeps (and spills) a pointer for each row; the empty asm hides from it that it could.
template <int M>
class RowCursor {
 public:
  inline __attribute__((always_inline)) RowCursor(const uint8_t* rows, int64_t stride)
      : stride_(stride), three_strides_(3 * stride) {
#pragma GCC unroll 4
    for (int r = 0; r < M; r += 4) fourth_[r / 4] = rows + r * stride;
  }
  inline __attribute__((always_inline)) const uint8_t* row(int r) const {
    return fourth_[r / 4] + (r % 4 == 3 ? three_strides_ : r % 4 * stride_);
  }
  inline __attribute__((always_inline)) void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < (M + 3) / 4; i++) {
      fourth_[i] += bytes;
      asm("" : "+r"(fourth_[i]));
    }
    asm("" : "+r"(stride_), "+r"(three_strides_));
  }

 private:
  const uint8_t* fourth_[(M + 3) / 4];
  int64_t stride_, three_strides_;
};

// Writes consecutive rows of one tile: (sum + bias), then out + that. One order, whoever computes the element.
class Finisher {
 public:
  inline __attribute__((always_inline)) Finisher(const LinearArgs& args, int32_t tile, int32_t row)
      : out_(args.out + row * args.out_stride + tile * kColumns), stride_(args.out_stride),
        columns_(min_int(kColumns, args.weight->n - tile * kColumns)), has_bias_(args.bias != nullptr),
        accumulate_(args.accumulate), bias_(has_bias_ ? load_n(args.bias + tile * kColumns, columns_) : zero()) {}

  // Asks for the lines of M rows long before they are written: rows lie far apart, and each store would miss.
  template <int M>
  inline __attribute__((always_inline)) void prefetch() const {
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) __builtin_prefetch(out_ + r * stride_, 1);
  }

  inline __attribute__((always_inline)) void write_next(f32x16 sum) {
    if (has_bias_) sum = add(sum, bias_);
    if (accumulate_) sum = add(load_n(out_, columns_), sum);
    store_n(out_, sum, columns_);
    out_ += stride_;
  }

 private:
  float* out_;
  int64_t stride_;
  int columns_;
  bool has_bias_, accumulate_;
  f32x16 bias_;
};

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
