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

void RowsOp::stage(const Step& step, StageList& out) {
  cut_ = RowCut(step.tokens_count, cost_ns(1), threads_);
  out.add(OpKind::rows, stage_of(this, cut_.items()));
}

void RowsOp::compute(int32_t row, float* out) const {
  const float* x = args_.x.row(row);
  switch (args_.function) {
    case RowFunction::copy: std::memcpy(out, x, sizeof(float) * size_t(args_.x.width)); return;
    case RowFunction::rms_norm: kernels_.rms_norm(x, args_.weight, args_.eps, args_.x.width, out); return;
    case RowFunction::silu_mul: kernels_.silu_mul(x, args_.y.row(row), args_.x.width, out); return;
    case RowFunction::gelu_tanh_mul: kernels_.gelu_tanh_mul(x, args_.y.row(row), args_.x.width, out); return;
  }
}

double RowsOp::cost_ns(int32_t rows) const { return kRowNs * args_.x.width * rows; }

void RowsOp::prepare(int32_t row, int32_t thread, uint8_t* dst) const {
  const float* values = args_.x.row(row);
  if (args_.function != RowFunction::copy) {
    float* scratch = args_.scratch.row(thread);
    compute(row, scratch);
    values = scratch;
  }
  kernels_.prepare_row(args_.prepared.kind, values, args_.prepared.k, dst);
}

void RowsOp::item(int32_t item, int32_t thread) noexcept {
  const PreparedRows& prepared = args_.prepared;
  for (int32_t t = cut_.begin(item); t < cut_.end(item); t++) {
    if (prepared.data) prepare(t, thread, const_cast<uint8_t*>(prepared.data) + t * prepared.row_bytes);
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
  args_.block_table = step.block_table;
  args_.block_stride = step.block_stride;
  double row_ns = kRopeNs * (args_.q_heads + 2 * args_.kv.kv_heads) * args_.kv.head_dim;
  cut_ = RowCut(step.tokens_count, row_ns, threads_);
  out.add(OpKind::rope_store, stage_of(this, cut_.items()));
}

void RopeStoreOp::item(int32_t item, int32_t) noexcept {
  kernels_.rope_store(args_, cut_.begin(item), cut_.end(item));
}

}  // namespace octavo
