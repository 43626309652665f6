// A batch of sequences with random K and V in scattered pages of a poisoned pool, for tests and benchmarks of attention.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "../attention_plan.h"
#include "expect.h"
#include "stored_kv.h"

namespace octavo {

struct Shape {
  KvType type = KvType::bf16;
  int page_size = 16, group = 3, kv_heads = 2, head_dim = 64, window = 0;
  float softcap = 0;
  bool sinks = false;
};

struct Sequence {
  int context, queries;
  uint64_t seed;  // of its contents: the same sequence in another batch has the same K, V and q
  int like = -1, common = 0;  // its first `common` tokens are those of the earlier sequence `like`
};

// How a step is cut, as the kernels take it.
struct Cut {
  std::vector<AttentionRows> rows;
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
  int64_t partial_rows = 0;
};

// Value `which` (0: K, 1: V, 2: q) of one element, before it is stored.
inline float element(uint64_t seed, int which, int token, int head, int d) {
  Random random(((((seed * 3 + which) * 1000003 + token) * 257 + head) * 1009) + d);
  random.bits();
  return random.uniform() * (which == 2 ? 4.0f : 1.0f);
}

struct World {
  Shape shape;
  std::vector<Sequence> sequences;
  std::vector<int32_t> query_start{0}, context_len, block_table;
  std::vector<float> q, out, sinks, partials;
  std::unique_ptr<uint8_t[]> pool;
  std::map<std::array<int, 4>, std::vector<float>> stored;  // [seq, token, K|V, kv head]: what its numbers stand for
  AttentionArgs args{};
  int q_width;

  // `share`: pages full of tokens that a sequence has in common with another are the other's.
  World(const Shape& s, std::vector<Sequence> seqs, uint64_t page_order = 1, bool share = false)
      : shape(s), sequences(std::move(seqs)) {
    q_width = s.group * s.kv_heads * s.head_dim;
    int blocks = 0, pages = 0;
    for (const Sequence& sequence : sequences) {
      int used = (sequence.context + s.page_size - 1) / s.page_size;
      blocks = std::max(blocks, used);
      pages += used;
      query_start.push_back(query_start.back() + sequence.queries);
      context_len.push_back(sequence.context);
    }
    KvLayout& kv = args.kv;
    kv = kv_layout(s.type, 2, s.page_size, s.kv_heads, s.head_dim);
    pool.reset(new uint8_t[size_t(pages) * kv.page_bytes]);
    memset(pool.get(), 0xff, size_t(pages) * kv.page_bytes);  // NaN in every type, of scales too
    kv.base = pool.get();

    std::vector<int32_t> order(pages);
    for (int i = 0; i < pages; i++) order[i] = i;
    Random random(page_order);
    for (int i = pages - 1; i > 0; i--) std::swap(order[i], order[random.below(i + 1)]);
    block_table.assign(sequences.size() * blocks, -1);
    int next = 0;
    for (size_t i = 0; i < sequences.size(); i++) {
      const Sequence& sequence = sequences[i];
      int first_seen = s.window ? std::max(0, sequence.context - sequence.queries - s.window + 1) : 0;
      for (int block = 0; block * s.page_size < sequence.context; block++) {
        if ((block + 1) * s.page_size <= first_seen) continue;  // behind the window: freed
        int32_t* page = &block_table[i * blocks + block];
        if (share && (block + 1) * s.page_size <= sequence.common) *page = block_table[sequence.like * blocks + block];
        if (*page < 0) *page = order[next++];
      }
      for (int token = first_seen; token < sequence.context; token++) put_token(int(i), blocks, token);
      for (int query = 0; query < sequence.queries; query++)
        for (int h = 0; h < s.group * s.kv_heads; h++)
          for (int d = 0; d < s.head_dim; d++)
            q.push_back(element(sequence.seed, 2, sequence.context - sequence.queries + query, h, d));
    }
    out.assign(q.size(), NAN);
    for (int h = 0; h < s.group * s.kv_heads; h++) sinks.push_back(0.7f * float(h % 5) - 1.0f);
    args.layer = 1;
    args.q_heads = s.group * s.kv_heads;
    args.scale = 1.0f / sqrtf(float(s.head_dim));
    args.softcap = s.softcap;
    args.window = s.window;
    args.sinks = s.sinks ? sinks.data() : nullptr;
    args.q = q.data();
    args.out = out.data();
    args.q_stride = args.out_stride = q_width;
    args.query_start = query_start.data();
    args.context_len = context_len.data();
    args.block_table = block_table.data();
    args.block_stride = blocks;
  }

  // Seed of a token's K and V.
  uint64_t seed_of(int seq, int token) const {
    while (token < sequences[seq].common) seq = sequences[seq].like;
    return sequences[seq].seed;
  }

  // Writes a token's random K and V, times `factor`, independently of rope_store.
  void put_token(int seq, int blocks, int token, float factor = 1) {
    int32_t page = block_table[seq * blocks + token / shape.page_size];
    std::vector<float> values(size_t(shape.head_dim));
    for (int which = 0; which < 2; which++)
      for (int h = 0; h < shape.kv_heads; h++) {
        for (int d = 0; d < shape.head_dim; d++) values[d] = factor * element(seed_of(seq, token), which, token, h, d);
        StoredHead head = stored_head(shape.type, values);
        put_head(args.kv, args.kv.base, 1, page, which, h, token % shape.page_size, head);
        stored[{seq, token, which, h}] = std::move(head.values);
      }
  }

  void run(const KernelTable& level, const Cut& cut) {
    std::fill(out.begin(), out.end(), NAN);
    partials.assign(size_t(cut.partial_rows) * (shape.head_dim + 2), NAN);
    args.partials = partials.data();
    args.rows = cut.rows.data();
    int64_t bytes = level.attention_scratch_bytes(args.kv, args.q_heads);
    std::unique_ptr<uint8_t, void (*)(void*)> scratch((uint8_t*)aligned_alloc(64, size_t(bytes + 63) / 64 * 64), free);
    memset(scratch.get(), 0xff, size_t(bytes));
    // Any item may follow, or none: what is fetched ahead never shows.
    for (size_t i = 0; i < cut.items.size(); i++)
      level.attention(args, cut.items[i], i % 4 == 3 ? nullptr : &cut.items[(i * 7 + 1) % cut.items.size()], scratch.get());
    for (const AttentionMerge& merge : cut.merges) level.attention_merge(args, merge);
  }

  Cut plan(int threads, int64_t max_partial_rows = 1 << 20) const {
    AttentionPlan plan(args.kv, args.q_heads, shape.window, threads, max_partial_rows);
    plan.build(query_start.data(), context_len.data(), block_table.data(), args.block_stride, int32_t(sequences.size()));
    return {plan.rows(), plan.items(), plan.merges(), plan.partial_rows()};
  }

  void run(const KernelTable& level, int threads = 1) { run(level, plan(threads)); }

  const float* out_row(int seq, int query) const { return out.data() + int64_t(query_start[seq] + query) * q_width; }
};

}  // namespace octavo
