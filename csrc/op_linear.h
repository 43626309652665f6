// A linear group: several matrices times the same prepared rows, as one pool of items.
#pragma once
#include <memory>

#include "lanes.h"
#include "op.h"
#include "op_rows.h"

namespace octavo {

// (column tiles x row blocks) of a linear group, cut to claims of a good length. The kernel's results don't depend on
// the cut.
class LinearCut {
 public:
  LinearCut() = default;
  LinearCut(const std::vector<PackedWeight>& weights, const PreparedRows& input, int32_t rows, int32_t threads);

  int32_t rows() const { return rows_; }
  int32_t items() const { return blocks_ * items_per_block_; }
  int32_t blocks() const { return blocks_; }

  struct Piece {
    int32_t matrix, tile_begin, tile_end, row_begin, row_end;
  };
  Piece piece(int32_t item) const;

 private:
  struct Matrix {
    int32_t tiles, tiles_per_item, items;
  };
  std::vector<Matrix> matrices_;
  int32_t rows_ = 0, row_block_ = 1, blocks_ = 0, items_per_block_ = 0;
};

// An op whose threads each read a stretch of weights from end to end.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Where a thread begins in this step, or null. Asked while the step runs.
  virtual const uint8_t* first_read(int32_t thread) const = 0;
};

struct Projection {
  PackedWeight weight;
  const float* bias;  // [n] or null
  Rows out;
};

class LinearOp final : public Op, public WeightReader {
 public:
  LinearOp(const KernelTable& kernels, int32_t threads, PreparedRows input, std::vector<Projection> projections,
           bool accumulate);
  // Takes over the op that prepares the input. When the rows are few, each thread prepares all of them for itself at its
  // first item: less work for the machine as a whole is more time than a stage of its own, for which all threads wait.
  // `memory` holds `most_rows` prepared rows for each thread. Not for an op that reads what this one writes.
  void prepare_with(std::unique_ptr<RowsOp> rows, uint8_t* memory, int32_t most_rows);
  // Somebody else reads the prepared rows too: they always get their own stage.
  void keep_prepared() { most_own_rows_ = 0; }
  // Who reads weights after this op: its first ones are fetched while the last ones of this op are used.
  void set_next(const WeightReader* next) { next_ = next; }
  const uint8_t* first_read(int32_t thread) const override;
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  PreparedRows own_rows(int32_t thread) noexcept;

  const KernelTable& kernels_;
  int32_t threads_;
  std::vector<PackedWeight> weights_;
  std::vector<LinearArgs> args_;
  PreparedRows input_;
  LinearCut cut_;
  Lanes lanes_;
  const WeightReader* next_ = nullptr;

  std::unique_ptr<RowsOp> rows_op_;  // or null
  uint8_t* own_memory_ = nullptr;    // [threads][most_own_rows][row_bytes]
  int32_t most_own_rows_ = 0, rows_ = 0;
  bool prepares_ = false;            // in this step
  struct alignas(64) Mark {
    bool done;
  };
  std::vector<Mark> prepared_by_;  // [threads]
};

}  // namespace octavo
