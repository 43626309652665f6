// K and V stored as int8 with a scale for each token and part of a head: q and softmax weights become 16-bit integers, so
// that products and their sums are exact and their order doesn't matter. A sum of kSpan or kMaxHeadDim products stays
// under 256 * 32767 * 127 < 2^31. A score is the sum of its parts, each times its scale, in ascending order in f32.
//
// An element of a query head is a multiple of its greatest magnitude / 32767. For each part, a token's weight is
// multiplied with the scale of its V before it is rounded, in units of the span's greatest such product / 32767. What a
// row rounds depends on that row alone: its own q, and the tokens that it sees in that span.
#pragma once
#include "attention_kv.h"
#include "int16_lanes.h"
#include "magnitude.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr float kMostInt16 = 32767.0f;

// Below this a row's magnitudes count as zero: their inverse might not be a number.
constexpr float kLeastMagnitude = 1e-30f;

// What to multiply with before rounding to 16 bits; 0 for NaN, whose unit is NaN and shows.
OCTAVO_INLINE float int16_factor(float greatest) { return greatest >= kLeastMagnitude ? kMostInt16 / greatest : 0.0f; }

struct Int8Kv {
  using Wide = Int8Kv;
  using Operand = int16_t;
  using Sum = i32x16;
  struct Lanes { i32x16 first, second; };
  static constexpr int kPack = 4, kPart = kScaleNumbers;
  static constexpr bool kScaled = true;

