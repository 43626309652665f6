// Paged attention (Kwon et al. 2023) over spans of tokens at fixed absolute positions.
//
// A query row's result is made of: per span, raw scores (one chain over head_dim each), the span's greatest score, its
// weights and their sum (in lanes by position), the weighted sum of V (one chain over the tokens); then the spans
// folded in ascending order. Nothing of that depends on page size, on which rows share the work, or on how an item was
// cut. Decode and prefill are the same code with few or many rows.
#include "../levels.h"
#include "attention_softmax.h"
#include "attention_tile.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Rows whose states a thread holds while it goes through their spans: few enough to stay in cache.
constexpr int kTileRows = 192;

int tile_queries(int group) { return max_int(1, kTileRows / group); }

// A thread's scratch.
struct Workspace {
  const uint8_t** fetched;  // first line of what has been fetched for the next span, which may lie in the next call
  FoldRows state;    // of the tile's rows
  FoldRows span;     // of kRowsTogether rows
  float* scores;     // [kRowsTogether][kSpan]
  uint8_t* weights;  // operands [kRowsTogether][kSpan]
  uint8_t* q;        // operands [kRowsTogether][kMaxHeadDim]
  uint8_t* keys;     // a span of one head, gathered; where pages hold less than a chunk
};

// Lays the workspace out over `scratch` (only counts if null); returns its size in bytes.
int64_t lay_out(const KvLayout& kv, int group, uint8_t* scratch, Workspace* work) {
  int64_t used = 0;
  auto take = [&](int64_t floats) {
    uint8_t* at = scratch ? scratch + used : nullptr;
    used += (floats * 4 + 63) / 64 * 64;
    return at;
  };
  int64_t rows = int64_t(tile_queries(group)) * group;
  work->fetched = (const uint8_t**)take(2);
  work->state = {(float*)take(rows * kv.head_dim), kv.head_dim, (float*)take(rows), (float*)take(rows)};
  work->span = {(float*)take(kRowsTogether * kMaxHeadDim), kMaxHeadDim, (float*)take(kRowsTogether),
                (float*)take(kRowsTogether)};
  work->scores = (float*)take(kRowsTogether * kSpan);
  work->weights = take(kRowsTogether * kSpan);
  work->q = take(kRowsTogether * kMaxHeadDim);
  work->keys = take(kv.page_size < kLanes ? kSpan * kv.head_dim : 0);
  return used;
}

int64_t attention_scratch_bytes(const KvLayout& kv, int32_t q_heads) {
  Workspace work;
  return lay_out(kv, q_heads / kv.kv_heads, nullptr, &work);
}

// The queries of one sequence in this step.
struct Queries {
  const AttentionArgs& args;
  int64_t first_row;   // of q and out
  int first_position;  // absolute

  Queries(const AttentionArgs& a, int seq) : args(a), first_row(a.query_start[seq]) {
    first_position = a.context_len[seq] - int(a.query_start[seq + 1] - first_row);
  }
  // Tokens of the span that any of the queries [first, first + count) sees.
  TokenRange visible(int first, int count, int span) const {
    int begin = args.window ? first_position + first - args.window + 1 : 0, end = first_position + first + count;
    return {max_int(begin - span * kSpan, 0), min_int(end - span * kSpan, kSpan)};
  }
  const float* q(int query, int head) const {
    return args.q + (first_row + query) * args.q_stride + int64_t(head) * args.kv.head_dim;
  }
  float* out(int query, int head) const {
    return args.out + (first_row + query) * args.out_stride + int64_t(head) * args.kv.head_dim;
  }
};

// Rows that go through their spans together: `count` of each of the kv heads [kv_head, kv_head + kv_heads). Row r of a
// head is query `query` + r / group, query head r % group of the group.
struct Tile : Queries {
  int kv_head, kv_heads, query, queries, group, count;

  Tile(const AttentionArgs& a, int seq, int first_head, int heads, int first_query, int query_count)
      : Queries(a, seq), kv_head(first_head), kv_heads(heads), query(first_query), queries(query_count),
        group(a.q_heads / a.kv.kv_heads), count(query_count * group) {}
  TokenRange visible(int span) const { return Queries::visible(query, queries, span); }
  TokenRange visible(int row, int span) const { return Queries::visible(query + row / group, 1, span); }
  const float* q(int head, int row) const { return Queries::q(query + row / group, head * group + row % group); }
  void finish(int head, int row, const float* values, float greatest, float sum) const {
    int own = head * group + row % group;
    finish_fold(values, greatest, sum, args.sinks ? args.sinks + own : nullptr, args.kv.head_dim,
                out(query + row / group, own));
  }
};

