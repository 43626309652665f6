// Paged attention (Kwon et al. 2023) over spans of tokens at fixed absolute positions.
//
// A query row's result is made of: per span, raw scores (one chain over head_dim each), the span's greatest score, its
// weights and their sum (lane = token modulo 16), the weighted sum of V (one chain over the tokens); then the spans
// folded in ascending order. Nothing of that depends on page size, on which rows share the work, or on how an item was
// cut. Decode and prefill are the same code with few or many rows.
#include "../levels.h"
#include "attention_softmax.h"
#include "attention_tile.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Queries of an item that are taken through its spans together: about this many rows, whose states stay in cache.
constexpr int kTileRows = 192;

int tile_queries(int group) { return max_int(1, kTileRows / group); }

// A thread's scratch.
struct Workspace {
  FoldRows state;    // of the tile's rows
  FoldRows span;     // of kRowsTogether rows
  float* scores;     // [kRowsTogether][kSpan]
  uint8_t* weights;  // operands [kRowsTogether][kSpan]
  uint8_t* q;        // operands [kRowsTogether][kMaxHeadDim]
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
  work->state = {(float*)take(rows * kv.head_dim), kv.head_dim, (float*)take(rows), (float*)take(rows)};
  work->span = {(float*)take(kRowsTogether * kMaxHeadDim), kMaxHeadDim, (float*)take(kRowsTogether),
                (float*)take(kRowsTogether)};
  work->scores = (float*)take(kRowsTogether * kSpan);
  work->weights = take(kRowsTogether * kSpan);
  work->q = take(kRowsTogether * kMaxHeadDim);
  return used;
}

int64_t attention_scratch_bytes(const KvLayout& kv, int32_t q_heads) {
  Workspace work;
  return lay_out(kv, q_heads / kv.kv_heads, nullptr, &work);
}

FoldRows rows_from(FoldRows rows, int first) {
  return {rows.values + first * rows.stride, rows.stride, rows.greatest + first, rows.sum + first};
}

struct TokenRange {
  int begin, end;  // within a span
  bool empty() const { return begin >= end; }
};

// One sequence's query rows for one kv head. Row r of a tile is query r / group, head r % group of the group.
struct QueryRows {
  const AttentionArgs& args;
  int seq, kv_head, group;
  int first_position;  // absolute position of the sequence's query 0
  int64_t first_row;   // of q and out

  QueryRows(const AttentionArgs& a, int sequence, int head)
      : args(a), seq(sequence), kv_head(head), group(a.q_heads / a.kv.kv_heads) {
    first_row = a.query_start[seq];
    first_position = a.context_len[seq] - int(a.query_start[seq + 1] - first_row);
  }
  int head(int row) const { return kv_head * group + row % group; }
  const float* q(int query, int row) const {
    return args.q + (first_row + query + row / group) * args.q_stride + head(row) * args.kv.head_dim;
  }
  void finish(int query, int row, const float* values, float greatest, float sum) const {
    float* out = args.out + (first_row + query + row / group) * args.out_stride + head(row) * args.kv.head_dim;
    finish_fold(values, greatest, sum, args.sinks ? args.sinks + head(row) : nullptr, args.kv.head_dim, out);
  }
  // Tokens of the span that any of the queries [first, last] sees.
  TokenRange visible(int first, int last, int span) const {
    int begin = args.window ? first_position + first - args.window + 1 : 0, end = first_position + last + 1;
    return {max_int(begin - span * kSpan, 0), min_int(end - span * kSpan, kSpan)};
  }
};

