// Where K and V lie: pages of a span are looked up once, read in place, and asked for ahead of time.
#pragma once
#include "attention_kv_int8.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Chunks of 16 tokens whose scores are computed together start at multiples of this.
#if defined(__AVX512F__)
constexpr int kChunksTogether = 4;
#elif defined(__AVX2__)
constexpr int kChunksTogether = 2;
#else
constexpr int kChunksTogether = 1;
#endif

// Pages of one span of one sequence, for the tokens in a range of it. Aligned explicitly: GCC 12 takes it for granted in
// find_pages (vmovdqa), but lays a variable of this type at a multiple of 16 only.
struct alignas(64) SpanPages {
  const uint8_t* key_piece[kSpan / 4];  // row 0 of each run of min(16, page_size) tokens
  const uint8_t* value_unit[kSpan];     // row of each unit
  int64_t key_stride;                   // bytes between steps
  int64_t key_head, value_head;         // bytes from where the pointers lead to the kv head that is being read
  int64_t key_to_value;                 // bytes from a K plane to its V plane
  int pieces;                           // runs in a chunk: 1, 2 or 4
  bool fetch_values;                    // nobody has asked for this span before: each line of K asks for one of V
};

const int32_t* span_blocks(const AttentionArgs& args, int seq, int span) {
  return args.block_table + seq * args.block_stride + int64_t(span) * (kSpan / args.kv.page_size);
}

// Only blocks that hold a token of `seen` are looked up: earlier ones may have been freed (window), later ones do not
// exist. Where chunks that are computed together reach past them, a run that does hold a token stands in: those lanes
// are masked, so what they read never matters. Pointers lead to kv head 0.
void find_pages(const AttentionArgs& args, int seq, int span, TokenRange seen, int pack, SpanPages* out) {
  const KvLayout& kv = args.kv;
  int page_size = kv.page_size, run = min_int(page_size, kLanes), units = page_size / pack;
  const int32_t* blocks = span_blocks(args, seq, span);
  out->key_to_value = kv.kv_heads * kv.plane_bytes;
  out->key_stride = 4 * int64_t(page_size);
  out->pieces = kLanes / run;
  for (int page = seen.begin / page_size; page * page_size < seen.end; page++) {
    const uint8_t* keys = kv.base + blocks[page] * kv.page_bytes + args.layer * kv.layer_bytes;
    for (int token = 0; token < page_size; token += run)
      out->key_piece[(page * page_size + token) / run] = keys + 4 * token;
    for (int unit = 0; unit < units; unit++)
      out->value_unit[page * units + unit] = keys + out->key_to_value + 4 * int64_t(unit) * kv.head_dim;
  }
  int group = kChunksTogether * out->pieces, first = seen.begin / run, last = (seen.end - 1) / run;
  for (int piece = first / group * group; piece < first; piece++) out->key_piece[piece] = out->key_piece[first];
  for (int piece = last + 1; piece % group; piece++) out->key_piece[piece] = out->key_piece[last];
}

// `kPieces` steps of 16 tokens' keys, which lie in `kPieces` pages; `offset` is that of the first step.
template <int kPieces>
OCTAVO_INLINE void load_keys(const SpanPages& pages, int chunk, int64_t offset, f32x16 (&out)[kPieces]) {
  const float* at[kPieces];
  for (int i = 0; i < kPieces; i++) at[i] = (const float*)(pages.key_piece[chunk * kPieces + i] + offset);
  if constexpr (kPieces == 1) out[0] = load(at[0]);
  if constexpr (kPieces == 2) join_2(at[0], at[1], out);
  if constexpr (kPieces == 4) join_4(at[0], at[1], at[2], at[3], out);
}

// Vectors of `Wide` that one of the type's own becomes.
template <class Kv>
constexpr int kWidening = Kv::kPack / Kv::Wide::kPack;

// Copies the keys of chunks that hold a token of `seen` to `dst` as Kv::Wide, the steps of a chunk in a row, and makes
// `pages` lead there.
template <class Kv, int kPieces>
OCTAVO_NOINLINE void copy_keys(TokenRange seen, int head_dim, uint8_t* dst, SpanPages* pages) {
  int first = seen.begin / kLanes, end = (seen.end + kLanes - 1) / kLanes, steps = head_dim / Kv::kPack;
  int64_t chunk_bytes = int64_t(steps) * kWidening<Kv> * kLanes * 4;
  for (int chunk = first; chunk < end; chunk++) {
    float* to = (float*)(dst + chunk * chunk_bytes);
    for (int step = 0; step < steps; step += kPieces) {
      f32x16 keys[kPieces];
      load_keys<kPieces>(*pages, chunk, pages->key_head + step * pages->key_stride, keys);
      for (int i = 0; i < kPieces; i++, to += kWidening<Kv> * kLanes) Kv::store_wide(to, kLanes, keys[i]);
    }
  }
  for (int chunk = first / kChunksTogether * kChunksTogether; chunk < end || chunk % kChunksTogether; chunk++)
    pages->key_piece[chunk] = dst + max_int(first, min_int(chunk, end - 1)) * chunk_bytes;
  pages->key_stride = kLanes * 4;
  pages->key_head = 0;
  pages->pieces = 1;
}

