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

// Query rows whose fold states a thread holds at once; keys are joined once for all of them.
constexpr int kTileRows = 192;

struct TokenRange {
  int begin, end;  // within the span
  bool empty() const { return begin >= end; }
};

// Where a thread works; carved from its scratch.
struct Workspace {
  float* states;   // [kTileRows or one token's heads][head_dim + 2]
  float* scores;   // [kRowsTogether][kSpan]
  float* values;   // [kRowsTogether][kMaxHeadDim]
  uint8_t* q;      // operands [kRowsTogether][kMaxHeadDim]
  uint8_t* weights;  // operands [kRowsTogether][kSpan]
};

int64_t round_up_64(int64_t bytes) { return (bytes + 63) & ~int64_t(63); }

int tile_tokens(int group) { return max_int(1, kTileRows / group); }

int64_t state_bytes(int group, int head_dim) {
  return round_up_64(int64_t(tile_tokens(group)) * group * (head_dim + 2) * 4);
}

constexpr int64_t kScoreBytes = int64_t(kRowsTogether) * kSpan * 4;
constexpr int64_t kValueBytes = int64_t(kRowsTogether) * kMaxHeadDim * 4;

int64_t attention_scratch_bytes(const KvLayout& kv, int32_t q_heads) {
  return state_bytes(q_heads / kv.kv_heads, kv.head_dim) + 2 * kScoreBytes + 2 * kValueBytes;
}

Workspace carve(const AttentionArgs& args, int group, uint8_t* scratch) {
  Workspace work;
  work.states = (float*)scratch;
  scratch += state_bytes(group, args.kv.head_dim);
  work.scores = (float*)scratch;
  work.weights = scratch + kScoreBytes;
  work.values = (float*)(scratch + 2 * kScoreBytes);
  work.q = scratch + 2 * kScoreBytes + kValueBytes;
  return work;
}

// One sequence's rows for one kv head. Row r is query r / group, head r % group of the group.
template <class Kv>
struct Rows {
  const AttentionArgs& args;
  const AttentionItem& item;
  int group, first_position;  // absolute position of query 0 of the sequence

  Rows(const AttentionArgs& a, const AttentionItem& i)
      : args(a), item(i), group(a.q_heads / a.kv.kv_heads) {
    int queries = a.query_start[i.seq + 1] - a.query_start[i.seq];
    first_position = a.context_len[i.seq] - queries;
  }
  int64_t q_row(int query) const { return args.query_start[item.seq] + query; }
  int column(int head) const { return (item.kv_head * group + head) * args.kv.head_dim; }
  // Tokens of the span that queries [first, last] see, any of them.
  TokenRange visible(int first, int last, int span) const {
    int end = first_position + last + 1, begin = args.window ? first_position + first - args.window + 1 : 0;
    return {max_int(begin - span * kSpan, 0), min_int(end - span * kSpan, kSpan)};
  }
};

// Rows [first, first + count) of the tile against one span: values, greatest and sum of each; `greatest` is minus
// infinity for a row that sees nothing of it.
template <class Kv, int kPieces>
void attend_span(const Rows<Kv>& rows, const SpanPages& pages, int span, int first_query, int first, int count,
                 const Workspace& work, float* greatest, float* sum) {
  using Operand = typename Kv::Operand;
  const AttentionArgs& args = rows.args;
  int head_dim = args.kv.head_dim, group = rows.group;
  Operand* q = (Operand*)work.q;
  Operand* weights = (Operand*)work.weights;
  TokenRange seen[kRowsTogether], any{kSpan, 0}, all{0, kSpan};
  for (int r = 0; r < count; r++) {
    int query = first_query + (first + r) / group, head = (first + r) % group;
    const float* source = args.q + rows.q_row(query) * args.q_stride + rows.column(head);
    for (int d = 0; d < head_dim; d += kLanes) Kv::to_operands(q + r * kMaxHeadDim + d, load(source + d));
    for (int d = 0; d < head_dim; d += kLanes) store(work.values + r * kMaxHeadDim + d, zero());
    seen[r] = rows.visible(query, query, span);
    all = {max_int(all.begin, seen[r].begin), min_int(all.end, seen[r].end)};
    if (!seen[r].empty()) any = {min_int(any.begin, seen[r].begin), max_int(any.end, seen[r].end)};
  }
  if (!any.empty())
    for_row_blocks<kBlockRows>(count, [&]<int kRows>(int r) {
      score_rows<Kv, kPieces, kRows>(pages, any.begin / kLanes, (any.end - 1) / kLanes, head_dim,
                                     q + r * kMaxHeadDim, work.scores + r * kSpan);
    });
  for (int r = 0; r < count; r++) {
    greatest[r] = kMinusInfinity;
    sum[r] = 0.0f;
    if (!seen[r].empty())
      weigh_tokens<Kv>(args, work.scores + r * kSpan, seen[r].begin, seen[r].end, weights + r * kSpan, &greatest[r],
                       &sum[r]);
  }
  // Units that every row sees whole go through the blocked product; those at the ragged ends row by row.
  int begin = (all.begin + Kv::kPack - 1) / Kv::kPack, end = max_int(begin, all.end / Kv::kPack);
  auto edge = [&](int r, int from, int to) {
    value_edge<Kv>(pages, max_int(from, seen[r].begin / Kv::kPack),
                   min_int(to, (seen[r].end + Kv::kPack - 1) / Kv::kPack), seen[r].begin, seen[r].end, head_dim,
                   weights + r * kSpan, work.values + r * kMaxHeadDim);
  };
  for (int r = 0; r < count; r++)
    if (!seen[r].empty()) edge(r, 0, begin);
  if (begin < end)
    for_row_blocks<kBlockRows>(count, [&]<int kRows>(int r) {
      value_rows<Kv, kRows>(pages, begin, end, head_dim, weights + r * kSpan, work.values + r * kMaxHeadDim);
    });
  for (int r = 0; r < count; r++)
    if (!seen[r].empty()) edge(r, end, kSpan);
}

