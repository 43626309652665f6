// The cut of a step's attention: everything is covered once, pieces are small enough, bounds hold.
#include "../attention_plan.h"
#include "../kv.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "expect.h"

using namespace octavo;

namespace {

constexpr int kPageSize = 16, kSpanBlocks = kAttentionSpan / kPageSize, kMaxBlocks = 1024;

struct Batch {
  std::vector<int32_t> query_start{0}, context_len, block_table;
  int32_t pages = 0;
  // `like`: an earlier sequence, with which it shares the first `common` pages.
  void add(int queries, int context, int like = -1, int common = 0) {
    query_start.push_back(query_start.back() + queries);
    context_len.push_back(context);
    block_table.resize(context_len.size() * kMaxBlocks, -1);
    for (int block = 0; block * kPageSize < context; block++)
      blocks(seqs() - 1)[block] = block < common ? blocks(like)[block] : pages++;
  }
  int32_t* blocks(int seq) { return block_table.data() + seq * kMaxBlocks; }
  int32_t seqs() const { return int32_t(context_len.size()); }
  int queries(int seq) const { return query_start[seq + 1] - query_start[seq]; }
  void plan(AttentionPlan* plan) const {
    plan->build(query_start.data(), context_len.data(), block_table.data(), kMaxBlocks, seqs());
  }
};

constexpr int kHeads = 9, kKvHeads = 3, kGroup = kHeads / kKvHeads;

KvLayout layout(int head_dim) { return kv_layout(KvType::bf16, 1, 16, kKvHeads, head_dim); }

int64_t cost(const AttentionPlan& plan, const AttentionItem& item) {
  int64_t queries = 0;
  for (int i = item.rows_begin; i < item.rows_end; i++) queries += plan.rows()[i].query_count;
  return int64_t(item.span_end - item.span_begin) * (queries * kGroup + 8) * item.kv_heads;
}

int64_t partial_row(const AttentionRows& rows, int span, int head, int query) {
  return rows.partial + int64_t(span) * rows.span_rows + (int64_t(head) * rows.query_count + query) * kGroup;
}

// Sequences of one item have the same pages in its spans and see them whole.
void check_shared(const AttentionPlan& plan, Batch& batch, const AttentionItem& item) {
  int first = plan.rows()[item.rows_begin].seq;
  for (int i = item.rows_begin; i < item.rows_end && item.rows_end - item.rows_begin > 1; i++) {
    const AttentionRows& rows = plan.rows()[i];
    int position = batch.context_len[rows.seq] - batch.queries(rows.seq) + rows.query_begin;
    EXPECT(item.span_end * kAttentionSpan <= position + 1, "seq %d at %d in spans up to %d", rows.seq, position, item.span_end);
    bool same = std::equal(batch.blocks(first) + item.span_begin * kSpanBlocks, batch.blocks(first) + item.span_end * kSpanBlocks,
                           batch.blocks(rows.seq) + item.span_begin * kSpanBlocks);
    EXPECT(same, "seqs %d and %d in one item have different pages", first, rows.seq);
  }
}

// Every (sequence, kv head, query, visible span) is in exactly one item; partial rows of different items are disjoint,
// and each merge finds all spans of its rows in order.
void check_cover(const AttentionPlan& plan, Batch& batch, int window, int64_t max_partial_rows) {
  std::map<std::tuple<int, int, int>, std::map<int, int64_t>> spans;  // (seq, head, query) -> span -> partial row
  std::set<int64_t> partial_rows;
  for (const AttentionItem& item : plan.items()) {
    check_shared(plan, batch, item);
    for (int i = item.rows_begin; i < item.rows_end; i++)
      for (int span = item.span_begin; span < item.span_end; span++)
        for (int head = item.kv_head; head < item.kv_head + item.kv_heads; head++)
          for (int query = 0; query < plan.rows()[i].query_count; query++) {
            const AttentionRows& rows = plan.rows()[i];
            int64_t row = item.partial ? partial_row(rows, span, head, query) : -1;
            bool added = spans[{rows.seq, head, rows.query_begin + query}].emplace(span, row).second;
            EXPECT(added, "seq %d head %d query %d span %d twice", rows.seq, head, rows.query_begin + query, span);
            for (int h = 0; h < kGroup && item.partial; h++)
              EXPECT(row >= 0 && row + h < plan.partial_rows() && partial_rows.insert(row + h).second,
                     "partial row %ld of %ld", long(row + h), long(plan.partial_rows()));
          }
  }
  for (int seq = 0; seq < batch.seqs(); seq++) {
    int queries = batch.query_start[seq + 1] - batch.query_start[seq];
    for (int query = 0; query < queries; query++) {
      int position = batch.context_len[seq] - queries + query;
      int first = window ? std::max(0, position - window + 1) : 0;
      for (int head = 0; head < kKvHeads; head++) {
        const std::map<int, int64_t>& got = spans[{seq, head, query}];
        bool all = !got.empty() && got.begin()->first <= first / kAttentionSpan &&
                   got.rbegin()->first >= position / kAttentionSpan &&
                   int(got.size()) == got.rbegin()->first - got.begin()->first + 1;
        EXPECT(all, "seq %d head %d query %d at %d: %zu spans", seq, head, query, position, got.size());
      }
    }
  }
  std::set<std::tuple<int, int, int>> merged;
  for (const AttentionMerge& merge : plan.merges())
    for (int head = merge.kv_head; head < merge.kv_head + merge.kv_heads; head++)
      for (int query = 0; query < plan.rows()[merge.rows].query_count; query++) {
        const AttentionRows& rows = plan.rows()[merge.rows];
        std::tuple<int, int, int> key(rows.seq, head, rows.query_begin + query);
        std::map<int, int64_t> wanted;
        for (int span = merge.span_begin; span < merge.span_end; span++)
          wanted[span] = partial_row(rows, span, head, query);
        EXPECT(merged.insert(key).second && spans[key] == wanted, "merge of seq %d head %d query %d", rows.seq, head,
               rows.query_begin + query);
      }
  for (const auto& [key, rows] : spans)
    EXPECT((rows.begin()->second >= 0) == (merged.count(key) > 0), "seq %d has partials, but no merge", std::get<0>(key));
  EXPECT(plan.partial_rows() <= max_partial_rows, "%ld partial rows", long(plan.partial_rows()));
}

void test_cover() {
  Random random(3);
  for (int round = 0; round < 200; round++) {
    Batch batch;
    for (int seqs = 1 + random.below(6); seqs > 0; seqs--) {
      int context = 1 + random.below(random.below(4) ? 600 : 6000), like = -1, common = 0;
      if (batch.seqs() && random.below(2)) {
        like = random.below(batch.seqs());
        common = random.below(batch.context_len[like] / kPageSize + 1);
        context = common * kPageSize + 1 + random.below(random.below(2) ? 20 : 900);
      }
      batch.add(random.below(2) ? 1 : 1 + random.below(std::min(context, 400)), context, like, common);
    }
    int window = random.below(3) ? 0 : 1 + random.below(1000);
    int64_t max_partial_rows = random.below(3) ? 1 << 20 : random.below(500);
    AttentionPlan plan(layout(random.below(2) ? 64 : 256), kHeads, window, 1 + random.below(9), max_partial_rows);
    batch.plan(&plan);
    check_cover(plan, batch, window, max_partial_rows);
    batch.plan(&plan);
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
    batch.plan(&plan);
    int64_t total = 0, largest = 0;
    for (const AttentionItem& item : plan.items()) total += cost(plan, item), largest = std::max(largest, cost(plan, item));
    if (threads == 1) EXPECT(plan.merges().empty(), "%zu merges for one thread", plan.merges().size());
    else EXPECT(largest * threads * 3 <= total, "%d threads: largest item %ld of %ld", threads, long(largest), long(total));
  }
  // Many equal sequences balance as they are.
  Batch crowd;
  for (int i = 0; i < 64; i++) crowd.add(1, 1000);
  AttentionPlan plan(layout(64), kHeads, 0, 2, 1 << 20);
  crowd.plan(&plan);
  EXPECT(plan.merges().empty() && plan.items().size() < 100, "%zu items, %zu merges", plan.items().size(), plan.merges().size());
  EXPECT(plan.items().front().kv_heads == kKvHeads, "heads that lie side by side are read apart");
  EXPECT(plan.items().back().kv_heads == 1, "the last item is %d heads", plan.items().back().kv_heads);
}

void test_order() {
  Batch batch;
  for (int i = 0; i < 20; i++) batch.add(1, 100 + 37 * (i % 7));
  batch.add(300, 900);
  AttentionPlan plan(layout(64), kHeads, 0, 2, 0);
  batch.plan(&plan);
  auto seq = [&](const AttentionItem& item) { return plan.rows()[item.rows_begin].seq; };
  EXPECT(seq(plan.items().front()) == 20, "the chunk is not first but sequence %d", seq(plan.items().front()));
  EXPECT(batch.context_len[seq(plan.items().back())] == 100, "the shortest decode is not last");
}

// Reads of spans in a step: (item, kv head, span).
int64_t reads(const AttentionPlan& plan) {
  int64_t count = 0;
  for (const AttentionItem& item : plan.items()) count += int64_t(item.kv_heads) * (item.span_end - item.span_begin);
  return count;
}

// A span that sequences have in common is read once, also where some have more in common than others.
void test_shared_once() {
  for (int threads : {1, 2, 4}) {
    Batch batch;
    batch.add(1, 1060);
    for (int i = 1; i < 16; i++) batch.add(1, 1030 + i, 0, 1024 / kPageSize);
    AttentionPlan plan(layout(64), kHeads, 0, threads, 1 << 16);
    batch.plan(&plan);
    EXPECT(reads(plan) == kKvHeads * (4 + 16), "%d threads: %ld reads", threads, long(reads(plan)));
  }
  Batch tree;  // 2 spans of all, 3 more of one half, 1 more of the other
  tree.add(1, 1500);
  tree.add(1, 1000, 0, 2 * kSpanBlocks + 3);
  for (int i = 0; i < 6; i++) {
    tree.add(1, 1400, 0, 5 * kSpanBlocks);
    tree.add(2, 900, 1, 3 * kSpanBlocks + 1);
  }
  AttentionPlan plan(layout(64), kHeads, 0, 2, 1 << 16);
  tree.plan(&plan);
  EXPECT(reads(plan) == kKvHeads * (2 + 3 + 1 + 14), "a tree: %ld reads", long(reads(plan)));
  Batch chunks;  // too many rows to gain from it
  for (int i = 0; i < 3; i++) chunks.add(200, 1300, i ? 0 : -1, i ? 4 * kSpanBlocks : 0);
  chunks.plan(&plan);
  for (const AttentionItem& item : plan.items()) EXPECT(item.rows_end == item.rows_begin + 1, "large chunks share");
  Batch far;  // little in common, a lot apart
  for (int i = 0; i < 3; i++) far.add(1, 9000, i ? 0 : -1, i ? kSpanBlocks : 0);
  AttentionPlan single(layout(64), kHeads, 0, 1, 1 << 16);
  far.plan(&single);
  EXPECT(single.merges().empty(), "partial rows of 35 spans to save 2 reads");
}

}  // namespace

int main() {
  test_cover();
  test_balance();
  test_order();
  test_shared_once();
  return report("attention_plan_test");
}
