// Running a recorded plan: which ops a step needs, their stages, and how long each took.
#include "plan.h"

#include <algorithm>

#include "require.h"

namespace octavo {

int32_t Plan::run(const Step& step, const StepResults& results) {
  require(head_ != nullptr || step.outputs == 0, "this plan has no head to sample with");
  kv_.used_up_to(check_step(step, limits_, kv_windows_, sampler_));
  for (int32_t t = 0; t < step.tokens_count; t++)
    require(step.positions[t] < position_rows_, "positions[" + std::to_string(t) + "] is " +
                                                    std::to_string(step.positions[t]) + "; the model has positions 0 to " +
                                                    std::to_string(position_rows_ - 1));
  for (PlannedAttention& attention : attention_plans_)
    attention.plan->build(step.query_start, step.context_len, step.blocks_of(attention.group), step.block_stride,
                          step.seqs);
  if (head_) head_->set_results(results);
  stages_.clear();
  if (profiling_) {
    run_profiled(step);
  } else {
    stage_ops(step, [](size_t) {});
    pool_->run(stages_.stages());
  }
  int32_t most = -1;
  for (int32_t r = 0; r < step.outputs; r++) {
    int32_t slot = step.output_slots[r];
    bool draws = step.output_targets[r] < 0;
    if (draws) sampler_.drawn(slot, results.tokens[r]);
    most = std::max(most, draws ? sampler_.logprobs(slot) : sampler_.prompt_logprobs(slot));
  }
  return most;
}

// The step that ops see once only its output rows are kept.
Step Plan::outputs_of(const Step& step) {
  kept_rows_.resize(size_t(step.outputs));
  kept_positions_.resize(size_t(step.outputs));
  for (int32_t r = 0; r < step.outputs; r++) {
    kept_rows_[size_t(r)] = r;
    kept_positions_[size_t(r)] = step.positions[step.output_rows[r]];
  }
  Step kept = step;
  kept.tokens_count = step.outputs;
  kept.output_rows = kept_rows_.data();
  kept.positions = kept_positions_.data();
  return kept;
}

// Stages every op that this step needs; `staged` is told the number of each one after it. Output rows are kept only where
// they ascend. Without any, the last attention and what follows are left out: their results would be for nobody.
template <typename Staged>
void Plan::stage_ops(const Step& step, const Staged& staged) {
  bool keeps = kept_from_ <= ops_.size();
  for (int32_t r = 1; r < step.outputs; r++) keeps = keeps && step.output_rows[r - 1] < step.output_rows[r];
  size_t whole = !keeps ? ops_.size() : step.outputs > 0 ? kept_from_ : kept_from_ - 2;
  Step kept = keeps ? outputs_of(step) : step;
  for (size_t i = 0; i < ops_.size(); i++) {
    bool is_keeping = i + 1 == kept_from_;
    if (i < whole && (keeps || !is_keeping)) ops_[i]->stage(step, stages_);
    if (i >= whole && (step.outputs > 0 || ops_[i].get() == head_)) ops_[i]->stage(kept, stages_);
    staged(i);
  }
}

void Plan::run_profiled(const Step& step) {
  std::vector<size_t> op_of;  // of each stage
  size_t op = 0;
  stage_ops(step, [&](size_t i) {
    while (op + 1 < op_begins_.size() && op_begins_[op + 1] <= i) op++;
    op_of.resize(stages_.stages().size(), op);
  });
  std::vector<StageTime> times(op_of.size());
  pool_->run(stages_.stages(), times.data());
  seconds_.resize(std::max(seconds_.size(), op + 1));
  for (size_t i = 0; i < times.size(); i++) {
    Seconds& seconds = seconds_[op_of[i]].kinds[int(stages_.kind(i))];
    seconds.stages++;
    seconds.total_ns += times[i].total_ns;
    seconds.wait_ns += times[i].wait_ns;
  }
}

std::vector<ProfileLine> Plan::profile_ops() const {
  std::vector<ProfileLine> lines;
  for (size_t op = 0; op < seconds_.size(); op++)
    for (int32_t i = 0; i < kOpKinds; i++) {
      const Seconds& seconds = seconds_[op].kinds[i];
      if (seconds.stages)
        lines.push_back({int32_t(op), kOpNames[i], seconds.stages, double(seconds.total_ns) * 1e-9,
                         double(seconds.wait_ns) * 1e-9});
    }
  return lines;
}

std::vector<ProfileLine> Plan::profile() const {
  std::vector<ProfileLine> lines;
  for (int32_t i = 0; i < kOpKinds; i++) {
    ProfileLine line = {-1, kOpNames[i], 0, 0.0, 0.0};
    for (const OpSeconds& op : seconds_) {
      line.stages += op.kinds[i].stages;
      line.seconds += double(op.kinds[i].total_ns) * 1e-9;
      line.wait_seconds += double(op.kinds[i].wait_ns) * 1e-9;
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace octavo
