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

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

AttentionPlan::AttentionPlan(const KvLayout& kv, int32_t q_heads, int32_t window, int threads, int64_t max_partial_rows)
    : group_(q_heads / kv.kv_heads), kv_heads_(kv.kv_heads), window_(window), threads_(threads),
      max_partial_rows_(max_partial_rows) {
  int64_t span_bytes = int64_t(2) * kAttentionSpan * kv.head_dim * (kv.type == KvType::f32 ? 4 : 2);
  heads_together_ = int32_t(std::clamp<int64_t>(kSpanCacheBytes / span_bytes, 1, kv.kv_heads));
}

void AttentionPlan::build(const int32_t* query_start, const int32_t* context_len, int32_t seqs) {
  tiles_.clear();
  items_.clear();
  merges_.clear();
  partial_rows_ = total_cost_ = 0;
  for (int32_t seq = 0; seq < seqs; seq++) add_tiles(seq, query_start[seq + 1] - query_start[seq], context_len[seq]);
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
  int64_t cost_limit = threads_ > 1 ? total_cost_ / (threads_ * kItemsPerThread) : total_cost_, cost_left = total_cost_;
  for (const Tile& tile : tiles_) {
    cut(tile, std::max<int64_t>(cost_limit, 1), cost_left);
    cost_left -= tile.cost;
  }
}

// One sequence as tiles of queries that see all their spans.
void AttentionPlan::add_tiles(int32_t seq, int32_t queries, int32_t context_len) {
  int32_t step = std::max(1, kItemRows / group_);
  for (int32_t query = 0; query < queries; query += step) {
    int32_t count = std::min(step, queries - query);
    int32_t first = context_len - queries + query, end = first + count;
    int32_t begin = window_ ? std::max(0, first - window_ + 1) : 0;
    int32_t heads = count * group_ <= kFewRows ? heads_together_ : 1;
    for (int32_t head = 0; head < kv_heads_; head += heads) {
      int32_t n = std::min(heads, kv_heads_ - head);
      int64_t cost = int64_t(end - begin) * (count * group_ + kRowsToReadKeys) * n;
      tiles_.push_back({{seq, head, n, query, count, begin / kAttentionSpan, (end + kAttentionSpan - 1) / kAttentionSpan, -1},
                        cost});
      total_cost_ += cost;
    }
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
  int64_t rows = int64_t(item.kv_heads) * item.query_count * group_;
  parts = std::min<int64_t>(parts, spans);
  if (parts <= 1 || partial_rows_ + rows * spans > max_partial_rows_) {
    items_.push_back(item);
    return;
  }
  merges_.push_back({item.seq, item.kv_head, item.kv_heads, item.query_begin, item.query_count, int32_t(partial_rows_), spans});
  for (int64_t part = 0; part < parts; part++) {
    item.span_begin = tile.item.span_begin + int32_t(spans * part / parts);
    item.span_end = tile.item.span_begin + int32_t(spans * (part + 1) / parts);
    item.partial = int32_t(partial_rows_ + rows * (item.span_begin - tile.item.span_begin));
    items_.push_back(item);
  }
  partial_rows_ += rows * spans;
}

}  // namespace octavo
