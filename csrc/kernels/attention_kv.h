// How K and V of each type are multiplied.
//
// A page's K plane is rows of `page_size` 4-byte lanes, one row a step: a step is the kPack elements of head_dim that a
// lane holds. Its V plane is rows of `head_dim` 4-byte lanes, one row a unit: a unit is kPack tokens. So all types run
// through the same loops, and what differs is here and in attention_kv_int8.h: what q and softmax weights become before
// they are multiplied, the products, and what their sums become after.
//
// Where many query rows use a span and widening costs more than reading wide numbers, it is done once for all of them, into
// a copy of the type `Wide`, whose products, in the same order, have the same bits.
#pragma once
#include "../kernels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kSpan = kAttentionSpan;

// Softmax weights are written in steps of so many tokens, hidden ones with weight 0.
constexpr int kWeighStep = 2 * kLanes;

struct TokenRange {
  int begin, end;  // within a span
  bool empty() const { return begin >= end; }
};

// Scales of a span's tokens for one kv head, by part; only of types that have them.
struct TokenScales {
  float key[kMaxHeadScales][kSpan], value[kMaxHeadScales][kSpan];
  uint16_t stored_key[kSpan], stored_value[kSpan];  // of the part that is being loaded
};

// Softmax weights of a row in a span: their sum, and what one of the operands made of them for each part counts.
struct Weighed {
  float sum, unit[kMaxHeadScales];
};

// A type whose numbers are what they stand for: sums of products are f32 from the first to the last.
template <class Kv>
struct PlainKv {
  using Sum = f32x16;
  static constexpr bool kScaled = false;     // true: sums of products are integers, and what they count depends on scales
  static constexpr int kPart = kMaxHeadDim;  // numbers of a head that share a scale
  OCTAVO_INLINE Sum zero_sum() { return zero(); }
  OCTAVO_INLINE Sum load_sum(const float* p) { return load(p); }
  OCTAVO_INLINE void store_sum(float* p, Sum a) { store(p, a); }

  // A query head times `factor` as operands; returns what one of them counts.
  template <class Operand>
  OCTAVO_INLINE float to_query(Operand* dst, const float* source, f32x16 factor, int head_dim) {
    for (int d = 0; d < head_dim; d += kLanes) Kv::to_operands(dst + d, mul(load(source + d), factor));
    return 1.0f;
  }
  OCTAVO_INLINE void fetch_scales(const KvLayout&, int, const int32_t*, const int32_t*) {}
  OCTAVO_INLINE void load_scales(const KvLayout&, int, const int32_t*, int, TokenRange, TokenScales*) {}

  // Scores of tokens [begin, end), hidden ones minus infinity -> weights as operands, those for each part `part_stride`
  // apart. The sum is of the weights as they will be multiplied (rounded to bf16 where V is a bf16 operand), so that the
  // weights used always add up to one.
  template <class Operand>
  OCTAVO_INLINE Weighed weigh_tokens(const float* scores, int begin, int end, float greatest, const TokenScales&, int,
                                     Operand* weights, int64_t) {
    f32x16 top = set1(greatest), total = zero();
    for (int t = begin / kWeighStep * kWeighStep; t < end; t += kWeighStep) {
      f32x16 a = exp2(sub(load(scores + t), top)), b = exp2(sub(load(scores + t + kLanes), top));
      total = Kv::to_operands_and_add(weights + t, a, b, total);
    }
    return {reduce_add(total), {}};
  }
  OCTAVO_INLINE void finish_values(float*, const Weighed&, int) {}
};

// KV stored as f32: everything in f32.
struct F32Kv : PlainKv<F32Kv> {
  using Wide = F32Kv;
  using Operand = float;         // what an element of q, and a softmax weight, is multiplied as
  using Lanes = f32x16;
  static constexpr int kPack = 1;  // elements in a 4-byte lane
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return raw; }
  OCTAVO_INLINE f32x16 multiply_add(const float* operand, Lanes b, f32x16 c) { return fma(set1(*operand), b, c); }
  // The same for a unit of V whose first or last token is hidden; here a unit is one token, and it is seen.
  OCTAVO_INLINE f32x16 multiply_add_seen(const float* weight, f32x16 raw, bool, bool, f32x16 c) {
    return multiply_add(weight, raw, c);
  }
  // The lanes as `Wide` has them: a vector, or two that are `stride` apart.
  OCTAVO_INLINE void store_wide(float* dst, int64_t, f32x16 raw) { store(dst, raw); }
  OCTAVO_INLINE void to_operands(float* dst, f32x16 a) { store(dst, a); }
  // Writes 32 operands and adds them, as they will be multiplied, to the 16 lanes of `sum`.
  OCTAVO_INLINE f32x16 to_operands_and_add(float* dst, f32x16 a, f32x16 b, f32x16 sum) {
    store(dst, a);
    store(dst + kLanes, b);
    return add(add(sum, a), b);
  }
};

