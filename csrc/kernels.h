// The kernel contract: plain structs and one table of function pointers per ISA level.
//
// Kernels are pure functions over pointers. They own no threads and allocate nothing; the plan (plan.h) cuts an op into
// items, and any thread may run any item. What one output element goes through depends only on the op's own K or on
// the token's own absolute position, never on how the op was cut (promise 4).
#pragma once
#include <stdint.h>
#include <stddef.h>

#include "weight_formats.h"

namespace octavo {

// ---------------------------------------------------------------------------------------------------- linear layers

// bf16_as_f32: rounded to bf16 and kept as f32, for weights that have no products in bf16.
enum class ActivationKind : int32_t { f32 = 0, bf16 = 1, int8 = 2, bf16_as_f32 = 3 };
constexpr int32_t kActivationKinds = 4;

// A matrix [n, k] as tiles of 16 output columns, each holding all of k in the order the level's kernel reads it.
// Rows past n are zero. `tiles` is 64-byte aligned.
struct PackedWeight {
  WeightFormat format;
  ActivationKind activation;  // what the tiles are laid out for
  int32_t n, k;
  int64_t tile_bytes;         // one tile: 16 columns x k
  const uint8_t* tiles;       // [ceil(n / 16)][tile_bytes]
};

// Rows of activations made by `prepare_rows`; opaque to everyone but the linear kernel.
struct PreparedRows {
  ActivationKind kind;
  int32_t rows, k;
  int64_t row_bytes;          // prepared_row_bytes(kind, k)
  const uint8_t* data;        // [rows][row_bytes], 64-byte aligned
};

struct LinearArgs {
  const PackedWeight* weight;
  PreparedRows input;
  const float* bias;          // [n] or null
  float* out;                 // [rows][out_stride]
  int64_t out_stride;
  bool accumulate;            // out += instead of out =
  // Hints: the caller's thread reads weights up to `fetch_end`, and from `fetch_next` after that. Both null: straight on.
  const uint8_t* fetch_end = nullptr;
  const uint8_t* fetch_next = nullptr;
};

// -------------------------------------------------------------------------------------------------------- KV memory

enum class KvType : int32_t { f32 = 0, bf16 = 1, f16 = 2, int8 = 3 };

constexpr int32_t kMaxHeadDim = 256;

// Numbers of a head that share a scale, where the type has scales: a part of the head. A last part may have fewer.
constexpr int32_t kScaleNumbers = 64;
constexpr int32_t kMaxHeadScales = kMaxHeadDim / kScaleNumbers;

// element_bytes: of one stored number. scale_bytes: of the scale of each scale_numbers numbers; 0: the type has none.
struct KvTypeSizes {
  const char* name;
  int32_t element_bytes, scale_bytes, scale_numbers;
};
constexpr KvTypeSizes kKvTypes[] = {{"f32", 4, 0, 0}, {"bf16", 2, 0, 0}, {"f16", 2, 0, 0}, {"int8", 1, 2, kScaleNumbers}};
constexpr int32_t kKvTypeCount = sizeof(kKvTypes) / sizeof(kKvTypes[0]);

// A page: [layer][K|V][kv_head][plane], then, where the type has scales, [layer][kv_head][K|V][part][page_size] of them,
// then nothing up to a multiple of 64 bytes. A plane is rows of 4-byte lanes, in each of which lie `pack` = 1 (f32), 2
// (bf16, f16) or 4 (int8) numbers: K [head_dim/pack][page_size][pack], V [page_size/pack][head_dim][pack]. The four of
// int8 are in the order 0, 2, 1, 3, so that the even and the odd bytes of a lane are the pairs that products of 16 bits
// take.
// page_size is one of 4, 8, 16, 32; head_dim is a multiple of 16 up to kMaxHeadDim.
//
// int8: number = round to nearest even(x / scale), scale = bf16(greatest |x| of this part of the token's head / 127).
// A part that holds a NaN or an infinity has the scale NaN, one that is 0 or below 1e-30 throughout the scale 0; both
// hold zeros.
struct KvLayout {
  KvType type;
  int32_t page_size, kv_heads, head_dim;
  int64_t page_bytes;         // distance between pages (all layers of the group)
  int64_t layer_bytes;        // distance between layers' planes inside a page
  int64_t plane_bytes;        // one head's K, or V, of one layer
  int64_t scale_offset;       // from a page to the scales of its first layer
  int64_t layer_scale_bytes;  // distance between layers' scales; 0: the type has none
  int32_t head_scales;        // of a token's K, or V, of one head
  uint8_t* base;              // page 0
};

// Sines and cosines of one step: layers with the same frequencies share a table.
struct RopeTableArgs {
  const int32_t* positions;   // [T]
  const float* inv_freq;      // [rotary/2], scaling already applied
  int32_t rotary;
  float amplitude;            // multiplies sin and cos
  float* table;               // [T][rotary]: rotary/2 cosines, then rotary/2 sines
};

struct RopeStoreArgs {
  KvLayout kv;
  int32_t layer;
  int32_t q_heads;
  float* q;                   // [T][q_stride]; rotated in place
  const float* k;             // [T][kv_stride]
  const float* v;
  int64_t q_stride, k_stride, v_stride;
  const int32_t* positions;   // [T] where in its sequence each token is stored
  const int32_t* token_seq;   // [T] row of the block table
  const int32_t* block_table; // [S][block_stride]
  int64_t block_stride;
  const float* rotation;      // [T][rotary] from rope_table, or null: no rotation
  int32_t rotary;             // elements of a head that rotate, even; pairs (i, i + rotary/2), the "half" convention
                              // (weights in the interleaved one are permuted when packed)
  const float* q_norm;        // [head_dim] RMS norm of each head before rotation, or null
  const float* k_norm;
  float norm_eps;
};

struct AttentionArgs {
  KvLayout kv;
  int32_t layer;
  int32_t q_heads;
  float scale;
  float softcap;              // 0: none
  int32_t window;             // 0: none; else keys at positions > own - window
  const float* sinks;         // [q_heads] or null
  const float* q;             // [T][q_stride]
  float* out;                 // [T][out_stride]
  int64_t q_stride, out_stride;
  const int32_t* query_start; // [S + 1] first row of each sequence in q
  const int32_t* context_len; // [S] tokens of the sequence after this step; its last query row is at context_len - 1
  const int32_t* block_table; // [S][block_stride]
  int64_t block_stride;
  const struct AttentionRows* rows;  // what items and merges refer to
  float* partials;            // [partial row][head_dim + 2], see AttentionRows
};

// Attention reduces over spans of kSpan tokens at absolute positions 0, kSpan, ...; spans are folded in order.
constexpr int32_t kAttentionSpan = 256;

// Queries [query_begin, query_begin + query_count) of a sequence, counted from query_start[seq], and where their partial
// rows lie: that of a span, kv head, query and query head of the group, the first three counted from 0 and the query from
// query_begin, is row `partial` + span * span_rows + (kv_head * query_count + query) * group + head.
struct AttentionRows {
  int32_t seq, query_begin, query_count;
  int32_t span_rows;
  int64_t partial;
};

// One piece of attention: queries of one sequence, or of several whose block tables hold the same pages in these spans
// and that see them whole, against some spans, for all query heads of some kv heads. An item that does not cover all
// spans its queries can see is `partial` and leaves a partial row for each span. Spans are never folded inside an item
// that attention_merge folds again: the order of folding is what makes any cut give the same bits.
struct AttentionItem {
  int32_t kv_head, kv_heads;       // kv heads [kv_head, kv_head + kv_heads)
  int32_t span_begin, span_end;
  int32_t rows_begin, rows_end;    // AttentionArgs.rows
  bool partial;                    // else the item covers all its spans and writes `out`
};

// Folds spans [span_begin, span_end), all that these rows can see, in order, and writes `out`.
struct AttentionMerge {
  int32_t rows;                    // one of AttentionArgs.rows
  int32_t kv_head, kv_heads;
  int32_t span_begin, span_end;
};

// --------------------------------------------------------------------------------------------------------- sampling

// What one output row is sampled with. Order of operations: DESIGN section 8.
struct SampleParams {
  float temperature;          // < 1e-5: greedy
  int32_t top_k;              // 0: all
  float top_p, min_p;         // 1 and 0: off
  float repetition, presence, frequency;  // 1, 0, 0: off
  int32_t logprobs;           // -1: none; n: chosen token and the n most likely
  uint64_t seed;
  uint32_t choice;
  float xtc_probability = 0.0f, xtc_threshold = 0.1f;  // probability 0: off
  bool processed_logprobs = false;  // of the distribution that is drawn from, instead of the untouched logits
};

// A sequence's token counts and biases; arrays are sorted by token id and have no duplicates.
struct SampleState {
  const int32_t* seen_ids;    // tokens in prompt or output
  const int32_t* out_counts;  // [seen] times in the output
  int32_t seen;
  const int32_t* bias_ids;
  const float* bias_values;
  int32_t biases;
  const int32_t* banned_ids;  // set to -inf before anything else
  int32_t banned;
  const uint32_t* allowed;    // bit mask over the vocabulary, or null: all
  const int32_t* dry_ids;
  const float* dry_penalties;
  int32_t dried;
};

struct SampleRow {
  SampleParams params;
  SampleState state;
  uint64_t position;          // absolute position of the token to draw
};

struct SampleOut {
  int32_t token;
  float logprob;
  int32_t* top_ids;           // as many as asked for, or null
  float* top_logprobs;
};

// ------------------------------------------------------------------------------------------------------------ table

struct KernelTable {
  const char* level;

