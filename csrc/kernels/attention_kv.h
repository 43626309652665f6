// How K and V are multiplied.
//
// A page's K plane is rows of `page_size` 4-byte lanes, one row a step: a step is one element of head_dim (f32) or a
// pair of them (bf16). Its V plane is rows of `head_dim` 4-byte lanes, one row a unit: a unit is one token (f32) or a
// pair of them (bf16). So both types run through the same loops, and only the multiplication differs.
#pragma once
#include "../kernels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kSpan = kAttentionSpan;

// KV stored as f32: everything in f32.
struct F32Kv {
  using Operand = float;         // what an element of q, and a softmax weight, is multiplied as
  using Lanes = f32x16;
  static constexpr int kPack = 1;  // elements in a 4-byte lane
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return raw; }
  OCTAVO_INLINE f32x16 multiply_add(const float* operand, Lanes b, f32x16 c) { return fma(set1(*operand), b, c); }
  OCTAVO_INLINE void to_operands(float* dst, f32x16 a) { store(dst, a); }
  // Writes 32 operands and adds them, as they will be multiplied, to the 16 lanes of `sum`.
  OCTAVO_INLINE f32x16 to_operands_and_add(float* dst, f32x16 a, f32x16 b, f32x16 sum) {
    store(dst, a);
    store(dst + kLanes, b);
    return add(add(sum, a), b);
  }
};

#if defined(__AVX512BF16__)
// KV stored as bf16, q and softmax weights rounded to bf16, products and sums in f32.
struct Bf16Kv {
  using Operand = uint16_t;
  using Lanes = f32x16;
  static constexpr int kPack = 2;
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return raw; }
  OCTAVO_INLINE f32x16 multiply_add(const uint16_t* operand, Lanes b, f32x16 c) {
    uint32_t pair;
    memcpy(&pair, operand, 4);
    return dot_bf16(pair, b, c);
  }
  OCTAVO_INLINE void to_operands(uint16_t* dst, f32x16 a) { store_bf16(dst, a); }
  OCTAVO_INLINE f32x16 to_operands_and_add(uint16_t* dst, f32x16 a, f32x16 b, f32x16 sum) {
    f32x16 pairs = pack_bf16(a, b);
    store((float*)dst, pairs);
    return dot_bf16(0x3f803f80u, pairs, sum);  // a pair of ones
  }
};
#else
// KV stored as bf16, widened to f32: q and softmax weights keep f32.
struct Bf16Kv {
  using Operand = float;
  struct Lanes { f32x16 first, second; };
  static constexpr int kPack = 2;
  OCTAVO_INLINE Lanes expand(f32x16 raw) { return {bf16_first(raw), bf16_second(raw)}; }
  OCTAVO_INLINE f32x16 multiply_add(const float* operand, Lanes b, f32x16 c) {
    return fma(set1(operand[1]), b.second, fma(set1(operand[0]), b.first, c));
  }
  OCTAVO_INLINE void to_operands(float* dst, f32x16 a) { store(dst, a); }
  OCTAVO_INLINE f32x16 to_operands_and_add(float* dst, f32x16 a, f32x16 b, f32x16 sum) {
    return F32Kv::to_operands_and_add(dst, a, b, sum);
  }
};
#endif

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