// Rows [first, first + count) of the tile that begins at `query`, against one span -> work.span.
template <class Kv>
void attend_span(const QueryRows& rows, const SpanPages& pages, int span, int query, int first, int count,
                 const Workspace& work) {
  using Operand = typename Kv::Operand;
  const AttentionArgs& args = rows.args;
  int head_dim = args.kv.head_dim;
  Operand* q = (Operand*)work.q;
  Operand* weights = (Operand*)work.weights;
  f32x16 factor = set1(q_factor(args));
  TokenRange seen[kRowsTogether], any{kSpan, 0}, all{0, kSpan};
  begin_fold(work.span, count, head_dim);
  for (int r = 0; r < count; r++) {
    const float* source = rows.q(query, first + r);
    for (int d = 0; d < head_dim; d += kLanes) Kv::to_operands(q + r * kMaxHeadDim + d, mul(load(source + d), factor));
    int own = query + (first + r) / rows.group;
    seen[r] = rows.visible(own, own, span);
    all = {max_int(all.begin, seen[r].begin), min_int(all.end, seen[r].end)};
    if (!seen[r].empty()) any = {min_int(any.begin, seen[r].begin), max_int(any.end, seen[r].end)};
  }
  for_row_blocks(any.empty() ? 0 : count, [&]<int kRows>(int r) {
    score_rows<Kv, kRows>(pages, any.begin, any.end, head_dim, q + r * kMaxHeadDim, work.scores + r * kSpan);
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
    value_rows<Kv, kRows>(pages, begin, end, head_dim, weights + r * kSpan, work.span.values + r * kMaxHeadDim);
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

// Queries [query, query + queries) of an item.
template <class Kv>
void attend_tile(const AttentionArgs& args, const AttentionItem& item, int query, int queries, const Workspace& work) {
  QueryRows rows(args, item.seq, item.kv_head);
  int head_dim = args.kv.head_dim, count = queries * rows.group;
  bool whole = item.partial < 0;
  if (whole) begin_fold(work.state, count, head_dim);
  for (int span = item.span_begin; span < item.span_end; span++) {
    TokenRange seen = rows.visible(query, query + queries - 1, span);
    if (seen.empty() && whole) continue;
    SpanPages pages;
    if (!seen.empty()) find_pages(args, item, span, seen.begin, seen.end, Kv::kPack, count <= kRowsTogether, &pages);
    int64_t partial = item.partial + (int64_t(span - item.span_begin) * item.query_count + query - item.query_begin) * rows.group;
    for (int first = 0; first < count; first += kRowsTogether) {
      int n = min_int(kRowsTogether, count - first);
      attend_span<Kv>(rows, pages, span, query, first, n, work);
      if (whole) fold_span(rows_from(work.state, first), work.span, n, head_dim);
      else write_partials(work.span, n, head_dim, args.partials + (partial + first) * (head_dim + 2));
    }
  }
  for (int r = 0; whole && r < count; r++)
    rows.finish(query, r, work.state.values + r * work.state.stride, work.state.greatest[r], work.state.sum[r]);
}

template <class Kv>
void run_item(const AttentionArgs& args, const AttentionItem& item, uint8_t* scratch) {
  Workspace work;
  int group = args.q_heads / args.kv.kv_heads, step = tile_queries(group), end = item.query_begin + item.query_count;
  lay_out(args.kv, group, scratch, &work);
  for (int query = item.query_begin; query < end; query += step)
    attend_tile<Kv>(args, item, query, min_int(step, end - query), work);
}

void attention(const AttentionArgs& args, const AttentionItem& item, uint8_t* scratch) {
  if (args.kv.type == KvType::f32) run_item<F32Kv>(args, item, scratch);
  else run_item<Bf16Kv>(args, item, scratch);
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  QueryRows rows(args, merge.seq, merge.kv_head);
  int head_dim = args.kv.head_dim, count = merge.query_count * rows.group;
  int64_t stride = head_dim + 2;
  for (int r = 0; r < count; r++) {
    float values[kMaxHeadDim], greatest, sum;
    FoldRows state = {values, kMaxHeadDim, &greatest, &sum};
    begin_fold(state, 1, head_dim);
    for (int span = 0; span < merge.spans; span++) {
      float* row = args.partials + (merge.first_partial + int64_t(span) * count + r) * stride;
      fold_span(state, {row, stride, row + head_dim, row + head_dim + 1}, 1, head_dim);
    }
    rows.finish(merge.query_begin, r, values, greatest, sum);
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
