// A mixture of experts: each token goes through a few of many gated feed-forwards (Shazeer et al. 2017).
//
// Rows are sorted by expert, so that every expert's matrices meet all their rows in one go; each row is multiplied by
// itself all the same, and a token's experts are added in ascending order: nothing depends on the batch.
#pragma once
#include <vector>

#include "op.h"

namespace octavo {

enum class Scoring : int32_t { softmax, sigmoid, chosen };
enum class GroupScore : int32_t { top2, max };

// As Routing in backends/ops.py.
struct RoutingShape {
  int32_t experts, used;
  Scoring scoring;
  bool normalise;
  float scale;
  int32_t groups, used_groups;
  GroupScore group_score;
};

// Chooses for one token from the router's logits [experts]: experts [used] ascending and their weights [used].
// `correction` [experts] or null; `scratch` [4 * experts].
void choose_experts(const RoutingShape& routing, const float* logits, const float* correction, float* scratch,
                    int32_t* experts, float* weights);

enum class GateFunction : int32_t { silu, gelu_tanh, gelu, clamped_swiglu };

struct GateShape {
  GateFunction function;
  float alpha, limit;  // clamped_swiglu only
};

struct ExpertWeights {
  PackedWeight gate, up, down;
  const float *gate_bias, *up_bias, *down_bias;  // or null
};

// Memory for one step of such an op; all layers of the same shape use the same.
struct MoeScratch {
  int32_t max_rows;           // max_tokens * used
  PreparedRows input, active;
  Rows gate, up, down;
  int32_t* experts;           // [max_tokens][used]
  float* weights;             // [max_tokens][used]
  int32_t* place;             // [max_tokens][used] the row that each of a token's experts works on
  int32_t* source;            // [max_rows] the token of each row
  int32_t* start;             // [experts + 1] first row of each expert
  int32_t* busy;              // [experts + 1] how many experts have rows, then which
  ThreadRows choice;          // [threads][4 * experts]
  ThreadRows row;             // [threads][ffn]
};

class MoeOp final : public Op {
 public:
  struct Args {
    RoutingShape routing;
    GateShape gate;
    const float* correction;
    Rows logits, out;
    PreparedRows input;  // what the experts read, a row for each token
    std::vector<ExpertWeights> experts;
    MoeScratch scratch;
  };
  MoeOp(const KernelTable& kernels, int32_t threads, Args args);
  void stage(const Step& step, StageList& out) override;

 private:
  // Some column tiles of one matrix of every expert that has rows: item = (which of them, chunk of tiles).
  struct Product {
    MoeOp* op;
    bool down;
    int32_t tiles, per_item = 1, chunks = 1;
    int32_t cut(int32_t experts, int32_t threads);  // -> items
    void item(int32_t item, int32_t thread) noexcept;
  };
  void route(int32_t item, int32_t thread) noexcept;
  void sort(int32_t item, int32_t thread) noexcept;
  void gather(int32_t item, int32_t thread) noexcept;
  void activate(int32_t item, int32_t thread) noexcept;
  void combine(int32_t item, int32_t thread) noexcept;
  void multiply(const PackedWeight& weight, const float* bias, const PreparedRows& input, const Rows& out,
                int32_t expert, int32_t tile_begin, int32_t tile_end) const noexcept;
  void gate_row(const float* gate, const float* up, float* out) const noexcept;

  template <void (MoeOp::*method)(int32_t, int32_t) noexcept>
  Stage stage_with(int32_t items) {
    return {[](void* self, int32_t item, int32_t thread) noexcept { (static_cast<MoeOp*>(self)->*method)(item, thread); },
            this, items};
  }

  const KernelTable& kernels_;
  int32_t threads_;
  Args args_;
  int32_t tokens_ = 0;
  RowCut route_cut_, row_cut_, token_cut_;
  Product hidden_product_, down_product_;
};

}  // namespace octavo
