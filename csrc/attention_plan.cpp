#include "attention_plan.h"

#include <algorithm>

namespace octavo {
namespace {

// Query rows (query x head of the group) in one item: enough to use the keys many times while they are in cache, few
// enough that the causal triangle and several threads balance.
constexpr int32_t kItemRows = 192;

// No item is larger than this share of a thread's part, so that no thread ends up long after the others.
constexpr int64_t kItemsPerThread = 4;

// Reading a token from memory takes about as long as multiplying it with this many rows (17 ns for a decode of 3 rows,
// 1.5 ns a row in a prefill, measured at avx512_bf16).
constexpr int64_t kRowsToReadKeys = 8;

}  // namespace

AttentionPlan::AttentionPlan(int32_t q_heads, int32_t kv_heads, int32_t window, int threads, int64_t max_partial_rows)
    : group_(q_heads / kv_heads), kv_heads_(kv_heads), window_(window), threads_(threads),
      max_partial_rows_(max_partial_rows) {}

void AttentionPlan::build(const int32_t* query_start, const int32_t* context_len, int32_t seqs) {
  tiles_.clear();
  items_.clear();
  merges_.clear();
  partial_rows_ = total_cost_ = 0;
  for (int32_t seq = 0; seq < seqs; seq++) add_tiles(seq, query_start[seq + 1] - query_start[seq], context_len[seq]);
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
  int64_t cost_limit = total_cost_ / (threads_ * kItemsPerThread);
  for (const Tile& tile : tiles_) cut(tile, threads_ > 1 ? cost_limit : total_cost_);
}

// One sequence as tiles of queries that see all their spans.
void AttentionPlan::add_tiles(int32_t seq, int32_t queries, int32_t context_len) {
  int32_t step = std::max(1, kItemRows / group_);
  for (int32_t query = 0; query < queries; query += step) {
    int32_t count = std::min(step, queries - query);
    int32_t first = context_len - queries + query, end = first + count;
    int32_t begin = window_ ? std::max(0, first - window_ + 1) : 0;
    int64_t cost = int64_t(end - begin) * (count * group_ + kRowsToReadKeys);
    for (int32_t head = 0; head < kv_heads_; head++) {
      tiles_.push_back({{seq, head, query, count, begin / kAttentionSpan,
                         (end + kAttentionSpan - 1) / kAttentionSpan, -1}, cost});
      total_cost_ += cost;
    }
  }
}

// A tile whose cost exceeds the limit becomes several items, each some of its spans.
void AttentionPlan::cut(const Tile& tile, int64_t cost_limit) {
  AttentionItem item = tile.item;
  int32_t spans = item.span_end - item.span_begin;
  int64_t parts = std::min<int64_t>(spans, (tile.cost + cost_limit - 1) / std::max<int64_t>(cost_limit, 1));
  int64_t rows = int64_t(item.query_count) * group_;
  if (parts <= 1 || partial_rows_ + rows * spans > max_partial_rows_) {
    items_.push_back(item);
    return;
  }
  merges_.push_back({item.seq, item.kv_head, item.query_begin, item.query_count, int32_t(partial_rows_), spans});
  for (int64_t part = 0; part < parts; part++) {
    item.span_begin = tile.item.span_begin + int32_t(spans * part / parts);
    item.span_end = tile.item.span_begin + int32_t(spans * (part + 1) / parts);
    item.partial = int32_t(partial_rows_ + rows * (item.span_begin - tile.item.span_begin));
    items_.push_back(item);
  }
  partial_rows_ += rows * spans;
}

}  // namespace octavo
