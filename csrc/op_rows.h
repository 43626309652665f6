// Ops that treat every row by itself: embedding, norms, gated activations, quantising, rotary embedding and KV store.
#pragma once
#include <span>

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

// Adds to each row the row of a table that stands at the token's position (learned positions).
class AddPositionsOp final : public Op {
 public:
  AddPositionsOp(const KernelTable& kernels, int32_t threads, PackedWeight table, Rows rows, ThreadRows scratch)
      : kernels_(kernels), threads_(threads), table_(table), rows_(rows), scratch_(scratch) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  PackedWeight table_;
  Rows rows_;
  ThreadRows scratch_;
  const int32_t* positions_ = nullptr;
  RowCut cut_;
};

// Columns of some row buffers side by side, picked into another one.
class ColumnsOp final : public Op {
 public:
  // `index` [out.width]: a column of the sources side by side, or -1 for 0.
  ColumnsOp(int32_t threads, const std::vector<Rows>& sources, std::span<const int32_t> index, Rows out);
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  // `count` columns that follow each other on both sides; source -1: zeros.
  struct Run {
    int32_t source, from, to, count;
  };
  int32_t threads_;
  std::vector<Rows> sources_;
  std::vector<Run> runs_;
  Rows out_;
  RowCut cut_;
};

// Moves the rows that outputs are drawn from to the front of their buffers: output r's to row r, in place.
class KeepOutputsOp final : public Op {
 public:
  explicit KeepOutputsOp(std::vector<Rows> buffers) : buffers_(std::move(buffers)) {}
  // The step's output rows must ascend: a row then never moves over one that is still to be moved.
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;  // one buffer

 private:
  std::vector<Rows> buffers_;
  const int32_t* output_rows_ = nullptr;
  int32_t outputs_ = 0;
};

// A norm of rows of [groups][width]: each group by itself, with its own weights.
struct NormArgs {
  bool layer;           // layer norm, else RMS norm
  const float* weight;  // [groups][width]
  const float* bias;    // the same or null; layer norm only
  float eps;
  int32_t groups, width;

  void apply(const KernelTable& kernels, const float* x, float* out) const {
    for (int64_t at = 0; at < int64_t(groups) * width; at += width) {
      if (layer) kernels.layer_norm(x + at, weight + at, bias ? bias + at : nullptr, eps, width, out + at);
      else kernels.rms_norm(x + at, weight + at, eps, width, out + at);
    }
  }
};

// What a RowsOp makes of its input rows.
enum class RowFunction : int32_t {
  copy, rms_norm, silu_mul, gelu_tanh_mul, layer_norm, silu, gelu_tanh, gelu, gelu_mul
};
constexpr int32_t kRowFunctions = 9;

inline bool is_norm(RowFunction function) {
  return function == RowFunction::rms_norm || function == RowFunction::layer_norm;
}
inline bool is_gated(RowFunction function) {
  return function == RowFunction::silu_mul || function == RowFunction::gelu_tanh_mul ||
         function == RowFunction::gelu_mul;
}

// One row function, and what becomes of its result: rows of f32, or rows prepared for the linear kernel. The two are
// one op because the row is still in the first-level cache when it is quantised.
class RowsOp final : public Op {
 public:
  struct Args {
    RowFunction function;
    Rows x, y;            // y: second operand of the gated activations
    NormArgs norm;        // norms only
    bool add;             // out += scale * result, rows only
    float scale;
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
  const float* result(int32_t row, int32_t thread) const;

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
  RopeStoreOp(const KernelTable& kernels, int32_t threads, int32_t group, const RopeStoreArgs& args)
      : kernels_(kernels), threads_(threads), group_(group), args_(args) {}
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  int32_t group_;  // of KV
  RopeStoreArgs args_;
  RowCut cut_;
};

}  // namespace octavo
