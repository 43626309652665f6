// The sampling kernels of every level against the rule spelled out with a sort, and on logits no model should make.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "sampler.h"

namespace {

using namespace octavo;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Lcg {
  uint64_t state;
  float next() {  // [0, 1)
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return float(state >> 40) * 0x1p-24f;
  }
};

SampleParams plain() { return {1.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, -1, 1234, 0}; }

int32_t draw(const KernelTable& table, const std::vector<float>& logits, const SampleRow& row, SampleOut* out = nullptr) {
  std::unique_ptr<uint8_t, void (*)(void*)> scratch(
      static_cast<uint8_t*>(std::aligned_alloc(64, size_t(table.sample_scratch_bytes(int32_t(logits.size())) + 63) / 64 * 64)),
      std::free);
  SampleOut ignored{};
  if (!out) out = &ignored;
  table.sample(logits.data(), int32_t(logits.size()), row, scratch.get(), out);
  CHECK(out->token >= 0 && out->token < int32_t(logits.size()));
  return out->token;
}

// Which ids may be drawn, by sorting: steps 5 to 8 of the rule.
std::vector<bool> kept_by_sorting(const std::vector<float>& logits, const SampleParams& p) {
  size_t n = logits.size();
  std::vector<int> rank(n);
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
  float largest = logits[size_t(rank[0])];
  auto weight = [&](int id) { return std::exp((double(logits[size_t(id)]) - largest) / p.temperature); };
  size_t left = p.top_k > 0 ? std::min(n, size_t(p.top_k)) : n;
  double total = 0.0, mass = 0.0;
  for (size_t i = 0; i < left; i++) total += weight(rank[i]);
  std::vector<bool> kept(n);
  for (size_t i = 0; i < left; i++) {
    int id = rank[i];
    if (i == 0 || weight(id) >= p.min_p) kept[size_t(id)] = true;
    mass += weight(id);
    if (p.top_p < 1.0f && mass >= double(p.top_p) * total) break;
  }
  return kept;
}

// Draws often and compares frequencies with the kept ids' weights; no id outside may come up.
void test_filter(const KernelTable& table, const std::vector<float>& logits, SampleParams p) {
  std::vector<bool> kept = kept_by_sorting(logits, p);
  float largest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); i++)
    if (kept[i]) total += std::exp((double(logits[i]) - largest) / p.temperature);
  constexpr int kDraws = 400;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; i++) counts[size_t(draw(table, logits, {p, {}, uint64_t(i)}))]++;
  for (size_t i = 0; i < logits.size(); i++) {
    if (!kept[i]) {
      CHECK(counts[i] == 0);
      continue;
    }
    double expected = std::exp((double(logits[i]) - largest) / p.temperature) / total * kDraws;
    CHECK(std::abs(counts[i] - expected) < 6.0 * std::sqrt(expected + 1.0));
  }
}

void test_filters(const KernelTable& table) {
  Lcg random{7};
  for (int32_t vocab : {1, 2, 15, 16, 17, 300, 1500}) {
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& l : logits) l = std::floor(random.next() * 40.0f) / 4.0f - 3.0f;  // quarters: many ties
    for (int32_t top_k : {0, 1, 3, 40, 257, 1 << 30})
      for (float top_p : {1.0f, 0.9f, 0.3f})
        for (float min_p : {0.0f, 0.05f}) {
          SampleParams p = plain();
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = min_p;
          p.temperature = 0.7f;
          test_filter(table, logits, p);
        }
  }
}

// More ids in question than are gathered. Single ids come up too rarely to compare, so shares of 16 classes are.
void test_flat_filters(const KernelTable& table) {
  constexpr int32_t kVocab = 20001;
  Lcg random{13};
  std::vector<float> fine(kVocab), coarse(kVocab);
  for (float& l : fine) l = random.next() * 3.0f;
  for (float& l : coarse) l = std::floor(random.next() * 12.0f) / 4.0f;
  for (size_t i = 0; i < coarse.size(); i += 7) fine[i] = coarse[i] = -kInf;
  for (const std::vector<float>& logits : {fine, coarse})
    for (int32_t top_k : {0, 300, 9000, 19999})
      for (float top_p : {1.0f, 0.9f, 0.4f})
        for (float min_p : {0.0f, 0.1f}) {
          SampleParams p = plain();
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = min_p;
          std::vector<bool> kept = kept_by_sorting(logits, p);
          double expected[16] = {}, total = 0.0;
          for (size_t i = 0; i < logits.size(); i++)
            if (kept[i]) expected[i % 16] += std::exp(double(logits[i]) - 3.0), total += std::exp(double(logits[i]) - 3.0);
          constexpr int kDraws = 150;
          int counts[16] = {};
          for (int i = 0; i < kDraws; i++) {
            int32_t token = draw(table, logits, {p, {}, uint64_t(i)});
            CHECK(kept[size_t(token)]);
            counts[token % 16]++;
          }
          for (int i = 0; i < 16; i++) {
            double wanted = expected[i] / total * kDraws;
            CHECK(std::abs(counts[i] - wanted) < 6.0 * std::sqrt(wanted + 1.0));
          }
        }
}