void write_partial(float* row, const float* values, float greatest, float sum, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes) store(row + d, load(values + d));
  row[head_dim] = greatest;
  row[head_dim + 1] = sum;
}

template <class Kv, int kPieces>
void attend_tile(const Rows<Kv>& rows, int first_query, int queries, const Workspace& work) {
  const AttentionArgs& args = rows.args;
  const AttentionItem& item = rows.item;
  int head_dim = args.kv.head_dim, group = rows.group, count = queries * group;
  int64_t stride = head_dim + 2;
  bool whole = item.partial < 0;
  if (whole)
    for (int r = 0; r < count; r++) begin_fold(work.states + r * stride, head_dim);

  for (int span = item.span_begin; span < item.span_end; span++) {
    TokenRange seen = rows.visible(first_query, first_query + queries - 1, span);
    SpanPages pages;
    if (!seen.empty()) find_pages(args, item, span, seen.begin, seen.end, Kv::kPack, &pages);
    else if (whole) continue;
    int64_t partial = item.partial + int64_t(span - item.span_begin) * item.query_count * group +
                      (first_query - item.query_begin) * group;
    for (int first = 0; first < count; first += kRowsTogether) {
      float greatest[kRowsTogether], sum[kRowsTogether];
      int n = min_int(kRowsTogether, count - first);
      attend_span<Kv, kPieces>(rows, pages, span, first_query, first, n, work, greatest, sum);
      for (int r = 0; r < n; r++) {
        const float* values = work.values + r * kMaxHeadDim;
        if (whole) fold_span(work.states + (first + r) * stride, values, greatest[r], sum[r], head_dim);
        else write_partial(args.partials + (partial + first + r) * stride, values, greatest[r], sum[r], head_dim);
      }
    }
  }
  if (whole)
    for (int r = 0; r < count; r++) {
      int head = r % group;
      const float* sink = args.sinks ? args.sinks + item.kv_head * group + head : nullptr;
      finish_fold(work.states + r * stride, sink, head_dim,
                  args.out + rows.q_row(first_query + r / group) * args.out_stride + rows.column(head));
    }
}

template <class Kv, int kPieces>
void run_item(const AttentionArgs& args, const AttentionItem& item, uint8_t* scratch) {
  Rows<Kv> rows(args, item);
  Workspace work = carve(args, rows.group, scratch);
  int end = item.query_begin + item.query_count, step = tile_tokens(rows.group);
  for (int query = item.query_begin; query < end; query += step)
    attend_tile<Kv, kPieces>(rows, query, min_int(step, end - query), work);
}

template <class Kv>
void run_item_of(const AttentionArgs& args, const AttentionItem& item, uint8_t* scratch) {
  switch (args.kv.page_size) {
    case 4: return run_item<Kv, 4>(args, item, scratch);
    case 8: return run_item<Kv, 2>(args, item, scratch);
    default: return run_item<Kv, 1>(args, item, scratch);
  }
}

void attention(const AttentionArgs& args, const AttentionItem& item, uint8_t* scratch) {
  if (args.kv.type == KvType::f32) run_item_of<F32Kv>(args, item, scratch);
  else run_item_of<Bf16Kv>(args, item, scratch);
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  int head_dim = args.kv.head_dim, group = args.q_heads / args.kv.kv_heads, rows = merge.query_count * group;
  int64_t stride = head_dim + 2;
  for (int r = 0; r < rows; r++) {
    float state[kMaxHeadDim + 2];
    begin_fold(state, head_dim);
    for (int span = 0; span < merge.spans; span++) {
      const float* row = args.partials + (merge.first_partial + int64_t(span) * rows + r) * stride;
      fold_span(state, row, row[head_dim], row[head_dim + 1], head_dim);
    }
    int head = merge.kv_head * group + r % group;
    int64_t query = args.query_start[merge.seq] + merge.query_begin + r / group;
    finish_fold(state, args.sinks ? args.sinks + head : nullptr, head_dim,
                args.out + query * args.out_stride + head * head_dim);
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
