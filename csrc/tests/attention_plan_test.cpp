// The cut of a step's attention: everything is covered once, pieces are small enough, bounds hold.
#include "../attention_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "expect.h"

using namespace octavo;

namespace {

struct Batch {
  std::vector<int32_t> query_start{0}, context_len;
  void add(int queries, int context) {
    query_start.push_back(query_start.back() + queries);
    context_len.push_back(context);
  }
  int32_t seqs() const { return int32_t(context_len.size()); }
};

constexpr int kHeads = 9, kKvHeads = 3, kGroup = kHeads / kKvHeads;

KvLayout layout(int head_dim) { return {KvType::bf16, 16, kKvHeads, head_dim, 0, 0, nullptr}; }

int64_t cost(const AttentionItem& item) {
  return int64_t(item.span_end - item.span_begin) * (item.query_count * kGroup + 8) * item.kv_heads;
}

// Every (sequence, kv head, query, visible span) is in exactly one item; partial rows of different items are disjoint,
// and each merge finds all spans of its rows in order.
void check_cover(const AttentionPlan& plan, const Batch& batch, int window, int64_t max_partial_rows) {
  std::map<std::tuple<int, int, int>, std::set<int>> spans;  // (seq, head, query) -> spans
  std::set<int64_t> partial_rows;
  std::map<std::tuple<int, int, int>, int64_t> row_of;  // (seq, head, query) -> partial row of its first span
  for (const AttentionItem& item : plan.items())
    for (int span = item.span_begin; span < item.span_end; span++)
      for (int head = 0; head < item.kv_heads; head++)
        for (int query = 0; query < item.query_count; query++) {
          auto key = std::make_tuple(item.seq, item.kv_head + head, item.query_begin + query);
          bool added = spans[key].insert(span).second;
          EXPECT(added, "seq %d head %d query %d span %d twice", item.seq, item.kv_head + head, item.query_begin + query, span);
          for (int h = 0; h < kGroup && item.partial >= 0; h++) {
            int64_t row = item.partial + ((int64_t(span - item.span_begin) * item.kv_heads + head) * item.query_count + query) * kGroup + h;
            EXPECT(row < plan.partial_rows() && partial_rows.insert(row).second, "partial row %ld of %ld", long(row), long(plan.partial_rows()));
            if (h == 0 && (!row_of.count(key) || row < row_of[key])) row_of[key] = row;
          }
        }
  for (int seq = 0; seq < batch.seqs(); seq++) {
    int queries = batch.query_start[seq + 1] - batch.query_start[seq];
    for (int query = 0; query < queries; query++) {
      int position = batch.context_len[seq] - queries + query;
      int first = window ? std::max(0, position - window + 1) : 0;
      for (int head = 0; head < kKvHeads; head++) {
        const std::set<int>& got = spans[{seq, head, query}];
        bool all = !got.empty() && *got.begin() <= first / kAttentionSpan && *got.rbegin() >= position / kAttentionSpan &&
                   int(got.size()) == *got.rbegin() - *got.begin() + 1;
        EXPECT(all, "seq %d head %d query %d at %d: %zu spans", seq, head, query, position, got.size());
      }
    }
  }
  size_t merged = 0;
  for (const AttentionMerge& merge : plan.merges())
    for (int head = 0; head < merge.kv_heads; head++)
      for (int query = 0; query < merge.query_count; query++, merged++) {
        auto key = std::make_tuple(merge.seq, merge.kv_head + head, merge.query_begin + query);
        EXPECT(row_of.count(key) && row_of[key] == merge.first_partial + (head * merge.query_count + query) * kGroup &&
                   int(spans[key].size()) == merge.spans,
               "merge of seq %d head %d query %d", merge.seq, merge.kv_head + head, merge.query_begin + query);
      }
  EXPECT(merged == row_of.size(), "%zu rows merged, %zu have partials", merged, row_of.size());
  EXPECT(plan.partial_rows() <= max_partial_rows, "%ld partial rows", long(plan.partial_rows()));
}

void test_cover() {
  Random random(3);
  for (int round = 0; round < 200; round++) {
    Batch batch;
    for (int seqs = 1 + random.below(6); seqs > 0; seqs--) {
      int context = 1 + random.below(random.below(4) ? 600 : 6000);
      batch.add(random.below(2) ? 1 : 1 + random.below(std::min(context, 400)), context);
    }
    int window = random.below(3) ? 0 : 1 + random.below(1000);
    int64_t max_partial_rows = random.below(3) ? 1 << 20 : random.below(500);
    AttentionPlan plan(layout(random.below(2) ? 64 : 256), kHeads, window, 1 + random.below(9), max_partial_rows);
    plan.build(batch.query_start.data(), batch.context_len.data(), batch.seqs());
    check_cover(plan, batch, window, max_partial_rows);
    plan.build(batch.query_start.data(), batch.context_len.data(), batch.seqs());
    check_cover(plan, batch, window, max_partial_rows);
  }
}

// No item is more than a quarter of a thread's share, unless it can't be cut further; one thread needs no cut.
void test_balance() {
  for (int threads : {1, 2, 8}) {
    Batch batch;
    batch.add(1, 16000);
    batch.add(1, 200);
    AttentionPlan plan(layout(64), kHeads, 0, threads, 1 << 20);
    plan.build(batch.query_start.data(), batch.context_len.data(), batch.seqs());
    int64_t total = 0, largest = 0;
    for (const AttentionItem& item : plan.items()) total += cost(item), largest = std::max(largest, cost(item));
    if (threads == 1) EXPECT(plan.merges().empty(), "%zu merges for one thread", plan.merges().size());
    else EXPECT(largest * threads * 3 <= total, "%d threads: largest item %ld of %ld", threads, long(largest), long(total));
  }
  // Many equal sequences balance as they are.
  Batch crowd;
  for (int i = 0; i < 64; i++) crowd.add(1, 1000);
  AttentionPlan plan(layout(64), kHeads, 0, 2, 1 << 20);
  plan.build(crowd.query_start.data(), crowd.context_len.data(), crowd.seqs());
  EXPECT(plan.merges().empty() && plan.items().size() < 100, "%zu items, %zu merges", plan.items().size(), plan.merges().size());
  EXPECT(plan.items().front().kv_heads == kKvHeads, "heads that lie side by side are read apart");
  EXPECT(plan.items().back().kv_heads == 1, "the last item is %d heads", plan.items().back().kv_heads);
}

void test_order() {
  Batch batch;
  for (int i = 0; i < 20; i++) batch.add(1, 100 + 37 * (i % 7));
  batch.add(300, 900);
  AttentionPlan plan(layout(64), kHeads, 0, 2, 0);
  plan.build(batch.query_start.data(), batch.context_len.data(), batch.seqs());
  EXPECT(plan.items().front().seq == 20, "the chunk is not first but sequence %d", plan.items().front().seq);
  EXPECT(batch.context_len[plan.items().back().seq] == 100, "the shortest decode is not last");
}

}  // namespace

int main() {
  test_cover();
  test_balance();
  test_order();
  return report("attention_plan_test");
}
