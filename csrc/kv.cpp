#include "kv.h"

#include <algorithm>
#include <cstring>

#include "require.h"

namespace octavo {

KvLayout kv_layout(KvType type, int32_t layers, int32_t page_size, int32_t kv_heads, int32_t head_dim) {
  require(page_size == 4 || page_size == 8 || page_size == 16 || page_size == 32,
          "page_size is " + std::to_string(page_size) + "; it must be 4, 8, 16 or 32");
  require(head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % 16 == 0,
          "head_dim is " + std::to_string(head_dim) + "; it must be a multiple of 16 up to 256");
  require(layers > 0 && kv_heads > 0, "layers and kv_heads must be positive");
  KvTypeSizes sizes = kKvTypes[int(type)];
  KvLayout kv{type, page_size, kv_heads, head_dim, 0, 0, 0, 0, 0, 0, nullptr};
  kv.plane_bytes = int64_t(head_dim) * page_size * sizes.element_bytes;
  kv.layer_bytes = 2 * kv_heads * kv.plane_bytes;
  kv.head_scales = sizes.scale_bytes ? (head_dim + sizes.scale_numbers - 1) / sizes.scale_numbers : 0;
  kv.layer_scale_bytes = 2 * int64_t(kv_heads) * kv.head_scales * page_size * sizes.scale_bytes;
  kv.scale_offset = layers * kv.layer_bytes;
  kv.page_bytes = (kv.scale_offset + layers * kv.layer_scale_bytes + 63) / 64 * 64;
  return kv;
}

namespace {

std::vector<KvLayout> layouts_for(const std::vector<KvShape>& groups, int32_t num_pages, int32_t page_size) {
  require(!groups.empty(), "there are no KV groups");
  require(num_pages > 0, "num_pages must be positive");
  std::vector<KvLayout> layouts;
  int64_t page_bytes = 0;
  for (const KvShape& group : groups) {
    require(group.window >= 0, "a KV group's window is " + std::to_string(group.window) + "; it must not be negative");
    layouts.push_back(kv_layout(group.type, group.layers, page_size, group.kv_heads, group.head_dim));
    page_bytes = std::max(page_bytes, layouts.back().page_bytes);
  }
  for (KvLayout& layout : layouts) layout.page_bytes = page_bytes;
  return layouts;
}

}  // namespace

KvMemory::KvMemory(const std::vector<KvShape>& groups, int32_t num_pages, int32_t page_size)
    : num_pages_(num_pages), groups_(groups), layouts_(layouts_for(groups, num_pages, page_size)),
      page_bytes_(layouts_.front().page_bytes), memory_(page_bytes_ * num_pages), fault_ahead_(memory_) {
  for (KvLayout& layout : layouts_) layout.base = memory_.data();
}

void KvMemory::copy_page(int32_t source, int32_t target) {
  for (int32_t page : {source, target})
    require(page >= 0 && page < num_pages_, "page " + std::to_string(page) + " can't be copied; pages are 0 to " +
                                                std::to_string(num_pages_ - 1));
  if (source == target) return;
  std::memcpy(memory_.data() + target * page_bytes_, memory_.data() + source * page_bytes_, size_t(page_bytes_));
}

}  // namespace octavo
