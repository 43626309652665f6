// The end of a pass: final norm of the rows that are asked for, logits, and the draw, in blocks of at most 64 rows so
// that full logits never exist. A row that has a target isn't drawn from: its target's log-probability is reported.
#pragma once
#include <memory>

#include "op.h"
#include "op_linear.h"
#include "op_rows.h"
#include "sampler.h"

namespace octavo {

class HeadOp final : public Op, public WeightReader {
 public:
  static constexpr int32_t kBlockRows = 64;

  struct Args {
    Rows x;
    NormArgs norm;
    PackedWeight weight;
    float scale, softcap;
    PreparedRows prepared;  // [max outputs]
    ThreadRows norm_scratch;
    Rows logits;            // [kBlockRows][vocab]
    uint8_t* sample_scratch;
    int64_t sample_scratch_stride;
  };
  HeadOp(const KernelTable& kernels, int32_t threads, const Args& args, Sampler& sampler);

  // Where the next step's results go; before `stage`.
  void set_results(const StepResults& results) { results_ = results; }
  void stage(const Step& step, StageList& out) override;
  const uint8_t* first_read(int32_t thread) const override;
  void item(int32_t item, int32_t thread) noexcept;  // norm and prepare

 private:
  // Rows [begin, begin + rows) of the outputs, through one logits buffer.
  struct Block {
    HeadOp* head;
    int32_t begin, rows;
    LinearCut cut;
    LinearArgs args;
    Lanes lanes;
  };
  void multiply(Block& block, int32_t thread) const noexcept;
  void draw(const Block& block, int32_t item, int32_t thread) const noexcept;
  int32_t draw_row(int32_t r, const float* logits, uint8_t* scratch, SampleOut* out) const noexcept;
  void finish_logits(float* logits) const noexcept;

  const KernelTable& kernels_;
  int32_t threads_;
  Args args_;
  Sampler& sampler_;
  StepResults results_{};
  Step step_{};
  RowCut cut_;
  std::vector<Block> blocks_;
};

}  // namespace octavo
