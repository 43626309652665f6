#include "op_attention.h"

namespace octavo {
namespace {

int32_t claims(size_t count, int32_t per_claim) { return int32_t((int64_t(count) + per_claim - 1) / per_claim); }

int32_t per_claim(size_t count) { return int32_t((int64_t(count) + ThreadPool::kMaxItems - 1) / ThreadPool::kMaxItems); }

}  // namespace

void AttentionOp::stage(const Step& step, StageList& out) {
  args_.query_start = step.query_start;
  args_.context_len = step.context_len;
  args_.block_table = step.block_table;
  args_.block_stride = step.block_stride;
  items_per_claim_ = std::max(per_claim(plan_.items().size()), 1);
  merges_per_claim_ = std::max(per_claim(plan_.merges().size()), 1);
  out.add(OpKind::attention, stage_of(this, claims(plan_.items().size(), items_per_claim_)));
  Stage merges = {[](void* self, int32_t item, int32_t) noexcept { static_cast<AttentionOp*>(self)->merge(item); }, this,
                  claims(plan_.merges().size(), merges_per_claim_)};
  out.add(OpKind::merge, merges);
}

void AttentionOp::item(int32_t item, int32_t thread) noexcept {
  int32_t count = int32_t(plan_.items().size()), end = std::min(count, (item + 1) * items_per_claim_);
  for (int32_t i = item * items_per_claim_; i < end; i++)
    kernels_.attention(args_, plan_.items()[size_t(i)], scratch_ + thread * scratch_stride_);
}

void AttentionOp::merge(int32_t item) noexcept {
  int32_t count = int32_t(plan_.merges().size()), end = std::min(count, (item + 1) * merges_per_claim_);
  for (int32_t i = item * merges_per_claim_; i < end; i++) kernels_.attention_merge(args_, plan_.merges()[size_t(i)]);
}

}  // namespace octavo
