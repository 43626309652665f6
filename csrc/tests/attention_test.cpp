// Attention against a double-precision reference, and bit for bit against itself however the work is cut.
#include "attention_world.h"

using namespace octavo;

namespace {

constexpr KvType kAllTypes[] = {KvType::f32, KvType::bf16, KvType::f16, KvType::int8};
static_assert(std::size(kAllTypes) == kKvTypeCount);

// One query head's result in double precision, from elements as stored.
std::vector<double> reference(const World& world, int seq, int query, int head, bool round_q) {
  const Shape& shape = world.shape;
  const Sequence& sequence = world.sequences[seq];
  int position = sequence.context - sequence.queries + query, kv_head = head / shape.group;
  int begin = shape.window ? std::max(0, position - shape.window + 1) : 0;
  std::vector<double> scores;
  double top = shape.sinks ? world.sinks[head] : -INFINITY;
  for (int token = begin; token <= position; token++) {
    double dot = 0;
    const std::vector<float>& key = world.stored.at({seq, token, 0, kv_head});
    for (int d = 0; d < shape.head_dim; d++) {
      float x = element(sequence.seed, 2, position, head, d);
      dot += double(round_q ? from_bf16(to_bf16(x)) : x) * key[d];
    }
    dot *= world.args.scale;
    if (shape.softcap > 0) dot = shape.softcap * tanh(dot / shape.softcap);
    scores.push_back(dot);
    top = std::max(top, dot);
  }
  double sum = shape.sinks ? exp(world.sinks[head] - top) : 0;
  std::vector<double> out(shape.head_dim);
  for (int token = begin; token <= position; token++) {
    double weight = exp(scores[token - begin] - top);
    sum += weight;
    const std::vector<float>& value = world.stored.at({seq, token, 1, kv_head});
    for (int d = 0; d < shape.head_dim; d++) out[d] += weight * value[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

void compare_with_reference(const KernelTable& level, World& world) {
  const Shape& shape = world.shape;
  bool rounds = !strcmp(level.level, "avx512_bf16") && shape.type == KvType::bf16;
  // With int8, q and weights are rounded to 16 bits.
  double tolerance = rounds ? 3e-3 : shape.type == KvType::int8 ? 1e-4 : 3e-6;
  world.run(level, 2);
  for (int seq = 0; seq < int(world.sequences.size()); seq++) {
    int queries = world.sequences[seq].queries;
    for (int query = 0; query < queries; query += std::max(1, queries / 3))
      for (int head = 0; head < world.args.q_heads; head += std::max(1, world.args.q_heads - 1)) {
        std::vector<double> want = reference(world, seq, query, head, rounds);
        double error = 0;
        for (int d = 0; d < shape.head_dim; d++)
          error = std::max(error, fabs(want[d] - world.out_row(seq, query)[head * shape.head_dim + d]) +
                                      (std::isnan(world.out_row(seq, query)[head * shape.head_dim + d]) ? 1 : 0));
        EXPECT(error < tolerance, "%s type %d page %d group %d head_dim %d window %d cap %g sinks %d seq %d query %d head %d: %g",
              level.level, int(shape.type), shape.page_size, shape.group, shape.head_dim, shape.window, shape.softcap,
              shape.sinks, seq, query, head, error);
      }
  }
}

// Every KV type, page size, width, group and mask against the reference, for chunks and decodes in one batch.
void test_reference(const KernelTable& level) {
  std::vector<Sequence> batch = {{1, 1, 1}, {300, 1, 2}, {37, 37, 3}, {530, 21, 4}, {513, 1, 5}, {70, 2, 6}};
  Shape base;
  for (KvType type : kAllTypes) {
    for (int page_size : {4, 8, 16, 32})
      for (int head_dim : {16, 32, 64, 96, 128, 256}) {
        Shape shape = base;
        shape.type = type, shape.page_size = page_size, shape.head_dim = head_dim;
        shape.kv_heads = head_dim > 96 ? 1 : 2;
        World world(shape, batch);
        compare_with_reference(level, world);
      }
    for (int group : {1, 3, 4, 7, 8, 17})
      for (int window : {0, 1, 33, 300}) {
        Shape shape = base;
        shape.type = type, shape.group = group, shape.window = window, shape.head_dim = 32, shape.page_size = 8;
        shape.softcap = group == 4 ? 20.0f : 0.0f;
        shape.sinks = group == 3;
        World world(shape, batch);
        compare_with_reference(level, world);
      }
  }
}

bool same_bits(const World& a, int seq_a, int query_a, const World& b, int seq_b, int query_b) {
  return !memcmp(a.out_row(seq_a, query_a), b.out_row(seq_b, query_b), size_t(a.q_width) * 4);
}

// Random cuts by heads, queries and spans of everything in the batch.
Cut random_cut(const World& world, Random& random) {
  Cut cut;
  for (int seq = 0; seq < int(world.sequences.size()); seq++)
    for (int head = 0, heads; head < world.shape.kv_heads; head += heads) {
      heads = 1 + random.below(world.shape.kv_heads - head);
      const Sequence& sequence = world.sequences[seq];
      for (int query = 0, count; query < sequence.queries; query += count) {
        count = 1 + random.below(random.below(2) ? 4 : sequence.queries);
        count = std::min(count, sequence.queries - query);
        int spans = (sequence.context - sequence.queries + query + count + kAttentionSpan - 1) / kAttentionSpan;
        int entry = int(cut.rows.size()), head_rows = count * world.shape.group, span_rows = heads * head_rows;
        cut.rows.push_back({seq, query, count, span_rows, cut.partial_rows - head * head_rows});
        if (random.below(3) == 0) {
          cut.items.push_back({head, heads, 0, spans, entry, entry + 1, false});
          continue;
        }
        cut.merges.push_back({entry, head, heads, 0, spans});
        for (int span = 0, n; span < spans; span += n) {
          n = 1 + random.below(spans - span);
          cut.items.push_back({head, heads, span, span + n, entry, entry + 1, true});
        }
        cut.partial_rows += int64_t(span_rows) * spans;
      }
    }
  for (size_t i = cut.items.size(); i > 1; i--) std::swap(cut.items[i - 1], cut.items[random.below(int(i))]);
  return cut;
}

// Promise 4: a row's bits do not depend on page size, chunking, cuts, threads or company.
void test_same_bits(const KernelTable& level, Shape shape) {
  const int context = 700, chunk = 700;
  World whole(shape, {{context, chunk, 9}});
  whole.run(level);

  for (int page_size : {4, 8, 16, 32}) {
    Shape other = shape;
    other.page_size = page_size;
    World world(other, {{context, chunk, 9}}, 7);
    world.run(level);
    EXPECT(!memcmp(world.out.data(), whole.out.data(), whole.out.size() * 4), "%s page size %d", level.level, page_size);
  }
  for (int length : {1, 2, 16, 17, 64, 255, 256, 257, 511, 512, 699, 700})
    for (int queries : {1, 3, 16, 64}) {
      if (queries > length) continue;
      World world(shape, {{50, 3, 20}, {length, queries, 9}, {300, 1, 21}}, uint64_t(length));
      world.run(level, 1 + length % 5);
      for (int query = 0; query < queries; query++)
        EXPECT(same_bits(world, 1, query, whole, 0, length - queries + query), "%s chunk of %d up to %d, row %d",
              level.level, queries, length, query);
    }
  Random random(5);
  for (int round = 0; round < 6; round++) {
    World world(shape, {{context, chunk, 9}, {257, 9, 22}});
    world.run(level, random_cut(world, random));
    EXPECT(!memcmp(world.out.data(), whole.out.data(), whole.out.size() * 4), "%s random cut %d", level.level, round);
  }
}

bool shares(const Cut& cut) {
  return std::any_of(cut.items.begin(), cut.items.end(), [](const AttentionItem& i) { return i.rows_end - i.rows_begin > 1; });
}

// The same tokens in the same pages or in pages of their own: nobody could tell. Among the sequences are some that share
// a part of a span only, some that share with some more than with others, chunks, and strangers.
void test_shared_pages(const KernelTable& level, Shape shape) {
  std::vector<Sequence> batch = {{1100, 1, 30}, {300, 1, 31}, {1040, 5, 32, 0, 1024}, {1057, 1, 33, 0, 1040},
                                 {1900, 1, 34, 0, 1024}, {1810, 2, 35, 4, 1795}, {700, 1, 36, 0, 600}, {530, 17, 37, 0, 512},
                                 {1024, 1, 38, 0, 1023}, {600, 90, 39, 0, 510}, {600, 1, 40}, {513, 1, 41, 10, 512}};
  World apart(shape, batch);
  apart.run(level);
  EXPECT(!shares(apart.plan(1)), "%s: pages are shared that nobody has in common", level.level);
  for (int page_size : {4, 8, 16, 32}) {
    shape.page_size = page_size;
    World world(shape, batch, uint64_t(page_size), true);
    for (int threads : {1, 2, 5}) {
      Cut cut = world.plan(threads);
      EXPECT(shares(cut) == (shape.window == 0), "%s: sharing with window %d", level.level, shape.window);
      world.run(level, cut);
      EXPECT(!memcmp(world.out.data(), apart.out.data(), apart.out.size() * 4), "%s type %d page size %d threads %d shared",
            level.level, int(shape.type), page_size, threads);
    }
    world.run(level, world.plan(2, 300));  // room for a few
    EXPECT(!memcmp(world.out.data(), apart.out.data(), apart.out.size() * 4), "%s page size %d partly shared", level.level,
          page_size);
  }
}

// Random families of sequences, each member like an earlier one up to somewhere.
void test_random_families(const KernelTable& level) {
  Random random(8);
  int sharing = 0;
  for (int round = 0; round < 12; round++) {
    Shape shape;
    shape.type = kAllTypes[round % kKvTypeCount];
    shape.page_size = 4 << random.below(4), shape.group = 1 + random.below(4), shape.head_dim = 16 << random.below(3);
    std::vector<Sequence> batch;
    for (int i = 0, n = 2 + random.below(20); i < n; i++) {
      int like = i ? random.below(i) : -1, most = i ? batch[like].context : 0;
      int common = random.below(4) && i ? random.below(most + 1) : 0;
      int own = 1 + random.below(300), queries = 1 + random.below(random.below(3) ? 1 : own);
      if (i == 0) own += 900;
      batch.push_back({common + own, queries, uint64_t(50 + i), common ? like : -1, common});
    }
    World apart(shape, batch, 1), together(shape, batch, 2, true);
    Cut cut = together.plan(1 + random.below(4));
    sharing += shares(cut);
    apart.run(level);
    together.run(level, cut);
    EXPECT(!memcmp(together.out.data(), apart.out.data(), apart.out.size() * 4), "%s family %d", level.level, round);
  }
  EXPECT(sharing > 3, "%s: %d of 12 families share", level.level, sharing);
}

// A token whose K and V have overflowed is the trouble of those that see it only: its predecessors in the same chunk
// have the bits that they would have had without it.
void test_broken_token(const KernelTable& level, const Shape& shape) {
  World sound(shape, {{400, 90, 9}}), broken(shape, {{400, 90, 9}});
  const int token = 351, first = 310;
  broken.put_token(0, int(broken.args.block_stride), token, INFINITY);
  sound.run(level);
  broken.run(level);
  for (int query = 0; query < 90; query++) {
    bool same = same_bits(sound, 0, query, broken, 0, query);
    EXPECT(same == (first + query < token), "%s position %d and a broken token at %d", level.level, first + query, token);
  }
}

// Where V has broken down in one part of its heads, the others' sums have the bits that they would have had without it.
void test_broken_part(const KernelTable& level, Shape shape) {
  shape.head_dim = 160;
  World sound(shape, {{400, 90, 9}}), broken(shape, {{400, 90, 9}});
  const int token = 351, first = 310, part = 1;
  int page = broken.block_table[token / shape.page_size], slot = token % shape.page_size;
  StoredHead head = head_at(broken.args.kv, broken.pool.get(), 1, page, 1, 0, slot);
  if (head.scales.empty()) return;
  head.scales[part] = 0x7fc0;
  put_head(broken.args.kv, broken.pool.get(), 1, page, 1, 0, slot, head);
  sound.run(level);
  broken.run(level);
  for (int query = 0; query < 90; query++)
    for (int d = 0; d < shape.head_dim; d++) {
      float with = broken.out_row(0, query)[d], without = sound.out_row(0, query)[d];
      bool touched = first + query >= token && d / kScaleNumbers == part;
      EXPECT(touched ? std::isnan(with) : with == without, "%s position %d dim %d: %g, without the broken part %g",
             level.level, first + query, d, with, without);
    }
}

void test_same_bits(const KernelTable& level) {
  for (KvType type : kAllTypes) {
    Shape shape;
    shape.type = type;
    test_same_bits(level, shape);
    test_broken_token(level, shape);
    test_broken_part(level, shape);
    test_shared_pages(level, shape);
    shape.window = 101, shape.group = 4, shape.kv_heads = 3, shape.head_dim = 48, shape.sinks = true;
    if (type == KvType::int8) shape.kv_heads = 2, shape.head_dim = 144;  // scales for 64, 64 and 16 numbers
    test_same_bits(level, shape);
    test_shared_pages(level, shape);
  }
  test_random_families(level);
}

}  // namespace

int main() {
  for (const KernelTable* level : all_levels()) {
    test_reference(*level);
    test_same_bits(*level);
  }
  return report("attention_test");
}
