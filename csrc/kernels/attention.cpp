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

// A query of a tile.
struct TileQuery {
  int64_t row;       // of q and out
  int64_t partial;   // partial row of (span 0, kv head 0, this query, head 0 of the group)
  int32_t head_rows, span_rows;  // from one kv head, and one span, to the next
  int32_t position;  // absolute
};

// A thread's scratch.
struct Workspace {
  const uint8_t** fetched;  // first line of what has been fetched for the next span, which may lie in the next call
  TileQuery* queries;  // of the tile
  FoldRows state;    // of the tile's rows
  FoldRows span;     // of kRowsTogether rows
  TokenScales* scales;  // of a span of one head
  float* query_units;   // [the tile's rows of one head] what an operand of q counts
  float* scores;     // [kRowsTogether][kSpan]
  uint8_t* weights;  // operands [part][kRowsTogether][kSpan]
  uint8_t* q;        // operands [the tile's rows of one head][kMaxHeadDim]
  uint8_t *keys, *values;  // a span of one head, copied (copy_span)
};

// Bytes of a number in a thread's copies of K and of V; 0: there are none.
struct CopySizes {
  int keys, values;
};
template <class Kv>
constexpr CopySizes copy_sizes(int page_size) {
  bool widened = kWidening<Kv> > 1;
  return {widened || page_size < kLanes ? 4 / Kv::Wide::kPack : 0, widened ? 4 / Kv::Wide::kPack : 0};
}
// By KvType.
using SizesOfPage = CopySizes (*)(int);
constexpr SizesOfPage kCopySizes[] = {copy_sizes<F32Kv>, copy_sizes<Bf16Kv>, copy_sizes<F16Kv>, copy_sizes<Int8Kv>};
static_assert(sizeof(kCopySizes) / sizeof(SizesOfPage) == kKvTypeCount);

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
  work->queries = (TileQuery*)take(int64_t(tile_queries(group)) * int64_t(sizeof(TileQuery)) / 4);
  work->state = {(float*)take(rows * kv.head_dim), kv.head_dim, (float*)take(rows), (float*)take(rows)};
  work->span = {(float*)take(kRowsTogether * kMaxHeadDim), kMaxHeadDim, (float*)take(kRowsTogether),
                (float*)take(kRowsTogether)};
  work->scales = (TokenScales*)take(int64_t(sizeof(TokenScales)) / 4);
  work->query_units = (float*)take(rows);
  work->scores = (float*)take(kRowsTogether * kSpan);
  work->weights = take(max_int(1, kv.head_scales) * kWeightsOfPart);
  work->q = take(rows * kMaxHeadDim);
  CopySizes copies = kCopySizes[int(kv.type)](kv.page_size);
  work->keys = take(int64_t(kSpan) * kv.head_dim * copies.keys / 4);
  work->values = take(int64_t(kSpan) * kv.head_dim * copies.values / 4);
  return used;
}

int64_t attention_scratch_bytes(const KvLayout& kv, int32_t q_heads) {
  Workspace work;
  return lay_out(kv, q_heads / kv.kv_heads, nullptr, &work);
}

int first_position(const AttentionArgs& args, const AttentionRows& rows) {
  return args.context_len[rows.seq] - (args.query_start[rows.seq + 1] - args.query_start[rows.seq]) + rows.query_begin;
}

// Tokens of the span that any query at the positions [first, last] sees.
TokenRange visible_between(const AttentionArgs& args, int first, int last, int span) {
  int begin = args.window ? first - args.window + 1 : 0;
  return {max_int(begin - span * kSpan, 0), min_int(last + 1 - span * kSpan, kSpan)};
}

// The `offset`-th query of these rows.
TileQuery query_at(const AttentionArgs& args, const AttentionRows& rows, int group, int offset) {
  return {int64_t(args.query_start[rows.seq]) + rows.query_begin + offset, rows.partial + int64_t(offset) * group,
          rows.query_count * group, rows.span_rows, first_position(args, rows) + offset};
}

