// One vector type, f32x16, in every ISA level; the kernels are written once against it.
//
// Each level compiles this header into a namespace of its own (octavo::generic, octavo::avx2, ...). Everything is
// static or lives in that namespace and no std template is instantiated here: the linker keeps only one copy of a
// shared inline function, and a copy compiled for AVX-512 would crash an AVX2 machine.
//
// A lane always means the same element at every level (lane i = element i), so a kernel's order of reduction is
// readable from its source. `fma` is fused on every level but generic, where it is a multiply and an add: results
// differ between levels (promise 4 is scoped to one level), never within one.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#define OCTAVO_NOINLINE __attribute__((noinline))
// Before a loop over an array of vectors: unrolled this early, the array lives in registers.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

namespace octavo {
namespace OCTAVO_LEVEL {

constexpr int kLanes = 16;

OCTAVO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int max_int(int a, int b) { return a > b ? a : b; }
OCTAVO_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

OCTAVO_INLINE float bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
OCTAVO_INLINE uint32_t float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
OCTAVO_INLINE float bf16_to_f32(uint16_t h) { return bits_to_float(uint32_t(h) << 16); }
// Round to nearest, ties to even; NaN stays NaN.
OCTAVO_INLINE uint16_t f32_to_bf16(float f) {
  uint32_t u = float_to_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
OCTAVO_INLINE float f16_to_f32(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  float subnormal = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -subnormal : subnormal;
}

// Round to nearest, ties to even; NaN stays NaN, 65520 and above become infinite.
OCTAVO_INLINE uint16_t f32_to_f16(float f) {
  uint32_t u = float_to_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  // Below 2^-14, multiples of 2^-24: what adding 0.5 rounds to.
  if (a < 0x38800000u) return uint16_t(sign | (float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000u));
  return uint16_t(sign | (((a + 0xfffu + (a >> 13 & 1u)) >> 13) - (112u << 10)));
}

#if defined(__AVX512F__)

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
OCTAVO_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
OCTAVO_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE __mmask16 first_lanes(int n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1u); }
OCTAVO_INLINE f32x16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
OCTAVO_INLINE void store_n(float* p, f32x16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
// Lanes < n from a, the others from b.
OCTAVO_INLINE f32x16 select_n(f32x16 a, f32x16 b, int n) { return {_mm512_mask_blend_ps(first_lanes(n < 0 ? 0 : n), b.v, a.v)}; }
OCTAVO_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
// Bit i: lane i of a >= lane i of b (false for NaN).
OCTAVO_INLINE uint32_t mask_ge(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// 16 lanes of double, for sums that must not lose small terms.
struct f64x16 { __m512d lo, hi; };
OCTAVO_INLINE f64x16 zero_f64() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
OCTAVO_INLINE f64x16 add(f64x16 sum, f32x16 a) {
  return {_mm512_add_pd(sum.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(a.v))),
          _mm512_add_pd(sum.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1)))};
}
OCTAVO_INLINE void store(double* p, f64x16 a) { _mm512_storeu_pd(p, a.lo); _mm512_storeu_pd(p + 8, a.hi); }
// a where x >= y, 0 elsewhere.
OCTAVO_INLINE f32x16 keep_ge(f32x16 a, f32x16 x, f32x16 y) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_GE_OQ), a.v)};
}
OCTAVO_INLINE void store(int32_t* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE f32x16 round_even(f32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
OCTAVO_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // rounds to nearest even
// a * 2^n for integral n in [-126, 127] held as float.
OCTAVO_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// Runs of 8 (4) lanes of 2 (4) places, joined: out[i] is run i of every place.
OCTAVO_INLINE void join_2(const float* a, const float* b, f32x16* out) {
  __m512 x = _mm512_loadu_ps(a), y = _mm512_loadu_ps(b);
  out[0].v = _mm512_shuffle_f32x4(x, y, 0x44);
  out[1].v = _mm512_shuffle_f32x4(x, y, 0xee);
}
OCTAVO_INLINE void join_4(const float* a, const float* b, const float* c, const float* d, f32x16* out) {
  __m512 x = _mm512_loadu_ps(a), y = _mm512_loadu_ps(b), z = _mm512_loadu_ps(c), w = _mm512_loadu_ps(d);
  __m512 xy = _mm512_shuffle_f32x4(x, y, 0x44), zw = _mm512_shuffle_f32x4(z, w, 0x44);
  out[0].v = _mm512_shuffle_f32x4(xy, zw, 0x88);
  out[1].v = _mm512_shuffle_f32x4(xy, zw, 0xdd);
  xy = _mm512_shuffle_f32x4(x, y, 0xee), zw = _mm512_shuffle_f32x4(z, w, 0xee);
  out[2].v = _mm512_shuffle_f32x4(xy, zw, 0x88);
  out[3].v = _mm512_shuffle_f32x4(xy, zw, 0xdd);
}
// A lane's 4 bytes as a pair of bf16: the first (low) and the second (high) as f32.
OCTAVO_INLINE f32x16 bf16_first(f32x16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))}; }
OCTAVO_INLINE f32x16 bf16_second(f32x16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(int(0xffff0000u))))};
}
#if defined(__AVX512BF16__)
// The pair with its other number zeroed.
OCTAVO_INLINE f32x16 keep_first(f32x16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0xffff)))};
}
OCTAVO_INLINE f32x16 keep_second(f32x16 a) { return bf16_second(a); }
// a then b, rounded to bf16, as 16 lanes of pairs.
OCTAVO_INLINE f32x16 pack_bf16(f32x16 a, f32x16 b) {
  return {_mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b.v, a.v))};
}
// c + the dot product of each lane's pair with `pair`, both bf16.
OCTAVO_INLINE f32x16 dot_bf16(uint32_t pair, f32x16 b, f32x16 c) {
  return {_mm512_dpbf16_ps(c.v, (__m512bh)_mm512_set1_epi32(int(pair)), (__m512bh)_mm512_castps_si512(b.v))};
}
#endif
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
OCTAVO_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// A lane's 4 bytes as a pair of f16: the first and the second as f32.
OCTAVO_INLINE f32x16 f16_first(f32x16 a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(a.v)))}; }
OCTAVO_INLINE f32x16 f16_second(f32x16 a) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a.v), 16)))};
}
OCTAVO_INLINE f32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
OCTAVO_INLINE __m512i bytes_to_i32(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
OCTAVO_INLINE f32x16 load_low_nibbles(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_and_si512(bytes_to_i32(p), _mm512_set1_epi32(15)))};
}
OCTAVO_INLINE f32x16 load_high_nibbles(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_srli_epi32(bytes_to_i32(p), 4))};
}
// 2^(e - 127) of bytes e < 255, the exponents of f32; 2^-127 is no normal number, and its bits are not e << 23.
OCTAVO_INLINE f32x16 load_pow2(const uint8_t* p) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(bytes_to_i32(p), 23), _mm512_set1_epi32(1 << 22)))};
}
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) {
#if defined(__AVX512BF16__)
  // vcvtneps2bf16 flushes subnormal inputs; harmless here and the same for every row.
  __m256bh h = _mm512_cvtneps_pbh(a.v);
  memcpy(p, &h, 32);
#else
  __m512i u = _mm512_castps_si512(a.v);
  __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
#endif
}