  // elementwise.cpp: rows of f32
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, float* out);
  // activations.cpp: layer norm (bias may be null), inout += x * scale, and activations with and without a gate
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* out);
  void (*add)(const float* x, float scale, int64_t width, float* inout);
  void (*silu)(const float* x, int64_t width, float* out);
  void (*gelu_tanh)(const float* x, int64_t width, float* out);
  void (*gelu)(const float* x, int64_t width, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int64_t width, float* out);
  void (*clamped_swiglu)(const float* gate, const float* up, float alpha, float limit, int64_t width, float* out);
  // x *= scale, then cap * tanh(x / cap) unless cap is 0: what a head makes of its logits
  void (*scale_and_cap)(float* x, float scale, float cap, int64_t count);
  void (*silu_mul)(const float* gate, const float* up, int64_t width, float* out);
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t width, float* out);
  void (*rope_table)(const RopeTableArgs& args, int32_t token_begin, int32_t token_end);
  void (*rope_store)(const RopeStoreArgs& args, int32_t token_begin, int32_t token_end);

  // attention.cpp
  // `next`: what this thread will probably run after `item`, or null; its K and V are fetched meanwhile.
  void (*attention)(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, uint8_t* scratch);
  void (*attention_merge)(const AttentionArgs& args, const AttentionMerge& merge);
  int64_t (*attention_scratch_bytes)(const KvLayout& kv, int32_t q_heads);  // per thread, 64-byte aligned

  // linear.cpp
  int64_t (*packed_tile_bytes)(WeightFormat format, ActivationKind activation, int32_t k);
  // Packs output columns 16*tile .. of a matrix whose rows lie in the file's own format (GGUF blocks, or plain
  // f32/f16/bf16), `row_bytes` apart. `row_index` [n] picks the source row of each output column, or null.
  void (*pack_tile)(WeightFormat format, ActivationKind activation, const uint8_t* rows, int64_t row_bytes,
                    const int32_t* row_index, int32_t n, int32_t k, int32_t tile, uint8_t* dst);
  int64_t (*prepared_row_bytes)(ActivationKind kind, int32_t k);
  void (*prepare_row)(ActivationKind kind, const float* x, int32_t k, uint8_t* dst);
  // Output columns of tiles [tile_begin, tile_end) for rows [row_begin, row_end).
  void (*linear)(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end);
  // Row `index` of the matrix (one output column) as f32 [k]: the embedding look-up from packed tiles.
  void (*gather_row)(const PackedWeight& weight, int32_t index, float scale, float* out);

  // sampling.cpp: draws one token from untouched logits [vocab] by the rule in backends/reference/sampling.py.
  // `scratch` is 64-byte aligned and belongs to this call alone.
  void (*sample)(const float* logits, int32_t vocab, const SampleRow& row, uint8_t* scratch, SampleOut* out);
  // Log-probabilities of `out->token` and of the `top` most likely ones, from untouched logits.
  void (*score)(const float* logits, int32_t vocab, int32_t top, uint8_t* scratch, SampleOut* out);
  int64_t (*sample_scratch_bytes)(int32_t vocab);

  // peaks.cpp: what the machine can do at most (csrc/peaks.h)
  // Multiply-adds in registers, as the kernels of this kind of activations do them; returns how many operations that
  // were, two for each: 0 if the level has no instruction for it.
  int64_t (*peak)(ActivationKind kind, int64_t rounds);
  // Reads `bytes`, a multiple of 512, from 64-byte aligned memory; `ahead`: fetched ahead, as weights are.
  void (*read)(const uint8_t* data, int64_t bytes, bool ahead);
};

// Tables of the levels this build has and this machine can run, best first. `find_level(nullptr)` is the best one,
// or the one OCTAVO_ISA names; null with *error set if it does not exist or the CPU or OS lacks it.
const KernelTable* find_level(const char* name, const char** error);
int supported_levels(const KernelTable** out, int max);

}  // namespace octavo