void test_ties_go_to_the_lower_id(const KernelTable& table) {
  std::vector<float> logits(1000, 2.5f);
  SampleParams p = plain();
  p.temperature = 0.0f;
  CHECK(draw(table, logits, {p, {}, 0}) == 0);
  p.temperature = 1.0f;
  p.top_k = 3;
  for (uint64_t i = 0; i < 100; i++) CHECK(draw(table, logits, {p, {}, i}) < 3);
  p.top_k = 0;
  p.top_p = 0.25f;
  for (uint64_t i = 0; i < 1000; i++) CHECK(draw(table, logits, {p, {}, i}) < 250);
  logits[999] = 2.75f;
  p.top_p = 1e-4f;
  CHECK(draw(table, logits, {p, {}, 5}) == 999);
}

// CASES SA-01: no temperature above zero may overflow, and below 1e-5 it is greedy.
void test_temperatures(const KernelTable& table) {
  Lcg random{3};
  std::vector<float> logits(49152);
  for (float& l : logits) l = random.next() * 60.0f - 30.0f;
  int32_t best = 31234;
  logits[size_t(best)] = 31.0f;
  for (float temperature : {0.0f, 1e-12f, 1e-6f, 1e-5f, 1e-4f}) {
    SampleParams p = plain();
    p.temperature = temperature;
    CHECK(draw(table, logits, {p, {}, 9}) == best);
    p.top_p = 1e-4f;
    CHECK(draw(table, logits, {p, {}, 9}) == best);
  }
  SampleParams p = plain();
  p.temperature = 100.0f;
  draw(table, logits, {p, {}, 9});
}

void test_strange_logits(const KernelTable& table) {
  std::vector<std::vector<float>> cases = {
      std::vector<float>(33, kNaN), std::vector<float>(33, -kInf), std::vector<float>(33, kInf),
      {kNaN, 1.0f, kNaN, 2.0f},     {-kInf, kInf, 3.0f, kInf},     {-3e38f, 3e38f, kNaN, -kInf, kInf},
      {-3e38f, 3e38f, 0.0f},
  };
  std::vector<int32_t> expected = {0, 0, 0, 3, 1, 4, 1};
  for (size_t i = 0; i < cases.size(); i++)
    for (float temperature : {0.0f, 0.5f})
      for (int32_t top_k : {0, 2})
        for (float top_p : {1.0f, 0.5f}) {
          SampleParams p = plain();
          p.temperature = temperature;
          p.top_k = top_k;
          p.top_p = top_p;
          p.logprobs = 3;
          int32_t ids[3];
          float values[3];
          SampleOut out{0, 0.0f, ids, values};
          int32_t token = draw(table, cases[i], {p, {}, 77}, &out);
          CHECK(!std::isnan(out.logprob) && out.logprob <= 0.0f);
          for (float value : values) CHECK(!std::isnan(value) && value <= 0.0f);
          if (temperature == 0.0f || i != 3) CHECK(token == expected[i]);
          CHECK(i != 3 || token == 1 || token == 3);
        }
}

void test_masks_beat_bias(const KernelTable& table) {
  std::vector<float> logits = {5.0f, 4.0f, 3.0f, 2.0f};
  int32_t banned[1] = {0}, bias_ids[2] = {0, 2};
  float bias[2] = {100.0f, 50.0f};
  SampleState state{};
  state.banned_ids = banned;
  state.banned = 1;
  state.bias_ids = bias_ids;
  state.bias_values = bias;
  state.biases = 2;
  for (float temperature : {0.0f, 1.0f}) {
    SampleParams p = plain();
    p.temperature = temperature;
    CHECK(draw(table, logits, {p, state, 1}) == 2);
  }
  uint32_t allowed[1] = {0b1000};
  state.allowed = allowed;
  CHECK(draw(table, logits, {plain(), state, 1}) == 3);
  allowed[0] = 0b0001;  // only a banned id: nothing is left, so the untouched greedy one
  CHECK(draw(table, logits, {plain(), state, 1}) == 0);
}

