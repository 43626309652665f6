// Weights x f32 or bf16 activations: f32 sums over ascending k, one chain per output element.
//
// A weight is turned to f32 in registers, once for all rows of a block (bf16 pairs go into vdpbf16ps as they are where
// the level has it). With few rows the chains of several tiles run side by side to fill the FMA pipes; that changes which
// elements are computed together, never how one of them is.
#pragma once
#include "linear_access.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kFloatRows = 16;
#elif defined(__AVX2__)
constexpr int kFloatRows = 4;
#else
constexpr int kFloatRows = 2;
#endif
constexpr int kChains = 4;  // wanted at least

// Sums of M rows x T tiles on their way. The rows move on with `x.advance`, the tiles with `tiles[t] += ...`.
template <int M, int T>
struct FloatBlock {
  const uint8_t* tiles[T];
  const uint8_t* whole;  // advances over all tiles of the block in the order of memory, to fetch what comes after
  RowCursor<M> x;
  const LinearArgs& args;
  int32_t k;
  f32x16 sums[T][M];

  inline __attribute__((always_inline)) FloatBlock(const LinearArgs& args, int32_t tile, int32_t row)
      : whole(tile_of(args, tile)), x(row_of(args, row), args.input.row_bytes), args(args), k(args.weight->k) {
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      tiles[t] = tile_of(args, tile + t);
#pragma GCC unroll 16
      for (int r = 0; r < M; r++) sums[t][r] = zero();
    }
  }
  // To be called where each tile has given `Bytes`.
  template <int Bytes>
  inline __attribute__((always_inline)) void fetch() {
    fetch_ahead<Bytes * T>(args, whole);
    whole += Bytes * T;
  }
  // sums += w * x[i] for tile t, i counted from where the rows are now.
  inline __attribute__((always_inline)) void add(int t, f32x16 w, int i) {
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) sums[t][r] = fma(w, set1(((const float*)x.row(r))[i]), sums[t][r]);
  }
  inline __attribute__((always_inline)) void finish(const LinearArgs& args, int32_t tile, int32_t row) const {
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      Finisher finisher(args, tile + t, row);
#pragma GCC unroll 16
      for (int r = 0; r < M; r++) finisher.write_next(sums[t][r]);
    }
  }
};

template <WeightFormat F, int M, int T>
OCTAVO_INLINE void multiply_plain(FloatBlock<M, T>& block) {
  constexpr int bytes = F == WeightFormat::f32 ? 4 : 2;
  for (int32_t i = 0; i < block.k; i++, block.x.advance(4)) {
    block.template fetch<bytes * kColumns>();
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      if constexpr (F == WeightFormat::f32) block.add(t, load((const float*)block.tiles[t]), 0);
      else block.add(t, load_f16((const uint16_t*)block.tiles[t]), 0);
      block.tiles[t] += bytes * kColumns;
    }
  }
}

// The low and the high half of 32-bit lanes that hold a pair of bf16, as f32.
OCTAVO_INLINE f32x16 first_of_pairs(const uint8_t* p) {
#if defined(__AVX512F__)
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
#elif defined(__AVX2__)
  const __m256i* v = (const __m256i*)p;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(v), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(v + 1), 16))};
#else
  i32v v;
  memcpy(&v, p, sizeof v);
  return {(f32v)(v << 16)};
#endif
}
OCTAVO_INLINE f32x16 second_of_pairs(const uint8_t* p) {
#if defined(__AVX512F__)
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)))};
#elif defined(__AVX2__)
  const __m256i* v = (const __m256i*)p;
  __m256i mask = _mm256_set1_epi32(-65536);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(v), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(v + 1), mask))};
#else
  i32v v;
  memcpy(&v, p, sizeof v);
  return {(f32v)(v & -65536)};
#endif
}

constexpr int kPairBytes = 4 * kColumns;

template <int M, int T>
OCTAVO_INLINE void multiply_bf16_f32(FloatBlock<M, T>& block) {
  for (int32_t i = 0; i < block.k; i += 2, block.x.advance(8)) {
    block.template fetch<kPairBytes>();
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      block.add(t, first_of_pairs(block.tiles[t]), 0);
      if (i + 1 < block.k) block.add(t, second_of_pairs(block.tiles[t]), 1);
      block.tiles[t] += kPairBytes;
    }
  }
}

