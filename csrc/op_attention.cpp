#include "op_attention.h"

namespace octavo {

void AttentionOp::stage(const Step& step, StageList& out) {
  args_.query_start = step.query_start;
  args_.context_len = step.context_len;
  args_.block_table = step.blocks_of(group_);
  args_.block_stride = step.block_stride;
  args_.rows = plan_.rows().data();
  out.add(OpKind::attention, stage_of(this, int32_t(plan_.items().size())));
  Stage merges = {[](void* self, int32_t item, int32_t) noexcept { static_cast<AttentionOp*>(self)->merge(item); }, this,
                  int32_t(plan_.merges().size())};
  out.add(OpKind::merge, merges);
}

void AttentionOp::item(int32_t item, int32_t thread) noexcept {
  const std::vector<AttentionItem>& items = plan_.items();
  size_t next = size_t(item + threads_);  // the others will have taken those between
  kernels_.attention(args_, items[size_t(item)], next < items.size() ? &items[next] : nullptr,
                     scratch_ + thread * scratch_stride_);
}

void AttentionOp::merge(int32_t item) noexcept { kernels_.attention_merge(args_, plan_.merges()[size_t(item)]); }

}  // namespace octavo