  OCTAVO_INLINE Sum zero_sum() { return zero_i32(); }
  OCTAVO_INLINE Sum load_sum(const float* p) { return load_i32((const int32_t*)p); }
  OCTAVO_INLINE void store_sum(float* p, Sum a) { store((int32_t*)p, a); }
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return {even_bytes(raw), odd_bytes(raw)}; }
  OCTAVO_INLINE Sum multiply_add(const int16_t* operand, Lanes b, Sum c) {
    uint32_t pairs[2];
    memcpy(pairs, operand, 8);
    return dot_i16(pairs[1], b.second, dot_i16(pairs[0], b.first, c));
  }
  // Any integer times a hidden token's weight, 0, is 0.
  OCTAVO_INLINE Sum multiply_add_seen(const int16_t* weights, f32x16 raw, bool, bool, Sum c) {
    return multiply_add(weights, expand(raw), c);
  }
  OCTAVO_INLINE void store_wide(float* dst, int64_t, f32x16 raw) { store(dst, raw); }

  // As PlainKv has them, from here on.
  OCTAVO_INLINE float to_query(int16_t* dst, const float* source, f32x16 factor, int head_dim) {
    float scaled[kMaxHeadDim];
    for (int d = 0; d < head_dim; d += kLanes) store(scaled + d, mul(load(source + d), factor));
    float greatest = magnitude(scaled, head_dim);
    f32x16 inverse = set1(int16_factor(greatest));
    for (int d = 0; d < head_dim; d += kLanes) store_i16(dst + d, to_i32(mul(load(scaled + d), inverse)));
    return greatest * (1.0f / kMostInt16);
  }

  // Asks for the scales in the pages [block, end), of all kv heads: they lie in a line or two.
  static void fetch_scales(const KvLayout& kv, int layer, const int32_t* block, const int32_t* end) {
    const uint8_t* scales = kv.base + kv.scale_offset + layer * kv.layer_scale_bytes;
    int64_t before = (uintptr_t)scales % 64;  // pages are whole lines
    for (; block < end; block++)
      for (int64_t at = -before; at < kv.layer_scale_bytes; at += 64) {
        const uint8_t* line = scales + *block * kv.page_bytes + at;
        __builtin_prefetch(line, 0, 2);
        __asm__ volatile("" ::"r"(line));  // GCC 12 deletes a loop of nothing but prefetches
      }
  }

  static void load_scales(const KvLayout& kv, int layer, const int32_t* blocks, int head, TokenRange seen,
                          TokenScales* out) {
    switch (kv.page_size) {
      case 4: return load_pages<4>(kv, layer, blocks, head, seen, out);
      case 8: return load_pages<8>(kv, layer, blocks, head, seen, out);
      case 16: return load_pages<16>(kv, layer, blocks, head, seen, out);
      default: return load_pages<32>(kv, layer, blocks, head, seen, out);
    }
  }

  OCTAVO_INLINE Weighed weigh_tokens(float* scores, int begin, int end, float greatest, const TokenScales& scales,
                                     int head_dim, int16_t* weights, int64_t part_stride) {
    Weighed weighed;
    f32x16 top = set1(greatest), total = zero();
    bool more = head_dim > kPart;
    float scaled[kSpan];
    weighed.unit[0] = round_weights(begin, end, scales.value[0], scaled, weights, [&](int i) {
      f32x16 weight = exp2(sub(load(scores + i), top));
      total = add(total, weight);
      if (more) store(scores + i, weight);
      return weight;
    });
    for (int part = 1; part * kPart < head_dim; part++)
      weighed.unit[part] = round_weights(begin, end, scales.value[part], scaled, weights + part * part_stride,
                                         [&](int i) { return load(scores + i); });
    weighed.sum = reduce_add(total);
    return weighed;
  }

  OCTAVO_INLINE void finish_values(float* values, const Weighed& weighed, int head_dim) {
    for (int d = 0; d < head_dim; d += kLanes)
      store(values + d, mul(to_f32(load_sum(values + d)), set1(weighed.unit[d / kPart])));
  }

 private:
  // Weights of 16 tokens each from `weight_at`, times the scales of one part of their V, as integers; returns what one
  // counts.
  template <class WeightAt>
  OCTAVO_INLINE float round_weights(int begin, int end, const float* scales, float* scaled, int16_t* weights,
                                    const WeightAt& weight_at) {
    int first = begin / kWeighStep * kWeighStep;
    i32x16 largest = zero_i32();
    for (int t = first; t < end; t += kWeighStep)
      for (int i = t; i < t + kWeighStep; i += kLanes) {
        f32x16 weight = weight_at(i);
        // A hidden token's scale may be anything, even NaN.
        f32x16 product = keep_ge(mul(weight, load(scales + i)), weight, set1(1e-37f));
        store(scaled + i, product);
        largest = max(bits_to_i32(product), largest);
      }
    float most = bits_to_float(uint32_t(reduce_max(largest)));  // no scale is negative, so NaN is the greatest of all
    f32x16 inverse = set1(int16_factor(most));
    for (int t = first; t < end; t += kWeighStep)
      for (int i = t; i < t + kWeighStep; i += kLanes) store_i16(weights + i, to_i32(mul(load(scaled + i), inverse)));
    return most * (1.0f / kMostInt16);
  }

  template <int kPageSize>
  OCTAVO_INLINE void load_pages(const KvLayout& kv, int layer, const int32_t* blocks, int head, TokenRange seen,
                                TokenScales* out) {
    int64_t plane_bytes = 2 * kPageSize * kv.head_scales;
    const uint8_t* scales = kv.base + kv.scale_offset + layer * kv.layer_scale_bytes + head * (2 * plane_bytes);
    for (int part = 0; part < kv.head_scales; part++, scales += 2 * kPageSize) {
      for (int page = seen.begin / kPageSize; page * kPageSize < seen.end; page++) {
        const uint8_t* of_page = scales + blocks[page] * kv.page_bytes;
        memcpy(out->stored_key + page * kPageSize, of_page, 2 * kPageSize);
        memcpy(out->stored_value + page * kPageSize, of_page + plane_bytes, 2 * kPageSize);
      }
      for (int t = seen.begin / kLanes * kLanes; t < seen.end; t += kLanes) {
        store(out->key[part] + t, load_bf16(out->stored_key + t));
        store(out->value[part] + t, load_bf16(out->stored_value + t));
      }
    }
  }
};

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