// Rows [first, first + count) of one head against one span -> work.span. `pages` lead to that head.
template <class Kv>
void attend_span(const Tile& tile, const SpanPages& pages, int span, int head, int first, int count, Fetch* fetch,
                 const Workspace& work) {
  using Operand = typename Kv::Operand;
  const AttentionArgs& args = tile.args;
  int head_dim = args.kv.head_dim;
  Operand* q = (Operand*)work.q;
  Operand* weights = (Operand*)work.weights;
  f32x16 factor = set1(q_factor(args));
  TokenRange seen[kRowsTogether], any{kSpan, 0}, all{0, kSpan};
  begin_fold(work.span, count, head_dim);
  for (int r = 0; r < count; r++) {
    const float* source = tile.q(head, first + r);
    for (int d = 0; d < head_dim; d += kLanes) Kv::to_operands(q + r * kMaxHeadDim + d, mul(load(source + d), factor));
    seen[r] = tile.visible(first + r, span);
    all = {max_int(all.begin, seen[r].begin), min_int(all.end, seen[r].end)};
    if (!seen[r].empty()) any = {min_int(any.begin, seen[r].begin), max_int(any.end, seen[r].end)};
  }
  for_row_blocks(any.empty() ? 0 : count, [&]<int kRows>(int r) {
    score_rows<Kv, kRows>(pages, any, head_dim, q + r * kMaxHeadDim, work.scores + r * kSpan, r ? nullptr : fetch);
  });
  for (int r = 0; r < count; r++)
    if (!seen[r].empty())
      weigh_tokens<Kv>(args.softcap, work.scores + r * kSpan, seen[r].begin, seen[r].end, weights + r * kSpan,
                       &work.span.greatest[r], &work.span.sum[r]);

  // Units that every row sees whole go through the blocked product, those at the ragged ends row by row.
  int begin = (all.begin + Kv::kPack - 1) / Kv::kPack, end = max_int(begin, all.end / Kv::kPack);
  auto edges = [&](int from, int to) {
    for (int r = 0; r < count; r++)
      if (!seen[r].empty())
        value_edge<Kv>(pages, max_int(from, seen[r].begin / Kv::kPack),
                       min_int(to, (seen[r].end + Kv::kPack - 1) / Kv::kPack), seen[r].begin, seen[r].end, head_dim,
                       weights + r * kSpan, work.span.values + r * kMaxHeadDim);
  };
  edges(0, begin);
  for_row_blocks(begin < end ? count : 0, [&]<int kRows>(int r) {
    value_rows<Kv, kRows>(pages, begin, end, head_dim, weights + r * kSpan, work.span.values + r * kMaxHeadDim,
                          r ? nullptr : fetch);
  });
  edges(end, kSpan);
}

void write_partials(const FoldRows& span, int rows, int head_dim, float* partials) {
  for (int r = 0; r < rows; r++, partials += head_dim + 2) {
    memcpy(partials, span.values + r * span.stride, size_t(head_dim) * 4);
    partials[head_dim] = span.greatest[r];
    partials[head_dim + 1] = span.sum[r];
  }
}

// What will be read after this span of this item.
Fetch fetch_after(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, int span) {
  const AttentionItem* following = span + 1 < item.span_end ? &item : next;
  if (!following) return {};
  int first = following == &item ? span + 1 : following->span_begin;
  TokenRange seen = Queries(args, following->seq).visible(following->query_begin, following->query_count, first);
  if (seen.empty()) return {};
  return begin_fetch(args, following->seq, following->kv_head, following->kv_heads, first, seen);
}

// One head of a tile against one span: folded into the tile's state, or left as partial rows.
template <class Kv>
void attend_head(const Tile& tile, const SpanPages& pages, int span, int head, Fetch* fetch, float* partials,
                 const Workspace& work) {
  int head_dim = tile.args.kv.head_dim, state_row = (head - tile.kv_head) * tile.count;
  for (int first = 0; first < tile.count; first += kRowsTogether) {
    int n = min_int(kRowsTogether, tile.count - first);
    attend_span<Kv>(tile, pages, span, head, first, n, fetch, work);
    if (partials) write_partials(work.span, n, head_dim, partials + int64_t(first) * (head_dim + 2));
    else fold_span(rows_from(work.state, state_row + first), work.span, n, head_dim);
  }
}

