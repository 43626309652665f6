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

// Query rows that go through a span together.
constexpr int kRowsTogether = 2 * kBlockRows;

// Operands of softmax weights: [part][kRowsTogether][kSpan].
constexpr int64_t kWeightsOfPart = kRowsTogether * kSpan;

// Query rows as operands [rows][kMaxHeadDim], what one of those counts, and their scores [rows][kSpan].
template <class Kv>
struct ScoreRows {
  const typename Kv::Operand* q;
  const float* units;
  const TokenScales* scales;
  float* scores;
};

// Sums of numbers [begin, end) of q times those of the keys of chunks [chunk, chunk + kChunksTogether) for kRows rows.
template <class Kv, int kPieces, int kRows>
OCTAVO_NOINLINE void score_block(const SpanPages& pages, int chunk, int begin, int end, const typename Kv::Operand* q,
                                 float* sums, Fetch* fetch) {
  typename Kv::Sum sum[kRows][kChunksTogether];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kChunksTogether; c++) sum[r][c] = Kv::zero_sum();
  int64_t offset = pages.key_head + begin / Kv::kPack * pages.key_stride;
  for (int d = begin; d < end; d += Kv::kPack * kPieces, offset += pages.key_stride * kPieces) {
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
    for (int c = 0; c < kChunksTogether; c++) Kv::store_sum(sums + r * kSpan + (chunk + c) * kLanes, sum[r][c]);
}

// What score_block has summed of one part of the head becomes scores, or is added to those of earlier parts. (In
// score_block itself it makes GCC 12 keep the sums in memory.)
template <class Kv, int kRows>
OCTAVO_INLINE void scale_sums(const ScoreRows<Kv>& rows, int chunk, int begin, const float* sums) {
  const float* scales = rows.scales->key[begin / Kv::kPart] + chunk * kLanes;
  for (int r = 0; r < kRows; r++) {
    float* scores = rows.scores + r * kSpan + chunk * kLanes;
    const float* sum = sums + r * kSpan + chunk * kLanes;
    f32x16 unit = set1(rows.units[r]);
    for (int t = 0; t < kChunksTogether * kLanes; t += kLanes) {
      f32x16 a = to_f32(Kv::load_sum(sum + t)), each = mul(load(scales + t), unit);
      store(scores + t, begin ? fma(a, each, load(scores + t)) : mul(a, each));
    }
  }
}

// values[row] += sum over units [begin, end) of weight * V, columns [0, 16 * kColumns) of head_dim from `column` on, all
// of one part; `weights`: for that part.
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
      const typename Kv::Operand* own = weights + d / Kv::kPart * kWeightsOfPart + unit * Kv::kPack;
      Kv::store_sum(values + d,
                    Kv::multiply_add_seen(own, load(row + d), first_hidden, last_hidden, Kv::load_sum(values + d)));
    }
  }
}

template <class Kv, int kRows>
OCTAVO_INLINE void sum_part(const SpanPages& pages, int chunk, int begin, int end, const typename Kv::Operand* q,
                            float* sums, Fetch* fetch) {
  switch (pages.pieces) {
    case 1: return score_block<Kv, 1, kRows>(pages, chunk, begin, end, q, sums, fetch);
    case 2: return score_block<Kv, 2, kRows>(pages, chunk, begin, end, q, sums, fetch);
    default: return score_block<Kv, 4, kRows>(pages, chunk, begin, end, q, sums, fetch);
  }
}

// Raw scores of the tokens in `seen`, in whole groups of chunks.
template <class Kv, int kRows>
void score_rows(const SpanPages& pages, TokenRange seen, int head_dim, const ScoreRows<Kv>& rows, Fetch* fetch) {
  for (int chunk = seen.begin / kLanes / kChunksTogether * kChunksTogether; chunk * kLanes < seen.end;
       chunk += kChunksTogether) {
    if constexpr (Kv::kScaled) {
      float sums[kRows * kSpan];
      for (int begin = 0; begin < head_dim; begin += Kv::kPart) {
        sum_part<Kv, kRows>(pages, chunk, begin, min_int(begin + Kv::kPart, head_dim), rows.q, sums, fetch);
        scale_sums<Kv, kRows>(rows, chunk, begin, sums);
      }
    } else {
      sum_part<Kv, kRows>(pages, chunk, 0, head_dim, rows.q, rows.scores, fetch);
    }
  }
}

template <class Kv, int kRows>
void value_rows(const SpanPages& pages, int begin, int end, int head_dim, const typename Kv::Operand* weights,
                float* values, Fetch* fetch) {
  static_assert(Kv::kPart % (kBlockColumns * kLanes) == 0, "columns of a block are of one part");
  auto own = [&](int column) { return weights + column / Kv::kPart * kWeightsOfPart; };
  int column = 0;
  for (; column + kBlockColumns * kLanes <= head_dim; column += kBlockColumns * kLanes)
    value_block<Kv, kRows, kBlockColumns>(pages, begin, end, column, own(column), values, fetch);
  for (; column < head_dim; column += kLanes)
    value_block<Kv, kRows, 1>(pages, begin, end, column, own(column), values, fetch);
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
