// The two matrix products of attention for a block of query rows and one span, blocked for registers. Each lane of each
// accumulator is one chain over ascending head_dim (scores) or ascending tokens (values), so the shape of the block
// never shows in the result.
#pragma once
#include "attention_pages.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Accumulators: kBlockRows x kBlockColumns vectors of 16, out of 32 zmm, 8 pairs of ymm or 4 quadruples of xmm.
#if defined(__AVX512F__)
constexpr int kBlockRows = 6;
#elif defined(__AVX2__)
constexpr int kBlockRows = 3;
#else
constexpr int kBlockRows = 2;
#endif
constexpr int kBlockColumns = kChunksTogether;

// Query rows that go through a span together; operands, scores and weights of a row are this far apart.
constexpr int kRowsTogether = 2 * kBlockRows;

// Sums of q times the keys of chunks [chunk, chunk + kChunksTogether) for kRows rows.
template <class Kv, int kPieces, int kRows>
OCTAVO_NOINLINE void score_block(const SpanPages& pages, int chunk, int head_dim, const typename Kv::Operand* q,
                                 float* scores, Fetch* fetch) {
  typename Kv::Sum sum[kRows][kChunksTogether];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kChunksTogether; c++) sum[r][c] = Kv::zero_sum();
  int64_t offset = pages.key_head;
  for (int d = 0; d < head_dim; d += Kv::kPack * kPieces, offset += pages.key_stride * kPieces) {
    if (fetch) {
      if (pages.fetch_values) fetch_values<kPieces>(pages, chunk, offset);
      fetch_lines(fetch, fetch->lines * kPieces);
    }
    OCTAVO_UNROLL
    for (int c = 0; c < kChunksTogether; c++) {
      f32x16 raw[kPieces];
      load_keys<kPieces>(pages, chunk + c, offset, raw);
      OCTAVO_UNROLL
      for (int i = 0; i < kPieces; i++) {
        typename Kv::Lanes keys = Kv::expand(raw[i]);
        OCTAVO_UNROLL
        for (int r = 0; r < kRows; r++)
          sum[r][c] = Kv::multiply_add(q + r * kMaxHeadDim + d + i * Kv::kPack, keys, sum[r][c]);
      }
    }
  }
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kChunksTogether; c++) Kv::store_sum(scores + r * kSpan + (chunk + c) * kLanes, sum[r][c]);
}

// values[row] += sum over units [begin, end) of weight * V, columns [0, 16 * kColumns) of head_dim from `column` on.
template <class Kv, int kRows, int kColumns>
OCTAVO_NOINLINE void value_block(const SpanPages& pages, int begin, int end, int column,
                                 const typename Kv::Operand* weights, float* values, Fetch* fetch) {
  typename Kv::Sum sum[kRows][kColumns];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) sum[r][c] = Kv::load_sum(values + r * kMaxHeadDim + column + c * kLanes);
  for (int unit = begin; unit < end; unit++) {
    const float* row = (const float*)(pages.value_unit[unit] + pages.value_head) + column;
    if (fetch) fetch_lines(fetch, min_int(fetch->lines, kColumns));
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) {
      typename Kv::Lanes v = Kv::expand(load(row + c * kLanes));
      OCTAVO_UNROLL
      for (int r = 0; r < kRows; r++)
        sum[r][c] = Kv::multiply_add(weights + r * kSpan + unit * Kv::kPack, v, sum[r][c]);
    }
  }
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) Kv::store_sum(values + r * kMaxHeadDim + column + c * kLanes, sum[r][c]);
}

// Units [begin, end) for one row, which need not see all of their tokens.
template <class Kv>
void value_edge(const SpanPages& pages, int begin, int end, int token_begin, int token_end, int head_dim,
                const typename Kv::Operand* weights, float* values) {
  for (int unit = begin; unit < end; unit++) {
    bool first_hidden = unit * Kv::kPack < token_begin, last_hidden = (unit + 1) * Kv::kPack > token_end;
    const float* row = (const float*)(pages.value_unit[unit] + pages.value_head);
    for (int d = 0; d < head_dim; d += kLanes) {
      typename Kv::Lanes v = Kv::expand(Kv::visible(load(row + d), first_hidden, last_hidden));
      Kv::store_sum(values + d, Kv::multiply_add(weights + unit * Kv::kPack, v, Kv::load_sum(values + d)));
    }
  }
}

// Sums for the tokens in `seen`, in whole groups of chunks.
template <class Kv, int kRows>
void score_rows(const SpanPages& pages, TokenRange seen, int head_dim, const typename Kv::Operand* q, float* scores,
                Fetch* fetch) {
  for (int chunk = seen.begin / kLanes / kChunksTogether * kChunksTogether; chunk * kLanes < seen.end;
       chunk += kChunksTogether)
    switch (pages.pieces) {
      case 1: score_block<Kv, 1, kRows>(pages, chunk, head_dim, q, scores, fetch); break;
      case 2: score_block<Kv, 2, kRows>(pages, chunk, head_dim, q, scores, fetch); break;
      default: score_block<Kv, 4, kRows>(pages, chunk, head_dim, q, scores, fetch);
    }
}

template <class Kv, int kRows>
void value_rows(const SpanPages& pages, int begin, int end, int head_dim, const typename Kv::Operand* weights,
                float* values, Fetch* fetch) {
  int column = 0;
  for (; column + kBlockColumns * kLanes <= head_dim; column += kBlockColumns * kLanes)
    value_block<Kv, kRows, kBlockColumns>(pages, begin, end, column, weights, values, fetch);
  for (; column < head_dim; column += kLanes) value_block<Kv, kRows, 1>(pages, begin, end, column, weights, values, fetch);
}

template <int kMax, class Body>
OCTAVO_INLINE void with_constant(int n, const Body& body) {
  if constexpr (kMax > 1) {
    if (n < kMax) return with_constant<kMax - 1>(n, body);
  }
  body.template operator()<kMax>();
}

// Calls body.template operator()<n>(first) for blocks of n <= kBlockRows rows, of about equal size, that cover `rows`.
template <class Body>
OCTAVO_INLINE void for_row_blocks(int rows, const Body& body) {
  int blocks = (rows + kBlockRows - 1) / kBlockRows, first = 0;
  for (int left = blocks; left > 0; left--) {
    int n = (rows - first + left - 1) / left;
    with_constant<kBlockRows>(n, [&]<int kRows>() { body.template operator()<kRows>(first); });
    first += n;
  }
}

// Each block of rows goes over the whole span, and with `rows` of them each has to ask for a part of what comes next.
OCTAVO_INLINE void spread_over(int rows, Fetch* fetch) {
  int blocks = (rows + kBlockRows - 1) / kBlockRows;
  fetch->lines = max_int(1, (kChunksTogether + blocks - 1) / blocks);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
