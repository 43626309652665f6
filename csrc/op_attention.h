// Paged attention of one layer. How it is cut into items is planned once a step for all layers of one shape.
#pragma once
#include "attention_plan.h"
#include "op.h"

namespace octavo {

class AttentionOp final : public Op {
 public:
  // `plan` is built by the owner before `stage`; pointers into a step's arrays are filled in by `stage`.
  AttentionOp(const KernelTable& kernels, const AttentionPlan& plan, const AttentionArgs& args, int32_t group,
              int32_t threads, uint8_t* scratch, int64_t scratch_stride)
      : kernels_(kernels), plan_(plan), args_(args), group_(group), threads_(threads), scratch_(scratch),
        scratch_stride_(scratch_stride) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;
  void merge(int32_t item) noexcept;

 private:
  const KernelTable& kernels_;
  const AttentionPlan& plan_;
  AttentionArgs args_;
  int32_t group_;  // of KV
  int32_t threads_;
  uint8_t* scratch_;  // [threads][scratch_stride]
  int64_t scratch_stride_;
};

}  // namespace octavo