// Copies the V of tokens in `seen`, in whole units, to `dst` as Kv::Wide and makes `pages` lead there.
template <class Kv>
OCTAVO_NOINLINE void copy_values(TokenRange seen, int head_dim, uint8_t* dst, SpanPages* pages) {
  int first = seen.begin / Kv::kPack, end = (seen.end + Kv::kPack - 1) / Kv::kPack;
  int64_t row_bytes = int64_t(head_dim) * 4;
  for (int unit = first; unit < end; unit++) {
    const float* row = (const float*)(pages->value_unit[unit] + pages->value_head);
    float* to = (float*)(dst + unit * kWidening<Kv> * row_bytes);
    for (int d = 0; d < head_dim; d += kLanes) Kv::store_wide(to + d, head_dim, load(row + d));
  }
  for (int unit = first * kWidening<Kv>; unit < end * kWidening<Kv>; unit++)
    pages->value_unit[unit] = dst + unit * row_bytes;
  pages->value_head = 0;
}

// What many query rows would do again and again is done once for all: pieces are joined and numbers widened.
template <class Kv>
void copy_span(TokenRange seen, int head_dim, uint8_t* keys, uint8_t* values, SpanPages* pages) {
  switch (pages->pieces) {
    case 4: copy_keys<Kv, 4>(seen, head_dim, keys, pages); break;
    case 2: copy_keys<Kv, 2>(seen, head_dim, keys, pages); break;
    default:
      if constexpr (kWidening<Kv> > 1) copy_keys<Kv, 1>(seen, head_dim, keys, pages);
  }
  if constexpr (kWidening<Kv> > 1) copy_values<Kv>(seen, head_dim, values, pages);
}

// A decode reads each byte once and waits for memory, and pages are too short and scattered for the processor to see
// them coming. While it works on one span it therefore asks for the lines of the next, a few at a time and in the order
// in which they lie in memory, into the second-level cache.
struct Fetch {
  const uint8_t *at = nullptr, *end = nullptr;            // of the run that is being asked for
  const int32_t *block = nullptr, *last_block = nullptr;  // pages still to come
  const uint8_t* values = nullptr;                        // V of the page whose K was asked for last, or null
  const uint8_t* base = nullptr;                          // K of page 0
  int64_t page_bytes = 0, key_to_value = 0, run_bytes = 0;
  int lines = kChunksTogether;                            // asked for with each kChunksTogether lines that are used
};

Fetch begin_fetch(const AttentionArgs& args, int seq, int kv_head, int kv_heads, int span, TokenRange seen) {
  const KvLayout& kv = args.kv;
  const int32_t* blocks = span_blocks(args, seq, span);
  Fetch fetch;
  fetch.block = blocks + seen.begin / kv.page_size;
  fetch.last_block = blocks + (seen.end + kv.page_size - 1) / kv.page_size;
  fetch.base = kv.base + args.layer * kv.layer_bytes + kv_head * kv.plane_bytes;
  fetch.page_bytes = kv.page_bytes;
  fetch.key_to_value = kv.kv_heads * kv.plane_bytes;
  fetch.run_bytes = kv_heads * kv.plane_bytes;
  return fetch;
}

OCTAVO_INLINE bool next_run(Fetch* fetch) {
  if (fetch->values) {
    fetch->at = fetch->values;
    fetch->values = nullptr;
  } else {
    if (fetch->block == fetch->last_block) return false;
    fetch->at = fetch->base + *fetch->block++ * fetch->page_bytes;
    fetch->values = fetch->at + fetch->key_to_value;
  }
  fetch->end = fetch->at + fetch->run_bytes;
  return true;
}

// The first line that will be asked for, or null: names what is being fetched.
const uint8_t* first_line(const Fetch& fetch) {
  return fetch.block == fetch.last_block ? nullptr : fetch.base + *fetch.block * fetch.page_bytes;
}

// Null if nothing is left to ask for.
OCTAVO_INLINE Fetch* unless_done(Fetch* fetch) {
  return fetch->at == fetch->end && !fetch->values && fetch->block == fetch->last_block ? nullptr : fetch;
}

// Asks for the next `lines` cache lines, as far as there are any.
OCTAVO_INLINE void fetch_lines(Fetch* fetch, int lines) {
  for (int i = 0; i < lines; i++, fetch->at += 64) {
    if (fetch->at == fetch->end && !next_run(fetch)) return;
    __builtin_prefetch(fetch->at, 0, 2);
  }
}

template <int kPieces>
OCTAVO_INLINE void fetch_values(const SpanPages& pages, int chunk, int64_t offset) {
  const uint8_t* const* piece = pages.key_piece + chunk * kPieces;
  for (int i = 0; i < kChunksTogether * kPieces; i++) __builtin_prefetch(piece[i] + offset + pages.key_to_value, 0, 2);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
