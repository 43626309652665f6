// Who is chosen with what weight, also for logits that nobody expects; and that the cut never shows in a mixture.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "plan.h"

using namespace octavo;

namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice choose(const RoutingShape& routing, const std::vector<float>& logits, const float* correction = nullptr) {
  Choice choice{std::vector<int32_t>(size_t(routing.used)), std::vector<float>(size_t(routing.used))};
  std::vector<float> scratch(logits.size() * 4);
  choose_experts(routing, logits.data(), correction, scratch.data(), choice.experts.data(), choice.weights.data());
  return choice;
}

void test_choices() {
  RoutingShape softmax{4, 2, Scoring::softmax, true, 1.0f, 1, 1, GroupScore::top2};
  CHECK(choose(softmax, {1, 2, 2, 2}).experts == (std::vector<int32_t>{1, 2}));  // ties go to the lower one
  CHECK(choose(softmax, {5, 0, 1, 9}).experts == (std::vector<int32_t>{0, 3}));  // ascending, whatever their order
  CHECK(std::fabs(choose(softmax, {1, 2, 2, 2}).weights[0] - 0.5f) < 1e-6f);

  RoutingShape chosen{3, 2, Scoring::chosen, false, 2.0f, 1, 1, GroupScore::top2};
  Choice two = choose(chosen, {0, 1, 1});
  CHECK(std::fabs(two.weights[0] - 1.0f) < 1e-6f && std::fabs(two.weights[1] - 1.0f) < 1e-6f);

  // Two groups of two take part: the sums of the two best of each are 1.4, 1.5, 0.9 and 0.2 (of the corrected scores).
  RoutingShape groups{8, 3, Scoring::sigmoid, false, 1.0f, 4, 2, GroupScore::top2};
  std::vector<float> correction = {0.4f, 0.0f, 0.5f, 0.0f, -0.1f, 0.0f, -0.4f, -0.4f};
  Choice grouped = choose(groups, std::vector<float>(8, 0.0f), correction.data());
  CHECK(grouped.experts == (std::vector<int32_t>{0, 1, 2}));
  for (float weight : grouped.weights) CHECK(std::fabs(weight - 0.5f) < 1e-6f);  // the correction is not in the weights
}

// Nothing sensible comes out, but what comes out are experts.
void test_hostile_logits() {
  for (float bad : {NAN, INFINITY, -INFINITY})
    for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::chosen})
      for (int32_t groups : {1, 4}) {
        RoutingShape routing{8, 3, scoring, true, 1.0f, groups, groups > 1 ? 2 : 1, GroupScore::max};
        Choice choice = choose(routing, std::vector<float>(8, bad));
        for (int32_t i = 0; i < routing.used; i++) {
          CHECK(choice.experts[size_t(i)] >= 0 && choice.experts[size_t(i)] < 8);
          for (int32_t j = 0; j < i; j++) CHECK(choice.experts[size_t(i)] != choice.experts[size_t(j)]);
        }
      }
}

constexpr int32_t kVocab = 48, kWidth = 64, kHidden = 80, kExperts = 6;

// An embedding, a mixture and a head that shows its result.
struct MixturePlan {
  std::mt19937 random{3};
  Plan plan;

  MixturePlan(const KernelTable& kernels, int32_t threads)
      : plan(kernels, std::make_shared<ThreadPool>(threads), {64, 64, 4, 64, 4, kVocab}, {{KvType::f32, 1, 1, 16}}) {
    int32_t x = plan.add_rows(kWidth), logits = plan.add_rows(kExperts), out = plan.add_rows(kWidth);
    int32_t prepared = plan.add_prepared(ActivationKind::f32, kWidth);
    plan.embed(matrix(kVocab, kWidth), 8.0f, x);
    plan.rows_prepared({RowFunction::copy, x}, prepared);
    plan.linear(prepared, {{matrix(kExperts, kWidth), -1, logits}}, false);
    std::vector<Plan::ExpertIds> experts;
    for (int32_t e = 0; e < kExperts; e++)
      experts.push_back({{matrix(kHidden, kWidth), -1, -1}, {matrix(kHidden, kWidth), -1, -1}, {matrix(kWidth, kHidden), -1, -1}});
    plan.moe(prepared, logits, -1, experts, {kExperts, 2, Scoring::softmax, true, 1.0f, 1, 1, GroupScore::max},
             {GateFunction::silu, 0.0f, 0.0f}, out);
    int32_t norm = plan.add_vector(std::vector<float>(kWidth, 1.0f).data(), kWidth);
    plan.head({RowFunction::rms_norm, out, -1, norm, -1, 1e-5f}, matrix(kVocab, kWidth), 1.0f, 0.0f);
  }

  int32_t matrix(int32_t n, int32_t k) {
    std::vector<float> values(size_t(n) * size_t(k));
    std::normal_distribution<float> normal(0.0f, 0.125f);
    for (float& value : values) value = normal(random);
    return plan.add_weight(WeightFormat::f32, ActivationKind::f32, n, k, reinterpret_cast<const uint8_t*>(values.data()), n,
                           int64_t(k) * 4, nullptr);
  }

  // Logits [tokens][kVocab] of single tokens, each of its own sequence.
  std::vector<float> logits(const std::vector<int32_t>& tokens) {
    int32_t count = int32_t(tokens.size());
    std::vector<int32_t> positions(tokens.size(), 0), rows, starts, context(tokens.size(), 1), table(tokens.size() * 4, -1);
    for (int32_t i = 0; i < count; i++) {
      rows.push_back(i);
      starts.push_back(i);
      table[size_t(i) * 4] = i;
      int32_t prompt = tokens[size_t(i)];
      plan.sampler().set(i, {{0.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, -1, 7, 0}, 0, {}, {}, {}}, &prompt, 1, 1);
    }
    starts.push_back(count);
    Step step{};
    step.tokens_count = step.seqs = step.outputs = count;
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.token_seq = step.output_rows = step.output_slots = rows.data();
    std::vector<int32_t> targets(tokens.size(), -1);
    step.output_targets = targets.data();
    step.query_start = starts.data();
    step.context_len = context.data();
    step.block_table = table.data();
    step.block_stride = 4;
    std::vector<float> found(tokens.size() * kVocab), logprobs(tokens.size()), top(tokens.size() * 20);
    std::vector<int32_t> drawn(tokens.size()), top_ids(tokens.size() * 20);
    StepResults results{};
    results.tokens = drawn.data();
    results.logprobs = logprobs.data();
    results.top_ids = top_ids.data();
    results.top_logprobs = top.data();
    results.top_stride = 20;
    results.logits = found.data();
    plan.run(step, results);
    return found;
  }
};

void test_the_cut_never_shows(const KernelTable& kernels) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kVocab; i++) tokens.push_back(i);
  std::vector<float> crowd = MixturePlan(kernels, 3).logits(tokens);
  MixturePlan alone(kernels, 1);
  for (int32_t token : {0, 7, kVocab - 1}) {
    std::vector<float> own = alone.logits({token});
    CHECK(std::memcmp(own.data(), crowd.data() + token * kVocab, sizeof(float) * kVocab) == 0);
  }
}

}  // namespace

int main() {
  test_choices();
  test_hostile_logits();
  const KernelTable* levels[8];
  int count = supported_levels(levels, 8);
  for (int i = 0; i < count; i++) test_the_cut_never_shows(*levels[i]);
  std::puts("moe_test: ok");
}
