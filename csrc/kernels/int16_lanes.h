// Lanes of 16-bit pairs: signed bytes widened to them, and their exact products in 32 bits.
#pragma once
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

#if defined(__AVX512F__)

OCTAVO_INLINE i32x16 zero_i32() { return {_mm512_setzero_si512()}; }
OCTAVO_INLINE i32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE i32x16 bits_to_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
OCTAVO_INLINE i32x16 max(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
// Bytes 0 and 2 of each lane, or 1 and 3, as a pair of 16-bit integers.
OCTAVO_INLINE i32x16 odd_bytes(f32x16 a) { return {_mm512_srai_epi16(_mm512_castps_si512(a.v), 8)}; }
OCTAVO_INLINE i32x16 even_bytes(f32x16 a) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(_mm512_castps_si512(a.v), 8), 8)};
}
// c + the dot product of each lane's pair with `pair`.
OCTAVO_INLINE i32x16 dot_i16(uint32_t pair, i32x16 b, i32x16 c) {
  return {_mm512_dpwssd_epi32(c.v, b.v, _mm512_set1_epi32(int(pair)))};
}
// 16 integers that fit in 16 bits.
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(a.v)); }

#elif defined(__AVX2__)

OCTAVO_INLINE i32x16 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
OCTAVO_INLINE i32x16 load_i32(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
OCTAVO_INLINE i32x16 bits_to_i32(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
OCTAVO_INLINE i32x16 max(i32x16 a, i32x16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
OCTAVO_INLINE i32x16 odd_bytes(f32x16 a) {
  return {_mm256_srai_epi16(_mm256_castps_si256(a.lo), 8), _mm256_srai_epi16(_mm256_castps_si256(a.hi), 8)};
}
OCTAVO_INLINE i32x16 even_bytes(f32x16 a) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(_mm256_castps_si256(a.lo), 8), 8),
          _mm256_srai_epi16(_mm256_slli_epi16(_mm256_castps_si256(a.hi), 8), 8)};
}
OCTAVO_INLINE i32x16 dot_i16(uint32_t pair, i32x16 b, i32x16 c) {
  __m256i a = _mm256_set1_epi32(int(pair));
  return {_mm256_add_epi32(c.lo, _mm256_madd_epi16(b.lo, a)), _mm256_add_epi32(c.hi, _mm256_madd_epi16(b.hi, a))};
}
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8));
}

#else

OCTAVO_INLINE i32x16 zero_i32() { return {i32v{}}; }
OCTAVO_INLINE i32x16 load_i32(const int32_t* p) { i32x16 r; memcpy(&r.v, p, 64); return r; }
OCTAVO_INLINE i32x16 bits_to_i32(f32x16 a) { return {(i32v)a.v}; }
OCTAVO_INLINE i32x16 max(i32x16 a, i32x16 b) { return {a.v > b.v ? a.v : b.v}; }
OCTAVO_INLINE i32x16 odd_bytes(f32x16 a) { return {(i32v)((i16v)a.v >> 8)}; }
OCTAVO_INLINE i32x16 even_bytes(f32x16 a) { return {(i32v)(((i16v)a.v << 8) >> 8)}; }
OCTAVO_INLINE i32x16 dot_i16(uint32_t pair, i32x16 b, i32x16 c) {
  return {c.v + (b.v << 16 >> 16) * int32_t(int16_t(pair)) + (b.v >> 16) * (int32_t(pair) >> 16)};
}
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) { for (int i = 0; i < kLanes; i++) p[i] = int16_t(a.v[i]); }

#endif

OCTAVO_INLINE int32_t reduce_max(i32x16 a) {
  int32_t lanes[kLanes];
  store(lanes, a);
  for (int n = kLanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) lanes[i] = max_int(lanes[i], lanes[i + n]);
  return lanes[0];
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
