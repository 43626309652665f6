// Ops that treat every row by itself: embedding, norms, gated activations, quantising, rotary embedding and KV store.
#pragma once
#include "op.h"

namespace octavo {

class EmbedOp final : public Op {
 public:
  EmbedOp(const KernelTable& kernels, int32_t threads, PackedWeight table, float scale, Rows out)
      : kernels_(kernels), threads_(threads), table_(table), scale_(scale), out_(out) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  PackedWeight table_;
  float scale_;
  Rows out_;
  const int32_t* tokens_ = nullptr;
  RowCut cut_;
};

// What a RowsOp makes of its input rows.
enum class RowFunction : int32_t { copy, rms_norm, silu_mul, gelu_tanh_mul };

// One row function, and what becomes of its result: rows of f32, or rows prepared for the linear kernel. The two are
// one op because the row is still in the first-level cache when it is quantised.
class RowsOp final : public Op {
 public:
  struct Args {
    RowFunction function;
    Rows x, y;            // y: second operand of the gated activations
    const float* weight;  // [width], rms_norm only
    float eps;
    Rows out;             // if `prepared.data` is null
    PreparedRows prepared;
    ThreadRows scratch;
  };
  RowsOp(const KernelTable& kernels, int32_t threads, const Args& args)
      : kernels_(kernels), threads_(threads), args_(args) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

  // For a linear group that prepares its own rows when they are few: this row prepared to `dst`, and about how long
  // `rows` of them take.
  void prepare(int32_t row, int32_t thread, uint8_t* dst) const;
  double cost_ns(int32_t rows) const;
  const Args& args() const { return args_; }

 private:
  void compute(int32_t row, float* out) const;

  const KernelTable& kernels_;
  int32_t threads_;
  Args args_;
  RowCut cut_;
};

// Cosines and sines of a step's positions, once for all layers with the same frequencies.
class RopeTableOp final : public Op {
 public:
  // `args.positions` is filled in by `stage`.
  RopeTableOp(const KernelTable& kernels, int32_t threads, const RopeTableArgs& args)
      : kernels_(kernels), threads_(threads), args_(args) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  RopeTableArgs args_;
  RowCut cut_;
};

class RopeStoreOp final : public Op {
 public:
  // Pointers into a step's arrays are filled in by `stage`.
  RopeStoreOp(const KernelTable& kernels, int32_t threads, const RopeStoreArgs& args)
      : kernels_(kernels), threads_(threads), args_(args) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  RopeStoreArgs args_;
  RowCut cut_;
};

}  // namespace octavo