template <bool kOnce, class Own>
struct WideType { using Kv = Own; };
template <class Own>
struct WideType<true, Own> { using Kv = F32Kv; };

// Pairs of 2-byte numbers widened to f32 by `Half`: q and softmax weights keep f32.
template <class Half>
struct WidenedKv : PlainKv<WidenedKv<Half>> {
  using Wide = typename WideType<Half::kOnce, WidenedKv>::Kv;
  using Operand = float;
  struct Lanes { f32x16 first, second; };
  static constexpr int kPack = 2;
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return {Half::first(raw), Half::second(raw)}; }
  OCTAVO_INLINE f32x16 multiply_add(const float* operand, Lanes b, f32x16 c) {
    return fma(set1(operand[1]), b.second, fma(set1(operand[0]), b.first, c));
  }
  // A hidden token may be a slot that nobody has written, and 0 * NaN is NaN: it is left out, as `Wide` leaves it out.
  OCTAVO_INLINE f32x16 multiply_add_seen(const float* weights, f32x16 raw, bool first_hidden, bool second_hidden, f32x16 c) {
    if (!first_hidden) c = fma(set1(weights[0]), Half::first(raw), c);
    return second_hidden ? c : fma(set1(weights[1]), Half::second(raw), c);
  }
  OCTAVO_INLINE void store_wide(float* dst, int64_t stride, f32x16 raw) {
    if constexpr (!Half::kOnce) return store(dst, raw);
    store(dst, Half::first(raw));
    store(dst + stride, Half::second(raw));
  }
  OCTAVO_INLINE void to_operands(float* dst, f32x16 a) { store(dst, a); }
  OCTAVO_INLINE f32x16 to_operands_and_add(float* dst, f32x16 a, f32x16 b, f32x16 sum) {
    return F32Kv::to_operands_and_add(dst, a, b, sum);
  }
};

struct F16Half {
#if defined(__AVX2__) && !defined(__AVX512F__)
  static constexpr bool kOnce = false;  // loads are what the products wait for: a prefill would take 8 % longer
#else
  static constexpr bool kOnce = true;
#endif
  OCTAVO_INLINE f32x16 first(f32x16 raw) { return f16_first(raw); }
  OCTAVO_INLINE f32x16 second(f32x16 raw) { return f16_second(raw); }
};
using F16Kv = WidenedKv<F16Half>;

#if defined(__AVX512BF16__)
// KV stored as bf16, q and softmax weights rounded to bf16, products and sums in f32.
struct Bf16Kv : PlainKv<Bf16Kv> {
  using Wide = Bf16Kv;
  using Operand = uint16_t;
  using Lanes = f32x16;
  static constexpr int kPack = 2;
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return raw; }
  OCTAVO_INLINE f32x16 multiply_add(const uint16_t* operand, Lanes b, f32x16 c) {
    uint32_t pair;
    memcpy(&pair, operand, 4);
    return dot_bf16(pair, b, c);
  }
  // A hidden token may be a slot that nobody has written, and 0 * NaN is NaN: it is zeroed.
  OCTAVO_INLINE f32x16 multiply_add_seen(const uint16_t* weights, f32x16 raw, bool first_hidden, bool second_hidden,
                                         f32x16 c) {
    if (first_hidden) raw = keep_second(raw);
    if (second_hidden) raw = keep_first(raw);
    return multiply_add(weights, raw, c);
  }
  OCTAVO_INLINE void store_wide(float* dst, int64_t, f32x16 raw) { store(dst, raw); }
  OCTAVO_INLINE void to_operands(uint16_t* dst, f32x16 a) { store_bf16(dst, a); }
  OCTAVO_INLINE f32x16 to_operands_and_add(uint16_t* dst, f32x16 a, f32x16 b, f32x16 sum) {
    f32x16 pairs = pack_bf16(a, b);
    store((float*)dst, pairs);
    return dot_bf16(0x3f803f80u, pairs, sum);  // a pair of ones
  }
};
#else
struct Bf16Half {
  static constexpr bool kOnce = false;  // an instruction each
  OCTAVO_INLINE f32x16 first(f32x16 raw) { return bf16_first(raw); }
  OCTAVO_INLINE f32x16 second(f32x16 raw) { return bf16_second(raw); }
};
using Bf16Kv = WidenedKv<Bf16Half>;
#endif

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