// Part of an item: queries [query, query + queries) of kv heads [kv_head, kv_head + kv_heads).
template <class Kv>
void attend_tile(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, const Tile& tile,
                 const Workspace& work) {
  int rows = tile.kv_heads * tile.count, head_dim = args.kv.head_dim;
  bool whole = item.partial < 0, few = tile.count <= kRowsTogether;
  if (whole) begin_fold(work.state, rows, head_dim);
  for (int span = item.span_begin; span < item.span_end; span++) {
    TokenRange seen = tile.visible(span);
    if (whole && seen.empty()) continue;
    SpanPages pages;
    if (!seen.empty()) find_pages(args, item.seq, span, seen, Kv::kPack, &pages);
    Fetch fetch;
    if (few && !seen.empty()) {
      pages.fetch_values = first_line(begin_fetch(args, item.seq, item.kv_head, item.kv_heads, span, seen)) != *work.fetched;
      fetch = fetch_after(args, item, next, span);
      *work.fetched = first_line(fetch);
    }
    for (int head = tile.kv_head; head < tile.kv_head + tile.kv_heads; head++) {
      pages.key_head = pages.value_head = head * plane_bytes(args.kv);
      if (!few && !seen.empty() && pages.pieces == 4) gather_keys<4>(seen, head_dim / Kv::kPack, work.keys, &pages);
      if (!few && !seen.empty() && pages.pieces == 2) gather_keys<2>(seen, head_dim / Kv::kPack, work.keys, &pages);
      int64_t row = (int64_t(span - item.span_begin) * item.kv_heads + head - item.kv_head) * item.query_count * tile.group +
                    (tile.query - item.query_begin) * tile.group;
      attend_head<Kv>(tile, pages, span, head, few ? &fetch : nullptr,
                      whole ? nullptr : args.partials + (item.partial + row) * (head_dim + 2), work);
    }
  }
  for (int r = 0; whole && r < rows; r++)
    tile.finish(tile.kv_head + r / tile.count, r % tile.count, work.state.values + r * work.state.stride,
                work.state.greatest[r], work.state.sum[r]);
}

template <class Kv>
void run_item(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, uint8_t* scratch) {
  Workspace work;
  int group = args.q_heads / args.kv.kv_heads, step = tile_queries(group);
  lay_out(args.kv, group, scratch, &work);
  if (item.query_count * group <= kRowsTogether && item.query_count * item.kv_heads <= step)
    return attend_tile<Kv>(args, item, next,
                           Tile(args, item.seq, item.kv_head, item.kv_heads, item.query_begin, item.query_count), work);
  for (int head = item.kv_head; head < item.kv_head + item.kv_heads; head++)
    for (int query = 0; query < item.query_count; query += step)
      attend_tile<Kv>(args, item, nullptr,
                      Tile(args, item.seq, head, 1, item.query_begin + query, min_int(step, item.query_count - query)), work);
}

void attention(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, uint8_t* scratch) {
  if (args.kv.type == KvType::f32) run_item<F32Kv>(args, item, next, scratch);
  else run_item<Bf16Kv>(args, item, next, scratch);
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  Tile tile(args, merge.seq, merge.kv_head, merge.kv_heads, merge.query_begin, merge.query_count);
  int head_dim = args.kv.head_dim, rows = merge.kv_heads * tile.count;
  int64_t stride = head_dim + 2;
  for (int r = 0; r < rows; r++) {
    float values[kMaxHeadDim], greatest, sum;
    FoldRows state = {values, kMaxHeadDim, &greatest, &sum};
    begin_fold(state, 1, head_dim);
    for (int span = 0; span < merge.spans; span++) {
      float* row = args.partials + (merge.first_partial + int64_t(span) * rows + r) * stride;
      fold_span(state, {row, stride, row + head_dim, row + head_dim + 1}, 1, head_dim);
    }
    tile.finish(merge.kv_head + r / tile.count, r % tile.count, values, greatest, sum);
  }
}

}  // namespace

void fill_attention(KernelTable* table) {
  table->attention = attention;
  table->attention_merge = attention_merge;
  table->attention_scratch_bytes = attention_scratch_bytes;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
