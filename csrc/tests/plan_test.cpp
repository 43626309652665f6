// Plans: work is cut without gaps or overlaps, wrong steps are refused, and threads don't show in results. The Python
// tests compare values with the reference; this one is for the sanitizers.
#include "plan.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"

namespace {

using namespace octavo;

void test_row_cut() {
  for (int32_t rows : {0, 1, 2, 7, 64, 512, 100000, 1000000})
    for (double row_ns : {1.0, 300.0, 1e6})
      for (int32_t threads : {1, 2, 16}) {
        RowCut cut(rows, row_ns, threads);
        int32_t next = 0;
        for (int32_t i = 0; i < cut.items(); i++) {
          CHECK(cut.begin(i) == next && cut.end(i) > next);
          next = cut.end(i);
        }
        CHECK(next == rows);
      }
}

// Every (matrix, tile, row) belongs to exactly one item.
void test_linear_cut() {
  for (int32_t rows : {1, 3, 16, 17, 200, 513, 4096})
    for (int32_t threads : {1, 2, 64}) {
      std::vector<PackedWeight> weights;
      for (int32_t n : {576, 192, 1, 49152}) weights.push_back({WeightFormat::q4_1, ActivationKind::int8, n, 576, 5760, nullptr});
      LinearCut cut(weights, {ActivationKind::int8, rows, 576, 896, nullptr}, rows, threads);
      CHECK(cut.rows() == rows);
      std::vector<int64_t> covered(weights.size());
      LinearCut::Piece last{-1, 0, 0, 0, 0};
      for (int32_t i = 0; i < cut.items(); i++) {
        LinearCut::Piece p = cut.piece(i);
        CHECK(p.tile_begin < p.tile_end && p.tile_end <= (weights[size_t(p.matrix)].n + 15) / 16);
        CHECK(p.row_begin < p.row_end && p.row_end <= rows);
        bool same = p.matrix == last.matrix && p.row_begin == last.row_begin;
        CHECK(p.tile_begin == (same ? last.tile_end : 0));  // ascending, so nothing is covered twice
        covered[size_t(p.matrix)] += int64_t(p.tile_end - p.tile_begin) * (p.row_end - p.row_begin);
        last = p;
      }
      for (size_t m = 0; m < weights.size(); m++) CHECK(covered[m] == int64_t((weights[m].n + 15) / 16) * rows);
    }
}

// Each item is taken once, also when fewer threads come than there are lanes.
void test_lanes() {
  for (int32_t items : {0, 1, 2, 5, 1000})
    for (int32_t threads : {1, 2, 7}) {
      Lanes lanes(threads);
      for (int32_t come = 1; come <= threads; come++) {
        lanes.reset(items);
        CHECK(lanes.count() == std::min(items, threads));
        std::vector<std::atomic<int>> taken(size_t(items) + 1);
        std::atomic<int32_t> next{0};
        std::vector<std::thread> others;
        auto work = [&] {
          for (int32_t lane; (lane = next.fetch_add(1)) < lanes.count();)
            lanes.run(lane, [&](int32_t item) { taken[size_t(item)].fetch_add(1); });
        };
        for (int32_t t = 1; t < come; t++) others.emplace_back(work);
        work();
        for (std::thread& other : others) other.join();
        for (int32_t i = 0; i < items; i++) CHECK(taken[size_t(i)] == 1);
        CHECK(taken[size_t(items)] == 0);
      }
    }
}

template <typename Function>
void check_refused(Function function, const std::string& part) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    if (std::string(error.what()).find(part) == std::string::npos) std::fprintf(stderr, "%s\n", error.what());
    CHECK(std::string(error.what()).find(part) != std::string::npos);
    return;
  }
  CHECK(!"it was accepted");
}

constexpr int32_t kVocab = 64, kHidden = 64, kHeads = 2, kHeadDim = 32;

// One layer of attention and one matrix, random f32 weights.
struct TinyPlan {
  std::mt19937 random{5};
  Plan plan;