// Rows that go through their spans together: `count` of each of the kv heads [kv_head, kv_head + kv_heads). Row r of a
// head is query r / group, query head r % group of the group.
struct Tile {
  const AttentionArgs& args;
  const TileQuery* query;
  int seq;  // whose block table leads to the pages
  int kv_head, kv_heads, group, count, first, last;

  Tile(const AttentionArgs& a, const TileQuery* list, int queries, int any_seq, int first_head, int heads)
      : args(a), query(list), seq(any_seq), kv_head(first_head), kv_heads(heads), group(a.q_heads / a.kv.kv_heads),
        count(queries * group), first(list[0].position), last(list[0].position) {
    for (int i = 1; i < queries; i++) {
      first = min_int(first, list[i].position);
      last = max_int(last, list[i].position);
    }
  }
  TokenRange visible(int span) const { return visible_between(args, first, last, span); }
};

// A row of a tile, and the way to the next without a division.
struct TileRow {
  const Tile& tile;
  const TileQuery* query;
  int member;  // which query head of the group

  TileRow(const Tile& t, int row) : tile(t), query(t.query + row / t.group), member(row % t.group) {}
  void next() {
    if (++member < tile.group) return;
    member = 0;
    query++;
  }
  TokenRange visible(int span) const { return visible_between(tile.args, query->position, query->position, span); }
  int64_t column(int head) const { return int64_t(head * tile.group + member) * tile.args.kv.head_dim; }
  const float* q(int head) const { return tile.args.q + query->row * tile.args.q_stride + column(head); }
  float* partial(int span, int head) const {
    int64_t at = query->partial + int64_t(span) * query->span_rows + int64_t(head) * query->head_rows + member;
    return tile.args.partials + at * (tile.args.kv.head_dim + 2);
  }
  void finish(int head, const float* values, float greatest, float sum) const {
    const AttentionArgs& args = tile.args;
    finish_fold(values, greatest, sum, args.sinks ? args.sinks + head * tile.group + member : nullptr, args.kv.head_dim,
                args.out + query->row * args.out_stride + column(head));
  }
};

// One head's rows as operands: once a head, not once a span, where a tile has only one.
template <class Kv>
void prepare_queries(const Tile& tile, int head, const Workspace& work) {
  typename Kv::Operand* q = (typename Kv::Operand*)work.q;
  f32x16 factor = set1(q_factor(tile.args));
  int head_dim = tile.args.kv.head_dim;
  TileRow row(tile, 0);
  for (int r = 0; r < tile.count; r++, row.next(), q += kMaxHeadDim)
    work.query_units[r] = Kv::to_query(q, row.q(head), factor, head_dim);
}

// Rows [first, first + count) of one prepared head against one span -> work.span. `pages` lead to that head.
template <class Kv>
void attend_span(const Tile& tile, const SpanPages& pages, int span, int first, int count, Fetch* fetch,
                 const Workspace& work) {
  using Operand = typename Kv::Operand;
  const AttentionArgs& args = tile.args;
  int head_dim = args.kv.head_dim;
  const Operand* q = (const Operand*)work.q + first * kMaxHeadDim;
  Operand* weights = (Operand*)work.weights;
  TokenRange seen[kRowsTogether] = {}, any{kSpan, 0}, all{0, kSpan};
  begin_fold(work.span, count, head_dim);
  TileRow row(tile, first);
  for (int r = 0; r < count; r++, row.next()) {
    seen[r] = row.visible(span);
    all = {max_int(all.begin, seen[r].begin), min_int(all.end, seen[r].end)};
    if (!seen[r].empty()) any = {min_int(any.begin, seen[r].begin), max_int(any.end, seen[r].end)};
  }
  for_row_blocks(any.empty() ? 0 : count, [&]<int kRows>(int r) {
    ScoreRows<Kv> rows = {q + r * kMaxHeadDim, work.query_units + first + r, work.scales, work.scores + r * kSpan};
    score_rows<Kv, kRows>(pages, any, head_dim, rows, unless_done(fetch));
  });
  Weighed weighed[kRowsTogether];
  weigh_rows<Kv>(args.softcap, *work.scales, work.scores, seen, count, head_dim, weights, kWeightsOfPart,
                 work.span.greatest, weighed);

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
                          unless_done(fetch));
  });
  edges(end, kSpan);
  for (int r = 0; r < count; r++)
    if (!seen[r].empty()) {
      work.span.sum[r] = weighed[r].sum;
      Kv::finish_values(work.span.values + r * kMaxHeadDim, weighed[r], head_dim);
    }
}

