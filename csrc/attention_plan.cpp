#include "attention_plan.h"

#include <algorithm>

namespace octavo {
namespace {

// Query rows (query x head of the group) in one item: enough to use the keys many times while they are in cache, few
// enough that the causal triangle and several threads balance.
constexpr int32_t kItemRows = 192;

// With no more rows than this a kv head is limited by memory: heads whose K and V lie side by side are then read by one
// item, as long as a span of theirs fits in a part of the second-level cache (it is fetched while another is worked on).
constexpr int32_t kFewRows = 12;
constexpr int64_t kSpanCacheBytes = 256 << 10;

// No item is larger than this share of a thread's part, so that no thread ends up long after the others; nor is one of
// the last items larger than this share of what is left.
constexpr int64_t kItemsPerThread = 4;

// Reading a token from memory takes about as long as multiplying it with this many rows (17 ns for a decode of 3 rows,
// 1.5 ns a row in a prefill, measured at avx512_bf16).
constexpr int64_t kRowsToReadKeys = 8;

// Sequences with at most this many rows read the pages that they share together; with more, reading is a small part of
// the work.
constexpr int32_t kSharedRows = 64;

// Partial rows cost something for every span: a sequence that shares less than one span in this many stays alone.
constexpr int32_t kSpansPerShared = 16;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

AttentionPlan::AttentionPlan(const KvLayout& kv, int32_t q_heads, int32_t window, int threads, int64_t max_partial_rows)
    : group_(q_heads / kv.kv_heads), kv_heads_(kv.kv_heads), span_blocks_(kAttentionSpan / kv.page_size), window_(window),
      threads_(threads), max_partial_rows_(max_partial_rows) {
  int64_t span_bytes = 2 * span_blocks_ * kv.plane_bytes;
  heads_together_ = int32_t(std::clamp<int64_t>(kSpanCacheBytes / span_bytes, 1, kv.kv_heads));
}

void AttentionPlan::build(const int32_t* query_start, const int32_t* context_len, const int32_t* block_table,
                          int64_t block_stride, int32_t seqs) {
  tiles_.clear();
  rows_.clear();
  items_.clear();
  merges_.clear();
  partial_rows_ = total_cost_ = 0;
  find_shared(query_start, context_len, block_table, block_stride, seqs);
  for (int32_t seq = 0; seq < seqs; seq++)
    if (joined_[size_t(seq)] < 0) add_sequence({seq, query_start[seq + 1] - query_start[seq], context_len[seq]});
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
  int64_t cost_limit = threads_ > 1 ? total_cost_ / (threads_ * kItemsPerThread) : total_cost_, cost_left = total_cost_;
  for (const Tile& tile : tiles_) {
    cut(tile, std::max<int64_t>(cost_limit, 1), cost_left);
    cost_left -= tile.cost;
  }
}

// Decodes and small chunks whose block tables begin alike, as tiles of all of them against the spans that they share and
// of each one alone against its others.
void AttentionPlan::find_shared(const int32_t* query_start, const int32_t* context_len, const int32_t* block_table,
                                int64_t block_stride, int32_t seqs) {
  joined_.assign(size_t(seqs), -1);
  shared_.clear();
  for (int32_t seq = 0; seq < seqs; seq++) {
    int32_t queries = query_start[seq + 1] - query_start[seq], whole = (context_len[seq] - queries + 1) / kAttentionSpan;
    bool all_visible = window_ == 0 || context_len[seq] <= window_;
    if (queries * group_ <= kSharedRows && whole > 0 && all_visible) shared_.add(seq, whole);
  }
  shared_.find(block_table, block_stride, span_blocks_);
  for (const SharedSpans::Member& member : shared_.members()) {
    int32_t queries = query_start[member.seq + 1] - query_start[member.seq];
    if (member.shared > 0) join({member.seq, queries, context_len[member.seq]}, member.shared);
  }
  for (const SharedSpans::Group& group : shared_.groups()) add_shared(group);
}

// Gives a sequence partial rows for all its spans, and a tile of those that it does not share.
void AttentionPlan::join(const Sequence& sequence, int32_t shared) {
  int32_t spans = int32_t(divide_up(sequence.context_len, kAttentionSpan)), rows = sequence.queries * group_;
  int64_t span_rows = int64_t(kv_heads_) * rows;
  if (spans > kSpansPerShared * shared || partial_rows_ + span_rows * spans > max_partial_rows_) return;
  int32_t entry = int32_t(rows_.size());
  joined_[size_t(sequence.seq)] = entry;
  rows_.push_back({sequence.seq, 0, sequence.queries, int32_t(span_rows), partial_rows_});
  merges_.push_back({entry, 0, kv_heads_, 0, spans});
  partial_rows_ += span_rows * spans;
  if (shared < spans)
    add_tiles({0, kv_heads_, shared, spans, entry, entry + 1, true}, sequence.context_len - shared * kAttentionSpan, rows,
              rows <= kFewRows);
}

void AttentionPlan::add_shared(const SharedSpans::Group& group) {
  int32_t begin = int32_t(rows_.size()), rows = 0;
  auto add = [&] {
    AttentionItem item = {0, kv_heads_, group.span_begin, group.span_end, begin, int32_t(rows_.size()), true};
    if (rows > 0) add_tiles(item, int64_t(group.span_end - group.span_begin) * kAttentionSpan, rows, true);
    begin = int32_t(rows_.size());
    rows = 0;
  };
  for (size_t i = group.begin; i < group.end; i++) {
    int32_t entry = joined_[size_t(shared_.members()[i].seq)];
    if (entry < 0) continue;
    AttentionRows own = rows_[size_t(entry)];
    if (rows + own.query_count * group_ > kItemRows) add();
    rows_.push_back(own);
    rows += own.query_count * group_;
  }
  add();
}

// One sequence as tiles of queries that see all their spans.
void AttentionPlan::add_sequence(const Sequence& sequence) {
  int32_t step = std::max(1, kItemRows / group_);
  for (int32_t query = 0; query < sequence.queries; query += step) {
    int32_t count = std::min(step, sequence.queries - query), entry = int32_t(rows_.size());
    int32_t first = sequence.context_len - sequence.queries + query, end = first + count;
    int32_t begin = window_ ? std::max(0, first - window_ + 1) : 0;
    rows_.push_back({sequence.seq, query, count, 0, 0});
    add_tiles({0, kv_heads_, begin / kAttentionSpan, int32_t(divide_up(end, kAttentionSpan)), entry, entry + 1, false},
              end - begin, count * group_, count * group_ <= kFewRows);
  }
}

// `item` for all kv heads as tiles for some of them each: `rows` rows a head against `tokens` tokens.
void AttentionPlan::add_tiles(AttentionItem item, int64_t tokens, int64_t rows, bool together) {
  int32_t heads = together ? heads_together_ : 1;
  for (int32_t head = 0; head < kv_heads_; head += heads) {
    item.kv_head = head;
    item.kv_heads = std::min(heads, kv_heads_ - head);
    int64_t cost = tokens * (rows + kRowsToReadKeys) * item.kv_heads;
    tiles_.push_back({item, cost});
    total_cost_ += cost;
  }
}

// Spans are cut first, which leaves heads that lie side by side together; heads where there are too few spans, and in
// the last tiles, so that all threads finish at about the same time.
void AttentionPlan::cut(const Tile& tile, int64_t cost_limit, int64_t cost_left) {
  int64_t parts = divide_up(tile.cost, cost_limit);
  bool last = threads_ > 1 && tile.cost * kItemsPerThread * threads_ > cost_left;
  if (tile.item.kv_heads > 1 && (last || parts > tile.item.span_end - tile.item.span_begin))
    cut_heads(tile, cost_limit);
  else
    cut_spans(tile, parts);
}

void AttentionPlan::cut_heads(const Tile& tile, int64_t cost_limit) {
  Tile one = tile;
  one.cost = tile.cost / tile.item.kv_heads;
  one.item.kv_heads = 1;
  for (int32_t head = 0; head < tile.item.kv_heads; head++) {
    one.item.kv_head = tile.item.kv_head + head;
    cut_spans(one, divide_up(one.cost, cost_limit));
  }
}

void AttentionPlan::cut_spans(const Tile& tile, int64_t parts) {
  AttentionItem item = tile.item;
  int32_t spans = item.span_end - item.span_begin;
  parts = std::min<int64_t>(parts, spans);
  if (parts > 1 && !item.partial) give_partials(&item);
  if (parts <= 1 || !item.partial) {
    items_.push_back(item);
    return;
  }
  for (int64_t part = 0; part < parts; part++) {
    item.span_begin = tile.item.span_begin + int32_t(spans * part / parts);
    item.span_end = tile.item.span_begin + int32_t(spans * (part + 1) / parts);
    items_.push_back(item);
  }
}

// Makes an item of one sequence partial, if there are partial rows left for it.
void AttentionPlan::give_partials(AttentionItem* item) {
  AttentionRows rows = rows_[size_t(item->rows_begin)];
  int64_t head_rows = int64_t(rows.query_count) * group_, span_rows = head_rows * item->kv_heads;
  int64_t spans = item->span_end - item->span_begin;
  if (partial_rows_ + span_rows * spans > max_partial_rows_) return;
  rows.span_rows = int32_t(span_rows);
  rows.partial = partial_rows_ - item->span_begin * span_rows - item->kv_head * head_rows;
  partial_rows_ += span_rows * spans;
  item->rows_begin = int32_t(rows_.size());
  item->rows_end = item->rows_begin + 1;
  item->partial = true;
  rows_.push_back(rows);
  merges_.push_back({item->rows_begin, item->kv_head, item->kv_heads, item->span_begin, item->span_end});
}

}  // namespace octavo