  TinyPlan(const KernelTable& kernels, int32_t threads)
      : plan(kernels, std::make_shared<ThreadPool>(threads), {64, 8, 16, 64, 4, kVocab}, {{KvType::f32, 1, kHeads, kHeadDim}}) {
    int32_t x = plan.add_rows(kHidden), out = plan.add_rows(kHidden);
    int32_t q = plan.add_rows(kHidden), k = plan.add_rows(kHidden), v = plan.add_rows(kHidden);
    int32_t prepared = plan.add_prepared(ActivationKind::f32, kHidden);
    int32_t embedding = matrix(kVocab), norm = plan.add_vector(std::vector<float>(kHidden, 1.0f).data(), kHidden);
    AttentionShape shape{0, kHeads, 0, 0.2f, 0.0f, 1.0f, 1e-5f, std::vector<float>(16, 0.1f), {}, {}, {}};
    plan.embed(embedding, 1.0f, x);
    plan.rows_prepared({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, prepared);
    plan.linear(prepared, {{matrix(kHidden), -1, q}, {matrix(kHidden), norm, k}, {matrix(kHidden), -1, v}}, false);
    plan.rope_and_store(q, k, v, shape);
    plan.attention(q, out, shape);
    plan.rows_prepared({RowFunction::silu_mul, out, x}, prepared);
    plan.linear(prepared, {{matrix(kHidden), -1, x}}, true);
    plan.head({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, embedding, 1.0f, 0.0f);
    for (int32_t slot = 0; slot < 8; slot++) {
      SlotSettings settings{{0.8f, 20, 0.9f, 0.01f, 1.1f, 0.1f, 0.1f, 3, 7, uint32_t(slot)}, 1, {1}, {2}, {0.5f}};
      int32_t tokens[3] = {slot, 3, 4};
      plan.sampler().set(slot, settings, tokens, 3, 2);
    }
  }

  int32_t matrix(int32_t n) {
    std::vector<float> values(size_t(n) * kHidden);
    std::normal_distribution<float> normal(0.0f, 0.125f);
    for (float& value : values) value = normal(random);
    return plan.add_weight(WeightFormat::f32, ActivationKind::f32, n, kHidden,
                           reinterpret_cast<const uint8_t*>(values.data()), n, kHidden * 4, nullptr);
  }
};

// Two sequences: a chunk of 20 tokens after 7, and one decode at position 30.
struct TinyStep {
  std::vector<int32_t> tokens, positions, token_seq, query_start{0, 20, 21}, context_len{27, 31};
  std::vector<int32_t> block_table = std::vector<int32_t>(2 * 16, -1), output_rows{19, 20}, output_slots{5, 2},
      output_targets{-1, -1};
  Step step{};

  TinyStep() {
    for (int32_t t = 0; t < 20; t++) tokens.push_back(t * 3 % kVocab), positions.push_back(7 + t), token_seq.push_back(0);
    tokens.push_back(11), positions.push_back(30), token_seq.push_back(1);
    for (int32_t b = 0; b < 7; b++) block_table[size_t(b)] = 60 - b;
    for (int32_t b = 0; b < 8; b++) block_table[size_t(16 + b)] = b;
  }
  const Step& bind() {
    step = {21, 2, 2, tokens.data(), positions.data(), token_seq.data(), query_start.data(), context_len.data(),
            block_table.data(), 16, output_rows.data(), output_slots.data(), output_targets.data()};
    return step;
  }
};

struct Results {
  std::vector<int32_t> tokens = std::vector<int32_t>(8), top_ids = std::vector<int32_t>(8 * kMaxLogprobs);
  std::vector<float> logprobs = std::vector<float>(8), top_logprobs = std::vector<float>(8 * kMaxLogprobs);
  std::vector<float> logits = std::vector<float>(8 * kVocab);
  StepResults bind() {
    return {tokens.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), kMaxLogprobs, logits.data()};
  }
};

void test_threads_do_not_show(const KernelTable& kernels) {
  Results one;
  for (int32_t threads : {1, 2, 3, 7}) {
    TinyPlan tiny(kernels, threads);
    tiny.plan.set_profiling(threads == 3);
    for (int32_t repeat = 0; repeat < 20; repeat++) {
      TinyStep step;
      Results results;
      CHECK(tiny.plan.run(step.bind(), results.bind()) == 3);
      if (threads == 1 && repeat == 0) one = results;
      CHECK(std::memcmp(results.logits.data(), one.logits.data(), sizeof(float) * results.logits.size()) == 0);
      if (repeat == 0) CHECK(results.tokens == one.tokens && results.top_ids == one.top_ids);
      CHECK(results.top_ids[2] >= 0 && results.top_ids[3] == -1);
    }
    bool timed = false;
    for (const ProfileLine& line : tiny.plan.profile()) timed |= line.seconds > 0.0;
    CHECK(timed == (threads == 3));
  }
}

// Time is kept by op as it was recorded; what is recorded before the first `next_op` belongs to the first op.
void test_profile_by_op(const KernelTable& kernels) {
  TinyPlan tiny(kernels, 2);
  tiny.plan.set_profiling(true);
  TinyStep step;
  Results results;
  tiny.plan.run(step.bind(), results.bind());
  for (const ProfileLine& line : tiny.plan.profile_ops()) CHECK(line.op == 0 && line.stages > 0);

  Plan plan(kernels, std::make_shared<ThreadPool>(1), {64, 8, 16, 64, 4, kVocab}, {{KvType::f32, 1, kHeads, kHeadDim}});
  int32_t x = plan.add_rows(kHidden), y = plan.add_rows(kHidden);
  int32_t norm = plan.add_vector(std::vector<float>(kHidden, 1.0f).data(), kHidden);
  plan.next_op();
  plan.rows({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, y);
  plan.rows({RowFunction::rms_norm, y, -1, norm, -1, 1e-5f}, y);
  plan.next_op();
  plan.rows({RowFunction::silu_mul, x, y}, y);
  plan.set_profiling(true);
  step.step.outputs = 0;
  for (int32_t repeat = 0; repeat < 3; repeat++) plan.run(step.step, results.bind());
  std::vector<ProfileLine> lines = plan.profile_ops();
  CHECK(lines.size() == 2);
  CHECK(lines[0].op == 0 && lines[0].stages == 6 && lines[1].op == 1 && lines[1].stages == 3);
  double total = 0.0;
  for (const ProfileLine& line : plan.profile()) total += line.seconds;
  CHECK(std::abs(total - lines[0].seconds - lines[1].seconds) < 1e-9);
}

// Few rows are prepared by the first linear group's own threads, but not if a second group reads them too.
void test_prepared_rows_with_two_readers(const KernelTable& kernels) {
  auto logits = [&](bool prepare_again) {
    std::mt19937 random{9};
    Plan plan(kernels, std::make_shared<ThreadPool>(2), {64, 8, 16, 64, 4, kVocab}, {{KvType::f32, 1, kHeads, kHeadDim}});
    auto matrix = [&](int32_t n) {
      std::vector<float> values(size_t(n) * kHidden);
      for (float& value : values) value = float(random() % 256) / 1024.0f - 0.125f;
      return plan.add_weight(WeightFormat::f32, ActivationKind::f32, n, kHidden,
                             reinterpret_cast<const uint8_t*>(values.data()), n, kHidden * 4, nullptr);
    };
    int32_t x = plan.add_rows(kHidden), a = plan.add_rows(kHidden), b = plan.add_rows(kHidden);
    int32_t prepared = plan.add_prepared(ActivationKind::f32, kHidden);
    int32_t embedding = matrix(kVocab), norm = plan.add_vector(std::vector<float>(kHidden, 1.0f).data(), kHidden);
    plan.embed(embedding, 1.0f, x);
    plan.rows_prepared({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, prepared);
    plan.linear(prepared, {{matrix(kHidden), -1, a}}, false);
    if (prepare_again) plan.rows_prepared({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, prepared);
    plan.linear(prepared, {{matrix(kHidden), -1, b}}, false);
    plan.rows({RowFunction::silu_mul, a, b}, x);
    plan.head({RowFunction::rms_norm, x, -1, norm, -1, 1e-5f}, embedding, 1.0f, 0.0f);
    int32_t token = 3, zero = 0, draw = -1, start[2] = {0, 1}, context = 1, page = 5, prompt[1] = {3};
    plan.sampler().set(0, SlotSettings{{0.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, -1, 7, 0}, 0, {}, {}, {}}, prompt, 1, 1);
    Results results;
    plan.run({1, 1, 1, &token, &zero, &zero, start, &context, &page, 1, &zero, &zero, &draw},
             results.bind());
    return std::vector<float>(results.logits.begin(), results.logits.begin() + kVocab);
  };
  std::vector<float> once = logits(false), twice = logits(true);
  CHECK(std::memcmp(once.data(), twice.data(), sizeof(float) * kVocab) == 0);
  CHECK(once[0] != 0.0f || once[1] != 0.0f);
}

void test_steps_without_outputs_or_tokens(const KernelTable& kernels) {
  TinyPlan tiny(kernels, 2);
  TinyStep step;
  Results results;
  step.bind();
  step.step.outputs = 0;
  CHECK(tiny.plan.run(step.step, results.bind()) == -1);
  step.step.tokens_count = step.step.seqs = 0;
  CHECK(tiny.plan.run(step.step, results.bind()) == -1);
}

void test_wrong_steps(const KernelTable& kernels) {
  TinyPlan tiny(kernels, 2);
  Results results;
  auto refused = [&](auto change, const char* part) {
    TinyStep step;
    step.bind();
    change(step);
    check_refused([&] { tiny.plan.run(step.step, results.bind()); }, part);
  };
  refused([](TinyStep& s) { s.tokens[20] = kVocab; }, "tokens[20] is 64");
  refused([](TinyStep& s) { s.block_table[6] = 64; }, "KV group 0, sequence 0, block 6, is page 64");
  refused([](TinyStep& s) { s.block_table[16] = -1; }, "block 0, is page -1");
  refused([](TinyStep& s) { s.context_len[1] = 65; }, "context_len[1] is 65");
  refused([](TinyStep& s) { s.query_start[1] = 22; }, "query_start[1] is 22");
  refused([](TinyStep& s) { s.token_seq[20] = 0; }, "token_seq[20] is 0");
  refused([](TinyStep& s) { s.positions[0] = 8; }, "positions[0] is 8");
  refused([](TinyStep& s) { s.output_slots[1] = 5; }, "already draws a token");
  refused([](TinyStep& s) { s.output_targets[1] = 1 << 20; }, "output_targets[1] is 1048576");
  refused([](TinyStep& s) { s.output_targets[0] = -2; }, "output_targets[0] is -2");
  refused([](TinyStep& s) { s.step.tokens_count = 65; }, "num_tokens is 65");
  refused([](TinyStep& s) { s.step.block_stride = 3; }, "context_len[0] is 27");
}

void test_wrong_recordings(const KernelTable& kernels) {
  TinyPlan tiny(kernels, 1);
  Plan& plan = tiny.plan;
  int32_t narrow = plan.add_rows(16), wide = plan.add_rows(kHidden);
  AttentionShape shape{0, kHeads, 0, 0.2f, 0.0f, 1.0f, 1e-5f, {}, {}, {}, {}};
  check_refused([&] { plan.embed(0, 1.0f, narrow); }, "has width 16; it must be 64");
  check_refused([&] { plan.embed(99, 1.0f, wide); }, "there is no weight 99");
  check_refused([&] { plan.rows({RowFunction::silu_mul, wide, narrow}, wide); }, "second operand");
  check_refused([&] { plan.rows({RowFunction::rms_norm, wide}, wide); }, "there is no vector -1");
  check_refused([&] { plan.linear(0, {{0, -1, narrow}}, false); }, "a projection's output has width 16");
  check_refused([&] { plan.linear(plan.add_prepared(ActivationKind::int8, kHidden), {{0, -1, wide}}, false); },
                "another type of activations");
  check_refused([&] { plan.attention(narrow, narrow, shape); }, "q has width 16");
  shape.layer = 1;
  check_refused([&] { plan.rope_and_store(wide, wide, wide, shape); }, "there is no KV layer 1");
  shape.layer = 0;
  shape.group = 1;
  check_refused([&] { plan.attention(wide, wide, shape); }, "there is no KV group 1");
  check_refused([&] { plan.head({RowFunction::rms_norm, wide, -1, 0, -1, 1e-5f}, 0, 1.0f, 0.0f); }, "has it already");
  float row[kHidden] = {};
  int32_t order[2] = {0, 1};
  check_refused([&] {
    plan.add_weight(WeightFormat::f32, ActivationKind::f32, 2, kHidden, reinterpret_cast<uint8_t*>(row), 1, kHidden * 4, order);
  }, "output 1 of a weight is its row 1; it has 1");
  check_refused([&] {
    plan.add_weight(WeightFormat::f32, ActivationKind::int8, 1, kHidden, reinterpret_cast<uint8_t*>(row), 1, kHidden * 4, nullptr);
  }, "can't be multiplied");
}

int64_t resident_bytes(const Mapping& memory) {
  std::vector<unsigned char> resident(size_t(memory.bytes() / 4096));
  CHECK(mincore(memory.data(), size_t(memory.bytes()), resident.data()) == 0);
  int64_t pages = 0;
  for (unsigned char page : resident) pages += page & 1;
  return pages * 4096;
}

void test_pool_memory() {
  KvMemory kv({{KvType::bf16, 2, 1, 16}}, 5, 4);
  const KvLayout& layout = kv.layout(0);
  CHECK(layout.page_bytes == 2 * layout.layer_bytes && kv.bytes() == 5 * layout.page_bytes);
  for (int64_t i = 0; i < kv.bytes(); i++) CHECK(layout.base[i] == 0);
  layout.base[layout.page_bytes + 3] = 77;
  kv.copy_page(1, 4);
  kv.copy_page(4, 4);
  kv.used_up_to(4);
  CHECK(layout.base[4 * layout.page_bytes + 3] == 77 && layout.base[layout.page_bytes + 3] == 77);
  check_refused([&] { kv.copy_page(0, 5); }, "page 5");
  check_refused([] { KvMemory({{KvType::f32, 1, 1, 16}}, 1, 5); }, "page_size is 5");
  check_refused([] { KvMemory({{KvType::f32, 1, 1, 20}}, 1, 4); }, "head_dim is 20");
}

// Pages are as large as the largest group needs; each group lays them out for itself.
void test_groups_share_pages() {
  KvMemory kv({{KvType::bf16, 2, 1, 16}, {KvType::bf16, 3, 1, 16, 40}}, 5, 4);
  CHECK(kv.groups() == 2 && kv.shape(1).window == 40);
  CHECK(kv.layout(0).page_bytes == kv.layout(1).page_bytes && kv.layout(0).base == kv.layout(1).base);
  CHECK(kv.layout(1).page_bytes == 3 * kv.layout(1).layer_bytes && kv.bytes() == 5 * kv.layout(1).page_bytes);
  check_refused([] { KvMemory({}, 1, 4); }, "there are no KV groups");
  check_refused([] { KvMemory({{KvType::f32, 1, 1, 16, -1}}, 1, 4); }, "window is -1");
}

// What was written stays, and memory a little beyond the use becomes resident, not all of it.
void test_fault_ahead() {
  constexpr int64_t kBytes = int64_t(256) << 20, kUsed = 5 << 20, kAhead = int64_t(64) << 20;
  Mapping memory(kBytes);
  memory.data()[3] = 7;
  {
    FaultAhead ahead(memory);
    ahead.used(kUsed);
    ahead.used(1);
    for (int wait = 0; wait < 2000 && resident_bytes(memory) < kAhead; wait++)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(resident_bytes(memory) >= kAhead && resident_bytes(memory) <= kUsed + kAhead + (4 << 20));
  CHECK(memory.data()[3] == 7);
}

void test_arena() {
  Arena arena;
  uint8_t* small = arena.take(1);
  uint8_t* next = arena.take(100);
  uint8_t* large = arena.take(int64_t(40) << 20);
  for (uint8_t* p : {small, next, large}) CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
  CHECK(next == small + 64 && large[(int64_t(40) << 20) - 1] == 0);
  large[(int64_t(40) << 20) - 1] = 1;
}

}  // namespace

int main() {
  test_row_cut();
  test_linear_cut();
  test_lanes();
  test_pool_memory();
  test_groups_share_pages();
  test_arena();
  test_fault_ahead();
  const KernelTable* tables[8];
  int levels = supported_levels(tables, 8);
  for (int i = 0; i < levels; i++) {
    test_threads_do_not_show(*tables[i]);
    test_profile_by_op(*tables[i]);
    test_prepared_rows_with_two_readers(*tables[i]);
    test_steps_without_outputs_or_tokens(*tables[i]);
    test_wrong_steps(*tables[i]);
    test_wrong_recordings(*tables[i]);
  }
  std::puts("plan_test: ok");
}
