// How K and V are found in pages and multiplied.
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
constexpr int kSpanChunks = kSpan / kLanes;

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

// Chunks of 16 tokens whose scores are computed together start at multiples of this.
#if defined(__AVX512F__)
constexpr int kChunksTogether = 4;
#elif defined(__AVX2__)
constexpr int kChunksTogether = 2;
#else
constexpr int kChunksTogether = 1;
#endif

// Where one span's K and V of one kv head lie, for the tokens [begin, end) of it. Aligned explicitly: GCC 12 takes it
// for granted in find_pages (vmovdqa), but lays a variable of this type at a multiple of 16 only.
struct alignas(64) SpanPages {
  const uint8_t* key_piece[kSpan / 4];  // row 0 of each run of min(16, page_size) tokens
  const uint8_t* value_unit[kSpan];     // row of each unit
  int64_t key_stride;                   // bytes between steps
  int pieces;                           // runs in a chunk: 1, 2 or 4
  int64_t key_to_value;                 // bytes from a K plane to its V plane
  bool fetch_values;                    // V is used once: fetch it while K is being read
};

// Only blocks that hold a token of [begin, end) are looked up: earlier ones may have been freed (window), later ones do
// not exist. Where chunks that are computed together reach past them, a run that does hold a token stands in: those
// lanes are masked, so what they read never matters.
inline void find_pages(const AttentionArgs& args, const AttentionItem& item, int span, int begin, int end, int pack,
                       bool fetch_values, SpanPages* out) {
  const KvLayout& kv = args.kv;
  int page_size = kv.page_size, run = min_int(page_size, kLanes), units = page_size / pack;
  const int32_t* blocks = args.block_table + item.seq * args.block_stride + int64_t(span) * (kSpan / page_size);
  int64_t plane_bytes = int64_t(kv.head_dim) * page_size * 4 / pack;
  int64_t key_offset = args.layer * kv.layer_bytes + item.kv_head * plane_bytes;
  int64_t value_offset = key_offset + kv.kv_heads * plane_bytes;
  out->key_stride = 4 * int64_t(page_size);
  out->key_to_value = kv.kv_heads * plane_bytes;
  out->pieces = kLanes / run;
  out->fetch_values = fetch_values;
  for (int page = begin / page_size; page * page_size < end; page++) {
    const uint8_t* base = kv.base + blocks[page] * kv.page_bytes;
    for (int token = 0; token < page_size; token += run)
      out->key_piece[(page * page_size + token) / run] = base + key_offset + 4 * token;
    for (int unit = 0; unit < units; unit++)
      out->value_unit[page * units + unit] = base + value_offset + 4 * int64_t(unit) * kv.head_dim;
  }
  int group = kChunksTogether * out->pieces, first = begin / run, last = (end - 1) / run;
  for (int piece = first / group * group; piece < first; piece++) out->key_piece[piece] = out->key_piece[first];
  for (int piece = last + 1; piece % group; piece++) out->key_piece[piece] = out->key_piece[last];
}

// One step of 16 tokens' keys, joined from `kPieces` pages.
template <int kPieces>
OCTAVO_INLINE f32x16 load_keys(const SpanPages& pages, int chunk, int64_t offset) {
  const uint8_t* const* piece = pages.key_piece + chunk * kPieces;
  if constexpr (kPieces == 1) return load((const float*)(piece[0] + offset));
  if constexpr (kPieces == 2) return load_2x8((const float*)(piece[0] + offset), (const float*)(piece[1] + offset));
  if constexpr (kPieces == 4)
    return load_4x4((const float*)(piece[0] + offset), (const float*)(piece[1] + offset),
                    (const float*)(piece[2] + offset), (const float*)(piece[3] + offset));
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
