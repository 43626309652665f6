#include "op_rows.h"

#include <cstring>

namespace octavo {
namespace {

// Rough costs, for the cut only.
constexpr double kGatherNs = 2.0, kRowNs = 0.4, kTableNs = 4.0, kRopeNs = 0.6;

}  // namespace

void EmbedOp::stage(const Step& step, StageList& out) {
  tokens_ = step.tokens;
  cut_ = RowCut(step.tokens_count, kGatherNs * table_.k, threads_);
  out.add(OpKind::embed, stage_of(this, cut_.items()));
}

void EmbedOp::item(int32_t item, int32_t) noexcept {
  for (int32_t t = cut_.begin(item); t < cut_.end(item); t++)
    kernels_.gather_row(table_, tokens_[t], scale_, out_.row(t));
}

void AddPositionsOp::stage(const Step& step, StageList& out) {
  positions_ = step.positions;
  cut_ = RowCut(step.tokens_count, kGatherNs * table_.k, threads_);
  out.add(OpKind::embed, stage_of(this, cut_.items()));
}

void AddPositionsOp::item(int32_t item, int32_t thread) noexcept {
  float* row = scratch_.row(thread);
  for (int32_t t = cut_.begin(item); t < cut_.end(item); t++) {
    kernels_.gather_row(table_, positions_[t], 1.0f, row);
    kernels_.add(row, 1.0f, rows_.width, rows_.row(t));
  }
}

ColumnsOp::ColumnsOp(int32_t threads, const std::vector<Rows>& sources, std::span<const int32_t> index, Rows out)
    : threads_(threads), sources_(sources), out_(out) {
  for (size_t i = 0; i < index.size(); i++) {
    int32_t source = -1, column = index[i];
    if (column >= 0)
      for (source = 0; column >= sources_[size_t(source)].width; source++) column -= sources_[size_t(source)].width;
    bool goes_on = !runs_.empty() && runs_.back().source == source &&
                   (source < 0 || runs_.back().from + runs_.back().count == column);
    if (goes_on) runs_.back().count++;
    else runs_.push_back({source, column, int32_t(i), 1});
  }
}

void ColumnsOp::stage(const Step& step, StageList& out) {
  cut_ = RowCut(step.tokens_count, kRowNs * out_.width, threads_);
  out.add(OpKind::rows, stage_of(this, cut_.items()));
}

void ColumnsOp::item(int32_t item, int32_t) noexcept {
  for (int32_t t = cut_.begin(item); t < cut_.end(item); t++)
    for (const Run& run : runs_) {
      float* to = out_.row(t) + run.to;
      if (run.source < 0) std::memset(to, 0, sizeof(float) * size_t(run.count));
      else std::memcpy(to, sources_[size_t(run.source)].row(t) + run.from, sizeof(float) * size_t(run.count));
    }
}

void KeepOutputsOp::stage(const Step& step, StageList& out) {
  output_rows_ = step.output_rows;
  outputs_ = step.outputs;
  if (outputs_ < step.tokens_count) out.add(OpKind::rows, stage_of(this, int32_t(buffers_.size())));
}

void KeepOutputsOp::item(int32_t item, int32_t) noexcept {
  const Rows& rows = buffers_[size_t(item)];
  for (int32_t r = 0; r < outputs_; r++)
    if (output_rows_[r] != r) std::memcpy(rows.row(r), rows.row(output_rows_[r]), sizeof(float) * size_t(rows.width));
}

void RowsOp::stage(const Step& step, StageList& out) {
  cut_ = RowCut(step.tokens_count, cost_ns(1), threads_);
  out.add(OpKind::rows, stage_of(this, cut_.items()));
}

void RowsOp::compute(int32_t row, float* out) const {
  const float* x = args_.x.row(row);
  int64_t width = args_.x.width;
  switch (args_.function) {
    case RowFunction::copy: std::memcpy(out, x, sizeof(float) * size_t(width)); return;
    case RowFunction::rms_norm:
    case RowFunction::layer_norm: args_.norm.apply(kernels_, x, out); return;
    case RowFunction::silu: kernels_.silu(x, width, out); return;
    case RowFunction::gelu_tanh: kernels_.gelu_tanh(x, width, out); return;
    case RowFunction::gelu: kernels_.gelu(x, width, out); return;
    case RowFunction::silu_mul: kernels_.silu_mul(x, args_.y.row(row), width, out); return;
    case RowFunction::gelu_tanh_mul: kernels_.gelu_tanh_mul(x, args_.y.row(row), width, out); return;
    case RowFunction::gelu_mul: kernels_.gelu_mul(x, args_.y.row(row), width, out); return;
  }
}

double RowsOp::cost_ns(int32_t rows) const { return kRowNs * args_.x.width * rows; }

// The row's result, computed unless it is the row itself.
const float* RowsOp::result(int32_t row, int32_t thread) const {
  if (args_.function == RowFunction::copy) return args_.x.row(row);
  float* scratch = args_.scratch.row(thread);
  compute(row, scratch);
  return scratch;
}

void RowsOp::prepare(int32_t row, int32_t thread, uint8_t* dst) const {
  kernels_.prepare_row(args_.prepared.kind, result(row, thread), args_.prepared.k, dst);
}

void RowsOp::item(int32_t item, int32_t thread) noexcept {
  const PreparedRows& prepared = args_.prepared;
  for (int32_t t = cut_.begin(item); t < cut_.end(item); t++) {
    if (prepared.data) prepare(t, thread, const_cast<uint8_t*>(prepared.data) + t * prepared.row_bytes);
    else if (args_.add) kernels_.add(result(t, thread), args_.scale, args_.out.width, args_.out.row(t));
    else compute(t, args_.out.row(t));
  }
}

void RopeTableOp::stage(const Step& step, StageList& out) {
  args_.positions = step.positions;
  cut_ = RowCut(step.tokens_count, kTableNs * args_.rotary, threads_);
  out.add(OpKind::rope_table, stage_of(this, cut_.items()));
}

void RopeTableOp::item(int32_t item, int32_t) noexcept {
  kernels_.rope_table(args_, cut_.begin(item), cut_.end(item));
}

void RopeStoreOp::stage(const Step& step, StageList& out) {
  args_.positions = step.positions;
  args_.token_seq = step.token_seq;
  args_.block_table = step.blocks_of(group_);
  args_.block_stride = step.block_stride;
  double row_ns = kRopeNs * (args_.q_heads + 2 * args_.kv.kv_heads) * args_.kv.head_dim;
  cut_ = RowCut(step.tokens_count, row_ns, threads_);
  out.add(OpKind::rope_store, stage_of(this, cut_.items()));
}

void RopeStoreOp::item(int32_t item, int32_t) noexcept {
  kernels_.rope_store(args_, cut_.begin(item), cut_.end(item));
}

}  // namespace octavo
