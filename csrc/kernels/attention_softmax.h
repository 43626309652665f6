// Softmax in pieces: within a span, then spans folded in ascending order (the online softmax of Milakov and Gimelshein
// 2018, as in FlashAttention). Scores are held times log2(e), so that every exponential is a power of two.
#pragma once
#include "attention_kv.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMinusInfinity = -__builtin_inff();

// A fold state, and a partial row, is [head_dim + 2]: the weighted sums of V, the greatest score, the sum of weights.

// Lanes [begin, end) of a, minus infinity elsewhere.
OCTAVO_INLINE f32x16 mask_scores(f32x16 a, int begin, int end) {
  f32x16 hidden = set1(kMinusInfinity);
  if (end < kLanes) a = select_n(a, hidden, end);
  if (begin > 0) a = select_n(hidden, a, begin);
  return a;
}

// cap * tanh(a / cap).
OCTAVO_INLINE f32x16 soft_cap(f32x16 a, float cap) {
  f32x16 e = exp2(min(mul(a, set1(2.0f * kLog2E / cap)), set1(80.0f)));
  return mul(set1(cap), div(sub(e, set1(1.0f)), add(e, set1(1.0f))));
}

// Raw scores of tokens [begin, end) of a span -> softmax weights as operands, their sum and the greatest score.
// Whole chunks of 16 are written, hidden tokens with weight 0. The sum is of the weights as they will be multiplied
// (rounded to bf16 where V is a bf16 operand), so that the weights used always add up to one; lane = token modulo 16.
template <class Kv>
OCTAVO_INLINE void weigh_tokens(const AttentionArgs& args, float* scores, int begin, int end,
                                typename Kv::Operand* weights, float* greatest, float* sum) {
  int first = begin / kLanes, last = (end - 1) / kLanes;
  f32x16 top = set1(kMinusInfinity);
  for (int c = first; c <= last; c++) {
    f32x16 s = load(scores + c * kLanes);
    if (args.softcap > 0)
      s = mul(soft_cap(mul(s, set1(args.scale)), args.softcap), set1(kLog2E));
    else
      s = mul(s, set1(args.scale * kLog2E));
    s = mask_scores(s, begin - c * kLanes, end - c * kLanes);
    store(scores + c * kLanes, s);
    top = max(s, top);
  }
  *greatest = reduce_max(top);
  f32x16 total = zero();
  for (int c = first; c <= last; c++) {
    f32x16 weight = exp2(sub(load(scores + c * kLanes), set1(*greatest)));
    total = add(total, Kv::to_operands(weights + c * kLanes, weight));
  }
  *sum = reduce_add(total);
}

OCTAVO_INLINE void begin_fold(float* state, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes) store(state + d, zero());
  state[head_dim] = kMinusInfinity;
  state[head_dim + 1] = 0.0f;
}

// state <- state and the next span. The only place where spans meet: an item that covers all its spans and
// attention_merge both come here, one span at a time.
OCTAVO_INLINE void fold_span(float* state, const float* values, float greatest, float sum, int head_dim) {
  if (greatest == kMinusInfinity) return;  // nothing of that span is visible to this row
  float before = state[head_dim], top = greatest > before ? greatest : before;
  f32x16 keep = exp2(set1(before - top)), gain = exp2(set1(greatest - top));
  for (int d = 0; d < head_dim; d += kLanes) store(state + d, fma(load(values + d), gain, mul(load(state + d), keep)));
  float factors[2 * kLanes];
  store(factors, keep);
  store(factors + kLanes, gain);
  state[head_dim] = top;
  state[head_dim + 1] = state[head_dim + 1] * factors[0] + sum * factors[kLanes];
}

// Divides by the sum of weights; a sink (Xiao et al. 2023; gpt-oss) is one more key with no value.
OCTAVO_INLINE void finish_fold(const float* state, const float* sink, int head_dim, float* out) {
  float keep = 1.0f, sum = state[head_dim + 1];
  if (sink) {
    float score = *sink * kLog2E, before = state[head_dim], top = score > before ? score : before;
    float factors[kLanes];
    store(factors, exp2(set1(before - top)));
    keep = factors[0];
    store(factors, exp2(set1(score - top)));
    sum = sum * keep + factors[0];
  }
  f32x16 factor = set1(keep / sum);
  for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(state + d), factor));
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