#elif defined(__AVX2__)

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
OCTAVO_INLINE f32x16 set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
OCTAVO_INLINE f32x16 zero() { __m256 v = _mm256_setzero_ps(); return {v, v}; }
OCTAVO_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void store(float* p, f32x16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
OCTAVO_INLINE __m256i lane_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OCTAVO_INLINE f32x16 load_n(const float* p, int n) {
  if (n >= 16) return load(p);
  return {_mm256_maskload_ps(p, lane_mask(n)), n > 8 ? _mm256_maskload_ps(p + 8, lane_mask(n - 8)) : _mm256_setzero_ps()};
}
OCTAVO_INLINE void store_n(float* p, f32x16 a, int n) {
  if (n >= 16) return store(p, a);  // a masked store is slow on AMD
  _mm256_maskstore_ps(p, lane_mask(n), a.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, lane_mask(n - 8), a.hi);
}
OCTAVO_INLINE f32x16 select_n(f32x16 a, f32x16 b, int n) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lane_mask(n))),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(lane_mask(n - 8)))};
}
#define OCTAVO_BINARY(name, op) \
  OCTAVO_INLINE f32x16 name(f32x16 a, f32x16 b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
OCTAVO_BINARY(add, _mm256_add_ps)
OCTAVO_BINARY(sub, _mm256_sub_ps)
OCTAVO_BINARY(mul, _mm256_mul_ps)
OCTAVO_BINARY(div, _mm256_div_ps)
OCTAVO_BINARY(max, _mm256_max_ps)
OCTAVO_BINARY(min, _mm256_min_ps)
#undef OCTAVO_BINARY
OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE f32x16 abs(f32x16 a) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
OCTAVO_INLINE uint32_t mask_ge(f32x16 a, f32x16 b) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ))) |
         uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ))) << 8;
}
struct f64x16 { __m256d part[4]; };
OCTAVO_INLINE f64x16 zero_f64() { __m256d z = _mm256_setzero_pd(); return {{z, z, z, z}}; }
OCTAVO_INLINE f64x16 add(f64x16 sum, f32x16 a) {
  return {{_mm256_add_pd(sum.part[0], _mm256_cvtps_pd(_mm256_castps256_ps128(a.lo))),
           _mm256_add_pd(sum.part[1], _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1))),
           _mm256_add_pd(sum.part[2], _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi))),
           _mm256_add_pd(sum.part[3], _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1)))}};
}
OCTAVO_INLINE void store(double* p, f64x16 a) { for (int i = 0; i < 4; i++) _mm256_storeu_pd(p + 4 * i, a.part[i]); }
OCTAVO_INLINE f32x16 keep_ge(f32x16 a, f32x16 x, f32x16 y) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_GE_OQ)),
          _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_GE_OQ))};
}
OCTAVO_INLINE void store(int32_t* p, i32x16 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
OCTAVO_INLINE f32x16 round_even(f32x16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
OCTAVO_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE i32x16 to_i32(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
OCTAVO_INLINE __m256 pow2_256(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
OCTAVO_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  return {_mm256_mul_ps(a.lo, pow2_256(n.lo)), _mm256_mul_ps(a.hi, pow2_256(n.hi))};
}
OCTAVO_INLINE __m256 bf16_256(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) { return {bf16_256(p), bf16_256(p + 8)}; }
OCTAVO_INLINE __m256 join_256(const float* a, const float* b) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}
OCTAVO_INLINE void join_2(const float* a, const float* b, f32x16* out) {
  for (int i = 0; i < 2; i++) out[i] = {_mm256_loadu_ps(a + 8 * i), _mm256_loadu_ps(b + 8 * i)};
}
OCTAVO_INLINE void join_4(const float* a, const float* b, const float* c, const float* d, f32x16* out) {
  for (int i = 0; i < 4; i++) out[i] = {join_256(a + 4 * i, b + 4 * i), join_256(c + 4 * i, d + 4 * i)};
}
OCTAVO_INLINE __m256 shift_left_16(__m256 a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16)); }
OCTAVO_INLINE f32x16 bf16_first(f32x16 a) { return {shift_left_16(a.lo), shift_left_16(a.hi)}; }
OCTAVO_INLINE f32x16 bf16_second(f32x16 a) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000u)));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
OCTAVO_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
// The lower 16 bits of each lane are a f16.
OCTAVO_INLINE f32x16 f16_lanes(__m256i lo, __m256i hi) {
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
}
OCTAVO_INLINE f32x16 f16_first(f32x16 a) {
  __m256i mask = _mm256_set1_epi32(0xffff);
  return f16_lanes(_mm256_and_si256(_mm256_castps_si256(a.lo), mask), _mm256_and_si256(_mm256_castps_si256(a.hi), mask));
}
OCTAVO_INLINE f32x16 f16_second(f32x16 a) {
  return f16_lanes(_mm256_srli_epi32(_mm256_castps_si256(a.lo), 16), _mm256_srli_epi32(_mm256_castps_si256(a.hi), 16));
}
OCTAVO_INLINE __m256 i8_256(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
OCTAVO_INLINE f32x16 load_i8(const int8_t* p) { return {i8_256(p), i8_256(p + 8)}; }
OCTAVO_INLINE __m256i bytes_to_i32(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
OCTAVO_INLINE __m256 low_nibbles_256(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(bytes_to_i32(p), _mm256_set1_epi32(15)));
}
OCTAVO_INLINE __m256 high_nibbles_256(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes_to_i32(p), 4));
}
OCTAVO_INLINE f32x16 load_low_nibbles(const uint8_t* p) { return {low_nibbles_256(p), low_nibbles_256(p + 8)}; }
OCTAVO_INLINE f32x16 load_high_nibbles(const uint8_t* p) { return {high_nibbles_256(p), high_nibbles_256(p + 8)}; }
OCTAVO_INLINE __m256 pow2_bytes_256(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(bytes_to_i32(p), 23), _mm256_set1_epi32(1 << 22)));
}
OCTAVO_INLINE f32x16 load_pow2(const uint8_t* p) { return {pow2_bytes_256(p), pow2_bytes_256(p + 8)}; }
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  float t[16];
  store(t, a);
  for (int i = 0; i < 16; i++) p[i] = f32_to_bf16(t[i]);
}

