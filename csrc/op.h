// What a plan is made of: ops that turn a step's sizes into stages for the thread pool.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "step.h"

namespace octavo {

// What time is accounted under.
enum class OpKind : int32_t { embed, rows, linear, rope_table, rope_store, attention, merge, head, sample };
constexpr int32_t kOpKinds = 9;
constexpr const char* kOpNames[kOpKinds] = {"embed",     "rows",  "linear", "rope_table", "rope_and_store",
                                            "attention", "merge", "head",   "sample"};

// The stages of one step, in order.
class StageList {
 public:
  void add(OpKind kind, Stage stage) {
    if (stage.items == 0) return;
    stages_.push_back(stage);
    kinds_.push_back(kind);
  }
  // The same, for a stage that reads [begin, end) of the weights, each thread an equal part of it: stages since the last
  // such one fetch it ahead.
  void add(OpKind kind, Stage stage, const uint8_t* begin, const uint8_t* end) {
    for (; ahead_ < stages_.size(); ahead_++) {
      stages_[ahead_].ahead = begin;
      stages_[ahead_].ahead_bytes = end - begin;
    }
    add(kind, stage);
  }
  void clear() {
    stages_.clear();
    kinds_.clear();
    ahead_ = 0;
  }
  const std::vector<Stage>& stages() const { return stages_; }
  OpKind kind(size_t stage) const { return kinds_[stage]; }

 private:
  std::vector<Stage> stages_;
  std::vector<OpKind> kinds_;
  size_t ahead_ = 0;  // stages before this one know what to fetch
};

class Op {
 public:
  virtual ~Op() = default;
  // Fixes this op's work for one step and appends its stages. Called on one thread, before any stage of the step runs;
  // what the stages read must stay as it is until the step ends.
  virtual void stage(const Step& step, StageList& out) = 0;
};

// How long a claim should last: long against taking it (about 0.1 us between cores), short against the wait of the
// other threads for the last one.
inline double item_ns(double total_ns, int32_t threads) {
  return std::clamp(total_ns / (threads * 8), 2000.0, 15000.0);
}

// `rows` rows of about `row_ns` each, in equal blocks.
struct RowCut {
  int32_t rows = 0, per_item = 1;

  RowCut() = default;
  RowCut(int32_t rows, double row_ns, int32_t threads) : rows(rows) {
    per_item = int32_t(std::clamp(item_ns(row_ns * rows, threads) / row_ns, 1.0, double(std::max(rows, 1))));
  }
  int32_t items() const { return (rows + per_item - 1) / per_item; }
  int32_t begin(int32_t item) const { return item * per_item; }
  int32_t end(int32_t item) const { return std::min(rows, (item + 1) * per_item); }
};

// A stage whose items call T::item on `self`.
template <typename T>
Stage stage_of(T* self, int32_t items) {
  return {[](void* context, int32_t item, int32_t thread) noexcept { static_cast<T*>(context)->item(item, thread); },
          self, items};
}

// A row buffer [max_tokens][stride] of f32.
struct Rows {
  float* data;
  int32_t width;
  int64_t stride;
  float* row(int64_t r) const { return data + r * stride; }
};

// One row of f32 per thread, for values between two fused steps.
struct ThreadRows {
  float* data;
  int64_t stride;
  float* row(int32_t thread) const { return data + thread * stride; }
};

}  // namespace octavo