void write_partials(const Tile& tile, int span, int head, int first, int rows, const FoldRows& from) {
  int head_dim = tile.args.kv.head_dim;
  TileRow row(tile, first);
  for (int r = 0; r < rows; r++, row.next()) {
    float* to = row.partial(span, head);
    memcpy(to, from.values + r * from.stride, size_t(head_dim) * 4);
    to[head_dim] = from.greatest[r];
    to[head_dim + 1] = from.sum[r];
  }
}

// The first span of the item that follows.
Fetch fetch_next(const AttentionArgs& args, const AttentionItem& next) {
  const AttentionRows& rows = args.rows[next.rows_begin];  // others of the item see the same
  int first = first_position(args, rows);
  TokenRange seen = visible_between(args, first, first + rows.query_count - 1, next.span_begin);
  if (seen.empty()) return {};
  return begin_fetch(args, rows.seq, next.kv_head, next.kv_heads, next.span_begin, seen);
}

// What will be read after this span: the tile's next one, or the next item.
Fetch fetch_after(const Tile& tile, const AttentionItem& item, const AttentionItem* next, int span) {
  if (span + 1 == item.span_end) return next ? fetch_next(tile.args, *next) : Fetch();
  TokenRange seen = tile.visible(span + 1);
  if (seen.empty()) return {};
  return begin_fetch(tile.args, tile.seq, tile.kv_head, tile.kv_heads, span + 1, seen);
}

// One head of a tile against one span: folded into the tile's state, or left as partial rows.
template <class Kv>
void attend_head(const Tile& tile, const SpanPages& pages, int span, int head, bool partial, Fetch* fetch,
                 const Workspace& work) {
  int state_row = (head - tile.kv_head) * tile.count;
  for (int first = 0; first < tile.count; first += kRowsTogether) {
    int n = min_int(kRowsTogether, tile.count - first);
    attend_span<Kv>(tile, pages, span, first, n, fetch, work);
    if (partial) write_partials(tile, span, head, first, n, work.span);
    else fold_span(rows_from(work.state, state_row + first), work.span, n, tile.args.kv.head_dim);
  }
}

// Part of an item: some of its queries, all or one of its kv heads.
template <class Kv>
void attend_tile(const Tile& tile, const AttentionItem& item, const AttentionItem* next, const Workspace& work) {
  const AttentionArgs& args = tile.args;
  int rows = tile.kv_heads * tile.count, head_dim = args.kv.head_dim;
  bool few = tile.count <= kRowsTogether;
  int prepared = -1;
  if (!item.partial) begin_fold(work.state, rows, head_dim);
  for (int span = item.span_begin; span < item.span_end; span++) {
    TokenRange seen = tile.visible(span);
    if (!item.partial && seen.empty()) continue;
    SpanPages pages;
    Fetch fetch;
    if (!seen.empty()) {
      find_pages(args, tile.seq, span, seen, Kv::kPack, &pages);
      const uint8_t* first = first_line(begin_fetch(args, tile.seq, tile.kv_head, tile.kv_heads, span, seen));
      pages.fetch_values = few && first != *work.fetched;
      fetch = fetch_after(tile, item, next, span);
      *work.fetched = first_line(fetch);
      spread_over(tile.count, &fetch);
      Kv::fetch_scales(args.kv, args.layer, fetch.block, fetch.last_block);
    }
    for (int head = tile.kv_head; head < tile.kv_head + tile.kv_heads; head++) {
      pages.key_head = pages.value_head = head * args.kv.plane_bytes;
      if (head != prepared) prepare_queries<Kv>(tile, prepared = head, work);
      Kv::load_scales(args.kv, args.layer, span_blocks(args, tile.seq, span), head, seen, work.scales);
      if (few || seen.empty()) {
        attend_head<Kv>(tile, pages, span, head, item.partial, &fetch, work);
        continue;
      }
      SpanPages copied = pages;
      copy_span<Kv>(seen, head_dim, work.keys, work.values, &copied);
      attend_head<typename Kv::Wide>(tile, copied, span, head, item.partial, &fetch, work);
    }
  }
  if (item.partial) return;
  int r = 0;
  for (int head = tile.kv_head; head < tile.kv_head + tile.kv_heads; head++)
    for (TileRow row(tile, 0); row.query < tile.query + tile.count / tile.group; row.next(), r++)
      row.finish(head, work.state.values + r * work.state.stride, work.state.greatest[r], work.state.sum[r]);
}