// Odd k is padded with zeros on both sides.
template <int M, int T>
OCTAVO_INLINE void multiply_bf16_bf16(FloatBlock<M, T>& block) {
  for (int32_t i = 0; i < block.k; i += 2, block.x.advance(4)) {
    block.template fetch<kPairBytes>();
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 16
      for (int r = 0; r < M; r++) {
        uint32_t x;
        memcpy(&x, block.x.row(r), 4);
        f32x16& sum = block.sums[t][r];
#if defined(__AVX512BF16__)
        __m512bh w = (__m512bh)_mm512_loadu_si512(block.tiles[t]);
        sum.v = _mm512_dpbf16_ps(sum.v, w, (__m512bh)_mm512_set1_epi32(int(x)));
#else
        sum = fma(first_of_pairs(block.tiles[t]), set1(bits_to_float(x << 16)), sum);
        sum = fma(second_of_pairs(block.tiles[t]), set1(bits_to_float(x & 0xffff0000u)), sum);
#endif
      }
      block.tiles[t] += kPairBytes;
    }
  }
}

// Byte b of each 32-bit lane, which is signed, as f32.
OCTAVO_INLINE f32x16 quant_to_f32(const int8_t* vector, int b) {
  int left = 24 - 8 * b;
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(_mm512_load_si512(vector), unsigned(left)), 24))};
#elif defined(__AVX2__)
  const __m256i* v = (const __m256i*)vector;
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_load_si256(v), left), 24)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_load_si256(v + 1), left), 24))};
#else
  i32v v;
  memcpy(&v, vector, sizeof v);
  return to_f32({v << left >> 24});
#endif
}

// The weights of a group before scale and minimum, spread to bytes: 8 vectors of 4 k x 16 columns.
template <WeightFormat F>
OCTAVO_INLINE void spread_group(const uint8_t* quants, int8_t (*out)[64]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
    for (int part = 0; part < 64; part += kVectorBytes) {
      bytes signed_quants = load_quants<F>(quants + part, i, 0);
      memcpy(out[i] + part, &signed_quants, kVectorBytes);
    }
}

// The very value of gather.
template <WeightFormat F>
OCTAVO_INLINE f32x16 weight_of(f32x16 q, const GroupScales& scales, int h) {
  if constexpr (quant_format(F).minima) return fma(scales.scale[h], q, scales.minimum[h]);
  return mul(scales.scale[h], q);
}

template <WeightFormat F, int M, int T>
OCTAVO_INLINE void multiply_quantised(FloatBlock<M, T>& block) {
  alignas(64) int8_t quants[T][8][64];
  ScaleReader<F> readers[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) readers[t] = ScaleReader<F>(quant_tile(F, block.tiles[t], block.k));
  for (int32_t g = 0; g < block.k / kGroup; g++) {
    block.template fetch<int(group_bytes(F))>();
    GroupScales scales[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      spread_group<F>(block.tiles[t] + g * quant_bytes(F), quants[t]);
      scales[t] = readers[t].next(g);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
      for (int i = 4 * h; i < 4 * h + 4; i++, block.x.advance(16))
#pragma GCC unroll 4
        for (int b = 0; b < 4; b++)
#pragma GCC unroll 4
          for (int t = 0; t < T; t++)
            block.add(t, weight_of<F>(quant_to_f32(quants[t][i], b), scales[t], h % quant_format(F).scales), b);
  }
}

template <WeightFormat F, ActivationKind A, int M, int T>
__attribute__((noinline)) void float_block(const LinearArgs& args, int32_t tile, int32_t row) {
  FloatBlock<M, T> block(args, tile, row);
  if constexpr (is_quantised(F)) multiply_quantised<F>(block);
  else if constexpr (F != WeightFormat::bf16) multiply_plain<F>(block);
  else if constexpr (A == ActivationKind::bf16) multiply_bf16_bf16(block);
  else multiply_bf16_f32(block);
  block.finish(args, tile, row);
}

// Rows in blocks of M, what is left in smaller ones.
template <WeightFormat F, ActivationKind A, int M = kFloatRows>
void float_rows(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row, int32_t row_end) {
  constexpr int T = M < kChains ? kChains / M : 1;
  int32_t blocks_end = row + (row_end - row) / M * M, t = tile_begin;
  for (; t + T <= tile_end; t += T)
    for (int32_t r = row; r < blocks_end; r += M) float_block<F, A, M, T>(args, t, r);
  if constexpr (T > 1)
    for (; t < tile_end; t++)
      for (int32_t r = row; r < blocks_end; r += M) float_block<F, A, M, 1>(args, t, r);
  if constexpr (M > 1)
    if (blocks_end < row_end) float_rows<F, A, M / 2>(args, tile_begin, tile_end, blocks_end, row_end);
}

template <WeightFormat F, ActivationKind A>
void float_linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  float_rows<F, A>(args, tile_begin, tile_end, row_begin, row_end);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
