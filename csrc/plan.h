// A recorded model: a flat list of ops bound to weights and buffers, replayed every step.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "kv.h"
#include "memory.h"
#include "op.h"
#include "op_head.h"
#include "op_linear.h"
#include "op_moe.h"
#include "op_rows.h"
#include "sampler.h"

namespace octavo {

// Constants of one layer's attention; vectors are empty or as long as kernels.h says. `layer` counts within its KV group.
struct AttentionShape {
  int32_t layer, q_heads, window;
  float scale, softcap, amplitude, norm_eps;
  std::vector<float> inv_freq, q_norm, k_norm, sinks;
  int32_t group = 0;
};

// A row function and its operands; -1 where it takes none.
struct RowsShape {
  RowFunction function;
  int32_t x, y = -1, weight = -1, bias = -1;
  float eps = 0.0f;    // of a norm
  int32_t groups = 1;  // of a norm
  bool add = false;    // the result times `scale` is added to the output's rows
  float scale = 1.0f;
};

// Seconds by kind of op, as the thread that calls `run` sees them.
struct ProfileLine {
  int32_t op;  // how many `next_op` were before it, less one; -1 where all ops are added up
  const char* name;
  int64_t stages;
  double seconds, wait_seconds;
};

// Recording: buffers, weights and vectors are made first and named by small integers, then ops in the order they run.
// Every method throws std::invalid_argument when its arguments don't fit together, so that a recorded plan can't reach
// outside its memory. One thread at a time.
class Plan {
 public:
  // `kv`: the KV groups.
  Plan(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, const PlanLimits& limits,
       const std::vector<KvShape>& kv);

  // Rows of f32 [max_tokens][width].
  int32_t add_rows(int32_t width);
  // Rows that linear groups read, [max_tokens] of k elements.
  int32_t add_prepared(ActivationKind kind, int32_t k);
  // Packs a stored matrix on the pool. `rows` [row_count][row_bytes] in the file's format; `row_index` [n] or null.
  int32_t add_weight(WeightFormat format, ActivationKind activation, int32_t n, int32_t k, const uint8_t* rows,
                     int64_t row_count, int64_t row_bytes, const int32_t* row_index);
  int32_t add_vector(const float* values, int32_t count);

  // What is recorded from here to the next call is profiled as one op.
  void next_op() { op_begins_.push_back(ops_.size()); }
  void embed(int32_t weight, float scale, int32_t out);
  // x += row of the weight at each token's position; steps whose positions are beyond it are refused.
  void add_positions(int32_t x, int32_t weight);
  // out[i] = the sources of a row side by side at index[i], or 0 where that is -1.
  void columns(const std::vector<int32_t>& sources, std::span<const int32_t> index, int32_t out);
  // Result as f32 rows, or prepared.
  void rows(const RowsShape& shape, int32_t out);
  void rows_prepared(const RowsShape& shape, int32_t prepared);
  struct ProjectionIds {
    int32_t weight, bias, out;  // bias -1: none
  };
  void linear(int32_t prepared, const std::vector<ProjectionIds>& projections, bool accumulate);
  struct ExpertIds {
    ProjectionIds gate, up, down;  // `out` is not used
  };
  // `logits`: rows of the router's output, which it has written. `correction`: a vector, or -1.
  void moe(int32_t prepared, int32_t logits, int32_t correction, const std::vector<ExpertIds>& experts,
           const RoutingShape& routing, const GateShape& gate, int32_t out);
  void rope_and_store(int32_t q, int32_t k, int32_t v, const AttentionShape& shape);
  void attention(int32_t q, int32_t out, const AttentionShape& shape);
  // Right after an attention, the last one, whose output nobody reads but what is recorded from here on: that is computed
  // for output rows alone. `rows`: all that it reads.
  void keep_outputs(const std::vector<int32_t>& rows);
  // `norm`: a norm of the rows that are sampled from.
  void head(const RowsShape& norm, int32_t weight, float scale, float softcap);

