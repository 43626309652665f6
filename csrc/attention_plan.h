// How one step's attention is cut into items for the threads. Level independent; the cut never shows in the results
// (kernels.h, AttentionItem), so it may follow the number of threads freely.
#pragma once
#include <vector>

#include "kernels.h"
#include "shared_spans.h"

namespace octavo {

// The items of one step for all layers of one shape. Vectors are reused from step to step.
class AttentionPlan {
 public:
  // `window` as in AttentionArgs. `max_partial_rows` bounds the partial buffer, [max_partial_rows][head_dim + 2] floats:
  // where it is used up, items stay whole.
  AttentionPlan(const KvLayout& kv, int32_t q_heads, int32_t window, int threads, int64_t max_partial_rows);

  // query_start [seqs + 1], context_len [seqs], block_table [seqs][block_stride] as in AttentionArgs.
  void build(const int32_t* query_start, const int32_t* context_len, const int32_t* block_table, int64_t block_stride,
             int32_t seqs);

  // AttentionArgs.rows.
  const std::vector<AttentionRows>& rows() const { return rows_; }
  // To be claimed in this order (largest first). When all are done, the merges may run, in any order.
  const std::vector<AttentionItem>& items() const { return items_; }
  const std::vector<AttentionMerge>& merges() const { return merges_; }
  // Partial rows used by this step, at most max_partial_rows.
  int64_t partial_rows() const { return partial_rows_; }

 private:
  struct Tile {
    AttentionItem item;
    int64_t cost;
  };
  struct Sequence {
    int32_t seq, queries, context_len;
  };
  void find_shared(const int32_t* query_start, const int32_t* context_len, const int32_t* block_table,
                   int64_t block_stride, int32_t seqs);
  void join(const Sequence& sequence, int32_t shared);
  void add_shared(const SharedSpans::Group& group);
  void add_sequence(const Sequence& sequence);
  void add_tiles(AttentionItem item, int64_t tokens, int64_t rows, bool together);
  void give_partials(AttentionItem* item);
  void cut(const Tile& tile, int64_t cost_limit, int64_t cost_left);
  void cut_heads(const Tile& tile, int64_t cost_limit);
  void cut_spans(const Tile& tile, int64_t parts);

  int32_t group_, kv_heads_, heads_together_, span_blocks_, window_;
  int threads_;
  int64_t max_partial_rows_, partial_rows_ = 0, total_cost_ = 0;
  SharedSpans shared_;
  std::vector<int32_t> joined_;  // by sequence: its entry of rows_ if it shares spans, or -1
  std::vector<Tile> tiles_;
  std::vector<AttentionRows> rows_;
  std::vector<AttentionItem> items_;
  std::vector<AttentionMerge> merges_;
};

}  // namespace octavo
