// Softmax in pieces: within a span, then spans folded in ascending order (the online softmax of Milakov and Gimelshein
// 2018, as in FlashAttention). Scores are held times log2(e), so that every exponential is a power of two.
#pragma once
#include "attention_pages.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMinusInfinity = -__builtin_inff();

// What q is multiplied with before it becomes an operand, so that raw scores come out as the exponents that
// `finish_scores` wants.
OCTAVO_INLINE float q_factor(const AttentionArgs& args) {
  return args.softcap > 0 ? args.scale * (2.0f * kLog2E / args.softcap) : args.scale * kLog2E;
}

// Minus infinity for all but tokens [begin, end) of a chunk.
OCTAVO_INLINE void mask_scores(float* chunk, int begin, int end) {
  if (begin <= 0 && end >= kLanes) return;
  f32x16 hidden = set1(kMinusInfinity), a = load(chunk);
  if (end < kLanes) a = select_n(a, hidden, max_int(end, 0));
  if (begin > 0) a = select_n(hidden, a, begin);
  store(chunk, a);
}

// cap * tanh(s / cap) * log2(e) of raw scores 2 * log2(e) * s / cap.
OCTAVO_INLINE f32x16 soft_cap(f32x16 raw, float cap) {
  f32x16 e = exp2(min(raw, set1(80.0f)));
  return mul(set1(cap * kLog2E), div(sub(e, set1(1.0f)), add(e, set1(1.0f))));
}

// Raw scores of tokens [begin, end) of a span -> scores, hidden ones minus infinity in whole pairs of chunks, and the
// greatest of them.
OCTAVO_INLINE float finish_scores(float softcap, float* scores, int begin, int end) {
  int first = begin / kWeighStep * kWeighStep, last = (end - 1) / kWeighStep * kWeighStep;
  if (softcap > 0)
    for (int t = first; t < last + kWeighStep; t += kLanes) store(scores + t, soft_cap(load(scores + t), softcap));
  for (int t = 0; t < kWeighStep; t += kLanes) {
    mask_scores(scores + first + t, begin - first - t, end - first - t);
    mask_scores(scores + last + t, begin - last - t, end - last - t);
  }
  f32x16 top = set1(kMinusInfinity);
  for (int t = first; t < last + kWeighStep; t += kLanes) top = max(load(scores + t), top);
  return reduce_max(top);
}

// Raw scores -> scores, and weights of those, for `rows` rows that see the tokens `seen[r]`. In two passes, since a row's
// weights wait for its greatest score at the end of a long chain, and those of several rows go side by side: 8.7 cycles
// for 16 tokens instead of 10.6 (Zen 4).
template <class Kv>
OCTAVO_NOINLINE void weigh_rows(float softcap, const TokenScales& scales, float* scores, const TokenRange* seen, int rows,
                                int head_dim, typename Kv::Operand* weights, int64_t part_stride, float* greatest,
                                Weighed* weighed) {
  for (int r = 0; r < rows; r++)
    if (!seen[r].empty()) greatest[r] = finish_scores(softcap, scores + r * kSpan, seen[r].begin, seen[r].end);
  for (int r = 0; r < rows; r++)
    if (!seen[r].empty())
      weighed[r] = Kv::weigh_tokens(scores + r * kSpan, seen[r].begin, seen[r].end, greatest[r], scales, head_dim,
                                    weights + r * kSpan, part_stride);
}

// Query rows with what they have so far, or have of one span: weighted sums of V, greatest score, sum of weights.
struct FoldRows {
  float* values;     // [rows][stride]
  int64_t stride;
  float* greatest;   // [rows]
  float* sum;        // [rows]
};

OCTAVO_INLINE FoldRows rows_from(FoldRows rows, int first) {
  return {rows.values + first * rows.stride, rows.stride, rows.greatest + first, rows.sum + first};
}

OCTAVO_INLINE void begin_fold(FoldRows state, int rows, int head_dim) {
  for (int r = 0; r < rows; r++) {
    for (int d = 0; d < head_dim; d += kLanes) store(state.values + r * state.stride + d, zero());
    state.greatest[r] = kMinusInfinity;
    state.sum[r] = 0.0f;
  }
}

// state <- state and the next span. The only place where spans meet: an item that covers all its spans and
// attention_merge both come here, one span at a time. At most 16 rows; a span whose greatest score is minus infinity is
// not visible to that row and leaves it as it is.
OCTAVO_NOINLINE void fold_span(FoldRows state, FoldRows span, int rows, int head_dim) {
  f32x16 before = load_n(state.greatest, rows), next = load_n(span.greatest, rows), top = max(before, next);
  float keep[kLanes], gain[kLanes], greatest[kLanes];
  store(keep, exp2(sub(before, top)));
  store(gain, exp2(sub(next, top)));
  store(greatest, top);
  for (int r = 0; r < rows; r++) {
    if (span.greatest[r] == kMinusInfinity) continue;
    float* values = state.values + r * state.stride;
    const float* added = span.values + r * span.stride;
    f32x16 old_part = set1(keep[r]), new_part = set1(gain[r]);
    for (int d = 0; d < head_dim; d += kLanes)
      store(values + d, fma(load(added + d), new_part, mul(load(values + d), old_part)));
    state.greatest[r] = greatest[r];
    state.sum[r] = state.sum[r] * keep[r] + span.sum[r] * gain[r];
  }
}

// Divides by the sum of weights; a sink (Xiao et al. 2023; gpt-oss) is one more key with no value.
OCTAVO_INLINE void finish_fold(const float* values, float greatest, float sum, const float* sink, int head_dim, float* out) {
  float keep = 1.0f;
  if (sink) {
    float score = *sink * kLog2E, top = score > greatest ? score : greatest;
    float factors[kLanes];
    store(factors, exp2(set1(greatest - top)));
    keep = factors[0];
    store(factors, exp2(set1(score - top)));
    sum = sum * keep + factors[0];
  }
  f32x16 factor = set1(keep / sum);
  for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(values + d), factor));
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
