#include "op_linear.h"

#include <utility>

namespace octavo {
namespace {

constexpr int32_t kColumns = 16;

// Prepared rows of one block stay in a core's second-level cache while the tiles pass by.
constexpr int64_t kRowBlockBytes = 256 << 10;

// What one core does in a nanosecond: bytes of weights from memory, and multiply-adds by ActivationKind. Only the cut
// follows from these.
constexpr double kBytesPerNs = 16.0;
constexpr double kMacsPerNs[kActivationKinds] = {50.0, 100.0, 200.0, 50.0};

// What a stage costs beyond its work: all threads arrive, and all learn of it.
constexpr double kStageNs = 2000.0;

double tile_ns(const PackedWeight& weight, ActivationKind kind, int32_t rows) {
  double arithmetic = double(rows) * kColumns * weight.k / kMacsPerNs[int(kind)];
  return std::max(double(weight.tile_bytes) / kBytesPerNs, arithmetic);
}

// Long against a call of the kernel, short against the wait for the last piece of an op.
double piece_ns(double total_ns, int32_t threads) { return std::clamp(total_ns / (threads * 32), 1000.0, 8000.0); }

int32_t ceil_div(int64_t a, int64_t b) { return int32_t((a + b - 1) / b); }

// Where the matrices end that lie one behind the other from the first on.
const uint8_t* end_of_run(const std::vector<PackedWeight>& weights) {
  const uint8_t* end = weights.front().tiles;
  for (const PackedWeight& weight : weights) {
    if (weight.tiles < end || weight.tiles - end >= 64) break;
    end = weight.tiles + ceil_div(weight.n, kColumns) * weight.tile_bytes;
  }
  return end;
}

}  // namespace

LinearCut::LinearCut(const std::vector<PackedWeight>& weights, const PreparedRows& input, int32_t rows, int32_t threads)
    : rows_(rows) {
  if (rows == 0) return;
  int64_t most = std::max<int64_t>(kRowBlockBytes / input.row_bytes / 16 * 16, 16);
  blocks_ = ceil_div(rows, most);
  row_block_ = std::min(rows, ceil_div(ceil_div(rows, blocks_), 16) * 16);
  blocks_ = ceil_div(rows, row_block_);
  double total = 0.0;
  for (const PackedWeight& weight : weights)
    total += blocks_ * ceil_div(weight.n, kColumns) * tile_ns(weight, input.kind, row_block_);
  for (const PackedWeight& weight : weights) {
    int32_t tiles = ceil_div(weight.n, kColumns);
    double wanted = piece_ns(total, threads) / tile_ns(weight, input.kind, row_block_);
    int32_t per_item = int32_t(std::clamp(wanted, 1.0, double(tiles)));
    matrices_.push_back({tiles, per_item, ceil_div(tiles, per_item)});
    items_per_block_ += matrices_.back().items;
  }
}

LinearCut::Piece LinearCut::piece(int32_t item) const {
  int32_t block = item / items_per_block_, index = item % items_per_block_, m = 0;
  while (index >= matrices_[size_t(m)].items) index -= matrices_[size_t(m++)].items;
  const Matrix& matrix = matrices_[size_t(m)];
  int32_t tile = index * matrix.tiles_per_item, row = block * row_block_;
  return {m, tile, std::min(matrix.tiles, tile + matrix.tiles_per_item), row, std::min(rows_, row + row_block_)};
}

LinearOp::LinearOp(const KernelTable& kernels, int32_t threads, PreparedRows input, std::vector<Projection> projections,
                   bool accumulate)
    : kernels_(kernels), threads_(threads), input_(input), lanes_(threads), prepared_by_(size_t(threads)) {
  for (const Projection& p : projections) weights_.push_back(p.weight);
  for (size_t i = 0; i < projections.size(); i++)
    args_.push_back({&weights_[i], input, projections[i].bias, projections[i].out.data, projections[i].out.stride,
                     accumulate});
}

void LinearOp::prepare_with(std::unique_ptr<RowsOp> rows, uint8_t* memory, int32_t most_rows) {
  rows_op_ = std::move(rows);
  own_memory_ = memory;
  most_own_rows_ = most_rows;
}

void LinearOp::stage(const Step& step, StageList& out) {
  rows_ = step.tokens_count;
  prepares_ = rows_op_ && rows_ <= most_own_rows_ && rows_op_->cost_ns(rows_) <= kStageNs;
  if (rows_op_ && !prepares_) rows_op_->stage(step, out);
  for (Mark& mark : prepared_by_) mark.done = false;
  if (rows_ != cut_.rows()) cut_ = LinearCut(weights_, input_, rows_, threads_);
  lanes_.reset(cut_.items());
  out.add(OpKind::linear, stage_of(this, lanes_.count()), weights_.front().tiles, end_of_run(weights_));
}

const uint8_t* LinearOp::first_read(int32_t thread) const {
  if (cut_.blocks() != 1) return nullptr;
  LinearCut::Piece first = cut_.piece(lanes_.begin(thread));
  return weights_[size_t(first.matrix)].tiles + first.tile_begin * weights_[size_t(first.matrix)].tile_bytes;
}

PreparedRows LinearOp::own_rows(int32_t thread) noexcept {
  uint8_t* memory = own_memory_ + int64_t(thread) * most_own_rows_ * input_.row_bytes;
  if (!prepared_by_[size_t(thread)].done)
    for (int32_t r = 0; r < rows_; r++) rows_op_->prepare(r, thread, memory + r * input_.row_bytes);
  prepared_by_[size_t(thread)].done = true;
  PreparedRows own = input_;
  own.data = memory;
  return own;
}

void LinearOp::item(int32_t, int32_t thread) noexcept {
  PreparedRows input = prepares_ ? own_rows(thread) : input_;
  const uint8_t *end = nullptr, *next = nullptr;
  if (next_ && cut_.blocks() == 1 && (next = next_->first_read(thread))) {
    LinearCut::Piece last = cut_.piece(lanes_.end(thread) - 1);
    end = weights_[size_t(last.matrix)].tiles + last.tile_end * weights_[size_t(last.matrix)].tile_bytes;
  }
  lanes_.run(thread, [&](int32_t item) {
    LinearCut::Piece p = cut_.piece(item);
    LinearArgs args = args_[size_t(p.matrix)];
    args.input = input;
    args.fetch_end = end;
    args.fetch_next = next;
    kernels_.linear(args, p.tile_begin, p.tile_end, p.row_begin, p.row_end);
  });
}

}  // namespace octavo