// CASES SA-04: repetition looks at prompt and output, presence and frequency at the output only.
void test_penalties(const KernelTable& table) {
  std::vector<int32_t> tokens = {1, 1, 1, 2, 2, 3};  // prompt 1 1 1 2, output 2 3
  auto greedy_after = [&](float repetition, float presence, float frequency, std::vector<float> logits) {
    Sampler sampler(1, 5);
    SlotSettings settings{plain(), 0, {}, {}, {}};
    settings.params.temperature = 0.0f;
    settings.params.repetition = repetition;
    settings.params.presence = presence;
    settings.params.frequency = frequency;
    sampler.set(0, settings, tokens.data(), int32_t(tokens.size()), 4);
    return draw(table, logits, sampler.row(0, 6));
  };
  CHECK(greedy_after(1.0f, 0.0f, 0.0f, {0, 3.0f, 2.9f, 2.8f, 2.5f}) == 1);
  CHECK(greedy_after(1.5f, 0.0f, 0.0f, {0, 3.0f, 2.9f, 2.8f, 2.5f}) == 4);
  CHECK(greedy_after(1.5f, 0.0f, 0.0f, {-9, -3.0f, -2.9f, -2.8f, -4.1f}) == 4);  // negative logits are multiplied
  CHECK(greedy_after(1.0f, 1.5f, 1.5f, {0, 3.0f, 9.0f, 2.8f, 2.5f}) == 2);       // counts in the prompt don't matter
  CHECK(greedy_after(1.0f, 1.5f, 0.0f, {0, 2.0f, 3.0f, 3.0f, 2.5f}) == 4);
  CHECK(greedy_after(1.0f, 0.0f, 1.5f, {0, 1.0f, 3.0f, 3.0f, 2.5f}) == 4);
}

// The state that grows by `drawn` equals the one set from all tokens (resume after preemption or a restart).
void test_resumed_state() {
  std::vector<int32_t> tokens = {7, 3, 7, 9, 3, 3, 1, 9};
  SlotSettings settings{plain(), 6, {1, 2}, {}, {}};
  settings.params.frequency = 0.5f;
  Sampler grown(2, 10), resumed(2, 10);
  grown.set(1, settings, tokens.data(), 3, 3);
  for (size_t i = 3; i < tokens.size(); i++) grown.drawn(1, tokens[i]);
  resumed.set(1, settings, tokens.data(), int32_t(tokens.size()), 3);
  SampleState a = grown.row(1, 8).state, b = resumed.row(1, 8).state;
  CHECK(a.seen == 4 && b.seen == 4 && a.banned == 2 && b.banned == 2);
  for (int i = 0; i < 4; i++) CHECK(a.seen_ids[i] == b.seen_ids[i] && a.out_counts[i] == b.out_counts[i]);
  CHECK(a.seen_ids[1] == 3 && a.out_counts[1] == 2);
  grown.drawn(1, 5);
  CHECK(grown.row(1, 9).state.banned == 0);  // min_tokens reached
}

void test_logprobs(const KernelTable& table) {
  Lcg random{11};
  std::vector<float> logits(5003);
  for (float& l : logits) l = std::floor(random.next() * 64.0f) / 4.0f;
  double total = 0.0;
  for (float l : logits) total += std::exp(double(l));
  std::vector<int> rank(logits.size());
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
  SampleParams p = plain();
  p.logprobs = 20;
  p.temperature = 1.5f;
  int32_t ids[20];
  float values[20];
  SampleOut out{0, 0.0f, ids, values};
  int32_t token = draw(table, logits, {p, {}, 4}, &out);
  CHECK(std::abs(out.logprob - (logits[size_t(token)] - std::log(total))) < 1e-5);
  for (size_t i = 0; i < 20; i++) {
    CHECK(ids[i] == rank[i]);
    CHECK(std::abs(values[i] - (logits[size_t(rank[i])] - std::log(total))) < 1e-5);
  }
}

}  // namespace

int main() {
  const KernelTable* tables[8];
  int levels = supported_levels(tables, 8);
  CHECK(levels > 0);
  for (int i = 0; i < levels; i++) {
    test_filters(*tables[i]);
    test_flat_filters(*tables[i]);
    test_ties_go_to_the_lower_id(*tables[i]);
    test_temperatures(*tables[i]);
    test_strange_logits(*tables[i]);
    test_masks_beat_bias(*tables[i]);
    test_penalties(*tables[i]);
    test_logprobs(*tables[i]);
  }
  test_resumed_state();
  std::puts("sampling_test: ok");
}
