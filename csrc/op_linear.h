// A linear group: several matrices times the same prepared rows, as one pool of items.
#pragma once
#include "op.h"

namespace octavo {

// (column tiles x row blocks) of a linear group, cut to claims of a good length. The kernel's results don't depend on
// the cut.
class LinearCut {
 public:
  LinearCut() = default;
  LinearCut(const std::vector<PackedWeight>& weights, const PreparedRows& input, int32_t rows, int32_t threads);

  int32_t rows() const { return rows_; }
  int32_t items() const { return blocks_ * items_per_block_; }

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

struct Projection {
  PackedWeight weight;
  const float* bias;  // [n] or null
  Rows out;
};

class LinearOp final : public Op {
 public:
  LinearOp(const KernelTable& kernels, int32_t threads, PreparedRows input, std::vector<Projection> projections,
           bool accumulate);
  void stage(const Step& step, StageList& out) override;
  void item(int32_t item, int32_t thread) noexcept;

 private:
  const KernelTable& kernels_;
  int32_t threads_;
  std::vector<PackedWeight> weights_;
  std::vector<LinearArgs> args_;
  PreparedRows input_;
  LinearCut cut_;
};

}  // namespace octavo