#else  // generic: GCC vector extensions, lowered to whatever the baseline has

typedef float f32v __attribute__((vector_size(64), aligned(4)));
typedef int32_t i32v __attribute__((vector_size(64), aligned(4)));
typedef int16_t i16v __attribute__((vector_size(64), aligned(4)));
struct f32x16 { f32v v; };
struct i32x16 { i32v v; };
OCTAVO_INLINE f32x16 set1(float x) { return {f32v{} + x}; }
OCTAVO_INLINE f32x16 zero() { return {f32v{}}; }
OCTAVO_INLINE f32x16 load(const float* p) { f32x16 r; memcpy(&r.v, p, 64); return r; }
OCTAVO_INLINE void store(float* p, f32x16 a) { memcpy(p, &a.v, 64); }
OCTAVO_INLINE f32x16 load_n(const float* p, int n) {
  if (n >= 16) return load(p);
  f32x16 r = zero();
  for (int i = 0; i < n; i++) r.v[i] = p[i];
  return r;
}
OCTAVO_INLINE void store_n(float* p, f32x16 a, int n) {
  if (n >= 16) return store(p, a);
  for (int i = 0; i < n; i++) p[i] = a.v[i];
}
OCTAVO_INLINE f32x16 select_n(f32x16 a, f32x16 b, int n) { for (int i = 0; i < n && i < 16; i++) b.v[i] = a.v[i]; return b; }
OCTAVO_INLINE f32x16 add(f32x16 a, f32x16 b) { return {a.v + b.v}; }
OCTAVO_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {a.v - b.v}; }
OCTAVO_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {a.v * b.v}; }
OCTAVO_INLINE f32x16 div(f32x16 a, f32x16 b) { return {a.v / b.v}; }
OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {a.v * b.v + c.v}; }
OCTAVO_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }  // like maxps: NaN in either gives b
OCTAVO_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
OCTAVO_INLINE f32x16 abs(f32x16 a) { return {(f32v)((i32v)a.v & 0x7fffffff)}; }
OCTAVO_INLINE uint32_t mask_ge(f32x16 a, f32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; i++) mask |= uint32_t(a.v[i] >= b.v[i]) << i;
  return mask;
}
typedef double f64v __attribute__((vector_size(128), aligned(8)));
struct f64x16 { f64v v; };
OCTAVO_INLINE f64x16 zero_f64() { return {f64v{}}; }
OCTAVO_INLINE f64x16 add(f64x16 sum, f32x16 a) { return {sum.v + __builtin_convertvector(a.v, f64v)}; }
OCTAVO_INLINE void store(double* p, f64x16 a) { memcpy(p, &a.v, 128); }
OCTAVO_INLINE f32x16 keep_ge(f32x16 a, f32x16 x, f32x16 y) { return {x.v >= y.v ? a.v : f32v{}}; }
OCTAVO_INLINE void store(int32_t* p, i32x16 a) { memcpy(p, &a.v, 64); }
// Adding and subtracting 1.5 * 2^23 rounds to nearest even for |a| < 2^22; larger values are integral enough already.
OCTAVO_INLINE f32x16 round_even(f32x16 a) {
  f32v magic = f32v{} + 12582912.0f;
  f32v r = (a.v + magic) - magic;
  return {abs(a).v < 4194304.0f ? r : a.v};
}
OCTAVO_INLINE f32x16 to_f32(i32x16 a) { return {__builtin_convertvector(a.v, f32v)}; }
OCTAVO_INLINE i32x16 to_i32(f32x16 a) { return {__builtin_convertvector(round_even(a).v, i32v)}; }
OCTAVO_INLINE f32x16 scale_pow2(f32x16 a, f32x16 n) {
  i32v e = (__builtin_convertvector(n.v, i32v) + 127) << 23;
  return {a.v * (f32v)e};
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) { f32x16 r; for (int i = 0; i < 16; i++) r.v[i] = bf16_to_f32(p[i]); return r; }
OCTAVO_INLINE void join_2(const float* a, const float* b, f32x16* out) {
  for (int i = 0; i < 2; i++) {
    memcpy(&out[i].v, a + 8 * i, 32);
    memcpy((uint8_t*)&out[i].v + 32, b + 8 * i, 32);
  }
}
OCTAVO_INLINE void join_4(const float* a, const float* b, const float* c, const float* d, f32x16* out) {
  for (int i = 0; i < 4; i++) {
    const float* places[4] = {a + 4 * i, b + 4 * i, c + 4 * i, d + 4 * i};
    for (int j = 0; j < 4; j++) memcpy((uint8_t*)&out[i].v + 16 * j, places[j], 16);
  }
}
OCTAVO_INLINE f32x16 bf16_first(f32x16 a) { return {(f32v)((i32v)a.v << 16)}; }
OCTAVO_INLINE f32x16 bf16_second(f32x16 a) { return {(f32v)((i32v)a.v & int32_t(0xffff0000u))}; }
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) { f32x16 r; for (int i = 0; i < 16; i++) r.v[i] = f16_to_f32(p[i]); return r; }
OCTAVO_INLINE void store_f16(uint16_t* p, f32x16 a) { for (int i = 0; i < 16; i++) p[i] = f32_to_f16(a.v[i]); }
// The lower 16 bits of each lane are a f16. What its exponent lacks is made up by a product, which is right for subnormal
// ones too; infinities and NaN have no exponent that a product could give.
OCTAVO_INLINE f32x16 f16_lanes(i32v bits) {
  i32v magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
  f32v finite = (f32v)(magnitude << 13) * 5.192296858534828e33f;  // 2^112
  i32v special = (magnitude << 13) | 0x7f800000;
  return {(f32v)((magnitude >= 0x7c00 ? special : (i32v)finite) | sign)};
}
OCTAVO_INLINE f32x16 f16_first(f32x16 a) { return f16_lanes((i32v)a.v & 0xffff); }
OCTAVO_INLINE f32x16 f16_second(f32x16 a) { return f16_lanes((i32v)a.v >> 16 & 0xffff); }
OCTAVO_INLINE f32x16 load_i8(const int8_t* p) { f32x16 r; for (int i = 0; i < 16; i++) r.v[i] = p[i]; return r; }
OCTAVO_INLINE f32x16 load_low_nibbles(const uint8_t* p) { f32x16 r; for (int i = 0; i < 16; i++) r.v[i] = p[i] & 15; return r; }
OCTAVO_INLINE f32x16 load_high_nibbles(const uint8_t* p) { f32x16 r; for (int i = 0; i < 16; i++) r.v[i] = p[i] >> 4; return r; }
OCTAVO_INLINE f32x16 load_pow2(const uint8_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; i++) r.v[i] = bits_to_float(p[i] ? uint32_t(p[i]) << 23 : 1u << 22);
  return r;
}
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) { for (int i = 0; i < 16; i++) p[i] = f32_to_bf16(a.v[i]); }