// `queries` of an item, as one tile if a thread has room for the states of all heads.
template <class Kv>
void attend_queries(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, int queries, int seq,
                    const Workspace& work) {
  if (item.partial || queries * item.kv_heads <= tile_queries(args.q_heads / args.kv.kv_heads))
    return attend_tile<Kv>(Tile(args, work.queries, queries, seq, item.kv_head, item.kv_heads), item, next, work);
  for (int head = item.kv_head; head < item.kv_head + item.kv_heads; head++)
    attend_tile<Kv>(Tile(args, work.queries, queries, seq, head, 1), item, nullptr, work);
}

template <class Kv>
void run_item(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, uint8_t* scratch) {
  Workspace work;
  int group = args.q_heads / args.kv.kv_heads, most = tile_queries(group), queries = 0, left = 0;
  lay_out(args.kv, group, scratch, &work);
  int seq = args.rows[item.rows_begin].seq;
  for (int i = item.rows_begin; i < item.rows_end; i++) left += args.rows[i].query_count;
  for (int i = item.rows_begin; i < item.rows_end; i++)
    for (int offset = 0; offset < args.rows[i].query_count; offset++) {
      work.queries[queries++] = query_at(args, args.rows[i], group, offset);
      left--;
      if (left && queries < most) continue;
      attend_queries<Kv>(args, item, left ? nullptr : next, queries, seq, work);
      queries = 0;
    }
}

// By KvType.
using RunItem = void (*)(const AttentionArgs&, const AttentionItem&, const AttentionItem*, uint8_t*);
constexpr RunItem kRunItem[] = {run_item<F32Kv>, run_item<Bf16Kv>, run_item<F16Kv>, run_item<Int8Kv>};
static_assert(sizeof(kRunItem) / sizeof(RunItem) == kKvTypeCount);

void attention(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, uint8_t* scratch) {
  kRunItem[int(args.kv.type)](args, item, next, scratch);
}

// Partial rows of one query and kv head lie side by side; up to a vector's lanes of them are folded together.
void merge_rows(const TileRow& from, int head, int rows, const AttentionMerge& merge) {
  int head_dim = from.tile.args.kv.head_dim, stride = head_dim + 2;
  float values[kLanes * kMaxHeadDim], greatest[kLanes], sum[kLanes];
  FoldRows state = {values, kMaxHeadDim, greatest, sum};
  begin_fold(state, rows, head_dim);
  for (int span = merge.span_begin; span < merge.span_end; span++) {
    float *partials = from.partial(span, head), span_greatest[kLanes], span_sum[kLanes];
    for (int r = 0; r < rows; r++) {
      span_greatest[r] = partials[r * stride + head_dim];
      span_sum[r] = partials[r * stride + head_dim + 1];
    }
    fold_span(state, {partials, stride, span_greatest, span_sum}, rows, head_dim);
  }
  TileRow row = from;
  for (int r = 0; r < rows; r++, row.next()) row.finish(head, values + r * kMaxHeadDim, greatest[r], sum[r]);
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  const AttentionRows& rows = args.rows[merge.rows];
  int group = args.q_heads / args.kv.kv_heads;
  for (int head = merge.kv_head; head < merge.kv_head + merge.kv_heads; head++)
    for (int offset = 0; offset < rows.query_count; offset++) {
      TileQuery query = query_at(args, rows, group, offset);
      Tile tile(args, &query, 1, rows.seq, head, 1);
      for (int first = 0; first < group; first += kLanes)
        merge_rows(TileRow(tile, first), head, min_int(kLanes, group - first), merge);
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
