// Attention against a double-precision reference, and bit for bit against itself however the work is cut.
#include "attention_world.h"

using namespace octavo;

namespace {

// One query head's result in double precision, from elements as stored.
std::vector<double> reference(const World& world, int seq, int query, int head, bool round_q) {
  const Shape& shape = world.shape;
  const Sequence& sequence = world.sequences[seq];
  bool bf16 = shape.type == KvType::bf16;
  auto stored = [&](float x) { return bf16 ? from_bf16(to_bf16(x)) : x; };
  int position = sequence.context - sequence.queries + query, kv_head = head / shape.group;
  int begin = shape.window ? std::max(0, position - shape.window + 1) : 0;
  std::vector<double> scores;
  double top = shape.sinks ? world.sinks[head] : -INFINITY;
  for (int token = begin; token <= position; token++) {
    double dot = 0;
    for (int d = 0; d < shape.head_dim; d++) {
      float x = element(sequence.seed, 2, position, head, d);
      dot += double(round_q ? stored(x) : x) * stored(element(sequence.seed, 0, token, kv_head, d));
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
    for (int d = 0; d < shape.head_dim; d++) out[d] += weight * stored(element(sequence.seed, 1, token, kv_head, d));
  }
  for (double& x : out) x /= sum;
  return out;
}

void compare_with_reference(const KernelTable& level, World& world) {
  const Shape& shape = world.shape;
  bool rounds = !strcmp(level.level, "avx512_bf16") && shape.type == KvType::bf16;
  double tolerance = rounds ? 3e-3 : 3e-6;
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
  for (KvType type : {KvType::f32, KvType::bf16}) {
    for (int page_size : {4, 8, 16, 32})
      for (int head_dim : {16, 32, 64, 96, 128, 256}) {
        Shape shape = base;
        shape.type = type, shape.page_size = page_size, shape.head_dim = head_dim;
        shape.kv_heads = head_dim > 64 ? 1 : 2;
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

// Random cuts by heads, queries and spans of everything in the batch; `partial_rows` gets what they need.
void random_cut(const World& world, Random& random, std::vector<AttentionItem>* items,
                std::vector<AttentionMerge>* merges, int64_t* partial_rows) {
  *partial_rows = 0;
  for (int seq = 0; seq < int(world.sequences.size()); seq++)
    for (int head = 0, heads; head < world.shape.kv_heads; head += heads) {
      heads = 1 + random.below(world.shape.kv_heads - head);
      const Sequence& sequence = world.sequences[seq];
      for (int query = 0, count; query < sequence.queries; query += count) {
        count = 1 + random.below(random.below(2) ? 4 : sequence.queries);
        count = std::min(count, sequence.queries - query);
        int spans = (sequence.context - sequence.queries + query + count + kAttentionSpan - 1) / kAttentionSpan;
        if (random.below(3) == 0) {
          items->push_back({seq, head, heads, query, count, 0, spans, -1});
          continue;
        }
        int rows = heads * count * world.shape.group;
        merges->push_back({seq, head, heads, query, count, int32_t(*partial_rows), spans});
        for (int span = 0, n; span < spans; span += n) {
          n = 1 + random.below(spans - span);
          items->push_back({seq, head, heads, query, count, span, span + n, int32_t(*partial_rows + span * rows)});
        }
        *partial_rows += int64_t(rows) * spans;
      }
    }
  for (size_t i = items->size(); i > 1; i--) std::swap((*items)[i - 1], (*items)[random.below(int(i))]);
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
    std::vector<AttentionItem> items;
    std::vector<AttentionMerge> merges;
    int64_t partial_rows;
    random_cut(world, random, &items, &merges, &partial_rows);
    world.run(level, items, merges, partial_rows);
    EXPECT(!memcmp(world.out.data(), whole.out.data(), whole.out.size() * 4), "%s random cut %d", level.level, round);
  }
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

void test_same_bits(const KernelTable& level) {
  for (KvType type : {KvType::f32, KvType::bf16}) {
    Shape shape;
    shape.type = type;
    test_same_bits(level, shape);
    test_broken_token(level, shape);
    shape.window = 101, shape.group = 4, shape.kv_heads = 3, shape.head_dim = 48, shape.sinks = true;
    test_same_bits(level, shape);
  }
}

}  // namespace

int main() {
  for (const KernelTable* level : all_levels()) {
    test_reference(*level);
    test_same_bits(*level);
  }
  return report("attention_test");
}