#endif

// Sum and maximum of the 16 lanes in one fixed order (halves folded: 8, 4, 2, 1), the same on every level.
#if defined(__AVX2__) || defined(__AVX512F__)
OCTAVO_INLINE float reduce_add_8(__m256 a) {
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
OCTAVO_INLINE float reduce_max_8(__m256 a) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#endif
#if defined(__AVX512F__)
OCTAVO_INLINE float reduce_add(f32x16 a) {
  return reduce_add_8(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
OCTAVO_INLINE float reduce_max(f32x16 a) {
  return reduce_max_8(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
#elif defined(__AVX2__)
OCTAVO_INLINE float reduce_add(f32x16 a) { return reduce_add_8(_mm256_add_ps(a.lo, a.hi)); }
OCTAVO_INLINE float reduce_max(f32x16 a) { return reduce_max_8(_mm256_max_ps(a.lo, a.hi)); }
#else
OCTAVO_INLINE float reduce_add(f32x16 a) {
  float t[16];
  store(t, a);
  for (int half = 8; half; half >>= 1)
    for (int i = 0; i < half; i++) t[i] += t[i + half];
  return t[0];
}
OCTAVO_INLINE float reduce_max(f32x16 a) {
  float t[16];
  store(t, a);
  for (int half = 8; half; half >>= 1)
    for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
  return t[0];
}
#endif
OCTAVO_INLINE double reduce_add(f64x16 a) {
  double t[16];
  store(t, a);
  for (int half = 8; half; half >>= 1)
    for (int i = 0; i < half; i++) t[i] += t[i + half];
  return t[0];
}

// e^a. Cody-Waite reduction and a degree-6 polynomial (Cephes expf coefficients); within 2 ulp on [-87, 88];
// below -87.3 the result is 0, so that e^-inf is exactly 0.
OCTAVO_INLINE f32x16 exp(f32x16 a) {
  f32x16 x = min(max(a, set1(-87.3f)), set1(88.3f));
  f32x16 n = round_even(mul(x, set1(1.44269504088896341f)));
  f32x16 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  f32x16 y = add(fma(p, mul(r, r), r), set1(1.0f));
  y = scale_pow2(y, n);
#if defined(__AVX512F__)
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, _mm512_set1_ps(-87.3f), _CMP_GE_OQ), y.v)};
#elif defined(__AVX2__)
  return {_mm256_and_ps(y.lo, _mm256_cmp_ps(a.lo, _mm256_set1_ps(-87.3f), _CMP_GE_OQ)),
          _mm256_and_ps(y.hi, _mm256_cmp_ps(a.hi, _mm256_set1_ps(-87.3f), _CMP_GE_OQ))};
#else
  return {a.v >= -87.3f ? y.v : f32v{}};
#endif
}

// 2^a for a <= 127. Minimax polynomial of degree 5 in the fraction (exact at 0, within 2 ulp); 2^-inf is exactly 0 and
// NaN gives NaN.
#if defined(__AVX512F__)
OCTAVO_INLINE f32x16 exp2(f32x16 a) {
  f32x16 r = {_mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF)};  // a - floor(a); 0 for infinity
  f32x16 p = set1(1.86713168e-3f);
  p = fma(p, r, set1(9.01702698e-3f));
  p = fma(p, r, set1(5.57999164e-2f));
  p = fma(p, r, set1(2.40164444e-1f));
  p = fma(p, r, set1(6.93151295e-1f));
  p = fma(p, r, set1(1.0f));
  return {_mm512_scalef_ps(p.v, a.v)};  // p * 2^floor(a)
}
#else
OCTAVO_INLINE f32x16 exp2(f32x16 a) {
  f32x16 x = max(set1(-126.0f), a);  // operands this way round keep a NaN
  f32x16 n = round_even(x), r = sub(x, n);
  f32x16 p = set1(1.32647285e-3f);
  p = fma(p, r, set1(9.67151299e-3f));
  p = fma(p, r, set1(5.55073358e-2f));
  p = fma(p, r, set1(2.40222424e-1f));
  p = fma(p, r, set1(6.93147004e-1f));
  f32x16 y = scale_pow2(fma(p, r, set1(1.0f)), n);
#if defined(__AVX2__)
  return {_mm256_andnot_ps(_mm256_cmp_ps(a.lo, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), y.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(a.hi, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), y.hi)};
#else
  return {a.v < -126.0f ? f32v{} : y.v};
#endif
}
#endif

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