  const PlanLimits& limits() const { return limits_; }
  Sampler& sampler() { return sampler_; }
  KvMemory& kv() { return kv_; }
  int64_t workspace_bytes() const { return workspace_.bytes_taken(); }
  int64_t weight_bytes() const { return weight_memory_.bytes_taken(); }

  // One forward pass, sampling included; checks the step first. Returns the most log-probabilities that a row asks
  // for, -1 if none does.
  int32_t run(const Step& step, const StepResults& results);

  void set_profiling(bool on) { profiling_ = on; }
  std::vector<ProfileLine> profile() const;      // one line for each kind
  std::vector<ProfileLine> profile_ops() const;  // one for each op and kind that ran

 private:
  const Rows& rows_at(int32_t id) const;
  const PreparedRows& prepared_at(int32_t id) const;
  const PackedWeight& weight_at(int32_t id) const;
  const float* vector_at(int32_t id, int32_t count) const;
  NormArgs norm_args(const RowsShape& shape) const;
  void add_rows_op(const RowsShape& shape, Rows out, PreparedRows prepared);
  const PackedWeight& expert_weight(int32_t id, const PackedWeight& like) const;
  const MoeScratch& moe_scratch(const RoutingShape& routing, const PackedWeight& up, const PackedWeight& down);
  void add_linear_op(int32_t prepared, std::unique_ptr<LinearOp> op, const std::vector<Projection>& projections);
  PreparedRows take_prepared(ActivationKind kind, int32_t rows, int32_t k);
  Rows take_rows(int32_t rows, int32_t width);
  const float* keep(const std::vector<float>& values);
  const KvLayout& layout_of(const AttentionShape& shape) const;
  float* partials(int32_t head_dim);
  const AttentionPlan& attention_plan(const AttentionShape& shape);
  const float* rope_table(const AttentionShape& shape);
  Step outputs_of(const Step& step);
  template <typename Staged>
  void stage_ops(const Step& step, const Staged& staged);
  void run_profiled(const Step& step);

  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  PlanLimits limits_;
  Sampler sampler_;
  KvMemory kv_;
  std::vector<int32_t> kv_windows_;
  Arena weight_memory_, workspace_;

  std::vector<Rows> rows_;
  std::vector<PreparedRows> prepared_;
  // For each of `prepared_`: room for each thread's own rows, and the last op that uses it, or null.
  struct OwnRows {
    uint8_t* memory;
    LinearOp* op;
  };
  std::vector<OwnRows> own_rows_;
  std::vector<PackedWeight> weights_;
  struct Vector {
    const float* values;
    int32_t count;
  };
  std::vector<Vector> vectors_;

  struct PlannedAttention {
    int32_t group, q_heads, window;
    std::unique_ptr<AttentionPlan> plan;
  };
  std::vector<PlannedAttention> attention_plans_;
  struct RopeTable {
    std::vector<float> inv_freq;
    float amplitude;
    float* table;  // [max_tokens][2 * inv_freq]
  };
  std::vector<RopeTable> rope_tables_;
  struct KnownMoeScratch {
    int32_t experts, used, hidden, width;
    ActivationKind input, active;
    MoeScratch scratch;
  };
  std::vector<KnownMoeScratch> moe_scratch_;
  float* partials_ = nullptr;
  int32_t partials_head_dim_ = 0;
  uint8_t* attention_scratch_ = nullptr;
  int64_t attention_scratch_stride_ = 0;
  ThreadRows row_scratch_{nullptr, 0};
  int32_t position_rows_ = INT32_MAX;  // of the shortest table of learned positions

  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<size_t> op_begins_;
  size_t kept_from_ = SIZE_MAX;  // the first op that runs for output rows alone
  std::vector<int32_t> kept_rows_, kept_positions_;
  HeadOp* head_ = nullptr;
  LinearOp* last_linear_ = nullptr;
  StageList stages_;

  struct Seconds {
    int64_t stages, total_ns, wait_ns;
  };
  bool profiling_ = false;
  struct OpSeconds {
    Seconds kinds[kOpKinds] = {};
  };
  std::vector<OpSeconds> seconds_;  // by op
};

}  // namespace octavo
